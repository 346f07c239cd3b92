// Figures of scenes: numbers, shares and words of the text as sentences hold them.
import { label } from "../lib/draw/format";
import type { Token } from "../lib/api/types";

const NUMBERS = [
  "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen",
  "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
];

/** A number with so many decimals and a true minus sign; never "−0.00". */
export function decimal(value: number, digits = 2): string {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** A share in whole per cent: "68 %", "< 1 %", "−3 %". */
export function share(value: number): string {
  const percent = 100 * value;
  if (Math.abs(percent) < 0.5) return percent > 0.0005 ? "< 1 %" : "0 %";
  return `${decimal(percent, 0)} %`;
}

/** A small number as a word, a larger one in digits: "sixteen", "57". */
export function inWords(n: number): string {
  return NUMBERS[n] ?? String(n);
}

export function upper(words: string): string {
  return words.replace(/^./, (letter) => letter.toUpperCase());
}

/** A token in a sentence: quoted, but for the tokenizer's own, such as [CLS]. */
export function quoted(token: Token | undefined): string {
  return token?.special ? label(token) : `“${label(token)}”`;
}

export function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}

/** The size that all but one number in a hundred stay below: the peak of a colour scale that no outlier stretches. */
export function peakOf(...arrays: ArrayLike<number>[]): number {
  const sizes = arrays.flatMap((values) => Array.from(values, Math.abs)).filter(Number.isFinite).sort((a, b) => a - b);
  return sizes[Math.floor((sizes.length - 1) * 0.99)] || 1e-9;
}

/** Running sums, beginning with 0. */
export function cumulated(values: readonly number[]): number[] {
  let sum = 0;
  return [0, ...values.map((value) => (sum += value))];
}

/** A sentence of the library with the page's quotes. */
export function curled(words: string): string {
  return words.replace(/"([^"]*)"/g, "“$1”");
}
