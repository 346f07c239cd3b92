import { describe, expect, it } from "vitest";
import { cellsAt, cellWords, LruCache, levelFor, tileOf, topLevel } from "../../src/lib/map/tiles";
import { TILE } from "../../src/lib/api/types";

describe("tiles", () => {
  it("hold each cell once: column and row of the tile, and the place in it", () => {
    expect(tileOf(700, 300, 0)).toEqual({ column: 2, row: 1, x: 700 - 512, y: 300 - 256 });
    expect(tileOf(700, 300, 1)).toEqual({ column: 1, row: 0, x: 350 - 256, y: 150 });
  });

  it("of the top level are one, and of the level below it more", () => {
    for (const n of [1, 255, 256, 257, 391, 8192, 100_000]) {
      const top = topLevel(n, 7);
      expect(cellsAt(n, top)).toBeLessThanOrEqual(TILE);
      if (top) expect(cellsAt(n, top - 1)).toBeGreaterThan(TILE);
    }
  });

  it("of the level whose cells are just above one pixel are chosen", () => {
    expect(levelFor(20, 5)).toBe(0);
    expect(levelFor(1, 5)).toBe(0);
    expect(levelFor(0.9, 5)).toBe(1);
    expect(levelFor(0.25, 5)).toBe(2);
    expect(levelFor(0.001, 5)).toBe(5);
    expect(levelFor(20, 5, 2)).toBe(2);
    for (const scale of [0.9, 0.5, 0.3, 0.11, 0.031]) {
      const pixels = scale * 2 ** levelFor(scale, 9);
      expect(pixels).toBeGreaterThanOrEqual(1);
      expect(pixels).toBeLessThan(2);
    }
  });

  it("say what their cells are", () => {
    expect(cellWords(0, "max")).toBe("exact weights");
    expect(cellWords(4, "mean")).toBe("mean of 16 × 16 cells");
  });
});

describe("LruCache", () => {
  it("forgets the least recently used", () => {
    const kept = new LruCache<number>(2);
    kept.set("a", 1);
    kept.set("b", 2);
    kept.get("a");
    kept.set("c", 3);
    expect([kept.get("a"), kept.get("b"), kept.get("c")]).toEqual([1, undefined, 3]);
    expect(kept.size).toBe(2);
  });
});
