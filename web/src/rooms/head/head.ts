// What the head room derives from a head: the tokens of its rows and columns, its neighbours, and files of what is on screen.
import type { Client } from "../../lib/api/client";
import type { AtlasHead, LayerInfo, RecordingInfo, Token, WordInfo } from "../../lib/api/types";
import { rasterise, saveFile, savePng, saveSvg, standalone } from "../../lib/draw/export";
import { mapSvg, type MapFigure } from "../../lib/draw/figure";

interface AxisTokens {
  queries: Token[] | null;
  keys: Token[] | null;
  queryWords: WordInfo[] | null;
  keyWords: WordInfo[] | null;
}

/** The tokens of a head's rows and columns: the recording's own, or another text's under cross-attention. Null for an axis
    that is no text or has another length than its tokens: its positions are shown instead. */
export function axisTokens(info: RecordingInfo, layer: LayerInfo): AxisTokens {
  const tokensOf = (name: string | null, length: number): Token[] | null => {
    const tokens = name === null ? null : name === "" ? info.tokens : (info.tokens_of[name] ?? null);
    return tokens?.length === length ? tokens : null;
  };
  const queries = tokensOf(layer.reads, layer.num_queries);
  const keys = tokensOf(layer.looks_at, layer.num_keys);
  return {
    queries,
    keys,
    queryWords: queries === info.tokens ? info.words : null,
    keyWords: keys === info.tokens ? info.words : null,
  };
}

/** The head `by` places after a head of the model; null beyond the first or the last. */
export function stepHead(heads: readonly AtlasHead[], name: string, by: number): string | null {
  const index = heads.findIndex(({ head }) => head === name);
  return index < 0 ? (heads[0]?.head ?? null) : (heads[index + by]?.head ?? null);
}

/** The head of the same number `by` layers up or down in the same stack; the layer's last head if it has fewer. */
export function stepLayer(heads: readonly AtlasHead[], name: string, by: number): string | null {
  const current = heads.find(({ head }) => head === name);
  if (!current) return heads[0]?.head ?? null;
  const layer = heads.filter(({ stack, layer }) => stack === current.stack && layer === current.layer + by);
  return (layer.find(({ index }) => index === current.index) ?? layer.at(-1))?.head ?? null;
}

/** What is on screen: a drawing, or a map to be drawn with its rulers. */
export interface Screen {
  svg: SVGSVGElement | null;
  map: MapFigure | null;
  paper: string;
  /** The file's name without its ending. */
  name: string;
}

function screenSvg({ svg, map, paper }: Screen): string {
  return svg ? standalone(svg, paper) : mapSvg(map!);
}

export function exportSvg(screen: Screen): void {
  saveSvg(screenSvg(screen), `${screen.name}.svg`);
}

export async function exportPng(screen: Screen): Promise<void> {
  await savePng(await rasterise(screenSvg(screen)), `${screen.name}.png`);
}

const MAX_SIDE = 512; // cells of an exported window: for more, the library's own files are the better source

/** Saves the exact weights of a window, cut to 512 x 512 cells; `x` and `y` are the ranges of keys and queries. */
export async function exportWindow(
  client: Client, id: string, part: number, head: string, format: "csv" | "parquet", x: [number, number], y: [number, number],
): Promise<void> {
  const range = ([begin, end]: [number, number]) => `${begin}:${Math.min(end, begin + MAX_SIDE)}`;
  const answer = await client.window(id, head, format, range(y), range(x), part);
  saveFile(answer.bytes, answer.kind, `${head}-${range(y)}-${range(x)}.${format}`.replaceAll(":", "to"));
}
