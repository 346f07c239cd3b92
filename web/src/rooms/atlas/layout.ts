// The place of every head's cell: one row per layer, or one ranking when sorted. Cells take the largest size at which all
// fit without scrolling, down to a coloured dot; a deep model's layers stand in blocks side by side. Under GQA the heads that
// share keys and values stand together: a gap before the next group, a bracket beneath each.
import type { AtlasHead } from "../../lib/api/types";

/** The fields of a head that this file uses. */
export type PlacedHead = Pick<AtlasHead, "head" | "stack" | "layer" | "kv_group">;

export interface Cell {
  head: string;
  x: number;
  y: number;
  /** Row and column in reading order, for the arrow keys. */
  row: number;
  column: number;
  /** Blocks of rows stand side by side: the number of its own. */
  block: number;
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
  /** Pixels of its two ends. */
  tick: number;
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
const BETWEEN = 16; // pixels between stacks, and blocks of layers, side by side
const MOST_STACKS = 6; // with more, only two of the 2^(n - 1) arrangements are tried
const MOST_BLOCKS = 6; // of the layers of a stack, side by side
const WORTH = 1.25; // how much larger cells must be with more blocks: a stack in one piece is easier to read

interface Section {
  stack: string;
  rows: PlacedHead[][];
  /** Whether it is the beginning of its stack, and not a further block of its layers. */
  first: boolean;
}

/** A section per stack with a row per layer, in the atlas's order. */
function sectionsOf(heads: readonly PlacedHead[]): Section[] {
  const list: Section[] = [];
  for (const head of heads) {
    let section = list.find(({ stack }) => stack === head.stack);
    if (!section) list.push((section = { stack: head.stack, rows: [], first: true }));
    const last = section.rows.at(-1);
    if (last && last[0]!.layer === head.layer) last.push(head);
    else section.rows.push([head]);
  }
  return list;
}

function gapOf(size: number): number {
  return size >= 48 ? 8 : size >= 24 ? 5 : size >= 12 ? 3 : 1;
}

/** Pixels beneath a row for its brackets, and pixels more between two groups of a row. */
const underOf = (size: number) => (size >= 48 ? 4 : size >= 12 ? 3 : 2);
const apartOf = (size: number) => Math.max(2, Math.round(size / 6));

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

/** The layers of every stack in so many blocks, a column each. */
function inBlocks(sections: Section[], count: number): Section[][] {
  return sections.flatMap(({ stack, rows }) => {
    const most = Math.ceil(rows.length / count);
    return Array.from({ length: Math.ceil(rows.length / most) }, (_, i) => [{ stack, rows: rows.slice(i * most, (i + 1) * most), first: i === 0 }]);
  });
}

/** The columns of a section before which a group of heads begins, but the first: those of its rows that share keys and values,
    where these are alike; none otherwise. */
function groupStarts(section: Section, grouped: (head: PlacedHead) => boolean): number[] {
  const starts = section.rows.filter((row) => row.some(grouped)).map((row) => row.flatMap((head, i) => (i && head.kv_group !== row[i - 1]!.kv_group ? [i] : [])));
  return starts.every((list) => list.join() === starts[0]!.join()) ? (starts[0] ?? []) : [];
}

/** One row per layer: stacks beneath each other or side by side, or layers in blocks side by side, whichever makes the cells
    largest. `grouped`: whether a head shares its keys and values with others. `largest`: pixels of a cell at most. */
export function byLayer(heads: readonly PlacedHead[], width: number, height: number, grouped: (head: PlacedHead) => boolean, largest = MAX_CELL): Layout {
  const sections = sectionsOf(heads);
  const several = sections.length > 1;
  const shared = heads.some(grouped);
  const starts = new Map(sections.map((section) => [section.stack, groupStarts(section, grouped)]));
  const acrossOf = (section: Section) => Math.max(1, ...section.rows.map((row) => row.length));
  const sectionWidth = (section: Section, size: number) =>
    acrossOf(section) * (size + gapOf(size)) + (starts.get(section.stack)?.length ?? 0) * apartOf(size);
  const columnWidth = (column: Section[], size: number) => Math.max(1, ...column.map((section) => sectionWidth(section, size)));
  const roomUnder = (size: number) => (shared ? underOf(size) : 0);
  const above = TOP + (several ? TITLE : 0);
  const widthOf = (columns: Section[][], size: number) =>
    columns.reduce((sum, column) => sum + SIDE + columnWidth(column, size), (columns.length - 1) * BETWEEN);
  const heightOf = (columns: Section[][], size: number) => Math.max(0, ...columns.map((column) =>
    column.length * above + column.reduce((sum, section) => sum + section.rows.length, 0) * (size + gapOf(size) + roomUnder(size))));
  const largestIn = (columns: Section[][]) => {
    let size = largest;
    while (size > MIN_CELL && (widthOf(columns, size) > width || heightOf(columns, size) > height)) size -= 1;
    return size;
  };
  const choose = (candidates: Section[][][]) =>
    candidates.map((columns) => ({ columns, size: largestIn(columns) })).reduce((best, next) => (next.size > best.size ? next : best));
  const whole = choose(arrangements(sections));
  const deepest = Math.max(1, ...sections.map(({ rows }) => rows.length));
  const blocks = Array.from({ length: Math.min(MOST_BLOCKS, deepest) - 1 }, (_, i) => inBlocks(sections, i + 2));
  const cut = blocks.length ? choose(blocks) : whole;
  const { columns, size } = cut.size >= WORTH * whole.size ? cut : whole;
  const [gap, under, apart] = [gapOf(size), roomUnder(size), apartOf(size)];
  const pitch = size + gap;
  const layout: Layout = {
    size, gap, width: widthOf(columns, size), height: heightOf(columns, size), cells: [], rowLabels: [], columnLabels: [], titles: [], brackets: [],
  };
  let left = SIDE;
  let headsLeft = 0; // heads across in the columns on the left
  columns.forEach((column, block) => {
    let y = 0;
    let row = 0;
    for (const section of column) {
      if (several) {
        if (section.first) layout.titles.push({ text: section.stack || "stack", x: left, y: y + 14 });
        y += TITLE;
      }
      const begins = starts.get(section.stack) ?? [];
      const xOf = (h: number) => left + h * pitch + begins.filter((begin) => begin <= h).length * apart;
      // Where "H11" has no room, the number alone may have.
      const bare = pitch < 26 && pitch >= (acrossOf(section) > 10 ? 15 : 10);
      const step = pitch >= 26 || bare ? 1 : pitch >= 14 ? 2 : 4;
      // Where groups stand apart and not every head has its number, each group's first head has one.
      const numbered = step > 1 && begins.length ? [0, ...begins] : Array.from({ length: Math.ceil(acrossOf(section) / step) }, (_, i) => i * step);
      for (const h of numbered) layout.columnLabels.push({ text: bare ? `${h}` : `H${h}`, x: xOf(h) + size / 2, y: y + 10 });
      y += TOP;
      section.rows.forEach((heads, rowIndex) => {
        if (pitch >= 12 || rowIndex % 2 === 0) layout.rowLabels.push({ text: `L${heads[0]!.layer}`, x: left - 10, y: y + size / 2 });
        heads.forEach((head, i) => layout.cells.push({ head: head.head, x: xOf(i), y, row, column: headsLeft + i, block }));
        if (under) layout.brackets.push(...bracketsOf(heads.filter(grouped), (head) => xOf(heads.indexOf(head)), y + size + 2, size));
        y += pitch + under;
        row += 1;
      });
    }
    left += columnWidth(column, size) + BETWEEN + SIDE;
    headsLeft += Math.max(...column.map(acrossOf));
  });
  return layout;
}

/** A bracket beneath each run of neighbours of one group. */
function bracketsOf(heads: readonly PlacedHead[], xOf: (head: PlacedHead) => number, y: number, size: number): Bracket[] {
  const groups = new Map<number, number[]>();
  for (const head of heads) groups.set(head.kv_group, [...(groups.get(head.kv_group) ?? []), xOf(head)]);
  return Array.from(groups, ([group, places]) => ({
    group, y, x: Math.min(...places), width: Math.max(...places) - Math.min(...places) + size, tick: size >= 24 ? 3 : 2,
  }));
}

/** Heads in the given order, in as many columns as make the cells largest. */
export function ranked(heads: readonly PlacedHead[], width: number, height: number): Layout {
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
    return { head: head.head, x: column * pitchX, y: row * pitchY, row, column, block: 0 };
  });
  const columnLabels = size >= 34 ? cells.map((cell) => ({ text: cell.head, x: cell.x + size / 2, y: cell.y + size + 11 })) : [];
  return {
    size, gap, cells, columnLabels, rowLabels: [], titles: [], brackets: [],
    width: columns * pitchX, height: Math.ceil(heads.length / columns) * pitchY,
  };
}

