import { describe, expect, it } from "vitest";
import type { Feed, TileValues } from "../../src/lib/map/feed";
import { hideSmallWeights } from "../../src/lib/map/weights";

const tile = (columns: number, ...values: number[]): TileValues => ({ values: new Float32Array(values), rows: values.length / columns, columns, exact: true, words: "" });

describe("leaving out all but a row's largest weights", () => {
  it("counts the row across tiles, and leaves absent cells absent", () => {
    const first = tile(256, ...Array.from({ length: 256 }, (_, i) => (i === 3 ? 0.3 : i === 5 ? NaN : 0)));
    const second = tile(2, 0.6, 0.1);
    const feed = { numKeys: 258, peek: (_: number, column: number) => [first, second][column] } as unknown as Feed;
    const paper = new Uint8ClampedArray([9, 9, 9, 255]);
    const left = (share: number, column: number, of: TileValues) => {
      const bytes = new Uint8ClampedArray(of.values.length * 4);
      hideSmallWeights(bytes, of, column, 0, feed, share, paper);
      return Array.from(of.values.keys()).filter((i) => bytes[i * 4] === 9);
    };
    expect(left(0.6, 1, second)).toEqual([1]);
    expect(left(0.6, 0, first)).toContain(3);
    expect(left(0.9, 0, first)).not.toContain(3);
    expect(left(0.6, 0, first)).not.toContain(5);
  });
});
