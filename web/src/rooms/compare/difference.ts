// The difference of two heads, A minus B, as a map of its own: tile by tile where both sides have the same tokens, over the
// shared tokens where the texts differ.
//
// A weight that is absent on either side (NaN: not visible) has no difference and stays absent. Differences are coloured
// on a scale that is symmetric about zero, so that the colour of paper means "the same".
import { TILE, type How, type Token } from "../../lib/api/types";
import { saveCsv } from "../../lib/draw/export";
import { tilesIn, type Feed, type TileValues } from "../../lib/map/feed";
import { peakOf, Peaks } from "../../lib/map/peaks.svelte";
import { cellsAt, topLevel } from "../../lib/map/tiles";
import type { Correspondence } from "./alignment";

export interface Grid {
  rows: number;
  columns: number;
  values: Float32Array;
}

/** Tokens of a side beyond which differing texts are not drawn: both maps would have to be read in full. */
export const MOST_ALIGNED = 1024;

const MOST_SEEDS = 1024; // tiles of a level that are looked up in the cache

/** A scale over these maps that already counts their cached tiles: a map that stays on screen does not report them again. */
export function peaksOf(...feeds: (Feed | null)[]): Peaks {
  const peaks = new Peaks();
  for (const feed of feeds.filter((feed) => feed !== null)) {
    for (let level = feed.minLevel; level <= feed.maxLevel; level += 1) {
      let count = 0;
      for (const [column, row] of tilesIn(feed, level, 0, 0, feed.numKeys, feed.numQueries)) {
        const tile = feed.peek(level, column, row);
        if (tile) peaks.raise(level, peakOf(tile.values));
        if ((count += 1) > MOST_SEEDS) break;
      }
    }
  }
  return peaks;
}

/** A minus B, value by value. Throws a RangeError for two shapes. */
export function subtract(a: Grid, b: Grid): Grid {
  if (a.rows !== b.rows || a.columns !== b.columns) {
    throw new RangeError(`${a.rows} x ${a.columns} cells and ${b.rows} x ${b.columns} cells have no difference`);
  }
  return { rows: a.rows, columns: a.columns, values: a.values.map((value, i) => value - b.values[i]!) };
}

/** The cells of a grid at these rows and columns; NaN for those outside it. */
export function gather(grid: Grid, rows: readonly number[], columns: readonly number[]): Grid {
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach((row, i) => {
    columns.forEach((column, j) => {
      const inside = row >= 0 && row < grid.rows && column >= 0 && column < grid.columns;
      values[i * columns.length + j] = inside ? grid.values[row * grid.columns + column]! : NaN;
    });
  });
  return { rows: rows.length, columns: columns.length, values };
}

/** The difference of two maps of the same tokens: tiles of A minus tiles of B. */
export class DifferenceFeed implements Feed {
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  readonly minLevel: number;
  readonly maxLevel: number;
  readonly how: How;

  constructor(
    readonly a: Feed,
    readonly b: Feed,
  ) {
    this.key = `${a.key} - ${b.key}`;
    this.numQueries = a.numQueries;
    this.numKeys = a.numKeys;
    this.maxLevel = Math.min(a.maxLevel, b.maxLevel);
    this.minLevel = Math.max(a.minLevel, b.minLevel);
    this.how = a.how;
  }

  peek(level: number, column: number, row: number): TileValues | undefined {
    const [a, b] = [this.a.peek(level, column, row), this.b.peek(level, column, row)];
    return a && b ? tileDifference(a, b) : undefined;
  }

