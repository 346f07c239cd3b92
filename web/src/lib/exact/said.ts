// What a head says at a token, or all heads of a layer, computed in a page without a server: the same numbers, header and sentence
// as studio/views/outputs.py sends, by the rules of circuits/outputs.py, which a test holds this to. What is added to the residual
// stream needs the model: it comes from what the page stored, or is left out.
import type { Said, SaidAsk, SaidArrays, RowLook, StoredSum } from "../api/exact";
import { percent, upper } from "../draw/format";
import { COUNTS, FIGURES, FOUND, LEAST_KEYS, NOTED, PARKED, SENTENCES, SILENT, SPREAD } from "./sentences.generated";

const OTHERS = -1;

/** One word of those that a head sees, and its part in look and output (NaN: not known). */
interface Voice {
  name: string;
  look: number;
  heard: number;
  even: number;
  parks: boolean;
  isMe: boolean;
}

interface HeadSaid {
  look: RowLook;
  visible: number[];
  out: Float64Array | null;
  heard: Float64Array | null;
  silent: boolean;
  missing: number;
  voices: Voice[];
}

/** `heads`: the looks of one head, or of all heads of a layer. */
export function said(ask: SaidAsk): Said {
  const heads = ask.looks.map((look) => ofHead(look, ask));
  const columns = columnsOf(heads, ask);
  return ask.isLayer ? layerAnswer(heads, columns, ask) : headAnswer(heads[0]!, columns, ask);
}

function ofHead(look: RowLook, ask: SaidAsk): HeadSaid {
  const count = look.weights.length;
  const visible = Array.from({ length: count }, (_, key) => key).filter((key) => look.scores[key]! > -Infinity);
  const missing = look.sink === null || !Number.isFinite(look.lse) ? 0 : Math.exp(look.sink - look.lse);
  let [out, heard, silent]: [Float64Array | null, Float64Array | null, boolean] = [null, null, false];
  if (look.valueWidth !== null) {
    out = new Float64Array(look.valueWidth);
    let lengths = 0;
    for (const key of visible) {
      const value = look.value(key);
      lengths += Math.sqrt(dot(value, value));
      for (let i = 0; i < out.length; i++) out[i]! += look.weights[key]! * value[i]!;
    }
    const square = dot(out, out);
    silent = !(Math.sqrt(square) >= (SILENT * lengths) / Math.max(1, visible.length)) || square === 0;
    if (!silent) {
      heard = new Float64Array(count);
      for (const key of visible) heard[key] = (look.weights[key]! * dot(look.value(key), out)) / square;
    }
  }
  const sees = new Set(visible);
  const voices: Voice[] = [];
  for (const { name, begin, end, parks } of ask.units) {
    const keys = Array.from({ length: end - begin }, (_, i) => begin + i).filter((key) => sees.has(key));
    if (!keys.length) continue;
    const sum = (values: Float64Array | null) => keys.reduce((total, key) => total + (values ? values[key]! : NaN), 0);
    const isMe = ask.readsItself && begin <= ask.query && ask.query < end;
    voices.push({ name, look: sum(look.weights), heard: sum(heard), even: keys.length / visible.length, parks: parks && !isMe, isMe });
  }
  return { look, visible, out, heard, silent, missing, voices };
}

/** The keys that have columns, and whether one more stands for all others. */
function columnsOf(heads: HeadSaid[], { keys: most, query, readsItself }: SaidAsk): { keys: number[]; others: boolean } {
  if (most < LEAST_KEYS) throw new Error(`keys=${most}: give ${LEAST_KEYS} or more: the word that asks, one that answers, all others.`);
  const count = heads[0]!.look.weights.length;
  if (count <= most) return { keys: Array.from({ length: count }, (_, key) => key), others: false };
  const visible = [...new Set(heads.flatMap((head) => head.visible))].sort((a, b) => a - b);
  if (visible.length <= most) return { keys: visible, others: false };
  const largest = (key: number) => (readsItself && key === query ? Infinity : Math.max(...heads.map(({ look }) => look.weights[key]!)));
  const ranked = visible.map((key) => ({ key, share: largest(key) })).sort((a, b) => b.share - a.share);
  return { keys: ranked.slice(0, most - 1).map(({ key }) => key).sort((a, b) => a - b), others: true };
}

