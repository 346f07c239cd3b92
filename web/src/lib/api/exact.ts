// The program exact.js: maps computed from q, k and each row's log-sum-exp (lib/exact). Only pages without a server need it, when
// they hold such factors or a recording is dropped on them; it is no part of the first script. A single file holds it packed, a
// published folder has it beside studio.js.
import type { Envelope, EnvelopeArray } from "./envelope";
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
  layers: { scale: number; softcap: number | null; width: number; mask: number; bias: number | null; sinks?: number[] | null }[];
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
  factorsOf(header: FactorsHeader, arrays: Envelope["arrays"], shapes: LayerInfo[]): MapFactors;
  /** Reads a `.heads` file under `id`. Throws an Error whose words say why it is refused. */
  readHeads(file: File, id: string): Promise<HeadsFile>;
}

export type { EnvelopeArray };

const ADDRESS = "exact.js"; // beside the page of a published folder
let program: Promise<ExactProgram> | null = null;

/** The program, loaded once. By a script element: the policies of these pages allow that, and the program tells of itself. */
export function exactProgram(): Promise<ExactProgram> {
  program ??= load();
  program.catch(() => (program = null)); // the next call tries again
  return program;
}

async function load(): Promise<ExactProgram> {
  const known = () => (globalThis as { manyheadsExact?: ExactProgram }).manyheadsExact;
  if (known()) return known()!;
  const packed = document.getElementById("manyheads-exact") as (HTMLElement & { unpacked?: () => Promise<string> }) | null;
  const script = document.createElement("script");
  script.type = "module";
  await new Promise<void>((resolve, reject) => {
    addEventListener("manyheads-exact", () => resolve(), { once: true });
    script.onerror = () => reject(new Error(`${ADDRESS}, the part of this page that computes maps, cannot be fetched`));
    if (!packed?.unpacked) script.src = ADDRESS;
    else void packed.unpacked().then((text) => document.body.append(Object.assign(script, { textContent: text })), reject);
    if (script.src) document.head.append(script);
  });
  return known()!;
}
