// Scenes as functions of time: chapters, stills, and what lies between two values.
import { describe, expect, it } from "vitest";
import { chapterAt, stillFrom, stills, type Scene } from "../../src/play/scene";
import { ribbonPath } from "../../src/play/stage";
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
