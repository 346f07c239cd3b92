// Where a model's parameters are: segments of a bar per layer (attention, feed-forward, other), shares of all parts, one
// sentence with the conclusion, and the same as CSV.
import { csvOf } from "../../lib/api/csv";
import type { SizeLayer, SizeReport } from "../../lib/api/types";
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

/** Three segments per layer, each with its begin and end in the layer's bar. */
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

/** Parts and their shares, largest first, without empty parts. */
export function shares(parts: Readonly<Record<string, number>>): { part: string; count: number; share: number }[] {
  const total = Object.values(parts).reduce((sum, count) => sum + count, 0);
  return Object.entries(parts)
    .filter(([, count]) => count > 0)
    .map(([part, count]) => ({ part, count, share: count / total }))
    .sort((a, b) => b.count - a.count);
}

/** The shares of attention and feed-forward in a sentence: "67 % of the layers' parameters are in the feed-forward, ...". */
export function conclusion(layers: readonly LayerParts[]): string {
  const sum = (part: "attention" | "feed_forward" | "other") => layers.reduce((total, layer) => total + layer[part], 0);
  const attention = sum("attention");
  const forward = sum("feed_forward");
  const total = attention + forward + sum("other");
  if (!total) return "This has no layers with parameters.";
  if (!forward) return "This is attention alone: no feed-forward.";
  const owner = layers.length > 1 ? "the layers’" : "the layer’s";
  if (forward >= attention) {
    return `${percent(forward / total)} of ${owner} parameters are in the feed-forward, ${percent(attention / total)} in attention.`;
  }
  return `${percent(attention / total)} of ${owner} parameters are in attention, ${percent(forward / total)} in the feed-forward.`;
}

/** Runs of equal layers in words: "layers 0 to 79, each: 151.0 M attention, 704.6 M feed-forward". For screen readers. */
export function runsInWords(layers: readonly LayerParts[]): string[] {
  const runs: { first: number; last: number; layer: LayerParts }[] = [];
  for (const layer of layers) {
    const run = runs.at(-1);
    const equal = run && (["attention", "feed_forward", "other", "kind"] as const).every((part) => run.layer[part] === layer[part]);
    if (equal) run.last = layer.index;
    else runs.push({ first: layer.index, last: layer.index, layer });
  }
  return runs.map(({ first, last, layer }) => {
    const range = first === last ? `layer ${first}` : `layers ${first} to ${last}, each`;
    return `${range}: ${countOf(layer.attention)} attention, ${countOf(layer.feed_forward)} feed-forward`;
  });
}

/** Everything that is drawn as one CSV table: layers, parts and cache, one number per line. */
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

/** Key/value heads of the first layer with attention, read from the report's document; null for latents and for none. */
export function kvHeadsOf(report: Pick<SizeReport, "document">): number | null {
  const layers = field(field(report.document, "parameters"), "layers");
  for (const layer of Array.isArray(layers) ? layers : []) {
    const attention: unknown = field(layer, "attention");
    const first: unknown = Array.isArray(attention) ? attention[0] : undefined;
    const count = field(first, "num_kv_heads");
    if (typeof count === "number") return field(first, "latent") ? null : count;
  }
  return null;
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>)[name] : undefined;
}
