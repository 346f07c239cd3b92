// The entry of cells.js: the lessons' arithmetic cells, and what is right of predictions about them, in a page without a server. It
// leaves itself under a name and says so, as every such program does (lib/api/program.ts).
import type { CellsProgram, Judged, Known } from "../api/saved-lessons";
import type { CellResult, Check, LiveCell } from "../api/types";
import { CELLS } from "./cells";
import { byLabels, readValues, Refusal, Values, type Value } from "./parameters";
import { isSame, PREDICTIONS, solutionOf, usualTolerance } from "./predictions";
import { singular } from "./words";

/** The result of a cell with the reader's values, as the studio answers it. Throws a Refusal in the page's words. */
function ranCell(lesson: string, cell: LiveCell, changes: Readonly<Record<string, Value>>): CellResult {
  const empty = { links: [], flow: [], cards: [], chart: [], frames: [], headlines: [], marked: [], born: null };
  try {
    const ran = CELLS[cell.computed_by]!(readValues(cell.parameters, changes));
    return { lesson, cell: cell.cell, ...empty, ...ran, words: singular(ran.words) };
  } catch (error) {
    if (error instanceof Refusal) throw new Refusal(byLabels(error.message, cell.parameters), error.kind);
    throw error;
  }
}

/** What is said to answers of a prediction about a cell with the reader's values (as `judged_answers` of lab/room/saved_lessons.py has it). */
function judged(check: Check, ran: CellResult): Judged {
  const found = PREDICTIONS[check.computed_by]!(new Values(check.inputs), ran);
  const right = { ...found, words: singular(found.words), hint: singular(found.hint) };
  const mistakes = [...right.mistakes].filter(([mistake]) => !isSame(mistake, right.answer));
  const shown = { hint: right.hint, solution: solutionOf(right) };
  const verdict = { points: 0, answered: true, solution: "" };
  const last = check.worth.length === 1 ? shown.solution : ""; // of two choices, a wrong answer is the last one
  const wrong = (words: string) => ({ ...verdict, right: false, words: `Not yet. ${singular(words)}`, solution: last });
  const correct = { ...verdict, right: true, points: check.points, words: `Right. ${right.words}` };
  const known: Known[] = [
    ...mistakes.map(([answer, words]) => ({ answer, ...wrong(words) })),
    ...[right.answer, ...(right.also ?? [])].map((answer) => ({ answer, ...correct })),
  ];
  if (check.choices.length) {
    const of = (choice: string) => (isSame(choice, right.answer) ? correct : wrong(mistakes.find(([mistake]) => isSame(mistake, choice))?.[1] ?? right.hint));
    return { ...shown, verdicts: Object.fromEntries(check.choices.map((choice) => [choice, of(choice)])) };
  }
  const tolerance = typeof right.answer === "string" ? 0 : (right.tolerance ?? usualTolerance(right.answer));
  return { ...shown, unit: right.unit ?? "", free: false, tolerance, known, otherwise: wrong(right.hint) };
}

const program: CellsProgram = { ranCell, judged };
Object.assign(globalThis, { manyheadsCells: program });
globalThis.dispatchEvent?.(new Event("manyheads-cells"));
