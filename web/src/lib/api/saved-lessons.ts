// The lessons of a page without a server: each cell's result with the numbers that it comes with and with each of its choices,
// and what is said to answers. lab/room/saved_lessons.py computes them. What else a reader may try needs the studio, and is
// refused in words.
import { StudioError } from "./source";
import { parseEnvelope, type Envelope } from "./envelope";
import type { CellResult, CheckAsk, CheckResult, Lesson, LessonEntry, RecordingInfo } from "./types";

interface Known extends CheckResult {
  answer: string | number;
}

/** A question's verdicts: of each choice, or of known answers and of all others. */
interface Judged {
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

/** The result of a cell. Throws a StudioError for other numbers than those that the lesson has; choices may be others, unless
    `others` is false: verdicts on predictions are those of the lesson's own. */
export function savedCell(saved: SavedLessons, slug: string, cell: string, parameters: Record<string, unknown>, others = true): CellResult {
  const part = saved.lessons[slug]?.parts.find((part) => part.kind === "cell" && part.cell === cell);
  if (part?.kind !== "cell" || !saved.cells[`${slug}/${cell}`]) throw refusal(`There is no cell ${cell} in this page.`);
  const isOther = ({ name, value }: { name: string; value: unknown }) => name in parameters && String(parameters[name]) !== String(value);
  const changed = part.parameters.filter(isOther);
  const chosen = changed.filter(({ kind }) => kind === "choice").map(({ name }) => `${name}=${String(parameters[name])}`);
  const result = saved.cells[[`${slug}/${cell}`, ...chosen].join("?")];
  // A choice fills fields: these are then others, too, and belong to the choice.
  const filled = new Set(part.parameters.flatMap(({ name, fills }) => Object.keys(fills[String(parameters[name])] ?? {})));
  const own = changed.find(({ kind, name }) => kind !== "choice" && !filled.has(name));
  const refused = own ?? changed[0];
  if (!result || own || (refused && !others)) throw refusal(`This page was saved with the result for “${refused?.label}” = ${String(refused?.value)}. To compute others: manyheads studio.`);
  return result;
}

export function savedVerdict(saved: SavedLessons, slug: string, check: string, ask: CheckAsk): CheckResult {
  const judged = saved.checks[`${slug}/${check}`];
  const part = saved.lessons[slug]?.parts.find((part) => part.kind === "check" && part.check === check);
  if (!judged || part?.kind !== "check") throw refusal(`There is no question ${check} in this page.`);
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
    return choice === undefined ? none(`“${answer}” is none of the choices.`) : judged.verdicts[choice]!;
  }
  const { known = [], otherwise, tolerance = 0, unit = "", free } = judged;
  if (known.every((entry) => typeof entry.answer === "string")) {
    return known.find((entry) => bare(String(entry.answer)) === written) ?? otherwise!;
  }
  const value = numberIn(answer, unit);
  if (free && value !== null && !answer.trim().endsWith(unit)) return none(`${answer} of what? The unit is part of the answer: write it behind the number.`);
  if (value === null) return none(unit ? `Write a number in ${unit}: this page was saved, and converts no units.` : `“${answer}” is no number: write one, as in 0.25 or 4,096.`);
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
