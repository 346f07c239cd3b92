// The Size room's two charts as options for Observable Plot: a bar per layer, and the cache against context.
// Only the marks that are used are imported, and colours are plain ones, so that an exported picture stands alone.
import { barY, dot, line, ruleX, text, type PlotOptions } from "@observablehq/plot";
import { pageColours } from "../../lib/colour";
import type { CacheLine, SizeLayer } from "../../lib/types";
import { segments } from "./bars";
import { countOf, gib, percent, whole } from "./units";

interface Palette {
  attention: string;
  forward: string;
  other: string;
  ink: string;
  faint: string;
}

export function palette(dark: boolean): Palette {
  const { accent: attention, ink, ink3: faint } = pageColours(dark);
  return { attention, ink, faint, ...(dark ? { forward: "#7fa6cf", other: "#8f9297" } : { forward: "#36587d", other: "#a39d8d" }) };
}

const MOST_TICKS = 14;

/** A bar per layer: attention below, feed-forward above it, the rest on top. */
export function layersPlot(layers: readonly SizeLayer[], colours: Palette, width: number, height: number): PlotOptions {
  const every = Math.max(1, Math.ceil(layers.length / Math.min(MOST_TICKS, width / 34)));
  const nice = [1, 2, 5, 8, 10, 16, 20, 32, 50, 64, 100].find((step) => step >= every) ?? every;
  const fill = { attention: colours.attention, "feed-forward": colours.forward, other: colours.other };
  return {
    height,
    marginLeft: 56,
    marginBottom: 34,
    marginTop: 22,
    marginRight: 4,
    x: { type: "band", label: "layer", domain: layers.map((layer) => layer.index), ticks: layers.map((layer) => layer.index).filter((index) => index % nice === 0), tickSize: 0, padding: layers.length < 4 ? 0.6 : 0.22, round: layers.length < 40, labelArrow: "none" },
    y: { label: "parameters", tickFormat: countOf, grid: true, ticks: 4, labelArrow: "none" },
    marks: [
      barY(segments(layers), {
        x: "layer",
        y1: "begin",
        y2: "end",
        fill: (segment) => fill[segment.part as keyof typeof fill],
        title: (segment) => {
          const layer = layers[segment.layer];
          const all = layer ? layer.attention + layer.feed_forward + layer.other : 0;
          return `layer ${segment.layer} (${segment.kind})\n${segment.part}: ${whole(segment.count)} parameters, ${percent(segment.count / all)} of the layer`;
        },
      }),
    ],
    color: { type: "identity" },
  };
}

/** The cache of each variant against context, both axes by doubling; the current context as a rule with its dots. */
export function cachePlot(lines: readonly CacheLine[], context: number, colours: Palette, width: number, height: number): PlotOptions {
  const shown = lines.map((each) => ({ ...each, points: each.points.filter((point) => point.num_bytes > 0 && point.context >= Math.min(64, context)) }));
  const points = shown.flatMap((each) => each.points.map((point) => ({ ...point, name: each.name, own: each.own })));
  const ends = spread(
    shown.flatMap((each) => {
      const last = each.points[each.points.length - 1];
      return last ? [{ ...last, name: each.name, own: each.own }] : [];
    }),
  );
  const sizes = points.map((point) => point.num_bytes);
  const contexts = points.map((point) => point.context);
  const last = context >= Math.max(...contexts) / 2; // its label would run into the names of the lines
  return {
    height,
    marginLeft: 60,
    marginRight: 76,
    marginBottom: 34,
    marginTop: 18,
    x: { type: "log", base: 2, label: "tokens of context", ticks: powers(contexts, Math.max(2, Math.floor((width - 136) / 52))), tickFormat: tokens, labelArrow: "none" },
    y: { type: "log", base: 2, label: "bytes", grid: true, ticks: powers(sizes, 6), tickFormat: gib, labelArrow: "none" },
    marks: [
      ruleX([context], { stroke: colours.ink, strokeOpacity: 0.5, strokeDasharray: "2,3" }),
      text([context], { x: (at: number) => at, frameAnchor: "top", textAnchor: last ? "end" : "middle", dx: last ? 4 : 0, text: (at: number) => `${whole(at)} tokens`, fill: colours.ink, dy: -12, fontSize: 11 }),
      line(points, { x: "context", y: "num_bytes", z: "name", stroke: (point) => (point.own ? colours.attention : colours.faint), strokeWidth: 1.75 }),
      dot(lines.filter((each) => each.num_bytes > 0), {
        x: () => context, y: "num_bytes", r: 3.5, fill: (each) => (each.own ? colours.attention : colours.faint),
        title: (each) => `${each.name} at ${whole(context)} tokens: ${gib(each.num_bytes)}`,
      }),
      ...[true, false].map((own) =>
        text(ends.filter((end) => end.own === own), {
          x: "context", y: "at", text: "name", textAnchor: "start", dx: 8, fontSize: 11,
          fill: own ? colours.attention : colours.faint, fontWeight: own ? 600 : 400,
        }),
      ),
    ],
    color: { type: "identity" },
  };
}

/** Labels of lines that end close together (a log scale), moved apart so that each can be read. */
function spread<T extends { num_bytes: number }>(ends: readonly T[]): (T & { at: number })[] {
  const order = [...ends].sort((a, b) => a.num_bytes - b.num_bytes);
  let last = 0;
  return order.map((end) => {
    last = Math.max(end.num_bytes, last * 1.6);
    return { ...end, at: last };
  });
}

/** Powers of two over a range, at most `most` of them. */
function powers(values: readonly number[], most: number): number[] {
  if (!values.length) return [];
  const low = Math.ceil(Math.log2(Math.min(...values)));
  const high = Math.floor(Math.log2(Math.max(...values)));
  const step = Math.max(1, Math.ceil((high - low) / most));
  const found: number[] = [];
  for (let power = Math.ceil(low / step) * step; power <= high; power += step) found.push(2 ** power);
  return found;
}

function tokens(value: number): string {
  return value >= 1024 * 1024 ? `${value / 1024 / 1024}M` : value >= 1024 ? `${value / 1024}k` : `${value}`;
}
