// Numbers and tokens as text for the reader. A missing number is "none".
import type { Token } from "../api/types";

const NONE = "none";

/** A small number with three figures and all its zeros, as a sentence has it: 0.0000162, never 1.62e-5. */
export function small(value: number): string {
  const LEAST = 1e-9;
  if (Math.abs(value) < LEAST) return `${value < 0 ? "> \u2212" : "< "}0.000000001`;
  return value.toLocaleString("en", { maximumSignificantDigits: 3, maximumFractionDigits: 12 });
}

/** A weight, or another share of 1, with four decimals, or three figures: 0.0312, 0.000000120. */
export function weight(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0) return "0";
  return Math.abs(value) < 1e-4 ? small(value) : value.toFixed(4);
}

/** A number of any unit in about four figures: 12,345, 37.42, 0.0312. */
export function number(value: number | null | undefined, figures = 4): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15) return value.toExponential(2);
  if (size < 1e-4) return small(value);
  if (Number.isInteger(value) || size >= 10 ** figures) return Math.round(value).toLocaleString("en");
  return value.toLocaleString("en", { maximumSignificantDigits: figures });
}

/** A share as every sentence has it, half rounded away from zero: "68 %", "67.7 %", "−3 %"; one above 0 that rounds to 0 is "< 1 %".
    The library's `percent` has the same rules. */
export function percent(value: number | null | undefined, digits = 0): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const steps = 10 ** digits;
  const size = Math.floor(Math.abs(value) * 100 * steps + 0.5) / steps;
  if (size === 0 && value > 0) return `< ${(1 / steps).toFixed(digits)} %`;
  return `${value < 0 && size ? "\u2212" : ""}${size.toFixed(digits)} %`;
}

/** Numbers of one line with the same number of decimals: about `figures` figures of the largest. */
export function alike(values: readonly (number | null | undefined)[], figures = 3): string[] {
  const largest = Math.max(0, ...values.map((value) => (Number.isFinite(value) ? Math.abs(value!) : 0)));
  const decimals = largest ? Math.max(0, Math.min(8, figures - 1 - Math.floor(Math.log10(largest)))) : 0;
  const options = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return values.map((value) => (Number.isFinite(value) ? value!.toLocaleString("en", options).replace("-", "\u2212") : NONE));
}

/** A number with its sign, for differences. */
export function signed(value: number | null | undefined, figures = 3): string {
  const text = number(value, figures);
  return text === NONE || !(value! > 0) ? text.replace("-", "\u2212") : `+${text}`;
}

/** Which turn of its text a place is, from 1; 0 where the same text stands nowhere else among `texts`. */
export function turnOf(texts: readonly string[], index: number): number {
  const places = texts.flatMap((other, i) => (other === texts[index] ? [i] : []));
  return places.length > 1 ? places.indexOf(index) + 1 : 0;
}

/** Every text's turn, as `turnOf` says it. */
export function turnsOf(texts: readonly string[]): number[] {
  const [total, turns] = [new Map<string, number>(), new Map<string, number>()];
  for (const text of texts) total.set(text, (total.get(text) ?? 0) + 1);
  return texts.map((text) => {
    const turn = (turns.get(text) ?? 0) + 1;
    turns.set(text, turn);
    return total.get(text)! > 1 ? turn : 0;
  });
}

const ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth"];

function ending(turn: number): string {
  return turn % 100 > 10 && turn % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][turn % 10] ?? "th");
}

/** A word as a sentence names it, "the second “to”", as the library's `SpacedWord.in_sentences` does. */
export function inSentence(text: string, turn: number, quotes = "“”", special = false): string {
  const name = special ? text : `${quotes[0]}${text}${quotes[1]}`;
  return turn ? `the ${ORDINALS[turn - 1] ?? `${turn}${ending(turn)}`} ${name}` : name;
}

