// What a scene is: a pure function of time over its data. Playing, scrubbing, stepping, reduced motion, tests and exports are
// all values of t; nothing here has a timer or a memory.
import type { Stage } from "./stage";

export interface Chapter {
  readonly name: string;
  /** The second at which it begins. */
  readonly at: number;
}

/** One headline of at most 14 words (20 in the last chapter), and one line of figures under it. */
export interface Words {
  headline: string;
  figures: string;
}

/** The scene's numbers for readers who see no canvas. */
export interface Table {
  caption: string;
  head: string[];
  rows: string[][];
}

export interface Scene {
  readonly id: string;
  readonly name: string;
  readonly chapters: readonly Chapter[];
  /** Its length in seconds. */
  readonly end: number;
  words(t: number): Words;
  draw(stage: Stage, t: number): void;
  table(): Table;
}

/** A scene's places on a stage, made anew where its size is another. */
export class Places<Layout> {
  readonly #known = new WeakMap<Stage, { size: string; layout: Layout }>();

  on(stage: Stage, make: (stage: Stage) => Layout): Layout {
    const size = `${stage.width}x${stage.height}x${stage.scale}`;
    const known = this.#known.get(stage);
    if (known?.size === size) return known.layout;
    const layout = make(stage);
    this.#known.set(stage, { size, layout });
    return layout;
  }
}

const BEFORE = 0.02; // seconds: a still is the last moment of its chapter, not the first of the next one

/** The index of the chapter that is played at t. */
export function chapterAt(scene: Scene, t: number): number {
  return Math.max(0, scene.chapters.findLastIndex(({ at }) => t >= at - 1e-6));
}

/** The last moment of each chapter, in order: the moments that arrow keys and readers without motion go to. */
export function stills(scene: Scene): number[] {
  return [...scene.chapters.slice(1).map(({ at }) => at - BEFORE), scene.end];
}

/** The still after t (direction 1) or before it (-1). After the last one comes the first again, before the first the start. */
export function stillFrom(scene: Scene, t: number, direction: 1 | -1): number {
  const moments = stills(scene);
  if (direction < 0) return moments.findLast((moment) => moment < t - 0.01) ?? 0;
  return moments.find((moment) => moment > t + 0.01) ?? moments[0]!;
}
