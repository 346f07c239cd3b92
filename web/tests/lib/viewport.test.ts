import { describe, expect, it } from "vitest";
import { cellAt, fit, sameZoom, visibleRange, stepFor, ticks } from "../../src/lib/map/viewport";
import { largestWeights, rankOf } from "../../src/lib/map/weights";

describe("cells and pixels", () => {
  it("agree: a cell's middle pixel is that cell", () => {
    const frame = { left: 37.5, top: -12.25, scale: 7.3 };
    for (const [query, key] of [[3, 5], [0, 0], [10, 2]] as const) {
      const [x, y] = [frame.left + (key + 0.5) * frame.scale, frame.top + (query + 0.5) * frame.scale];
      expect(cellAt(x, y, frame, 11, 7)).toEqual({ query, key });
    }
  });

  it("beside the map are nothing", () => {
    const frame = { left: 0, top: 0, scale: 10 };
    expect(cellAt(-0.1, 5, frame, 11, 7)).toBeNull();
    expect(cellAt(70.1, 5, frame, 11, 7)).toBeNull();
    expect(cellAt(5, 110.1, frame, 11, 7)).toBeNull();
  });

  it("fit whole maps into a box", () => {
    expect(fit(300, 200, 20, 10)).toBe(10);
    expect(fit(100, 200, 5, 40)).toBe(2.5);
  });

  it("tell which cells are on screen, in part at least", () => {
    expect(visibleRange(100, -25, 10, 50)).toEqual([2, 8]);
    expect(visibleRange(7, 12, 10, 200)).toEqual([0, 7]);
  });

  it("are the same region within half a pixel", () => {
    const zoom = { x: 10, y: 20, scale: 4 };
    expect(sameZoom(zoom, { ...zoom, x: 10.1 })).toBe(true);
    expect(sameZoom(zoom, { ...zoom, y: 20.2 })).toBe(false);
    expect([sameZoom(null, null), sameZoom(zoom, null), sameZoom(zoom, { ...zoom, scale: 4.1 })]).toEqual([true, false, false]);
  });
});

describe("rulers", () => {
  it("label every position where there is room, else every second, fifth, tenth", () => {
    expect([20, 15, 8, 3, 1.5, 0.05].map((scale) => stepFor(scale, 15))).toEqual([1, 1, 2, 5, 10, 500]);
  });

  it("label what is on screen alone, at the middle of its cell", () => {
    const list = ticks(100, -250, 20, 100, 15);
    expect(list.map((tick) => tick.position)).toEqual([12, 13, 14, 15, 16, 17]);
    expect(list[1]!.middle).toBe(-250 + 13.5 * 20);
  });
});

describe("a row", () => {
  const row = new Float32Array([0.5, NaN, 0.125, 0.25, 0.125]);

  it("keeps its largest weights until a share", () => {
    expect(Array.from(largestWeights(row, 0.5))).toEqual([1, 0, 0, 0, 0]);
    expect(Array.from(largestWeights(row, 0.7))).toEqual([1, 0, 0, 1, 0]);
    expect(Array.from(largestWeights(row, 1))).toEqual([1, 0, 1, 1, 1]);
  });

  it("ranks from 1, equals sharing the better rank", () => {
    expect([0, 3, 2, 4].map((k) => rankOf(row, k))).toEqual([1, 2, 3, 3]);
  });
});
