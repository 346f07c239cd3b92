// The scenes: ready-made experiments on all heads at once, each a plan, and how their pictures change.
//
// A scene is known by its plan, so that an address which holds the plan restores the scene.
import type { Experiment, SceneName } from "../../lib/api/types";
import type { Thumbnails } from "../../lib/state/session.svelte";
import { allHeads, headsInWords, headsOfLayer, type LayerShape } from "./heads";
import { ablate, copy, layersOf, type Step } from "./steps";

interface Scene {
  name: SceneName;
  title: string;
  /** What is done, in a sentence. */
  words: string;
}

export const SCENES: readonly Scene[] = [
  { name: "same", title: "All heads the same", words: "Every head of a layer uses the map of its first head; each keeps its own values." },
  { name: "unmixed", title: "Without Wᴼ", words: "The heads’ outputs go on side by side: no output projection mixes them, in any layer." },
  { name: "one", title: "One head alone", words: "Each layer keeps its head 0. All others are set to zero." },
  { name: "half", title: "Half the heads", words: "Each layer keeps the first half of its heads. The others are set to zero." },
  { name: "positions", title: "No positions", words: "The model is not told the positions of its tokens." },
];

/** A scene's plan for a model; empty where it would change nothing (layers of one head have none to set to zero). */
export function scenePlan(name: SceneName, layers: readonly LayerShape[]): Step[] {
  const names = layersOf(new Set(allHeads(layers)), layers);
  const silenced = (kept: (count: number) => number) => {
    const heads = headsInWords(new Set(layers.flatMap((layer) => headsOfLayer(layer).slice(kept(layer.num_heads)))), layers);
    return heads ? [ablate(heads, "zero")] : [];
  };
  switch (name) {
    case "same": {
      const sources = headsInWords(new Set(layers.flatMap((layer) => headsOfLayer(layer).slice(0, 1))), layers);
      return layers.some((layer) => layer.num_heads > 1) ? [copy(headsInWords(new Set(allHeads(layers)), layers), sources)] : [];
    }
    case "unmixed":
      return names.map((layer) => ({ step: "skip_output_projection", layer }));
    case "one":
      return silenced(() => 1);
    case "half": // of two heads that is one alone: another scene's plan
      return layers.every((layer) => layer.num_heads < 3) ? [] : silenced((count) => Math.ceil(count / 2));
    case "positions":
      return [{ step: "skip_positions" }];
  }
}

/** The scene whose plan this is, if it is one's. */
export function sceneOf(plan: readonly Step[], layers: readonly LayerShape[]): Scene | null {
  const written = JSON.stringify(plan);
  return plan.length ? (SCENES.find(({ name }) => JSON.stringify(scenePlan(name, layers)) === written) ?? null) : null;
}

const ABSENT = 255; // the byte of a cell that is not visible to its query
const STEPS = 254; // of a byte, by its square root
const LEAST_MOVED = 0.005; // less is the rounding of bytes

/** Maps on their way from one state to another: `share` 0 is `from`, 1 is `to`. Cells that only one of them has jump. */
export function blended(from: Thumbnails, to: Thumbnails, share: number): Thumbnails {
  if (share >= 1 || from.maps.length !== to.maps.length) return to;
  if (share <= 0) return from;
  const maps = to.maps.map((end, i) => {
    const start = from.maps[i]!;
    return start === ABSENT || end === ABSENT ? end : Math.round(start + (end - start) * share);
  });
  return { ...to, maps };
}

interface Ranked {
  text: string;
  value: number;
  /** Whether the other side's list has it too. */
  stays: boolean;
}

export const LISTED = 5;

/** The likeliest next tokens, or the nearest example sentences, before and after: each side's own first few. */
export function ranked(result: Pick<Experiment, "guesses" | "neighbours">): { before: Ranked[]; after: Ranked[]; kind: "guesses" | "neighbours" | null } {
  const kind = result.guesses.length ? "guesses" : result.neighbours.length ? "neighbours" : null;
  const items = result.guesses.length
    ? result.guesses.map(({ token, before, after }) => ({ text: token, before, after }))
    : result.neighbours.map(({ sentence, before, after }) => ({ text: sentence, before, after }));
  const side = (of: "before" | "after") => [...items].sort((a, b) => b[of] - a[of]).slice(0, LISTED);
  const texts = { before: new Set(side("before").map(({ text }) => text)), after: new Set(side("after").map(({ text }) => text)) };
  const listed = (of: "before" | "after", other: "before" | "after") =>
    side(of).map((item) => ({ text: item.text, value: item[of], stays: texts[other].has(item.text) }));
  return { before: listed("before", "after"), after: listed("after", "before"), kind };
}

/** How much the maps of each head moved, the most first: the mean over rows of the share of weight that lies elsewhere. */
export function mostMoved(from: Thumbnails, to: Thumbnails, count: number): { head: string; moved: number }[] {
  const cells = to.side ** 2;
  if (from.maps.length !== to.maps.length) return [];
  const at = ({ maps, peaks }: Thumbnails, head: number, cell: number) => {
    const byte = maps[head * cells + cell]!;
    return byte === ABSENT ? 0 : peaks[head]! * (byte / STEPS) ** 2;
  };
  const moved = to.heads.map((head, h) => {
    let [sum, mass] = [0, 0];
    for (let cell = 0; cell < cells; cell++) {
      const [a, b] = [at(from, h, cell), at(to, h, cell)];
      sum += Math.abs(a - b);
      mass += a + b;
    }
    return { head, moved: mass ? sum / mass : 0 };
  });
  return moved.filter(({ moved }) => moved > LEAST_MOVED).sort((a, b) => b.moved - a.moved).slice(0, count);
}
