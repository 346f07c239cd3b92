// What the head room derives from a head: the tokens of its rows and columns, its neighbours, and files of what is on screen.
import type { Client } from "../../lib/api/client";
import type { AtlasHead, LayerInfo, Link, RecordingInfo, Token, WordInfo } from "../../lib/api/types";
import { rasterise, saveFile, savePng, saveSvg, standalone } from "../../lib/draw/export";
import { mapSvg, type MapFigure } from "../../lib/draw/figure";
import { percent, quoted } from "../../lib/draw/format";
import { roleGroup } from "../../lib/draw/role-groups";

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

const GENERAL = new Set(["sink", "broad", "unlabelled"]); // what many heads do, whatever the text
const SPECIFIC = ["previous_mass", "next_mass", "duplicate_mass", "induction_mass", "rare_mass", "punctuation_mass"];

/** The heads to begin with, one for each kind of role: those of the surest roles first, that is, farthest from chance.
    Without roles, the heads that stand out most in one of the statistics that look at certain tokens. */
export function tellingHeads({ heads, statistics }: { heads: readonly AtlasHead[]; statistics: readonly { name: string }[] }): string[] {
  const best = new Map<string, { head: string; margin: number }>();
  const offer = (kind: string, head: string, margin: number) => {
    if (margin > (best.get(kind)?.margin ?? 0)) best.set(kind, { head, margin });
  };
  for (const { head, role } of heads) {
    if (role && !GENERAL.has(role.family)) offer(role.family, head, role.evidence.distance ?? 0);
  }
  if (!best.size) {
    statistics.forEach(({ name }, column) => {
      if (SPECIFIC.includes(name)) for (const { head, values } of heads) offer(name, head, values[column] ?? 0);
    });
  }
  const ranked = Array.from(best.values()).sort((a, b) => b.margin - a.margin);
  return Array.from(new Set(ranked.map(({ head }) => head)));
}

/** The row to begin with in a head: that of its strongest link between two ordinary words that are no neighbours, else of any two
    words, else of its strongest link; null for a head without links. */
export function tellingRow(links: readonly Link[], queries: readonly Token[] | null, keys: readonly Token[] | null): number | null {
  const spoken = (token: Token | undefined) => token !== undefined && !token.special && !token.sink && /\p{L}/u.test(token.text);
  const ordinary = links.filter(({ query, key }) => spoken(queries?.[query]) && spoken(keys?.[key]) && (queries !== keys || query !== key));
  return (ordinary.find(({ query, key }) => Math.abs(query - key) > 1) ?? ordinary[0] ?? links[0])?.query ?? null;
}

/** What a head does with one word, as the rest of a sentence about it: its largest weight, and where that goes. */
export function linkWords(queries: readonly Token[], query: number, keys: readonly Token[], key: number, weight: number): string {
  const [from, to] = [quoted(queries, query), quoted(keys, key)];
  if (keys[key]?.sink || keys[key]?.special) return `parks ${percent(weight)} of the look of ${from} on ${to}`;
  return queries[query] === keys[key] ? `keeps ${from} to itself, ${percent(weight)}` : `links ${from} to ${to}, ${percent(weight)}`;
}

/** The share of a head's attention that goes to sinks on this text; null where that is not known. */
export function sinkShare({ heads, statistics }: { heads: readonly AtlasHead[]; statistics: readonly { name: string }[] }, name: string): number | null {
  const column = statistics.findIndex((statistic) => statistic.name === "sink_mass");
  return heads.find(({ head }) => head === name)?.values[column] ?? null;
}

/** How several heads are told apart in one drawing: by the colours of their roles, as everywhere; dashes where a role, or none, is
    there again. */
export function lineStyles(families: readonly (string | null | undefined)[]): { colour: string; dash: string }[] {
  const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 6", "1 2"];
  const groups = families.map((family) => roleGroup(family));
  return groups.map((group, i) => ({
    colour: group.letter ? group.colour : "var(--ink-2)",
    dash: DASHES[groups.slice(0, i).filter((other) => other === group).length % DASHES.length]!,
  }));
}

export const MOST_LINED = 6; // heads in one drawing of lines
export const MOST_LINES = 120; // tokens: with more, the lines cannot be told apart

/** The head `by` places after a head of the model; null beyond the first or the last. */
export function stepHead(heads: readonly AtlasHead[], name: string, by: number): string | null {
  const index = heads.findIndex(({ head }) => head === name);
  return index < 0 ? (heads[0]?.head ?? null) : (heads[index + by]?.head ?? null);
}

/**
 * The head of the same number `by` layers up or down in the same stack, of the layers that attend; the layer's last head
 * if it has fewer.
 */
export function stepLayer(heads: readonly AtlasHead[], name: string, by: number): string | null {
  const current = heads.find(({ head }) => head === name);
  if (!current) return heads[0]?.head ?? null;
  const own = heads.filter(({ stack }) => stack === current.stack);
  const numbers = [...new Set(own.map(({ layer }) => layer))].sort((a, b) => a - b);
  const number = numbers[numbers.indexOf(current.layer) + by];
  const layer = own.filter(({ layer }) => layer === number);
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
