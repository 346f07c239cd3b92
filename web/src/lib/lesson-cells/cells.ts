// The lessons' arithmetic cells as a page without a server computes them: each is the function of its name in lab/lessons/pages, in
// the same order, with the same words. A test holds the whole result to Python's, for drawn inputs.
import type { CellResult, Panel, Shown } from "../api/types";
import {
  attendByHead, attentionFlops, attentionWeights, divisors, evenTokens, EXAMPLE, initialise, masked, product, sideBySide, softmaxRows,
  splitAlone, splitHeads, sum, transposed, visibleKeys, type HeadWeights, type Table,
} from "./formulas";
import { readMatrix, Refusal, requireFitting, splitWords, type Values } from "./parameters";
import { Random } from "./random";
import { fixed, general, grouped, inFlops, numbered, quote, quoted, scaled, tuple } from "./words";

/** What a cell computes: the parts of its result that are its own. */
export type Ran = Pick<CellResult, "words" | "shown"> & Partial<Pick<CellResult, "flow" | "chart">>;

const MAX_COLUMNS = 8; // of a wide table that are shown
const LENGTHS = [128, 512, 2_048, 8_192, 32_768, 131_072];
const [GIB, GB] = [2 ** 30, 1e9];
const BYTES: Record<string, number> = { fp16: 2, fp32: 4, fp8: 1 };
const SAME = 1e-6; // below this a swap changed nothing that anybody could read
const MAX_ROWS = 24; // of a table of all heads' tokens

/** A table as a cell shows it. One word or letter as `rows` or `columns` is numbered, and of such columns the first are shown. */
function matrix(label: string, words: string, values: Table, rows: string | readonly string[], columns: string | readonly string[], asMap = false): Shown {
  const shape = [values.length, values[0]?.length ?? 0];
  const cut = typeof columns === "string" ? Math.min(MAX_COLUMNS, shape[1]!) : shape[1]!;
  const named = (names: string | readonly string[], size: number) => (typeof names === "string" ? numbered(names, size) : [...names]);
  return {
    label, words, shape, as_map: asMap,
    values: values.map((row) => row.slice(0, cut).map((value) => (Number.isFinite(value) ? value : null))),
    row_labels: named(rows, shape[0]!),
    column_labels: named(columns, shape[1]!).slice(0, cut),
  };
}

const column = (values: readonly number[]): Table => values.map((value) => [value]);
const shapeOf = (table: Table) => [table.length, table[0]!.length];
const isClose = (a: number, b: number) => Math.abs(a - b) <= 1e-8 + 1e-5 * Math.abs(b); // NumPy's
const largestGap = (a: Table, b: Table) => Math.max(...a.map((row, i) => Math.max(...row.map((value, j) => Math.abs(value - b[i]![j]!)))));
const rowSums = (table: Table) => column(table.map(sum));

function rowsFit(x: Table, name: string, table: Table, more = ""): void {
  if (table.length === x[0]!.length) return;
  throw new Refusal(`x has ${x[0]!.length} columns, and ${name} ${table.length} rows: the two numbers must be equal${more}.`, "ShapeError");
}

// ------------------------------------------------------------------------------------------------------- one head and masks

function oneHead(values: Values): Ran {
  const [x, q, k, v] = ["x", "w_q", "w_k", "w_v"].map((name) => readMatrix(name, values.text(name))) as [Table, Table, Table, Table];
  for (const [name, table] of [["w_q", q], ["w_k", k], ["w_v", v]] as const) rowsFit(x, name, table, " for X W to exist");
  if (q[0]!.length !== k[0]!.length) {
    throw new Refusal(`w_q is ${tuple(shapeOf(q))}, w_k ${tuple(shapeOf(k))}: queries and keys must be equally wide to be multiplied.`, "ShapeError");
  }
  const scale = values.text("scale") === "1 / sqrt(d)" ? 1 / Math.sqrt(q[0]!.length) : 1;
  const tokens = numbered("token", x.length);
  const visible = visibleKeys(x.length, x.length, values.text("mask") !== "all tokens");
  const made = ["X W_Q: one query a token", "X W_K: one key a token", "X W_V: one value a token"] as const;
  const { steps, weights, out } = headSteps(product(x, q), product(x, k), product(x, v), scale, visible, tokens, tokens, made);
  return {
    words: reading(tokens.at(-1)!, tokens, weights.at(-1)!, out.at(-1)!),
    shown: [
      matrix("X", "one row a token: what comes into the layer", x, tokens, "m"),
      matrix("W_Q", "what a token asks for: model width by head width", q, "m", "d"),
      matrix("W_K", "what a token offers", k, "m", "d"),
      matrix("W_V", "what a token hands over when it is looked at", v, "m", "d"),
      ...steps,
    ],
  };
}

