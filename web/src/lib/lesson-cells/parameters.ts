// What a reader may change in a cell, read as the library reads it (lab/lessons/parameters.py), with its refusals in its words.
import type { Parameter } from "../api/types";
import { divisors, type Table } from "./formulas";
import { beginning, fixed, general, grouped, quote } from "./words";

export type Value = string | number;

/** What cannot be computed, and what to do. */
export class Refusal extends Error {
  constructor(
    words: string,
    readonly kind: "LessonError" | "ShapeError" = "LessonError",
  ) {
    super(words);
  }
}

/** The values of a cell's parameters, within their limits. */
export class Values {
  constructor(private readonly values: Readonly<Record<string, Value>>) {}

  number(name: string): number {
    return Number(this.values[name]);
  }

  text(name: string): string {
    return String(this.values[name]);
  }

  has(name: string): boolean {
    return name in this.values;
  }
}

const MAX_TEXT = 2_000; // characters of a parameter
const MAX_SIDE = 12; // rows or columns of a table
const MAX_NUMBER = 1e6;

/** Every parameter's value: the reader's, else its own. What a choice fills is as it fills it. */
export function readValues(parameters: readonly Parameter[], changes: Readonly<Record<string, Value>>): Values {
  const values: Record<string, Value> = {};
  for (const parameter of parameters) values[parameter.name] = read(parameter, changes[parameter.name] ?? parameter.value);
  for (const { name, choices, fills } of parameters) {
    const filled = fills[String(values[name])] ?? {};
    const own = choices.find((choice) => !(choice in fills));
    const overridden = Object.entries(filled).some(([other, value]) => other in changes && values[other] !== value);
    if (overridden && !(name in changes) && own !== undefined && Object.keys(fills).length) values[name] = own;
    else Object.assign(values, filled);
  }
  return new Values(values);
}

function read({ name, kind, low, high, whole, choices }: Parameter, value: Value): Value {
  if (kind === "number") {
    const [least, most] = [low ?? -MAX_NUMBER, high ?? MAX_NUMBER];
    const number = Number(value);
    if (least <= number && number <= most && (!whole || Number.isInteger(number))) return number;
    // Python gets every number as a float, and writes 4 as 4.0.
    const written = typeof value === "number" && Number.isInteger(value) ? `${value}.0` : String(value);
    const limits = `from ${grouped(general(least))} to ${grouped(general(most))}`;
    throw new Refusal(`${name}=${quote(beginning(written, 40))} is not a ${whole ? "whole number" : "number"} ${limits}: give one.`);
  }
  const text = String(value);
  if (kind === "choice" && !choices.includes(text)) {
    throw new Refusal(`${name}=${quote(beginning(text, 40))} is not a choice: use one of ${choices.join(", ")}.`);
  }
  const length = Array.from(text).length;
  if (length > MAX_TEXT) throw new Refusal(`${name} has ${grouped(length)} characters: give ${grouped(MAX_TEXT)} at the most.`);
  return text;
}

/** Refuses heads that do not divide the width, or key/value heads that do not divide the heads. */
export function requireFitting(values: Values): void {
  for (const [name, by] of [["d_model", "heads"], ["heads", "kv_heads"]] as const) {
    if (!values.has(name) || !values.has(by) || values.number(name) % values.number(by) === 0) continue;
    const fitting = divisors(values.number(name)).join(", ");
    throw new Refusal(`${name}=${values.number(name)} is not a multiple of ${by}=${values.number(by)}: use one of [${fitting}] for ${by}.`, "ShapeError");
  }
}

const BLANKS = "\\t\\n\\v\\f\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000"; // Python's
const UNCLEAR = new RegExp(`[^${BLANKS}]*\\d,[\\d.][^${BLANKS}]*`);

/** The words of a text. */
export function splitWords(text: string): string[] {
  return text.split(new RegExp(`[${BLANKS}]+`)).filter(Boolean);
}

/** A table of numbers: rows are lines or parted by ;, numbers by blanks or by a comma and a blank. */
export function readMatrix(name: string, written: string): Table {
  const unclear = UNCLEAR.exec(written)?.[0];
  if (unclear) throw new Refusal(`${name}: ${quote(beginning(unclear, 40))} is unclear. Separate numbers by spaces, and write a half as 0.5.`);
  const lines = written.replaceAll(";", "\n").split("\n").filter((line) => splitWords(line).length > 0);
  const rows = lines.map((line) => splitWords(line.replaceAll(",", " ")));
  const width = rows[0]?.length ?? 0;
  if (!rows.length || rows.some((row) => row.length !== width) || rows.length > MAX_SIDE || width > MAX_SIDE) {
    throw new Refusal(`${name}: write rows of the same length, up to ${MAX_SIDE} by ${MAX_SIDE}, each on a line of its own or separated by ;.`);
  }
  const table = rows.map((row) => row.map((text) => entry(name, text)));
  if (!table.flat().every((value) => Math.abs(value) <= MAX_NUMBER)) {
    throw new Refusal(`${name}: numbers go from ${grouped(fixed(-MAX_NUMBER, 0))} to ${grouped(fixed(MAX_NUMBER, 0))} here.`);
  }
  return table;
}

function entry(name: string, text: string): number {
  const bare = text.replace(/(?<=\d)_(?=\d)/g, ""); // Python reads 1_000
  if (/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(bare)) return Number(bare);
  if (/^[+-]?(inf|infinity|nan)$/i.test(bare)) return NaN;
  throw new Refusal(`${name}: ${quote(beginning(text, 40))} is not a number. Write numbers as in '1 0.5; -2 3'.`);
}

/** A refusal in the page's words: "d_model=513" as “model width” = 513. */
export function byLabels(message: string, parameters: readonly Parameter[]): string {
  return parameters.reduce((words, { name, label }) => {
    const named = `“${label}”`;
    return words.replace(new RegExp(`(?<![\\p{L}\\p{N}_“])${name}=`, "gu"), () => `${named} = `).replace(new RegExp(`^${name}(?=[: ])`), () => named);
  }, message);
}
