// Loads play.js, the program that draws scenes, when the first scene is opened: no part of the first script.
import { pageProgram } from "../lib/api/program";
import type { Source } from "../lib/api/source";
import type { PlayProgram } from "./program";

export type { PlayProgram };

/** The program, loaded once. Throws an Error whose words say why it cannot be. */
export function playProgram(source: Source): Promise<PlayProgram> {
  return pageProgram("play", source);
}