/** softmax(scale Q K^T) V, step by step. */
function headSteps(
  q: Table, k: Table, v: Table, scale: number, visible: readonly boolean[][], queries: readonly string[], keys: readonly string[],
  made: readonly [string, string, string],
): { steps: Shown[]; weights: Table; out: Table } {
  const products = product(q, transposed(k));
  const scores = masked(products.map((row) => row.map((value) => scale * value)), visible);
  const weights = softmaxRows(scores);
  const out = product(weights, v);
  const scaling = scale !== 1 ? `times ${general(scale, 4)}` : "left as they are";
  const hidden = visible.every((row) => row.every(Boolean)) ? "" : ", what may not be seen hidden";
  const steps = [
    matrix("Q", made[0], q, queries, "d"),
    matrix("K", made[1], k, keys, "d"),
    matrix("V", made[2], v, keys, "d"),
    matrix("Q K^T", "every query times every key: how well they fit", products, queries, keys),
    matrix("scores", `${scaling}${hidden}`, scores, queries, keys),
    matrix("weights", "softmax: every row becomes shares of 1", weights, queries, keys, true),
    matrix("row sums", "each is 1", rowSums(weights), queries, ["sum"]),
    matrix("weights V", "what the head says: a mean of values, by weight", out, queries, "d"),
  ];
  return { steps, weights, out };
}

/** One token's row in words. */
function reading(token: string, keys: readonly string[], row: readonly number[], out: readonly number[]): string {
  const best = row.indexOf(Math.max(...row));
  const ties = keys.filter((_, i) => isClose(row[i]!, row[best]!));
  if (ties.length > 1) {
    const named = ties.slice(0, 4).map(quoted).join(", ");
    return `${quoted(token)} looks at ${ties.length} tokens alike, ${fixed(row[best]!, 3)} each (${named}${ties.length > 4 ? ", ..." : ""}).`;
  }
  const says = out.slice(0, 4).map((value) => fixed(value, 3)).join(", ");
  const looks = `${quoted(token).replace(/^[a-z]/, (letter) => letter.toUpperCase())} looks most at ${quoted(keys[best]!)}`;
  return `${looks}, with weight ${fixed(row[best]!, 3)}; the head says (${says}${out.length > 4 ? ", ..." : ""}) there.`;
}

function maskedScores(values: Values): Ran {
  const scores = readMatrix("scores", values.text("scores"));
  const kind = values.text("kind");
  const [rows, columns] = [scores.length, scores[0]!.length];
  let visible: boolean[][];
  if (kind === "a mask of my own") {
    const own = readMatrix("mask", values.text("mask"));
    if (own.length !== rows || own[0]!.length !== columns || own.flat().some((value) => value !== 0 && value !== 1)) {
      throw new Refusal(`mask: write ${rows} rows of ${columns} numbers, each 1 (may look) or 0, as the scores have.`);
    }
    visible = own.map((row) => row.map((value) => value === 1));
  } else {
    const window = kind === "itself and near earlier ones" ? values.number("window") : undefined;
    visible = visibleKeys(rows, columns, kind !== "every token", window);
  }
  const [queries, keys] = [numbered("token", rows), numbered("token", columns)];
  const hidden = masked(scores, visible);
  const [weights, unmasked] = [softmaxRows(hidden), softmaxRows(scores)];
  const blind = queries.filter((_, i) => !visible[i]!.some(Boolean));
  const share = (100 * sum(unmasked.map((row, i) => sum(row.filter((_, j) => !visible[i]![j]))))) / rows;
  const numHidden = visible.flat().filter((seen) => !seen).length;
  return {
    words: blind.length
      ? `${blind.join(", ")} may look at nothing, so there is no weight to share out, and the head says 0.`
      : `The mask hides ${numHidden} of ${rows * columns} cells, which would have had ${fixed(share, 1)} % of the weight. The others share it.`,
    shown: [
      matrix("scores", "as they come from Q and K", scores, queries, keys),
      matrix("mask", "1 where a token (row) may look at a token (column)", visible.map((row) => row.map(Number)), queries, keys),
      matrix("masked scores", "minus infinity where it may not", hidden, queries, keys),
      matrix("weights", "softmax of these: what is hidden gets 0", weights, queries, keys, true),
      matrix("without a mask", "what they would be: the same ratios, other shares", unmasked, queries, keys),
      matrix("row sums", "of the weights", rowSums(weights), queries, ["sum"]),
    ],
  };
}

