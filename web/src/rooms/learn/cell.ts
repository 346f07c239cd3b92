// Live cells of a lesson. Values, ready to draw: their shape and visible part in words, and digits that line up in a column.
// Parameters: choices that fill other fields, and where a slider begins.
import type { Listing, Parameter, Shown } from "../../lib/api/types";

/** "12 x 64", "64", "one number". */
export function shapeInWords(shape: readonly number[]): string {
  return shape.length ? shape.join(" × ") : "one number";
}

/** The size of the visible part of a value, in words; "" where all of it is visible. */
export function partInWords(shown: Pick<Shown, "shape" | "values">): string {
  const rows = shown.values.length;
  const columns = Math.max(0, ...shown.values.map((row) => row.length));
  const total = shown.shape.reduce((product, size) => product * size, 1);
  if (shown.values.flat().length >= total) return "";
  return `${rows} × ${columns} of it shown`;
}

/** Decimals at which the largest value has three or four figures, so that small ones are not all zero. */
export function digitsOf(values: readonly (readonly (number | null)[])[]): number {
  const sizes = values.flat().filter((value): value is number => value !== null && Number.isFinite(value) && value !== 0);
  if (!sizes.length || sizes.every(Number.isInteger)) return 0;
  const largest = Math.max(...sizes.map(Math.abs));
  return Math.max(0, Math.min(6, 2 - Math.floor(Math.log10(largest))));
}

export function written(value: number | null, digits: number): string {
  if (value === null) return "·";
  return value.toFixed(digits).replace("-", "−");
}

export function hasNegative(values: readonly (readonly (number | null)[])[]): boolean {
  return values.some((row) => row.some((value) => value !== null && value < 0));
}

/** The keys with the largest weights of a map's row, largest first. */
export function looksAt(row: readonly (number | null)[], keys: readonly string[], count: number): [string, number][] {
  const visible = row.flatMap((value, i): [string, number][] => (value === null ? [] : [[keys[i] ?? String(i), value]]));
  return visible.sort((a, b) => b[1] - a[1]).slice(0, count);
}

const SMALL = { rows: 8, columns: 4 };
const NAMED = 6; // columns, at most, that each are of something else
const LOST = 0.05; // of a number, by which it may be off

/** Decimals for each column. In a small table each column has its own, so that its smallest number has three figures too
    (80.00 and 1.25); so it has where the decimals of the largest number of all would be none for another (174604 and 1.25). */
export function digitsByColumn(values: readonly (readonly (number | null)[])[], map = false): number[] {
  const columns = Math.max(0, ...values.map((row) => row.length));
  const common = digitsOf(values);
  const lost = values.flat().some((value) => value !== null && Math.abs(Number(value.toFixed(common)) - value) > LOST * Math.abs(value));
  if (map || (!lost && (values.length > SMALL.rows || columns > SMALL.columns)) || columns > NAMED) return Array.from({ length: columns }, () => common);
  return Array.from({ length: columns }, (_, i) => {
    const column = values.map((row) => row[i] ?? null);
    const digits = digitsOf([column]);
    const sizes = column.filter((value): value is number => value !== null && Number.isFinite(value) && value !== 0).map(Math.abs);
    if (sizes.every((value) => Math.abs(value - Number(value.toFixed(digits))) < 1e-9)) return digits;
    return Math.max(0, Math.min(6, digits + 2, 2 - Math.floor(Math.log10(Math.min(...sizes)))));
  });
}

/** A token in quotes; a name with a number ("key 3") as it is. */
export function inQuotes(token: string): string {
  return /^[a-z]+ ?\d+$/.test(token) ? token : `‘${token}’`;
}

/** How many keys share the largest weight of a row. */
export function tiedAtTop(row: readonly (number | null)[]): number {
  const visible = row.filter((value): value is number => value !== null);
  const largest = Math.max(...visible);
  return visible.filter((value) => Math.abs(value - largest) <= 1e-6 * Math.max(1e-3, Math.abs(largest))).length;
}

/** The step that a question is about: the one whose label is one of the question's inputs, or ends in it. */
export function stepAbout(labels: readonly string[], inputs: readonly (string | number)[]): number | null {
  const names = inputs.filter((input): input is string => typeof input === "string");
  const index = [
    ...names.map((name) => labels.indexOf(name)),
    ...names.map((name) => labels.findIndex((label) => label.endsWith(`, ${name}`))),
  ].find((i) => i >= 0);
  return index ?? null;
}

