// The lessons of a page without a server. Cells of arithmetic are computed by the program cells.js (lib/lesson-cells); of others the
// page holds the result with the numbers that they come with and with each of their choices, and of questions what is said to
// answers. lab/room/saved_lessons.py computes these. What else a reader may try needs the studio, and is refused in words.
import { parseEnvelope, type Envelope } from "./envelope";
import { pageProgram } from "./program";
import { StudioError } from "./source";
import type { CellResult, Check, CheckAsk, CheckResult, Lesson, LessonEntry, LiveCell, RecordingInfo } from "./types";

/** What is said to a known answer, right or wrong. */
export interface Known extends CheckResult {
  answer: string | number;
}

/** A question's verdicts: of each choice, or of known answers and of all others. */
export interface Judged {
  verdicts?: Record<string, CheckResult>;
  unit?: string;
  /** Whether the unit is part of the answer. */
  free?: boolean;
  tolerance?: number;
  known?: Known[];
  otherwise?: CheckResult;
  hint: string;
  solution: string;
}

export interface SavedLessons {
  entries: LessonEntry[];
  /** By lesson; a translated page by "one-head?language=de". */
  lessons: Record<string, Lesson>;
  cells: Record<string, CellResult>;
  checks: Record<string, Judged>;
  /** By lesson and number: a scene's recording, the token that asks, and the envelope of its head, in base 64. */
  scenes: Record<string, { info: RecordingInfo; token: number; said: string }>;
}

/** What a lesson's scene shows, where it was saved. */
export interface SavedScene {
  info: RecordingInfo;
  token: number;
  said: Envelope;
}

export function savedScene(saved: SavedLessons, slug: string, number: number): SavedScene {
  const scene = saved.scenes[`${slug}/${number}`];
  if (!scene) throw refusal("The scene of a whole layer is not kept in a saved page, which has no model. To play it: manyheads studio.");
  const bytes = Uint8Array.from(atob(scene.said), (character) => character.charCodeAt(0));
  return { ...scene, said: parseEnvelope(bytes.buffer) };
}

/** The program cells.js, which computes cells of arithmetic. */
export interface CellsProgram {
  /** The result of a cell of `lesson` with the reader's values. Throws an Error whose words say what does not fit. */
  ranCell(lesson: string, cell: LiveCell, values: Readonly<Record<string, string | number>>): CellResult;
  /** What is said to answers of a prediction about a cell, from its result. Throws likewise. */
  judged(check: Check, ran: CellResult): Judged;
}

/** The result of a cell, computed or stored. Throws a StudioError for values that do not fit, or were not stored. */
export async function savedCell(saved: SavedLessons, slug: string, cell: string, values: Record<string, string | number>): Promise<CellResult> {
  const part = cellOf(saved, slug, cell);
  return part.computed_by ? computed((program) => program.ranCell(slug, part, values)) : storedCell(saved, slug, cell, values);
}

async function computed<Result>(work: (program: CellsProgram) => Result): Promise<Result> {
  const program = await pageProgram<CellsProgram>("cells");
  try {
    return work(program);
  } catch (error) {
    throw refusal(error instanceof Error ? error.message : String(error));
  }
}

function cellOf(saved: SavedLessons, slug: string, cell: string): LiveCell {
  const part = saved.lessons[slug]?.parts.find((part) => part.kind === "cell" && part.cell === cell);
  if (part?.kind !== "cell") throw refusal(`There is no cell ${cell} in this page.`);
  return part;
}

function changedIn(part: LiveCell, values: Record<string, unknown>): LiveCell["parameters"] {
  return part.parameters.filter(({ name, value }) => name in values && String(values[name]) !== String(value));
}

/** The stored result of a cell. Throws a StudioError for other numbers than those that the lesson has; choices may be others, unless
    `others` is false: verdicts on predictions are those of the lesson's own. */
export function storedCell(saved: SavedLessons, slug: string, cell: string, parameters: Record<string, unknown>, others = true): CellResult {
  const part = cellOf(saved, slug, cell);
  const changed = changedIn(part, parameters);
  const chosen = changed.filter(({ kind }) => kind === "choice").map(({ name }) => `${name}=${String(parameters[name])}`);
  const result = saved.cells[[`${slug}/${cell}`, ...chosen].join("?")];
  // A choice fills fields: these are then others as well, and belong to the choice.
  const filled = new Set(part.parameters.flatMap(({ name, fills }) => Object.keys(fills[String(parameters[name])] ?? {})));
  const own = changed.find(({ kind, name }) => kind !== "choice" && !filled.has(name));
  const refused = own ?? changed[0];
  if (!result || own || (refused && !others)) throw refusal(`This page was saved with the result for “${refused?.label}” = ${String(refused?.value)}. To compute others: manyheads studio.`);
  return result;
}

