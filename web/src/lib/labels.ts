// What a map's rulers say: each token where there is room, or each word at its first piece, or every tenth, and so on.
import { label, short } from "./format";
import type { Token, WordInfo } from "./types";
import { seen, ticks } from "./viewport";

export interface RulerLabel {
  at: number;
  /** Pixels along the ruler of the middle of the cell that it stands at. */
  middle: number;
  /** Pixels from where to where the pieces of a word of several stand, for a line beside them. */
  stretch: [number, number] | null;
  text: string;
  /** Positions it stands for: 1 where every token has its own. */
  span: number;
  special: boolean;
}

const LONGEST = 18; // characters

export function rulerLabels(
  n: number, start: number, scale: number, length: number, room: number,
  tokens: readonly Token[] | null, words: readonly WordInfo[] | null,
): RulerLabel[] {
  if (words?.length && tokens && scale * 4 >= room) return wordLabels(start, scale, length, room, tokens, words, n);
  return ticks(n, start, scale, length, room).map(({ at, span, middle }) => ({
    at, middle, span, stretch: null, text: tokens ? label(tokens[at], LONGEST) : "", special: tokens?.[at]?.special ?? false,
  }));
}

/** Words at the first of their tokens; tokens of no word keep their own labels. Those that would collide are left out. */
function wordLabels(
  start: number, scale: number, length: number, room: number,
  tokens: readonly Token[], words: readonly WordInfo[], n: number,
): RulerLabel[] {
  const out: RulerLabel[] = [];
  let last = -Infinity;
  const put = (at: number, end: number, text: string, special: boolean) => {
    const middle = start + (at + 0.5) * scale;
    if (middle < 0 || middle > length || middle - last < room) return;
    last = middle;
    const stretch: [number, number] | null = end - at > 1 ? [start + at * scale, start + end * scale] : null;
    out.push({ at, middle, stretch, text: short(text, LONGEST), span: end - at, special });
  };
  const [first, end] = seen(n, start, scale, length);
  let next = lowerBound(words, first);
  for (let at = first; at < end; ) {
    const word = words[next];
    if (word && word.begin <= at && word.end > at) {
      const lost = tokens.slice(word.begin, word.end).find((token) => token.unknown);
      put(word.begin, word.end, lost && lost.piece !== word.text ? `${short(word.text, LONGEST - lost.piece.length - 1)} ${lost.piece}` : word.text, false);
      at = word.end;
      next += 1;
    } else {
      put(at, at + 1, label(tokens[at], LONGEST), tokens[at]?.special ?? false);
      at += 1;
      while (words[next] && words[next]!.end <= at) next += 1;
    }
  }
  return out;
}

/** The first word that ends after `position`. */
function lowerBound(words: readonly WordInfo[], position: number): number {
  let [low, high] = [0, words.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (words[middle]!.end <= position) low = middle + 1;
    else high = middle;
  }
  return low;
}
