// Scenes as functions of time: chapters, stills, and what lies between two values.
import { describe, expect, it } from "vitest";
import { called, cumulated, decimal, inWords, peakOf, quoted, share } from "../../src/play/figures";
import { keysOf, OTHERS, NOBODY, type LookHeader, type Place } from "../../src/play/look";
import { chapterAt, stillFrom, stills, type Scene } from "../../src/play/scene";
import { ribbonPath, type Rect, type Stage } from "../../src/play/stage";
import { pass } from "../../src/play/pass";
import { stripLength, word } from "../../src/play/word";
import type { Envelope } from "../../src/lib/api/envelope";
import type { Token } from "../../src/lib/api/types";
import { ease, linear, mixRect } from "../../src/play/time";

const scene: Scene = {
  id: "three", name: "Three chapters", end: 7.3,
  chapters: [{ name: "Ask", at: 0 }, { name: "Match", at: 1.6 }, { name: "Said", at: 5 }],
  words: (t) => ({ headline: `at ${t}`, figures: "" }),
  draw: () => undefined,
  table: () => ({ caption: "", head: [], rows: [] }),
};

describe("a scene", () => {
  it("is in a chapter from its first moment to the next one's", () => {
    expect([0, 1.59, 1.6, 4.99, 5, 7.3].map((t) => chapterAt(scene, t))).toEqual([0, 0, 1, 1, 2, 2]);
  });

  it("has a still at the end of each chapter, and each still is of its own chapter", () => {
    expect(stills(scene)).toEqual([1.58, 4.98, 7.3]);
    expect(stills(scene).map((t) => chapterAt(scene, t))).toEqual([0, 1, 2]);
  });

  it("is stepped from still to still, forwards and back, and begins again after the last", () => {
    const forwards = [0, 1.58, 3, 4.98].map((t) => stillFrom(scene, t, 1));
    expect(forwards).toEqual([1.58, 4.98, 4.98, 7.3]);
    expect(stillFrom(scene, 7.3, 1)).toBe(1.58);
    expect([7.3, 4.98, 1.58, 0].map((t) => stillFrom(scene, t, -1))).toEqual([4.98, 1.58, 0, 0]);
  });
});

describe("time", () => {
  it("stays between 0 and 1, is halfway in the middle, and eases at both ends", () => {
    for (const share of [linear, ease]) {
      expect([0, 2, 3.5, 5, 9].map((t) => share(t, 2, 5))).toEqual([0, 0, 0.5, 1, 1]);
    }
    expect(ease(2.3, 2, 5)).toBeCloseTo(0.028, 6); // 3 p^2 - 2 p^3 at p = 0.1
    expect(linear(2.3, 2, 5)).toBeCloseTo(0.1, 6);
  });

  it("moves a rectangle in a straight line", () => {
    const [a, b] = [{ x: 1, y: 2, w: 3, h: 5 }, { x: 11, y: 12, w: 7, h: 1 }];
    expect(mixRect(a, b, 0.5)).toEqual({ x: 6, y: 7, w: 5, h: 3 });
  });
});

describe("a ribbon", () => {
  const [a, b] = [{ x: 10, y: 20, w: 4, h: 6 }, { x: 50, y: 80, w: 8, h: 9 }];

  it("joins the right edge to the left one, or the bottom edge to the top one", () => {
    const ends = (down: boolean) => ribbonPath(a, b, down).map(([, ...numbers]) => numbers.slice(-2));
    expect(ends(false)).toEqual([[14, 20], [50, 80], [50, 89], [14, 26]]);
    expect(ends(true)).toEqual([[10, 26], [50, 80], [58, 80], [14, 26]]);
  });
});

describe("figures", () => {
  it("have a true minus sign, and no negative zero", () => {
    expect([decimal(-1.236), decimal(-0.004), decimal(3, 0)]).toEqual(["−1.24", "0.00", "3"]);
    expect([0.677, 0.0049, 0, -0.03].map((value) => share(value))).toEqual(["68 %", "< 1 %", "0 %", "−3 %"]);
    expect([inWords(12), inWords(57)]).toEqual(["twelve", "57"]);
  });

  it("add up, and a peak is stretched by no outlier", () => {
    expect(cumulated([0.5, 0.25, 0.125])).toEqual([0, 0.5, 0.75, 0.875]);
    expect(peakOf(Array.from({ length: 199 }, (_, i) => (i % 7) - 3), [900])).toBe(3);
  });
});

