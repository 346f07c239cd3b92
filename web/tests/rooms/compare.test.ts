// Compare: the alignment of two texts, and differences of maps.
import { describe, expect, it } from "vitest";
import type { How } from "../../src/lib/api/types";
import type { Feed } from "../../src/lib/map/feed";
import { align, alignmentInWords, Correspondence } from "../../src/rooms/compare/alignment";
import { AlignedFeed, DifferenceFeed, gather, pooled, subtract, type Grid } from "../../src/rooms/compare/difference";

const split = (text: string) => text.split(" ");

describe("align", () => {
  it("equal texts are the same", () => {
    const alignment = align(split("a b c"), split("a b c"));
    expect(alignment).toEqual({ pairs: [[0, 0], [1, 1], [2, 2]], onlyA: [], onlyB: [], same: true });
  });
  it("a word more in the middle", () => {
    const alignment = align(split("the cat sat down"), split("the black cat sat down"));
    expect(alignment?.pairs).toEqual([[0, 0], [1, 2], [2, 3], [3, 4]]);
    expect([alignment?.onlyA, alignment?.onlyB, alignment?.same]).toEqual([[], [1], false]);
  });
  it("both sides have something of their own, in any order", () => {
    const alignment = align(split("x a q b y c"), split("a b z c w"));
    expect(alignment?.pairs).toEqual([[1, 0], [3, 1], [5, 3]]);
    expect(alignment?.onlyA).toEqual([0, 2, 4]);
    expect(alignment?.onlyB).toEqual([2, 4]);
  });
  it("repeated tokens pair once and in order", () => {
    const alignment = align(split("a a a"), split("a a"));
    expect(alignment?.pairs.length).toBe(2);
    expect(alignment?.onlyA.length).toBe(1);
  });
  it("empty and foreign texts", () => {
    expect(align([], [])?.same).toBe(true);
    expect(align(["a"], ["b"])?.pairs).toEqual([]);
  });
  it("long texts with one change are cheap; long foreign ones are refused", () => {
    const long = Array.from({ length: 9_000 }, (_, at) => `t${at}`);
    const changed = [...long.slice(0, 4_000), "new", ...long.slice(4_001)];
    expect(align(long, changed)?.pairs.length).toBe(8_999);
    expect(align(long, long.map((token) => `${token}'`))).toBeNull();
  });
});

describe("in words", () => {
  it("says who has what alone", () => {
    const [a, b] = [split("the cat sat"), split("the black cat")];
    expect(alignmentInWords(align(a, b), a, b)).toEqual({
      words: "2 tokens are on both sides; only in A: “sat”; only in B: “black”.",
      drawn: true,
    });
  });
  it("says plainly where nothing can be drawn", () => {
    expect(alignmentInWords(align(["a"], ["b"]), ["a"], ["b"]).drawn).toBe(false);
    expect(alignmentInWords(null, [], []).drawn).toBe(false);
  });
});

const grid = (rows: number, columns: number, values: number[]): Grid => ({
  rows,
  columns,
  values: Float32Array.from(values),
});

describe("difference", () => {
  it("is A minus B, and absent where either is", () => {
    const result = subtract(grid(2, 2, [0.5, NaN, 0.25, 1]), grid(2, 2, [0.25, 0, NaN, 1]));
    expect([...result.values]).toEqual([0.25, NaN, NaN, 0]);
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
    const difference = new DifferenceFeed(feed("a", 3, (q, k) => q + k), feed("b", 3, (q) => q));
    expect([...(await difference.tile(0, 0, 0)).values]).toEqual([0, 1, 2, 0, 1, 2, 0, 1, 2]);
    expect(difference.key).toBe("a - b");
  });
  it("different texts: the shared tokens alone, and what is absent stays absent", async () => {
    const a = feed("a", 3, (q, k) => (k > q ? NaN : 10 * q + k));
    const difference = new AlignedFeed(a, feed("b", 2, () => 1), [[0, 0], [2, 1]]);
    expect(difference.peek(0, 0, 0)).toBeUndefined();
    expect([...(await difference.tile(0, 0, 0)).values]).toEqual([-1, NaN, 19, 21]);
    expect(difference.peek(0, 0, 0)?.rows).toBe(2);
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
