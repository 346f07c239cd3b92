// The labels of a map's rulers: every token where there is room, each word at its first piece, or every 2nd, 5th, 10th position.
import type { Token, WordInfo } from "../api/types";
import { ticks, visibleRange } from "../map/viewport";
import { label, short } from "./format";

export interface RulerLabel {
  position: number;
  /** Pixels along the ruler of the middle of the labelled cell. */
  middle: number;
  /** First and last pixel of a word of several pieces, for a line beside them; null for a single piece. */
  stretch: [number, number] | null;
  text: string;
  /** Positions that the label stands for: 1 where every token has its own. */
  span: number;
  special: boolean;
}

const LONGEST = 18; // characters

export function rulerLabels(
  n: number, start: number, scale: number, length: number, room: number,
  tokens: readonly Token[] | null, words: readonly WordInfo[] | null,
): RulerLabel[] {
  if (words?.length && tokens && scale * 4 >= room) return wordLabels(start, scale, length, room, tokens, words, n);
  return ticks(n, start, scale, length, room).map(({ position, span, middle }) => ({
    position, middle, span, stretch: null, text: tokens ? label(tokens[position], LONGEST) : "",
    special: tokens?.[position]?.special ?? false,
  }));
}

/** A label for each word at its first token, and for each token of no word. Labels that would collide are left out. */
function wordLabels(
  start: number, scale: number, length: number, room: number,
  tokens: readonly Token[], words: readonly WordInfo[], n: number,
): RulerLabel[] {
  const labels: RulerLabel[] = [];
  let last = -Infinity;
  const add = (begin: number, end: number, text: string, special: boolean) => {
    const middle = start + (begin + 0.5) * scale;
    if (middle < 0 || middle > length || middle - last < room) return;
    last = middle;
    const stretch: [number, number] | null = end - begin > 1 ? [start + begin * scale, start + end * scale] : null;
    labels.push({ position: begin, middle, stretch, text: short(text, LONGEST), span: end - begin, special });
  };
  const [first, end] = visibleRange(n, start, scale, length);
  let next = lowerBound(words, first);
  for (let position = first; position < end; ) {
    const word = words[next];
    if (word && word.begin <= position && word.end > position) {
      const unknown = tokens.slice(word.begin, word.end).find((token) => token.unknown);
      const text = unknown && unknown.piece !== word.text ? `${short(word.text, LONGEST - unknown.piece.length - 1)} ${unknown.piece}` : word.text;
      add(word.begin, word.end, text, false);
      position = word.end;
      next += 1;
    } else {
      add(position, position + 1, label(tokens[position], LONGEST), tokens[position]?.special ?? false);
      position += 1;
      while (words[next] && words[next]!.end <= position) next += 1;
    }
  }
  return labels;
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
