// What the Size room draws and says: a bar per layer (attention against feed-forward), the parts of all parameters,
// and one sentence with the conclusion.
import { csvOf } from "../../lib/export";
import type { SizeLayer, SizeReport } from "../../lib/types";
import { countOf, percent } from "./units";

type LayerParts = Omit<SizeLayer, "parts">;

interface Segment {
  layer: number;
  kind: string;
  part: "attention" | "feed-forward" | "other";
  count: number;
  begin: number;
  end: number;
}

/** Three segments a layer, each with where it begins and ends in the stack of its layer. */
export function segments(layers: readonly LayerParts[]): Segment[] {
  return layers.flatMap((layer) => {
    const parts = [
      ["attention", layer.attention],
      ["feed-forward", layer.feed_forward],
      ["other", layer.other],
    ] as const;
    let begin = 0;
    return parts.map(([part, count]) => {
      const segment = { layer: layer.index, kind: layer.kind, part, count, begin, end: begin + count };
      begin += count;
      return segment;
    });
  });
}

/** Parts from the largest on, each with its share; parts that have nothing are left out. */
export function shares(parts: Readonly<Record<string, number>>): { part: string; count: number; share: number }[] {
  const total = Object.values(parts).reduce((sum, count) => sum + count, 0);
  return Object.entries(parts)
    .filter(([, count]) => count > 0)
    .map(([part, count]) => ({ part, count, share: count / total }))
    .sort((a, b) => b.count - a.count);
}

/** Where a layer's parameters are: "In this model 67 % of a layer's parameters are in the feed-forward". */
export function conclusion(layers: readonly LayerParts[]): string {
  const sum = (of: (layer: LayerParts) => number) => layers.reduce((total, layer) => total + of(layer), 0);
  const attention = sum((layer) => layer.attention);
  const forward = sum((layer) => layer.feed_forward);
  const all = attention + forward + sum((layer) => layer.other);
  if (!all) return "This has no layers with parameters.";
  if (!forward) return "This is attention alone: no feed-forward.";
  const what = layers.length > 1 ? "the layers’" : "the layer’s";
  if (forward >= attention) {
    return `${percent(forward / all)} of ${what} parameters are in the feed-forward, ${percent(attention / all)} in attention.`;
  }
  return `${percent(attention / all)} of ${what} parameters are in attention, ${percent(forward / all)} in the feed-forward.`;
}

/** Runs of equal layers: "layers 0 to 79: 151.0 M attention, 704.6 M feed-forward". For a table, and for who cannot see. */
export function runsInWords(layers: readonly LayerParts[]): string[] {
  const runs: { first: number; last: number; layer: LayerParts }[] = [];
  for (const layer of layers) {
    const last = runs[runs.length - 1];
    const same =
      last &&
      last.layer.attention === layer.attention &&
      last.layer.feed_forward === layer.feed_forward &&
      last.layer.other === layer.other &&
      last.layer.kind === layer.kind;
    if (same) last.last = layer.index;
    else runs.push({ first: layer.index, last: layer.index, layer });
  }
  return runs.map(({ first, last, layer }) => {
    const which = first === last ? `layer ${first}` : `layers ${first} to ${last}, each`;
    return `${which}: ${countOf(layer.attention)} attention, ${countOf(layer.feed_forward)} feed-forward`;
  });
}

/** Everything that is drawn, as one table: layers, parts and cache, a line each. */
export function sizeCsv(report: SizeReport): string {
  const rows: (string | number)[][] = [["what", "which", "part", "value", "unit"]];
  for (const layer of report.layers) {
    for (const [part, count] of Object.entries(layer.parts)) rows.push(["layer", layer.index, part, count, "parameters"]);
  }
  for (const [part, count] of Object.entries(report.parts)) rows.push(["model", "", part, count, "parameters"]);
  for (const line of report.lines) {
    for (const point of line.points) rows.push(["cache", point.context, line.name, point.num_bytes, "bytes"]);
  }
  return csvOf(rows);
}

/** Key/value heads of the first layer that attends, as the whole document has them; null for latents, or for none. */
export function kvHeadsOf(report: Pick<SizeReport, "document">): number | null {
  const layers = at(at(report.document, "parameters"), "layers");
  for (const layer of Array.isArray(layers) ? layers : []) {
    const attention: unknown = at(layer, "attention");
    const first: unknown = Array.isArray(attention) ? attention[0] : undefined;
    const count = at(first, "num_kv_heads");
    if (typeof count === "number") return at(first, "latent") ? null : count;
  }
  return null;
}

function at(what: unknown, name: string): unknown {
  return typeof what === "object" && what !== null ? (what as Record<string, unknown>)[name] : undefined;
}
