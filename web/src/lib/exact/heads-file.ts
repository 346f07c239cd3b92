// A recording's file (.heads) read in the page: what recording/file/{safetensors_io,format}.py read, with the same checks, and
// what studio/views/recording.py says of it. docs/format.md describes the file. q, k, lse, masks and biases stay in memory as they
// are stored; a layer is unpacked when it is looked at.
import type { HeadsFile, HeadsText } from "../api/exact";
import type { Atlas, HeadCard, LayerInfo, Link, RecordingInfo, Token } from "../api/types";
import { Factors, half, type Floats, type LayerFactors } from "./factors";
import { labelsOf, surfaceOf, unitsOf, type TextTokens } from "./words";

const MOST_BYTES = 512_000_000; // of a file: as many as the studio takes, and what a tab can hold
const HEADER_BYTES = 100_000_000;
const PIECE = 1 << 24; // bytes read at once
const VERSION = 1;
const MOST_POSITIONS = 10_000_000; // padding included
const WORD_TOKENS = 20_000; // of a longer text the page shows pieces
const TILE = 256;
const [SINK_CELLS, SINK_MASS, SINK_EXCESS] = [20_000_000, 0.05, 3]; // a sink: measurement/sinks.py; of more cells none is looked for
const [LINKS, LINK_CELLS] = [24, 1 << 22];
const AT_ONCE = 1 << 19; // cells between two pauses
const SIZES: Record<string, number> = { F64: 8, F32: 4, F16: 2, BF16: 2, I64: 8, I32: 4, U8: 1, BOOL: 1 };
const [FLOATS, INTEGERS] = [["F64", "F32", "F16", "BF16"], ["I64", "I32"]];
const KEPT_IN: Record<string, string> = { F64: "float64", F32: "float32", F16: "float16", BF16: "bfloat16" };
const UNKNOWN = ["[UNK]", "<unk>", "<UNK>"];
const CAVEAT = "Attention is not effect: a role says what a head reads, not what is lost without it.";
const NOT_KNOWN = "roles need the model, and this file was opened in the page";

interface Entry {
  dtype: string;
  shape: number[];
  begin: number;
  end: number;
}

interface Site {
  stack: string;
  layer: number;
  module: string;
  num_heads: number;
  num_kv_heads: number;
  qk_dim: number;
  v_dim: number;
  causal: boolean;
}

interface LayerAbout {
  site: Site;
  because: string;
  tokens: number;
  mask: number;
  bias: number | null;
  scale: number;
  softcap: number | null;
}

/** A layer in the file: what its tensors are called, and the lengths of its texts. */
interface Layer extends LayerAbout {
  name: string;
  lengths: number[];
  crosses: boolean;
}

/** What is said of the tokens of all texts. */
interface Tokens {
  lengths: number[];
  ids: Column | null;
  special: Column | null;
  offsets: Column | null;
  pieces: string[][];
  texts: string[];
  /** Where windows of long texts are from: the text, its character, and a seed of up to 63 bits, which nothing here needs. */
  stretches: number[][];
}

/** A text's numbers of each token. */
type Column = (text: number) => number[];

/** Throws an Error whose words say why the file is refused. */
export async function readHeads(file: File, id: string): Promise<HeadsFile> {
  const stored = await Stored.read(file);
  const recording = new Recording(stored, file.name);
  const infos = recording.main.lengths.map((_, text) => recording.info(id, text));
  const numHeads = recording.layers.reduce((sum, layer) => sum + layer.site.num_heads, 0);
  const words = `${numHeads} heads on ${infos[0]!.num_tokens.toLocaleString("en")} tokens: ${recording.words}`;
  for (const info of infos) info.notes = { ...info.notes, saved: words, dropped: file.name };
  return { infos, words, text: (text) => recording.text(infos[text]!) };
}

// --------------------------------------------------------------------------------------------------- the file and its checks

class Stored {
  private constructor(
    private readonly file: File,
    private readonly begin: number,
    readonly metadata: Record<string, string>,
    readonly entries: Record<string, Entry>,
    private readonly bytes = new Map<string, ArrayBuffer>(),
  ) {}

  /** Reads every byte of a file and checks it. */
  static async read(file: File): Promise<Stored> {
    const { name, size } = file;
    if (size > MOST_BYTES) throw new Error(`${name} is ${gb(size)}, and a page reads files up to ${gb(MOST_BYTES)}. The studio reads it: manyheads studio ${name}.`);
    const start = new DataView(await file.slice(0, 9).arrayBuffer());
    const length = start.byteLength < 9 ? 0 : start.getUint32(0, true) + start.getUint32(4, true) * 2 ** 32;
    if (start.byteLength < 9 || start.getUint8(8) !== 0x7b || length < 2 || length > HEADER_BYTES) {
      throw new Error(`${name} is not a recording, and not a safetensors file: drop one made by rec.save("text.heads").`);
    }
    if (8 + length > size) throw cutOff(name, `its header alone is ${length} bytes`, size - 8);
    const header = parsed<Record<string, unknown>>(new TextDecoder().decode(await file.slice(8, 8 + length).arrayBuffer()));
    if (!isObject(header)) throw damaged(name, "its header is not JSON");
    const { __metadata__: metadata = {}, ...tensors } = header;
    if (!isObject(metadata) || !Object.values(metadata).every((value) => typeof value === "string")) throw damaged(name, "its header's metadata are not texts");
    const stored = new Stored(file, 8 + length, metadata as Record<string, string>, {});
    stored.#checkMetadata();
    stored.#readEntries(tensors);
    await stored.#readTensors();
    return stored;
  }

