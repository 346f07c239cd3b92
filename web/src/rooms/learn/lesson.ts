// How a lesson is laid out, and how much of it is open: text and questions in one column, cells beside them; what follows a
// question stays folded until that question is answered or skipped.
import type { Lesson } from "../../lib/api/types";

export type Part = Lesson["parts"][number];
export type Check = Extract<Part, { kind: "check" }>;
export type Question = Extract<Part, { kind: "check" | "interview" }>;

export function isQuestion(part: Part | undefined): part is Question {
  return part?.kind === "check" || part?.kind === "interview";
}

/** The name of a question: points are stored by it. */
export function nameOf(part: Question): string {
  return part.kind === "check" ? part.check : part.interview;
}

/** The index of the first part that is folded; the number of parts where all are open. Questions that follow each other are shown
    together, and so is the cell that a prediction is about. */
export function foldAt(parts: readonly Part[], settled: (part: Question) => boolean): number {
  const open = parts.findIndex((part) => isQuestion(part) && !settled(part));
  if (open < 0) return parts.length;
  let last = open;
  for (let i = open; i <= last; i++) {
    const part = parts[i]!;
    if (part.kind === "check" && part.cell !== null) last = Math.max(last, parts.findIndex((other) => other.kind === "cell" && other.cell === part.cell));
    if (isQuestion(parts[i + 1])) last = Math.max(last, i + 1);
  }
  return last + 1;
}

/** A part with a key that is its own in the lesson; prose is cut at its headings. */
export interface Piece {
  key: string;
  part: Part;
}

/** Pieces that stand together: text and questions, and beside them at most one cell; or one wide cell alone. */
export interface Row {
  key: string;
  wide: boolean;
  /** In the order of the page, `beside` among them. */
  pieces: Piece[];
  beside: Piece | null;
}

export function rowsOf(parts: readonly Part[]): Row[] {
  const rows: Row[] = [];
  let row: Row | null = null;
  const begin = (key: string, wide = false) => rows.push((row = { key, wide, pieces: [], beside: null }));
  for (const piece of piecesOf(parts)) {
    const { key, part } = piece;
    const isWide = part.kind === "scene" || (part.kind === "cell" && part.wide);
    if (isWide) {
      begin(key, true);
      row!.pieces.push(piece);
      row = null;
      continue;
    }
    const heads = part.kind === "prose" && part.html.startsWith("<h2>");
    // What is said after a cell stands beside it, up to the next heading or the next cell.
    if (!row || heads || (part.kind === "cell" && (row as Row).beside)) begin(key);
    row!.pieces.push(piece);
    if (part.kind === "cell") row!.beside = piece;
  }
  return rows;
}

function piecesOf(parts: readonly Part[]): Piece[] {
  return parts.flatMap((part, i): Piece[] => {
    if (part.kind !== "prose") return [{ key: `${i}`, part }];
    return part.html.split(/(?=<h2>)/).filter((html) => html.trim()).map((html, j) => ({ key: `${i}.${j}`, part: { ...part, html } }));
  });
}
