// What can be done to heads, each said in one plain sentence, and steps of a plan in words.
//
// A step here is exactly what POST /api/experiments takes; the words are the library's own (`manyheads.plan.describe`),
// told for a person who has not read it.

import type { AblateStep, PlanStep } from "../../lib/types";
import { layerName } from "./heads";

type AblateKind = AblateStep["kind"];
export type Step = PlanStep;

export type Doing = AblateKind | "scale" | "average" | "copy" | "skip_output_projection";

interface DoingInfo {
  doing: Doing;
  title: string;
  words: string;
  /** Where it is easily over-read. */
  caveat: string;
}

export const DOINGS: readonly DoingInfo[] = [
  { doing: "zero", title: "silence", words: "The head says nothing: its output is zero.", caveat: "This also takes away what a head says on average, which later layers may count on." },
  { doing: "mean", title: "say the mean", words: "The head says the same at every word: its mean output over the text.", caveat: "What stays is what it says whatever the word; what goes is what depends on the word." },
  { doing: "resample", title: "say what it says elsewhere", words: "The head says what it says on another text, at the same position.", caveat: "One draw; another seed gives another number." },
  { doing: "first", title: "look at the first token", words: "All of the head's weight goes to the first token that it sees.", caveat: "For a head that mostly rests there already, this changes little." },
  { doing: "scale", title: "turn up or down", words: "What the head says is multiplied by a factor.", caveat: "0 is silence, 1 changes nothing, 2 says it twice as loud." },
  { doing: "average", title: "share their mean", words: "All ticked heads of a layer look where they look on average; each keeps its own values.", caveat: "A layer with a single ticked head stays as it is." },
  { doing: "copy", title: "copy one head's weights", words: "All ticked heads of a layer look where one of them looks; each keeps its own values.", caveat: "Where they look is shared; what they read there is not." },
  { doing: "skip_output_projection", title: "skip the output projection", words: "The heads' outputs go on side by side, unmixed, as if the output projection were not there.", caveat: "A model is trained with its projection: some of the change is the loss of its scale and basis." },
];

/** The steps of a plan that a text kept; null where it holds none, or something else. */
export function stepsIn(what: unknown): Step[] | null {
  const isStep = (each: unknown) => typeof each === "object" && each !== null && typeof (each as Record<string, unknown>)["step"] === "string";
  return Array.isArray(what) && what.length && what.every(isStep) ? (what as Step[]) : null;
}

export function infoOf(doing: Doing): DoingInfo {
  const found = DOINGS.find((info) => info.doing === doing);
  if (!found) throw new RangeError(`${doing} is nothing that can be done to heads`);
  return found;
}

export function doingOf(step: Step): Doing {
  return step.step === "ablate" ? step.kind : step.step;
}

export function headsOf(step: Step): string {
  return step.step === "skip_output_projection" ? step.layer : step.heads;
}

/** "silence L3H7", "multiply L0H1 by 0.5". */
export function stepInWords(step: Step): string {
  switch (step.step) {
    case "ablate":
      return {
        zero: `silence ${step.heads}`,
        mean: `${step.heads} say${step.per_position ? ", at each position," : ""} their mean`,
        resample: `${step.heads} say what they say elsewhere`,
        first: `${step.heads} look at the first token`,
      }[step.kind];
    case "scale":
      return `multiply ${step.heads} by ${step.factor}`;
    case "average":
      return `${step.heads} share their mean weights`;
    case "copy":
      return `${step.heads} use the weights of ${step.source}`;
    case "skip_output_projection":
      return `no output projection in ${step.layer}`;
  }
}

export function planInWords(steps: readonly Step[]): string {
  return steps.map(stepInWords).join("; ") || "nothing yet";
}

/** What is asked for a doing on some heads: `layers` are those that have ticked heads, as in "L2" or "L*". */
export function stepsFor(
  doing: Doing,
  heads: string,
  options: { factor: number; source: string; layers: readonly string[]; seed: number; text: string },
): Step[] {
  switch (doing) {
    case "scale":
      return [{ step: "scale", heads, factor: options.factor }];
    case "average":
      return [{ step: "average", heads }];
    case "copy":
      return [{ step: "copy", heads, source: options.source }];
    case "skip_output_projection":
      return options.layers.map((layer) => ({ step: "skip_output_projection", layer }));
    case "resample":
      return [ablate(heads, doing, { seed: options.seed, text: options.text.trim() ? options.text : null })];
    default:
      return [ablate(heads, doing)];
  }
}

/** An ablation with everything that the server would fill in, so that equal steps are equal values. */
export function ablate(heads: string, kind: AblateKind, more: Partial<AblateStep> = {}): AblateStep {
  return { step: "ablate", heads, kind, per_position: false, text: null, seed: 0, ...more };
}

/** The layers of ticked heads as a step on layers wants them: one "L*" for all of them, else each by itself. */
export function layersOf(ticked: ReadonlySet<string>, layers: readonly { stack: string; layer: number }[]): string[] {
  const names = layers.map((layer) => layerName(layer.stack, layer.layer));
  const used = names.filter((name) => [...ticked].some((head) => head.startsWith(`${name}H`)));
  const stacks = [...new Set(layers.map((layer) => layer.stack))];
  if (used.length && used.length === names.length) return stacks.map((stack) => layerName(stack, "*"));
  return used;
}

export function moved<T>(list: readonly T[], from: number, to: number): T[] {
  const rest = list.filter((_, at) => at !== from);
  const item = list[from];
  if (item === undefined) return [...list];
  rest.splice(Math.max(0, Math.min(to, rest.length)), 0, item);
  return rest;
}
