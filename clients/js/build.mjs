// Builds lib/: the module as it is read, the same minified for pages, and the types. The console ships the minified one.
import { execFileSync } from "node:child_process";
import { copyFileSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = fileURLToPath(new URL(".", import.meta.url));
const lib = process.argv[2] ?? `${here}lib`;
const options = {
  absWorkingDir: here,
  entryPoints: ["src/index.ts"],
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  mangleProps: /^_[a-z]/, // what the parts share and callers do not see
  banner: { js: "/* IoTSphere client, Apache-2.0 */" },
};

rmSync(lib, { recursive: true, force: true });
await build({ ...options, outfile: `${lib}/iotsphere.js`, mangleProps: undefined });
await build({ ...options, outfile: `${lib}/iotsphere.min.js`, minify: true });
execFileSync(process.execPath, [`${here}node_modules/typescript/bin/tsc`, "-p", here, "--outDir", `${lib}/types`], { stdio: "inherit" });
if (!process.argv[2])
  copyFileSync(`${lib}/iotsphere.min.js`, `${here}../../gateways/http/console/vendor/iotsphere/iotsphere.min.js`);
