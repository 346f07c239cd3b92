// The atlas as a picture that stands alone: the grid with its labels, and what the frames mean, as SVG.
import { xml } from "../../lib/export";
import { families, familyOf } from "../../lib/families";
import type { AtlasHead } from "../../lib/types";
import type { Layout } from "./layout";

interface AtlasFigure {
  canvas: HTMLCanvasElement;
  layout: Layout;
  heads: Iterable<AtlasHead>;
  title: string;
  caption: string;
  /** Whether frames show roles: then a key of those that occur is drawn. */
  byRole: boolean;
  ink: string;
  paper: string;
}

const SIDE = 24;
const TOP = 48;
const LINE = 20;
const SANS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

export function atlasSvg({ canvas, layout, heads, title, caption, byRole, ink, paper }: AtlasFigure): string {
  const here = new Set(Array.from(heads, (h) => (h.role ? familyOf(h.role.family).name : "")));
  const key = byRole ? families.filter((f) => here.has(f.name)) : [];
  const columns = Math.max(1, Math.floor(layout.width / 350));
  const keyTop = TOP + layout.height + 20;
  const [width, height] = [Math.max(480, layout.width) + 2 * SIDE, keyTop + Math.ceil(key.length / columns) * LINE + 24];
  const label = (l: { x: number; y: number; text: string }, anchor: string, weight = 400) =>
    `<text x="${SIDE + l.x}" y="${TOP + l.y + 4}" text-anchor="${anchor}" font-weight="${weight}">${xml(l.text)}</text>`;
  const entry = (f: (typeof families)[number], i: number) => {
    const [x, y] = [SIDE + (i % columns) * 350, keyTop + Math.floor(i / columns) * LINE];
    return `<rect x="${x}" y="${y - 11}" width="14" height="14" rx="2" fill="${f.colour}"/><text x="${x + 7}" y="${y}" text-anchor="middle" font-weight="700" fill="${f.ink}">${f.letter}</text><text x="${x + 20}" y="${y}">${xml(f.words)}</text>`;
  };
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">
<title>${xml(title)}</title>
<rect width="${width}" height="${height}" fill="${paper}"/>
<g fill="${ink}" font-family="${SANS}" font-size="11">
<text x="${SIDE}" y="28" font-size="15" font-weight="600">${xml(title)}</text>
<image x="${SIDE}" y="${TOP}" width="${layout.width}" height="${layout.height}" href="${canvas.toDataURL("image/png")}"/>
${layout.titles.map((l) => label(l, "start", 600)).join("\n")}
${layout.rowLabels.map((l) => label(l, "end")).join("\n")}
${layout.columnLabels.map((l) => label(l, "middle")).join("\n")}
${key.map(entry).join("\n")}
<text x="${SIDE}" y="${height - 10}" fill-opacity="0.75">${xml(caption)}</text>
</g>
</svg>
`;
}
