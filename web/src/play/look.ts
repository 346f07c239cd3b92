// The data of one look, as the routes `said/...` give it: which keys are shown, and what each of them is to the query.
import { float32, type Envelope } from "../lib/api/envelope";
import type { Token } from "../lib/api/types";
import { label } from "../lib/draw/format";
import type { Words } from "./scene";

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
  numKeys: number;
}

/** Fields of an envelope's header. */
export interface LookHeader {
  /** The token of each shown key; OTHERS stands for all that are not shown, NOBODY for a sink without a key. */
  keys: number[];
  /** What q·k is multiplied by. */
  scale: number;
  norm: "pre" | "post" | "none";
  /** q and k are those that attention received: turned by their positions. */
  turned: boolean;
  ending: Words;
}

export const OTHERS = -1;
export const NOBODY = -2;

/** One column of a look. */
export interface Key {
  /** The token's place in the text, OTHERS or NOBODY. */
  token: number;
  label: string;
  /** In a sentence. */
  name: string;
  /** A parking spot: grey, where other words are in ink. */
  parking: boolean;
  /** The query cannot see it. */
  masked: boolean;
}

/** The columns of a look in the order of the text: masked keys stand among them where the whole text is shown. */
export function keysOf(header: LookHeader, place: Place): Key[] {
  const others = place.numKeys - header.keys.filter((token) => token >= 0).length;
  const shown = header.keys.map((token) => keyOf(token, place, others));
  if (header.keys.includes(OTHERS)) return shown;
  const known = new Set(header.keys);
  const masked = Array.from({ length: place.numKeys }, (_, token) => token).filter((token) => !known.has(token));
  if (!masked.length || place.numKeys > MOST_WITH_MASKED) return shown;
  const all = [...shown, ...masked.map((token) => ({ ...keyOf(token, place, 0), masked: true }))];
  return all.sort((a, b) => (a.token < 0 ? Infinity : a.token) - (b.token < 0 ? Infinity : b.token));
}

const MOST_WITH_MASKED = 24; // columns

function keyOf(token: number, place: Place, others: number): Key {
  if (token === OTHERS) return { token, label: `${others} others`, name: `${others} others`, parking: false, masked: false };
  if (token === NOBODY) return { token, label: "nobody", name: "nobody", parking: true, masked: false };
  const entry = place.keys[token];
  const words = entry ? label(entry, 14) || "␣" : `${token}`;
  return { token, label: words, name: entry && !entry.special ? `“${words}”` : words, parking: entry?.sink ?? false, masked: false };
}

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
