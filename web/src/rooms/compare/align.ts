// Which tokens of two texts are the same: a longest common subsequence of their texts.
//
// Why: "the cat sat" and "the black cat sat" differ by one token, and every weight between the others can still be
// compared. Equal beginnings and ends are matched first, so that two long texts with one change in the middle cost
// nothing; what is left is a table of at most `MOST_CELLS`, beyond which it is said that no alignment was made.

const MOST_CELLS = 4_000_000;

export interface Alignment {
  /** Positions that are the same token, ascending on both sides. */
  pairs: [number, number][];
  onlyA: number[];
  onlyB: number[];
  /** Whether the texts are the same token for token. */
  same: boolean;
}

/** The alignment, or null where the texts are too long and too different for one. */
export function align(a: readonly string[], b: readonly string[]): Alignment | null {
  let begin = 0;
  while (begin < a.length && begin < b.length && a[begin] === b[begin]) begin += 1;
  let end = 0;
  while (end < a.length - begin && end < b.length - begin && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
  const middle = common(a.slice(begin, a.length - end), b.slice(begin, b.length - end));
  if (!middle) return null;
  const pairs: [number, number][] = [];
  for (let at = 0; at < begin; at += 1) pairs.push([at, at]);
  for (const [i, j] of middle) pairs.push([begin + i, begin + j]);
  for (let at = end; at > 0; at -= 1) pairs.push([a.length - at, b.length - at]);
  const inA = new Set(pairs.map(([i]) => i));
  const inB = new Set(pairs.map(([, j]) => j));
  return {
    pairs,
    onlyA: a.map((_, i) => i).filter((i) => !inA.has(i)),
    onlyB: b.map((_, j) => j).filter((j) => !inB.has(j)),
    same: pairs.length === a.length && a.length === b.length,
  };
}

/** What to say of an alignment: which tokens are on one side alone. */
export function alignmentInWords(
  found: Alignment | null,
  a: readonly string[],
  b: readonly string[],
): { words: string; drawn: boolean } {
  if (!found) {
    return { words: "The two texts are long and differ too much to be aligned: no difference can be drawn.", drawn: false };
  }
  if (found.same) return { words: "Both sides have the same tokens.", drawn: true };
  if (!found.pairs.length) return { words: "The two texts have no token in common: no difference can be drawn.", drawn: false };
  const only = [side("A", found.onlyA, a), side("B", found.onlyB, b)].filter((text) => text);
  const shared = `${found.pairs.length} token${found.pairs.length === 1 ? " is" : "s are"} on both sides`;
  return { words: `${shared}; ${only.join("; ")}.`, drawn: true };
}

function side(name: string, positions: readonly number[], tokens: readonly string[]): string {
  if (!positions.length) return "";
  const shown = positions.slice(0, 6).map((at) => `“${(tokens[at] ?? "").trim().slice(0, 20)}”`);
  const more = positions.length > shown.length ? ` and ${positions.length - shown.length} more` : "";
  return `only in ${name}: ${shown.join(" ")}${more}`;
}

/** Longest common subsequence by dynamic programming; null where the table would be too large. */
function common(a: readonly string[], b: readonly string[]): [number, number][] | null {
  if (!a.length || !b.length) return [];
  if (a.length * b.length > MOST_CELLS) return null;
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  const at = (i: number, j: number) => longest[i * width + j] ?? 0;
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      longest[i * width + j] = a[i] === b[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
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
    } else if (at(i + 1, j) >= at(i, j + 1)) i += 1;
    else j += 1;
  }
  return pairs;
}