  json<T>(key: string): T {
    const value = parsed<T>(this.metadata[key] ?? "");
    if (value === undefined) throw this.damaged(key in this.metadata ? `'${key}' in its header is not JSON` : `its header lacks '${key}'`);
    return value;
  }

  damaged(damage: string): Error {
    return damaged(this.file.name, damage);
  }

  /** A tensor's numbers, from number `begin` to before `end`. float16 and bfloat16 are widened, which changes no number. */
  floats(name: string, begin = 0, end = Infinity): Floats {
    const { dtype, bytes, last } = this.#part(name, begin, end);
    if (dtype === "F64") return new Float64Array(bytes, begin * 8, last - begin);
    if (dtype === "F32") return new Float32Array(bytes, begin * 4, last - begin);
    const bits = new Uint16Array(bytes, begin * 2, last - begin);
    if (dtype === "F16") return Float32Array.from(bits, half);
    const out = new Uint32Array(bits.length);
    for (let i = 0; i < bits.length; i++) out[i] = bits[i]! << 16;
    return new Float32Array(out.buffer);
  }

  /** The same of whole numbers and of truths. */
  integers(name: string, begin = 0, end = Infinity): number[] {
    const { dtype, bytes, last } = this.#part(name, begin, end);
    if (dtype === "I32") return [...new Int32Array(bytes, begin * 4, last - begin)];
    if (dtype !== "I64") return [...new Uint8Array(bytes, begin, last - begin)];
    const halves = new Int32Array(bytes, begin * 8, 2 * (last - begin));
    return Array.from({ length: last - begin }, (_, i) => halves[2 * i + 1]! * 2 ** 32 + (halves[2 * i]! >>> 0));
  }

  /** JSON that is stored as a tensor of bytes; undefined where there is none. */
  lists(name: string): unknown[] | undefined {
    if (!(name in this.entries)) return undefined;
    const value = parsed<unknown[]>(new TextDecoder().decode(this.bytes.get(name)));
    if (!Array.isArray(value)) throw this.damaged(`${name} is not a list`);
    return value;
  }

  /** That a tensor is there, of one of these shapes and types. */
  check(name: string, shapes: number[][], dtypes: string[], needed = true): void {
    const entry = this.entries[name];
    if (!entry && needed) throw this.damaged(`${name} is missing`);
    if (!entry) return;
    const written = (shape: number[]) => `(${shape.join(", ")})`;
    if (!shapes.some((shape) => written(shape) === written(entry.shape))) {
      throw this.damaged(`${name} has shape ${written(entry.shape)}, not ${shapes.map(written).join(" or ")}`);
    }
    if (!dtypes.includes(entry.dtype)) throw this.damaged(`${name} holds ${entry.dtype}, not ${dtypes.join(" or ")}`);
  }

