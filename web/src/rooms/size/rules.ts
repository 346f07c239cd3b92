// What can be said against numbers before the library is asked: in plain words, beside the slider it is about. Whatever is
// not known here, the library says.
import { whole } from "./units";
import { SLIDERS, type Words } from "./words";

export interface Objection {
  words: string;
  /** The slider's id; null where it is about no single one. */
  slider: string | null;
}

/** What is wrong with a description, said at the slider that was moved last where that is one of those it is about. */
export function objection(words: Words, moved: string): Objection | null {
  const [width, heads, shared] = [words.embed_dim, words.num_heads, words.num_kv_heads].map(Number) as [number, number, number];
  const wrong = SLIDERS.find(({ name, part }) => part === "model" && name in words && name !== "ffn_dim" && name !== "vocab_size" && !(Number(words[name]) >= 1 && Number.isInteger(words[name])));
  if (wrong) return { slider: wrong.id, words: "A whole number, 1 or more." };
  const beside = (...names: string[]) => idOf(names.includes(moved) ? moved : (names[0] ?? ""));
  if (shared > heads || heads % shared) {
    const slider = beside("num_kv_heads", "num_heads");
    return { slider, words: `KV heads must divide the heads evenly: ${whole(heads)} heads cannot share ${whole(shared)}. ${nearest("KV heads", heads, shared)}` };
  }
  if (!words.head_dim && width % heads) {
    const [below, above] = [Math.floor(width / heads) * heads, Math.ceil(width / heads) * heads];
    return { slider: beside("embed_dim", "num_heads"), words: `The width must be a multiple of the heads: ${whole(width)} is none of ${whole(heads)}. Widths that are: ${below ? `${whole(below)} and ` : ""}${whole(above)}.` };
  }
  return null;
}

/** A typed number, or what is wrong with it; a number above the most is taken as the most, and that is said. */
export function typedNumber(text: string, least: number, most: number): { value: number | null; words: string | null } {
  const plain = text.replace(/[\s,_]/g, "");
  if (!/^\d+$/.test(plain) || Number(plain) < least) return { value: null, words: `A whole number, ${least} or more.` };
  const number = Number(plain);
  return number > most ? { value: most, words: `${whole(most)} is the most here.` } : { value: number, words: null };
}

/** The library's words with its own names said as the sliders say them. */
export function inPlainWords(problem: string): string {
  const named = SLIDERS.reduce((text, { name, label }) => text.replace(new RegExp(`\\b${name}=(\\d+)`, "g"), `${label} ($1)`).replace(new RegExp(`\\b${name}\\b`, "g"), label), problem);
  return named.replace(/\bhead_dim\b/g, "the width of a head");
}

function idOf(name: string): string | null {
  return SLIDERS.find((slider) => slider.name === name)?.id ?? null;
}

/** The divisors of `of` that are nearest to a number, from either side. */
function nearest(what: string, of: number, to: number): string {
  const divisors = Array.from({ length: Math.min(of, 4096) }, (_, at) => at + 1).filter((each) => of % each === 0);
  const [below, above] = [divisors.filter((each) => each < to).at(-1), divisors.find((each) => each > to)];
  const fit = [below, above].filter((each) => each !== undefined).map(whole);
  return `${what} that do: ${fit.join(" and ")}.`;
}
