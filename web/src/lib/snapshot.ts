// What a saved page holds, unpacked: studio/snapshot.py packs it. A text's maps are exact, or blocks of cells; of rows there
// are then the strongest links alone. Everything that is given says which of these it is.
import { parseEnvelope, type Envelope, type EnvelopeArray, type Numbers } from "./envelope";
import type { Atlas, HeadCard, How, LayerInfo, Link, RecordingInfo, RoleInfo, Workspace } from "./types";

const FORMAT = 1;
const STEPS = { steps8: 254, steps16: 65_534, links: 65_535 };
const THUMBNAIL = 64; // cells a side at most

interface KeptCard {
  head: string;
  kv_group: number;
  shares_with: string[];
  role: RoleInfo | null;
  values: [string, number | null, number | null, number | null][];
  links: [number, number, number][];
  layer: string;
  exact: string;
  because: string;
  caveat: string;
}

interface TextHeader {
  atlas: Atlas;
  cards: KeptCard[];
  coding: "float32" | "steps8" | "steps16";
  level: number;
  words: { mean: string; max: string; links: string };
  exact: boolean;
  links: number;
}

interface Grid {
  values: Float32Array;
  rows: number;
  columns: number;
  words: string;
}

interface Row {
  weights: Float32Array;
  visible: number;
  missing: number;
  words: string;
  /** Whether every weight of the row is here. */
  whole: boolean;
}

/** The finest level that there is of a recording: of a saved one's largest weights, one coarser than of its means. */
export function finestOf(info: RecordingInfo, how: How): number {
  return info.min_level && how === "max" ? info.min_level + 1 : info.min_level;
}

export class Snapshot {
  #texts = new Map<number, Promise<KeptText>>();

  private constructor(
    readonly workspace: Workspace,
    readonly infos: RecordingInfo[],
    readonly words: string,
    private readonly packed: Envelope,
  ) {}

  static async read(bytes: ArrayBuffer): Promise<Snapshot> {
    const packed = parseEnvelope(bytes);
    if (packed.header["format"] !== FORMAT) throw new Error(`this snapshot is of format ${String(packed.header["format"])}, not ${FORMAT}`);
    const head = JSON.parse(new TextDecoder().decode(await unzipped(packed.arrays["head"]!)));
    return new Snapshot(head.workspace, head.infos, head.words, packed);
  }

  /** A text of the recording, unpacked once. */
  text(at: number): Promise<KeptText> {
    let text = this.#texts.get(at);
    if (!text) {
      text = unzipped(this.packed.arrays[`text${at}`]!).then((bytes) => new KeptText(this.infos[at]!, parseEnvelope(bytes)));
      this.#texts.set(at, text);
    }
    return text;
  }
}

export class KeptText {
  readonly heads: string[];
  readonly level: number;
  readonly exact: boolean;
  readonly atlas: Atlas;
  readonly #kept: TextHeader;
  readonly #arrays: Record<string, EnvelopeArray>;
  readonly #places = new Map<string, { layer: LayerInfo; at: number; index: number }>();

  constructor(
    readonly info: RecordingInfo,
    packed: Envelope,
  ) {
    this.#kept = packed.header as unknown as TextHeader;
    this.#arrays = packed.arrays;
    this.level = this.#kept.level;
    this.exact = this.#kept.exact;
    this.atlas = this.#kept.atlas;
    this.heads = this.#kept.cards.map((card) => card.head);
    let next = 0;
    info.layers.forEach((layer, at) => {
      for (let index = 0; index < layer.num_heads; index++) this.#places.set(this.heads[next++]!, { layer, at, index });
    });
  }

  has(head: string): boolean {
    return this.#places.has(head);
  }

  layerOf(head: string): LayerInfo {
    return this.#place(head).layer;
  }

  card(head: string): HeadCard {
    const { layer } = this.#place(head);
    const kept = this.#kept.cards[this.heads.indexOf(head)]!;
    const defined = new Map(this.atlas.statistics.map((each) => [each.name, each]));
    return {
      ...kept,
      layer,
      recording: this.info.id,
      text: this.info.text,
      values: kept.values.map(([name, value, chance, page]) => ({ statistic: defined.get(name)!, value, chance, page })),
      links: kept.links.map(([query, key, weight]): Link => ({ query, key, weight })),
    };
  }

  /** A head's whole map at the finest level that is kept for `how`, or at a coarser one. */
  map(head: string, how: How, level: number): Grid {
    const own = finestOf(this.info, how);
    const grid = this.#map(head, how, own);
    if (level <= own) return grid;
    return { ...pooled(grid, 2 ** (level - own), how), words: `${how} of ${side(level)} cells, from those of ${side(own)}` };
  }

  /** A part of a map in cells of `level`. A finer level than is kept repeats its blocks, and says so. */
  tile(head: string, how: How, level: number, column: number, row: number, tile: number): Grid | null {
    const { layer } = this.#place(head);
    const [rows, columns] = [Math.ceil(layer.num_queries / 2 ** level), Math.ceil(layer.num_keys / 2 ** level)];
    const [top, left] = [row * tile, column * tile];
    if (top >= rows || left >= columns) return null;
    const own = finestOf(this.info, how);
    const grid = this.map(head, how, level);
    const repeat = level < own ? 2 ** (own - level) : 1;
    const [height, width] = [Math.min(tile, rows - top), Math.min(tile, columns - left)];
    const values = new Float32Array(height * width);
    for (let r = 0; r < height; r++) {
      const from = Math.floor((top + r) / repeat) * grid.columns;
      for (let c = 0; c < width; c++) values[r * width + c] = grid.values[from + Math.floor((left + c) / repeat)]!;
    }
    return { values, rows: height, columns: width, words: grid.words };
  }

