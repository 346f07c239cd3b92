// The fit of a drawn head, and the small algebra under it. Its numbers are compared with the library's in
// tests/studio/test_drawing.py.
import { describe, expect, it } from "vitest";
import {
  arrived, at, conclusion, draw, FEATURES, filled, pictureOf, product, RULES, splitWords, STEPS, svd, transposed, vectorsOf, weightsOf,
  wishedRows, type Matrix,
} from "../../src/rooms/learn/drawing";

const some = (rows: number, columns: number): Matrix => filled(rows, columns, () => Math.random() * 2 - 1);
const apart = (a: Matrix, b: Matrix) => Math.max(...a.data.map((value, i) => Math.abs(value - b.data[i]!)));
const TOKENS = splitWords("The cat sat, and the dog ate.");

describe("singular values", () => {
  it.each([[5, 3], [4, 9], [6, 6]])("of %i x %i give the matrix back, from orthogonal vectors", (rows, columns) => {
    const a = some(rows, columns);
    const { u, s, v } = svd(a);
    const size = Math.min(rows, columns);
    const identity = filled(size, size, (i, j) => Number(i === j));
    expect(apart(product(product(u, filled(size, size, (i, j) => (i === j ? s[i]! : 0))), transposed(v)), a)).toBeLessThan(1e-12);
    expect(apart(product(transposed(u), u), identity)).toBeLessThan(1e-12);
    expect(apart(product(transposed(v), v), identity)).toBeLessThan(1e-12);
    expect([...s].sort((x, y) => y - x)).toEqual(s);
  });
  it("of a product of rank 2 are two", () => {
    const { s } = svd(product(some(7, 2), some(2, 5)));
    expect(s[1]! > 1e-3 && s[2]! < 1e-12).toBe(true);
  });
});

describe("a picture", () => {
  it("is painted by rules, and its rows are shares", () => {
    expect(TOKENS).toEqual(["The", "cat", "sat", ",", "and", "the", "dog", "ate", "."]);
    const cells = (rule: (typeof RULES)[number]) => {
      const picture = pictureOf(rule, TOKENS);
      return [...picture.data.keys()].filter((i) => picture.data[i]).map((i) => [Math.floor(i / 9), i % 9]);
    };
    expect(cells("same word")).toEqual([[0, 5], [5, 0]]);
    expect(cells("after a copy")).toEqual([[5, 1]]);
    expect(cells("marks").slice(0, 3)).toEqual([[0, 3], [0, 8], [1, 3]]);
    const wished = wishedRows(pictureOf("marks", TOKENS));
    expect(at(wished, 4, 8)).toBe(0.5);
    expect(arrived(wished, filled(9, 9, () => 1 / 9))).toBeCloseTo(2 / 9);
    expect(arrived(filled(9, 9, () => 0), wished)).toBeNaN();
  });
});

describe("a head", () => {
  it("is better after training, and its moments are those of one run", () => {
    const picture = pictureOf("previous", TOKENS);
    const [fitted, half, whole] = draw(TOKENS, picture, 2, FEATURES, [0, 100, STEPS]).map((head) => arrived(picture, weightsOf(head, TOKENS)));
    expect(fitted! < half! && whole! > 0.9).toBe(true);
    const [alone] = draw(TOKENS, picture, 2, FEATURES, [100]);
    expect(arrived(picture, weightsOf(alone!, TOKENS))).toBe(half);
  });
  it("has no more numbers than its width, and unknown words are nothing to it", () => {
    const [head] = draw(TOKENS, pictureOf("first", TOKENS), 3, ["words"], [5]);
    expect([head!.query.rows, head!.query.columns, head!.names.length]).toEqual([9, 3, 9]);
    const { query } = vectorsOf(head!, ["zebra", "yak", "the"]);
    expect([...query.data.slice(0, 3)]).toEqual([...query.data.slice(3, 6)]);
  });
});

describe("the closing sentence", () => {
  const base = { painted: 0.953, widest: 0.99, other: 0.32, chance: 0.077, alike: 0.5 };
  it.each([
    [base, 2, "2 numbers a token draw this picture: 95 % of it arrives. On the other sentence it is 32 %: it learned some of the rule."],
    [{ ...base, painted: 0.24 }, 1, "1 number a token is too few: 24 % of the picture arrives, with a wide head 99 %. On the other sentence it is 32 %."],
    [{ ...base, other: 0.1 }, 4, "4 numbers a token draw this picture: 95 % of it arrives. On the other sentence it is 10 %, near chance (8 %): it learned the sentence, not the rule."],
    [{ ...base, painted: 0.6, widest: 0.61, other: null, chance: null }, 8, "At no width can this be drawn from words alone: 60 % of the picture arrives. On the other sentence it agrees with the widest head to 50 %."],
    [{ ...base, other: NaN, chance: NaN }, 8, "8 numbers a token draw this picture: 95 % of it arrives. The other sentence has no place for the rule."],
  ])("%# says what the numbers say", (numbers, width, words) => {
    expect(conclusion(numbers, width, "words")).toBe(words);
  });
});
