// Maps computed in the page: any cell from q, k and each row's log-sum-exp, which an exact page or a recording's file holds. A
// weight is exp(score - lse); a score is scale * q.k, then softcap, then bias, where the mask lets the row see the key. Tiles come
// from WebGL where a graphics card computes (webgl.ts), else from here in double precision: what is not exact was rounded before.
// Rows and single weights always come from here.
import type { Numbers } from "../api/envelope";
import type { EnvelopeArray, FactorsHeader, Grid, MapFactors, Reading, RowLook, Window } from "../api/exact";
import type { LayerInfo, Pair } from "../api/types";
import { Engine } from "./webgl";

export type Floats = Float32Array | Float64Array;

/** One layer's numbers: q is [head query width], k [key/value head key width], lse [head query]. */
export interface LayerFactors {
  q: Floats;
  k: Floats;
  /** Values, [key/value head key valueWidth]; null where they are not kept. */
  v: Floats | null;
  valueWidth: number | null;
  lse: Floats;
  /** The keys that each row sees: from `start` to before `stop`. */
  start: Numbers;
  stop: Numbers;
  /** Where rows are no runs: visible cells as bits, each row in whole bytes, for one head or for each. */
  dense: { bits: Numbers; heads: number } | null;
  /** Added to scores, [head query key], for one head or for each. */
  bias: { values: Floats; heads: number } | null;
  sinks: number[] | null;
  scale: number;
  softcap: number | null;
  width: number;
}

/** Which rows a region reads: of each block of `span` rows at most `perBlock`, the middles of equal stretches. Under a causal
    mask the first rows of a block see least. */
export interface Plan extends Window {
  span: number;
  perBlock: number;
  rows: number;
  columns: number;
  largest: boolean;
}

const AT_ONCE = 1 << 19; // cells between two pauses, in which the page answers the reader: some 20 ms
const SAMPLED = 1 << 22; // cells of one tile
const MIN_MISSING = 1e-4; // of a row's mass: less is rounding, more went to a sink that is no token
const KEPT = 3; // unpacked layers: of 512 tokens 1.6 MB each

export class Factors implements MapFactors {
  #layers = new Map<number, LayerFactors>();
  #engine = Engine.shared();

  /** `words`: how exact a weight is; `kept`: the type of q and k; `unpacked`: a layer's numbers. */
  constructor(
    readonly words: string,
    private readonly kept: string,
    private readonly shapes: LayerInfo[],
    private readonly unpacked: (index: number) => LayerFactors,
  ) {}

  /** The factors of a snapshot, as studio/outside/snapshot.py keeps them. */
  static ofSnapshot({ dtype, words, layers }: FactorsHeader, arrays: Record<string, EnvelopeArray>, shapes: LayerInfo[]): Factors {
    return new Factors(words, dtype, shapes, (index) => {
      const { mask, bias, sinks = null, value_width: valueWidth = null, ...rule } = layers[index]!;
      const [dense, added] = [arrays[`dense${mask}`], bias === null ? undefined : arrays[`bias${bias}`]];
      return {
        ...rule,
        sinks,
        q: rowsOf(arrays[`q${index}`]!),
        k: rowsOf(arrays[`k${index}`]!),
        v: valueWidth === null ? null : rowsOf(arrays[`v${index}`]!),
        valueWidth,
        lse: numbersOf(arrays[`lse${index}`]!),
        start: arrays[`start${mask}`]!.data,
        stop: arrays[`stop${mask}`]!.data,
        dense: dense ? { bits: dense.data, heads: dense.shape[0]! } : null,
        bias: added ? { values: added.data as Float32Array, heads: added.shape[0]! } : null,
      };
    });
  }

  get computed(): string {
    return this.#engine.words;
  }

  row(layerIndex: number, head: number, query: number): { weights: Float32Array; visible: number; missing: number } {
    const weights = new Float32Array(this.shapes[layerIndex]!.num_keys);
    this.#weights(layerIndex, head, query, 0, weights.length, weights, 0);
    let [visible, sum] = [0, 0];
    for (const weight of weights) {
      if (Number.isNaN(weight)) continue;
      visible += 1;
      sum += weight;
    }
    return { weights, visible, missing: visible && 1 - sum > MIN_MISSING ? 1 - sum : 0 };
  }