function crossAttention(values: Values): Ran {
  const [x, context] = ["x", "context"].map((name) => readMatrix(name, values.text(name))) as [Table, Table];
  const width = x[0]!.length;
  if (width !== context[0]!.length) {
    throw new Refusal(`x has ${width} columns, context ${context[0]!.length}: both are read by matrices of one width.`, "ShapeError");
  }
  const [queries, keys] = [numbered("written", x.length), numbered("read", context.length)];
  const made = ["X itself: W_Q is the identity here", "the context itself, W_K too", "the context itself, W_V too"] as const;
  const visible = visibleKeys(x.length, context.length, false);
  const { steps, weights, out } = headSteps(x, context, context, 1 / Math.sqrt(width), visible, queries, keys, made);
  return {
    words: `The map is ${x.length} x ${context.length}: a row for each written token, a column for each that is read. ${reading(queries.at(-1)!, keys, weights.at(-1)!, out.at(-1)!)}`,
    shown: [
      matrix("X", "what is being written: queries come from here", x, queries, "m"),
      matrix("context", "what is read: keys and values come from here", context, keys, "m"),
      ...steps,
    ],
  };
}

// ----------------------------------------------------------------------------------------------------------------- counting

function attentionCost(values: Values): Ran {
  requireFitting(values);
  const [m, h, n] = ["d_model", "heads", "tokens"].map((name) => values.number(name)) as [number, number, number];
  const causal = values.text("mask") !== "every token";
  const [plain, full, wide] = [attentionWeights(m, h), attentionWeights(m, h, values.text("biases") === "with biases"), attentionWeights(m, h, false, true)];
  const rows = plain.map((count, i) => [count, full[i]! - count, full[i]!]);
  const table = [...rows, [0, 1, 2].map((i) => sum(rows.map((row) => row[i]!)))];
  const qkv = sum(plain.slice(0, 3));
  const spent = attentionFlops(m, n, causal);
  const parts = [3 * spent.projection, spent.projection, spent.scores, spent.values];
  const [prefix, factor] = scaled(Math.max(...parts));
  const names = ["Q, K, V", "W_O", "scores", "weighted sum"];
  // The share of attention, with what both have in common left out: whole numbers that a double holds exactly.
  const [attention, projections] = [2 * (causal ? n + 1 : 2 * n), 8 * m];
  return {
    words: `${grouped(table[4]![2]!)} parameters, in ${h} heads of ${m / h}. A text of ${grouped(n)} tokens takes ${inFlops(sum(parts))}, ${fixed((100 * attention) / (attention + projections), 1)} % of it for scores and the weighted sum.`,
    shown: [
      matrix("parameters", "of each projection", table, ["W_Q", "W_K", "W_V", "W_O", "together"], ["weights", "biases", "all"]),
      matrix("by head", "weights; the last row is with heads as wide as the model", column([qkv / h, qkv, sum(plain), sum(wide)]),
        ["one head's QKV", "all heads' QKV", "with W_O", "full-width heads"], ["weights"]),
      matrix("FLOPs", `of a text, in ${prefix}FLOP: a multiply and an add are two`, column(parts.map((part) => part / factor)), names, [`${prefix}FLOP`]),
      matrix("shares", "of these FLOPs, in percent", column(parts.map((part) => (100 * part) / sum(parts))), names, ["%"]),
    ],
  };
}

function attentionByLength(values: Values): Ran {
  requireFitting(values);
  const [m, causal] = [values.number("d_model"), values.text("mask") !== "every token"];
  const lengths = [...new Set([...LENGTHS, values.number("tokens")])].sort((a, b) => a - b);
  const costs = lengths.map((n) => {
    const { projection, scores } = attentionFlops(m, n, causal);
    return [4 * projection, 2 * scores];
  });
  const shares = costs.map((row) => row.map((cost) => (100 * cost) / sum(row)));
  const names = lengths.map((n) => `${grouped(n)} tokens`);
  const [prefix, factor] = scaled(Math.min(...costs.flat()));
  const parts = ["the four projections", "scores and weighted sum"];
  return {
    words: `With d_model = ${grouped(m)}, scores and the weighted sum cost as much as the projections from ${grouped(evenTokens(m, causal))} tokens on.`,
    shown: [
      matrix("FLOPs", `in ${prefix}FLOP, of one layer`, costs.map((row) => row.map((cost) => cost / factor)), names, ["projected", "attended"]),
      matrix("shares", "in percent", shares, names, ["projected", "attended"]),
    ],
    chart: [panel("% of the FLOPs, by tokens of the text", parts.map((name, i) => [name, lengths, shares.map((row) => row[i]!), i === 1]), 100)],
  };
}

function panel(title: string, curves: readonly [string, number[], number[], boolean][], top: number | null = null): Panel {
  return { title, curves: curves.map(([name, x, y, bold]) => ({ name, x, y, bold })), top };
}