/** A word as a list names it: "to, 2nd", and of a mark "“,” 2nd". */
export function inList(text: string, turn: number): string {
  const isWord = /[\p{L}\p{N}]$/u.test(text);
  return turn ? `${isWord ? `${text},` : `“${text}”`} ${turn}${ending(turn)}` : text;
}

/** A sentence's first letter as a capital. */
export function upper(words: string): string {
  return words.replace(/^./u, (letter) => letter.toUpperCase());
}

export function count(n: number, singular: string, plural = `${singular}s`): string {
  return `${n.toLocaleString("en")} ${n === 1 ? singular : plural}`;
}

/** What a bracket or a gap between heads means: "3 query heads share one key/value head". */
export function sharedBy(numQueryHeads: number): string {
  return `${count(numQueryHeads, "query head")} share one key/value head`;
}

/** Words for a token that stands for any text that the tokenizer has no piece for. */
export const UNKNOWN = "the model does not know this token";

/** A token as people read it; an unknown one shows its piece after what was written: "😀 [UNK]". The server makes labels:
    what marks of a vocabulary mean is known there. */
export function visible(token: Token | undefined): string {
  if (!token) return "";
  const label = oneLine(token.label);
  return lost(token) ? `${label} ${token.piece}` : label;
}

/** Text without what would break a line or show nothing. */
function oneLine(text: string): string {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u2028\u2029]/g, "\ufffd");
}

/** Whether a token needs two names: what was written, and the piece that the model reads instead. */
function lost(token: Token): boolean {
  return token.unknown && token.text.trim() !== "" && token.text !== token.piece;
}

const segmenter = typeof Intl !== "undefined" && "Segmenter" in Intl ? new Intl.Segmenter() : null;

/** At most `most` characters as people count them (a family emoji is one), with "…" at the end of a cut text. */
export function short(text: string, most = 16): string {
  if (text.length <= most) return text;
  const head = text.slice(0, most * 12); // long enough for any cluster of code points, and a 4,000-character token stays cheap
  const parts = segmenter ? Array.from(segmenter.segment(head), (part) => part.segment) : Array.from(head);
  return parts.length <= most && head.length === text.length ? text : `${parts.slice(0, Math.max(1, most - 1)).join("")}…`;
}

/** A token as a label: blanks visible, at most `most` characters. */
export function label(token: Token | undefined, most = 16): string {
  if (!token || !lost(token)) return short(visible(token), most);
  return `${short(oneLine(token.label), Math.max(2, most - token.piece.length - 1))} ${token.piece}`;
}

const turns = new WeakMap<readonly Token[], number[]>();

function turnAt(tokens: readonly Token[], place: number): number {
  let all = turns.get(tokens);
  if (!all) turns.set(tokens, (all = turnsOf(tokens.map((token) => label(token)))));
  return all[place] ?? 0;
}

/** A token of a text as a list names it: "John, 2nd" where it is there several times. */
export function called(tokens: readonly Token[], place: number): string {
  return inList(label(tokens[place]), turnAt(tokens, place));
}

/** A token of a text as a sentence names it: "the second “John”"; the tokenizer's own, such as [CLS], without quotes. */
export function quoted(tokens: readonly Token[], place: number): string {
  return inSentence(label(tokens[place]), turnAt(tokens, place), "“”", tokens[place]?.special);
}

/** The same without its turn, for where room is short. */
export function quotedAlone(tokens: readonly Token[], place: number): string {
  return inSentence(label(tokens[place]), 0, "“”", tokens[place]?.special);
}

/** Labels of some places of a text for a list: those that the list has twice carry their turn in the text, "John, 2nd". */
export function labelsOf(tokens: readonly Token[], places: readonly number[], most = 16): Map<number, string> {
  const labels = places.map((place) => label(tokens[place], most));
  return new Map(places.map((place, i) => [place, labels.filter((other) => other === labels[i]).length > 1 ? called(tokens, place) : labels[i]!]));
}
