// The result of an experiment in words and numbers: the change, its interval, the control of random heads, CSV.
//
// A change by itself shows little, since removing any head changes something: it is never shown without its control.
import { csvOf } from "../../lib/api/csv";
import type { Experiment, Token } from "../../lib/api/types";
import { small } from "../../lib/draw/format";
import { planInWords, type Step } from "./steps";

/** The fields of an `Experiment` that this file uses. */
export type ResultLike = Pick<
  Experiment, "plan" | "metric" | "unit" | "change" | "before" | "after" | "control" | "notes" | "per_token"
> & { tokens: readonly Pick<Token, "piece" | "text">[] };

/** Three significant digits, with a sign where it is a change. */
export function figure(value: number | null, signed = false): string {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = size === 0 ? "0" : size < 0.0001 ? small(value) : size >= 999.5 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
  const plain = text.replace("-", "−");
  return signed && value > 0 ? `+${plain}` : plain;
}

export function withUnit(value: number | null, unit: string, signed = false): string {
  const text = figure(value, signed);
  return text === "–" || !unit ? text : `${text} ${unit}`;
}

/** What a change is counted in: its unit, else the name of what was measured. */
export function unitOf({ unit, metric }: Pick<Experiment, "unit" | "metric">): string {
  return unit || (metric === "cosine" ? "1 − cosine" : metric.replaceAll("_", " "));
}

/** A change in a word and a number, as the list of runs shows it. An embedding's is the cosine with the one before: 1 is unchanged. */
export function changeInShort(entry: Pick<Experiment, "unit" | "metric" | "change">): { word: string; figure: string } {
  const change = withoutRounding(entry.change);
  if (entry.metric === "cosine") return { word: "cosine with before", figure: figure(1 - change) };
  return { word: entry.unit ? entry.metric.replaceAll("_", " ") : unitOf(entry), figure: withUnit(change, entry.unit, true) };
}

/** A share of 1, or 0 where it is only rounding. */
export function withoutTrace(share: number): number {
  return Math.abs(share) < 1e-6 ? 0 : share;
}

/** Changes below this come from adding numbers in another order. */
const ROUNDING = 1e-9;
/** A token's change below this is not coloured: as the largest of its text it would be drawn in full colour. */
export const FAINTEST = 1e-6;
/** Random sets in the control of a run by default. */
export const DEFAULT_CONTROLS = 10;

/** What the control of a plan draws: other heads, or other layers for a plan on layers alone. */
export function controlUnit(plan: readonly Step[]): "heads" | "layers" {
  return plan.length && plan.every((step) => step.step === "skip_output_projection") ? "layers" : "heads";
}

/** Why a plan can have no control, known before the run: each random set has as many heads as the plan and none of its own. */
export function whyNoControl(planned: number, total: number, things: string): string | null {
  if (!planned) return "no control: positions belong to no head";
  if (planned === total) return `no control: a plan on all ${things} leaves none to draw`;
  if (2 * planned > total) return `no control: fewer ${things} are left than the plan changes`;
  return 2 * planned === total ? `no verdict: the other half of the ${things} is the only set to compare with` : null;
}

interface ControlSummary {
  mean: number;
  low: number;
  high: number;
  /** Random sets whose change is at least as large, up or down. */
  above: number;
  count: number;
}

export function summary(control: readonly number[], change: number): ControlSummary | null {
  if (!control.length) return null;
  return {
    mean: control.reduce((sum, value) => sum + value, 0) / control.length,
    low: Math.min(...control),
    high: Math.max(...control),
    above: control.filter((value) => Math.abs(value) >= Math.abs(change)).length,
    count: control.length,
  };
}

/** What the same did to random sets, in a sentence; "" where there are none, which the verdict says. The verdict is the
    server's. */
export function controlInWords(result: ResultLike, requested = DEFAULT_CONTROLS): string {
  const control = summary(result.control, result.change);
  const things = controlUnit(result.plan);
  if (!control) return "";
  const format = (value: number) => withUnit(withoutRounding(value), result.unit, true);
  const [low, high] = [withoutRounding(control.low), withoutRounding(control.high)];
  const range = low === high ? format(control.mean) : `${format(control.mean)} on average (${figure(low, true)} to ${figure(high, true)})`;
  const few = control.count < requested ? ` There ${control.count === 1 ? "is" : "are"} only ${control.count} other set${control.count === 1 ? "" : "s"} to draw.` : "";
  return `The same done to the same number of random ${things} changed it by ${range}.${few}`;
}

/** Whether a change is only rounding. */
export function isRounding(change: number): boolean {
  return Math.abs(change) < ROUNDING;
}

/** A change, or 0 where it is only rounding. */
export function withoutRounding(value: number): number {
  return isRounding(value) ? 0 : value;
}

/** The largest absolute change of a token; 0 for no tokens. */
export function largestChange(values: readonly (number | null)[]): number {
  return values.reduce<number>((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
}

/** CSV with a line per token, after the experiment's numbers as comments. */
export function resultCsv(result: ResultLike): string {
  const head = [
    `# plan: ${planInWords(result.plan)}`,
    `# ${result.metric}${result.unit ? ` (${result.unit})` : ""}: change ${result.change}, before ${result.before ?? ""}, after ${result.after ?? ""}`,
    `# control (random heads): ${result.control.join(" ")}`,
  ].map((line) => line.replace(/[\r\n]+/g, " "));
  const rows = result.tokens.map((token, position) => [position, noFormula(token.text || token.piece), result.per_token[position] ?? null]);
  return `${head.join("\n")}\n${csvOf([["position", "token", "change"], ...rows])}`;
}

/** A text that a spreadsheet does not take for a formula: a token's text is not ours to trust. */
function noFormula(text: string): string {
  return /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
}
