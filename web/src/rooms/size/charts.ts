// The Size room's charts: options for Observable Plot (a bar per kind of layer, and the cache against context), and both charts as
// one picture. Only the marks that are used are imported, which keeps the bundle small; colours are plain values, not
// variables of the stylesheet, so that an exported picture stands alone.
import { barX, dot, line, rectX, ruleX, text, type PlotOptions } from "@observablehq/plot";
import type { CacheLine } from "../../lib/api/types";
import { pageColours } from "../../lib/draw/colour";
import { xml } from "../../lib/draw/export";
import type { Kind } from "./arithmetic";
import { labelOf, segments } from "./breakdown";
import { BINARY, brief, COUNTS, gib, integer, percent, tokens } from "./units";

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

const KIND_HEIGHT = 30;

/** A bar for each kind of layer, equal layers drawn once: attention, then feed-forward, then the rest. */
export function kindsPlot(kinds: readonly Kind[], colours: Palette, width: number): PlotOptions {
  const fill = { attention: colours.attention, "feed-forward": colours.forward, other: colours.other };
  const longest = Math.max(...kinds.map((kind) => labelOf(kind).length), 8);
  return {
    height: 26 + KIND_HEIGHT * kinds.length,
    marginLeft: Math.min(width * 0.45, 16 + 6.4 * longest),
    marginBottom: 22,
    marginTop: 2,
    marginRight: 16,
    x: { label: null, tickFormat: (count: number) => brief(count, COUNTS, ""), grid: true, tickSize: 4, ticks: Math.max(2, Math.floor(width / 140)), labelArrow: "none" },
    y: { type: "band", label: null, domain: kinds.map(labelOf), tickSize: 0, padding: 0.3 },
    marks: [
      barX(segments(kinds), {
        y: "label",
        x1: "begin",
        x2: "end",
        fill: (segment) => fill[segment.part as keyof typeof fill],
        title: ({ kind, part, count, label }) => `${label}\n${part}: ${integer(count)} parameters, ${percent(count / (kind.attention + kind.feed_forward + kind.other))} of one layer`,
      }),
    ],
    color: { type: "identity" },
  };
}

/** The cache of each variant against context, both axes by doubling; the current context as a rule with its dots. */
export function cachePlot(lines: readonly CacheLine[], context: number, colours: Palette, width: number, height: number, positions: number | null = null): PlotOptions {
  const drawn = lines.map((line) => ({ ...line, points: line.points.filter((point) => point.num_bytes > 0 && point.context >= Math.min(64, context)) }));
  const points = drawn.flatMap(({ name, own, points }) => points.map((point) => ({ ...point, name, own })));
  const ends = spread(
    drawn.flatMap(({ name, own, points }) => points.slice(-1).map((point) => ({ ...point, name, own }))),
  );
  const sizes = points.map((point) => point.num_bytes);
  const contexts = points.map((point) => point.context);
  const nearEnd = context >= Math.max(...contexts) / 2; // a centred label would run into the names of the lines
  return {
    height,
    marginLeft: 60,
    marginRight: 76,
    marginBottom: 34,
    marginTop: 18,
    x: { type: "log", base: 2, label: "tokens of context", ticks: powers(contexts, Math.max(2, Math.floor((width - 136) / 52))), tickFormat: tokens, labelArrow: "none" },
    y: { type: "log", base: 2, label: null, grid: true, ticks: powers(sizes, 6), tickFormat: (bytes: number) => brief(bytes, BINARY), labelArrow: "none" },
    marks: [
      // What the model was not made for lies in a shade.
      ...(positions !== null && positions < Math.max(...contexts) ? [rectX([positions], { x1: positions, x2: Math.max(...contexts), fill: colours.ink, fillOpacity: 0.05, title: () => `past the ${integer(positions)} positions that it is made for` })] : []),
      ruleX([context], { stroke: colours.ink, strokeOpacity: 0.5, strokeDasharray: "2,3" }),
      text([context], { x: (tokens: number) => tokens, frameAnchor: "top", textAnchor: nearEnd ? "end" : "middle", dx: nearEnd ? 4 : 0, text: (tokens: number) => `${integer(tokens)} tokens`, fill: colours.ink, dy: -12, fontSize: 11 }),
      line(points, { x: "context", y: "num_bytes", z: "name", stroke: (point) => (point.own ? colours.attention : colours.faint), strokeWidth: 1.75 }),
      dot(lines.filter((variant) => variant.num_bytes > 0), {
        x: () => context, y: "num_bytes", r: 3.5, fill: (variant) => (variant.own ? colours.attention : colours.faint),
        title: (variant) => `${variant.name} at ${integer(context)} tokens: ${gib(variant.num_bytes)}`,
      }),
      ...[true, false].map((own) =>
        text(ends.filter((end) => end.own === own), {
          x: "context", y: "place", text: "name", textAnchor: "start", dx: 8, fontSize: 11,
          fill: own ? colours.attention : colours.faint, fontWeight: own ? 600 : 400,
        }),
      ),
    ],
    color: { type: "identity" },
  };
}

