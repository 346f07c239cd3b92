// A reader's points, wrong answers and ticked interview answers, stored in the browser by lesson and question.
import { fromJson, save, type Store } from "../../lib/state/storage";

type ByQuestion<T> = Record<string, Record<string, T>>;
/** lesson -> check -> points. */
export type Points = ByQuestion<number>;
/** lesson -> interview question -> the words of its ticked points; a point whose words change is unticked. */
export type Ticks = ByQuestion<string[]>;

/** A question's wrong answers. `inputs`: what it was made from, as JSON; with others it is another question. */
export interface Try {
  inputs: string;
  wrong: number;
}
/** lesson -> check -> its last try; a look at the hint counts as one wrong answer, a skipped question has all of them. */
export type Tries = ByQuestion<Try>;

const POINTS = "manyheads.lessons";
const TRIES = "manyheads.lessons.tries";
const TICKS = "manyheads.lessons.ticks";
const isNumber = (value: unknown): value is number => typeof value === "number";
const isTry = (value: unknown): value is Try =>
  typeof value === "object" && value !== null && typeof (value as Try).inputs === "string" && typeof (value as Try).wrong === "number";
const isWords = (value: unknown): value is string[] => Array.isArray(value) && value.every((item) => typeof item === "string");

export const readPoints = (store: Store | null): Points => read(store, POINTS, isNumber);
export const readTicks = (store: Store | null): Ticks => read(store, TICKS, isWords);
export const readTries = (store: Store | null): Tries => read(store, TRIES, isTry);
export const saveTries = (store: Store | null, tries: Tries): void => void save(store, TRIES, JSON.stringify(tries));
export const savePoints = (store: Store | null, points: Points): void => void save(store, POINTS, JSON.stringify(points));
export const saveTicks = (store: Store | null, ticks: Ticks): void => void save(store, TICKS, JSON.stringify(ticks));

function read<T>(store: Store | null, key: string, fits: (value: unknown) => value is T): ByQuestion<T> {
  const record: ByQuestion<T> = {};
  for (const [lesson, questions] of Object.entries(fromJson(store?.getItem(key)) ?? {})) {
    if (typeof questions !== "object" || questions === null) continue;
    record[lesson] = Object.fromEntries(Object.entries(questions).filter((entry): entry is [string, T] => fits(entry[1])));
  }
  return record;
}

/** The points with those of a check added; points never go down. */
export function withPoints(points: Points, lesson: string, check: string, reached: number): Points {
  const before = points[lesson]?.[check] ?? 0;
  return { ...points, [lesson]: { ...points[lesson], [check]: Math.max(before, reached) } };
}

/** How many wrong answers a check had with these inputs. */
export function wrongOf(tries: Tries, lesson: string, check: string, inputs: string): number {
  const last = tries[lesson]?.[check];
  return last?.inputs === inputs ? last.wrong : 0;
}

/** The tries with a check's number of wrong answers replaced. */
export function withTry(tries: Tries, lesson: string, check: string, inputs: string, wrong: number): Tries {
  return { ...tries, [lesson]: { ...tries[lesson], [check]: { inputs, wrong } } };
}

/** The points of a right answer after so many wrong ones: `worth` ends where the solution is shown. */
export function pointsLeft(worth: readonly number[], wrong: number): number {
  return worth[wrong] ?? 0;
}

/** The ticks with those of an interview question replaced. */
export function withTicks(ticks: Ticks, lesson: string, interview: string, ticked: string[]): Ticks {
  return { ...ticks, [lesson]: { ...ticks[lesson], [interview]: ticked } };
}

export function pointsOf(points: Points, lesson?: string): number {
  const lessons = lesson === undefined ? Object.values(points) : [points[lesson] ?? {}];
  return lessons.reduce((sum, checks) => sum + Object.values(checks).reduce((all, value) => all + value, 0), 0);
}

/** The number of a lesson's questions that have points; `questions` are those that the lesson still has. */
export function numAnswered(points: Points, lesson: string, questions: Record<string, number>): number {
  return Object.keys(questions).filter((check) => (points[lesson]?.[check] ?? 0) > 0).length;
}
