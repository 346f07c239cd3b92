// The place of every head's cell: one row per layer, or one ranking when sorted. Cells take the largest size at which all
// fit without scrolling, down to a coloured dot.
import type { AtlasHead } from "../../lib/api/types";

export interface Cell {
  head: string;
  x: number;
  y: number;
  /** Row and column in reading order, for the arrow keys. */
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
const FINGER = 44; // pixels that a finger meets
const SIDE = 34; // for "L31"
const TOP = 18; // for "H31"
const TITLE = 22;
const BETWEEN = 16; // pixels between stacks side by side
const MOST_STACKS = 6; // with more, only two of the 2^(n - 1) arrangements are tried

interface Section {
  stack: string;
  rows: AtlasHead[][];
}

/** A section per stack with a row per layer, in the atlas's order. */
function sectionsOf(heads: readonly AtlasHead[]): Section[] {
  const list: Section[] = [];
  for (const head of heads) {
    let section = list.find(({ stack }) => stack === head.stack);
    if (!section) list.push((section = { stack: head.stack, rows: [] }));
    const last = section.rows.at(-1);
    if (last && last[0]!.layer === head.layer) last.push(head);
    else section.rows.push([head]);
  }
  return list;
}

function gapOf(size: number): number {
  return size >= 48 ? 8 : size >= 24 ? 5 : size >= 12 ? 3 : 1;
}

/** Every way to put sections into columns without changing their order: from all in one column to one column each. */
function arrangements(sections: Section[]): Section[][][] {
  const n = sections.length;
  if (n > MOST_STACKS) return [[sections], sections.map((section) => [section])];
  return Array.from({ length: 2 ** (n - 1) }, (_, cuts) =>
    sections.reduce<Section[][]>((columns, section, i) => {
      if (i && !(cuts & (1 << (i - 1)))) columns.at(-1)!.push(section);
      else columns.push([section]);
      return columns;
    }, []),
  ).sort((a, b) => a.length - b.length);
}

/** One row per layer, with stacks beneath each other or side by side, whichever makes the cells largest. `grouped`: whether
    a head shares its keys and values with others: their brackets take room. */
export function byLayer(heads: readonly AtlasHead[], width: number, height: number, grouped: (head: AtlasHead) => boolean): Layout {
  const sections = sectionsOf(heads);
  const widest = (column: Section[]) => Math.max(1, ...column.flatMap((section) => section.rows.map((row) => row.length)));
  const several = sections.length > 1;
  const shared = heads.some(grouped);
  const roomUnder = (size: number) => (shared ? (size >= 16 ? 5 : 3) : 0); // for a bracket
  const above = TOP + (several ? TITLE : 0);
  const widthOf = (columns: Section[][], pitch: number) =>
    columns.reduce((sum, column) => sum + SIDE + widest(column) * pitch, (columns.length - 1) * BETWEEN);
  const heightOf = (columns: Section[][], size: number) => Math.max(0, ...columns.map((column) =>
    column.length * above + column.reduce((sum, section) => sum + section.rows.length, 0) * (size + gapOf(size) + roomUnder(size))));
  const candidates = arrangements(sections);
  let columns = candidates[0]!;
  let size = MAX_CELL;
  for (; size > MIN_CELL; size -= 1) {
    const fitting = candidates.find((columns) => widthOf(columns, size + gapOf(size)) <= width && heightOf(columns, size) <= height);
    if (!fitting) continue;
    columns = fitting;
    break;
  }
  const gap = gapOf(size);
  const pitch = size + gap;
  const bracketRoom = roomUnder(size);
  const layout: Layout = {
    size, gap, width: widthOf(columns, pitch), height: heightOf(columns, size), cells: [], rowLabels: [], columnLabels: [], titles: [], brackets: [],
  };
  let left = SIDE;
  let headsLeft = 0; // heads across in the columns on the left
  for (const column of columns) {
    let y = 0;
    let row = 0;
    for (const section of column) {
      if (several) {
        layout.titles.push({ text: section.stack || "stack", x: left, y: y + 14 });
        y += TITLE;
      }
      const step = pitch >= 26 ? 1 : pitch >= 14 ? 2 : 4;
      for (let h = 0; h < widest([section]); h += step) layout.columnLabels.push({ text: `H${h}`, x: left + h * pitch + size / 2, y: y + 10 });
      y += TOP;
      section.rows.forEach((heads, rowIndex) => {
        if (pitch >= 12 || rowIndex % 2 === 0) layout.rowLabels.push({ text: `L${heads[0]!.layer}`, x: left - 10, y: y + size / 2 });
        heads.forEach((head, i) => layout.cells.push({ head: head.head, x: left + i * pitch, y, row, column: headsLeft + i }));
        if (bracketRoom) layout.brackets.push(...bracketsOf(heads.filter(grouped), heads, left, y + size + Math.min(3, bracketRoom - 1), size, pitch));
        y += pitch + bracketRoom;
        row += 1;
      });
    }
    left += widest(column) * pitch + BETWEEN + SIDE;
    headsLeft += widest(column);
  }
  return layout;
}

function bracketsOf(grouped: AtlasHead[], row: AtlasHead[], left: number, y: number, size: number, pitch: number): Bracket[] {
  const groups = new Map<number, number[]>();
  for (const head of grouped) groups.set(head.kv_group, [...(groups.get(head.kv_group) ?? []), row.indexOf(head)]);
  return Array.from(groups, ([group, columns]) => ({
    group, y, x: left + Math.min(...columns) * pitch, width: (Math.max(...columns) - Math.min(...columns)) * pitch + size,
  }));
}

/** Heads in the given order, in as many columns as make the cells largest. */
export function ranked(heads: readonly AtlasHead[], width: number, height: number): Layout {
  const line = 15; // pixels for each cell's name beneath it
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
  const columnLabels = size >= 34 ? cells.map((cell) => ({ text: cell.head, x: cell.x + size / 2, y: cell.y + size + 11 })) : [];
  return {
    size, gap, cells, columnLabels, rowLabels: [], titles: [], brackets: [],
    width: columns * pitchX, height: Math.ceil(heads.length / columns) * pitchY,
  };
}

/** Heads in the given order for a narrow page: squares that a finger meets, named, as many rows as they need. */
export function wrapped(heads: readonly AtlasHead[], width: number): Layout {
  const inLayer = heads.filter((head) => head.layer === heads[0]?.layer && head.stack === heads[0].stack).length;
  const fitting = Math.max(1, Math.floor((width + gapOf(FINGER)) / (FINGER + gapOf(FINGER))));
  // A whole share of a layer in each line, where that leaves the squares at most twice as large.
  const columns = Array.from({ length: fitting }, (_, i) => fitting - i).find((n) => inLayer % n === 0 && 2 * n > fitting) ?? fitting;
  const gap = gapOf(FINGER);
  const size = Math.min(MAX_CELL, Math.floor((width + gap) / columns) - gap);
  const [pitchX, pitchY] = [size + gap, size + gap + 15];
  const cells = heads.map((head, i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    return { head: head.head, x: column * pitchX, y: row * pitchY + 4, row, column };
  });
  return {
    size, gap, cells, rowLabels: [], titles: [], brackets: [], width: columns * pitchX - gap, height: Math.ceil(heads.length / columns) * pitchY + 4,
    columnLabels: cells.map((cell) => ({ text: cell.head, x: cell.x + size / 2, y: cell.y + size + 9 })),
  };
}

/** The cell to which an arrow key, Home or End leads: the next cell, or the nearest one in the next row. */
export function neighbour(cells: readonly Cell[], from: Cell, key: string): Cell {
  // Stacks may stand side by side: the other stack's head of the same row comes before the next row.
  const beside = (step: number) =>
    cells.find((cell) => cell.row === from.row && cell.column === from.column + step) ?? cells[cells.indexOf(from) + step] ?? from;
  if (key === "ArrowLeft") return beside(-1);
  if (key === "ArrowRight") return beside(1);
  if (key === "Home") return cells[0]!;
  if (key === "End") return cells.at(-1)!;
  const row = from.row + (key === "ArrowDown" ? 1 : -1);
  const distance = (cell: Cell) => Math.abs(cell.column - from.column);
  return cells.filter((cell) => cell.row === row).sort((a, b) => distance(a) - distance(b))[0] ?? from;
}