  #part(name: string, begin: number, end: number): { dtype: string; bytes: ArrayBuffer; last: number } {
    const { dtype, shape } = this.entries[name]!;
    return { dtype, bytes: this.bytes.get(name)!, last: Math.max(begin, Math.min(end, product(shape))) };
  }

  #checkMetadata(): void {
    const { metadata, file } = this;
    const { format, format_version: version = "", crc32_metadata: sum, ...rest } = metadata;
    if (format !== "manyheads-recording") {
      throw new Error(`${file.name} is a safetensors file, but not a recording: its format is ${format ? `'${format.slice(0, 80)}'` : "not said"}. Drop one made by rec.save("text.heads").`);
    }
    if (!/^\d{1,9}$/.test(version)) throw this.damaged(`its format's version is '${version.slice(0, 80)}'`);
    if (Number(version) > VERSION) {
      throw new Error(`${file.name} was written by a newer manyheads: format ${Number(version)}, and this page reads up to ${VERSION}. A page saved by that version reads it.`);
    }
    // As Python writes JSON: keys in order, a blank after each mark, other letters than ASCII as \uXXXX.
    const fields = Object.entries({ ...rest, format, format_version: version }).sort(([a], [b]) => (a < b ? -1 : 1));
    const quoted = (text: string) => JSON.stringify(text).replace(/[\x7f-\uffff]/g, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
    const written = `{${fields.map(([key, value]) => `${quoted(key)}: ${quoted(value)}`).join(", ")}}`;
    if (sum !== hex(crc32(new TextEncoder().encode(written)))) throw this.damaged("its header is not the one that was written (its checksum differs)");
  }

  #readEntries(tensors: Record<string, unknown>): void {
    for (const [name, about] of Object.entries(tensors)) {
      const { dtype, shape, data_offsets: offsets } = (isObject(about) ? about : {}) as { dtype?: string; shape?: number[]; data_offsets?: number[] };
      if (!isSizes(shape) || shape.length > 8 || !isSizes(offsets) || offsets.length !== 2) throw this.damaged(`its header does not say where '${name.slice(0, 80)}' is`);
      if (typeof dtype !== "string" || !SIZES[dtype]) throw this.damaged(`'${name.slice(0, 80)}' has the type '${String(dtype).slice(0, 80)}'`);
      const [begin, end] = offsets as [number, number];
      if (product(shape) * SIZES[dtype]! !== end - begin) throw this.damaged(`'${name.slice(0, 80)}' has ${end - begin} bytes, which does not fit ${dtype} of shape (${shape.join(", ")})`);
      this.entries[name] = { dtype, shape, begin, end };
    }
    let end = 0;
    for (const entry of Object.values(this.entries).sort((a, b) => a.begin - b.begin || a.end - b.end)) {
      if (entry.begin !== end) throw this.damaged("its tensors overlap or leave gaps");
      end = entry.end;
    }
    const there = this.file.size - this.begin;
    if (end > there) throw cutOff(this.file.name, `its tensors are ${end} bytes`, there);
    if (end < there) throw this.damaged(`${there - end} bytes follow its last tensor`);
  }

  async #readTensors(): Promise<void> {
    const sums = this.json<Record<string, string>>("crc32");
    const names = Object.keys(this.entries);
    if (!isObject(sums) || Object.keys(sums).length !== names.length || !names.every((name) => name in sums)) throw this.damaged("it does not hold the tensors that its checksums name");
    for (const [name, { begin, end }] of Object.entries(this.entries)) {
      const kept = new Uint8Array(end - begin);
      let sum = 0;
      for (let at = begin; at < end; at += PIECE) {
        const piece = new Uint8Array(await this.file.slice(this.begin + at, this.begin + Math.min(end, at + PIECE)).arrayBuffer());
        sum = crc32(piece, sum);
        kept.set(piece, at - begin);
      }
      if (hex(sum) !== sums[name]) throw this.damaged(`the bytes of '${name}' are not those that were written (their checksum differs)`);
      this.bytes.set(name, kept.buffer);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------- what it records

class Recording {
  readonly layers: Layer[] = [];
  readonly main: Layer;
  readonly #tokens: Tokens[];
  readonly #provenance: Record<string, unknown>;

  constructor(
    private readonly stored: Stored,
    private readonly fileName: string,
  ) {
    const about = stored.json<{ tokens: { stretches?: number[][] }[]; masks: number[]; stacks: Record<string, LayerAbout[]> }>("recording");
    if (!isObject(about) || !Array.isArray(about.tokens) || !about.tokens.length || !Array.isArray(about.masks) || !isObject(about.stacks)) throw stored.damaged("its header does not describe a recording");
    const provenance = stored.json<Record<string, unknown>>("provenance");
    this.#provenance = isObject(provenance) ? provenance : {};
    this.#tokens = about.tokens.map((described, index) => this.#readTokens(`tokens.${index}`, described.stretches ?? []));
    for (const [stack, layers] of Object.entries(about.stacks)) {
      layers.forEach((layer, index) => this.layers.push(this.#describe(layer, `${stack ? `${stack}.` : ""}layer.${index}`, about.masks)));
    }
    const firsts = this.layers.filter((layer, i) => layer.site.stack !== this.layers[i - 1]?.site.stack);
    const main = firsts.find((layer) => !layer.crosses) ?? firsts[0];
    if (!main?.lengths.length) throw new Error(`${fileName} holds no attention layer: there is nothing to show.`);
    this.main = main;
  }

  /** How exact its weights are. */
  get words(): string {
    const types = [...new Set(this.layers.flatMap(({ name }) => ["q", "k"].map((field) => KEPT_IN[this.stored.entries[`${name}.${field}`]!.dtype]!)))];
    return `every weight exact, computed from its q and k (${types.join(", ")}) and each row's log-sum-exp`;
  }

  info(id: string, text: number): RecordingInfo {
    const { main, layers, fileName } = this;
    const tokens = this.#tokens[main.tokens]!;
    const readBy = new Map(layers.map((layer) => [this.#reads(layer), layer]));
    readBy.delete("");
    const infos = layers.map((layer) => this.#layerInfo(layer, text));
    const longest = Math.max(...infos.map((layer) => Math.max(layer.num_queries, layer.num_keys)));
    const { backend, grid: _, frames: __, model = "an unnamed model", ...notes } = this.#provenance;
    const backends = isObject(backend) ? Object.keys(backend).sort() : [...new Set(layers.map((layer) => layer.because))];
    const shownTokens = this.#tokensOf(main, text, []);
    const count = main.lengths.length;
    const [begin, characters] = [tokens.stretches[text]?.[1] ?? 0, [...(tokens.texts[text] ?? "")].length];
    const n = (value: number) => value.toLocaleString("en");
    const part = count === 1 ? "" : tokens.stretches.length
      ? `part ${text + 1} of ${count}: characters ${n(begin)} to ${n(begin + characters)}; ${String(model)} reads ${n(Math.max(...tokens.lengths))} tokens at once`
      : `text ${text + 1} of ${count}`;
    const units = tokens.pieces.length && main.lengths[text]! <= WORD_TOKENS ? unitsOf(this.#textTokens(main, text), () => ordinaryOf(tokens)) : [];
    return {
      id, title: fileName, model: String(model), model_here: false, source: `file ${fileName}`, written: this.#written(text), part_words: part, text,
      num_texts: count, embed_dim: null, layers: infos, num_tokens: shownTokens.length, tokens: shownTokens,
      tokens_of: Object.fromEntries([...readBy].map(([stack, layer]) => [stack, this.#tokensOf(layer, text, [])])),
      words: units.map(({ begin, end, text }) => ({ begin, end, text })),
      backend: backends.filter(Boolean).join("; "), because: [`read from file ${fileName}`, countedLayers(layers.map(({ site }) => site))].filter(Boolean).join("; "),
      notes: Object.fromEntries(Object.entries({ model, ...notes }).map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)])),
      max_level: Math.max(0, 32 - Math.clz32(Math.ceil(longest / TILE) - 1)), mask_token: null, min_level: 0, kept: null,
    };
  }

  /** A text, its sinks found: they are marked in `info`. */
  async text(info: RecordingInfo): Promise<HeadsText> {
    const factors = new Factors("exact weights", this.words.match(/\((.*)\)/)![1]!, info.layers, (index) => this.#factors(this.layers[index]!, info.text));
    const sinks = await this.#sinks(factors, info);
    for (const i of sinks ?? []) info.tokens[i]!.sink = true;
    const heads: Atlas["heads"] = info.layers.flatMap((layer) =>
      Array.from({ length: layer.num_heads }, (_, index) => ({
        head: `${layer.name}H${index}`, stack: layer.stack, layer: layer.layer, index, kv_group: groupOf(layer, index), role: null, values: [],
      })),
    );
    const atlas: Atlas = { recording: info.id, text: info.text, statistics: [], heads, roles_because: NOT_KNOWN, caveat: CAVEAT, exact: "exact" };
    const cards = new Map<string, HeadCard>();
    const card = (head: string, layer: LayerInfo): HeadCard => {
      if (!cards.has(head)) cards.set(head, this.#card(factors, info, head, layer, sinks));
      return cards.get(head)!;
    };
    return { atlas, factors, card };
  }

  #card(factors: Factors, info: RecordingInfo, head: string, layer: LayerInfo, sinks: number[] | null): HeadCard {
    const [index, layerIndex] = [Number(/\d+$/.exec(head)![0]), info.layers.indexOf(layer)];
    const group = groupOf(layer, index);
    const rows = Math.max(1, Math.min(layer.num_queries, Math.floor(LINK_CELLS / layer.num_keys)));
    const links: Link[] = [];
    for (let i = 0; i < rows; i++) {
      const query = Math.floor((i * layer.num_queries) / rows);
      const { weights } = factors.row(layerIndex, index, query);
      if (!layer.crosses) for (const key of sinks ?? []) weights[key] = 0;
      let key = 0;
      weights.forEach((weight, j) => weight > (weights[key]! || 0) && (key = j));
      if (weights[key]! > 0) links.push({ query, key, weight: weights[key]! });
    }
    links.sort((a, b) => b.weight - a.weight);
    const exact = rows === layer.num_queries ? "exact" : `exact; links: of ${rows.toLocaleString("en")} of ${layer.num_queries.toLocaleString("en")} rows, spread evenly`;
    return {
      head, recording: info.id, text: info.text, layer, kv_group: group, role: null, values: [], links: links.slice(0, LINKS), exact,
      shares_with: Array.from({ length: layer.num_heads }, (_, other) => other).filter((other) => other !== index && groupOf(layer, other) === group).map((other) => `${layer.name}H${other}`),
      because: layer.because, caveat: CAVEAT,
    };
  }

  /** The positions at which attention rests, by what every token receives over all heads beside its even share
      (measurement/sinks.py); null where that would take long, or tokens have no names. */
  async #sinks(factors: Factors, info: RecordingInfo): Promise<number[] | null> {
    const { ids, special } = this.#tokens[this.main.tokens]!;
    const cells = info.layers.reduce((sum, layer) => sum + layer.num_heads * layer.num_queries * layer.num_keys, 0);
    if (!ids || !special || cells > SINK_CELLS) return null;
    const size = info.num_tokens;
    const [received, even] = [new Float64Array(size), new Float64Array(size)];
    let [rows, done] = [0, 0];
    const first = info.layers.find((layer) => !layer.crosses)?.stack;
    for (const [layerIndex, layer] of info.layers.entries()) {
      if (layer.crosses || layer.stack !== first) continue;
      for (let query = 0; query < layer.num_queries; query++) {
        for (let head = 0; head < layer.num_heads; head++) {
          const { weights, visible } = factors.row(layerIndex, head, query);
          rows += Number(visible > 0) / layer.num_heads;
          weights.forEach((weight, key) => {
            if (Number.isNaN(weight)) return;
            received[key]! += weight / layer.num_heads;
            even[key]! += 1 / visible / layer.num_heads;
          });
          if ((done += weights.length) < AT_ONCE) continue;
          done = 0;
          await new Promise((resolve) => setTimeout(resolve)); // the page answers the reader in between
        }
      }
    }
    const [names, added] = [ids(info.text), special(info.text)];
    const sum = (values: Float64Array, places: number[]) => places.reduce((total, place) => total + values[place]!, 0) / Math.max(rows, 1);
    const isSink = (places: number[]) => sum(received, places) > SINK_MASS && sum(received, places) > SINK_EXCESS * sum(even, places);
    const sinks = !added[0] && size && isSink([0]) ? [0] : [];
    const elsewhere = names.map((_, place) => place).slice(sinks.length);
    for (const name of new Set(names)) {
      const places = elsewhere.filter((place) => names[place] === name);
      if (isSink(places)) sinks.push(...names.map((_, place) => place).filter((place) => names[place] === name && !sinks.includes(place)));
    }
    return sinks;
  }

  /** One text of a layer, unpacked. */
  #factors(layer: Layer, text: number): LayerFactors {
    const { stored } = this;
    const { num_heads, num_kv_heads, qk_dim, v_dim } = layer.site;
    const hasValues = `${layer.name}.v` in stored.entries;
    const [numQueries, numKeys, before] = [layer.lengths[text]!, this.#numKeys(layer, text), sumOf(layer.lengths.slice(0, text))];
    const part = (field: string, heads: number, positions: number, width: number): Floats => {
      const name = `${layer.name}.${field}`;
      const { shape } = stored.entries[name]!;
      const packed = shape.length === (field === "lse" ? 2 : 3);
      const there = packed ? layer.lengths[text]! : shape[2]!; // fewer than `positions` where keys of padding are seen by nobody
      const begin = (packed ? before : text * there) * heads * width;
      const all = stored.floats(name, begin, begin + there * heads * width);
      if (!packed && there === positions) return all;
      const out = all instanceof Float64Array ? new Float64Array(heads * positions * width) : new Float32Array(heads * positions * width);
      for (let head = 0; head < heads; head++) {
        for (let i = 0; i < Math.min(there, positions); i++) {
          const from = packed ? (i * heads + head) * width : (head * there + i) * width;
          out.set(all.subarray(from, from + width), (head * positions + i) * width);
        }
      }
      return out;
    };
    const mask = `mask.${layer.mask}`;
    const run = (field: string) => {
      const { shape } = stored.entries[`${mask}.${field}`]!;
      const begin = shape.length === 1 ? before : shape[0] === 1 ? 0 : text * shape[1]!;
      return Uint32Array.from(stored.integers(`${mask}.${field}`, begin, begin + numQueries), (key) => Math.max(0, Math.min(numKeys, key)));
    };
    const sinks = `${layer.name}.sinks`;
    return {
      q: part("q", num_heads, numQueries, qk_dim), k: part("k", num_kv_heads, numKeys, qk_dim),
      v: hasValues ? part("v", num_kv_heads, numKeys, v_dim) : null, valueWidth: hasValues ? v_dim : null, lse: part("lse", num_heads, numQueries, 1),
      start: run("start"), stop: run("stop"), dense: `${mask}.dense` in stored.entries ? this.#dense(layer, text, numQueries, numKeys) : null,
      bias: layer.bias === null ? null : this.#bias(layer, text, numQueries, numKeys),
      sinks: sinks in stored.entries ? [...stored.floats(sinks)] : null,
      scale: layer.scale, softcap: layer.softcap, width: qk_dim,
    };
  }

  #dense(layer: Layer, text: number, numQueries: number, numKeys: number): LayerFactors["dense"] {
    const name = `mask.${layer.mask}.dense`;
    const { shape } = this.stored.entries[name]!;
    const squares = layer.lengths.map((length) => length ** 2);
    const packed = shape.length === 1;
    const heads = packed ? Math.floor(shape[0]! / Math.max(1, sumOf(squares))) : shape[1]!;
    const [high, wide] = packed ? [numQueries, numKeys] : [shape[2]!, shape[3]!];
    const begin = packed ? heads * sumOf(squares.slice(0, text)) : (shape[0] === 1 ? 0 : text) * heads * high * wide;
    const cells = this.stored.integers(name, begin, begin + heads * high * wide);
    const rowBytes = Math.ceil(numKeys / 8);
    const bits = new Uint8Array(heads * numQueries * rowBytes);
    for (let head = 0; head < heads; head++) {
      for (let query = 0; query < numQueries; query++) {
        for (let key = 0; key < numKeys; key++) {
          if (cells[(head * high + query) * wide + key]) bits[(head * numQueries + query) * rowBytes + (key >> 3)]! |= 128 >> (key & 7);
        }
      }
    }
    return { bits, heads };
  }

  #bias(layer: Layer, text: number, numQueries: number, numKeys: number): LayerFactors["bias"] {
    const name = `bias.${layer.bias}`;
    const [texts, heads, high, wide] = this.stored.entries[name]!.shape as [number, number, number, number];
    const begin = (texts === 1 ? 0 : text) * heads * high * wide;
    const all = this.stored.floats(name, begin, begin + heads * high * wide);
    if (high === numQueries && wide === numKeys) return { values: all, heads };
    const values = all.slice(0, heads * numQueries * numKeys);
    for (let row = 0; row < heads * numQueries; row++) {
      const from = (Math.floor(row / numQueries) * high + (row % numQueries)) * wide;
      values.set(all.subarray(from, from + numKeys), row * numKeys);
    }
    return { values, heads };
  }

  /** What the header says of a layer, checked as recording/file/format.py does. */
  #describe(about: LayerAbout, name: string, masks: number[]): Layer {
    const { stored } = this;
    const site = isObject(about) ? about.site : undefined;
    const counts = isObject(site) ? [site.num_heads, site.num_kv_heads, site.qk_dim, site.v_dim] : [];
    const tokens = isObject(about) ? this.#tokens[about.tokens] : undefined;
    if (!site || !tokens || !isSizes(counts) || counts.includes(0) || site.num_heads % site.num_kv_heads || typeof about.scale !== "number" || typeof site.stack !== "string" || !Number.isInteger(site.layer)) {
      throw stored.damaged(`its header does not describe ${name}`);
    }
    const lengths = `${name}.lengths` in stored.entries ? this.#lengths(`${name}.lengths`) : tokens.lengths;
    const [texts, longest, rows, squares] = [lengths.length, Math.max(0, ...lengths), sumOf(lengths), sumOf(lengths.map((length) => length ** 2))];
    const shapeOf = (field: string) => stored.entries[`${name}.${field}`]?.shape ?? [];
    const whole = shapeOf("q").length === 4 && shapeOf("k").length === 4;
    const [numQueries, numKeys] = whole ? [shapeOf("q")[2]!, shapeOf("k")[2]!] : [longest, longest];
    const [queried, keyed] = whole ? [[texts, site.num_heads, numQueries], [texts, site.num_kv_heads, numKeys]] : [[rows, site.num_heads], [rows, site.num_kv_heads]];
    stored.check(`${name}.q`, [[...queried, site.qk_dim]], FLOATS);
    stored.check(`${name}.k`, [[...keyed, site.qk_dim]], FLOATS);
    stored.check(`${name}.v`, [[...keyed, site.v_dim]], FLOATS, false);
    stored.check(`${name}.lse`, [queried], FLOATS);
    stored.check(`${name}.sinks`, [[site.num_heads]], FLOATS, false);
    const cells = [1, texts].flatMap((t) => [1, site.num_heads].map((h) => [t, h, numQueries, numKeys]));
    const bias = about.bias ?? null;
    if (bias !== null) stored.check(`bias.${bias}`, cells, FLOATS);
    const mask = `mask.${about.mask}`;
    const runs = [[1, numQueries], [texts, numQueries], ...(numQueries === longest ? [[rows]] : [])];
    for (const field of ["start", "stop"]) stored.check(`${mask}.${field}`, runs, INTEGERS);
    const square = numQueries === longest && numKeys === longest;
    stored.check(`${mask}.dense`, [...cells, ...(square ? [[squares], [squares * site.num_heads]] : [])], ["BOOL"], false);
    if (masks[about.mask] !== numKeys) throw stored.damaged(`${mask} is for ${masks[about.mask]} keys, but ${name} has ${numKeys}`);
    if (longest > numQueries) throw stored.damaged(`${name}.lengths has texts of ${longest} tokens, and its q ${numQueries}`);
    return { ...about, bias, softcap: about.softcap ?? null, name, lengths, crosses: site.stack === "cross" || numQueries !== numKeys };
  }

  #lengths(name: string): number[] {
    const shape = this.stored.entries[name]?.shape ?? [];
    this.stored.check(name, [[shape[0] ?? 0]], INTEGERS);
    const lengths = this.stored.integers(name);
    if (!isSizes(lengths) || lengths.length * Math.max(0, ...lengths) > MOST_POSITIONS) throw this.stored.damaged(`${name} holds lengths that no page can show`);
    return lengths;
  }

  #readTokens(name: string, stretches: number[][]): Tokens {
    const { stored } = this;
    const lengths = this.#lengths(`${name}.lengths`);
    const [rows, longest] = [sumOf(lengths), Math.max(0, ...lengths)];
    const column = (field: string, dtypes: string[], wide = 1): Column | null => {
      const tensor = `${name}.${field}`;
      if (!(tensor in stored.entries)) return null;
      const more = wide > 1 ? [wide] : [];
      stored.check(tensor, [[rows, ...more], [lengths.length, longest, ...more]], dtypes);
      const packed = stored.entries[tensor]!.shape.length === 1 + more.length;
      return (text) => {
        const begin = wide * (packed ? sumOf(lengths.slice(0, text)) : text * longest);
        return stored.integers(tensor, begin, begin + wide * lengths[text]!);
      };
    };
    const pieces = stored.lists(`${name}.pieces`) ?? [];
    const texts = stored.lists(`${name}.texts`) ?? [];
    const fits = pieces.every((row, text) => Array.isArray(row) && row.length >= (lengths[text] ?? 0) && row.every((piece) => typeof piece === "string"));
    if (!fits || !texts.every((text) => typeof text === "string") || !Array.isArray(stretches) || !stretches.every((stretch) => isSizes(stretch?.slice?.(0, 2)))) throw stored.damaged(`what it says of its ${name} does not fit`);
    for (const [field, list] of Object.entries({ pieces, texts, stretches })) {
      if (list.length && list.length !== lengths.length) throw stored.damaged(`${name}.${field} is for ${list.length} texts, but there are ${lengths.length}`);
    }
    return {
      lengths, ids: column("ids", INTEGERS), special: column("special", ["BOOL"]), offsets: column("offsets", INTEGERS, 2),
      pieces: pieces as string[][], texts: texts as string[], stretches,
    };
  }

  #numKeys(layer: Layer, text: number): number {
    if (!layer.crosses) return layer.lengths[text]!;
    const { shape } = this.stored.entries[`${layer.name}.k`]!;
    return shape.length === 4 ? shape[2]! : Math.max(...layer.lengths);
  }

  /** Whose tokens a layer's queries are: "" for the recording's own, else the name of its stack. */
  #reads(layer: Layer): string {
    const { main } = this;
    if (layer.site.stack === main.site.stack || layer.tokens === main.tokens) return "";
    const [own, mains] = [this.#tokens[layer.tokens]!, this.#tokens[main.tokens]!];
    const same = own.ids && mains.ids && own.lengths.every((_, text) => String(own.ids!(text)) === String(mains.ids!(text)));
    return same ? "" : layer.site.stack;
  }

  #layerInfo(layer: Layer, text: number): LayerInfo {
    const { site, scale, softcap, bias, name, crosses, because } = layer;
    const [numKeys, reads] = [this.#numKeys(layer, text), this.#reads(layer)];
    const looksAt = !crosses ? reads : site.stack === "cross" && numKeys === this.#numKeys(this.main, text) ? "" : null;
    const number = (value: number) => String(Number(value.toPrecision(softcap === value ? 6 : 4)));
    const close = Math.abs(scale - site.qk_dim ** -0.5) <= 1e-4 * Math.max(Math.abs(scale), site.qk_dim ** -0.5);
    let scores = close ? `q·k / √${site.qk_dim}` : scale === 1 ? "q·k" : `${number(scale)} q·k`;
    if (softcap !== null) scores = `${number(softcap)} tanh(${scores} / ${number(softcap)})`;
    if (bias !== null) scores += " + bias";
    const sink = `${name}.sinks` in this.stored.entries ? "; a sink beside the keys" : "";
    return {
      ...site, name: site.stack ? `${site.stack}:L${site.layer}` : `L${site.layer}`, crosses, num_queries: layer.lengths[text]!, num_keys: numKeys,
      reads, looks_at: looksAt, formula: `softmax(${scores}${sink})`, because,
    };
  }

  #textTokens(layer: Layer, text: number): TextTokens {
    const tokens = this.#tokens[layer.tokens]!;
    const size = tokens.lengths[text]!;
    const offsets = tokens.offsets?.(text);
    return {
      pieces: tokens.pieces[text]!.slice(0, size),
      special: tokens.special ? tokens.special(text).map(Boolean) : Array<boolean>(size).fill(false),
      offsets: offsets && tokens.texts.length ? Array.from({ length: size }, (_, i) => [offsets[2 * i]!, offsets[2 * i + 1]!]) : null,
      characters: [...(tokens.texts[text] ?? "")],
    };
  }

  #tokensOf(layer: Layer, text: number, sinks: number[]): Token[] {
    const tokens = this.#tokens[layer.tokens]!;
    if (!tokens.pieces.length) {
      return Array.from({ length: layer.lengths[text]! }, (_, i) => ({ piece: String(i), text: "", label: String(i), special: false, sink: false, unknown: false, span: null }));
    }
    const own = this.#textTokens(layer, text);
    const labels = labelsOf(own, () => ordinaryOf(tokens));
    const whole = (written: string) => written.replace(/\p{Surrogate}/gu, "?");
    const shift = tokens.stretches[text]?.[1] ?? 0;
    return own.pieces.map((piece, i) => {
      const [begin, end] = own.offsets?.[i] ?? [0, 0];
      return {
        piece, text: whole(surfaceOf(own, i)), label: whole(labels[i]!), special: own.special[i]!, sink: sinks.includes(i), unknown: UNKNOWN.includes(piece),
        span: end > begin && !own.special[i] ? [shift + begin, shift + end] : null,
      };
    });
  }

  /** The whole text that a part belongs to; put together again where only its windows are known. */
  #written(text: number): string {
    const { texts, stretches } = this.#tokens[this.main.tokens]!;
    if (!stretches.length) return texts[text] ?? "";
    let whole: string[] = [];
    texts.forEach((window, i) => {
      const [source, begin] = stretches[i] as [number, number];
      if (source === stretches[text]![0] && begin <= whole.length) whole = [...whole.slice(0, begin), ...window];
    });
    return whole.join("");
  }
}

