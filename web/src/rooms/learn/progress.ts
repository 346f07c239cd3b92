// What a reader has got right, and what of an interview answer was ticked, kept in this browser, by lesson and question.
import { fromJson, keep, type Store } from "../../lib/storage";

type ByQuestion<T> = Record<string, Record<string, T>>;
/** lesson -> check -> points. */
export type Points = ByQuestion<number>;
/** lesson -> interview question -> those of its points that were ticked, in their words: a changed one is to tick anew. */
export type Ticks = ByQuestion<string[]>;

const POINTS = "manyheads.lessons";
const TICKS = "manyheads.lessons.ticks";
const isNumber = (value: unknown): value is number => typeof value === "number";
const isWords = (value: unknown): value is string[] => Array.isArray(value) && value.every((each) => typeof each === "string");

export const readPoints = (store: Store | null): Points => read(store, POINTS, isNumber);
export const readTicks = (store: Store | null): Ticks => read(store, TICKS, isWords);
export const keepPoints = (store: Store | null, points: Points): void => void keep(store, POINTS, JSON.stringify(points));
export const keepTicks = (store: Store | null, ticks: Ticks): void => void keep(store, TICKS, JSON.stringify(ticks));

function read<T>(store: Store | null, key: string, fits: (value: unknown) => value is T): ByQuestion<T> {
  const kept: ByQuestion<T> = {};
  for (const [lesson, questions] of Object.entries(fromJson(store?.getItem(key)) ?? {})) {
    if (typeof questions !== "object" || questions === null) continue;
    kept[lesson] = Object.fromEntries(Object.entries(questions).filter((each): each is [string, T] => fits(each[1])));
  }
  return kept;
}

/** With a check's points; what was reached stays reached. */
export function withPoints(points: Points, lesson: string, check: string, reached: number): Points {
  const before = points[lesson]?.[check] ?? 0;
  return { ...points, [lesson]: { ...points[lesson], [check]: Math.max(before, reached) } };
}

/** With what is ticked of an interview question now. */
export function withTicks(ticks: Ticks, lesson: string, interview: string, ticked: string[]): Ticks {
  return { ...ticks, [lesson]: { ...ticks[lesson], [interview]: ticked } };
}

export function pointsOf(points: Points, lesson?: string): number {
  const lessons = lesson === undefined ? Object.values(points) : [points[lesson] ?? {}];
  return lessons.reduce((sum, checks) => sum + Object.values(checks).reduce((all, value) => all + value, 0), 0);
}

/** The questions of a lesson that are answered: those that it still has. */
export function answered(points: Points, lesson: string, has: Record<string, number>): number {
  return Object.keys(has).filter((check) => (points[lesson]?.[check] ?? 0) > 0).length;
}
