// Where a map's numbers come from: tiles and rows of one head, kept once fetched and asked for once at a time. A
// difference of two heads can be a feed as well: whatever gives tiles of values.
import type { Client } from "./client";
import { float32 } from "./envelope";
import { finestOf } from "./snapshot";
import { TILE, cellsAt, type Kept } from "./tiles";
import type { How, LayerInfo, RecordingInfo } from "./types";

export interface TileValues {
  values: Float32Array;
  rows: number;
  columns: number;
  exact: boolean;
  words: string;
}

export interface RowValues {
  weights: Float32Array;
  /** What went to sinks that are no token. */
  missing: number;
  visible: number;
  /** Of a saved page's row: what of it is known, where that is not all. */
  partial: string;
}

export interface Feed {
  /** Names all that the numbers hang on. */
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  /** The finest level there is: 0, but in a page that was saved. */
  readonly minLevel: number;
  /** The coarsest level. */
  readonly maxLevel: number;
  readonly how: How;
  /** A tile that is here already. */
  peek(level: number, column: number, row: number): TileValues | undefined;
  tile(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues>;
  /** The same from every row, where `tile` sampled them. */
  refine(level: number, column: number, row: number, signal?: AbortSignal): Promise<TileValues>;
}

export class HeadFeed implements Feed {
  readonly key: string;
  readonly numQueries: number;
  readonly numKeys: number;
  readonly minLevel: number;
  readonly #recording: string;
  readonly #part: number;
  #asked = new Map<string, Promise<TileValues>>();
  #rows = new Map<number, Promise<RowValues>>();

  constructor(
    private readonly client: Client,
    private readonly store: Kept<TileValues>,
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
    this.minLevel = finestOf(info, how);
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

  /** One query's exact weights over all keys. */
  row(query: number): Promise<RowValues> {
    let found = this.#rows.get(query);
    if (!found) {
      found = this.client.row(this.#recording, this.head, query, this.#part).then((envelope) => ({
        weights: float32(envelope, "weights").data,
        missing: Number(envelope.header["missing"] ?? 0),
        visible: Number(envelope.header["visible"] ?? this.numKeys),
        partial: envelope.header["whole"] === false ? (envelope.header.words ?? "") : "",
      }));
      if (this.#rows.size > 64) this.#rows.delete(this.#rows.keys().next().value!);
      this.#rows.set(query, found);
      found.catch(() => this.#rows.delete(query));
    }
    return found;
  }

  // At level 0 a mean and a largest of one cell are the cell: both share their tiles.
  #name(level: number, column: number, row: number): string {
    return `${this.#recording}/${this.#part}/${this.head}/${level ? this.how : "cell"}/${level}/${column}/${row}`;
  }

  #get(level: number, column: number, row: number, rows: "auto" | "all", signal?: AbortSignal): Promise<TileValues> {
    const name = this.#name(level, column, row);
    const kept = this.store.get(name);
    if (kept && (kept.exact || rows === "auto")) return Promise.resolve(kept);
    const running = this.#asked.get(name + rows);
    if (running && !signal) return running;
    const asked = this.client
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
      .finally(() => this.#asked.delete(name + rows));
    this.#asked.set(name + rows, asked);
    return asked;
  }
}

/** The tiles of a level that a region of level-0 cells touches. */
export function* tilesIn(feed: Feed, level: number, x0: number, y0: number, x1: number, y1: number): Generator<[number, number]> {
  const side = TILE * 2 ** level;
  const last = (n: number) => Math.ceil(cellsAt(n, level) / TILE) - 1;
  for (let row = Math.max(0, Math.floor(y0 / side)); row <= Math.min(last(feed.numQueries), Math.floor(y1 / side)); row++) {
    for (let column = Math.max(0, Math.floor(x0 / side)); column <= Math.min(last(feed.numKeys), Math.floor(x1 / side)); column++) {
      yield [column, row];
    }
  }
}
