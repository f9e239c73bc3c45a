/** Short words about what was just done, or why it was not. */

const SHOWN_MS = { ok: 4_000, bad: 9_000 };
const MAX = 4;

export function toast(text, kind = "ok") {
  const root = document.getElementById("toasts");
  const line = document.createElement("div");
  line.className = kind === "ok" ? "toast" : `toast ${kind}`;
  line.textContent = text;
  root.append(line);
  while (root.children.length > MAX) root.firstElementChild.remove();
  setTimeout(() => line.remove(), SHOWN_MS[kind]);
}

/** Run work; tell the user why it failed. Answers whether it went well. */
export async function told(work, done) {
  try {
    const answer = await work();
    if (done) toast(done);
    return answer ?? true;
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, "bad");
    return false;
  }
}
