// Addresses of tiles, and a cache for them. Level 0 is cells; a cell of level L stands for 2^L x 2^L of them; a tile holds
// up to 256 x 256 cells of its level.
import { TILE } from "../api/types";

/** Cells of `level` along a side of `n` cells of level 0. */
export function cellsAt(n: number, level: number): number {
  return Math.ceil(n / 2 ** level);
}

/** The tile that holds the cell (x, y) of level 0, and the cell's place in it. */
export function tileOf(x: number, y: number, level: number): { column: number; row: number; x: number; y: number } {
  const cx = Math.floor(x / 2 ** level);
  const cy = Math.floor(y / 2 ** level);
  return { column: Math.floor(cx / TILE), row: Math.floor(cy / TILE), x: cx % TILE, y: cy % TILE };
}

/** The finest level whose cells take at least one screen pixel, at `scale` screen pixels per cell of level 0. */
export function levelFor(scale: number, maxLevel: number, minLevel = 0): number {
  const level = Math.ceil(Math.log2(1 / Math.max(scale, 1e-9)) - 1e-9);
  return Math.max(minLevel, Math.min(maxLevel, level));
}

/** The first level at which an n x k map is a single tile. */
export function topLevel(numQueries: number, numKeys: number): number {
  let level = 0;
  while (cellsAt(Math.max(numQueries, numKeys), level) > TILE) level += 1;
  return level;
}

/** What the cells of a level are, in words: "exact weights", "mean of 16 x 16 cells". */
export function cellWords(level: number, how: string): string {
  const side = 2 ** level;
  return level === 0 ? "exact weights" : `${how} of ${side} × ${side} cells`;
}

/** A cache of at most `capacity` values that drops the least recently used. */
export class LruCache<V> {
  #map = new Map<string, V>();

  constructor(readonly capacity: number) {}

  get(key: string): V | undefined {
    const value = this.#map.get(key);
    if (value !== undefined) {
      // A Map iterates in order of insertion: putting the value in anew makes it the most recently used.
      this.#map.delete(key);
      this.#map.set(key, value);
    }
    return value;
  }

  set(key: string, value: V): void {
    this.#map.delete(key);
    this.#map.set(key, value);
    if (this.#map.size > this.capacity) this.#map.delete(this.#map.keys().next().value!);
  }

  get size(): number {
    return this.#map.size;
  }
}