function headsCost(values: Values): Ran {
  const [m, n] = [values.number("d_model"), values.number("tokens")];
  const counts = divisors(m).filter((divisor) => divisor <= 64);
  const table = counts.map((h) => [m / h, (3 * m * m) / h, 4 * m * m]);
  const { projection, scores } = attentionFlops(m, n, false);
  const spent = (4 * projection + 2 * scores) / 1e6;
  const names = counts.map((h) => `${h} head${h > 1 ? "s" : ""}`);
  const most = counts.at(-1)!;
  return {
    words: `${grouped(4 * m * m)} weights and ${grouped(fixed(spent, 0))} MFLOP, with one head as with ${most}. What changes is the width of a head: ${grouped(m)} numbers to ask with, or ${grouped(m / most)}.`,
    shown: [
      matrix("weights", "of one layer", table, names, ["width", "one head", "all, W_O"]),
      matrix("FLOPs", `of a text of ${grouped(n)} tokens, in MFLOP`, column(counts.map(() => spent)), names, ["MFLOP"]),
      matrix("rank", "of Q K^T, at the most: how rich one head's map can be", column(counts.map((h) => Math.min(n, m / h))), names, ["rank"]),
    ],
  };
}

// ---------------------------------------------------------------------------------------------------------- split and merge

function sideBySideCell(values: Values): Ran {
  requireFitting(values);
  const [m, h, n] = ["d_model", "heads", "tokens"].map((name) => values.number(name)) as [number, number, number];
  const random = new Random(values.number("seed"));
  const wide = sideBySide(initialise(random, m, h).q);
  const x = random.normals(n, m);
  const queries = product(x, wide);
  const names = numbered("Q, head", h);
  return {
    words: `${h} heads, each ${m / h} wide, stand side by side in W_Q. One product makes the queries of all.`,
    shown: [
      matrix("X", "a row a token", x, "token", "m"),
      matrix("W_Q", `${m / h} columns a head: head 0's come first`, wide, "m", numbered("c", m)),
      matrix("X W_Q", "the queries of all heads, side by side", queries, "token", numbered("c", m)),
      ...splitHeads(queries, h).map((part, head) => matrix(names[head]!, "its columns of every token", part, "token", numbered("d", m / h))),
    ],
    flow: [[["X", "W_Q", "X W_Q"]], names.map((name) => [name])],
  };
}

function whereNumbersGo(values: Values): Ran {
  requireFitting(values);
  const [m, h, n] = ["d_model", "heads", "tokens"].map((name) => values.number(name)) as [number, number, number];
  if (h * n > MAX_ROWS) throw new Refusal(`${h} heads of ${n} tokens are ${h * n} rows: take up to ${MAX_ROWS} together.`);
  const wide = Array.from({ length: n }, (_, token) => Array.from({ length: m }, (_, i) => 100 * token + i));
  const [split, alone] = [splitHeads(wide, h).flat(), splitAlone(wide, h).flat()];
  const rows = Array.from({ length: h * n }, (_, i) => `head ${Math.floor(i / n)}, row ${i % n}`);
  const token = (value: number) => Math.floor(value / 100);
  const astray = split.flat().filter((value, i) => token(value) !== token(alone.flat()[i]!)).length;
  return {
    words: `Reshape alone puts ${astray} of ${n * m} numbers into another token's row.${astray ? " Its shape is right." : " With one head, or one token, there is nothing to transpose."}`,
    shown: [
      matrix("X W_Q", "one row a token: 203 is token 2, column 3", wide, "token", "c"),
      matrix("reshape, then transpose", "a head's tokens row by row, with its own columns", split, rows, "d"),
      matrix("reshape alone", "the same shape, but other numbers", alone, rows, "d"),
    ],
  };
}