  async region(layerIndex: number, head: number, window: Window, reading: Reading): Promise<Grid> {
    const { top, bottom, left, right } = window;
    const { level, how, every = false, most = SAMPLED, signal } = reading;
    const [span, rowsInAll, width] = [2 ** level, bottom - top, right - left];
    const [rows, columns] = [Math.ceil(rowsInAll / span), Math.ceil(width / span)];
    const perBlock = every ? span : Math.max(1, Math.min(span, Math.floor((span * most) / (rowsInAll * width))));
    const plan: Plan = { ...window, span, perBlock, rows, columns, largest: how === "max" };
    const shape = this.shapes[layerIndex]!;
    const values =
      (await this.#engine.region(this.#layer(layerIndex), shape, head, plan, (query) => this.row(layerIndex, head, query).weights, signal)) ??
      (await this.#region(layerIndex, head, plan, signal));
    let rowsRead = 0;
    for (let begin = top; begin < bottom; begin += span) rowsRead += Math.min(perBlock, bottom - begin, span);
    const [, bound = ""] = / (to [\d.]+)/.exec(this.words) ?? [];
    const cells = level ? `${how === "max" ? "largest" : how} of ${span} × ${span} cells${bound && `, ${bound}`}` : this.words;
    const exact = rowsRead === rowsInAll;
    return { values, rows, columns, exact, words: exact ? cells : `${cells}, ${rowsRead} of ${rowsInAll} rows read` };
  }

  /** A region in plain JavaScript. */
  async #region(layerIndex: number, head: number, plan: Plan, signal?: AbortSignal): Promise<Float32Array> {
    const { top, bottom, left, right, span, perBlock, rows, columns, largest } = plan;
    const width = right - left;
    const values = new Float32Array(rows * columns).fill(NaN);
    const counts = span > 1 ? new Uint32Array(rows * columns) : null;
    const weights = new Float32Array(width);
    let done = 0;
    for (let block = 0; block < rows; block++) {
      const [begin, end] = [top + block * span, Math.min(bottom, top + (block + 1) * span)];
      const picked = Math.min(perBlock, end - begin);
      for (let i = 0; i < picked; i++) {
        const query = begin + Math.floor(((i + 0.5) * (end - begin)) / picked);
        if (!counts) this.#weights(layerIndex, head, query, left, right, values, block * columns);
        else {
          this.#weights(layerIndex, head, query, left, right, weights, 0);
          for (let c = 0; c < width; c++) {
            const weight = weights[c]!;
            if (Number.isNaN(weight)) continue;
            const place = block * columns + Math.floor(c / span);
            if (!counts[place]!++) values[place] = weight;
            else if (!largest) values[place]! += weight;
            else if (weight > values[place]!) values[place] = weight;
          }
        }
        if ((done += width) < AT_ONCE) continue;
        done = 0;
        await new Promise((resolve) => setTimeout(resolve)); // the page answers the reader in between
        signal?.throwIfAborted();
      }
    }
    if (counts && !largest) for (let i = 0; i < values.length; i++) values[i]! /= counts[i] || 1;
    return values;
  }

  pair(layerIndex: number, head: number, query: number, key: number): Omit<Pair, "head"> {
    const { q, k, lse, bias, sinks, scale, softcap, width } = this.#layer(layerIndex);
    const { num_heads, num_kv_heads, num_queries, num_keys } = this.shapes[layerIndex]!;
    const vector = (numbers: Floats, place: number) => Array.from(numbers.subarray(place * width, (place + 1) * width));
    const place = head * num_queries + query;
    const [qOfPair, kOfPair] = [vector(q, place), vector(k, Math.floor((head * num_kv_heads) / num_heads) * num_keys + key)];
    const scaled = scale * qOfPair.reduce((sum, value, i) => sum + value * kOfPair[i]!, 0);
    const added = bias && bias.values[((bias.heads === 1 ? 0 : head) * num_queries + query) * num_keys + key]!;
    const { weights, visible } = this.row(layerIndex, head, query);
    const weight = weights[key]!;
    return {
      query, key, q: qOfPair, k: kOfPair, scale, scaled, softcap, bias: added,
      score: (softcap === null ? scaled : softcap * Math.tanh(scaled / softcap)) + (added ?? 0),
      lse: Number.isFinite(lse[place]) ? lse[place]! : null,
      sink: sinks?.[head] ?? null,
      visible: !Number.isNaN(weight), num_visible: visible, weight: Number.isNaN(weight) ? 0 : weight,
      about: `q and k as attention received them, kept in ${this.kept}: after rotation by position (RoPE), if the model has it`,
    };
  }

  look(layerIndex: number, head: number, query: number): RowLook {
    const { q, k, v, valueWidth, start, stop, dense, bias, sinks, scale, softcap, width } = this.#layer(layerIndex);
    const { num_heads, num_kv_heads, num_queries, num_keys } = this.shapes[layerIndex]!;
    const group = Math.floor((head * num_kv_heads) / num_heads);
    const asking = q.subarray((head * num_queries + query) * width, (head * num_queries + query + 1) * width);
    const key = (place: number) => k.subarray((group * num_keys + place) * width, (group * num_keys + place + 1) * width);
    const row = bias && ((bias.heads === 1 ? 0 : head) * num_queries + query) * num_keys;
    const added = bias && row !== null ? bias.values.subarray(row, row + num_keys) : null;
    const bits = dense ? ((dense.heads === 1 ? 0 : head) * num_queries + query) * Math.ceil(num_keys / 8) : 0;
    const scores = new Float64Array(num_keys).fill(-Infinity);
    let most = -Infinity;
    for (let place = start[query]!; place < Math.min(stop[query]!, num_keys); place++) {
      if (dense && !(dense.bits[bits + (place >> 3)]! & (128 >> (place & 7)))) continue;
      let score = 0;
      const other = key(place);
      for (let i = 0; i < width; i++) score += asking[i]! * other[i]!;
      score *= scale;
      if (softcap !== null) score = softcap * Math.tanh(score / softcap);
      scores[place] = score + (added?.[place] ?? 0);
      most = Math.max(most, scores[place]!);
    }
    const sink = sinks?.[head] ?? null;
    most = Math.max(most, sink ?? -Infinity);
    const sum = scores.reduce((total, score) => total + Math.exp(score - most), sink === null ? 0 : Math.exp(sink - most));
    const lse = most > -Infinity ? most + Math.log(sum) : -Infinity;
    const weights = scores.map((score) => (lse > -Infinity ? Math.exp(score - lse) : 0));
    const value = (place: number) => v!.subarray((group * num_keys + place) * valueWidth!, (group * num_keys + place + 1) * valueWidth!);
    return { q: asking, scores, weights, lse, bias: added, sink, scale, softcap, group, key, valueWidth: v ? valueWidth : null, value };
  }

  /** One row's weights into `out` from `offset` on. */
  #weights(layerIndex: number, head: number, query: number, left: number, right: number, out: Float32Array, offset: number): void {
    const { q, k, lse, start, stop, dense, bias, scale, softcap, width } = this.#layer(layerIndex);
    const { num_heads, num_kv_heads, num_queries, num_keys } = this.shapes[layerIndex]!;
    out.fill(NaN, offset, offset + right - left);
    const [first, last] = [Math.max(left, start[query]!), Math.min(right, stop[query]!)];
    const qStart = (head * num_queries + query) * width;
    const kStart = Math.floor((head * num_kv_heads) / num_heads) * num_keys * width;
    const rowLse = lse[head * num_queries + query]!;
    const biasStart = bias ? ((bias.heads === 1 ? 0 : head) * num_queries + query) * num_keys : 0;
    const rowBytes = Math.ceil(num_keys / 8);
    const bitsStart = dense ? ((dense.heads === 1 ? 0 : head) * num_queries + query) * rowBytes : 0;
    for (let key = first; key < last; key++) {
      if (dense && !(dense.bits[bitsStart + (key >> 3)]! & (128 >> (key & 7)))) continue;
      let [a, b, i, at] = [0, 0, 0, kStart + key * width];
      for (; i + 1 < width; i += 2, at += 2) {
        a += q[qStart + i]! * k[at]!;
        b += q[qStart + i + 1]! * k[at + 1]!;
      }
      if (i < width) a += q[qStart + i]! * k[at]!;
      let score = scale * (a + b);
      if (softcap !== null) score = softcap * Math.tanh(score / softcap);
      if (bias) score += bias.values[biasStart + key]!;
      out[offset + key - left] = Math.exp(score - rowLse);
    }
  }

