// Loads play.js, the program that draws scenes, when the first scene is opened: no part of the first script. The studio's server
// and a published folder have it beside studio.js, a single file holds it packed, a notebook's kernel hands it out.
import type { Source } from "../lib/api/source";
import type { PlayProgram } from "./program";

export type { PlayProgram };

const ADDRESS = "play.js";
let program: Promise<PlayProgram> | null = null;

/** The program, loaded once. Throws an Error whose words say why it cannot be. */
export function playProgram(source: Source): Promise<PlayProgram> {
  program ??= load(source);
  program.catch(() => (program = null)); // the next call tries again
  return program;
}

/** By a script element: the policies of all these pages allow that, and the program tells of itself. */
async function load(source: Source): Promise<PlayProgram> {
  const known = () => (globalThis as { manyheadsPlay?: PlayProgram }).manyheadsPlay;
  if (known()) return known()!;
  const packed = document.getElementById("manyheads-play") as (HTMLElement & { unpacked?: () => Promise<string> }) | null;
  const script = document.createElement("script");
  script.type = "module";
  if (packed?.unpacked) script.textContent = await packed.unpacked();
  else if (source.home === "notebook") script.textContent = new TextDecoder().decode((await source.get(`/${ADDRESS}`)).orThrow().bytes);
  else script.src = ADDRESS;
  await new Promise<void>((resolve, reject) => {
    addEventListener("manyheads-play", () => resolve(), { once: true });
    script.onerror = () => reject(new Error(`${ADDRESS}, the part of this page that plays scenes, cannot be fetched`));
    document.head.append(script);
  });
  return known()!;
}
