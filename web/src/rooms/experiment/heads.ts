// Sets of heads as a reader ticks them, and as the library's grammar writes them: "L3H7, L5", "L*H0", "encoder:L0H1-3".
//
// The sandbox's grid holds a set of names, a plan's step one text of the grammar. The text is as short as possible (whole
// layers, runs, the same column in every layer), since a step takes at most 4,000 characters.
import type { LayerInfo } from "../../lib/api/types";
import { inSentence, percent, turnOf } from "../../lib/draw/format";

/** The fields of a layer that this file uses. */
export type LayerShape = Pick<LayerInfo, "stack" | "layer" | "num_heads"> & Partial<Pick<LayerInfo, "num_kv_heads">>;

interface HeadPlace {
  stack: string;
  layer: number;
  index: number;
}

const PART = /^(?:([A-Za-z_][A-Za-z0-9_.]*):)?L(\*|\d+(?:-\d+)?)(?:H(\*|\d+(?:-\d+)?))?$/;

export function layerName(stack: string, layer: number | string): string {
  return stack ? `${stack}:L${layer}` : `L${layer}`;
}

export function headName(stack: string, layer: number, index: number): string {
  return `${layerName(stack, layer)}H${index}`;
}

/** The place that "encoder:L3H7" names, or null. */
export function placeOf(head: string): HeadPlace | null {
  const match = /^(?:([A-Za-z_][A-Za-z0-9_.]*):)?L(\d+)H(\d+)$/.exec(head.trim());
  return match ? { stack: match[1] ?? "", layer: Number(match[2]), index: Number(match[3]) } : null;
}

export function headsOfLayer(layer: LayerShape): string[] {
  return Array.from({ length: layer.num_heads }, (_, index) => headName(layer.stack, layer.layer, index));
}

/** What a visitor begins with: the head that links two words of the open text most, and what it does; null where none is known. */
export function beginning(
  link: { head: string; query: number; key: number; weight: number } | null | undefined, tokens: readonly { label: string }[], heads: readonly string[],
): { head: string; words: string } | null {
  const labels = tokens.map(({ label }) => label);
  const [query, key] = [link ? labels[link.query] : undefined, link ? labels[link.key] : undefined];
  if (!link || query === undefined || key === undefined || !heads.includes(link.head)) return null;
  return { head: link.head, words: `${link.head} links ${inSentence(query, turnOf(labels, link.query))} to ${inSentence(key, turnOf(labels, link.key))} (${percent(link.weight)}).` };
}

export function allHeads(layers: readonly LayerShape[]): string[] {
  return layers.flatMap(headsOfLayer);
}

/** The heads, but the first, with which a group begins that shares one key/value head; none where every head has its own, all
    share one, or layers differ. */
export function groupStarts(layers: readonly LayerShape[]): number[] {
  const { num_heads, num_kv_heads = num_heads } = layers[0] ?? { num_heads: 0 };
  const alike = layers.every((layer) => layer.num_heads === num_heads && (layer.num_kv_heads ?? layer.num_heads) === num_kv_heads);
  if (!alike || num_kv_heads === num_heads) return [];
  return Array.from({ length: num_kv_heads - 1 }, (_, group) => ((group + 1) * num_heads) / num_kv_heads);
}

/** The layers of heads such as "L3H7" and "cross:L1H0", in their order: the layer's name, and its heads by their place. */
export function rowsOf(heads: readonly string[]): { name: string; heads: { name: string; index: number }[] }[] {
  const layers = new Map<string, { name: string; index: number }[]>();
  heads.forEach((name, index) => {
    const layer = name.slice(0, name.lastIndexOf("H"));
    layers.set(layer, [...(layers.get(layer) ?? []), { name, index }]);
  });
  return Array.from(layers, ([name, heads]) => ({ name, heads }));
}

/** Head `index` of every layer of a stack that has one. */
export function headsOfColumn(layers: readonly LayerShape[], stack: string, index: number): string[] {
  return layers
    .filter((layer) => layer.stack === stack && index < layer.num_heads)
    .map((layer) => headName(stack, layer.layer, index));
}

/** Every head of the rectangle with two heads as its corners, over the layers in the order in which they are drawn. */
export function headsBetween(layers: readonly LayerShape[], from: string, to: string): string[] {
  const a = placeOf(from);
  const b = placeOf(to);
  if (!a || !b) return [];
  const row = (place: HeadPlace) =>
    layers.findIndex((layer) => layer.stack === place.stack && layer.layer === place.layer);
  const [top, bottom] = sorted(row(a), row(b));
  const [left, right] = sorted(a.index, b.index);
  if (top < 0) return [];
  return layers
    .slice(top, bottom + 1)
    .flatMap((layer) => headsOfLayer(layer).filter((_, index) => index >= left && index <= right));
}

