// Aligning two texts' tokens.
import { describe, expect, it } from "vitest";
import { align, alignmentInWords } from "../../src/rooms/compare/alignment";

const split = (text: string) => text.split(" ");

describe("align", () => {
  it("equal texts are the same", () => {
    const found = align(split("a b c"), split("a b c"));
    expect(found).toEqual({ pairs: [[0, 0], [1, 1], [2, 2]], onlyA: [], onlyB: [], same: true });
  });
  it("a word more in the middle", () => {
    const found = align(split("the cat sat down"), split("the black cat sat down"));
    expect(found?.pairs).toEqual([[0, 0], [1, 2], [2, 3], [3, 4]]);
    expect([found?.onlyA, found?.onlyB, found?.same]).toEqual([[], [1], false]);
  });
  it("both sides have something of their own, in any order", () => {
    const found = align(split("x a q b y c"), split("a b z c w"));
    expect(found?.pairs).toEqual([[1, 0], [3, 1], [5, 3]]);
    expect(found?.onlyA).toEqual([0, 2, 4]);
    expect(found?.onlyB).toEqual([2, 4]);
  });
  it("repeated tokens pair once and in order", () => {
    const found = align(split("a a a"), split("a a"));
    expect(found?.pairs.length).toBe(2);
    expect(found?.onlyA.length).toBe(1);
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
