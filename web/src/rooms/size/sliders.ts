// The sliders of the Size room: their values, the description of a model that they show and change, and what is wrong with a
// description in plain words, before the library is asked.
//
// A slider runs over a list of common values (powers of two and some between), not over every number: 1 to 128 layers and
// 64 to 32,768 wide both take a short movement. Any whole number can be typed beside it.
import { divisors } from "./arithmetic";
import { integer } from "./units";

/** A description of a model: the words of `manyheads size`. */
export type Words = Record<string, number | boolean | string | null>;

export interface SliderSpec {
  /** The word in the description, or "context" or "batch", which are not part of the model. */
  name: string;
  /** For the test id. */
  id: string;
  label: string;
  unit: string;
  why: string;
  stops: readonly number[];
  /** The largest number that can be typed: the largest that the library draws. */
  most: number;
  /** The part of the form: the model, or its use. */
  part: "model" | "ask";
}

const ascending = (numbers: readonly number[]) => [...new Set(numbers)].sort((a, b) => a - b);
const powers = (from: number, to: number, factors: readonly number[] = []) => {
  const values: number[] = [];
  for (let power = from; power <= to; power *= 2) {
    values.push(power, ...factors.map((factor) => power * factor).filter((value) => value <= to && Number.isInteger(value)));
  }
  return ascending(values);
};
const upTo = (last: number) => Array.from({ length: last }, (_, i) => i + 1);

export const MOST_CONTEXT = 100_000_000;
export const MOST_BATCH = 1_000_000;

export const SLIDERS: readonly SliderSpec[] = [
  { name: "num_layers", id: "layers", label: "layers", unit: "", why: "attention and feed-forward, one after the other", stops: [...upTo(48), 52, 56, 60, 61, 64, 72, 80, 96, 112, 126, 128], most: 512, part: "model" },
  { name: "embed_dim", id: "width", label: "width", unit: "", why: "numbers that stand for one token (m)", stops: powers(64, 32_768, [1.25, 1.5, 1.75]), most: 10_000_000, part: "model" },
  { name: "num_heads", id: "heads", label: "heads", unit: "", why: "query heads of a layer (h)", stops: ascending([...upTo(16), ...powers(16, 128, [1.25, 1.5, 1.75])]), most: 10_000_000, part: "model" },
  { name: "num_kv_heads", id: "kv-heads", label: "KV heads", unit: "", why: "key/value heads that the query heads share (g)", stops: ascending([...upTo(16), ...powers(16, 128, [1.25, 1.5, 1.75])]), most: 10_000_000, part: "model" },
  { name: "ffn_dim", id: "ffn", label: "feed-forward", unit: "", why: "width of the feed-forward between its matrices", stops: [0, ...powers(128, 131_072, [1.25, 1.5, 1.75])], most: 10_000_000, part: "model" },
  { name: "vocab_size", id: "vocab", label: "vocabulary", unit: "", why: "tokens that the model knows", stops: [1_000, 2_000, 4_000, 8_000, 16_000, 30_522, 32_000, 50_257, 64_000, 100_277, 128_000, 128_256, 151_936, 200_064, 256_000, 262_144], most: 10_000_000, part: "model" },
  { name: "context", id: "context", label: "context", unit: "tokens", why: "tokens of a text whose keys and values are kept", stops: powers(128, 1_048_576, [1.5]), most: MOST_CONTEXT, part: "ask" },
  { name: "batch", id: "batch", label: "batch", unit: "texts", why: "texts at a time", stops: powers(1, 512, [1.5]), most: MOST_BATCH, part: "ask" },
];

export const DTYPES = ["fp32", "bf16", "fp16", "fp8", "int8", "int4"] as const;

/** The index of the stop nearest to a value, by ratio. */
export function nearestStop(stops: readonly number[], value: number): number {
  const distance = (stop: number) => Math.abs(Math.log(stop + 1) - Math.log(value + 1));
  return stops.reduce((best, stop, i) => (distance(stop) < distance(stops[best] ?? 0) ? i : best), 0);
}

/** A description with the library's defaults in place of missing words: what the sliders show. */
export function withDefaults(words: Words): Words {
  const heads = number(words.num_heads, 8);
  const width = number(words.embed_dim, 512);
  return {
    ...words,
    num_layers: number(words.num_layers, 6),
    embed_dim: width,
    num_heads: heads,
    num_kv_heads: number(words.num_kv_heads, heads),
    ffn_dim: number(words.ffn_dim, 4 * width),
    gated: words.gated === true,
    vocab_size: number(words.vocab_size, 0),
  };
}

