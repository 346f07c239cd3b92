// The atlas's filter: roles or groups of roles by a part of their name, "L3", "H7", "L3H7", and thresholds such as
// "entropy < 1.5", with "and" or commas between them. A head must meet every condition.
import type { AtlasHead, StatisticInfo } from "../../lib/api/types";
import { ROLE_GROUPS } from "../../lib/draw/role-groups";

type Test = (head: AtlasHead) => boolean;

/** Separators between two conditions: they mean no more than a space. */
const SEPARATOR = /\s*(?:[,;&]|\band\b)\s*/gi;
const THRESHOLD = /([a-z_][\w ]*?)\s*(<=|>=|<|>)\s*(-?\d+(?:\.\d+)?)(%?)/gi;

export function compileFilter(text: string, statistics: readonly StatisticInfo[]): Test {
  const { tests, words } = parse(text, statistics);
  for (const word of words) tests.push(named(word));
  return (head) => tests.every((test) => test(head));
}

/** A message that names the words of the filter that are no role, head, layer or statistic; "" if there are none. */
export function unknownWords(text: string, statistics: readonly StatisticInfo[], heads: readonly AtlasHead[]): string {
  const { words } = parse(text, statistics);
  const unknown = words.filter((word) => !/^(l\d+)?(h\d+)?$/.test(word) && !ROLE_GROUPS.some((group) => group.name.includes(word)) && !heads.some(named(word)));
  if (!unknown.length) return "";
  const statistic = statistics.find(({ name, title }) => unknown.every((word) => `${name} ${title}`.toLowerCase().includes(word)));
  if (statistic) return `${statistic.title}: more or less than what? As in “${statistic.name} > 0.5”`;
  return `${unknown.join(" ")} is not a role, head, layer or statistic`;
}

function parse(text: string, statistics: readonly StatisticInfo[]): { tests: Test[]; words: string[] } {
  const tests: Test[] = [];
  const words = text.replace(SEPARATOR, " ").replace(THRESHOLD, (condition, name: string, sign: string, number: string, percent: string) => {
    const phrase = name.trim().toLowerCase();
    // Other words may stand before the statistic's name: the longest name that the phrase ends with counts.
    let [index, length] = [-1, 0];
    statistics.forEach((statistic, i) => {
      for (const candidate of [statistic.name, statistic.title, statistic.name.replaceAll("_", " ")]) {
        if (candidate.length > length && phrase.endsWith(candidate.toLowerCase())) [index, length] = [i, candidate.length];
      }
    });
    if (index < 0) return condition;
    const limit = Number(number) / (percent ? 100 : 1);
    tests.push((head) => {
      const value = head.values[index];
      if (value === null || value === undefined) return false;
      return sign === "<" ? value < limit : sign === "<=" ? value <= limit : sign === ">" ? value > limit : value >= limit;
    });
    return ` ${name.trim().slice(0, name.trim().length - length)} `;
  });
  return { tests, words: words.toLowerCase().split(/\s+/).filter(Boolean) };
}

function named(word: string): Test {
  const layer = /^l(\d+)$/.exec(word);
  if (layer) return (head) => head.layer === Number(layer[1]);
  const index = /^h(\d+)$/.exec(word);
  if (index) return (head) => head.index === Number(index[1]);
  if (/^l\d+h\d+$/.test(word)) return (head) => head.head.toLowerCase().endsWith(word);
  return (head) => `${head.role?.name ?? ""} ${head.role?.family ?? ""} ${head.stack}`.toLowerCase().includes(word);
}