/** Labels of lines, moved apart by at least a factor of 1.6 (the axis is logarithmic), so that all can be read. */
function spread<T extends { num_bytes: number }>(ends: readonly T[]): (T & { place: number })[] {
  const order = [...ends].sort((a, b) => a.num_bytes - b.num_bytes);
  let last = 0;
  return order.map((end) => {
    last = Math.max(end.num_bytes, last * 1.6);
    return { ...end, place: last };
  });
}

/** Powers of two over a range, at most `most` of them. */
function powers(values: readonly number[], most: number): number[] {
  if (!values.length) return [];
  const low = Math.ceil(Math.log2(Math.min(...values)));
  const high = Math.floor(Math.log2(Math.max(...values)));
  const step = Math.max(1, Math.ceil((high - low) / most));
  const list: number[] = [];
  for (let power = Math.ceil(low / step) * step; power <= high; power += step) list.push(2 ** power);
  return list;
}

const GAP = 32;
const HEAD = 56; // for the title and the sentence

interface PictureWords {
  title: string;
  sentence: string;
  /** A heading over each chart, and what its colours mean. */
  headings: readonly { title: string; key: readonly { colour: string; words: string }[] }[];
}

/** All charts beneath `root` side by side as one SVG, with a title, a sentence and headings above them. */
export function picturesSvg(root: HTMLElement, words: PictureWords, dark: boolean): string {
  const { paper, ink, ink2: faint } = pageColours(dark);
  const charts = [...root.querySelectorAll<SVGSVGElement>("svg.plot")];
  let x = GAP;
  let height = 0;
  const drawn = charts.map((chart, i) => {
    const width = Number(chart.getAttribute("width")) || chart.clientWidth;
    const chartHeight = Number(chart.getAttribute("height")) || chart.clientHeight;
    const copy = chart.cloneNode(true) as SVGSVGElement;
    for (const [name, value] of Object.entries({ x, y: HEAD + 28, width, height: chartHeight, color: faint, fill: "currentColor", overflow: "visible" })) {
      copy.setAttribute(name, String(value));
    }
    const { title, key } = words.headings[i] ?? { title: "", key: [] };
    const legend = key.map((entry) => `<tspan dx="10" fill="${entry.colour}">■</tspan><tspan dx="3" font-weight="400" font-size="11">${xml(entry.words)}</tspan>`);
    const heading = `<text x="${x}" y="${HEAD + 16}" font-size="13" font-weight="600" fill="${ink}">${xml(title)}${legend.join("")}</text>`;
    x += width + GAP;
    height = Math.max(height, chartHeight);
    return heading + new XMLSerializer().serializeToString(copy);
  });
  x = Math.max(x, GAP + 7 * Math.max(words.title.length, words.sentence.length));
  const pictureHeight = HEAD + 28 + height + GAP / 2;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${x}" height="${pictureHeight}" viewBox="0 0 ${x} ${pictureHeight}" font-family="system-ui, sans-serif" font-size="11">` +
    `<rect width="100%" height="100%" fill="${paper}"/>` +
    `<text x="${GAP}" y="28" font-size="17" font-weight="600" fill="${ink}">${xml(words.title)}</text>` +
    `<text x="${GAP}" y="48" font-size="12" fill="${faint}">${xml(words.sentence)}</text>${drawn.join("")}</svg>`
  );
}
