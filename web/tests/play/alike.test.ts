// All heads on their way to one map: the list beside the maps at every moment of the way.
import { describe, expect, it } from "vitest";
import type { Blend } from "../../src/lib/api/types";
import { alike } from "../../src/play/alike";
import type { Stage } from "../../src/play/stage";

const ITEMS = [
  "Heavy traffic filled the street.", "The tired animal lay by the road, and nobody came.", "Our dog chased a squirrel.", "Her legs hurt.",
  "It rained and the river flooded the whole valley.", "The doctor told him to rest.", "The cat slept all afternoon.", "A bridge was built.",
];
const HEADS = 7;
const SIDE = 3;

/** A way of eleven steps whose list changes at random. */
function blend(): Blend {
  const levels = Uint16Array.from({ length: 11 * HEADS * SIDE * SIDE }, () => Math.floor(65_534 * Math.random()));
  const steps = Array.from({ length: 11 }, (_, step) => ({
    share: step / 10, values: ITEMS.map(() => 0.01 + 0.98 * Math.random()), kept: 0.5, loss: null, diversity: 0.2, headline: `${10 * step} % alike`, figures: "",
  }));
  return {
    model: "m", text: "x", layer: "L1", heads: Array.from({ length: HEADS }, (_, h) => `L1H${h}`), layers: ["L1"], side: SIDE, exact: true,
    maps: btoa(String.fromCharCode(...new Uint8Array(levels.buffer))), tokens: [], kind: "neighbours", items: ITEMS, steps,
  };
}

interface Box { words: string; left: number; right: number; top: number; bottom: number }

/** A stage that draws nothing and remembers where texts stand. */
function stageOf(width: number, height: number): { stage: Stage; texts: Box[] } {
  const texts: Box[] = [];
  const measure = (words: string, { size }: { size: number }) => 0.56 * size * words.length;
  const stage = {
    width, height, scale: 1, tall: width < 700, dark: false, colours: {}, measure, grid: () => ({}), picture: () => undefined, frame: () => undefined,
    rect: () => undefined, spot: () => undefined,
    text: (words: string, x: number, y: number, style: { size: number; align?: string }) => {
      const wide = measure(words, style);
      const left = style.align === "right" ? x - wide : x;
      texts.push({ words, left, right: left + wide, top: y - 0.75 * style.size, bottom: y + 0.2 * style.size });
    },
  };
  return { stage: stage as unknown as Stage, texts };
}

describe("all heads on their way to one map", () => {
  it.each([[740, 410], [1000, 500], [306, 420]])("prints no line on another at any moment, and cuts none, on a stage of %i by %i", (width, height) => {
    const scene = alike(blend());
    const bad: string[] = [];
    for (let t = 0; t <= scene.end; t += 0.037) {
      const { stage, texts } = stageOf(width, height);
      scene.draw(stage, t);
      expect(texts.length).toBeGreaterThan(HEADS + 5);
      texts.forEach((a, i) => texts.slice(i + 1).forEach((b) => {
        const touch = a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
        if (touch) bad.push(`${a.words} on ${b.words} at ${t}`);
      }));
      expect(texts.filter(({ words }) => words.endsWith("…"))).toEqual([]);
      expect(Math.max(...texts.map(({ right }) => right))).toBeLessThan(width);
    }
    expect(bad).toEqual([]);
  });

  it("lists the five largest of the step that its headline is about", () => {
    const data = blend();
    const scene = alike(data);
    for (const t of [0, 1.7, 2.1, 3.3, 4.9, 6.2, 7.7, 10.5]) {
      const { stage, texts } = stageOf(1000, 500);
      scene.draw(stage, t);
      const step = data.steps.find(({ headline }) => headline === scene.words(t).headline)!;
      const largest = ITEMS.map((item, i) => ({ item, value: step.values[i]! })).sort((a, b) => b.value - a.value).slice(0, 5);
      const shown = texts.filter(({ words }) => ITEMS.includes(words)).sort((a, b) => a.top - b.top);
      expect(shown.map(({ words }) => words)).toEqual(largest.map(({ item }) => item));
    }
  });
});
