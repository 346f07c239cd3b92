// The atlas's pictures: all heads' small maps with frames and letters on one canvas, and that canvas with its labels and
// legend as an SVG that stands alone. The maps are coloured once into a sheet and copied from there, so that hovering and
// filtering do not colour them again.
import type { AtlasHead } from "../../lib/api/types";
import { cssOf, inkOn, step, type Contrast, type Ramp } from "../../lib/draw/colour";
import { xml } from "../../lib/draw/export";
import { percent } from "../../lib/draw/format";
import { ROLE_GROUPS, roleGroup, type RoleGroup } from "../../lib/draw/role-groups";
import type { Thumbnails } from "../../lib/state/session.svelte";
import type { Layout } from "./layout";
import { cellText, positionOn, type Scale } from "./scale";

const ABSENT = 255; // the byte of a cell that is not visible to its query
const DOT = 11; // pixels: a cell of at most this size shows its colour alone

export interface Sheet {
  canvas: HTMLCanvasElement;
  side: number;
  /** Maps in a row of the sheet. */
  across: number;
  /** The number of a head's map in the sheet. */
  indices: Map<string, number>;
}

/** Diagonal lines: the sign of a sink that is left out. */
const hatched = (x: number, y: number, step: number) => (x + y) % step === 0;

/** All thumbnails coloured, in one picture. A thumbnail's byte u stands for peak * (u / 254)^2, so u is linear in the root.
    Columns that `leftOut` marks are hatched: full colour is then the largest weight of the others. */
export function colourSheet(thumbnails: Thumbnails, ramp: Ramp, contrast: Contrast, leftOut: (head: string) => Uint8Array | null = () => null): Sheet {
  const { heads, maps, side } = thumbnails;
  const across = Math.ceil(Math.sqrt(heads.length));
  const canvas = document.createElement("canvas");
  canvas.width = across * side;
  canvas.height = Math.ceil(heads.length / across) * side;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const table = new Uint32Array(256);
  const bytes = new Uint8Array(table.buffer);
  for (let u = 0; u < 256; u++) {
    const share = u / 254;
    const place = Math.round((contrast === "root" ? share : share * share) * 255) * 4;
    bytes.set(u === ABSENT ? [...ramp.absent, 255] : [...ramp.colours.subarray(place, place + 4)], u * 4);
  }
  const hatch = new Uint32Array(new Uint8Array([...ramp.hatch, 255]).buffer)[0]!;
  for (let h = 0; h < heads.length; h++) {
    const [left, top] = [(h % across) * side, Math.floor(h / across) * side];
    const out = leftOut(heads[h]!);
    let peak = 254;
    if (out) {
      peak = 1;
      for (let i = 0; i < side * side; i++) {
        const u = maps[h * side * side + i]!;
        if (u !== ABSENT && !out[i % side] && u > peak) peak = u;
      }
    }
    for (let r = 0, i = h * side * side; r < side; r++) {
      for (let c = 0, o = (top + r) * canvas.width + left; c < side; c++, i++) {
        const u = maps[i]!;
        if (!out || u === ABSENT) pixels[o++] = table[u]!;
        else pixels[o++] = out[c] ? (hatched(r, c, 3) ? hatch : table[0]!) : table[Math.round((u / peak) * 254)]!;
      }
    }
  }
  context.putImageData(image, 0, 0);
  return { canvas, side, across, indices: new Map(heads.map((head, i) => [head, i])) };
}

/** One head's map from the sheet into a square of a context. */
export function drawMap(context: CanvasRenderingContext2D, sheet: Sheet, head: string, x: number, y: number, size: number): void {
  const index = sheet.indices.get(head);
  if (index === undefined) return;
  const { side, across } = sheet;
  // A whole number of pixels per cell where that nearly fills the square: even cells look sharper than a filled square.
  const even = Math.floor(size / side) * side;
  if (even >= 0.88 * size) {
    x += (size - even) >> 1;
    y += (size - even) >> 1;
    size = even;
  }
  context.imageSmoothingEnabled = size < side;
  context.imageSmoothingQuality = "high";
  context.drawImage(sheet.canvas, (index % across) * side, Math.floor(index / across) * side, side, side, x, y, size, size);
}

/** A head's row as stripes: one for each word, of one scale for all heads. */
export interface Stripes {
  row: Float32Array;
  /** The value of full colour. */
  peak: number;
  contrast: Contrast;
  /** Words whose stripes are hatched. */
  leftOut: readonly boolean[];
  /** The stripe to mark; -1 for none, and then there is no number. */
  mark: number;
  accent: string;
}

