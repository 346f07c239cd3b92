// The entry of play.js: the stage, and every scene by its name. A page adds a script element, inline in a single file and a
// notebook: no export of that can be reached, so the program leaves itself under a name and says so.
import { alike, momentOf } from "./alike";
import { birth } from "./birth";
import { gifOf, saveGif, saveMoment, saveStills, stillsSvg } from "./export";
import { layer } from "./layer";
import { pass } from "./pass";
import { Stage } from "./stage";
import { swap } from "./swap";
import { word } from "./word";

const program = {
  stage: (canvas: HTMLCanvasElement) => new Stage(canvas),
  saveMoment,
  saveStills,
  saveGif,
  gifOf,
  stillsSvg,
  word,
  layer,
  pass,
  swap,
  alike,
  momentOf,
  birth,
};

/** Every scene is a function of its data, under the name that the address gives it: `play=word`. */
export type PlayProgram = typeof program;

Object.assign(globalThis, { manyheadsPlay: program });
globalThis.dispatchEvent?.(new Event("manyheads-play"));
