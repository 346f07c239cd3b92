// Tokens that two texts share, and places carried from one text to the other along them.
//
// "the cat sat" and "the black cat sat" differ by one token, and every weight between the others can still be compared.
// The alignment is a longest common subsequence. Equal beginnings and ends are matched first, so that two long texts with
// one change in the middle are cheap; the table for what remains has at most `MOST_CELLS` cells.
import type { Zoom } from "../../lib/map/viewport";

const MOST_CELLS = 4_000_000;

export interface Alignment {
  /** Positions that are the same token, ascending on both sides. */
  pairs: [number, number][];
  onlyA: number[];
  onlyB: number[];
  /** Whether the texts are the same token for token. */
  same: boolean;
}

/** The alignment of two lists of tokens; null where they are too long and too different for a table of `MOST_CELLS`. */
export function align(a: readonly string[], b: readonly string[]): Alignment | null {
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin += 1;
  let end = 0;
  while (end < a.length - begin && end < b.length - begin && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = common(a.slice(begin, a.length - end), b.slice(begin, b.length - end));
  if (!middle) return null;
  const pairs: [number, number][] = [];
  for (let i = 0; i < begin; i += 1) pairs.push([i, i]);
  for (const [i, j] of middle) pairs.push([begin + i, begin + j]);
  for (let i = end; i > 0; i -= 1) pairs.push([a.length - i, b.length - i]);
  const inA = new Set(pairs.map(([i]) => i));
  const inB = new Set(pairs.map(([, j]) => j));
  return {
    pairs,
    onlyA: a.map((_, i) => i).filter((i) => !inA.has(i)),
    onlyB: b.map((_, j) => j).filter((j) => !inB.has(j)),
    same: pairs.length === a.length && a.length === b.length,
  };
}

/** An alignment in words, with the tokens that only one side has; `drawn`: whether a difference can be drawn. */
export function alignmentInWords(
  alignment: Alignment | null,
  a: readonly string[],
  b: readonly string[],
): { words: string; drawn: boolean } {
  if (!alignment) {
    return { words: "The two texts are long and differ too much to be aligned: no difference can be drawn.", drawn: false };
  }
  if (alignment.same) return { words: "Both sides have the same tokens.", drawn: true };
  if (!alignment.pairs.length) return { words: "The two texts have no token in common: no difference can be drawn.", drawn: false };
  const only = [side("A", alignment.onlyA, a), side("B", alignment.onlyB, b)].filter((text) => text);
  const shared = `${alignment.pairs.length} token${alignment.pairs.length === 1 ? " is" : "s are"} on both sides`;
  return { words: `${shared}; ${only.join("; ")}.`, drawn: true };
}

function side(name: string, positions: readonly number[], tokens: readonly string[]): string {
  if (!positions.length) return "";
  const quoted = positions.slice(0, 6).map((position) => `“${(tokens[position] ?? "").trim().slice(0, 20)}”`);
  const more = positions.length > quoted.length ? ` and ${positions.length - quoted.length} more` : "";
  return `only in ${name}: ${quoted.join(" ")}${more}`;
}

/** Longest common subsequence by dynamic programming over suffixes; null where the table would be too large. */
function common(a: readonly string[], b: readonly string[]): [number, number][] | null {
  if (!a.length || !b.length) return [];
  if (a.length * b.length > MOST_CELLS) return null;
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  const lengthAt = (i: number, j: number) => longest[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j] ? lengthAt(i + 1, j + 1) + 1 : Math.max(lengthAt(i + 1, j), lengthAt(i, j + 1));
    }
  }
  const pairs: [number, number][] = [];
  let i = 0;
  let j = 0;
  while (i < a.length && j < b.length) {
    if (a[i] === b[j]) {
      pairs.push([i, j]);
      i += 1;
      j += 1;
    } else if (lengthAt(i + 1, j) >= lengthAt(i, j + 1)) i += 1;
    else j += 1;
  }
  return pairs;
}

/** The three maps of Compare: side A, side B, and their difference D, whose cells are the shared tokens. */
export type Panel = "a" | "b" | "d";

/** Places of one panel on another. Where the texts are the same, places are the same; where they differ, a place is carried
    along the aligned pairs and interpolated between them. */
export class Correspondence {
  readonly #positions: Record<Panel, Float64Array>;
  readonly #pairs: Record<"a" | "b", Map<number, number>>;

  constructor(readonly alignment: Alignment) {
    const { pairs } = alignment;
    this.#positions = {
      a: Float64Array.from(pairs, ([i]) => i),
      b: Float64Array.from(pairs, ([, j]) => j),
      d: Float64Array.from(pairs, (_, pair) => pair),
    };
    this.#pairs = { a: new Map(pairs.map(([i], pair) => [i, pair])), b: new Map(pairs.map(([, j], pair) => [j, pair])) };
  }

  /** The position of a token on another panel, or null where that panel does not have it. */
  token(position: number, from: Panel, to: Panel): number | null {
    if (from === to) return position;
    const pair = from === "d" ? position : this.#pairs[from].get(position);
    return pair === undefined ? null : (this.#positions[to][pair] ?? null);
  }

  /** A coordinate on another panel: interpolated between the pairs, and beyond them with a stride of 1. */
  along(x: number, from: Panel, to: Panel): number {
    const [source, target] = [this.#positions[from], this.#positions[to]];
    if (from === to || this.alignment.same || !source.length) return x;
    let low = 0;
    let high = source.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (source[middle]! <= x) low = middle;
      else high = middle - 1;
    }
    const offset = x - source[low]!;
    if (offset <= 0 || low === source.length - 1) return target[low]! + offset;
    const share = offset / (source[low + 1]! - source[low]!);
    return target[low]! + share * (target[low + 1]! - target[low]!);
  }

  zoom(zoom: Zoom | null, from: Panel, to: Panel): Zoom | null {
    if (!zoom || from === to) return zoom;
    return { x: this.along(zoom.x, from, to), y: this.along(zoom.y, from, to), scale: zoom.scale };
  }
}