function drawStripes(context: CanvasRenderingContext2D, stripes: Stripes, ramp: Ramp, x: number, y: number, width: number, height: number): void {
  const { row, peak, contrast, leftOut, mark } = stripes;
  const left = (word: number) => x + Math.round((word * width) / row.length);
  // Of more words than pixels, the largest weight of each pixel's words is drawn.
  for (let pixel = 0; pixel < width; ) {
    const word = Math.floor((pixel * row.length) / width);
    const next = Math.max(pixel + 1, left(word + 1) - x);
    const last = Math.max(word + 1, Math.floor((next * row.length) / width));
    let value = NaN;
    for (let i = word; i < last && i < row.length; i++) if (!(row[i]! <= value) && !Number.isNaN(row[i]!)) value = row[i]!;
    context.fillStyle = Number.isNaN(value) ? `rgb(${ramp.absent.join(" ")})` : cssOf(ramp, leftOut[word] ? 0 : step(value, peak, contrast));
    context.fillRect(x + pixel, y, next - pixel, height);
    if (leftOut[word] && !Number.isNaN(value)) {
      context.fillStyle = `rgb(${ramp.hatch.join(" ")})`;
      for (let r = 0; r < height; r++) for (let c = pixel; c < next; c++) if (hatched(r, c, 4)) context.fillRect(x + c, y + r, 1, 1);
    }
    pixel = next;
  }
  if (mark < 0 || mark >= row.length) return;
  const tick = Math.max(2, Math.round(height / 16));
  const wide = Math.max(4, left(mark + 1) - left(mark));
  context.fillStyle = stripes.accent;
  context.fillRect(Math.round((left(mark) + left(mark + 1) - wide) / 2), y, wide, tick);
  context.fillRect(Math.round((left(mark) + left(mark + 1) - wide) / 2), y + height - tick, wide, tick);
}

interface AtlasStyle {
  layout: Layout;
  sheet: Sheet;
  ramp: Ramp;
  scale: Scale | null;
  /** Whether a head passes the filter; the others are drawn faint. */
  matches: (head: AtlasHead) => boolean;
  /** A head's row, drawn instead of its map; null for maps. */
  stripes: ((head: string) => Stripes) | null;
  ratio: number;
  line: string;
  bracket: string;
}

export function drawAtlas(canvas: HTMLCanvasElement, heads: Map<string, AtlasHead>, style: AtlasStyle): void {
  const { layout, ratio } = style;
  canvas.width = Math.ceil(layout.width * ratio);
  canvas.height = Math.ceil(layout.height * ratio);
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const context = canvas.getContext("2d")!;
  for (const cell of layout.cells) {
    const head = heads.get(cell.head);
    if (!head) continue;
    context.globalAlpha = style.matches(head) ? 1 : 0.13;
    drawCell(context, head, Math.round(cell.x * ratio), Math.round(cell.y * ratio), Math.round(layout.size * ratio), style);
  }
  context.globalAlpha = 1;
  drawBrackets(context, layout, style.bracket, ratio);
}

/** The brackets beneath heads that share keys and values. */
export function drawBrackets(context: CanvasRenderingContext2D, layout: Layout, colour: string, ratio: number): void {
  context.strokeStyle = colour;
  context.lineWidth = Math.max(1, ratio);
  for (const { x, y, width, tick } of layout.brackets) {
    const inset = layout.gap < 3 ? ratio : 0; // so that neighbouring brackets do not touch
    const [left, right, top] = [x * ratio + 0.5 + inset, (x + width) * ratio - 0.5 - inset, Math.round(y * ratio) + 0.5];
    context.beginPath();
    context.moveTo(left, top - tick * ratio);
    context.lineTo(left, top);
    context.lineTo(right, top);
    context.lineTo(right, top - tick * ratio);
    context.stroke();
  }
}

