// Where a map's numbers come from: tiles and rows of one head, cached, and never requested twice at the same time. The
// difference of two heads is a feed too: a feed is anything that returns tiles of values.
import type { Client } from "../api/client";
import { float32 } from "../api/envelope";
import { finestLevel } from "../api/snapshot";
import { TILE, type How, type LayerInfo, type RecordingInfo } from "../api/types";
import { cellsAt, type LruCache } from "./tiles";
import { seen } from "./weights";

export interface TileValues {
  values: Float32Array;
  rows: number;
  columns: number;
  exact: boolean;
  words: string;
}

export interface RowValues {
  weights: Float32Array;
  /** The share of the row that went to sinks that are no token. */
  missing: number;
  visible: number;
  /** Which weights a saved page holds of the row, in words; empty where it holds all. */
  partial: string;
}

export interface Feed {
  /** Names everything that the numbers depend on. */
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  /** The finest level that exists: 0, except in a saved page. */
  readonly minLevel: number;
  /** The coarsest level. */
  readonly maxLevel: number;
  readonly how: How;
  /** A tile that is already cached. */
  peek(level: number, column: number, row: number): TileValues | undefined;
  tile(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues>;
  /** The tile computed from every row, where `tile` returned one from sampled rows. */
  refine(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues>;
}

/** A head's map, with its rows. */
export interface RowFeed extends Feed {
  readonly head: string;
  /** A row that is already here. */
  peekRow(query: number): RowValues | undefined;
  /** One query's exact weights over all keys. */
  row(query: number): Promise<RowValues>;
}

export class HeadFeed implements RowFeed {
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  readonly minLevel: number;
  readonly #recording: string;
  readonly #part: number;
  #requests = new Map<string, Promise<TileValues>>();
  #rows = new Map<number, Promise<RowValues>>();
  #read = new Map<number, RowValues>();

  constructor(
    private readonly client: Client,
    private readonly store: LruCache<TileValues>,
    info: RecordingInfo,
    layer: LayerInfo,
    readonly head: string,
    readonly how: How,
    readonly maxLevel: number,
  ) {
    this.#recording = info.id;
    this.#part = info.text;
    this.numQueries = layer.num_queries;
    this.numKeys = layer.num_keys;
    this.minLevel = finestLevel(info, how);
    this.key = `${info.id}/${info.text}/${head}/${how}`;
  }

  peek(level: number, column: number, row: number): TileValues | undefined {
    return this.store.get(this.#name(level, column, row));
  }

  tile(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues> {
    return this.#get(level, column, row, "auto", signal);
  }

  refine(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues> {
    return this.#get(level, column, row, "all", signal);
  }

  /** A row that was read, or one of a map whose cells are on screen: then no request is needed. */
  peekRow(query: number): RowValues | undefined {
    const read = this.#read.get(query);
    if (read || this.numKeys > TILE) return read;
    const tile = this.peek(0, 0, Math.floor(query / TILE));
    if (!tile) return undefined;
    const begin = (query % TILE) * tile.columns;
    const weights = tile.values.slice(begin, begin + tile.columns);
    return { weights, ...seen(weights), partial: "" };
  }

  row(query: number): Promise<RowValues> {
    let row = this.#rows.get(query);
    if (!row) {
      row = this.client.row(this.#recording, this.head, query, this.#part).then((envelope) => ({
        weights: float32(envelope, "weights").data,
        missing: Number(envelope.header["missing"] ?? 0),
        visible: Number(envelope.header["visible"] ?? this.numKeys),
        partial: envelope.header["whole"] === false ? (envelope.header.words ?? "") : "",
      }));
      if (this.#rows.size > 64) {
        const oldest = this.#rows.keys().next().value!;
        this.#rows.delete(oldest);
        this.#read.delete(oldest);
      }
      this.#rows.set(query, row);
      row.then((values) => this.#rows.has(query) && this.#read.set(query, values), () => this.#rows.delete(query));
    }
    return row;
  }

  // At level 0 the mean and the largest of one cell are the cell itself: both share their tiles.
  #name(level: number, column: number, row: number): string {
    return `${this.#recording}/${this.#part}/${this.head}/${level ? this.how : "cell"}/${level}/${column}/${row}`;
  }

  #get(level: number, column: number, row: number, rows: "auto" | "all", signal?: AbortSignal): Promise<TileValues> {
    const name = this.#name(level, column, row);
    const cached = this.store.get(name);
    if (cached && (cached.exact || rows === "auto")) return Promise.resolve(cached);
    const running = this.#requests.get(name + rows);
    if (running && !signal) return running; // with a signal of its own, a request must be one that the signal may abort
    const request = this.client
      .tile(this.#recording, this.head, level, column, row, { text: this.#part, how: this.how, rows }, signal)
      .then((envelope) => {
        const { data, shape } = float32(envelope, "values");
        const tile: TileValues = {
          values: data, rows: shape[0]!, columns: shape[1]!,
          exact: envelope.header.exact ?? true, words: envelope.header.words ?? "",
        };
        this.store.set(name, tile);
        return tile;
      })
      .finally(() => this.#requests.delete(name + rows));
    this.#requests.set(name + rows, request);
    return request;
  }
}

/** Column and row of the tiles of a level that a region of level-0 cells touches. */
export function* tilesIn(feed: Feed, level: number, x0: number, y0: number, x1: number, y1: number): Generator<[number, number]> {
  const side = TILE * 2 ** level;
  const last = (n: number) => Math.ceil(cellsAt(n, level) / TILE) - 1;
  for (let row = Math.max(0, Math.floor(y0 / side)); row <= Math.min(last(feed.numQueries), Math.floor(y1 / side)); row++) {
    for (let column = Math.max(0, Math.floor(x0 / side)); column <= Math.min(last(feed.numKeys), Math.floor(x1 / side)); column++) {
      yield [column, row];
    }
  }
}
