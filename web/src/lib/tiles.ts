// Which tile holds a cell, which level suits a zoom, and a store of tiles that forgets the least used.
// Level 0 is cells; a cell of level L stands for 2^L x 2^L of them; a tile holds up to 256 x 256 cells of its level.

export const TILE = 256;

/** Cells of `level` along a side of `n` cells of level 0. */
export function cellsAt(n: number, level: number): number {
  return Math.ceil(n / 2 ** level);
}

/** The tile that holds the cell (x, y) of level 0, and where in it. */
export function tileOf(x: number, y: number, level: number): { column: number; row: number; x: number; y: number } {
  const cx = Math.floor(x / 2 ** level);
  const cy = Math.floor(y / 2 ** level);
  return { column: Math.floor(cx / TILE), row: Math.floor(cy / TILE), x: cx % TILE, y: cy % TILE };
}

/** The level whose cells are nearest above one screen pixel, at `scale` screen pixels per cell of level 0. */
export function levelFor(scale: number, maxLevel: number, minLevel = 0): number {
  const wanted = Math.ceil(Math.log2(1 / Math.max(scale, 1e-9)) - 1e-9);
  return Math.max(minLevel, Math.min(maxLevel, wanted));
}

/** The first level at which the whole of an n x k map is one tile. */
export function topLevel(numQueries: number, numKeys: number): number {
  let level = 0;
  while (cellsAt(Math.max(numQueries, numKeys), level) > TILE) level += 1;
  return level;
}

/** What a tile's cells are, in words: "exact weights", "mean of 16 x 16 cells". */
export function cellWords(level: number, how: string): string {
  const side = 2 ** level;
  return level === 0 ? "exact weights" : `${how} of ${side} × ${side} cells`;
}

/** A store that keeps at most `most` values and forgets the least recently used. */
export class Kept<V> {
  #map = new Map<string, V>();

  constructor(readonly most: number) {}

  get(key: string): V | undefined {
    const value = this.#map.get(key);
    if (value !== undefined) {
      this.#map.delete(key);
      this.#map.set(key, value);
    }
    return value;
  }

  set(key: string, value: V): void {
    this.#map.delete(key);
    this.#map.set(key, value);
    if (this.#map.size > this.most) this.#map.delete(this.#map.keys().next().value!);
  }

  get size(): number {
    return this.#map.size;
  }
}
