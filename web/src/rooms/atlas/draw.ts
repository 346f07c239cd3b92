// Draws the atlas on one canvas: every head's small map, its frame and letter. The maps are coloured once into a sheet and
// copied from there, so that hovering and filtering cost nothing.
import { cssOf, inkOn, type Contrast, type Ramp } from "../../lib/colour";
import { familyOf } from "../../lib/families";
import type { Thumbnails } from "../../lib/session.svelte";
import type { AtlasHead } from "../../lib/types";
import type { Layout } from "./layout";
import { placeOn, type Scale } from "./values";

const ABSENT = 255; // the byte of a cell that no query sees
const DOT = 11; // a cell this small shows its colour alone

export interface Sheet {
  canvas: HTMLCanvasElement;
  side: number;
  across: number;
  at: Map<string, number>;
}

/** All thumbnails coloured, in one picture. The byte u stands for peak * (u / 254)^2: its root is the byte itself. */
export function colourSheet(thumbnails: Thumbnails, ramp: Ramp, contrast: Contrast): Sheet {
  const { heads, maps, side } = thumbnails;
  const across = Math.ceil(Math.sqrt(heads.length));
  const canvas = document.createElement("canvas");
  canvas.width = across * side;
  canvas.height = Math.ceil(heads.length / across) * side;
  const context = canvas.getContext("2d")!;
  const image = context.createImageData(canvas.width, canvas.height);
  const pixels = new Uint32Array(image.data.buffer);
  const table = lookUp(ramp, contrast);
  for (let h = 0; h < heads.length; h++) {
    const [left, top] = [(h % across) * side, Math.floor(h / across) * side];
    for (let r = 0, i = h * side * side; r < side; r++) {
      for (let c = 0, o = (top + r) * canvas.width + left; c < side; c++) pixels[o++] = table[maps[i++]!]!;
    }
  }
  context.putImageData(image, 0, 0);
  return { canvas, side, across, at: new Map(heads.map((head, i) => [head, i])) };
}

function lookUp(ramp: Ramp, contrast: Contrast): Uint32Array {
  const table = new Uint32Array(256);
  const bytes = new Uint8Array(table.buffer);
  for (let u = 0; u < 256; u++) {
    const share = u / 254;
    const at = Math.round((contrast === "root" ? share : share * share) * 255) * 4;
    bytes.set(u === ABSENT ? [...ramp.absent, 255] : [...ramp.colours.subarray(at, at + 4)], u * 4);
  }
  return table;
}

/** One head's map from the sheet into a square of a context. */
export function drawMap(context: CanvasRenderingContext2D, sheet: Sheet, head: string, x: number, y: number, size: number): void {
  const at = sheet.at.get(head);
  if (at === undefined) return;
  const { side, across } = sheet;
  // Whole pixels a cell where that nearly fills the square: even cells look sharper than a last pixel filled.
  const whole = Math.floor(size / side) * side;
  if (whole >= 0.88 * size) {
    x += (size - whole) >> 1;
    y += (size - whole) >> 1;
    size = whole;
  }
  context.imageSmoothingEnabled = size < side;
  context.imageSmoothingQuality = "high";
  context.drawImage(sheet.canvas, (at % across) * side, Math.floor(at / across) * side, side, side, x, y, size, size);
}

interface Look {
  layout: Layout;
  sheet: Sheet;
  ramp: Ramp;
  scale: Scale | null;
  shown: (head: AtlasHead) => boolean;
  ratio: number;
  line: string;
  bracket: string;
}

export function drawAtlas(canvas: HTMLCanvasElement, heads: Map<string, AtlasHead>, look: Look): void {
  const { layout, ratio } = look;
  canvas.width = Math.ceil(layout.width * ratio);
  canvas.height = Math.ceil(layout.height * ratio);
  canvas.style.width = `${layout.width}px`;
  canvas.style.height = `${layout.height}px`;
  const context = canvas.getContext("2d")!;
  for (const cell of layout.cells) {
    const head = heads.get(cell.head);
    if (!head) continue;
    context.globalAlpha = look.shown(head) ? 1 : 0.13;
    drawCell(context, head, Math.round(cell.x * ratio), Math.round(cell.y * ratio), Math.round(layout.size * ratio), look);
  }
  context.globalAlpha = 1;
  context.strokeStyle = look.bracket;
  context.lineWidth = Math.max(1, ratio);
  for (const { x, y, width } of layout.brackets) {
    const apart = layout.gap < 3 ? ratio : 0; // so that neighbouring brackets do not run together
    const [l, r, t] = [x * ratio + 0.5 + apart, (x + width) * ratio - 0.5 - apart, Math.round(y * ratio) + 0.5];
    context.beginPath();
    const tick = Math.min(3, layout.gap) * ratio;
    context.moveTo(l, t - tick);
    context.lineTo(l, t);
    context.lineTo(r, t);
    context.lineTo(r, t - tick);
    context.stroke();
  }
}

function drawCell(context: CanvasRenderingContext2D, head: AtlasHead, x: number, y: number, size: number, look: Look): void {
  const { ratio, scale, ramp } = look;
  const css = size / ratio;
  const family = familyOf(head.role?.family);
  const place = scale && placeOn(scale, head);
  const colour = scale ? (place === null ? look.line : cssOf(ramp, place * 255)) : head.role ? family.colour : look.line;
  const quiet = !scale && !family.letter;
  if (css <= DOT) {
    context.fillStyle = colour;
    context.fillRect(x, y, size, size);
    return;
  }
  const frame = Math.round((quiet ? 1 : scale && css >= 40 ? 5 : css >= 48 ? 3 : 2) * ratio);
  // Every map of a grid has the same size, framed or not.
  const inset = Math.round((scale && css >= 40 ? 6 : css >= 48 ? 4 : 2) * ratio);
  context.fillStyle = colour;
  context.fillRect(x, y, size, size);
  context.fillStyle = cssOf(ramp, 0);
  context.fillRect(x + frame, y + frame, size - 2 * frame, size - 2 * frame);
  drawMap(context, look.sheet, head.head, x + inset, y + inset, size - 2 * inset);
  const letter = scale ? "" : family.letter;
  if (letter && css >= 24) tag(context, letter, x, y, Math.round((css >= 48 ? 15 : 11) * ratio), colour, family.ink);
  if (scale && css >= 56) {
    const value = head.values[scale.at];
    const text = value === null || value === undefined ? "–" : value.toFixed(Math.abs(value) < 10 ? 2 : 1);
    context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    const width = context.measureText(text).width + 8 * ratio;
    context.fillStyle = colour;
    context.fillRect(x, y + size - 16 * ratio, width, 16 * ratio);
    context.fillStyle = place === null ? "#111" : inkOn(ramp, place * 255);
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText(text, x + 4 * ratio, y + size - 7.5 * ratio);
  }
}

function tag(context: CanvasRenderingContext2D, letter: string, x: number, y: number, side: number, colour: string, ink: string): void {
  context.fillStyle = colour;
  context.fillRect(x, y, side, side);
  context.fillStyle = ink;
  context.font = `700 ${Math.round(side * 0.74)}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(letter, x + side / 2, y + side * 0.54);
}
