// src/manyheads/studio/licences.txt: the licences of the packages that the built page carries, and of those they need.
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const CARRIED = ["@observablehq/plot", "openseadragon", "svelte"];
const modules = join(import.meta.dirname, "..", "node_modules");
const waiting = [...CARRIED], texts = new Map();

while (waiting.length) {
  const name = waiting.pop(), folder = join(modules, name);
  if (texts.has(name) || !existsSync(folder)) continue;
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf-8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  const text = file ? readFileSync(join(folder, file), "utf-8").trim() : `Licence: ${about.license}. The package holds no text of it.`;
  texts.set(name, `${name} ${about.version} (${about.license})\n\n${text}`);
  // svelte's own tools are needed to build a page, and are not in it
  if (name !== "svelte") waiting.push(...Object.keys(about.dependencies ?? {}));
}
const rule = `\n\n${"-".repeat(80)}\n\n`;
const parts = [...texts.keys()].sort().map((name) => texts.get(name));
const head = "The page of manyheads carries code of these packages, under their own licences.";
writeFileSync(join(import.meta.dirname, "../../src/manyheads/studio/licences.txt"), [head, ...parts].join(rule) + "\n");