function drawCell(context: CanvasRenderingContext2D, head: AtlasHead, x: number, y: number, size: number, style: AtlasStyle): void {
  const { ratio, scale, ramp } = style;
  const css = size / ratio;
  const group = roleGroup(head.role?.family);
  const position = scale && positionOn(scale, head);
  const colour = scale ? (position === null ? style.line : cssOf(ramp, position * 255)) : group.letter ? group.colour : style.line;
  const quiet = !scale && !group.letter;
  if (css <= DOT) {
    context.fillStyle = colour;
    context.fillRect(x, y, size, size);
    return;
  }
  const frame = Math.round((quiet ? 1 : scale && css >= 40 ? 5 : css >= 48 ? 3 : 2) * ratio);
  // Every map of a grid has the same size, whatever its frame.
  const inset = Math.round((scale && css >= 40 ? 6 : css >= 48 ? 4 : 2) * ratio);
  context.fillStyle = colour;
  context.fillRect(x, y, size, size);
  context.fillStyle = cssOf(ramp, 0);
  context.fillRect(x + frame, y + frame, size - 2 * frame, size - 2 * frame);
  const stripes = style.stripes?.(head.head);
  const numbered = stripes && stripes.mark >= 0 && css >= 38;
  const caption = numbered ? Math.round(14 * ratio) : 0;
  if (stripes) drawStripes(context, stripes, ramp, x + inset, y + inset, size - 2 * inset, size - 2 * inset - caption);
  else drawMap(context, style.sheet, head.head, x + inset, y + inset, size - 2 * inset);
  if (!scale && group.letter && css >= 20) {
    const side = Math.round((css >= 48 ? 15 : css >= 30 ? 11 : 9) * ratio);
    context.fillStyle = colour;
    context.fillRect(x, y, side, side);
    context.fillStyle = group.ink;
    context.font = `700 ${Math.round(side * (css >= 30 ? 0.74 : 0.88))}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.fillText(group.letter, x + side / 2, y + side * 0.54);
  }
  context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  context.textAlign = "left";
  context.textBaseline = "middle";
  if (numbered) {
    context.fillStyle = inkOn(ramp, 0);
    context.fillText(percent(stripes.row[stripes.mark]).replace("none", "\u2013"), x + inset + ratio, y + size - inset - 6 * ratio);
  } else if (!stripes && scale && css >= 56) {
    const value = head.values[scale.index];
    const text = cellText(value, scale);
    context.fillStyle = colour;
    context.fillRect(x, y + size - 16 * ratio, context.measureText(text).width + 8 * ratio, 16 * ratio);
    context.fillStyle = position === null ? "#111" : inkOn(ramp, position * 255);
    context.fillText(text, x + 4 * ratio, y + size - 7.5 * ratio);
  }
}

interface AtlasFigure {
  canvas: HTMLCanvasElement;
  layout: Layout;
  heads: Iterable<AtlasHead>;
  title: string;
  caption: string;
  /** Whether frames show roles: then a legend of those that occur is drawn. */
  byRole: boolean;
  ink: string;
  paper: string;
}

const SIDE = 24;
const TOP = 48;
const LINE = 20;
const SANS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

export function atlasSvg({ canvas, layout, heads, title, caption, byRole, ink, paper }: AtlasFigure): string {
  const names = new Set(Array.from(heads, ({ role }) => (role ? roleGroup(role.family).name : "")));
  const legend = byRole ? ROLE_GROUPS.filter((group) => names.has(group.name)) : [];
  const columns = Math.max(1, Math.floor(layout.width / 390));
  const legendTop = TOP + layout.height + 20;
  const [width, height] = [Math.max(480, layout.width) + 2 * SIDE, legendTop + Math.ceil(legend.length / columns) * LINE + 24];
  const text = (label: { x: number; y: number; text: string }, anchor: string, weight = 400) =>
    `<text x="${SIDE + label.x}" y="${TOP + label.y + 4}" text-anchor="${anchor}" font-weight="${weight}">${xml(label.text)}</text>`;
  const entry = (group: RoleGroup, i: number) => {
    const [x, y] = [SIDE + (i % columns) * 390, legendTop + Math.floor(i / columns) * LINE];
    return `<rect x="${x}" y="${y - 11}" width="14" height="14" rx="2" fill="${group.colour}"/><text x="${x + 7}" y="${y}" text-anchor="middle" font-weight="700" fill="${group.ink}">${group.letter}</text><text x="${x + 20}" y="${y}">${xml(group.label)}</text>`;
  };
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">
<title>${xml(title)}</title>
<rect width="${width}" height="${height}" fill="${paper}"/>
<g fill="${ink}" font-family="${SANS}" font-size="11">
<text x="${SIDE}" y="28" font-size="15" font-weight="600">${xml(title)}</text>
<image x="${SIDE}" y="${TOP}" width="${layout.width}" height="${layout.height}" href="${canvas.toDataURL("image/png")}"/>
${layout.titles.map((label) => text(label, "start", 600)).join("\n")}
${layout.rowLabels.map((label) => text(label, "end")).join("\n")}
${layout.columnLabels.map((label) => text(label, "middle")).join("\n")}
${legend.map(entry).join("\n")}
<text x="${SIDE}" y="${height - 10}" fill-opacity="0.75">${xml(caption)}</text>
</g>
</svg>
`;
}