function threeWays(values: Values): Ran {
  requireFitting(values);
  const [m, h, n] = ["d_model", "heads", "tokens"].map((name) => values.number(name)) as [number, number, number];
  const random = new Random(values.number("seed"));
  const made = initialise(random, m, h);
  const x = random.normals(n, m);
  const wide = [made.q, made.k, made.v].map(sideBySide);
  const joined = (split: (table: Table, heads: number) => Table[], merge: (heads: Table[]) => Table, projected: Table[]) => {
    const [q, k, v] = projected.map((table) => split(table, h)) as [Table[], Table[], Table[]];
    const heads = q.map((rows, head) => product(softmaxRows(product(rows, transposed(k[head]!)).map((row) => row.map((value) => value / Math.sqrt(m / h)))), v[head]!));
    return product(merge(heads), made.o);
  };
  const projected = wide.map((table) => product(x, table));
  const fusedRows = product(x, sideBySide(wide));
  const fused = [0, 1, 2].map((part) => fusedRows.map((row) => row.slice(part * m, (part + 1) * m)));
  const loop = product(sideBySide(attendByHead(x, made).heads), made.o);
  const restored = (heads: Table[]) => Array.from({ length: n }, (_, i) => heads.flat(2).slice(i * m, (i + 1) * m));
  const mistaken = joined(splitAlone, restored, projected);
  const outs = [loop, joined(splitHeads, sideBySide, projected), joined(splitHeads, sideBySide, fused), mistaken];
  const gaps = outs.map((out) => largestGap(out, loop));
  const names = ["the loop", "one wide each", "one fused", "reshape alone"];
  const off = h > 1 && n > 1 ? `is off by up to ${general(gaps[3]!, 2)}, and nothing fails` : "is right here: with one head, or one token, there is nothing to transpose";
  return {
    words: `The three ways agree, but for rounding. Reshape alone ${off}.`,
    shown: [
      matrix("output", "of token 0, by each way", outs.map((out) => out[0]!), names, "m"),
      matrix("difference", "from the loop, the largest over all tokens", column(gaps), names, ["largest"]),
    ],
  };
}

// ----------------------------------------------------------------------------------------------------------------- KV cache

function cacheBytes(values: Values, kvHeads: number, context: number, batch: number): number {
  const bytes = values.has("dtype") ? BYTES[values.text("dtype")]! : 2;
  return 2 * values.number("layers") * kvHeads * values.number("width") * context * batch * bytes;
}

const kvHeadsOf = (values: Values): [string, number][] => [["MHA", values.number("heads")], ["GQA", values.number("kv_heads")], ["MQA", 1]];

function cacheTable(values: Values): Ran {
  requireFitting(values);
  const [context, batch, kinds] = [values.number("context"), values.number("batch"), kvHeadsOf(values)];
  const names = kinds.map(([name]) => name);
  const sizes = kinds.map(([, count]) => cacheBytes(values, count, context, batch));
  const inWords = sizes.map((size, i) => `${names[i]} ${general(size / GIB, 4)} GiB (${general(size / GB, 4)} GB)`).join(", ");
  return {
    words: `${batch} texts of ${grouped(context)} tokens: ${inWords}.`,
    shown: [
      matrix("a token", "KV heads of a layer; what a token leaves", sizes.map((size, i) => [kinds[i]![1], size / (context * batch) / 1024]), names, ["KV heads", "KiB"]),
      matrix("cache", "keys and values, all layers and texts", sizes.map((size) => [size / GIB, size / GB]), names, ["GiB", "GB"]),
    ],
  };
}

function cacheByContext(values: Values): Ran {
  requireFitting(values);
  const kinds = kvHeadsOf(values);
  const names = kinds.map(([name]) => name);
  const lengths = Array.from({ length: 8 }, (_, i) => Math.floor((values.number("context") * (i + 1)) / 8));
  const sizes = lengths.map((n) => kinds.map(([, count]) => cacheBytes(values, count, n, 1) / GIB));
  const ends = names.map((name, i) => `${general(sizes[7]![i]!, 4)} GiB with ${name}`).join(", ");
  return {
    words: `One text of ${grouped(lengths[7]!)} tokens leaves ${ends}.`,
    shown: [matrix("cache", "of one text, in GiB", sizes, lengths.map((n) => `${grouped(n)} tokens`), names)],
    chart: [panel("GiB of cache, by tokens of the text", names.map((name, i) => [name, [0, ...lengths], [0, ...sizes.map((row) => row[i]!)], name === "GQA"]))],
  };
}

function decode(values: Values): Ran {
  requireFitting(values);
  const [n, h, g, d] = ["tokens", "heads", "kv_heads", "width"].map((name) => values.number(name)) as [number, number, number, number];
  const random = new Random(values.number("seed"));
  const weights = initialise(random, h * d, h, g);
  const x = random.normals(n, h * d);
  const atOnce = product(sideBySide(attendByHead(x, weights, true).heads), weights.o);
  const [keys, read]: [Table[], Table[]] = [weights.k.map(() => []), weights.v.map(() => [])];
  const cached: Table = [];
  const oneByOne = x.map((row, position) => {
    weights.k.forEach((table, group) => keys[group]!.push(product([row], table)[0]!));
    weights.v.forEach((table, group) => read[group]!.push(product([row], table)[0]!));
    const heads = weights.q.map((table, head) => {
      const group = Math.floor((head * g) / h);
      const scores = product(product([row], table), transposed(keys[group]!)).map((line) => line.map((value) => value / Math.sqrt(d)));
      return product(softmaxRows(scores), read[group]!);
    });
    cached.push([1, position + 1, 2 * g * (position + 1) * d, position + 1]);
    return product(sideBySide(heads), weights.o)[0]!;
  });
  return {
    words: `The outputs are the same, but for rounding. After ${n} tokens the cache keeps ${grouped(2 * g * n * d)} numbers: 2 x ${g} KV heads x ${n} tokens x ${d}.`,
    shown: [
      matrix("all at once", "the layer's output, one row a token", atOnce, "token", "m"),
      matrix("one by one", "the same with a cache", oneByOne, "token", "m"),
      matrix("cache", "rows of K computed at this step; rows in the cache; numbers it holds; rows to compute without it", cached, "token",
        ["computed", "in cache", "numbers", "without"]),
    ],
  };
}

