// Which lines to draw of a map: each row's largest few weights above a threshold.
import type { TileValues } from "../../lib/feed";

interface Line {
  query: number;
  key: number;
  weight: number;
}

export function linesOf(tile: TileValues, most: number, least: number): Line[] {
  const out: Line[] = [];
  for (let query = 0; query < tile.rows; query++) {
    const row = tile.values.subarray(query * tile.columns, (query + 1) * tile.columns);
    const best = Array.from(row.keys()).filter((k) => row[k]! > 0 && row[k]! >= least).sort((a, b) => row[b]! - row[a]!);
    for (const key of best.slice(0, most)) out.push({ query, key, weight: row[key]! });
  }
  return out.sort((a, b) => a.weight - b.weight); // the strongest are drawn last, on top
}
