// A map with its rulers as an SVG that stands alone: cells are an image, labels are text.
import type { Token, WordInfo } from "../api/types";
import type { Frame } from "../map/viewport";
import { xml } from "./export";
import { rulerLabels, type RulerLabel } from "./labels";

export interface MapFigure {
  canvas: HTMLCanvasElement;
  frame: Frame;
  width: number;
  height: number;
  numQueries: number;
  numKeys: number;
  queries: readonly Token[] | null;
  keys: readonly Token[] | null;
  queryWords: readonly WordInfo[] | null;
  keyWords: readonly WordInfo[] | null;
  title: string;
  /** What the numbers are: level, scale, model. */
  caption: string;
  ink: string;
  paper: string;
}

const LEFT = 128;
const TOP = 132;
const FOOT = 36;
const MONO = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
const SANS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

/** The visible part of a map with its labels. */
export function mapSvg(f: MapFigure): string {
  const { frame } = f;
  const x0 = Math.max(0, frame.left);
  const y0 = Math.max(0, frame.top);
  const x1 = Math.min(f.width, frame.left + f.numKeys * frame.scale);
  const y1 = Math.min(f.height, frame.top + f.numQueries * frame.scale);
  const [w, h] = [Math.max(1, x1 - x0), Math.max(1, y1 - y0)];
  const [width, height] = [Math.ceil(LEFT + w + 72), Math.ceil(TOP + h + FOOT)];
  const text = (label: RulerLabel, words: unknown) =>
    xml(`${!words && label.span > 1 ? `${label.position} ` : ""}${label.text}`);
  // A cell that the picture's edge cuts is labelled only if its middle is inside.
  const inside = (length: number) => (label: { middle: number }) => label.middle >= 0 && label.middle <= length;
  const across = rulerLabels(f.numKeys, frame.left - x0, frame.scale, w, 15, f.keys, f.keyWords).filter(inside(w));
  const down = rulerLabels(f.numQueries, frame.top - y0, frame.scale, h, 15, f.queries, f.queryWords).filter(inside(h));
  const columns = across.map(
    (l) => `<text transform="translate(${(LEFT + l.middle + 4).toFixed(1)} ${TOP - 6}) rotate(-55)">${text(l, f.keyWords)}</text>`,
  );
  const rows = down.map(
    (l) => `<text x="${LEFT - 6}" y="${(TOP + l.middle + 4).toFixed(1)}" text-anchor="end">${text(l, f.queryWords)}</text>`,
  );
  // A word of several pieces is marked as on the page: a line from its first piece to its last.
  const stretches = (labels: RulerLabel[], length: number) =>
    labels.flatMap(({ stretch }) => (stretch ? [[Math.max(0, stretch[0] + 1), Math.min(length, stretch[1] - 1)] as const] : []));
  const lines = [
    ...stretches(across, w).map(([first, last]) => `M${LEFT + first} ${TOP - 2.5}H${LEFT + last}`),
    ...stretches(down, h).map(([first, last]) => `M${LEFT - 2.5} ${TOP + first}V${TOP + last}`),
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">
<title>${xml(f.title)}</title>
<rect width="${width}" height="${height}" fill="${f.paper}"/>
<text x="12" y="24" fill="${f.ink}" font-family="${SANS}" font-size="15" font-weight="600">${xml(f.title)}</text>
<image x="${LEFT}" y="${TOP}" width="${w}" height="${h}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${crop(f, x0, y0, w, h)}"/>
<rect x="${LEFT}" y="${TOP}" width="${w}" height="${h}" fill="none" stroke="${f.ink}" stroke-opacity="0.3"/>
<path d="${lines.join("")}" fill="none" stroke="${f.ink}" stroke-opacity="0.6"/>
<g fill="${f.ink}" font-family="${MONO}" font-size="11">
${columns.join("\n")}
${rows.join("\n")}
</g>
<text x="12" y="${height - 12}" fill="${f.ink}" fill-opacity="0.75" font-family="${SANS}" font-size="11">${xml(f.caption)}</text>
</svg>
`;
}

function crop({ canvas, width }: MapFigure, x: number, y: number, w: number, h: number): string {
  const ratio = canvas.width / width;
  const part = document.createElement("canvas");
  part.width = Math.max(1, Math.round(w * ratio));
  part.height = Math.max(1, Math.round(h * ratio));
  part.getContext("2d")!.drawImage(canvas, x * ratio, y * ratio, w * ratio, h * ratio, 0, 0, part.width, part.height);
  return part.toDataURL("image/png");
}

/** Several map figures in one picture, from left to right. */
export function sideBySideSvg(figures: readonly MapFigure[]): string {
  let [width, height] = [0, 0];
  const drawn = figures.map((figure) => {
    const svg = mapSvg(figure);
    const size = /width="(\d+)" height="(\d+)"/.exec(svg);
    const placed = svg.replace("<svg ", `<svg x="${width}" `);
    width += Number(size?.[1] ?? 0);
    height = Math.max(height, Number(size?.[2] ?? 0));
    return placed;
  });
  const paper = figures[0]?.paper ?? "#fff";
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}"><rect width="${width}" height="${height}" fill="${paper}"/>${drawn.join("")}</svg>`;
}
