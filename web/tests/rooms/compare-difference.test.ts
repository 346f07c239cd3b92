// Differences of tiles.
import { describe, expect, it } from "vitest";
import { Correspondence } from "../../src/rooms/compare/alignment";
import { AlignedFeed, DifferenceFeed, gather, type Grid, pooled, subtract } from "../../src/rooms/compare/difference";
import type { Feed } from "../../src/lib/map/feed";
import type { How } from "../../src/lib/api/types";

const grid = (rows: number, columns: number, values: number[]): Grid => ({
  rows,
  columns,
  values: Float32Array.from(values),
});

describe("difference", () => {
  it("is A minus B, and absent where either is", () => {
    const found = subtract(grid(2, 2, [0.5, NaN, 0.25, 1]), grid(2, 2, [0.25, 0, NaN, 1]));
    expect([...found.values]).toEqual([0.25, NaN, NaN, 0]);
  });
  it("needs one shape", () => {
    expect(() => subtract(grid(1, 2, [1, 2]), grid(2, 1, [1, 2]))).toThrow(/no difference/);
  });
  it("takes the cells that two texts share", () => {
    const map = grid(3, 3, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    expect([...gather(map, [0, 2], [1, 2]).values]).toEqual([1, 2, 7, 8]);
    expect([...gather(map, [3], [0]).values]).toEqual([NaN]);
  });
});

describe("maps of differences", () => {
  const feed = (key: string, n: number, of: (q: number, k: number) => number, how: How = "mean"): Feed => {
    const tile = async () => grid(n, n, Array.from({ length: n * n }, (_, at) => of(Math.floor(at / n), at % n)));
    const whole = async () => ({ ...(await tile()), exact: true, words: "" });
    return { key, numQueries: n, numKeys: n, minLevel: 0, maxLevel: 0, how, peek: () => undefined, tile: whole, refine: whole };
  };

  it("the same text: tile by tile", async () => {
    const found = new DifferenceFeed(feed("a", 3, (q, k) => q + k), feed("b", 3, (q) => q));
    expect([...(await found.tile(0, 0, 0)).values]).toEqual([0, 1, 2, 0, 1, 2, 0, 1, 2]);
    expect(found.key).toBe("a - b");
  });
  it("different texts: the shared tokens alone, and what is absent stays absent", async () => {
    const a = feed("a", 3, (q, k) => (k > q ? NaN : 10 * q + k));
    const found = new AlignedFeed(a, feed("b", 2, () => 1), [[0, 0], [2, 1]]);
    expect(found.peek(0, 0, 0)).toBeUndefined();
    expect([...(await found.tile(0, 0, 0)).values]).toEqual([-1, NaN, 19, 21]);
    expect(found.peek(0, 0, 0)?.rows).toBe(2);
  });
  it("pools what is there: the mean, or the largest of either sign", () => {
    const values = grid(3, 3, [1, -4, 5, NaN, 1, 7, 2, 2, NaN]);
    expect([...pooled(values, 1, 0, 0, "max").values]).toEqual([-4, 7, 2, NaN]);
    expect(pooled(values, 1, 0, 0, "mean").values[0]).toBeCloseTo(-2 / 3);
  });
});

describe("places", () => {
  const places = new Correspondence({ pairs: [[0, 0], [1, 2], [3, 3]], onlyA: [2], onlyB: [1], same: false });
  it("tokens go to their own, or nowhere", () => {
    expect([places.token(1, "a", "b"), places.token(2, "a", "b"), places.token(2, "d", "a")]).toEqual([2, null, 3]);
  });
  it("coordinates go there and back", () => {
    for (const x of [-2, 0, 0.5, 1, 2.25, 3, 7]) {
      expect(places.along(places.along(x, "a", "b"), "b", "a")).toBeCloseTo(x);
      expect(places.along(places.along(x, "a", "d"), "d", "a")).toBeCloseTo(x);
    }
    expect(places.along(0.5, "a", "b")).toBe(1);
    expect(places.zoom({ x: 1, y: 3, scale: 9 }, "a", "b")).toEqual({ x: 2, y: 3, scale: 9 });
  });
});
