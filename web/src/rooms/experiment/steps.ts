// The operations on heads, the steps of a plan that apply them, in words, and the heads whose maps a plan can change.
//
// A step is exactly what POST /api/experiments takes. The words are those of the library (`manyheads.plan.describe`), put
// for readers who do not know it.
import type { AblateStep, PlanStep } from "../../lib/api/types";
import { layerName } from "./heads";

type AblateKind = AblateStep["kind"];
export type Step = PlanStep;
/** A step that names heads: what the grid can hold. */
export type HeadStep = Exclude<Step, { step: "skip_positions" }>;

export type Operation = AblateKind | "scale" | "average" | "copy" | "skip_output_projection";

interface OperationInfo {
  operation: Operation;
  title: string;
  words: string;
  /** What the operation does not show. */
  caveat: string;
}

/** The tokens that a streaming head sees where a step does not say how many: the server's own defaults. */
const SINK = 128, RECENT = 256;

export const OPERATIONS: readonly OperationInfo[] = [
  { operation: "zero", title: "output set to zero", words: "The head’s output is replaced by zero.", caveat: "This also removes the head’s mean output, on which later layers may rely." },
  { operation: "mean", title: "output set to its mean", words: "The head gives the same output at every token: its mean over the text.", caveat: "The mean of its output stays; what depends on the token goes." },
  { operation: "resample", title: "output from another text", words: "The head’s output is taken from another text, at the same position.", caveat: "One draw; another seed gives another number." },
  { operation: "first", title: "all weight on the first token", words: "All of the head’s weight goes to the first token that it sees.", caveat: "This changes little in a head that rests there already." },
  { operation: "streaming", title: "only a short cache", words: "The head sees the text’s first tokens and the last ones up to each token, nothing between.", caveat: "For models that read from left to right. If the text is no longer than both together, nothing changes." },
  { operation: "scale", title: "scale the output", words: "The head’s output is multiplied by a factor.", caveat: "0 sets it to zero, 1 changes nothing, 2 doubles it." },
  { operation: "average", title: "share one map, their mean", words: "All ticked heads of a layer use the mean of their maps; each keeps its own values.", caveat: "A layer with a single ticked head stays as it is." },
  { operation: "copy", title: "use one head’s map", words: "All ticked heads of a layer use the map of one of them; each keeps its own values.", caveat: "They look at the same words, and still read different values." },
  { operation: "skip_output_projection", title: "skip the output projection", words: "The heads’ outputs go on side by side, unmixed, as if the output projection were not there.", caveat: "A model is trained with its projection: some of the change is the loss of its scale and basis." },
];

/** A stored value as the steps of a plan; null if it is empty or is no such list. */
export function stepsIn(value: unknown): Step[] | null {
  const isStep = (step: unknown) => typeof step === "object" && step !== null && typeof (step as Record<string, unknown>)["step"] === "string";
  if (!Array.isArray(value) || !value.length || !value.every(isStep)) return null;
  // An address of an earlier page says nothing of a share: it meant all of it.
  return (value as Step[]).map((step) => (step.step === "copy" ? copy(step.heads, step.source, step.share ?? 1) : step));
}

export function operationInfo(operation: Operation): OperationInfo {
  const info = OPERATIONS.find((entry) => entry.operation === operation);
  if (!info) throw new RangeError(`${operation} cannot be done to heads`);
  return info;
}

export function operationOf(step: HeadStep): Operation {
  return step.step === "ablate" ? step.kind : step.step;
}

/** The heads that a step names; "" for one that names none. */
export function headsOf(step: Step): string {
  if (step.step === "skip_positions") return "";
  return step.step === "skip_output_projection" ? step.layer : step.heads;
}

/** Heads of the grammar for readers who do not know it: "L*" is "every head", "L*H0" "head 0 of every layer". */
export function headsInPlain(heads: string): string {
  return heads.split(", ").map((part) => {
    const [, stack, layer, head] = /^(?:(\w+):)?L(\*|\d+)(?:H(\d+|\d+-\d+))?$/.exec(part) ?? [];
    if (layer === undefined || (layer !== "*" && head !== undefined && !head.includes("-"))) return part; // one head: its name
    const where = layer === "*" ? (stack ? `of every ${stack} layer` : "of every layer") : `of ${stack ? `${stack} ` : ""}layer ${layer}`;
    if (head === undefined) return layer === "*" && !stack ? "every head" : `every head ${where}`;
    return head.includes("-") ? `heads ${head.replace("-", " to ")} ${where}` : `head ${head} ${where}`;
  }).join(", ");
}

