// A page that was saved: everything it can say is in the snapshot inside it. What it cannot is said in plain words.
import type { Envelope, EnvelopeArray, Numbers } from "./envelope";
import { csvOf } from "./export";
import { Snapshot, type KeptText } from "./snapshot";
import { Answer, StudioError, type Source } from "./source";
import { TILE } from "./tiles";
import type { How } from "./types";

const SAVED = "This page was saved and has no model behind it.";
const INSTEAD = "The studio does this: manyheads studio.";

export class FileSource implements Source {
  readonly home = "file";
  readonly #snapshot: Promise<Snapshot>;

  constructor(bytes: Promise<ArrayBuffer> | ArrayBuffer) {
    this.#snapshot = Promise.resolve(bytes).then((all) => Snapshot.read(all));
    this.#snapshot.catch(() => undefined); // whoever asks is told
  }

  async get(path: string, signal?: AbortSignal): Promise<Answer> {
    const found = await this.find(path);
    signal?.throwIfAborted();
    return found;
  }

  send(): Promise<Answer> {
    return Promise.reject(saved(`${SAVED} ${INSTEAD}`));
  }

  /** What the snapshot says to a path. Throws StudioError where it holds nothing of it. */
  async find(path: string): Promise<Answer> {
    const snapshot = await this.#snapshot.catch((error: unknown) => {
      throw saved(`What was saved cannot be read: ${error instanceof Error ? error.message : String(error)}.`);
    });
    const { pathname, searchParams } = new URL(path, "http://saved/");
    const parts = pathname.split("/").slice(2).map(decodeURIComponent);
    if (parts[0] === "workspace") return json(snapshot.workspace);
    if (parts[0] !== "recordings" || parts.length < 2) throw saved(`${SAVED} ${INSTEAD}`);
    const [, id, what, ...rest] = parts;
    const at = Number(searchParams.get("text") ?? 0);
    const info = snapshot.infos[at];
    if (id !== snapshot.infos[0]?.id) throw saved(`${SAVED} It holds one recording, and not this one.`);
    if (!info) throw saved(`${SAVED} It holds ${snapshot.words}.`);
    if (what === undefined) return json(info);
    return ofText(await snapshot.text(at), what, rest, searchParams);
  }
}

function ofText(text: KeptText, what: string, rest: string[], query: URLSearchParams): Answer {
  const how: How = query.get("how") === "max" ? "max" : "mean";
  const head = rest[0] ?? "";
  if (what === "atlas") return json(text.atlas);
  if (what === "thumbnails") {
    const { maps, peaks, side, words } = text.thumbnails(how);
    const header = { heads: text.heads, how, words, exact: text.exact, text: text.info.text };
    return arraysOf(header, { maps: [maps, text.heads.length, side, side], peaks: [peaks, peaks.length] });
  }
  if (what === "table") return table(text, query.get("format") ?? "csv");
  if (!text.has(head)) throw saved(`There is no head ${head} in this page.`);
  if (what === "heads" && rest.length === 1) return json(text.card(head));
  if (what === "tiles") return tile(text, head, how, rest.slice(1).map(Number));
  if (what === "rows") {
    const row = text.row(head, Number(rest[1]));
    if (!row) throw saved("A text this long is saved without its rows. The studio shows them: manyheads studio.");
    const { weights, ...header } = row;
    return arraysOf({ ...header, head, row: Number(rest[1]), exact: true }, { weights: [weights, weights.length] });
  }
  if (what === "window") return windowOf(text, head, query);
  throw saved(`${SAVED} ${INSTEAD}`);
}

function tile(text: KeptText, head: string, how: How, [level = 0, column = 0, row = 0]: number[]): Answer {
  const found = text.tile(head, how, level, column, row, TILE);
  if (!found) throw saved(`There is no tile ${column}, ${row} of level ${level} in this map.`);
  const header = { level, column, row, how, cells: 2 ** level, exact: text.exact, words: found.words };
  return arraysOf(header, { values: [found.values, found.rows, found.columns] });
}

/** Every head's numbers, as the server's file but for chance levels. */
function table(text: KeptText, format: string): Answer {
  const { atlas, info } = text;
  const names = ["head", "stack", "layer", "index", "module", ...atlas.statistics.map((each) => each.name)];
  const rows = atlas.heads.map((head) => {
    const layer = info.layers.find((each) => each.stack === head.stack && each.layer === head.layer);
    return [head.head, head.stack, head.layer, head.index, layer?.module ?? "", ...head.values];
  });
  if (format === "csv") return fileOf("text/csv", csvOf([names, ...rows]));
  if (format === "json") {
    return fileOf("application/json", JSON.stringify(rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])))));
  }
  throw saved(`A saved page writes .csv and .json, not .${format}. ${INSTEAD}`);
}

/** A window of exact weights, where those are here. */
function windowOf(text: KeptText, head: string, query: URLSearchParams): Answer {
  if (text.level > 0) throw saved(`${SAVED} Of a text this long it holds blocks of cells, not every weight. ${INSTEAD}`);
  if (query.get("format") === "parquet") throw saved(`A saved page writes .csv, not .parquet. ${INSTEAD}`);
  const { values, rows, columns } = text.map(head, "mean", 0);
  const [top, bottom] = span(query.get("queries"), rows);
  const [left, right] = span(query.get("keys"), columns);
  const layer = text.layerOf(head);
  const name = (at: number) => text.info.tokens[at]?.piece ?? "";
  const names = ["query", "key", "query_token", ...(layer.crosses ? [] : ["key_token"]), "weight"];
  const found: (string | number)[][] = [];
  for (let q = top; q < bottom; q++) {
    for (let k = left; k < right; k++) {
      const weight = values[q * columns + k]!;
      if (weight === weight) found.push([q, k, name(q), ...(layer.crosses ? [] : [name(k)]), weight]);
    }
  }
  return fileOf("text/csv", csvOf([names, ...found]));
}

function span(asked: string | null, length: number): [number, number] {
  const [begin = "", end = ""] = (asked ?? ":").split(":");
  return [Math.min(Number(begin || 0), length), Math.min(Number(end || length), length)];
}

function saved(words: string): StudioError {
  return new StudioError(400, { kind: "Saved", words });
}

/** An answer that never was bytes. */
class Kept extends Answer {
  constructor(
    kind: string,
    private readonly value: unknown,
    bytes = new ArrayBuffer(0),
  ) {
    super(200, kind, bytes);
  }

  override json<T>(): T {
    return this.value as T;
  }

  override envelope(): Envelope {
    return this.value as Envelope;
  }
}

function json(value: unknown): Answer {
  return new Kept("application/json", value);
}

function fileOf(kind: string, text: string): Answer {
  return new Kept(kind, null, new TextEncoder().encode(text).buffer);
}

function arraysOf(header: Record<string, unknown>, given: Record<string, [Numbers, ...number[]]>): Answer {
  const arrays: Record<string, EnvelopeArray> = {};
  for (const [name, [data, ...shape]] of Object.entries(given)) arrays[name] = { name, dtype: "", shape, data };
  return new Kept("application/vnd.manyheads.arrays", { header: { ...header, arrays: [] }, arrays });
}
