// What is right of a prediction, read in what its cell has just computed: each is the function of its name in lab/lessons/pages, with
// the same words. How an answer is judged by it: lib/api/saved-lessons.ts.
import type { Shown } from "../api/types";
import type { Ran } from "./cells";
import { Refusal, type Values } from "./parameters";
import { fixed, general, grouped, quote } from "./words";

/** The right answer, and what to say to it and to wrong ones. `tolerance`: how far off a number may be; undefined is exact for a
    whole number, else two places or three figures. `also`: other words that are right. */
export interface Right {
  answer: number | string;
  words: string;
  hint: string;
  unit?: string;
  tolerance?: number;
  mistakes: Map<number | string, string>;
  also?: string[];
}

const [SPLIT, ALONE] = ["reshape, then transpose", "reshape alone"];
const WHO = ["One head, asked for both words", "Head 0, asked for the word before", "Head 1, asked for the word after"];

/** A table of a result, by its label; what may not be seen is NaN. */
function table(ran: Ran, label: string): Pick<Shown, "row_labels" | "column_labels"> & { values: number[][] } {
  const shown = ran.shown.find((shown) => shown.label === label)!;
  return { ...shown, values: shown.values.map((row) => row.map((value) => value ?? NaN)) };
}

function looksMost(inputs: Values, ran: Ran): Right {
  const { values, row_labels: rows, column_labels: columns } = table(ran, "weights");
  const token = inputs.number("token");
  if (token >= rows.length) throw new Refusal(`there is no token ${token} in the cell now: it has ${rows.length}.`);
  const row = values[token]!;
  const most = Math.max(...row);
  const best = columns.filter((_, key) => Math.abs(row[key]! - most) <= 1e-8 + 1e-5 * most);
  const tie = best.length > 1 ? ` ${best.length} tokens tie: any of them will do.` : "";
  const least = columns[row.indexOf(Math.min(...row))]!;
  const bare = (name: string) => name.replace(/^token /, "");
  return {
    answer: best[0]!,
    words: `The row of token ${token} is (${row.map((value) => fixed(value, 3)).join(", ")}).${tie}`,
    hint: `Multiply the query of token ${token} with every key: the largest product has it.`,
    mistakes: new Map(best.length < row.length ? [least, bare(least)].map((name) => [name, `It looks least at ${least}.`]) : []),
    also: [...best.slice(1), ...best.map(bare)],
  };
}

function maskedRow(inputs: Values, ran: Ran): Right {
  const { values, row_labels: rows, column_labels: columns } = table(ran, "weights");
  const [query, key] = [inputs.number("query"), inputs.number("key")];
  if (query >= rows.length || key >= columns.length) {
    throw new Refusal(`there is no weight of token ${query} on token ${key} now: the cell's map is ${rows.length} x ${columns.length}.`);
  }
  const seen = table(ran, "mask").values[query]!.filter((value) => value === 1).length;
  const answer = values[query]![key]!;
  return {
    answer,
    words: `Token ${query} may look at ${seen} of ${columns.length} tokens, and gives token ${key} ${fixed(answer, 3)}.`,
    hint: `Token ${query} may look at ${seen} of ${columns.length} tokens: softmax of their scores alone.`,
    mistakes: new Map([[table(ran, "without a mask").values[query]![key]!, "That is its weight without the mask."]]),
  };
}

function flopShare(inputs: Values, ran: Ran): Right {
  const [qkv, o, scores, sums] = table(ran, "shares").values.map((row) => row[0]!) as [number, number, number, number];
  const [projections, attention] = [qkv + o, scores + sums];
  const [answer, other] = inputs.text("part") === "the four projections" ? [projections, attention] : [attention, projections];
  return {
    answer,
    words: `Projections take ${fixed(projections, 1)} %, scores and the weighted sum ${fixed(attention, 1)} %.`,
    hint: "Compare 8 n d^2 with 4 n^2 d, or half of that under a causal mask.",
    unit: "%",
    tolerance: 2,
    mistakes: new Map(Math.abs(answer - other) > 4 ? [[other, "That is the other part."]] : []),
  };
}

function numberInPlace(inputs: Values, ran: Ran): Right {
  const [head, row, how] = [inputs.number("head"), inputs.number("row"), inputs.text("how")];
  const name = `head ${head}, row ${row}`;
  const other = how === SPLIT ? ALONE! : SPLIT!;
  const { values, row_labels: rows } = table(ran, how);
  const place = rows.indexOf(name);
  if (place < 0) throw new Refusal(`there is no ${name} in the cell now: its last is ${rows.at(-1)}.`);
  const answer = values[place]![0]!;
  return {
    answer,
    words: `${answer}: column ${answer % 100} of token ${Math.floor(answer / 100)}.`,
    hint: `Reshape reads numbers in the order in which they are stored: token 0 from left to right, then token 1. A split must give head ${head} its columns of every token.`,
    mistakes: new Map([[table(ran, other).values[place]![0]!, `That stands there after ${other}.`]]),
  };
}