function ordinaryOf({ pieces, special, lengths }: Tokens): string[] {
  return lengths.flatMap((size, text) => {
    const added = special?.(text) ?? [];
    return pieces[text]!.slice(0, size).filter((_, i) => !added[i]);
  });
}

/** As `counted_layers` of manyheads/spec.py: a sentence where an earlier manyheads counted the layers that attend, else "". */
export function countedLayers(sites: readonly { stack: string; layer: number; module: string }[]): string {
  const examples = [...new Set(sites.map(({ stack }) => stack))].flatMap((stack) => {
    const own = sites.filter((site) => site.stack === stack);
    const paths = own.map(({ module }) => module.split("#")[0]!.split("."));
    const ends = paths[0]!.findIndex((name, i) => paths.some((path) => path[i] !== name));
    const shared = new Set(paths.map((path) => path.join("."))).size === 1 ? 0 : ends < 0 ? paths[0]!.length : ends;
    const later = own.find((site, i) => Number(paths[i]!.slice(Math.max(1, shared)).find((name) => /^\d+$/.test(name)) ?? 0) > site.layer);
    const counted = own.map(({ layer }) => layer).sort((a, b) => a - b).every((layer, i) => layer === i);
    return later && counted ? [`${stack ? `${stack}:` : ""}L${later.layer} is ${later.module}`] : [];
  });
  return examples.length ? `layers are counted in the order of their first calls, not by the model's own numbers: ${examples.join(", ")}` : "";
}

