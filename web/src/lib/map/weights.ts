// Weights of a row: the largest that make up a share of it, a weight's rank, the strongest links to draw as lines.
import { TILE } from "../api/types";
import type { Feed, TileValues } from "./feed";

interface Link {
  query: number;
  key: number;
  weight: number;
}

/** A mask (0 or 1 for each key) of the fewest of a row's largest weights that add up to `share` of the row's sum. */
export function largestWeights(row: Float32Array, share: number): Uint8Array {
  const mask = new Uint8Array(row.length);
  const order = Array.from(row.keys()).filter((key) => row[key]! > 0).sort((a, b) => row[b]! - row[a]!);
  const goal = order.reduce((sum, key) => sum + row[key]!, 0) * share;
  let sum = 0;
  for (const key of order) {
    if (sum >= goal - 1e-9) break;
    mask[key] = 1;
    sum += row[key]!;
  }
  return mask;
}

/** Paints over, with the colour `paper`, all cells of a level-0 tile but each row's `largestWeights`. Absent cells stay. */
export function hideSmallWeights(
  bytes: Uint8ClampedArray, tile: TileValues, column: number, row: number, feed: Feed, share: number, paper: Uint8ClampedArray,
): void {
  const across = Math.ceil(feed.numKeys / TILE);
  const weights = new Float32Array(feed.numKeys);
  for (let r = 0; r < tile.rows; r++) {
    // A row may span several tiles: those that are already fetched count together.
    for (let c = 0; c < across; c++) {
      const part = feed.peek(0, c, row);
      if (part) weights.set(part.values.subarray(r * part.columns, (r + 1) * part.columns), c * TILE);
    }
    const mask = largestWeights(weights, share);
    for (let c = 0; c < tile.columns; c++) {
      const i = r * tile.columns + c;
      if (!Number.isNaN(tile.values[i]) && !mask[column * TILE + c]) bytes.set(paper, i * 4);
    }
  }
}

/** How many of a row's weights are visible, and what they lack of 1: the share of a sink that is no token. */
export function seen(weights: Float32Array): { visible: number; missing: number } {
  let [visible, sum] = [0, 0];
  for (const value of weights) {
    if (Number.isNaN(value)) continue;
    visible += 1;
    sum += value;
  }
  return { visible, missing: visible && sum < 1 - 1e-4 ? 1 - sum : 0 }; // less is rounding
}

/** A weight's rank in its row, from 1; equal weights share the better rank. */
export function rankOf(row: Float32Array, key: number): number {
  const value = row[key]!;
  return 1 + row.reduce((count, weight) => count + Number(weight > value), 0);
}

/** The links to draw as lines: of each row the `most` largest weights that are at least `least`, weakest first. Keys in
    `left` are left out. */
export function linesOf(tile: TileValues, most: number, least: number, left: readonly boolean[] = []): Link[] {
  const links: Link[] = [];
  for (let query = 0; query < tile.rows; query++) {
    const row = tile.values.subarray(query * tile.columns, (query + 1) * tile.columns);
    const keys = Array.from(row.keys()).filter((key) => row[key]! > 0 && row[key]! >= least && !left[key]).sort((a, b) => row[b]! - row[a]!);
    for (const key of keys.slice(0, most)) links.push({ query, key, weight: row[key]! });
  }
  return links.sort((a, b) => a.weight - b.weight); // the strongest are drawn last, on top of the others
}