describe("words that are the same", () => {
  const token = (text: string, special = false): Token => ({ piece: text, text, label: text, special, sink: special, unknown: false, span: null });

  it("are told apart by their turn, a mark too, and stay in quotes unless they are the tokenizer's own", () => {
    const tokens = [token("[CLS]", true), token("John"), token(","), token("John"), token(","), token("Mary")];
    expect(tokens.map((_, place) => called(tokens, place))).toEqual(["[CLS]", "John, 1st", "“,” 1st", "John, 2nd", "“,” 2nd", "Mary"]);
    expect([quoted(tokens, 0), quoted(tokens, 3), quoted(tokens, 5)]).toEqual(["[CLS]", "the second “John”", "“Mary”"]);
    expect(quoted([], 0)).toBe("“”");
  });
});

describe("a forward pass", () => {
  const token = (text: string): Token => ({ piece: text, text, label: text, special: false, sink: false, unknown: false, span: null });
  const tokens = ["to", "Mary", "to"].map(token);
  const layer = (n: number, heads: number, feed_forward: number) => ({ name: `L${n}`, layer: n, heads, feed_forward, top: [`L${n}H1`, `L${n}H0`] });
  const numbers = (data: number[]) => ({ name: "", dtype: "float32", shape: [data.length], data: Float32Array.from(data) });
  const envelope = {
    header: {
      token: 2, heads: ["L0H0", "L0H1", "L1H0", "L1H1", "L2H0", "L2H1", "L3H0", "L3H1"], layers: [layer(0, 0.003, -0.004), layer(1, 0.002, 0.31), layer(2, 0.4, 0.2), layer(3, 0.006, 0.1)],
      next: [], said: "The second “to” ends", arrays: [],
    },
    arrays: {
      share: numbers([0.001, 0.002, -0.001, 0.003, 0.1, 0.3, 0.003, 0.003]), weight: numbers([0.2, 0.27, 0.4, 0.5, 0.6, 0.81, 0.3, 0.7]),
      key: { name: "key", dtype: "int32", shape: [8], data: Int32Array.from([0, 0, 1, 1, 1, 1, 1, 0]) },
    },
  } as unknown as Envelope;
  const scene = pass(envelope, tokens);
  const said = (n: number) => scene.words(scene.chapters[n + 1]!.at + 0.1);

  it("says plainly that a layer hardly moves the word, and never 0 % beside less than 1 %", () => {
    expect(said(0)).toEqual({
      headline: "Layer 0 hardly moves the second “to”; L0H1 looks at the first “to” (27 %).",
      figures: "its heads and its feed-forward: each less than 1 % of what the second “to” becomes",
    });
    expect(said(1).headline).toBe("Layer 1: its feed-forward moves the second “to”; its heads hardly do.");
    expect(said(1).figures).toContain("its heads < 1 % (L1H1 < 1 %) · its feed-forward 31 % · L1H1 looks at “Mary” (50 %)");
    expect(said(3).headline).toBe("Layer 3: no head alone moves the second “to” much; L3H1 looks at the first “to” (70 %).");
    expect(scene.words(scene.end)).toEqual({
      headline: "The second “to” ends",
      figures: "moved it most: feed-forward L1 31 % · heads L2H1 30 % → “Mary” (81 %), L2H0 10 % → “Mary” (60 %)",
    });
    expect(said(2).headline).toBe("Layer 2: L2H1 moves the second “to” most, and looks at “Mary” (81 %).");
  });

  it("ends on a head that reads a word too, where those that moved it most all park", () => {
    const parking = tokens.map((token, i) => ({ ...token, sink: i === 1 }));
    const shares = numbers([0.02, 0.002, -0.001, 0.003, 0.1, 0.3, 0.05, 0.003]);
    const some = { ...envelope, arrays: { ...envelope.arrays, share: shares } } as Envelope;
    expect(pass(some, parking).words(scene.end).figures).toContain("heads L2H1 30 % → “Mary” (81 %), L2H0 10 % → “Mary” (60 %), L3H0 5 % → “Mary” (30 %), L0H0 2 % → the first “to” (20 %)");
  });
});

