// The snapshot inside a saved page, unpacked; studio/outside/snapshot.py packs it. A text's maps are kept cell by cell, or, for a
// long text, in blocks of cells beside the strongest links of every row; an exact snapshot holds q and k instead, from which
// any cell is computed here; in a published folder a layer's numbers lie in a file of their own, fetched when they are needed.
// Every result says in `words` which it is.
import { inSentence, turnsOf } from "../draw/format";
import { parseEnvelope, type Envelope, type EnvelopeArray, type Numbers } from "./envelope";
import { exactProgram, type FactorsHeader, type Grid, type HeadsFile, type MapFactors, type Said, type SaidArrays, type StoredSum } from "./exact";
import {
  TILE, wordsOf, type Atlas, type HeadCard, type How, type LayerInfo, type Link, type Pair, type RecordingInfo, type Swap, type SwapAsk, type Workspace,
} from "./types";

const FORMAT = 3;
const STEPS = { steps8: 254, steps16: 65_534, links: 65_535 };
const THUMBNAIL = 64; // cells a side at most
const THUMBNAILS_CELLS = 12_000_000; // of all heads, computed from factors: some 0.3 s; of more, rows are sampled

interface PackedCard {
  head: string;
  kv_group: number;
  shares_with: string[];
  /** A statistic's name, its chance level and its value on the page of labels; its value itself is the atlas's. */
  levels: [string, number | null, number | null][];
  links: [number, number, number][];
  layer: string;
  exact: string;
  because: string;
  caveat: string;
}

interface MapsHeader {
  coding: "float32" | "steps8" | "steps16";
  level: number;
  words: { mean: string; max: string; links: string };
  exact: boolean;
  links: number;
}

/** A text holds either maps or the factors of maps. */
interface TextHeader {
  atlas: Atlas;
  cards: PackedCard[];
  maps?: MapsHeader;
  factors?: FactorsHeader;
  /** Every head's map, small, where layers are kept apart: `small_mean` and, of blocks of cells, `small_max`. */
  thumbnails?: Thumbnails;
  /** Which head, layer and token's answers are kept, as the server gave them. */
  said?: Kept | null;
  /** What becomes of a look, by the word that was put in the place of another. */
  swaps?: Record<string, Swap>;
}

interface Thumbnails {
  side: number;
  span: number;
  words: Record<How, string>;
  exact: boolean;
}

interface Kept {
  head: string;
  layer: string;
  query: number;
}

/** One text of a recording, however it is kept: its maps, or the factors of maps. */
interface TextParts {
  atlas: Atlas;
  card: (head: string, layer: LayerInfo) => HeadCard;
  maps?: MapsHeader;
  arrays?: Record<string, EnvelopeArray>;
  factors: MapFactors | null;
  thumbnails?: Thumbnails;
  /** Fetches a layer's numbers, where they are kept apart. */
  fetchLayer?: (index: number) => Promise<void>;
  said?: Kept | null;
  swaps?: Record<string, Swap>;
}

/** A recording that a page holds. `words`: what it holds of it. */
export interface HeldRecording {
  readonly infos: RecordingInfo[];
  readonly words: string;
  text(index: number): Promise<SnapshotText>;
}

interface Row {
  weights: Float32Array;
  visible: number;
  missing: number;
  words: string;
  /** Whether every weight of the row is kept. */
  whole: boolean;
}

/** The finest level that a recording has. A saved page keeps largest weights one level coarser than means. */
export function finestLevel(info: RecordingInfo, how: How): number {
  return info.min_level && how === "max" ? info.min_level + 1 : info.min_level;
}

/** Fetches what is kept apart of a text and a layer, packed. */
type LayerFetch = (text: number, layer: number) => Promise<ArrayBuffer>;

export class Snapshot implements HeldRecording {
  #texts = new Map<number, Promise<SnapshotText>>();

  private constructor(
    readonly workspace: Workspace,
    readonly infos: RecordingInfo[],
    readonly words: string,
    private readonly packed: Envelope,
    private readonly fetchLayer?: LayerFetch,
  ) {}