/** Heads in the given order for a narrow page: squares that a finger meets, named, as many rows as they need. Heads that
    share keys and values stay in one line where they follow each other. */
export function wrapped(heads: readonly PlacedHead[], width: number, grouped: (head: PlacedHead) => boolean = () => false): Layout {
  const layer = heads.filter((head) => head.layer === heads[0]?.layer && head.stack === heads[0].stack);
  const sharing = layer.filter((head) => head.kv_group === heads[0]!.kv_group).length;
  const gap = gapOf(FINGER);
  const fitting = Math.max(1, Math.floor((width + gap) / (FINGER + gap)));
  const together = heads.every(grouped) && sharing > 1 && sharing <= fitting && heads.every((head, i) => head.kv_group === heads[i - (i % sharing)]!.kv_group);
  const apart = together ? apartOf(FINGER) : 0;
  const numGroups = together ? Math.max(1, Math.floor((width + gap + apart) / (sharing * (FINGER + gap) + apart))) : 0;
  // A whole share of a layer in each line, where that leaves the squares at most twice as large.
  const columns = together
    ? numGroups * sharing
    : (Array.from({ length: fitting }, (_, i) => fitting - i).find((n) => layer.length % n === 0 && 2 * n > fitting) ?? fitting);
  const size = Math.min(MAX_CELL, Math.floor((width + gap - apart * Math.max(0, numGroups - 1)) / columns) - gap);
  const [pitchX, pitchY] = [size + gap, size + gap + 15 + (together ? 2 : 0)];
  const xOf = (column: number) => column * pitchX + (together ? Math.floor(column / sharing) * apart : 0);
  const cells = heads.map((head, i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    return { head: head.head, x: xOf(column), y: row * pitchY + 4, row, column, block: 0 };
  });
  const brackets = together
    ? cells.flatMap((cell, i) => (i % sharing ? [] : bracketsOf(heads.slice(i, i + sharing), (head) => cells[heads.indexOf(head, i)]!.x, cell.y + size + 2, size)))
    : [];
  return {
    size, gap, cells, rowLabels: [], titles: [], brackets, width: xOf(columns - 1) + size, height: Math.ceil(heads.length / columns) * pitchY + 4,
    columnLabels: cells.map((cell) => ({ text: cell.head, x: cell.x + size / 2, y: cell.y + size + (together ? 11 : 9) })),
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
  const step = key === "ArrowDown" ? 1 : -1;
  const rowOf = (block: number, row: number) => cells.filter((cell) => cell.block === block && cell.row === row);
  const first = (block: number) => Math.min(...cells.filter((cell) => cell.block === block).map(({ column }) => column));
  let [row, column] = [rowOf(from.block, from.row + step), from.column];
  if (!row.length) {
    // Beneath a block's last row comes the next block's first.
    const beside = cells.filter((cell) => cell.block === from.block + step);
    row = rowOf(from.block + step, step > 0 ? 0 : Math.max(...beside.map((cell) => cell.row)));
    column += first(from.block + step) - first(from.block);
  }
  const distance = (cell: Cell) => Math.abs(cell.column - column);
  return row.sort((a, b) => distance(a) - distance(b))[0] ?? from;
}
