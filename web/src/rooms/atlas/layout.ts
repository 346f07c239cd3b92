// Where every head's cell stands: a row a layer, or one ranking when sorted. Cells take the largest size that fits
// without scrolling, down to a coloured dot.
import type { AtlasHead } from "../../lib/types";

export interface Cell {
  head: string;
  x: number;
  y: number;
  /** In reading order, for the arrow keys. */
  row: number;
  column: number;
}

interface Label {
  text: string;
  x: number;
  y: number;
}

interface Bracket {
  x: number;
  y: number;
  width: number;
  group: number;
}

export interface Layout {
  size: number;
  gap: number;
  width: number;
  height: number;
  cells: Cell[];
  rowLabels: Label[];
  columnLabels: Label[];
  titles: Label[];
  brackets: Bracket[];
}

const MAX_CELL = 132;
const MIN_CELL = 5;
const SIDE = 34; // for "L31"
const TOP = 18; // for "H31"
const TITLE = 22;
const BETWEEN = 16; // pixels between stacks side by side
const MOST_CUTS = 6; // stacks: of more, only the two plain arrangements are tried

interface Section {
  stack: string;
  rows: AtlasHead[][];
}

/** Sections by stack, rows by layer, in the atlas's order. */
function sections(heads: readonly AtlasHead[]): Section[] {
  const out: Section[] = [];
  for (const head of heads) {
    let section = out.find((s) => s.stack === head.stack);
    if (!section) out.push((section = { stack: head.stack, rows: [] }));
    const last = section.rows.at(-1);
    if (last && last[0]!.layer === head.layer) last.push(head);
    else section.rows.push([head]);
  }
  return out;
}

function gapOf(size: number): number {
  return size >= 48 ? 8 : size >= 24 ? 5 : size >= 12 ? 3 : 1;
}

/** Every way to put sections into columns, in their order: all beneath each other first, all side by side last. */
function arrangements(found: Section[]): Section[][][] {
  const n = found.length;
  if (n > MOST_CUTS) return [[found], found.map((section) => [section])];
  return Array.from({ length: 2 ** (n - 1) }, (_, cuts) =>
    found.reduce<Section[][]>((columns, section, i) => {
      if (i && !(cuts & (1 << (i - 1)))) columns.at(-1)!.push(section);
      else columns.push([section]);
      return columns;
    }, []),
  ).sort((a, b) => a.length - b.length);
}

/** A row a layer; stacks beneath each other or side by side, as makes the cells largest. `grouped`: whether any layer's
    heads share keys and values, which takes room for brackets. */