  /** What is known of one row; null where nothing is. */
  row(head: string, row: number): Row | null {
    const { layer, at, index } = this.#place(head);
    const seen = this.#arrays[`visible${at}`];
    if (!seen || row < 0 || row >= layer.num_queries) return null;
    const visible = seen.data[(seen.shape[0] === 1 ? 0 : index) * layer.num_queries + row]!;
    const missing = this.#arrays[`missing${at}`]?.data[index * layer.num_queries + row] ?? 0;
    if (this.level === 0) {
      const { values, columns, words } = this.#map(head, "mean", 0);
      return { weights: values.slice(row * columns, (row + 1) * columns), visible, missing, words, whole: true };
    }
    const keys = this.#arrays[`keys${at}`];
    const links = this.#arrays[`links${at}`];
    if (!keys || !links) return null;
    const weights = new Float32Array(layer.num_keys).fill(NaN);
    const many = keys.shape.at(-1)!;
    const begin = (index * layer.num_queries + row) * many;
    for (let i = 0, key = 0; i < many; i++) {
      key += wide(keys, begin + i);
      const step = wide(links, begin + i);
      if (step) weights[key] = step / STEPS.links;
    }
    return { weights, visible, missing, words: `${this.#kept.words.links}; the others are not in this page`, whole: false };
  }

  /** Every head's map, small: bytes and peaks as the server's thumbnails. */
  thumbnails(how: How): { maps: Uint8Array; peaks: Float32Array; side: number; words: string } {
    const longest = Math.max(...this.info.layers.map((layer) => Math.max(layer.num_queries, layer.num_keys)));
    let level = finestOf(this.info, how);
    while (Math.ceil(longest / 2 ** level) > THUMBNAIL) level += 1;
    const wide = Math.ceil(longest / 2 ** level);
    const maps = new Uint8Array(this.heads.length * wide * wide).fill(255);
    const peaks = new Float32Array(this.heads.length);
    let words = "";
    this.heads.forEach((head, at) => {
      const grid = this.map(head, how, level);
      words ||= grid.words;
      const peak = (peaks[at] = grid.values.reduce((most, v) => (v > most ? v : most), 0));
      for (let r = 0; r < grid.rows; r++) {
        for (let c = 0; c < grid.columns; c++) {
          const value = grid.values[r * grid.columns + c]!;
          if (value === value) maps[(at * wide + r) * wide + c] = peak ? Math.round(Math.sqrt(value / peak) * 254) : 0;
        }
      }
    });
    return { maps, peaks, side: wide, words };
  }

  #place(head: string) {
    const place = this.#places.get(head);
    if (!place) throw new Error(`there is no head ${head} in this page`);
    return place;
  }

  #map(head: string, how: How, level: number): Grid {
    const { layer, at, index } = this.#place(head);
    const [rows, columns] = [Math.ceil(layer.num_queries / 2 ** level), Math.ceil(layer.num_keys / 2 ** level)];
    const name = this.level === 0 ? "mean" : how;
    const kept = this.#arrays[`${name}${at}`]!;
    const begin = index * rows * columns;
    const values = new Float32Array(rows * columns);
    if (this.#kept.coding === "float32") values.set(kept.data.subarray(begin, begin + values.length));
    else if (this.#kept.coding === "steps16") {
      for (let i = 0; i < values.length; i++) {
        const step = wide(kept, begin + i);
        values[i] = step > STEPS.steps16 ? NaN : step / STEPS.steps16;
      }
    } else this.#steps8(kept.data, begin, columns, this.#arrays[`${name}_peaks${at}`]!.data[index]!, values);
    return { values, rows, columns, words: this.#kept.words[how] };
  }

  /** Rows are kept as differences from the one above, in steps of a square root; 255 is absent. */
  #steps8(kept: Numbers, begin: number, columns: number, peak: number, into: Float32Array): void {
    const above = new Uint8Array(columns);
    for (let i = 0; i < into.length; i++) {
      const step = (above[i % columns] = (above[i % columns]! + kept[begin + i]!) & 255);
      into[i] = step === 255 ? NaN : peak * (step / STEPS.steps8) ** 2;
    }
  }
}

/** Of high bytes, then low bytes: the number at `i`. */
function wide(planes: EnvelopeArray, i: number): number {
  return planes.data[i]! * 256 + planes.data[planes.data.length / 2 + i]!;
}

/** Blocks of blocks: what is absent counts for nothing. */
function pooled(grid: Grid, span: number, how: How): Grid {
  const [rows, columns] = [Math.ceil(grid.rows / span), Math.ceil(grid.columns / span)];
  const values = new Float32Array(rows * columns).fill(NaN);
  const counts = new Uint32Array(rows * columns);
  for (let r = 0; r < grid.rows; r++) {
    for (let c = 0; c < grid.columns; c++) {
      const value = grid.values[r * grid.columns + c]!;
      if (value !== value) continue;
      const at = Math.floor(r / span) * columns + Math.floor(c / span);
      values[at] = counts[at] ? (how === "max" ? Math.max(values[at]!, value) : values[at]! + value) : value;
      counts[at]! += 1;
    }
  }
  if (how === "mean") for (let i = 0; i < values.length; i++) values[i]! /= counts[i] || 1;
  return { ...grid, values, rows, columns };
}

function side(level: number): string {
  return `${2 ** level} × ${2 ** level}`;
}

async function unzipped(packed: EnvelopeArray): Promise<ArrayBuffer> {
  const stream = new Blob([packed.data as Uint8Array<ArrayBuffer>]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