/** The verdict on an answer. A prediction is judged by what its cell computes with the reader's values; where the cell is not computed
    in the page, only the lesson's own values are judged, and others refused. `page`: its key among the lessons. Throws a
    StudioError. */
export async function savedVerdict(saved: SavedLessons, page: string, check: string, ask: CheckAsk): Promise<CheckResult> {
  const slug = page.split("?")[0]!;
  const part = saved.lessons[page]?.parts.find((part) => part.kind === "check" && part.check === check);
  if (part?.kind !== "check") throw refusal(`There is no question ${check} in this page.`);
  if (part.cell !== null && part.computed_by) {
    const cell = cellOf(saved, slug, part.cell);
    return verdictOf(part, await computed((program) => program.judged(part, program.ranCell(slug, cell, ask.cell ?? {}))), ask);
  }
  if (part.cell !== null) storedCell(saved, slug, part.cell, ask.cell ?? {}, false);
  return verdictOf(part, saved.checks[`${page}/${check}`]!, ask);
}

function verdictOf(part: Check, judged: Judged, ask: CheckAsk): CheckResult {
  const { hint, solution } = judged;
  if (ask.show === "hint") return { right: false, points: 0, words: hint, answered: true, solution: "" };
  if (ask.show === "solution") return { right: false, points: 0, words: "", answered: true, solution };
  const { wrong, verdict } = { wrong: ask.num_wrong ?? 0, verdict: verdictOn(judged, ask.answer ?? "") };
  if (verdict.right) return { ...verdict, points: part.worth[wrong] ?? 0 };
  return { ...verdict, solution: verdict.answered && wrong + 1 >= part.worth.length ? solution : "" };
}

function verdictOn(judged: Judged, answer: string): CheckResult {
  const written = bare(answer);
  if (judged.verdicts) {
    const choice = Object.keys(judged.verdicts).find((choice) => bare(choice) === written);
    return choice === undefined ? none(`“${answer}” is not one of the choices.`) : judged.verdicts[choice]!;
  }
  const { known = [], otherwise, tolerance = 0, unit = "", free } = judged;
  if (known.every((entry) => typeof entry.answer === "string")) {
    return known.find((entry) => bare(String(entry.answer)) === written) ?? otherwise!;
  }
  const value = numberIn(answer, unit);
  if (free && value !== null && !answer.trim().endsWith(unit)) return none(`${answer} of what? The unit is part of the answer: write it after the number.`);
  if (value === null) return none(unit ? `Write a number in ${unit}: this page was saved, and converts no units.` : `“${answer}” is not a number: write one, as in 0.25 or 4,096.`);
  const distance = (entry: Known) => Math.abs(Number(entry.answer) - value);
  // Of several the nearest; a mistake's own figure is that mistake even where it rounds to the right one.
  const near = known.filter((entry) => distance(entry) <= (entry.right ? tolerance : 0) + 1e-9 * Math.max(1, Math.abs(Number(entry.answer))));
  return near.sort((a, b) => distance(a) - distance(b))[0] ?? otherwise!;
}

/** "4,096", "0,5", "1/4" or "10 GiB" as a number, where a unit behind it is the question's own; else null. */
function numberIn(answer: string, unit: string): number | null {
  let text = answer.trim();
  if (unit && text.endsWith(unit)) text = text.slice(0, -unit.length).trim();
  if (/^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(text)) text = text.replaceAll(",", "");
  const [, above = "", below = "1"] = /^([+-]?\d*[.,]?\d+(?:e[+-]?\d+)?)(?:\s*\/\s*(\d+))?$/i.exec(text) ?? [];
  const value = Number(above.replace(",", ".")) / Number(below);
  return above && Number.isFinite(value) ? value : null;
}

/** A word without case, quotes, article and final punctuation. */
function bare(text: string): string {
  const words = text.trim().toLowerCase().replace(/\s+/g, " ").replace(/^["'`“‘«]+|["'`”’».,;:!?]+$/g, "");
  return words.replace(/^(the|an?) (?=\S)/, "") || text.trim();
}

function none(words: string): CheckResult {
  return { right: false, points: 0, words, answered: false, solution: "" };
}

function refusal(words: string): StudioError {
  return new StudioError(400, { kind: "Saved", words });
}
