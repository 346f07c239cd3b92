// A value of a live cell, ready to draw: which rows and columns of it are here, how its shape reads, how to write its
// numbers so that a column lines up, and where each number is on the ramp.

import type { Shown } from "../../lib/types";

/** "12 x 64", "64", "one number". */
export function shapeInWords(shape: readonly number[]): string {
  return shape.length ? shape.join(" × ") : "one number";
}

/** Whether all of the value is here, or the first rows and columns of it. */
export function partInWords(shown: Pick<Shown, "shape" | "values">): string {
  const rows = shown.values.length;
  const columns = Math.max(0, ...shown.values.map((row) => row.length));
  const all = shown.shape.reduce((product, size) => product * size, 1);
  const here = shown.values.reduce((sum, row) => sum + row.length, 0);
  if (here >= all) return "";
  return `${rows} × ${columns} of it shown`;
}

/** How many digits behind the point so that the largest has four figures, and small ones are not all zero. */
export function digitsOf(values: readonly (readonly (number | null)[])[]): number {
  const sizes = values.flat().filter((value): value is number => value !== null && Number.isFinite(value) && value !== 0);
  if (!sizes.length || sizes.every(Number.isInteger)) return 0;
  const most = Math.max(...sizes.map(Math.abs));
  return Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(most))));
}

export function written(value: number | null, digits: number): string {
  if (value === null) return "·";
  return value.toFixed(digits).replace("-", "−");
}

export function hasNegative(values: readonly (readonly (number | null)[])[]): boolean {
  return values.some((row) => row.some((value) => value !== null && value < 0));
}

/** The keys that a row of a map looks at most, largest first. */
export function looksAt(row: readonly (number | null)[], keys: readonly string[], count: number): [string, number][] {
  const seen = row.flatMap((value, at): [string, number][] => (value === null ? [] : [[keys[at] ?? String(at), value]]));
  return seen.sort((a, b) => b[1] - a[1]).slice(0, count);
}

const SMALL = { rows: 8, columns: 4 };

/** Digits for each column: in a small table its own, so that its smallest number has three figures, too (80.00 and 1.25). */
export function digitsByColumn(values: readonly (readonly (number | null)[])[], map = false): number[] {
  const columns = Math.max(0, ...values.map((row) => row.length));
  const all = digitsOf(values);
  if (map || values.length > SMALL.rows || columns > SMALL.columns) return Array.from({ length: columns }, () => all);
  return Array.from({ length: columns }, (_, at) => {
    const column = values.map((row) => row[at] ?? null);
    const digits = digitsOf([column]);
    const sizes = column.filter((value): value is number => value !== null && Number.isFinite(value) && value !== 0).map(Math.abs);
    if (sizes.every((value) => Math.abs(value - Number(value.toFixed(digits))) < 1e-9)) return digits;
    return Math.max(0, Math.min(6, digits + 2, 2 - Math.floor(Math.log10(Math.min(...sizes)))));
  });
}

/** A token of a text in quotes; what is only numbered as it is. */
export function inQuotes(token: string): string {
  return /^[a-z]+ ?\d+$/.test(token) ? token : `‘${token}’`;
}

/** How many keys share the largest weight of a row. */
export function tiedAtTop(row: readonly (number | null)[]): number {
  const seen = row.filter((value): value is number => value !== null);
  const most = Math.max(...seen);
  return seen.filter((value) => Math.abs(value - most) <= 1e-6 * Math.max(1e-3, Math.abs(most))).length;
}

/** The step that a question is about: the one called as an input says, or ending in it. */
export function stepAbout(labels: readonly string[], inputs: readonly (string | number)[]): number | null {
  const names = inputs.filter((each): each is string => typeof each === "string");
  const at = [
    ...names.map((name) => labels.indexOf(name)),
    ...names.map((name) => labels.findIndex((label) => label.endsWith(`, ${name}`))),
  ].find((each) => each >= 0);
  return at ?? null;
}
