// A head's map between words: the pieces of a word that is looked at are summed, those of one that looks are averaged, as in
// the library's `word_weights`. Merged in the page, from exact weights of pieces, so that a saved page can do it as well.
import { TILE, type How, type Token, type WordInfo } from "../api/types";
import { tilesIn, type HeadFeed, type RowFeed, type RowValues, type TileValues } from "./feed";
import { cellsAt, topLevel } from "./tiles";
import { seen } from "./weights";

export const MOST_MERGED = 1024; // tokens: 16 tiles of weights, 4 MiB

/** Words, and tokens of no word, as one axis of a map. */
export interface WordAxis {
  /** Each word as a token of its own, to be named by what names tokens. */
  units: Token[];
  /** Each word's first token. */
  first: number[];
  /** The word of each token. */
  of: number[];
}

export function wordAxis(tokens: readonly Token[], words: readonly WordInfo[]): WordAxis {
  const axis: WordAxis = { units: [], first: [], of: [] };
  let next = 0;
  for (let begin = 0; begin < tokens.length; ) {
    while (words[next] && words[next]!.begin < begin) next += 1;
    const word = words[next]?.begin === begin ? words[next] : undefined;
    const pieces = tokens.slice(begin, word?.end ?? begin + 1);
    const token = pieces[0]!;
    axis.units.push(
      word && pieces.length > 1
        ? { ...token, piece: word.text, text: word.text, label: word.text, span: joined(pieces), sink: pieces.some(({ sink }) => sink), unknown: pieces.some(({ unknown }) => unknown) }
        : token,
    );
    axis.first.push(begin);
    for (const _ of pieces) axis.of.push(axis.units.length - 1);
    begin += pieces.length;
  }
  return axis;
}

function joined(pieces: readonly Token[]): [number, number] | null {
  const [first, last] = [pieces[0]!.span, pieces.at(-1)!.span];
  return first && last ? [first[0], last[1]] : null;
}

export class WordFeed implements RowFeed {
  readonly key: string;
  readonly head: string;
  readonly how: How;
  readonly numQueries: number;
  readonly numKeys: number;
  readonly minLevel = 0;
  readonly maxLevel: number;
  #whole: Promise<TileValues> | null = null;
  #cells: TileValues | null = null;
  #tiles = new Map<string, TileValues>();

  constructor(
    private readonly pieces: HeadFeed,
    readonly rows: WordAxis,
    readonly columns: WordAxis,
    maxLevel?: number,
  ) {
    this.key = `${pieces.key}/words`;
    this.head = pieces.head;
    this.how = pieces.how;
    this.numQueries = rows.units.length;
    this.numKeys = columns.units.length;
    this.maxLevel = maxLevel ?? topLevel(this.numQueries, this.numKeys);
  }

  peek(level: number, column: number, row: number): TileValues | undefined {
    const name = `${level}/${column}/${row}`;
    const tile = this.#tiles.get(name) ?? (this.#cells ? cut(this.#cells, level, column, row, this.how) : undefined);
    if (tile) this.#tiles.set(name, tile);
    return tile;
  }

  async tile(level: number, column: number, row: number): Promise<TileValues> {
    await this.#merged();
    return this.peek(level, column, row)!;
  }

  refine(level: number, column: number, row: number): Promise<TileValues> {
    return this.tile(level, column, row);
  }

  peekRow(query: number): RowValues | undefined {
    const cells = this.#cells;
    if (!cells) return undefined;
    const weights = cells.values.slice(query * cells.columns, (query + 1) * cells.columns);
    return { weights, ...seen(weights), partial: "" };
  }

  async row(query: number): Promise<RowValues> {
    await this.#merged();
    return this.peekRow(query)!;
  }

  /** Each word's best word apart from sinks, the strongest first: as the head card's links between tokens. */
  async links(most: number): Promise<{ query: number; key: number; weight: number }[]> {
    const { values, columns } = await this.#merged();
    const best = this.rows.units.map((_, query) => {
      let [key, weight] = [-1, 0];
      for (let k = 0; k < columns; k++) if (!this.columns.units[k]!.sink && values[query * columns + k]! > weight) [key, weight] = [k, values[query * columns + k]!];
      return { query, key, weight };
    });
    return best.filter(({ key }) => key >= 0).sort((a, b) => b.weight - a.weight).slice(0, most);
  }

  #merged(): Promise<TileValues> {
    this.#whole ??= this.#merge().catch((error: unknown) => {
      this.#whole = null; // the next request tries again
      throw error;
    });
    return this.#whole;
  }

  async #merge(): Promise<TileValues> {
    const { pieces, rows, columns, numQueries, numKeys } = this;
    const sums = new Float64Array(numQueries * numKeys);
    const visible = new Uint8Array(sums.length);
    const counts = rows.of.reduce((all, word) => ((all[word]! += 1), all), new Float64Array(numQueries));
    let words = "";
    const addresses = Array.from(tilesIn(pieces, 0, 0, 0, pieces.numKeys - 1, pieces.numQueries - 1));
    await Promise.all(addresses.map(async ([column, row]) => {
      const tile = await pieces.tile(0, column, row);
      words ||= tile.words;
      for (let r = 0; r < tile.rows; r++) {
        const line = rows.of[row * TILE + r]!;
        for (let c = 0; c < tile.columns; c++) {
          const value = tile.values[r * tile.columns + c]!;
          if (Number.isNaN(value)) continue; // a hidden cell adds nothing
          const cell = line * numKeys + columns.of[column * TILE + c]!;
          visible[cell] = 1;
          sums[cell]! += value / counts[line]!;
        }
      }
    }));
    const values = Float32Array.from(sums, (sum, cell) => (visible[cell] ? sum : NaN));
    return (this.#cells = { values, rows: numQueries, columns: numKeys, exact: true, words: `${words} between words: pieces summed, rows averaged` });
  }
}

/** A tile of a level, pooled from all cells. */
function cut(cells: TileValues, level: number, column: number, row: number, how: How): TileValues | undefined {
  const span = 2 ** level;
  const [top, left] = [row * TILE, column * TILE];
  const rows = Math.min(TILE, cellsAt(cells.rows, level) - top);
  const columns = Math.min(TILE, cellsAt(cells.columns, level) - left);
  if (rows <= 0 || columns <= 0) return undefined;
  const values = new Float32Array(rows * columns).fill(NaN);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      let [sum, most, count] = [0, 0, 0];
      for (let y = (top + r) * span; y < Math.min(cells.rows, (top + r + 1) * span); y++) {
        for (let x = (left + c) * span; x < Math.min(cells.columns, (left + c + 1) * span); x++) {
          const value = cells.values[y * cells.columns + x]!;
          if (Number.isNaN(value)) continue;
          count += 1;
          sum += value;
          most = Math.max(most, value);
        }
      }
      if (count) values[r * columns + c] = how === "max" ? most : sum / count;
    }
  }
  return { values, rows, columns, exact: true, words: level ? `${how} of ${span} × ${span} cells of ${cells.words}` : cells.words };
}
