// A value of a live cell, ready to draw: which rows and columns of it are here, how its shape reads, how to write its
// numbers so that a column lines up, and where each number is on the ramp.

/** What is needed of a `Shown`. */
export interface ShownLike {
  shape: number[];
  values: (number | null)[][];
}

/** "12 x 64", "64", "one number". */
export function shapeInWords(shape: readonly number[]): string {
  return shape.length ? shape.join(" × ") : "one number";
}

/** Whether all of the value is here, or the first rows and columns of it. */
export function partInWords(shown: ShownLike): string {
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

/** The ramp's position: 0 to 1 where nothing is below zero, -1 to 1 where something is. */
export function position(value: number | null, values: readonly (readonly (number | null)[])[]): number | null {
  if (value === null) return null;
  const most = values.flat().reduce<number>((largest, each) => Math.max(largest, Math.abs(each ?? 0)), 0);
  return most > 0 ? value / most : 0;
}

export function hasNegative(values: readonly (readonly (number | null)[])[]): boolean {
  return values.some((row) => row.some((value) => value !== null && value < 0));
}

/** The keys that a row of a map looks at most, largest first. */
export function looksAt(row: readonly (number | null)[], keys: readonly string[], count: number): [string, number][] {
  const seen = row.flatMap((value, at): [string, number][] => (value === null ? [] : [[keys[at] ?? String(at), value]]));
  return seen.sort((a, b) => b[1] - a[1]).slice(0, count);
}