/** A head's numbers in these columns. The others' are sums, or the mean of their values, so that every sum holds. */
function inColumns({ look, visible, heard }: HeadSaid, { keys, others }: { keys: number[]; others: boolean }) {
  const width = keys.length + Number(others);
  const chosen = new Set(keys);
  const left = others ? visible.filter((key) => !chosen.has(key)) : [];
  const share = left.reduce((sum, key) => sum + look.weights[key]!, 0);
  const column = (values: ArrayLike<number>, last: number) => Float32Array.from({ length: width }, (_, i) => (i < keys.length ? values[keys[i]!]! : last));
  const most = left.reduce((most, key) => Math.max(most, look.scores[key]!), -Infinity);
  const score = most + Math.log(left.reduce((sum, key) => sum + Math.exp(look.scores[key]! - most), 0));
  const rows = (length: number, row: (key: number) => ArrayLike<number>, last: Float32Array) => {
    const out = new Float32Array(width * length);
    keys.forEach((key, i) => out.set(row(key), i * length));
    if (others) out.set(last, keys.length * length);
    return out;
  };
  const unknown = (length: number) => new Float32Array(length).fill(NaN);
  const values = look.valueWidth;
  const mean = new Float32Array(values ?? 0);
  for (const key of left) for (let i = 0; i < mean.length; i++) mean[i]! += (look.weights[key]! * look.value(key)[i]!) / Math.max(share, 1e-300);
  return {
    left: left.length,
    weights: column(look.weights, share),
    scores: column(look.scores, left.length ? score : NaN).map((value) => (value === -Infinity ? NaN : value)),
    bias: look.bias && column(look.bias, NaN),
    heard: heard && column(heard, left.reduce((sum, key) => sum + heard[key]!, 0)),
    k: rows(look.q.length, (key) => look.key(key), unknown(look.q.length)),
    v: values === null ? null : rows(values, (key) => look.value(key), mean),
    mean,
  };
}

function headAnswer(head: HeadSaid, columns: { keys: number[]; others: boolean }, ask: SaidAsk): Said {
  const { look, out, silent, missing, voices } = head;
  const numbers = inColumns(head, columns);
  const [sentence, figures] = headSentence(ask.me, voices, missing, silent);
  const sum = ask.sum;
  const adds = out && sum?.adds[ask.head];
  const n = numbers.weights.length;
  const arrays: SaidArrays = { q: [Float32Array.from(look.q), look.q.length], k: [numbers.k, n, look.q.length] };
  if (numbers.v) arrays["v"] = [numbers.v, n, look.valueWidth!];
  Object.assign(arrays, { scores: [numbers.scores, n], weights: [numbers.weights, n] });
  if (numbers.bias) arrays["bias"] = [numbers.bias, n];
  if (numbers.heard) arrays["heard"] = [numbers.heard, n];
  if (out) arrays["out"] = [Float32Array.from(out), out.length];
  if (adds) Object.assign(arrays, { adds: [adds, adds.length], before: [sum!.before, sum!.before.length] });
  const header = {
    head: `${ask.layer}H${ask.head}`, ...shared(numbers.left, head, columns, ask),
    lse: Number.isFinite(look.lse) ? look.lse : null, sink: look.sink, missing, silent,
    kv_head: look.group, group: ask.group, norm: adds ? sum!.norm : "none", branch_norm: adds ? sum!.branchNorm : false,
    wrote: adds ? sum!.wrote[ask.head]! : null, said: sentence, figures, because: out ? (adds ? "" : ask.because) : ask.unkept,
  };
  return { header, arrays };
}