  #layer(index: number): LayerFactors {
    let layer = this.#layers.get(index);
    if (!layer) {
      layer = this.unpacked(index);
      if (this.#layers.size >= KEPT) this.#layers.delete(this.#layers.keys().next().value!);
      this.#layers.set(index, layer);
    }
    return layer;
  }
}

/** Numbers that are kept as planes of bytes, the highest first: two planes are float16, four float32. */
export function numbersOf(planes: EnvelopeArray): Float32Array {
  const size = planes.shape[0]!;
  const count = planes.data.length / size;
  const out = new Float32Array(count);
  if (size === 2) {
    for (let i = 0; i < count; i++) out[i] = half(planes.data[i]! * 256 + planes.data[count + i]!);
    return out;
  }
  const bits = new Uint32Array(out.buffer);
  for (let plane = 0; plane < 4; plane++) for (let i = 0; i < count; i++) bits[i] = bits[i]! * 256 + planes.data[plane * count + i]!;
  return out;
}

/** The same where each head's matrix is kept by columns, [head width row]: as [head row width]. */
export function rowsOf(planes: EnvelopeArray): Float32Array {
  const columns = numbersOf(planes);
  const [, heads = 0, width = 0, rows = 0] = planes.shape;
  const out = new Float32Array(columns.length);
  for (let head = 0, begin = 0; head < heads; head++, begin += width * rows) {
    for (let x = 0; x < width; x++) for (let row = 0; row < rows; row++) out[begin + row * width + x] = columns[begin + x * rows + row]!;
  }
  return out;
}

/** The number that 16 bits mean (IEEE 754 binary16). */
export function half(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? (fraction ? NaN : Infinity) : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}