/** A description for POST /api/sizes: without words that are null, and without zeros (0 has a meaning for `ffn_dim` alone). */
export function compact(words: Words): Record<string, number | boolean | string> {
  const entries = Object.entries(words).filter(([name, value]) => value !== null && (value !== 0 || name === "ffn_dim"));
  return Object.fromEntries(entries) as Record<string, number | boolean | string>;
}

function number(value: number | boolean | string | null | undefined, fallback: number): number {
  return typeof value === "number" ? value : fallback;
}

export interface Objection {
  words: string;
  /** The id of the slider beside which the words stand; null for none. */
  slider: string | null;
}

/** What is wrong with a description. It stands beside the slider that was moved last, if the rule is about that one. */
export function objection(words: Words, moved: string): Objection | null {
  const [width, heads, shared] = [words.embed_dim, words.num_heads, words.num_kv_heads].map(Number) as [number, number, number];
  const invalid = SLIDERS.find(({ name, part }) => part === "model" && name in words && name !== "ffn_dim" && name !== "vocab_size" && !(Number(words[name]) >= 1 && Number.isInteger(words[name])));
  if (invalid) return { slider: invalid.id, words: "A whole number, 1 or more." };
  const beside = (...names: string[]) => idOf(names.includes(moved) ? moved : (names[0] ?? ""));
  if (shared > heads || heads % shared) {
    const slider = beside("num_kv_heads", "num_heads");
    return { slider, words: `KV heads must divide the heads evenly: ${integer(heads)} heads cannot share ${integer(shared)}. ${nearest("KV heads", heads, shared)}` };
  }
  if (!words.head_dim && width % heads) {
    const [below, above] = [Math.floor(width / heads) * heads, Math.ceil(width / heads) * heads];
    return { slider: beside("embed_dim", "num_heads"), words: `The width must be a multiple of the heads: ${integer(width)} is not a multiple of ${integer(heads)}. Widths that are: ${below ? `${integer(below)} and ` : ""}${integer(above)}.` };
  }
  return null;
}

/** A typed number ("4,096", "128k", "1M": k is 1,024), or what is wrong with it. Above `most` it becomes `most`, which is said. */
export function typedNumber(text: string, least: number, most: number): { value: number | null; words: string | null } {
  const [, digits = "", unit = ""] = /^(\d+)([km]?)$/i.exec(text.replace(/[\s,_]/g, "")) ?? [];
  const number = Number(digits) * 1024 ** ["", "k", "m"].indexOf(unit.toLowerCase());
  if (!digits || number < least) return { value: null, words: `A whole number, ${least} or more.` };
  return number > most ? { value: most, words: `${integer(most)} is the most here.` } : { value: number, words: null };
}

/** A message of the library with the labels of the sliders in place of its own names. */
export function inPlainWords(problem: string): string {
  const named = SLIDERS.reduce((text, { name, label }) => text.replace(new RegExp(`\\b${name}=(\\d+)`, "g"), `${label} ($1)`).replace(new RegExp(`\\b${name}\\b`, "g"), label), problem);
  return named.replace(/\bhead_dim\b/g, "the width of a head");
}

function idOf(name: string): string | null {
  return SLIDERS.find((slider) => slider.name === name)?.id ?? null;
}

/** A description from an address: its known words with values of their kind; null where one is missing or none of ours. */
export function readWords(content: unknown): Words | null {
  if (typeof content !== "object" || content === null) return null;
  const known = (name: string, value: unknown) => {
    const slider = SLIDERS.find((spec) => spec.name === name && spec.part === "model");
    if (slider || COUNTS.includes(name)) return value === null || (Number.isInteger(value) && (value as number) >= 0 && (value as number) <= (slider?.most ?? 10_000_000));
    return FLAGS.includes(name) ? typeof value === "boolean" : name === "name" || (name === "norm" && ["rms", "layer", "none"].includes(String(value)));
  };
  const words = content as Words;
  return ["num_layers", "embed_dim", "num_heads"].every((name) => typeof words[name] === "number") && Object.entries(words).every(([name, value]) => known(name, value)) ? words : null;
}

const COUNTS = ["head_dim", "num_experts", "experts_per_token", "learned_positions", "window"];
const FLAGS = ["gated", "causal", "qkv_bias", "o_bias", "ffn_bias", "tied"];

/** A sentence with the divisors of `n` next below and next above a number. */
function nearest(label: string, n: number, value: number): string {
  const all = divisors(n);
  const neighbours = [all.filter((divisor) => divisor < value).at(-1), all.find((divisor) => divisor > value)];
  return `${label} that do: ${neighbours.filter((divisor) => divisor !== undefined).map(integer).join(" and ")}.`;
}
