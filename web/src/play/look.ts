// The data of one look, as the routes `said/...` give it: which keys are shown, and what each of them is to the query.
import { float32, type Envelope } from "../lib/api/envelope";
import type { Token } from "../lib/api/types";
import { called, quoted, short } from "../lib/draw/format";

/** Where a look is: what the recording's description says of head, layer and text. */
export interface Place {
  head: string;
  /** Of the head in its layer. */
  index: number;
  numHeads: number;
  numKvHeads: number;
  /** "layer 3". */
  layer: string;
  /** The token that asks. */
  query: number;
  queries: readonly Token[];
  /** The tokens that can be looked at; fewer names than `numKeys` where keys are no text. */
  keys: readonly Token[];
  numQueries: number;
  numKeys: number;
  /** How a row of weights is computed from q and k; whether later tokens are hidden. */
  formula: string;
  causal: boolean;
  /** Of each head of the layer: the name of its role and that role's colour, where it has one. */
  roles: readonly ({ name: string; colour: string } | null)[];
}

/** What the headers of a head's and of a layer's envelope both say. */
export interface LookHeader {
  /** The token of each column; OTHERS stands for all that are not shown. */
  keys: number[];
  /** How many keys OTHERS stands for. */
  others: number;
  /** The columns' tokens as people read them. */
  tokens: string[];
  /** What q·k is multiplied by. */
  scale: number;
  softcap: number | null;
  /** Heads read the stream by way of a norm, or a norm follows the sum. */
  norm: "pre" | "post" | "none";
  /** A norm stands between the heads' sum and the stream. */
  branch_norm: boolean;
  /** q and k are turned by their positions; null where that is not known. */
  turned: boolean | null;
  /** The closing sentence, and the line of figures under it. */
  said: string;
  figures: string;
  /** Why values, or what is added to the stream, are missing. */
  because: string;
}

export const OTHERS = -1;
/** A learned sink: a share that goes to no key. */
export const NOBODY = -2;
const LONGEST = 14; // characters of a column's label

/** One column of a look. */
export interface Key {
  /** The token's place in the text, OTHERS or NOBODY. */
  token: number;
  /** As it stands in its text. */
  label: string;
  /** As a list names it: "John, 2nd"; a mark in quotes. */
  called: string;
  /** As a sentence names it: "the second “John”". */
  name: string;
  /** A parking spot: grey, where other words are in ink. */
  parking: boolean;
  /** The query cannot see it. */
  masked: boolean;
}

/** The columns of a look. `masked`: whether the query cannot see a column's key; `nobody`: whether a share goes to no key. */
export function keysOf(header: LookHeader, place: Place, masked: (column: number) => boolean, nobody: boolean): Key[] {
  const keys = header.keys.map((token, column) => {
    const entry = place.keys[token];
    const words = token === OTHERS ? `${header.others} others` : short(header.tokens[column] ?? String(token), LONGEST);
    const listed = entry ? called(place.keys, token) : words;
    const isMark = token >= 0 && listed === words && !/[\p{L}\p{N}]/u.test(words);
    return { token, label: words, called: isMark ? `“${words}”` : listed, name: entry ? quoted(place.keys, token) : token >= 0 ? `“${words}”` : words, parking: entry?.sink ?? false, masked: masked(column) };
  });
  return nobody ? [...keys, { token: NOBODY, label: "nobody", called: "nobody", name: "nobody", parking: true, masked: false }] : keys;
}

/** Where a look's share goes to no key: less is rounding. */
export const LEAST_MISSING = 1e-6;

/** The rows of a float32 array of an envelope, or null where it has none of that name. */
export function rowsOf(envelope: Envelope, name: string): Float32Array[] | null {
  if (!envelope.arrays[name]) return null;
  const { data, shape } = float32(envelope, name);
  const width = shape.at(-1)!;
  return Array.from({ length: data.length / Math.max(1, width) }, (_, row) => data.subarray(row * width, (row + 1) * width));
}

/** A float32 vector of an envelope, or null. */
export function vectorOf(envelope: Envelope, name: string): Float32Array | null {
  return envelope.arrays[name] ? float32(envelope, name).data : null;
}

/** How a vector of the stream is cut into strips: one for each head where that fits, else into strips that make a block. */
export function partsOf(length: number, place: Place): number {
  const perHead = length / place.numHeads;
  if (Number.isInteger(perHead) && perHead <= 96 && place.numHeads <= 32) return place.numHeads;
  let parts = Math.max(1, Math.round(Math.sqrt(length / 1.6)));
  while (length % parts) parts -= 1;
  return parts > 4 ? parts : Math.round(Math.sqrt(length / 1.6));
}