/** The step that a cell which runs by itself shows first: the last one that its title names, else the first. */
export function stepNamed(labels: readonly string[], title: string): number {
  const words = ` ${title.toLowerCase().replace(/[^\p{L}\p{N}_]+/gu, " ")} `;
  return Math.max(0, labels.findLastIndex((label) => words.includes(` ${label.toLowerCase()} `)));
}

/** The fields of a `Parameter` that `withChange` uses. */
export type FillingParameter = Pick<Parameter, "name" | "choices" | "fills">;
export type Values = Record<string, string | number>;

/** The values with one changed. A choice fills other fields; a change in a filled field sets the choice to the reader's own
    one (the choice that fills nothing), so that the values on screen are those that are computed with. */
export function withChange(parameters: readonly FillingParameter[], values: Values, changed: FillingParameter, value: string | number): Values {
  const next: Values = { ...values, [changed.name]: value, ...changed.fills[String(value)] };
  for (const { name, choices, fills } of parameters) {
    const filled = fills[String(next[name])];
    const own = choices.find((choice) => !(choice in fills));
    if (filled && own !== undefined && changed.name in filled && filled[changed.name] !== value) next[name] = own;
  }
  return next;
}

/** The first stop of a slider, chosen so that the parameter's value is one of its stops: 64 for 512 from 1 in steps of 64. */
export function firstStop({ low, step, value }: Pick<Parameter, "low" | "step" | "value">): number | undefined {
  if (low === null) return undefined;
  return step === null ? low : Number(value) - Math.floor((Number(value) - low) / step + 1e-9) * step;
}

/** Whether a line of code computes the value of this label: "Q" computes "Q, head 1" as well. */
export function computes(steps: readonly string[], label: string): boolean {
  return label !== "" && steps.some((step) => label === step || label.startsWith(`${step}, `));
}

const PRODUCT = /([A-Za-z_]+)(?:\[head\])? @ ([A-Za-z_]+)(?:\[head\])?(\.(?:T|mT))?/;
const MOST_PRODUCTS = 8;

/** Where a number of a product comes from, as the line of code says it: "row token 1 of Q · row token 2 of K = 0×1 + 1×1 = 1". "" where
    it is no product of two values that are shown whole. */
export function traced(all: readonly Shown[], shown: Shown, code: readonly Listing[], row: number, column: number): string {
  const suffix = /, head \d+$/.exec(shown.label)?.[0] ?? "";
  const line = code[0]?.lines.find(({ steps, text }) => computes(steps, shown.label) && PRODUCT.test(text));
  const [, left, right, turned] = (line && PRODUCT.exec(line.text)) ?? [];
  const valueOf = (name = "") => {
    const own = all.filter(({ label }) => label === name || label.toLowerCase() === name.toLowerCase() || label.toLowerCase() === `${name.toLowerCase()}${suffix}`);
    return own.find(({ values, shape }) => values.length === shape[0] && (values[0]?.length ?? 0) === shape[1]);
  };
  const [a, b] = [valueOf(left), valueOf(right)];
  if (!a || !b) return "";
  const first = a.values[row] ?? [];
  const second = turned ? (b.values[column] ?? []) : b.values.map((line) => line[column] ?? null);
  if (!first.length || first.length !== second.length || first.length > MOST_PRODUCTS) return "";
  const short = (value: number | null) => (value === null ? "·" : String(Number(value.toFixed(3))).replace("-", "−"));
  const sum = first.reduce<number>((total, value, i) => total + (value ?? 0) * (second[i] ?? 0), 0);
  const terms = first.map((value, i) => `${short(value)} × ${short(second[i] ?? null)}`).join(" + ");
  const where = `${a.label} row ${a.row_labels[row] ?? row} · ${b.label} ${turned ? `row ${b.row_labels[column] ?? column}` : `column ${b.column_labels[column] ?? column}`}`;
  const value = shown.values[row]?.[column] ?? null;
  const rest = value !== null && Math.abs(value - sum) > 1e-6 ? `, then ${short(value)}` : "";
  return `${where} = ${terms} = ${short(sum)}${rest}`;
}
