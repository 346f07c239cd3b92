// The difference of two heads as a map of its own: tiles of A minus tiles of B where both sides have the same tokens, and
// the shared tokens' cells where the texts differ.
import { tilesIn, type Feed, type TileValues } from "../../lib/feed";
import { Peaks, peakOf } from "../../lib/peaks.svelte";
import { TILE, cellsAt, topLevel } from "../../lib/tiles";
import type { How } from "../../lib/types";
import { gather, subtract, type Grid } from "./difference";

/** Tokens of a side beyond which differing texts are not drawn: their maps would have to be read in full. */
export const MOST_ALIGNED = 1024;

const MOST_SEEDS = 1024; // tiles of a level that are looked for

/** A scale for these maps that knows the tiles that are here already: a map that stays would not tell of them again. */
export function seeded(...feeds: (Feed | null)[]): Peaks {
  const peaks = new Peaks();
  for (const feed of feeds.filter((each) => each !== null)) {
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
    return a && b ? between(a, b) : undefined;
  }

  async tile(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues> {
    const [a, b] = await Promise.all([this.a.tile(level, column, row, signal), this.b.tile(level, column, row, signal)]);
    return between(a, b);
  }

  async refine(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues> {
    const [a, b] = await Promise.all([this.a.refine(level, column, row, signal), this.b.refine(level, column, row, signal)]);
    return between(a, b);
  }
}

function between(a: TileValues, b: TileValues): TileValues {
  const found = subtract(a, b);
  return { ...found, exact: a.exact && b.exact, words: a.exact ? b.words : a.words };
}

/** The cells of the tokens that two different texts share, A minus B. Both maps are read in full, once. */
export class AlignedFeed implements Feed {
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  readonly minLevel = 0;
  readonly maxLevel: number;
  readonly how: How;
  #whole: Promise<Grid> | null = null;
  #done: Grid | null = null;
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
    return this.#done ? this.#cut(this.#done, level, column, row) : undefined;
  }

  async tile(level: number, column: number, row: number): Promise<TileValues> {
    this.#whole ??= this.#read();
    try {
      this.#done = await this.#whole;
    } catch (error) {
      this.#whole = null;
      throw error;
    }
    return this.#cut(this.#done, level, column, row);
  }

  refine(level: number, column: number, row: number): Promise<TileValues> {
    return this.tile(level, column, row);
  }

  async #read(): Promise<Grid> {
    const [a, b] = await Promise.all([whole(this.a), whole(this.b)]);
    const [inA, inB] = [this.pairs.map(([i]) => i), this.pairs.map(([, j]) => j)];
    return subtract(gather(a, inA, inA), gather(b, inB, inB));
  }

  #cut(grid: Grid, level: number, column: number, row: number): TileValues {
    const name = `${level}/${column}/${row}`;
    const kept = this.#tiles.get(name);
    if (kept) return kept;
    const made = { ...pooled(grid, level, column, row, this.how), exact: true, words: "" };
    this.#tiles.set(name, made);
    return made;
  }
}

/** All of a feed's level 0 as one grid. */
async function whole(feed: Feed): Promise<Grid> {
  const [down, across] = [Math.ceil(feed.numQueries / TILE), Math.ceil(feed.numKeys / TILE)];
  const values = new Float32Array(feed.numQueries * feed.numKeys).fill(NaN);
  const wanted = Array.from({ length: down * across }, (_, at) => [at % across, Math.floor(at / across)] as const);
  for (const [column, row] of wanted) {
    const tile = await feed.tile(0, column, row);
    for (let r = 0; r < tile.rows; r += 1) {
      const line = tile.values.subarray(r * tile.columns, (r + 1) * tile.columns);
      values.set(line, (row * TILE + r) * feed.numKeys + column * TILE);
    }
  }
  return { rows: feed.numQueries, columns: feed.numKeys, values };
}

/** One tile of a level of a grid: the mean of the cells that are there, or the one of the largest size. */
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
  let [sum, most, count] = [0, NaN, 0];
  for (let r = top; r < Math.min(top + span, grid.rows); r += 1) {
    for (let c = left; c < Math.min(left + span, grid.columns); c += 1) {
      const value = grid.values[r * grid.columns + c] ?? NaN;
      if (Number.isNaN(value)) continue;
      if (!(Math.abs(value) <= Math.abs(most))) most = value;
      sum += value;
      count += 1;
    }
  }
  if (!count) return NaN;
  return how === "max" ? most : sum / count;
}