function layerAnswer(heads: HeadSaid[], columns: { keys: number[]; others: boolean }, ask: SaidAsk): Said {
  const numbers = heads.map((head) => inColumns(head, columns));
  const [first, perGroup] = [heads[0]!, ask.perGroup];
  const [h, n, d, f] = [heads.length, numbers[0]!.weights.length, first.look.q.length, first.look.valueWidth];
  const groups = numbers.filter((_, head) => head % perGroup === 0);
  const joined = (parts: ArrayLike<number>[]) => {
    const out = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
    let begin = 0;
    for (const part of parts) {
      out.set(part, begin);
      begin += part.length;
    }
    return out;
  };
  const arrays: SaidArrays = {
    q: [joined(heads.map(({ look }) => look.q)), h, d],
    k: [joined(groups.map(({ k }) => k)), h / perGroup, n, d],
    weights: [joined(numbers.map(({ weights }) => weights)), h, n],
  };
  if (f !== null) {
    const values = joined(groups.map(({ v }) => v!));
    if (columns.others) {
      // Heads of a group share the values of a key, and not the mean of those of all others.
      for (let group = 0; group < groups.length; group++) values.fill(NaN, (group * n + n - 1) * f, (group + 1) * n * f);
      arrays["others"] = [joined(numbers.map(({ mean }) => mean)), h, f];
    }
    Object.assign(arrays, { v: [values, h / perGroup, n, f], out: [joined(heads.map(({ out }) => out!)), h, f] });
  }
  const sum = f === null ? null : ask.sum;
  if (sum) {
    const m = sum.before.length;
    Object.assign(arrays, { adds: [joined(sum.adds), h, m], wrote: [Float32Array.from(sum.wrote), h] });
    for (const name of ["output_bias", "before", "after", "normed", "beside"] as const) {
      const vector = name === "before" ? sum.before : sum.others[name];
      if (vector) arrays[name] = [vector, m];
    }
  }
  const [sentence, figures] = layerSentence(heads.map(({ voices }) => voices), sum?.wrote ?? null);
  const header = {
    heads: heads.map((_, head) => `${ask.layer}H${head}`), ...shared(numbers[0]!.left, first, columns, ask),
    missing: heads.map(({ missing }) => missing), silent: heads.map(({ silent }) => silent), num_kv_heads: h / perGroup,
    norm: sum?.norm ?? "none", branch_norm: sum?.branchNorm ?? false, bias_wrote: sum?.biasWrote ?? null,
    said: sentence, figures, because: f === null ? ask.unkept : sum ? "" : ask.because,
  };
  return { header, arrays };
}

function shared(left: number, { look, visible }: HeadSaid, { keys, others }: { keys: number[]; others: boolean }, ask: SaidAsk) {
  const sees = new Set(visible);
  const labels = keys.map((key) => ask.labels[key] ?? `place ${key}`);
  return {
    query: ask.query, keys: others ? [...keys, OTHERS] : keys, others: left,
    hidden: look.weights.length - visible.length - keys.filter((key) => !sees.has(key)).length,
    tokens: others ? [...labels, `${left} other${left === 1 ? "" : "s"}`] : labels,
    scale: look.scale, softcap: look.softcap, turned: ask.turned, exact: true,
  };
}

// ----------------------------------------------------------------------------------------------------------- in words

function filled(template: string, words: Record<string, string>): string {
  return template.replace(/\{(\w+)\}/g, (_, name: string) => words[name] ?? "");
}

/** A closing sentence with its words: 'The second "to" asked', where it begins with such a name. */
function sentenceOf(kind: keyof typeof SENTENCES, words: Record<string, string>): string {
  return upper(filled(SENTENCES[kind], words));
}