describe("a strip", () => {
  it("has whole pixels a cell, or cells of several numbers where they would be too small", () => {
    expect(stripLength(149, 32)).toEqual({ strip: 128, group: 1 });
    expect(stripLength(96, 64)).toEqual({ strip: 96, group: 1 });
    const wide = stripLength(140, 256);
    expect(wide.group).toBe(4);
    expect(wide.strip / (256 / wide.group)).toBeGreaterThanOrEqual(1.5);
  });
});

describe("columns of a look", () => {
  it("are named in the order of the text, others and a sink without a key last", () => {
    const token = (text: string, special = false) => ({ piece: text, text, label: text, special, sink: special, unknown: false });
    const header = { keys: [0, 2, OTHERS], others: 5, tokens: ["[CLS]", "animal", "5 others"] } as unknown as LookHeader;
    const place = { keys: [token("[CLS]", true), token("The"), token("animal")] } as unknown as Place;
    const keys = keysOf(header, place, (column) => column === 1, true);
    expect(keys.map(({ token }) => token)).toEqual([0, 2, OTHERS, NOBODY]);
    expect(keys.map(({ name }) => name)).toEqual(["[CLS]", "“animal”", "5 others", "nobody"]);
    expect(keys.map(({ parking, masked }) => [parking, masked])).toEqual([[true, false], [false, true], [false, false], [true, false]]);
  });
});

describe("one word's look", () => {
  const D = 64;
  const texts = ["Mary", "saw", "it"].map((text) => ({ piece: text, text, label: text, special: false, sink: false, unknown: false }));
  const array = (shape: number[], data: number[]) => ({ shape, dtype: "float32", name: "", data: Float32Array.from(data) });
  const numbers = (n: number, turn: number) => Array.from({ length: n }, (_, i) => Math.sin(turn + 1.7 * i));
  // q·k is 4, 1 and -2 along the first number of each key: "Mary", which is met first, fits best.
  const rows = [4, 1, -2].flatMap((first) => [first, ...new Array<number>(D - 1).fill(0)]);
  const q = [1, ...numbers(D - 1, 1)];
  const exps = [4, 1, -2].map((dot) => Math.exp(dot / 8));
  const weights = exps.map((exp) => exp / exps.reduce((a, b) => a + b));
  const envelope = {
    header: { keys: [0, 1, 2], others: 0, tokens: ["Mary", "saw", "it"], scale: 1 / 8, softcap: null, norm: "pre", turned: null, said: "", figures: "", because: "", missing: 0, sink: null, silent: false },
    arrays: {
      q: array([D], q), k: array([3, D], rows), v: array([3, D], numbers(3 * D, 2)), scores: array([3], [0.5, 0.125, -0.25]), weights: array([3], weights),
      heard: array([3], weights), out: array([D], numbers(D, 3)), adds: array([9 * D], numbers(9 * D, 4)), before: array([9 * D], numbers(9 * D, 5)),
    },
  } as unknown as Envelope;
  const place = { head: "L2H4", index: 4, numHeads: 9, numKvHeads: 9, layer: "layer 2", query: 2, queries: texts, keys: texts, numQueries: 3, numKeys: 3, formula: "", causal: true, roles: [] } as unknown as Place;
  const scene = word(envelope, place);

  it("ends the match with the key that fits best, whichever was met last", () => {
    expect(scene.words(4.1).figures).toBe("it: q · k = −2.00, divided by √64 = −0.25: its score");
    expect(scene.words(stills(scene)[1]!).figures).toBe("Mary fits best: q · k = 4.00, divided by √64 = 0.50: its score");
  });

  it.each([[1368, 704, 1], [1840, 760, 1.36], [1840, 880, 1.42], [1840, 819, 1840 / 1300], [2400, 1200, 1.45]])("stays on a stage of %i x %i at scale %d", (width, height, scale) => {
    const rects: Rect[] = [];
    const known: Record<string, unknown> = {
      width, height, scale, tall: false, colours: {}, measure: (text: string, style?: { size?: number }) => 0.6 * text.length * (style?.size ?? 12) * scale,
      frame: (rect: Rect) => rects.push(rect), picture: (_: unknown, rect: Rect) => rects.push(rect),
    };
    const stage = new Proxy(known, { get: (object, name: string) => object[name] ?? (() => "") }) as unknown as Stage;
    for (const t of stills(scene)) scene.draw(stage, t);
    expect(rects.length).toBeGreaterThan(40);
    expect(Math.max(...rects.map(({ y, h }) => y + h))).toBeLessThanOrEqual(height);
  });
});