/** "L3H7 uses", "heads 0 to 5 of layer 3 use": heads with a verb, one or several. */
function doing(heads: string, one: string, several: string): string {
  const words = headsInPlain(heads);
  return `${words} ${words.includes(",") || words.startsWith("heads ") || /H.*-/.test(words) ? several : one}`;
}

/** "set L3H7 to zero", "multiply L0H1 by 0.5". */
export function stepInWords(step: Step): string {
  const heads = headsInPlain(headsOf(step));
  const way = step.step === "copy" ? `${Math.round(100 * step.share)} %` : "";
  switch (step.step) {
    case "ablate":
      return {
        zero: `set ${heads} to zero`,
        mean: `set ${heads} to ${step.per_position ? "the mean of each position" : "the mean"}`,
        resample: `set ${heads} to the output from another text`,
        first: `all weight of ${heads} on the first token`,
        streaming: `${heads} on a cache of the first ${step.sink ?? SINK} and last ${step.recent ?? RECENT} tokens`,
      }[step.kind];
    case "scale":
      return `multiply ${heads} by ${step.factor}`;
    case "average":
      return `${headsInPlain(step.heads).replace(/^every head(?= of |$)/, "the heads").replace(/^the heads$/, "the heads of a layer")} use one map, their mean`;
    case "copy":
      return `${step.share === 1 ? doing(step.heads, "uses", "use") : doing(step.heads, `goes ${way} of the way to`, `go ${way} of the way to`)} the map of ${sourceInPlain(step.heads, step.source)}`;
    case "skip_output_projection":
      return `no output projection in ${step.layer === "L*" ? "any layer" : headsInPlain(step.layer).replace(/^every head of /, "")}`;
    case "skip_positions":
      return "no positions";
  }
}

/** The head that others copy: "its layer’s first head", "L1H0". */
function sourceInPlain(heads: string, source: string): string {
  const [, index] = /^L\*H(\d+)$/.exec(source) ?? [];
  if (heads !== "L*" || index === undefined) return headsInPlain(source);
  return index === "0" ? "its layer’s first head" : `its layer’s head ${index}`;
}

export function planInWords(steps: readonly Step[]): string {
  return steps.map(stepInWords).join("; ") || "nothing yet";
}

/** The steps that apply an operation to heads; `layers` are those with ticked heads, such as "L2" or "L*". */
export function stepsFor(
  operation: Operation,
  heads: string,
  options: { factor: number; source: string; layers: readonly string[]; seed: number; text: string; sink: number | null; recent: number | null },
): Step[] {
  switch (operation) {
    case "scale":
      return [{ step: "scale", heads, factor: options.factor }];
    case "average":
      return [{ step: "average", heads }];
    case "copy":
      return [copy(heads, options.source)];
    case "skip_output_projection":
      return options.layers.map((layer) => ({ step: "skip_output_projection", layer }));
    case "resample":
      return [ablate(heads, operation, { seed: options.seed, text: options.text.trim() ? options.text : null })];
    case "streaming":
      return [ablate(heads, operation, { sink: options.sink ?? SINK, recent: options.recent ?? RECENT })];
    default:
      return [ablate(heads, operation)];
  }
}

/** A step that gives heads the weights of another one, or a share of them. */
export function copy(heads: string, source: string, share = 1): Extract<Step, { step: "copy" }> {
  return { step: "copy", heads, source, share };
}

/** An ablation with all defaults of the server filled in, so that equal steps are equal values. */
export function ablate(heads: string, kind: AblateKind, options: Partial<AblateStep> = {}): AblateStep {
  return { step: "ablate", heads, kind, per_position: false, text: null, seed: 0, sink: null, recent: null, ...options };
}

/** The layers of ticked heads for steps on layers: "L*" for all layers of a stack if every layer has one, else one by one. */
export function layersOf(ticked: ReadonlySet<string>, layers: readonly { stack: string; layer: number }[]): string[] {
  const names = layers.map((layer) => layerName(layer.stack, layer.layer));
  const used = names.filter((name) => [...ticked].some((head) => head.startsWith(`${name}H`)));
  const stacks = [...new Set(layers.map((layer) => layer.stack))];
  if (used.length && used.length === names.length) return stacks.map((stack) => layerName(stack, "*"));
  return used;
}

/** A list with the item at `from` moved to `to`. */
export function reordered<T>(list: readonly T[], from: number, to: number): T[] {
  const item = list[from];
  if (item === undefined) return [...list];
  const items = list.filter((_, index) => index !== from);
  items.splice(Math.max(0, Math.min(to, items.length)), 0, item);
  return items;
}
