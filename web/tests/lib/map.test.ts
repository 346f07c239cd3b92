// Maps: tiles, cells and pixels, rulers, weights of a row.
import { describe, expect, it } from "vitest";
import openseadragon from "openseadragon/build/openseadragon/openseadragon.js?raw";
import { leanScript } from "../../dev/lean-openseadragon.ts";
import { TILE } from "../../src/lib/api/types";
import type { Feed, TileValues } from "../../src/lib/map/feed";
import { cellsAt, cellWords, levelFor, LruCache, tileOf, topLevel } from "../../src/lib/map/tiles";
import { cellAt, fit, sameZoom, stepFor, ticks, visibleRange } from "../../src/lib/map/viewport";
import { hideSmallWeights, largestWeights, rankOf } from "../../src/lib/map/weights";

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

describe("the cache of tiles", () => {
  it("forgets the least recently used", () => {
    const cache = new LruCache<number>(2);
    cache.set("a", 1);
    cache.set("b", 2);
    cache.get("a");
    cache.set("c", 3);
    expect([cache.get("a"), cache.get("b"), cache.get("c")]).toEqual([1, undefined, 3]);
    expect(cache.size).toBe(2);
  });
});

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

describe("the library that draws maps", () => {
  it("comes without what the page never uses, and a section that is not there is told", () => {
    const lean = leanScript(openseadragon);
    for (const name of ["WebGLDrawer", "ReferenceStrip", "IIIFTileSource"]) expect(lean).not.toMatch(new RegExp(`(class|\\.) ?${name} ?(=|extends)`));
    for (const name of ["Viewport", "TileSource", "TiledImage", "World"]) expect(lean).toContain(`$.${name} = `);
    expect(lean).toContain("class CanvasDrawer extends");
    expect(() => new Function(lean)).not.toThrow();
    expect(() => leanScript(lean)).toThrow(/no section .*WebGLDrawer/);
  });
});