  async tile(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues> {
    return tileDifference(...(await Promise.all([this.a.tile(level, column, row, signal), this.b.tile(level, column, row, signal)])));
  }

  async refine(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues> {
    return tileDifference(...(await Promise.all([this.a.refine(level, column, row, signal), this.b.refine(level, column, row, signal)])));
  }
}

function tileDifference(a: TileValues, b: TileValues): TileValues {
  return { ...subtract(a, b), exact: a.exact && b.exact, words: a.exact ? b.words : a.words };
}

/** The difference of two maps over the tokens that their texts share. Both maps are read in full, once. */
export class AlignedFeed implements Feed {
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  readonly minLevel = 0;
  readonly maxLevel: number;
  readonly how: How;
  #request: Promise<Grid> | null = null;
  #grid: Grid | null = null;
  #tiles = new Map<string, TileValues>();

  constructor(
    readonly a: Feed,
    readonly b: Feed,
    readonly pairs: readonly (readonly [number, number])[],
  ) {
    this.key = `${a.key} - ${b.key} at ${pairs.length}`;
    this.numQueries = this.numKeys = pairs.length;
    this.maxLevel = topLevel(pairs.length, pairs.length);
    this.how = a.how;
  }

  peek(level: number, column: number, row: number): TileValues | undefined {
    return this.#grid ? this.#cut(this.#grid, level, column, row) : undefined;
  }

  async tile(level: number, column: number, row: number): Promise<TileValues> {
    this.#request ??= this.#read();
    try {
      this.#grid = await this.#request;
    } catch (error) {
      this.#request = null; // so that the next call tries again
      throw error;
    }
    return this.#cut(this.#grid, level, column, row);
  }

  refine(level: number, column: number, row: number): Promise<TileValues> {
    return this.tile(level, column, row);
  }

  async #read(): Promise<Grid> {
    const [a, b] = await Promise.all([allCells(this.a), allCells(this.b)]);
    const [inA, inB] = [this.pairs.map(([i]) => i), this.pairs.map(([, j]) => j)];
    return subtract(gather(a, inA, inA), gather(b, inB, inB));
  }

  #cut(grid: Grid, level: number, column: number, row: number): TileValues {
    const name = `${level}/${column}/${row}`;
    const tile = this.#tiles.get(name) ?? { ...pooled(grid, level, column, row, this.how), exact: true, words: "" };
    this.#tiles.set(name, tile);
    return tile;
  }
}

/** All of a feed's level 0 as one grid. */
async function allCells(feed: Feed): Promise<Grid> {
  const values = new Float32Array(feed.numQueries * feed.numKeys).fill(NaN);
  for (const [column, row] of tilesIn(feed, 0, 0, 0, feed.numKeys, feed.numQueries)) {
    const tile = await feed.tile(0, column, row);
    for (let r = 0; r < tile.rows; r += 1) {
      const line = tile.values.subarray(r * tile.columns, (r + 1) * tile.columns);
      values.set(line, (row * TILE + r) * feed.numKeys + column * TILE);
    }
  }
  return { rows: feed.numQueries, columns: feed.numKeys, values };
}

/** One tile of a level of a grid. A cell is the mean of the present values of its block, or the one of the largest size. */
export function pooled(grid: Grid, level: number, column: number, row: number, how: How): Grid {
  const span = 2 ** level;
  const rows = Math.min(TILE, cellsAt(grid.rows, level) - row * TILE);
  const columns = Math.min(TILE, cellsAt(grid.columns, level) - column * TILE);
  const values = new Float32Array(rows * columns);
  for (let r = 0; r < rows; r += 1) {
    for (let c = 0; c < columns; c += 1) {
      const [top, left] = [(row * TILE + r) * span, (column * TILE + c) * span];
      values[r * columns + c] = block(grid, top, left, span, how);
    }
  }
  return { rows, columns, values };
}

function block(grid: Grid, top: number, left: number, span: number, how: How): number {
  let [sum, largest, count] = [0, NaN, 0];
  for (let r = top; r < Math.min(top + span, grid.rows); r += 1) {
    for (let c = left; c < Math.min(left + span, grid.columns); c += 1) {
      const value = grid.values[r * grid.columns + c]!;
      if (Number.isNaN(value)) continue;
      if (!(Math.abs(value) <= Math.abs(largest))) largest = value; // also true while `largest` is NaN
      sum += value;
      count += 1;
    }
  }
  if (!count) return NaN;
  return how === "max" ? largest : sum / count;
}

/** Saves a row as CSV, one line per key: its token, its weight on each side, and the difference where both have one. */
export function saveRow(
  keysA: readonly Token[], a: Float32Array | null, keysB: readonly Token[], b: Float32Array | null,
  correspondence: Correspondence | null, name: string,
): void {
  const rows: (string | number | null)[][] = [["key_a", "key_b", "token", "weight_a", "weight_b", "difference"]];
  const weightAt = (weights: Float32Array | null, key: number | null) => {
    const value = key === null ? undefined : weights?.[key];
    return value === undefined || Number.isNaN(value) ? null : value;
  };
  const addLine = (i: number | null, j: number | null) => {
    const token = i !== null ? keysA[i] : j !== null ? keysB[j] : undefined;
    const [x, y] = [weightAt(a, i), weightAt(b, j)];
    rows.push([i, j, token?.text || token?.piece || "", x, y, x !== null && y !== null ? x - y : null]);
  };
  keysA.forEach((_, i) => addLine(i, correspondence?.token(i, "a", "b") ?? null));
  keysB.forEach((_, j) => {
    if ((correspondence?.token(j, "b", "a") ?? null) === null) addLine(null, j);
  });
  saveCsv(rows, `${name}.csv`);
}