  static async read(bytes: ArrayBuffer, fetchLayer?: LayerFetch): Promise<Snapshot> {
    const packed = parseEnvelope(bytes);
    if (packed.header["format"] !== FORMAT) throw new Error(`this snapshot is of format ${String(packed.header["format"])}, not ${FORMAT}`);
    const head = JSON.parse(new TextDecoder().decode(await unzipped(packed.arrays["head"]!)));
    return new Snapshot(head.workspace, head.infos, head.words, packed, fetchLayer);
  }

  /** The lessons that were saved with the recording, if any were. */
  get lessons(): EnvelopeArray | undefined {
    return this.packed.arrays["lessons"];
  }

  /** A text of the recording, unpacked at its first use. */
  text(index: number): Promise<SnapshotText> {
    let text = this.#texts.get(index);
    if (!text) {
      text = this.#unpacked(index);
      text.catch(() => this.#texts.delete(index));
      this.#texts.set(index, text);
    }
    return text;
  }

  async #unpacked(index: number): Promise<SnapshotText> {
    const info = this.infos[index]!;
    const { header, arrays } = parseEnvelope(await unzipped(this.packed.arrays[`text${index}`]!));
    const { atlas, cards, maps, factors, thumbnails, said, swaps } = header as unknown as TextHeader;
    const statistics = new Map(atlas.statistics.map((statistic, column) => [statistic.name, { statistic, column }]));
    const entries = new Map(atlas.heads.map((entry) => [entry.head, entry]));
    const packedCards = new Map(cards.map((card) => [card.head, card]));
    const card = (head: string, layer: LayerInfo): HeadCard => {
      const { levels, ...packed } = packedCards.get(head)!;
      const { role, values } = entries.get(head)!;
      return {
        ...packed,
        layer,
        role,
        recording: info.id,
        text: info.text,
        values: levels.map(([name, chance, page]) => {
          const { statistic, column } = statistics.get(name)!;
          return { statistic, value: values[column]!, chance, page };
        }),
        links: packed.links.map(([query, key, weight]): Link => ({ query, key, weight })),
      };
    };
    const computed = factors ? (await exactProgram()).factorsOf(factors, arrays, info.layers) : null;
    // The factors read their layer's numbers from here when they first compute with them.
    const fetchLayer = async (layer: number) => {
      Object.assign(arrays, parseEnvelope(await unzipped(await this.fetchLayer!(index, layer))).arrays);
    };
    return new SnapshotText(info, { atlas, card, maps, arrays, factors: computed, thumbnails, fetchLayer: thumbnails && fetchLayer, said, swaps });
  }
}

/** A recording's file that was dropped on the page. `roles`: those that the page knows of the same model's heads. */
export function heldFile(file: HeadsFile, roles: Atlas | null): HeldRecording {
  const texts = new Map<number, Promise<SnapshotText>>();
  const known = new Map(roles?.heads.map(({ head, role }) => [head, role]));
  const opened = async (index: number) => {
    const { atlas, card, factors } = await file.text(index);
    const heads = atlas.heads.map((entry) => ({ ...entry, role: known.get(entry.head) ?? null }));
    return new SnapshotText(file.infos[index]!, {
      atlas: { ...atlas, heads, roles_because: roles?.roles_because ?? atlas.roles_because },
      card: (head, layer) => ({ ...card(head, layer), role: known.get(head) ?? null }),
      factors,
    });
  };
  const text = (index: number) => {
    if (!texts.has(index)) texts.set(index, opened(index));
    return texts.get(index)!;
  };
  return { infos: file.infos, words: file.words, text };
}

