// The scale of a statistic that colours the atlas's frames, and the order of its cells.
import type { AtlasHead, StatisticInfo } from "../../lib/api/types";
import { number } from "../../lib/draw/format";
import { ROLE_GROUPS, roleGroup } from "../../lib/draw/role-groups";

export interface Scale {
  statistic: StatisticInfo;
  /** The statistic's index in a head's `values`. */
  index: number;
  low: number;
  high: number;
}

/** A statistic's scale over these heads: from 0 where its range begins there, else from the least value. Null for "role". */
export function scaleOf(name: string, heads: readonly AtlasHead[], statistics: readonly StatisticInfo[]): Scale | null {
  const index = statistics.findIndex((entry) => entry.name === name);
  const statistic = statistics[index];
  if (!statistic) return null;
  const values = heads.map((head) => head.values[index]).filter((v): v is number => v !== null && v !== undefined);
  const least = Math.min(...values);
  return { statistic, index, low: values.length && statistic.low !== 0 ? least : 0, high: values.length ? Math.max(...values) : 1 };
}

/** A head's position on the scale, 0 to 1; null for a head without a value. */
export function positionOn(scale: Scale, head: AtlasHead): number | null {
  const value = head.values[scale.index];
  if (value === null || value === undefined) return null;
  return scale.high > scale.low ? Math.max(0, Math.min(1, (value - scale.low) / (scale.high - scale.low))) : 0;
}

/** The unit of the numbers in the squares, one for all: where the largest is small, thousandths or smaller. */
export function cellUnit({ low, high }: Pick<Scale, "low" | "high">): { factor: number; words: string } {
  const largest = Math.max(Math.abs(low), Math.abs(high));
  if (!(largest > 0) || largest >= 0.1) return { factor: 1, words: "" };
  return largest >= 1e-4 ? { factor: 1e3, words: "thousandths" } : { factor: 1e6, words: "millionths" };
}

/** A number as its square shows it: two decimals, or two significant digits of the unit that all squares have. */
export function cellText(value: number | null | undefined, scale: Pick<Scale, "low" | "high">): string {
  if (value === null || value === undefined) return "–";
  const { factor } = cellUnit(scale);
  if (factor === 1) return value !== 0 && Math.abs(value) < 0.005 ? number(value, 1) : value.toFixed(Math.abs(value) < 10 ? 2 : 1);
  return number(value * factor, 2);
}

/** Heads by layer, by role (groups in their order, best evidence first), or by a statistic (largest value first). */
export function ordered(heads: readonly AtlasHead[], sort: string, statistics: readonly StatisticInfo[]): AtlasHead[] {
  if (sort === "role") {
    const rank = new Map(ROLE_GROUPS.map((group, i) => [group.name, i]));
    const rankOf = (head: AtlasHead) => rank.get(roleGroup(head.role?.family).name)!;
    return [...heads].sort((a, b) => rankOf(a) - rankOf(b) || (b.role?.evidence.score ?? 0) - (a.role?.evidence.score ?? 0));
  }
  const index = statistics.findIndex((statistic) => statistic.name === sort);
  if (index < 0) return [...heads];
  return [...heads].sort((a, b) => (b.values[index] ?? -Infinity) - (a.values[index] ?? -Infinity));
}