function groupOf(layer: LayerInfo, head: number): number {
  return Math.floor((head * layer.num_kv_heads) / layer.num_heads);
}

function damaged(name: string, damage: string): Error {
  return new Error(`${name} is damaged: ${damage}. Copy it again, or record again.`);
}

function cutOff(name: string, promised: string, size: number): Error {
  return new Error(`${name} is cut off: ${promised}, but there are ${size}. Copy it again, or record again.`);
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isSizes(values: unknown): values is number[] {
  return Array.isArray(values) && values.every((value) => Number.isSafeInteger(value) && value >= 0);
}

function product(shape: number[]): number {
  return shape.reduce((a, b) => a * b, 1);
}

function sumOf(values: number[]): number {
  return values.reduce((a, b) => a + b, 0);
}

function gb(bytes: number): string {
  return bytes < 1e9 ? `${Math.ceil(bytes / 1e6)} MB` : `${(bytes / 1e9).toFixed(2)} GB`;
}

/** JSON as Python writes it, which knows NaN and Infinity: they become null. Undefined for anything else. */
function parsed<T>(text: string): T | undefined {
  try {
    return JSON.parse(text.replace(/"(?:[^"\\]|\\.)*"|-?\bInfinity\b|\bNaN\b/g, (part) => (part.startsWith('"') ? part : "null"))) as T;
  } catch {
    return undefined;
  }
}

function hex(sum: number): string {
  return sum.toString(16).padStart(8, "0");
}

// Eight tables: a byte each of eight that are taken at once.
const TABLES = Array.from({ length: 8 }, () => new Uint32Array(256));
for (let i = 0; i < 256; i++) {
  let sum = i;
  for (let bit = 0; bit < 8; bit++) sum = sum & 1 ? 0xedb88320 ^ (sum >>> 1) : sum >>> 1;
  TABLES[0]![i] = sum;
}
for (let i = 0; i < 256; i++) for (let t = 1; t < 8; t++) TABLES[t]![i] = TABLES[0]![TABLES[t - 1]![i]! & 255]! ^ (TABLES[t - 1]![i]! >>> 8);

/** CRC-32 (ISO 3309, as zlib's), going on from the sum of what came before. */
export function crc32(bytes: Uint8Array, before = 0): number {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES as [Uint32Array, Uint32Array, Uint32Array, Uint32Array, Uint32Array, Uint32Array, Uint32Array, Uint32Array];
  let [sum, i] = [~before, 0];
  for (; i + 8 <= bytes.length; i += 8) {
    sum ^= bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24);
    sum = t7[sum & 255]! ^ t6[(sum >>> 8) & 255]! ^ t5[(sum >>> 16) & 255]! ^ t4[sum >>> 24]! ^ t3[bytes[i + 4]!]! ^ t2[bytes[i + 5]!]! ^ t1[bytes[i + 6]!]! ^ t0[bytes[i + 7]!]!;
  }
  for (; i < bytes.length; i++) sum = t0[(sum ^ bytes[i]!) & 255]! ^ (sum >>> 8);
  return ~sum >>> 0;
}