/** Ticked heads as one text of the grammar, "" for none. */
export function headsInWords(ticked: ReadonlySet<string>, layers: readonly LayerShape[]): string {
  const stacks = [...new Set(layers.map((layer) => layer.stack))];
  return stacks
    .map((stack) => stackInWords(ticked, layers.filter((layer) => layer.stack === stack), stack))
    .filter((text) => text)
    .join(", ");
}

/** The heads of these layers that a text of the grammar names; null for another text and for one that names none. */
export function headsNamed(text: string, layers: readonly LayerShape[]): Set<string> | null {
  const heads = new Set<string>();
  const stacks = new Set(layers.map((layer) => layer.stack));
  for (const part of text.split(",")) {
    const match = PART.exec(part.trim());
    if (!match) return null;
    const stack = match[1] ?? (stacks.size === 1 ? [...stacks][0] : "");
    const named = layers
      .filter((layer) => layer.stack === stack && within(match[2] ?? "*", layer.layer))
      .flatMap((layer) => headsOfLayer(layer).filter((_, index) => within(match[3] ?? "*", index)));
    if (!named.length) return null;
    for (const head of named) heads.add(head);
  }
  return heads;
}

/** "1 head", "12 heads", "all 72 heads". */
export function countInWords(count: number, total: number): string {
  if (count === total && total > 1) return `all ${total} heads`;
  return `${count} head${count === 1 ? "" : "s"}`;
}

function stackInWords(ticked: ReadonlySet<string>, layers: readonly LayerShape[], stack: string): string {
  const rows = layers.map((layer) => ({
    layer: layer.layer,
    count: layer.num_heads,
    indices: Array.from({ length: layer.num_heads }, (_, index) => index).filter((index) => ticked.has(headName(stack, layer.layer, index))),
  }));
  if (rows.length && rows.every((row) => row.indices.length === row.count)) return layerName(stack, "*");
  const byRow = rowsInWords(rows, stack);
  const byColumn = columnsInWords(rows, stack);
  return byColumn !== null && byColumn.length < byRow.length ? byColumn : byRow;
}

interface Row {
  layer: number;
  count: number;
  indices: number[];
}

/** Layer by layer: consecutive full layers as one run, heads of other layers as runs of their own. */
function rowsInWords(rows: readonly Row[], stack: string): string {
  const full = rows.filter((row) => row.count > 0 && row.indices.length === row.count).map((row) => row.layer);
  const parts: [number, string][] = runs(full).map(([first, last]) => [first, layerName(stack, span(first, last))]);
  for (const row of rows) {
    if (!row.indices.length || row.indices.length === row.count) continue;
    for (const [first, last] of runs(row.indices)) {
      parts.push([row.layer, `${layerName(stack, row.layer)}H${span(first, last)}`]);
    }
  }
  return parts
    .sort((a, b) => a[0] - b[0])
    .map(([, text]) => text)
    .join(", ");
}

/** Column by column, if every layer has the same heads ticked or none: "L*H0", "L2-4H1-3". Else null. */
function columnsInWords(rows: readonly Row[], stack: string): string | null {
  const used = rows.filter((row) => row.indices.length);
  const first = used[0];
  if (!first || used.some((row) => row.indices.join() !== first.indices.join())) return null;
  const able = rows.filter((row) => (first.indices[first.indices.length - 1] ?? 0) < row.count);
  const everywhere = able.length === used.length && rows.every((row) => row.count === first.count);
  const layers = everywhere ? ["*"] : runs(used.map((row) => row.layer)).map(([a, b]) => span(a, b));
  return layers
    .flatMap((layer) => runs(first.indices).map(([a, b]) => `${layerName(stack, layer)}H${span(a, b)}`))
    .join(", ");
}

/** Whether a number is in a range of the grammar: "*", "3" or "3-5". */
function within(range: string, number: number): boolean {
  if (range === "*") return true;
  const [first, last] = range.split("-").map(Number);
  return first !== undefined && number >= first && number <= (last ?? first);
}

/** [0, 1, 2, 5] -> [[0, 2], [5, 5]]. */
function runs(numbers: readonly number[]): [number, number][] {
  const list: [number, number][] = [];
  for (const number of numbers) {
    const last = list.at(-1);
    if (last && last[1] + 1 === number) last[1] = number;
    else list.push([number, number]);
  }
  return list;
}

function span(first: number, last: number): string {
  return first === last ? `${first}` : `${first}-${last}`;
}

function sorted(a: number, b: number): [number, number] {
  return a < b ? [a, b] : [b, a];
}
