// What a reader has got right, kept in this browser: points by lesson and check. Guarded: storage may be missing or full.
import type { Store } from "../../lib/storage";

/** lesson -> check -> points. */
export type Points = Record<string, Record<string, number>>;

const KEY = "manyheads.lessons";

export function readPoints(store: Store | null): Points {
  try {
    const found: unknown = JSON.parse(store?.getItem(KEY) ?? "{}");
    if (typeof found !== "object" || found === null || Array.isArray(found)) return {};
    const points: Points = {};
    for (const [lesson, checks] of Object.entries(found)) {
      if (typeof checks !== "object" || checks === null) continue;
      const kept = Object.entries(checks as Record<string, unknown>).filter(([, value]) => typeof value === "number");
      points[lesson] = Object.fromEntries(kept) as Record<string, number>;
    }
    return points;
  } catch {
    return {};
  }
}

export function keepPoints(store: Store | null, points: Points): void {
  try {
    store?.setItem(KEY, JSON.stringify(points));
  } catch {
    // A full or forbidden store: points last as long as the page, and the room says so.
  }
}

/** With a check's points; what was reached stays reached. */
export function withPoints(points: Points, lesson: string, check: string, reached: number): Points {
  const before = points[lesson]?.[check] ?? 0;
  return { ...points, [lesson]: { ...points[lesson], [check]: Math.max(before, reached) } };
}

export function pointsOf(points: Points, lesson?: string): number {
  const lessons = lesson === undefined ? Object.values(points) : [points[lesson] ?? {}];
  return lessons.reduce((sum, checks) => sum + Object.values(checks).reduce((all, value) => all + value, 0), 0);
}

/** The questions of a lesson that are answered: those that it still has. */
export function answered(points: Points, lesson: string, has: Record<string, number>): number {
  return Object.keys(has).filter((check) => (points[lesson]?.[check] ?? 0) > 0).length;
}