// ------------------------------------------------------------------------------------------------------------- feed-forward

function feedForward(values: Values): Ran {
  const [x, w1, w3, w2] = ["x", "w1", "w3", "w2"].map((name) => readMatrix(name, values.text(name))) as [Table, Table, Table, Table];
  const gated = values.text("kind") === "W2 (silu(W1 x) * W3 x)";
  rowsFit(x, "w1", w1);
  if (gated) rowsFit(x, "w3", w3);
  if (gated && w1[0]!.length !== w3[0]!.length) {
    throw new Refusal(`w1 is ${tuple(shapeOf(w1))}, w3 ${tuple(shapeOf(w3))}: each gate has one number to let through.`, "ShapeError");
  }
  const fitting = [w1[0]!.length, x[0]!.length];
  if (tuple(shapeOf(w2)) !== tuple(fitting)) {
    throw new Refusal(`w2 is ${tuple(shapeOf(w2))}: from ${fitting[0]} inner numbers back to ${fitting[1]}, it must be ${tuple(fitting)}.`, "ShapeError");
  }
  const up = product(x, w1);
  const steps = [matrix("x", "one row a token, as attention left it", x, "token", "m"), matrix("W1 x", "made wide", up, "token", "w")];
  let hidden: Table;
  if (gated) {
    const gate = up.map((row) => row.map((value) => value / (1 + Math.exp(-Math.max(-700, Math.min(700, value))))));
    const passing = product(x, w3);
    hidden = gate.map((row, i) => row.map((value, j) => value * passing[i]![j]!));
    steps.push(
      matrix("silu(W1 x)", "a soft relu: how far each gate is open", gate, "token", "w"),
      matrix("W3 x", "what is to pass", passing, "token", "w"),
      matrix("hidden", "gates times what is to pass", hidden, "token", "w"),
    );
  } else {
    hidden = up.map((row) => row.map((value) => Math.max(value, 0)));
    steps.push(matrix("hidden", "relu: what is below 0 becomes 0", hidden, "token", "w"));
  }
  const out = product(hidden, w2);
  const says = out[0]!.map((value) => general(value, 3)).join(", ");
  const inner = hidden.flat();
  const quiet = gated ? "" : ` ${fixed(100 * (inner.filter((value) => value === 0).length / inner.length), 0)} % of the inner numbers are 0.`;
  return {
    words: `Token 0 becomes (${says}), whatever the other tokens are.${quiet}`,
    shown: [...steps, matrix("out", "narrow again: added to the token", out, "token", "m")],
  };
}

function blockSizes(values: Values): Ran {
  const [m, multiple] = [values.number("d_model"), values.number("multiple")];
  const width = Math.ceil((8 * m) / (3 * multiple)) * multiple;
  const counts = [8 * m * m, 12 * m * m, 3 * m * width] as const;
  const more = 100 * (counts[2] / counts[0] - 1);
  const [prefix, factor] = scaled(Math.max(...counts));
  const names = ["classic, 4 d", "SwiGLU, 4 d", "SwiGLU, 8/3 d"];
  return {
    words: `SwiGLU at 8/3 of ${grouped(m)}, rounded up to a multiple of ${multiple}, is ${grouped(width)} wide and has ${grouped(counts[2])} weights: ${fixed(Math.abs(more), 2)} % ${more >= 0 ? "more" : "fewer"} than the classic block.`,
    shown: [
      matrix("inner width", "of the middle, and the matrices", [[4 * m, 2], [4 * m, 3], [width, 3]], names, ["width", "matrices"]),
      matrix("weights", `without biases${prefix ? `, in ${prefix}` : ""}`, column(counts.map((count) => count / factor)), names, ["weights"]),
    ],
  };
}

// -------------------------------------------------------------------------------------------- whole layer, output projection

