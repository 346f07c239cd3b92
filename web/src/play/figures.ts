// Figures of scenes: numbers, shares and words of the text as sentences hold them.
export { called, percent as share, quoted, quotedAlone, upper } from "../lib/draw/format";

const NUMBERS = [
  "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen",
  "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
];

/** A number with so many decimals and a true minus sign; never "−0.00". */
export function decimal(value: number, digits = 2): string {
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** A small number as a word, a larger one in digits: "sixteen", "57". */
export function inWords(n: number): string {
  return NUMBERS[n] ?? String(n);
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
