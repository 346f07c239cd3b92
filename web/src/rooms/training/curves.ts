// Curves of heads over the steps of a training: where they lie in a picture, and their values at a step. Pure functions.
import type { Envelope } from "../../lib/api/envelope";

/** Lines over the same steps. `values` lie line after line; NaN is no number. */
export interface Curves {
  steps: Float64Array;
  values: Float32Array;
  /** Of each step; empty where it was not asked for. */
  loss: Float32Array;
  /** False where stretches of steps are shown by their extremes. */
  exact: boolean;
}

export function curvesOf({ header, arrays }: Envelope): Curves {
  return { steps: arrays["steps"]!.data as Float64Array, values: arrays["values"]!.data as Float32Array, loss: (arrays["loss"]?.data ?? new Float32Array()) as Float32Array, exact: header.exact !== false };
}

export function lineOf(curves: Curves, index: number): Float32Array {
  const n = curves.steps.length;
  return curves.values.subarray(index * n, (index + 1) * n);
}

/** The smallest and largest finite value, a little apart where there is one value; 0 to 1 where there is none. */
export function rangeOf(values: Iterable<number>): [number, number] {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return [0, 1];
  return low === high ? [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10] : [low, high];
}

/** The range of two ranges. */
export const joined = (one: readonly [number, number], other: readonly [number, number]): [number, number] => [Math.min(one[0], other[0]), Math.max(one[1], other[1])];

/** Of a log scale: powers of ten; what is not above 0 is no number there. */
export const logOf = (values: Float32Array): Float32Array => values.map((value) => (value > 0 ? Math.log10(value) : NaN));

/** Where a step lies between the first and the last, from 0 to 1. */
export function placeOf(step: number, steps: Float64Array): number {
  const [first = 0, last = 0] = [steps[0], steps[steps.length - 1]];
  return last > first ? Math.min(1, Math.max(0, (step - first) / (last - first))) : 0.5;
}

/** The place of the last step that is not after `step`. */
export function indexAt(step: number, steps: Float64Array): number {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (steps[middle]! <= step) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** An SVG path of a line in a square of 100 by 100, over steps that lie between the ends of `span`; it is broken where there is no
    number. A single value is a short stroke. */
export function pathOf(line: Float32Array, steps: Float64Array, [low, high]: readonly [number, number], span = steps): string {
  let [path, pen] = ["", false];
  line.forEach((value, i) => {
    if (!Number.isFinite(value)) return void (pen = false);
    const x = 100 * placeOf(steps[i]!, span);
    const y = 100 - (100 * (Math.min(high, Math.max(low, value)) - low)) / (high - low);
    const next = Number.isFinite(line[i + 1] ?? NaN);
    path += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${!pen && !next ? "h2" : ""}`;
    pen = true;
  });
  return path;
}

/** Rows of a table: a step, then a column a line. */
export function tableOf(curves: Curves, names: readonly string[]): (string | number)[][] {
  const n = curves.steps.length;
  const rows = Array.from(curves.steps, (step, i) => [step, ...names.map((_, index) => curves.values[index * n + i]!)]);
  return [["step", ...names], ...rows.map((row) => row.map((value) => (Number.isFinite(value) ? value : "")))];
}