function wholeLayer(values: Values): Ran {
  const [x, o] = [readMatrix("x", values.text("x")), readMatrix("w_o", values.text("w_o"))];
  const [h, m, d] = [2, 4, 2];
  if (x[0]!.length !== m) throw new Refusal(`x has ${x[0]!.length} columns, and the heads read ${m}: write rows of ${m} numbers.`, "ShapeError");
  if (o.length !== h * d || o[0]!.length !== m) {
    throw new Refusal(`w_o is ${tuple(shapeOf(o))}: ${h} heads of width ${d}, and a model ${m} wide, need ${h * d} rows of ${m}.`, "ShapeError");
  }
  const { shown, out } = layerTables(x, { ...EXAMPLE, o });
  const [before, after] = [x[0]!.map((value) => general(value)).join(", "), out[0]!.map((value) => fixed(value, 3)).join(", ")];
  return { words: `Token 0 goes in as (${before}) and comes out as (${after}).`, shown, flow: layerFlow(h) };
}

function randomLayer(values: Values): Ran {
  requireFitting(values);
  const [m, h, n] = ["d_model", "heads", "tokens"].map((name) => values.number(name)) as [number, number, number];
  const d = m / h;
  const random = new Random(values.number("seed"));
  const draw = (columns: number) => random.normals(m, columns).map((row) => row.map((value) => value / Math.sqrt(m)));
  const [q, k, v] = [0, 1, 2].map(() => Array.from({ length: h }, () => draw(d))) as [Table[], Table[], Table[]];
  const weights = { q, k, v, o: draw(m) };
  const { shown } = layerTables(random.normals(n, m), weights);
  return { words: `${h} heads, each ${d} wide, so ${h} maps of ${n} x ${n}. Side by side they are ${h} x ${d} = ${m} wide again.`, shown, flow: layerFlow(h) };
}

/** Every value of a layer in the order of the computation, and its output. */
function layerTables(x: Table, weights: HeadWeights): { shown: Shown[]; out: Table } {
  const tokens = numbered("token", x.length);
  const { maps, heads } = attendByHead(x, weights);
  const concat = sideBySide(heads);
  const out = product(concat, weights.o);
  const steps = maps.flatMap((map, head) => {
    const [q, k, v] = [weights.q, weights.k, weights.v].map((table) => product(x, table[head]!)) as [Table, Table, Table];
    const scores = product(q, transposed(k)).map((row) => row.map((value) => value / Math.sqrt(q[0]!.length)));
    return [
      matrix(`Q, head ${head}`, `X W_Q[${head}]: what each token asks`, q, tokens, "d"),
      matrix(`K, head ${head}`, `X W_K[${head}]: what each token offers`, k, tokens, "d"),
      matrix(`V, head ${head}`, `X W_V[${head}]: what each token hands over`, v, tokens, "d"),
      matrix(`scores, head ${head}`, "Q K^T / sqrt(d_k)", scores, tokens, tokens),
      matrix(`weights, head ${head}`, "softmax of each row", map, tokens, tokens, true),
      matrix(`weights V, head ${head}`, "what this head says", heads[head]!, tokens, "d"),
    ];
  });
  return {
    shown: [
      matrix("X", "one row a token: every head reads all of it", x, tokens, "m"),
      ...steps,
      matrix("concat", "the heads side by side: head 0's columns first", concat, tokens, "m"),
      matrix("W_O", "the output projection", weights.o, "row", "m"),
      matrix("out", "concat W_O: what the layer gives", out, tokens, "m"),
    ],
    out,
  };
}

function layerFlow(heads: number): string[][][] {
  const steps = ["Q", "K", "V", "scores", "weights", "weights V"];
  return [[["X"]], Array.from({ length: heads }, (_, head) => steps.map((step) => `${step}, head ${head}`)), [["concat", "W_O", "out"]]];
}

function sumOfParts(values: Values): Ran {
  const [heads, o] = [readMatrix("heads", values.text("heads")), readMatrix("w_o", values.text("w_o"))];
  const [h, f, m] = [heads.length, heads[0]!.length, o[0]!.length];
  if (o.length !== h * f) {
    throw new Refusal(`heads has ${h} rows of ${f}, so ${h * f} numbers in all, and w_o ${o.length} rows: the two numbers must be equal.`, "ShapeError");
  }
  const rowsOf = (head: number) => o.slice(head * f, (head + 1) * f);
  const parts = heads.map((row, head) => product([row], rowsOf(head))[0]!);
  const sums = [transposed(parts).map(sum)];
  const names = numbered("head", h);
  const reach = names.map((_, head) => transposed(rowsOf(head)).filter((line) => line.some((value) => value !== 0)).length);
  const reached = new Set(reach).size === 1 ? `each head can reach ${reach[0]} of ${m} columns` : names.map((name, head) => `${name} can reach ${reach[head]} of ${m} columns`).join(", ");
  const places = (mark: (head: number, j: number) => string) => heads.flatMap((row, head) => row.map((_, j) => mark(head, j)));
  const columns = numbered("m", m);
  return {
    words: `The sum of the heads' parts is the output; ${reached}.`,
    shown: [
      matrix("heads", "what each head says at one token", heads, names, "f"),
      matrix("side by side", "concat: head 0's numbers, then head 1's", [heads.flat()], ["token"], places((head, j) => `h${head}.${j}`)),
      matrix("W_O", "its first rows are head 0's, the next are head 1's", o, places((head, j) => `head ${head}, row ${j}`), columns),
      matrix("parts", "each head times its own rows of W_O", parts, names, columns),
      matrix("sum", "of the parts", sums, ["token"], columns),
      matrix("concat W_O", "all at once: the same", product([heads.flat()], o), ["token"], columns),
    ],
  };
}