export function headSentence(me: string, voices: Voice[], missing: number, silent: boolean): [string, string] {
  if (!voices.length) return [sentenceOf("blind", { me }), ""];
  const byLook = [...voices].sort((a, b) => b.look - a.look);
  const unheard = voices.some(({ heard }) => Number.isNaN(heard));
  const loudest = unheard ? byLook[0]! : voices.reduce((most, voice) => (voice.heard > most.heard ? voice : most));
  let top = byLook[0]!;
  const spots: Voice[] = [];
  let parked = 0;
  for (const voice of byLook) {
    if (!voice.parks || parked >= PARKED) continue;
    spots.push(voice);
    parked += voice.look;
  }
  let kind: keyof typeof SENTENCES;
  if (missing >= PARKED) [kind, top] = ["nobody", { ...top, look: missing }];
  else if (parked >= PARKED) {
    const names = spots.map(({ name }) => name);
    const name = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0]!;
    top = { ...top, name, look: parked, heard: spots.reduce((sum, { heard }) => sum + heard, 0) };
    kind = silent ? "parked, silent" : unheard ? "parked, unheard" : "parked";
  } else if (top.look < PARKED && voices.every(({ look, even }) => look <= SPREAD * even)) {
    kind = silent ? "silent" : unheard ? "everyone, unheard" : "everyone";
  } else if (silent || unheard) kind = silent ? "silent" : "unheard";
  else if (loudest.name !== top.name) kind = "another";
  else kind = top.isMe ? "itself" : "answered";
  const words: Record<string, string> = { me, top: top.name, look: percent(top.look), loudest: loudest.name, says: spots.length > 1 ? "say" : "says" };
  if (!unheard) words["heard"] = percent((kind === "another" ? loudest : top).heard);
  const sentence = sentenceOf(kind, words);
  const spot = byLook.find(({ parks, look }) => parks && look >= NOTED);
  let figures = "";
  if (["parked", "everyone", "nobody"].includes(kind) && !unheard) {
    figures = filled(FIGURES.loudest, { loudest: loudest.name, heard: percent(loudest.heard) });
  } else if (["answered", "itself", "another"].includes(kind) && spot && spot !== byLook[0]) {
    figures = filled(FIGURES.parked, { top: spot.name, look: percent(spot.look), heard: percent(spot.heard) });
  } else if (byLook.length > 1 && ["answered", "itself", "another", "silent", "unheard"].includes(kind)) {
    const second = byLook[1]!;
    figures = filled(unheard || silent ? FIGURES.look : FIGURES.next, { top: second.name, look: percent(second.look), heard: unheard ? "" : percent(second.heard) });
  }
  return [sentence, figures];
}

export function layerSentence(voices: Voice[][], wrote: number[] | null): [string, string] {
  const count = COUNTS[voices.length] as string | undefined;
  const number = count ? count[0]!.toUpperCase() + count.slice(1) : voices.length.toLocaleString("en");
  const looks = `${number} look${voices.length === 1 ? "" : "s"}`;
  let [look, finder, found]: [number, number, Voice | null] = [0, 0, null];
  voices.forEach((ofHead, head) => {
    for (const voice of ofHead) {
      if (voice.parks || voice.isMe || !/[\p{L}\p{N}]/u.test(voice.name.slice(voice.name.indexOf('"') + 1)) || voice.look <= look) continue;
      [look, finder, found] = [voice.look, head, voice];
    }
  });
  const firm = found !== null && look > SPREAD * (found as Voice).even && look >= FOUND ? (found as Voice) : null;
  if (!wrote) return [firm ? sentenceOf("layer, unheard", { looks, head: `H${finder}`, top: firm.name, look: percent(look) }) : "", ""];
  const order = wrote.map((_, head) => head).sort((a, b) => wrote[b]! - wrote[a]!);
  const most = order[0]!;
  const sentence = firm
    ? sentenceOf("layer", { looks, top: firm.name, wrote: percent(wrote[finder]!) })
    : sentenceOf("layer, parked", { looks, head: `H${most}`, wrote: percent(wrote[most]!) });
  const heads = order.slice(0, 3).map((head) => `H${head} ${percent(wrote[head]!)}`).join(", ");
  return [sentence, filled(wrote[most]! < PARKED ? FIGURES.alone : FIGURES.most, { heads })];
}

function dot(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i]! * b[i]!;
  return sum;
}

export type { StoredSum };