export class SnapshotText {
  readonly heads: string[];
  /** The finest level; 0 where there are single cells. */
  readonly level: number;
  readonly atlas: Atlas;
  readonly factors: MapFactors | null;
  readonly #card: TextParts["card"];
  readonly #maps: MapsHeader | undefined;
  readonly #arrays: Record<string, EnvelopeArray>;
  readonly #kept: Kept | null;
  readonly #swaps: Record<string, Swap>;
  readonly #thumbnails: Thumbnails | undefined;
  readonly #fetchLayer: TextParts["fetchLayer"];
  readonly #fetched = new Map<number, Promise<void>>();
  /** A head's layer, the number of that layer among all layers, and the head's number in it. */
  readonly #places = new Map<string, { layer: LayerInfo; layerIndex: number; index: number }>();

  constructor(
    readonly info: RecordingInfo,
    { atlas, card, maps, arrays = {}, factors, thumbnails, fetchLayer, said = null, swaps = {} }: TextParts,
  ) {
    [this.#thumbnails, this.#fetchLayer] = [thumbnails, fetchLayer];
    [this.#card, this.#maps, this.#arrays, this.#kept, this.#swaps] = [card, maps, arrays, said, swaps];
    this.level = maps?.level ?? 0;
    this.factors = factors;
    this.atlas = atlas;
    this.heads = atlas.heads.map(({ head }) => head);
    let next = 0;
    info.layers.forEach((layer, layerIndex) => {
      for (let index = 0; index < layer.num_heads; index++) this.#places.set(this.heads[next++]!, { layer, layerIndex, index });
    });
  }

  has(head: string): boolean {
    return this.#places.has(head);
  }

  /** Resolves once everything is here that the maps of this head ("L3H1"), layer ("L3") or, without a name, all heads need. */
  async ready(name?: string): Promise<void> {
    if (!this.#fetchLayer) return;
    const place = name === undefined ? null : this.#places.get(name.includes("H") ? name : `${name}H0`);
    const layers = name === undefined ? this.info.layers.map((_, index) => index) : place ? [place.layerIndex] : [];
    await Promise.all(layers.map((index) => {
      let fetched = this.#fetched.get(index);
      if (!fetched) {
        fetched = this.#fetchLayer!(index);
        fetched.catch(() => this.#fetched.delete(index)); // the next look tries again
        this.#fetched.set(index, fetched);
      }
      return fetched;
    }));
  }

  layerOf(head: string): LayerInfo {
    return this.#place(head).layer;
  }

  card(head: string): HeadCard {
    return this.#card(head, this.#place(head).layer);
  }

  /** A head's map at `level`, or at the finest level that is kept for `how` where that is coarser. */
  map(head: string, how: How, level: number): Grid {
    const finest = finestLevel(this.info, how);
    const grid = this.#map(head, how, finest);
    if (level <= finest) return grid;
    return { ...pooled(grid, 2 ** (level - finest), how), words: `${how} of ${sideOf(level)} cells, from those of ${sideOf(finest)}` };
  }

  /** One tile of a map, null beyond its end. At a level finer than the kept one its blocks are repeated, as `words` says. */
  async tile(head: string, how: How, level: number, column: number, row: number, every = false, signal?: AbortSignal): Promise<Grid | null> {
    const { layer, layerIndex, index } = this.#place(head);
    const [rows, columns] = [Math.ceil(layer.num_queries / 2 ** level), Math.ceil(layer.num_keys / 2 ** level)];
    const [top, left] = [row * TILE, column * TILE];
    if (top >= rows || left >= columns) return null;
    const [height, width] = [Math.min(TILE, rows - top), Math.min(TILE, columns - left)];
    if (this.factors) {
      const span = 2 ** level;
      const window = {
        top: top * span, bottom: Math.min((top + TILE) * span, layer.num_queries),
        left: left * span, right: Math.min((left + TILE) * span, layer.num_keys),
      };
      return this.factors.region(layerIndex, index, window, { level, how, every, signal });
    }
    const finest = finestLevel(this.info, how);
    const grid = this.map(head, how, level);
    const repeat = level < finest ? 2 ** (finest - level) : 1;
    const values = new Float32Array(height * width);
    for (let r = 0; r < height; r++) {
      const rowStart = Math.floor((top + r) / repeat) * grid.columns;
      for (let c = 0; c < width; c++) values[r * width + c] = grid.values[rowStart + Math.floor((left + c) / repeat)]!;
    }
    return { values, rows: height, columns: width, words: grid.words, exact: grid.exact };
  }

  /** Some keys' weights of one row, exact: null where the snapshot does not hold single cells. */
  cells(head: string, row: number, left: number, right: number): Float32Array | null {
    const { layerIndex, index } = this.#place(head);
    if (this.factors) return this.factors.row(layerIndex, index, row).weights.subarray(left, right);
    if (this.level) return null;
    const { values, columns } = this.#map(head, "mean", 0);
    return values.subarray(row * columns + left, row * columns + right);
  }

  /** How one weight comes about; null where q and k are not kept, and beside the map. */
  pair(head: string, query: number, key: number): Pair | null {
    const { layer, layerIndex, index } = this.#place(head);
    const within = query >= 0 && query < layer.num_queries && key >= 0 && key < layer.num_keys;
    return this.factors && within ? { head, ...this.factors.pair(layerIndex, index, query, key) } : null;
  }

  /** What a head ("L3H1") or a layer ("L3") says at a token, as the server answers: computed where q and k are kept, with what is
      added to the stream where that is kept; else only what was stored. A string: why there is none. */
  async said(name: string, token: number, keys: number): Promise<Said | string> {
    const isLayer = !name.includes("H");
    const first = isLayer ? `${name}H0` : name;
    if (!this.has(first)) return `There is no head ${name} in this page.`;
    const { layer, layerIndex, index } = this.#place(first);
    await this.ready(first);
    if (token < 0 || token >= layer.num_queries) return `There is no token ${token}: this text has ${layer.num_queries}, counted from 0.`;
    const kept = this.#kept;
    const isKept = kept !== null && kept.layer === layer.name && kept.query === token;
    const stored = (part: "head" | "layer") => {
      const packed = this.#arrays[`said_${part}`];
      return packed ? parseEnvelope((packed.data as Uint8Array).slice().buffer as ArrayBuffer) : null;
    };
    const whole = isKept && (isLayer || kept.head === name) ? stored(isLayer ? "layer" : "head") : null;
    const at = kept && ` It keeps what ${kept.head} and its layer say at token ${kept.query}.`;
    if (!this.factors) return whole ? saidOf(whole) : `This page holds maps, and not the numbers that they come from.${at ?? ""}`;
    const heads = isLayer ? Array.from({ length: layer.num_heads }, (_, head) => head) : [index];
    const looks = heads.map((head) => this.factors!.look(layerIndex, head, token));
    if (looks[0]!.valueWidth === null && whole) return saidOf(whole);
    const sum = isKept ? stored("layer") : null;
    const perGroup = layer.num_heads / layer.num_kv_heads;
    const { me, units, labels } = this.#words(layer, token);
    const model = "this page has no model, and what is added to the stream needs it";
    return (await exactProgram()).said({
      isLayer, layer: layer.name, head: index, looks, perGroup, query: token, keys, me, units, labels,
      group: Array.from({ length: perGroup }, (_, i) => looks[0]!.group * perGroup + i),
      readsItself: !layer.crosses, turned: null, sum: sum && sumOf(sum),
      because: kept && this.#arrays["said_layer"] ? `${model}; it is kept of ${kept.layer} at token ${kept.query} alone` : model,
      unkept: "values were not kept in this page",
    });
  }

  /** The forward pass of a token, as the server answers; a string: why there is none. */
  forwardPass(token: number): Envelope | string {
    const kept = this.info.kept?.passes ?? [];
    const packed = this.#arrays["pass"];
    if (packed && kept.includes(token)) return parseEnvelope((packed.data as Uint8Array).slice().buffer as ArrayBuffer);
    return `A forward pass needs the model.${kept.length ? ` This page keeps that of token ${kept.join(", ")}.` : ""}`;
  }

  /** What becomes of a look when a word is changed, where that was stored; a string: why it is not here. */
  swapped({ at, query, word, heads }: SwapAsk): Swap | string {
    const { kept } = this.info;
    const swap = this.#swaps[word];
    if (kept && swap && at === kept.at && query === kept.query && heads.every((head) => head === kept.head)) return swap;
    const instead = kept?.swap ? ` This page keeps ${kept.head} at token ${kept.query}, with ${kept.swap.words.map((other) => `“${other}”`).join(", ")} for “${kept.swap.word}”.` : "";
    return `A changed word needs the model.${instead}`;
  }

  /** The asking word, the words that a layer's keys are, and the keys' tokens as people read them. */
  #words(layer: LayerInfo, token: number) {
    const { info } = this;
    const read = layer.reads === "" ? info.tokens : (info.tokens_of[layer.reads] ?? []);
    const looked = layer.looks_at === null ? [] : layer.looks_at === "" ? info.tokens : (info.tokens_of[layer.looks_at] ?? []);
    const alone = (tokens: readonly { label: string }[], count: number) =>
      Array.from({ length: count }, (_, begin) => ({ begin, end: begin + 1, text: tokens[begin]?.label ?? "" }));
    const spans = layer.looks_at === "" && info.words.length ? info.words : alone(looked, layer.num_keys);
    // Of a token of no word its readable form stands in a sentence: "↵" for a line break.
    const texts = spans.map(({ begin, end, text }) => {
      const first = looked[begin];
      return first && !first.special && end === begin + 1 && text === first.piece ? first.label : text;
    });
    const turns = turnsOf(texts);
    const units = spans.map(({ begin, end }, i) => {
      const first = looked[begin];
      const name = !first ? `place ${begin}` : inSentence(texts[i]!, turns[i]!, '""', first.special);
      const parks = looked.length > 0 && looked.slice(begin, end).every(({ special, sink }) => special || sink);
      return { name, begin, end, parks };
    });
    const own = layer.crosses || layer.reads !== "" ? undefined : units.find(({ begin, end }) => begin <= token && token < end);
    const me = own?.name ?? (read[token] ? inSentence(read[token].label, turnsOf(read.map(({ label }) => label))[token]!, '""') : `place ${token}`);
    return { me, units, labels: looked.map(({ label }) => label) };
  }

  /** One row of weights, with NaN for those that the snapshot does not hold; null where it holds nothing of the row. */
  row(head: string, row: number): Row | null {
    const { layer, layerIndex, index } = this.#place(head);
    if (row < 0 || row >= layer.num_queries) return null;
    if (this.factors) return { ...this.factors.row(layerIndex, index, row), words: this.factors.words, whole: true };
    const counts = this.#arrays[`visible${layerIndex}`];
    if (!counts) return null;
    const visible = counts.data[(counts.shape[0] === 1 ? 0 : index) * layer.num_queries + row]!;
    const missing = this.#arrays[`missing${layerIndex}`]?.data[index * layer.num_queries + row] ?? 0;
    if (this.level === 0) {
      const { values, columns, words } = this.#map(head, "mean", 0);
      return { weights: values.slice(row * columns, (row + 1) * columns), visible, missing, words, whole: true };
    }
    const keys = this.#arrays[`keys${layerIndex}`];
    const links = this.#arrays[`links${layerIndex}`];
    if (!keys || !links) return null;
    const weights = new Float32Array(layer.num_keys).fill(NaN);
    const numLinks = keys.shape.at(-1)!;
    const begin = (index * layer.num_queries + row) * numLinks;
    // Keys ascend and are kept as differences; a step of 0 is padding where a row has fewer links.
    for (let i = 0, key = 0; i < numLinks; i++) {
      key += uint16At(keys, begin + i);
      const step = uint16At(links, begin + i);
      if (step) weights[key] = step / STEPS.links;
    }
    return { weights, visible, missing, words: `${this.#maps?.words.links}; the others are not in this page`, whole: false };
  }

  /** The row of the word that holds `token` in every head, as the server merges it: pieces of a key word summed, rows of the
      query's pieces averaged, NaN for what is not seen; and the same for a head that looks evenly. Null where single weights
      are not kept. */
  wordRow(token: number): { weights: Float32Array; even: Float32Array; begin: number; end: number; numWords: number } | null {
    const words = wordsOf(this.info);
    const word = words.find(({ begin, end }) => begin <= token && token < end);
    if (this.level > 0 || !word) return null;
    const weights = new Float32Array(this.heads.length * words.length).fill(NaN);
    const even = weights.slice();
    this.heads.forEach((head, headIndex) => {
      const { layer } = this.#place(head);
      if (layer.reads !== "" || layer.looks_at !== "") return;
      const sums = new Float64Array(words.length);
      const shares = new Float64Array(words.length);
      for (let query = word.begin; query < word.end; query++) {
        const row = this.row(head, query);
        words.forEach(({ begin, end }, i) => {
          for (let key = begin; row && key < end; key++) {
            if (Number.isNaN(row.weights[key]!)) continue;
            sums[i]! += row.weights[key]! / (word.end - word.begin);
            shares[i]! += 1 / row.visible / (word.end - word.begin);
          }
        });
      }
      even.set(shares, headIndex * words.length);
      weights.set(sums.map((sum, i) => (shares[i] ? sum : NaN)), headIndex * words.length);
    });
    return { weights, even, begin: word.begin, end: word.end, numWords: words.length };
  }

  /** Every head's map at a level at which it is at most 64 cells wide: bytes and peaks as in the server's thumbnails. */
  async thumbnails(how: How): Promise<{ maps: Uint8Array; peaks: Float32Array; side: number; span: number; words: string; exact: boolean }> {
    const kept = this.#thumbnails;
    if (kept) {
      const name = `small_${this.#arrays[`small_${how}`] ? how : "mean"}`;
      const [maps, peaks] = [this.#arrays[name]!.data as Uint8Array, this.#arrays[`${name}_peaks`]!.data as Float32Array];
      return { maps, peaks, side: kept.side, span: kept.span, words: kept.words[how], exact: kept.exact };
    }
    const longest = Math.max(...this.info.layers.map((layer) => Math.max(layer.num_queries, layer.num_keys)));
    let level = finestLevel(this.info, how);
    while (Math.ceil(longest / 2 ** level) > THUMBNAIL) level += 1;
    const cells = Math.ceil(longest / 2 ** level);
    const maps = new Uint8Array(this.heads.length * cells * cells).fill(255);
    const peaks = new Float32Array(this.heads.length);
    const most = Math.floor(THUMBNAILS_CELLS / this.heads.length);
    let [words, exact] = ["", true];
    for (const [headIndex, head] of this.heads.entries()) {
      const { layer, layerIndex, index } = this.#place(head);
      const whole = { top: 0, bottom: layer.num_queries, left: 0, right: layer.num_keys };
      const grid = await (this.factors?.region(layerIndex, index, whole, { level, how, most }) ?? this.map(head, how, level));
      words ||= grid.words;
      exact &&= grid.exact;
      const peak = (peaks[headIndex] = grid.values.reduce((most, v) => (v > most ? v : most), 0));
      for (let r = 0; r < grid.rows; r++) {
        for (let c = 0; c < grid.columns; c++) {
          const value = grid.values[r * grid.columns + c]!;
          if (!Number.isNaN(value)) maps[(headIndex * cells + r) * cells + c] = peak ? Math.round(Math.sqrt(value / peak) * 254) : 0;
        }
      }
    }
    return { maps, peaks, side: cells, span: 2 ** level, words, exact };
  }

  #place(head: string) {
    const place = this.#places.get(head);
    if (!place) throw new Error(`there is no head ${head} in this page`);
    return place;
  }

  #map(head: string, how: How, level: number): Grid {
    const { layer, layerIndex, index } = this.#place(head);
    const maps = this.#maps!;
    const [rows, columns] = [Math.ceil(layer.num_queries / 2 ** level), Math.ceil(layer.num_keys / 2 ** level)];
    const name = this.level === 0 ? "mean" : how;
    const packed = this.#arrays[`${name}${layerIndex}`]!;
    const begin = index * rows * columns;
    const values = new Float32Array(rows * columns);
    if (maps.coding === "float32") values.set(packed.data.subarray(begin, begin + values.length));
    else if (maps.coding === "steps16") {
      for (let i = 0; i < values.length; i++) {
        const step = uint16At(packed, begin + i);
        values[i] = step > STEPS.steps16 ? NaN : step / STEPS.steps16;
      }
    } else this.#steps8(packed.data, begin, columns, this.#arrays[`${name}_peaks${layerIndex}`]!.data[index]!, values);
    return { values, rows, columns, words: maps.words[how], exact: maps.exact };
  }

  /** Decodes steps of a square root, each row kept as differences modulo 256 from the row above; step 255 is absent. */
  #steps8(packed: Numbers, begin: number, columns: number, peak: number, values: Float32Array): void {
    const above = new Uint8Array(columns);
    for (let i = 0; i < values.length; i++) {
      const step = (above[i % columns] = (above[i % columns]! + packed[begin + i]!) & 255);
      values[i] = step === 255 ? NaN : peak * (step / STEPS.steps8) ** 2;
    }
  }
}

/** A stored answer as it is. */
function saidOf({ header, arrays }: Envelope): Said {
  const named: SaidArrays = {};
  for (const [name, { data, shape }] of Object.entries(arrays)) named[name] = [data as Float32Array, ...shape];
  return { header, arrays: named };
}

/** What a stored answer about a layer holds of its sum. */
function sumOf(envelope: Envelope): StoredSum | null {
  const { header, arrays } = envelope;
  const vector = (name: string) => arrays[name]?.data as Float32Array | undefined;
  const [adds, before] = [vector("adds"), vector("before")];
  if (!adds || !before) return null;
  const others = Object.fromEntries(["output_bias", "after", "normed", "beside"].map((name) => [name, vector(name)]));
  return {
    adds: Array.from({ length: adds.length / before.length }, (_, head) => adds.subarray(head * before.length, (head + 1) * before.length)),
    before, others, wrote: [...vector("wrote")!], biasWrote: header["bias_wrote"] as number | null,
    norm: String(header["norm"]), branchNorm: Boolean(header["branch_norm"]),
  };
}

/** The 16-bit number at `i` of an array that holds all high bytes, then all low bytes (that order compresses better). */
function uint16At(planes: EnvelopeArray, i: number): number {
  return planes.data[i]! * 256 + planes.data[planes.data.length / 2 + i]!;
}

/** A grid pooled in blocks of span x span cells. Absent cells do not count; a block of absent cells is absent. */
function pooled(grid: Grid, span: number, how: How): Grid {
  const [rows, columns] = [Math.ceil(grid.rows / span), Math.ceil(grid.columns / span)];
  const values = new Float32Array(rows * columns).fill(NaN);
  const counts = new Uint32Array(rows * columns);
  for (let r = 0; r < grid.rows; r++) {
    for (let c = 0; c < grid.columns; c++) {
      const value = grid.values[r * grid.columns + c]!;
      if (Number.isNaN(value)) continue;
      const block = Math.floor(r / span) * columns + Math.floor(c / span);
      values[block] = counts[block] ? (how === "max" ? Math.max(values[block]!, value) : values[block]! + value) : value;
      counts[block]! += 1;
    }
  }
  if (how === "mean") for (let i = 0; i < values.length; i++) values[i]! /= counts[i] || 1;
  return { ...grid, values, rows, columns };
}

function sideOf(level: number): string {
  return `${2 ** level} × ${2 ** level}`;
}

export async function unzipped(packed: EnvelopeArray | ArrayBuffer): Promise<ArrayBuffer> {
  const bytes = packed instanceof ArrayBuffer ? packed : (packed.data as Uint8Array<ArrayBuffer>);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}