// ---------------------------------------------------------------------------------------------------------- why many heads

function twoPlaces(values: Values): Ran {
  const [words, v] = [splitWords(values.text("words")), readMatrix("values", values.text("values"))];
  if (words.length < 3 || words.length > 12 || words.length % 2 === 0) {
    throw new Refusal(`words: write 3 to 11 words, an odd number, so that one is in the middle. These are ${words.length}.`);
  }
  const [n, middle, firm] = [words.length, (words.length - 1) / 2, values.number("firmness")];
  const width = v[0]!.length;
  if (v.length !== n || width % 2) {
    throw new Refusal(`values is ${tuple(shapeOf(v))}: write ${n} rows, one a word, of 2 numbers (or 4, 6 ...), half for each head.`, "ShapeError");
  }
  const at = (place: number) => words.map((_, i) => (i === place ? firm : 0));
  const [before, after] = [at(middle - 1), at(middle + 1)];
  const both = before.map((score, i) => score + after[i]! + (i === middle - 1 ? values.number("lean") : 0));
  const scores = [both, before, after];
  const weights = softmaxRows(scores);
  const exchanged = <Item>(items: readonly Item[]) => items.map((item, i) => (i === middle - 1 ? items[middle + 1]! : i === middle + 1 ? items[middle - 1]! : item));
  // One head's average of whole values; beside it, two heads' averages of half of the columns each.
  const half = width / 2;
  const [one, two] = [v, exchanged(v)].reduce<[Table, Table]>(([alone, shared], table) => {
    const says = weights.map((row) => product([row], table)[0]!);
    return [[...alone, says[0]!], [...shared, [...says[1]!.slice(0, half), ...says[2]!.slice(half)]]];
  }, [[], []]);
  const withGap = ([first, second]: Table) => [first!, second!, second!.map((value, i) => Math.abs(value - first![i]!))];
  const [alone, shared] = [withGap(one), withGap(two)];
  const [movedOne, movedTwo] = [alone, shared].map((table) => Math.max(...table[2]!)) as [number, number];
  const oneSays = movedOne < SAME ? "says the same" : `says something else by ${general(movedOne, 2)}`;
  const twoSay = movedTwo < SAME ? "say the same" : `say something else by ${general(movedTwo, 2)}`;
  const rows = ["both: one head", "before: head 0", "after: head 1"];
  const labels = ["as written", "swapped", "difference"];
  return {
    words: `Swap ${quote(words[middle - 1]!)} and ${quote(words[middle + 1]!)}: one head ${oneSays}, two heads ${twoSay}.`,
    shown: [
      matrix("values", "what each word hands over", v, words, "d"),
      matrix("scores", `how well each word fits what ${quote(words[middle]!)} asks for`, scores, rows, words),
      matrix("weights", "softmax: each row has 1 to share out, and no more", weights, rows, words),
      matrix("one head", "each number an average over the words, with its row of weights", alone, labels, "d"),
      matrix("two heads", "half of the numbers from each, side by side", shared, labels, "d"),
    ],
  };
}

/** Cells by the name of their function in the library. */
export const CELLS: Record<string, (values: Values) => Ran> = {
  "one-head": oneHead,
  "masked-scores": maskedScores,
  "cross-attention": crossAttention,
  "attention-cost": attentionCost,
  "attention-by-length": attentionByLength,
  "heads-cost": headsCost,
  "side-by-side": sideBySideCell,
  "where-numbers-go": whereNumbersGo,
  "three-ways": threeWays,
  "cache-table": cacheTable,
  "cache-by-context": cacheByContext,
  decode,
  "feed-forward": feedForward,
  "block-sizes": blockSizes,
  "whole-layer": wholeLayer,
  "random-layer": randomLayer,
  "sum-of-parts": sumOfParts,
  "two-places": twoPlaces,
};