function cacheOf(inputs: Values, ran: Ran): Right {
  const { values, row_labels: kinds } = table(ran, "cache");
  const kept = table(ran, "a token").values.map((row) => fixed(row[0]!, 0));
  const place = kinds.indexOf(inputs.text("kind"));
  const answer = values[place]![0]!;
  return {
    answer,
    words: `With ${kinds[place]}, KV heads in a layer: ${kept[place]}.`,
    hint: "Two (keys and values) times layers, KV heads, width, tokens, texts and bytes of a number.",
    unit: "GiB",
    mistakes: new Map([
      [answer / 2, "Keys and values are both kept: twice that."],
      ...values.map((row, i): [number, string] => [row[0]!, `That is ${kinds[i]}, where a layer keeps ${kept[i]}.`]),
    ]),
  };
}

function layerWidth(inputs: Values, ran: Ran): Right {
  const heads = ran.flow![1]!.length;
  const tokens = ran.shown[0]!.shape[0]!;
  const width = ran.shown[0]!.shape[1]! / heads;
  if (inputs.text("of") === "one head's width") return { answer: width, words: ran.words, hint: "The heads share the width of the model.", mistakes: new Map() };
  return {
    answer: heads * tokens * tokens,
    words: ran.words,
    hint: "Each head has a map of its own: one row and one column for each token.",
    mistakes: new Map([[tokens * tokens, "That is one head's map."]]),
  };
}

function partOfHead(inputs: Values, ran: Ran): Right {
  const [head, column] = [inputs.number("head"), inputs.number("column")];
  const { values, row_labels: rows, column_labels: columns } = table(ran, "parts");
  if (head >= rows.length || column >= columns.length) {
    throw new Refusal(`the cell now has ${rows.length} heads and ${columns.length} columns, counted from 0.`);
  }
  const [answer, total] = [values[head]![column]!, table(ran, "sum").values[0]![column]!];
  const outputs = table(ran, "heads").values[head]!;
  const projection = table(ran, "W_O").values.slice(head * outputs.length, (head + 1) * outputs.length);
  const bracketed = (value: number) => (value < 0 ? `(${general(value)})` : general(value));
  const worked = outputs.map((value, i) => `${general(value)} × ${bracketed(projection[i]![column]!)}`).join(" + ");
  return {
    answer,
    words: `Head ${head}'s numbers, each times its row's number in column ${column} of W_O: ${worked} = ${general(answer)}.`.replaceAll("-", "−"),
    hint: `Take head ${head}'s numbers, and column ${column} of the rows of W_O that are head ${head}'s.`,
    mistakes: new Map(Math.abs(total - answer) > 0.05 ? [[total, "That is the sum of all heads."]] : []),
  };
}

function placeWeight(inputs: Values, ran: Ran): Right {
  const [row, place] = [WHO.indexOf(inputs.text("who")), inputs.number("place")];
  const { values, column_labels: words } = table(ran, "weights");
  if (place >= words.length) throw new Refusal(`there is no word ${place} in the cell now: it has ${words.length}, counted from 0.`);
  const answer = values[row]![place]!;
  const apart = values.map((line) => line[place]!).filter((share) => Math.abs(share - answer) > 0.02);
  return {
    answer,
    words: `Its row is: ${words.map((word, i) => `${word} ${fixed(values[row]![i]!, 3)}`).join(", ")}.`,
    hint: "A row sums to 1, and two words that are asked for alike get the same share.",
    tolerance: 0.01,
    mistakes: new Map(apart.map((share) => [Number(share.toFixed(9)), `That is what another head gives ${quote(words[place]!)}.`])),
  };
}

function swapTells(inputs: Values, ran: Ran): Right {
  const layout = inputs.text("who");
  const moved = Math.max(...table(ran, layout).values[2]!);
  const [answer, words] = moved < 1e-6
    ? ["stays the same", "The two words get the same weight (or say the same), so their average is the same either way round."]
    : ["changes", `By ${general(moved, 3)}: it matters to ${layout} which of the two stands where.`];
  const hint = "What does an average with these weights become when the two words change places?";
  return { answer: answer!, words: words!, hint, mistakes: new Map(["stays the same", "changes"].map((choice) => [choice, words!])) };
}

/** Predictions by the name of their function in the library. */
export const PREDICTIONS: Record<string, (inputs: Values, ran: Ran) => Right> = {
  "looks-most": looksMost,
  "masked-row": maskedRow,
  "flop-share": flopShare,
  "number-in-place": numberInPlace,
  "cache-of": cacheOf,
  "layer-width": layerWidth,
  "part-of-head": partOfHead,
  "place-weight": placeWeight,
  "swap-tells": swapTells,
};

/** How far off a number may be where the question gives no tolerance. */
export function usualTolerance(answer: number): number {
  const size = Math.abs(answer);
  return isWhole(answer) ? 0 : Math.max(0.005 * size, Math.min(0.006, 0.05 * size));
}

/** The right answer in words, and why. */
export function solutionOf({ answer, unit, words }: Right): string {
  const plain = (value: number) => grouped(isWhole(value) || Math.abs(value) >= 1000 ? fixed(value, 0) : general(value, 3));
  return `${typeof answer === "string" ? answer : plain(answer).replace("-", "−")}${unit ? ` ${unit}` : ""}. ${words}`;
}

/** Whether two answers are equal, but for rounding or capitals. */
export function isSame(first: number | string, second: number | string): boolean {
  if (typeof first === "string" || typeof second === "string") return String(first).toLowerCase() === String(second).toLowerCase();
  return Math.abs(first - second) <= Math.max(1e-9 * Math.max(Math.abs(first), Math.abs(second)), 1e-12);
}

function isWhole(value: number): boolean {
  return Math.abs(value - Math.round(value)) < 1e-9;
}