export function byLayer(heads: readonly AtlasHead[], width: number, height: number, grouped: (head: AtlasHead) => boolean): Layout {
  const found = sections(heads);
  const most = (column: Section[]) => Math.max(1, ...column.flatMap((s) => s.rows.map((r) => r.length)));
  const several = found.length > 1;
  const shared = heads.some(grouped);
  const roomUnder = (size: number) => (shared ? (size >= 16 ? 5 : 3) : 0); // for a bracket
  const above = TOP + (several ? TITLE : 0);
  const widthOf = (columns: Section[][], pitch: number) =>
    columns.reduce((sum, column) => sum + SIDE + most(column) * pitch, (columns.length - 1) * BETWEEN);
  const heightOf = (columns: Section[][], size: number) => Math.max(0, ...columns.map((column) =>
    column.length * above + column.reduce((n, s) => n + s.rows.length, 0) * (size + gapOf(size) + roomUnder(size))));
  const ways = arrangements(found);
  let columns = ways[0]!;
  let size = MAX_CELL;
  for (; size > MIN_CELL; size -= 1) {
    const fits = ways.find((way) => widthOf(way, size + gapOf(size)) <= width && heightOf(way, size) <= height);
    if (!fits) continue;
    columns = fits;
    break;
  }
  const gap = gapOf(size);
  const pitch = size + gap;
  const bracketRoom = roomUnder(size);
  const out: Layout = { size, gap, width: widthOf(columns, pitch), height: heightOf(columns, size), cells: [], rowLabels: [], columnLabels: [], titles: [], brackets: [] };
  let left = SIDE;
  let before = 0; // heads across, of the columns on the left
  for (const column of columns) {
    let y = 0;
    let row = 0;
    for (const section of column) {
      if (several) {
        out.titles.push({ text: section.stack || "stack", x: left, y: y + 14 });
        y += TITLE;
      }
      const every = pitch >= 26 ? 1 : pitch >= 14 ? 2 : 4;
      for (let h = 0; h < most([section]); h += every) out.columnLabels.push({ text: `H${h}`, x: left + h * pitch + size / 2, y: y + 10 });
      y += TOP;
      section.rows.forEach((heads, at) => {
        if (pitch >= 12 || at % 2 === 0) out.rowLabels.push({ text: `L${heads[0]!.layer}`, x: left - 10, y: y + size / 2 });
        heads.forEach((head, i) => out.cells.push({ head: head.head, x: left + i * pitch, y, row, column: before + i }));
        if (bracketRoom) out.brackets.push(...bracketsOf(heads.filter(grouped), heads, left, y + size + Math.min(3, bracketRoom - 1), size, pitch));
        y += pitch + bracketRoom;
        row += 1;
      });
    }
    left += most(column) * pitch + BETWEEN + SIDE;
    before += most(column);
  }
  return out;
}

function bracketsOf(grouped: AtlasHead[], row: AtlasHead[], left: number, y: number, size: number, pitch: number): Bracket[] {
  const groups = new Map<number, number[]>();
  for (const head of grouped) groups.set(head.kv_group, [...(groups.get(head.kv_group) ?? []), row.indexOf(head)]);
  return Array.from(groups, ([group, at]) => ({
    group, y, x: left + Math.min(...at) * pitch, width: (Math.max(...at) - Math.min(...at)) * pitch + size,
  }));
}

/** One ranking, best first, in as many columns as make the cells largest. */
export function ranked(heads: readonly AtlasHead[], width: number, height: number): Layout {
  const line = 15; // each cell's name beneath it
  let size = MAX_CELL;
  let columns = 1;
  for (; size > MIN_CELL; size -= 1) {
    columns = Math.max(1, Math.floor(width / (size + gapOf(size))));
    const room = size >= 34 ? line : 0;
    if (Math.ceil(heads.length / columns) * (size + gapOf(size) + room) <= height) break;
  }
  const gap = gapOf(size);
  const pitchX = size + gap;
  const pitchY = size + gap + (size >= 34 ? line : 0);
  const cells = heads.map((head, i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    return { head: head.head, x: column * pitchX, y: row * pitchY, row, column };
  });
  const columnLabels = size >= 34 ? cells.map((c) => ({ text: c.head, x: c.x + size / 2, y: c.y + size + 11 })) : [];
  return {
    size, gap, cells, columnLabels, rowLabels: [], titles: [], brackets: [],
    width: columns * pitchX, height: Math.ceil(heads.length / columns) * pitchY,
  };
}

/** The cell that an arrow key leads to: the nearest column of the next row, or the next cell. */
export function neighbour(cells: readonly Cell[], from: Cell, key: string): Cell {
  const at = cells.indexOf(from);
  // Beside a stack another may stand: its heads come first, then the next row.
  const beside = (step: number) => cells.find((c) => c.row === from.row && c.column === from.column + step) ?? cells[at + step] ?? from;
  if (key === "ArrowLeft") return beside(-1);
  if (key === "ArrowRight") return beside(1);
  if (key === "Home") return cells[0]!;
  if (key === "End") return cells.at(-1)!;
  const row = from.row + (key === "ArrowDown" ? 1 : -1);
  const there = cells.filter((c) => c.row === row);
  return there.length ? there.reduce((a, b) => (Math.abs(b.column - from.column) < Math.abs(a.column - from.column) ? b : a)) : from;
}
