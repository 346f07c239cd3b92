// Where a model's parameters are: segments of a bar for each kind of layer, shares of all parts, the finding in a sentence,
// and the same as CSV.
import { csvOf } from "../../lib/api/csv";
import type { Kind, Sized } from "./arithmetic";
import { brief, BINARY, countOf, DECIMAL, integer, percent, tokens } from "./units";

interface Segment {
  label: string;
  kind: Kind;
  part: "attention" | "feed-forward" | "other";
  count: number;
  begin: number;
  end: number;
}

/** "80 × GQA-8": equal layers, drawn once. */
export function labelOf(kind: Pick<Kind, "count" | "kind">): string {
  return `${integer(kind.count)} × ${kind.kind}`;
}

/** Three segments for each kind of layer, each with its begin and end in the bar. */
export function segments(kinds: readonly Kind[]): Segment[] {
  return kinds.flatMap((kind) => {
    const parts = [["attention", kind.attention], ["feed-forward", kind.feed_forward], ["other", kind.other]] as const;
    let begin = 0;
    return parts.map(([part, count]) => {
      const segment = { label: labelOf(kind), kind, part, count, begin, end: begin + count };
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

/** "68.98 B parameters, 138 GB in fp16, 320 KiB of cache a token: 10 GiB at 8 × 4k", as `manyheads size` says it. */
export function finding({ num_parameters, num_active, weight_bytes, cache_bytes, token_bytes, use }: Sized): string {
  const active = num_active === num_parameters ? "" : ` (${countOf(num_active)} active)`;
  const weights = `${countOf(num_parameters)} parameters${active}, ${brief(weight_bytes, DECIMAL)} in ${use.dtype}`;
  if (cache_bytes === null) return `${weights}. It keeps no cache.`;
  return `${weights}, ${brief(token_bytes, BINARY)} of cache a token: ${brief(cache_bytes, BINARY)} at ${use.batch > 1 ? `${integer(use.batch)}\u00a0×\u00a0` : ""}${tokens(use.context)}.`;
}

/** The shares of attention and feed-forward in a sentence: "67 % of the layers' parameters are in the feed-forward, ...". */
export function conclusion(kinds: readonly Kind[]): string {
  const sum = (part: "attention" | "feed_forward" | "other") => kinds.reduce((total, kind) => total + kind.count * kind[part], 0);
  const attention = sum("attention");
  const forward = sum("feed_forward");
  const total = attention + forward + sum("other");
  if (!total) return "This has no layers with parameters.";
  if (!forward) return "This is attention alone: no feed-forward.";
  const owner = kinds.reduce((count, kind) => count + kind.count, 0) > 1 ? "the layers’" : "the layer’s";
  if (forward >= attention) {
    return `${percent(forward / total)} of ${owner} parameters are in the feed-forward, ${percent(attention / total)} in attention.`;
  }
  return `${percent(attention / total)} of ${owner} parameters are in attention, ${percent(forward / total)} in the feed-forward.`;
}

/** Kinds of layer in words: "80 × GQA-8, each: 151.0 M attention, 704.6 M feed-forward". For screen readers. */
export function kindsInWords(kinds: readonly Kind[]): string[] {
  return kinds.map((kind) => `${labelOf(kind)}${kind.count > 1 ? ", each" : ""}: ${countOf(kind.attention)} attention, ${countOf(kind.feed_forward)} feed-forward`);
}

/** Everything that is drawn as one CSV table: layers, parts, cache and what fits, one number per line. */
export function sizeCsv(report: Sized): string {
  const rows: (string | number)[][] = [["what", "which", "part", "value", "unit"]];
  for (const kind of report.kinds) {
    for (const [part, count] of Object.entries(kind.parts)) rows.push(["one layer", labelOf(kind), part, count, "parameters"]);
  }
  for (const [part, count] of Object.entries(report.parts)) rows.push(["model", "", part, count, "parameters"]);
  for (const line of report.lines) {
    for (const point of line.points) rows.push(["cache", point.context, line.name, point.num_bytes, "bytes"]);
  }
  for (const fit of report.fits) {
    rows.push(["fits", fit.name, "missing", fit.missing, "bytes"]);
    if (fit.longest !== null) rows.push(["fits", fit.name, "longest context of one text", fit.longest, "tokens"]);
    if (fit.largest !== null) rows.push(["fits", fit.name, `texts of ${report.use.context}`, fit.largest, "texts"]);
  }
  return csvOf(rows);
}
