// The program exact.js: maps computed from q, k and each row's log-sum-exp (lib/exact). Only pages without a server need it, when
// they hold such factors or a recording is dropped on them; it is no part of the first script. A single file holds it packed, a
// published folder has it beside studio.js.
import type { Envelope, EnvelopeArray } from "./envelope";
import { pageProgram } from "./program";
import type { Atlas, HeadCard, How, LayerInfo, Pair, RecordingInfo } from "./types";

/** A part of a map. `exact`: every row was read. */
export interface Grid {
  values: Float32Array;
  rows: number;
  columns: number;
  words: string;
  exact: boolean;
}

/** Queries from `top` to before `bottom`, keys from `left` to before `right`. */
export interface Window {
  top: number;
  bottom: number;
  left: number;
  right: number;
}

export interface Reading {
  level: number;
  how: How;
  /** Reads every row, however many cells there are. */
  every?: boolean;
  /** Cells beyond which rows are sampled. */
  most?: number;
  signal?: AbortSignal;
}

/** What the snapshot's header says of the factors. */
export interface FactorsHeader {
  dtype: "float16" | "float32";
  words: string;
  layers: {
    scale: number; softcap: number | null; width: number; value_width?: number | null; mask: number; bias: number | null;
    sinks?: number[] | null;
  }[];
}

/** One query's look in one head, with everything that it is made of. */
export interface RowLook {
  q: ArrayLike<number>;
  /** After scale, softcap and bias; -Infinity: hidden. */
  scores: Float64Array;
  weights: Float64Array;
  /** The log of the sum that weights are shares of; -Infinity: nothing is seen. */
  lse: number;
  bias: ArrayLike<number> | null;
  /** The score of a learned sink. */
  sink: number | null;
  scale: number;
  softcap: number | null;
  /** The key/value head. */
  group: number;
  key(place: number): ArrayLike<number>;
  /** Of a value; null where values are not kept, and `value` may not be called. */
  valueWidth: number | null;
  value(place: number): ArrayLike<number>;
}

/** What a layer adds to the residual stream at one token, as a page stored it. */
export interface StoredSum {
  adds: Float32Array[];
  before: Float32Array;
  /** "output_bias", "after", "normed", "beside", where there are such. */
  others: Partial<Record<string, Float32Array>>;
  wrote: number[];
  biasWrote: number | null;
  norm: string;
  branchNorm: boolean;
}

/** What is to be computed of one head, or of all heads of a layer. */
export interface SaidAsk {
  isLayer: boolean;
  /** "L3", and the head's number in it. */
  layer: string;
  head: number;
  /** Of that head, or of all heads. */
  looks: RowLook[];
  perGroup: number;
  group: number[];
  query: number;
  /** At most so many columns. */
  keys: number;
  /** The word that asks; the words of the keys, as they are called in a sentence; the keys' tokens as people read them. */
  me: string;
  units: { name: string; begin: number; end: number; parks: boolean }[];
  labels: readonly string[];
  readsItself: boolean;
  turned: boolean | null;
  sum: StoredSum | null;
  /** Why nothing is added; why there are no values. */
  because: string;
  unkept: string;
}

export type SaidArrays = Record<string, [Float32Array, ...number[]]>;

export interface Said {
  header: Record<string, unknown>;
  arrays: SaidArrays;
}

/** All maps of one text, computed when they are looked at. */
export interface MapFactors {
  /** How exact a weight is. */
  readonly words: string;
  /** What computes tiles, and why. */
  readonly computed: string;
  /** One row's weights, NaN where the mask hides the key; how many keys it sees, and what of its mass is at none. */
  row(layerIndex: number, head: number, query: number): { weights: Float32Array; visible: number; missing: number };
  /** A window of a head's map in blocks of `2^level` cells a side, by mean or largest of the visible ones. Of very many cells
      rows are sampled evenly, as `words` and `exact` of the result say, unless every row is asked for. */
  region(layerIndex: number, head: number, window: Window, reading: Reading): Promise<Grid>;
  /** How one weight comes about, as the server says it, from the q and k that are kept. */
  pair(layerIndex: number, head: number, query: number, key: number): Omit<Pair, "head">;
  /** One query's look, in double precision. */
  look(layerIndex: number, head: number, query: number): RowLook;
}

/** A text of a recording as a page shows it. */
export interface HeadsText {
  atlas: Atlas;
  factors: MapFactors;
  card(head: string, layer: LayerInfo): HeadCard;
}

/** A recording's file, read: each of its texts is described, and unpacked when it is opened. */
export interface HeadsFile {
  infos: RecordingInfo[];
  words: string;
  text(index: number): Promise<HeadsText>;
}

export interface ExactProgram {
  /** What a head or a layer says at a token, as the server's route of that name answers. */
  said(ask: SaidAsk): Said;
  factorsOf(header: FactorsHeader, arrays: Envelope["arrays"], shapes: LayerInfo[]): MapFactors;
  /** Reads a `.heads` file under `id`. Throws an Error whose words say why it is refused. */
  readHeads(file: File, id: string): Promise<HeadsFile>;
}

export type { EnvelopeArray };

/** The program, loaded once. */
export function exactProgram(): Promise<ExactProgram> {
  return pageProgram("exact");
}
