// A result in words and in numbers: the change, the interval, the random-heads control beside it, CSV.
//
// A change by itself says little: removing any head changes something. So it is never said without its control.
import { csvOf } from "../../lib/export";
import type { Experiment, Token } from "../../lib/types";
import { planInWords, type Step } from "./steps";

/** What is needed of an `Experiment`. */
export type ResultLike = Pick<
  Experiment, "plan" | "metric" | "unit" | "change" | "before" | "after" | "control" | "notes" | "per_token"
> & { tokens: readonly Pick<Token, "piece" | "text">[] };

/** Four significant digits, with a sign where it is a change. */
export function figure(value: number | null, signed = false): string {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const text = size === 0 ? "0" : size >= 1000 || size < 0.0001 ? value.toExponential(2) : Number(value.toPrecision(3)).toString();
  const plain = text.replace("-", "−");
  return signed && value > 0 ? `+${plain}` : plain;
}

export function withUnit(value: number | null, unit: string, signed = false): string {
  const said = figure(value, signed);
  return said === "–" || !unit ? said : `${said} ${unit}`;
}

/** Changes below this are what adding numbers in another order makes. */
const ROUNDING = 1e-9;
/** Below this a token's change is not coloured: as the largest of its text it would look like one. */
export const FAINTEST = 1e-6;
/** Random sets that a run asks for, where it does not say. */
export const ASKED = 10;

/** What a control draws for a plan: other heads, or other layers where the plan is on layers alone. */
export function drawnIn(plan: readonly Step[]): "heads" | "layers" {
  return plan.length && plan.every((step) => step.step === "skip_output_projection") ? "layers" : "heads";
}

/** Why no control can exist, before anything is run: each of its sets is of as many heads, and of none of the plan's. */
export function uncontrolled(planned: number, total: number, things: string): string | null {
  if (planned === total) return `no control: a plan on all ${things} leaves none to draw`;
  return 2 * planned > total ? `no control: fewer ${things} are left than the plan changes` : null;
}

interface ControlSummary {
  mean: number;
  low: number;
  high: number;
  /** Sets that changed it at least as much, up or down. */
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

/** What the control says about a change, in a sentence a person can take away. */
export function controlInWords(result: ResultLike, asked = ASKED): string {
  const found = summary(result.control, result.change);
  const things = drawnIn(result.plan);
  if (!found) {
    const told = (result.notes["control"] ?? "none were asked for").replace(/^none: /, "");
    const why = told.replace(/^too few heads are left beside those of .*$/s, `too few other ${things} are left to draw from`);
    return `No control: ${why}. So it cannot be said whether any other ${things} would have changed as much.`;
  }
  const said = (value: number) => withUnit(settled(value), result.unit, true);
  const [low, high] = [settled(found.low), settled(found.high)];
  const beside = low === high ? said(found.mean) : `${said(found.mean)} on average (${figure(low, true)} to ${figure(high, true)})`;
  const few = found.count < asked ? ` There ${found.count === 1 ? "is" : "are"} only ${found.count} other set${found.count === 1 ? "" : "s"} to draw.` : "";
  return `The same done to as many random ${things} changed it by ${beside}. ${verdict(found, result.change, things)}${few}`;
}

function verdict(found: ControlSummary, change: number, things: string): string {
  const sets = found.count === 1 ? "the one random set" : `${found.count} random sets`;
  if (isRounding(change)) return "Here nothing changes (differences of rounding only).";
  if (found.above === 0) {
    const better = change < 0 ? " Here it is for the better." : "";
    return `${found.count === 1 ? "Not even" : "None of"} ${sets} changed it as much, up or down: these ${things} matter more than most.${better}`;
  }
  if (found.above === found.count && found.count > 1) return `All of ${sets} changed it at least as much, up or down: these ${things} matter less than most.`;
  return `${found.count === 1 ? "The one random set" : `${found.above} of ${sets}`} changed it at least as much, up or down.`;
}

/** Whether a change is nothing but rounding. */
export function isRounding(change: number): boolean {
  return Math.abs(change) < ROUNDING;
}

/** A number with rounding taken as the 0 that it is. */
export function settled(value: number): number {
  return isRounding(value) ? 0 : value;
}

/** The largest absolute change of a token; 0 where there is none. */
export function largestChange(values: readonly (number | null)[]): number {
  return values.reduce<number>((most, value) => Math.max(most, Math.abs(value ?? 0)), 0);
}

/** A line a token, the experiment's numbers in front as comments: readable by every spreadsheet. */
export function resultCsv(result: ResultLike): string {
  const head = [
    `# plan: ${planInWords(result.plan)}`,
    `# ${result.metric}${result.unit ? ` (${result.unit})` : ""}: change ${result.change}, before ${result.before ?? ""}, after ${result.after ?? ""}`,
    `# control (random heads): ${result.control.join(" ")}`,
  ].map((line) => line.replace(/[\r\n]+/g, " "));
  const rows = result.tokens.map((token, at) => [at, noFormula(token.text || token.piece), result.per_token[at] ?? null]);
  return `${head.join("\n")}\n${csvOf([["position", "token", "change"], ...rows])}`;
}

/** A text that a spreadsheet does not compute. */
function noFormula(text: string): string {
  return /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
}
