// The reference's formulas (src/manyheads/reference), in double precision: one row of a matrix after the other, so that a page can
// compute a lesson's numbers. `tests/studio/test_lesson_cells.py` holds every cell to NumPy.
import type { Random } from "./random";

/** A matrix, row by row. */
export type Table = number[][];

/** One matrix per head for queries, keys and values; fewer key/value heads than query heads make it GQA. */
export interface HeadWeights {
  q: Table[];
  k: Table[];
  v: Table[];
  o: Table;
}

export function product(a: Table, b: Table): Table {
  const width = b[0]?.length ?? 0;
  return a.map((row) => {
    const out = new Array<number>(width).fill(0);
    row.forEach((value, i) => {
      const other = b[i]!;
      for (let j = 0; j < width; j++) out[j]! += value * other[j]!;
    });
    return out;
  });
}

export function transposed(a: Table): Table {
  return (a[0] ?? []).map((_, j) => a.map((row) => row[j]!));
}

export function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** Each row as shares of 1: exp of the differences to its largest score. A row of -Infinity alone has weights 0. */
export function softmaxRows(scores: Table): Table {
  return scores.map((row) => {
    const top = Math.max(...row);
    if (top === -Infinity) return row.map(() => 0);
    const raised = row.map((score) => Math.exp(score - top));
    const total = sum(raised);
    return raised.map((value) => value / total);
  });
}

/** Which keys each query may see by position: the queries are the last of the keys' positions. `window` counts the query's own. */
export function visibleKeys(queries: number, keys: number, causal: boolean, window = Infinity): boolean[][] {
  return Array.from({ length: queries }, (_, query) =>
    Array.from({ length: keys }, (_, key) => {
      const ahead = key - (query + keys - queries);
      return (!causal || ahead <= 0) && Math.abs(ahead) < window;
    }),
  );
}

export function masked(scores: Table, visible: readonly boolean[][]): Table {
  return scores.map((row, i) => row.map((score, j) => (visible[i]![j] ? score : -Infinity)));
}

/** Each head's map and output. Query head h reads key/value head h // (H / G). */
export function attendByHead(x: Table, weights: HeadWeights, causal = false): { maps: Table[]; heads: Table[] } {
  const serves = weights.q.length / weights.k.length;
  const visible = visibleKeys(x.length, x.length, causal);
  const results = weights.q.map((w, head) => {
    const group = Math.floor(head / serves);
    const [q, k, v] = [product(x, w), product(x, weights.k[group]!), product(x, weights.v[group]!)];
    const scale = 1 / Math.sqrt(w[0]!.length);
    const map = softmaxRows(masked(product(q, transposed(k)).map((row) => row.map((value) => value * scale)), visible));
    return { map, out: product(map, v) };
  });
  return { maps: results.map(({ map }) => map), heads: results.map(({ out }) => out) };
}

/** Matrices side by side. */
export function sideBySide(parts: readonly Table[]): Table {
  return parts[0]!.map((_, i) => parts.flatMap((part) => part[i]!));
}

/** The columns of a wide matrix, cut into as many heads. */
export function splitHeads(wide: Table, heads: number): Table[] {
  const width = (wide[0]?.length ?? 0) / heads;
  return Array.from({ length: heads }, (_, head) => wide.map((row) => row.slice(head * width, (head + 1) * width)));
}

/** The mistake: the right shape without a transpose. */
export function splitAlone(wide: Table, heads: number): Table[] {
  const numbers = wide.flat();
  const width = (wide[0]?.length ?? 0) / heads;
  const row = (i: number) => numbers.slice(i * width, (i + 1) * width);
  return Array.from({ length: heads }, (_, head) => wide.map((_, token) => row(head * wide.length + token)));
}

/** Fresh weights, with heads of width m / h, by Glorot's sqrt(2 / (rows + columns)) of each head's own matrix. */
export function initialise(random: Random, m: number, heads: number, kvHeads = heads): HeadWeights {
  const d = m / heads;
  const draw = (count: number) => Array.from({ length: count }, () => random.normals(m, d, Math.sqrt(2 / (m + d))));
  const [q, k, v] = [draw(heads), draw(kvHeads), draw(kvHeads)];
  return { q, k, v, o: random.normals(heads * d, m, Math.sqrt(2 / (m + m))) };
}

/** Three tokens, two heads of width 2: numbers small enough to follow with a pencil. */
export const EXAMPLE: Omit<HeadWeights, "o"> = {
  q: [[[1, 0], [0, 1], [0, 0], [0, 0]], [[0, 0], [0, 0], [1, 0], [0, 1]]],
  k: [[[0, 1], [1, 0], [0, 0], [0, 0]], [[0, 0], [0, 0], [0, 1], [1, 0]]],
  v: [[[1, 0], [0, 0], [1, 0], [0, 0]], [[0, 1], [0, 1], [0, 0], [0, 0]]],
};

/** Parameters of one attention layer's W_Q, W_K, W_V and W_O: heads as wide as their share of the model, or (`wide`) as the model. */
export function attentionWeights(m: number, heads: number, biased = false, wide = false): [number, number, number, number] {
  const inner = wide ? m * heads : m;
  const into = inner * m + (biased ? inner : 0);
  return [into, into, into, inner * m + (biased ? m : 0)];
}

/** FLOPs of a text in one layer: each projection, scores, weighted sum; a multiply and an add are two. */
export function attentionFlops(m: number, tokens: number, causal: boolean): { projection: number; scores: number; values: number } {
  const product = (causal ? tokens + 1 : 2 * tokens) * tokens * m; // twice the visible pairs, times the width of all heads
  return { projection: 2 * tokens * m * m, scores: product, values: product };
}

/** The length at which scores and weighted sum cost as much as the projections. */
export function evenTokens(m: number, causal: boolean): number {
  return causal ? 4 * m - 1 : 2 * m; // 2 n (n + 1) d = 8 n d², or 4 n² d = 8 n d²
}

export function divisors(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i + 1).filter((divisor) => count % divisor === 0);
}
