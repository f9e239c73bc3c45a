/** Reads the text format of Prometheus as far as the console needs it: the sum of each metric over its labels. */

const LINE = /^([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)/;

export function families(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = line.startsWith("#") ? null : LINE.exec(line);
    if (match) found.set(match[1], (found.get(match[1]) ?? 0) + Number(match[2]));
  }
  return found;
}
