// A head from a picture of it, computed in the page: lab/design/drawing.py has the same program, and explains it. A test compares
// the numbers of the two. Least squares on the logarithms of the painted shares, cut to the head's width, then trained.
import shared from "./drawing.generated.json";

export type Rule = "previous" | "next" | "itself" | "first" | "same word" | "marks" | "after a copy";
export type Feature = "places" | "words" | "kinds";
export const RULES = shared.rules as readonly Rule[];
export const FEATURES = shared.features as readonly Feature[];
export const { steps: STEPS, most_tokens: MOST_TOKENS, widths: WIDTHS } = shared;

/** A matrix by rows. */
export interface Matrix {
  rows: number;
  columns: number;
  data: Float64Array;
}

/** A head that was fitted: W_Q and W_K of `query` and `key`, a row for each of `names`. */
export interface DrawnHead {
  reads: readonly Feature[];
  vocabulary: readonly string[];
  names: readonly string[];
  query: Matrix;
  key: Matrix;
}

// -------------------------------------------------------------------------------------------------- sentences and pictures

const MARK = /^[\p{P}\p{S}]+$/u;

/** The words and marks of a sentence. */
export function splitWords(sentence: string): string[] {
  return sentence.match(/[\p{L}\p{N}_]+(?:['\u2019-][\p{L}\p{N}_]+)*|[^\p{L}\p{N}_\s]/gu) ?? [];
}

/** The picture that a rule paints: 1 where a token (row) is to look. */
export function pictureOf(rule: Rule, tokens: readonly string[]): Matrix {
  const lower = tokens.map((token) => token.toLowerCase());
  const paints: Record<Rule, (q: number, k: number) => boolean> = {
    previous: (q, k) => k === q - 1,
    next: (q, k) => k === q + 1,
    itself: (q, k) => k === q,
    first: (_, k) => k === 0,
    "same word": (q, k) => k !== q && lower[k] === lower[q],
    marks: (_, k) => MARK.test(tokens[k]!),
    "after a copy": (q, k) => k > 0 && k <= q && lower[k - 1] === lower[q],
  };
  return filled(tokens.length, tokens.length, (q, k) => (paints[rule](q, k) ? 1 : 0));
}

/** The picture with rows that sum to 1, or to 0 where nothing is painted. */
export function wishedRows(picture: Matrix): Matrix {
  const totals = Array.from({ length: picture.rows }, (_, row) => sum(rowOf(picture, row)));
  return filled(picture.rows, picture.columns, (row, column) => (totals[row]! > 0 ? at(picture, row, column) / totals[row]! : 0));
}

/** The mean share of each painted row that arrives where it was painted; NaN where none is painted. */
export function arrived(wished: Matrix, weights: Matrix): number {
  const shares = Array.from({ length: wished.rows }, (_, row) => row)
    .filter((row) => sum(rowOf(wished, row)) > 0)
    .map((row) => sum(rowOf(wished, row).map((share, column) => Math.min(share, at(weights, row, column)))));
  return sum(shares) / shares.length;
}

// ------------------------------------------------------------------------------------------------------------------- the fit

/** The head after each of `moments` steps of training, in order: 0 is least squares alone. */
export function draw(tokens: readonly string[], picture: Matrix, width: number, reads: readonly Feature[], moments: readonly number[] = [STEPS]): DrawnHead[] {
  const wished = wishedRows(picture);
  const groups = FEATURES.filter((group) => reads.includes(group));
  const vocabulary = [...new Set(tokens.map((token) => token.toLowerCase()))];
  const x = featuresOf(tokens, groups, vocabulary);
  const names = namesOf(groups, vocabulary);
  const scale = width ** 0.25; // a head divides its scores by the root of its width: the fit did not
  return trained(x, wished, leastSquares(x, wished, width), moments).map(([query, key]) => ({
    reads: groups, vocabulary, names, query: times(query, scale), key: times(key, scale),
  }));
}

/** A head's map on any tokens. */
export function weightsOf(head: DrawnHead, tokens: readonly string[]): Matrix {
  const { query, key } = vectorsOf(head, tokens);
  return softmaxRows(times(product(query, transposed(key)), 1 / Math.sqrt(head.query.columns)));
}

/** Each token's query and key. */
export function vectorsOf(head: DrawnHead, tokens: readonly string[]): { query: Matrix; key: Matrix } {
  const x = featuresOf(tokens, head.reads, head.vocabulary);
  return { query: product(x, head.query), key: product(x, head.key) };
}

function namesOf(reads: readonly Feature[], vocabulary: readonly string[]): string[] {
  const names: Record<Feature, string[]> = {
    places: shared.waves.flatMap((wave) => [`cos of ${wave}`, `sin of ${wave}`]),
    words: vocabulary.map((word) => `'${word}'`),
    kinds: shared.kinds.map((kind) => `is ${kind}`),
  };
  return ["one", ...reads.flatMap((group) => names[group])];
}

function featuresOf(tokens: readonly string[], reads: readonly Feature[], vocabulary: readonly string[]): Matrix {
  const share = 1 / Math.sqrt(shared.waves.length);
  const features: Record<Feature, (token: string, place: number) => number[]> = {
    places: (_, place) => shared.waves.flatMap((wave) => [share * Math.cos((2 * Math.PI * place) / wave), share * Math.sin((2 * Math.PI * place) / wave)]),
    words: (token) => vocabulary.map((word) => Number(token.toLowerCase() === word)),
    kinds: (token, place) => [place === 0, place === tokens.length - 1, MARK.test(token), /^\p{Lu}/u.test(token)].map(Number),
  };
  const rows = tokens.map((token, place) => [1, ...reads.flatMap((group) => features[group](token, place))]);
  return filled(rows.length, rows[0]!.length, (row, column) => rows[row]![column]!);
}

function leastSquares(x: Matrix, wished: Matrix, width: number): [Matrix, Matrix] {
  const n = x.rows;
  const fade = Array.from({ length: n }, (_, row) => (sum(rowOf(wished, row)) > 0 ? 1 - (shared.fade * row) / n : 0));
  const logs = filled(n, n, (row, column) => Math.log(at(wished, row, column) + Math.exp(-shared.depth)));
  const target = filled(n, n, (row, column) => fade[row]! * (at(logs, row, column) - sum(rowOf(logs, row)) / n));
  const means = Array.from({ length: x.columns }, (_, column) => sum(Array.from({ length: n }, (_, row) => at(x, row, column))) / n);
  const asking = filled(n, x.columns, (row, column) => fade[row]! * at(x, row, column));
  const offered = filled(n, x.columns, (row, column) => at(x, row, column) - means[column]!);
  const left = svd(asking);
  const right = svd(offered);
  // In these bases every entry of W has an equation of its own: (s s')^2 w + ridge w = s s' t.
  const turned = product(product(transposed(left.u), target), right.u);
  const solved = filled(turned.rows, turned.columns, (i, j) => {
    const gain = left.s[i]! * right.s[j]!;
    return (gain * at(turned, i, j)) / (gain * gain + shared.ridge);
  });
  const form = product(product(left.v, solved), transposed(right.v));
  const scores = svd(product(product(asking, form), transposed(offered)));
  const least = shared.nothing * Math.max(scores.s[0]!, shared.nothing);
  const forQueries = product(form, product(transposed(offered), scores.v));
  const forKeys = product(transposed(form), product(transposed(asking), scores.u));
  const cut = (wide: Matrix) => filled(wide.rows, width, (row, column) => ((scores.s[column] ?? 0) > least ? at(wide, row, column) / Math.sqrt(scores.s[column]!) : 0));
  return [cut(forQueries), cut(forKeys)];
}

/** Adam on the painted rows' cross-entropy. */
function trained(x: Matrix, wished: Matrix, start: [Matrix, Matrix], moments: readonly number[]): [Matrix, Matrix][] {
  const painted = Array.from({ length: wished.rows }, (_, row) => Number(sum(rowOf(wished, row)) > 0));
  const share = painted.map((is) => is / Math.max(1, sum(painted)));
  const xT = transposed(x);
  const matrices: [Matrix, Matrix] = [times(start[0], 1), times(start[1], 1)];
  const [first, second] = [0, 1].map(() => matrices.map(({ data }) => new Float64Array(data.length))) as [Float64Array[], Float64Array[]];
  const [keepFirst, keepSecond] = shared.moments as [number, number];
  const taken: [Matrix, Matrix][] = [];
  const last = Math.max(...moments);
  for (let step = 0; step <= last; step++) {
    if (moments.includes(step)) taken.push([times(matrices[0], 1), times(matrices[1], 1)]);
    if (step === last) break;
    const [q, k] = [product(x, matrices[0]), product(x, matrices[1])];
    const slope = softmaxRows(product(q, transposed(k)));
    for (let i = 0; i < slope.data.length; i++) slope.data[i] = (slope.data[i]! - wished.data[i]!) * share[Math.floor(i / slope.columns)]!;
    const slopes = [product(xT, product(slope, k)), product(xT, product(transposed(slope), q))];
    slopes.forEach(({ data }, index) => {
      const [weights, mean, spread] = [matrices[index]!.data, first[index]!, second[index]!];
      for (let i = 0; i < data.length; i++) {
        const byWeight = data[i]! + shared.decay * weights[i]!;
        mean[i] = keepFirst * mean[i]! + (1 - keepFirst) * byWeight;
        spread[i] = keepSecond * spread[i]! + (1 - keepSecond) * byWeight * byWeight;
        weights[i]! -= (shared.rate * mean[i]!) / (1 - keepFirst ** (step + 1)) / (Math.sqrt(spread[i]! / (1 - keepSecond ** (step + 1))) + shared.damping);
      }
    });
  }
  return taken;
}

// -------------------------------------------------------------------------------------------------------------------- words

/** What one head does: shares that arrive on the painted sentence and, of a rule, on the other one; NaN where it paints nothing. */
export interface Drawn {
  painted: number;
  widest: number;
  other: number | null;
  chance: number | null;
  alike: number;
}

export const inPercent = (share: number): string => `${(100 * share).toFixed(0)} %`;

/** What the numbers say: the words of the library's own cell (lab/lessons/pages/draw_a_head.py). */
export function conclusion({ painted, widest, other, chance, alike }: Drawn, width: number, reads: string): string {
  const numbers = `${width} number${width > 1 ? "s" : ""} a token`;
  let first = `At no width can this be drawn from ${reads} alone: ${inPercent(painted)} of the picture arrives.`;
  if (painted >= 0.9) first = `${numbers} draw${width === 1 ? "s" : ""} this picture: ${inPercent(painted)} of it arrives.`;
  else if (widest >= painted + 0.1) first = `${numbers} ${width > 1 ? "are" : "is"} too few: ${inPercent(painted)} of the picture arrives, with a wide head ${inPercent(widest)}.`;
  if (other === null || chance === null) return `${first} On the other sentence it agrees with the widest head to ${inPercent(alike)}.`;
  if (Number.isNaN(other)) return `${first} The other sentence has no place for the rule.`;
  const second = `On the other sentence it is ${inPercent(other)}`;
  if (other <= 2 * chance) return `${first} ${second}, near chance (${inPercent(chance)})${painted >= 0.5 ? ": it learned the sentence, not the rule" : ""}.`;
  if (painted < 0.5) return `${first} ${second}.`;
  return `${first} ${second}: it learned ${other >= 0.8 ? "the rule" : "some of the rule"}.`;
}

// ----------------------------------------------------------------------------------------------------------- small algebra

export function filled(rows: number, columns: number, value: (row: number, column: number) => number): Matrix {
  const data = new Float64Array(rows * columns);
  for (let row = 0, i = 0; row < rows; row++) for (let column = 0; column < columns; column++) data[i++] = value(row, column);
  return { rows, columns, data };
}

export function at({ columns, data }: Matrix, row: number, column: number): number {
  return data[row * columns + column]!;
}

function rowOf({ columns, data }: Matrix, row: number): Float64Array {
  return data.subarray(row * columns, (row + 1) * columns);
}

function sum(values: Iterable<number>): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

function times(matrix: Matrix, factor: number): Matrix {
  return { ...matrix, data: matrix.data.map((value) => value * factor) };
}

export function transposed(matrix: Matrix): Matrix {
  return filled(matrix.columns, matrix.rows, (row, column) => at(matrix, column, row));
}

export function product(a: Matrix, b: Matrix): Matrix {
  const data = new Float64Array(a.rows * b.columns);
  for (let row = 0; row < a.rows; row++)
    for (let inner = 0; inner < a.columns; inner++) {
      const factor = a.data[row * a.columns + inner]!;
      if (factor === 0) continue;
      for (let column = 0, i = row * b.columns, j = inner * b.columns; column < b.columns; column++) data[i++]! += factor * b.data[j++]!;
    }
  return { rows: a.rows, columns: b.columns, data };
}

function softmaxRows(scores: Matrix): Matrix {
  const data = new Float64Array(scores.data.length);
  for (let row = 0; row < scores.rows; row++) {
    const line = rowOf(scores, row);
    const top = Math.max(...line);
    const raised = line.map((score) => Math.exp(score - top));
    const total = sum(raised);
    raised.forEach((value, column) => (data[row * scores.columns + column] = value / total));
  }
  return { ...scores, data };
}

const SWEEPS = 60; // one-sided Jacobi ends after six or so
const ORTHOGONAL = 1e-15;

/** Singular values from the largest, and the vectors to them: a = u diag(s) v^T, as many as the shorter side of `a` has. One-sided
    Jacobi: columns are turned in pairs until all are orthogonal; their lengths are the singular values. */
export function svd(a: Matrix): { u: Matrix; s: number[]; v: Matrix } {
  if (a.rows < a.columns) {
    const { u, s, v } = svd(transposed(a));
    return { u: v, s, v: u };
  }
  const columns = Array.from({ length: a.columns }, (_, column) => Float64Array.from({ length: a.rows }, (_, row) => at(a, row, column)));
  const turns = Array.from({ length: a.columns }, (_, i) => Float64Array.from({ length: a.columns }, (_, j) => Number(i === j)));
  for (let sweep = 0, turned = true; turned && sweep < SWEEPS; sweep++) {
    turned = false;
    for (let i = 0; i < a.columns; i++)
      for (let j = i + 1; j < a.columns; j++) {
        const [p, q] = [columns[i]!, columns[j]!];
        let [pp, qq, pq] = [0, 0, 0];
        for (let row = 0; row < a.rows; row++) {
          pp += p[row]! * p[row]!;
          qq += q[row]! * q[row]!;
          pq += p[row]! * q[row]!;
        }
        if (Math.abs(pq) <= ORTHOGONAL * Math.sqrt(pp * qq)) continue;
        turned = true;
        const slope = (qq - pp) / (2 * pq);
        const tangent = (slope < 0 ? -1 : 1) / (Math.abs(slope) + Math.sqrt(1 + slope * slope));
        const cosine = 1 / Math.sqrt(1 + tangent * tangent);
        turn(p, q, cosine, cosine * tangent);
        turn(turns[i]!, turns[j]!, cosine, cosine * tangent);
      }
  }
  const lengths = columns.map((column) => Math.sqrt(sum(column.map((value) => value * value))));
  const order = lengths.map((_, i) => i).sort((i, j) => lengths[j]! - lengths[i]!);
  const s = order.map((i) => lengths[i]!);
  return {
    u: filled(a.rows, a.columns, (row, i) => (s[i]! > 0 ? columns[order[i]!]![row]! / s[i]! : 0)),
    s,
    v: filled(a.columns, a.columns, (row, i) => turns[order[i]!]![row]!),
  };
}

function turn(p: Float64Array, q: Float64Array, cosine: number, sine: number): void {
  for (let i = 0; i < p.length; i++) {
    const [a, b] = [p[i]!, q[i]!];
    p[i] = cosine * a - sine * b;
    q[i] = sine * a + cosine * b;
  }
}
