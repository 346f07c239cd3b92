// The arithmetic of the Size room: parameters, bytes and what fits, from the coefficients of an architecture (`SizeShape`).
// The library makes these for its presets (sizes.generated.json) and for a model of the studio; `described` makes them of a
// description in words. So the room needs no server, and answers while a slider moves. A test holds every number to
// `mh.size`; names are those of manyheads.sizing.
import type { CacheLine, CacheShape, CacheTerm, LayerKind, Served, SizeShape } from "../../lib/api/types";
import table from "./sizes.generated.json";
import type { Words } from "./sliders";
import { integer } from "./units";

export interface Preset {
  name: string;
  title: string;
  /** Null where no words describe it exactly; then it has a shape. */
  words: Words | null;
  shape: SizeShape;
}

/** What is asked of an architecture: texts, their length, and what a number is stored as. */
export interface Use {
  context: number;
  batch: number;
  dtype: string;
}

/** Equal layers: how many, and what one of them is made of. */
export interface Kind {
  kind: string;
  count: number;
  attention: number;
  feed_forward: number;
  other: number;
  parts: Record<string, number>;
}

export interface Sized {
  use: Use;
  num_parameters: number;
  /** Those that one token uses: fewer where there are experts. */
  num_active: number;
  weight_bytes: number;
  /** Null where nothing is kept: a model that does not generate. */
  cache_bytes: number | null;
  /** What one token of one text leaves. */
  token_bytes: number;
  num_kv_heads: number | null;
  parts: Record<string, number>;
  kinds: Kind[];
  lines: CacheLine[];
  fits: Fit[];
  /** The positions that the model is made for, where the context is longer; else null. */
  past: number | null;
  positions: number | null;
  /** The positions again, where there is no row for a later one. */
  learnedLimit: number | null;
  notes: string[];
}

export interface Fit {
  name: string;
  memory: number;
  /** Kept free for what is not counted. */
  free: number;
  missing: number;
  /** Whether the weights fit, whatever the texts. */
  weightsFit: boolean;
  /** Tokens that one text may have, and each of the batch; null: any number, or nothing is kept. */
  longest: number | null;
  longestOfBatch: number | null;
  /** Texts of this context. */
  largest: number | null;
}

export const BITS: Readonly<Record<string, number>> = table.bits;
export const OVERHEAD = table.overhead;
export const MAC_SHARE = table.mac_share;
const MACHINES = Object.entries(table.machines);
const USUAL_GROUPS = 8;
const USUAL_CONTEXT = 4096;
const LONGEST = 131_072; // tokens to which the cache is drawn at least
const FAR = 2 ** 40;
const ATTENTION = ["q", "k", "v", "qkv", "latent", "o"];
const FORWARD = ["feed-forward", "router"];
const NORMS: Readonly<Record<string, number>> = { rms: 1, layer: 2, none: 0 };

interface Row { name: string; title: string; words?: Words; shape?: SizeShape; positions?: number | null; notes?: string[] }

export const PRESETS: readonly Preset[] = (table.presets as unknown as Row[]).map(({ name, title, words, shape, positions, notes }) => ({
  name, title, words: words ?? null,
  shape: {
    ...(shape ?? { ...described(words ?? {}), positions: positions ?? null }),
    notes: (shape?.notes ?? notes ?? []).map((note) => note.replace(/^~/, title)),
  },
}));

export function knowsDtype(dtype: string): boolean {
  return dtype in BITS;
}

/** The tokens of a text unless chosen: 4,096, or all that there are positions for. */
export function usualContext(shape: SizeShape): number {
  return shape.num_tokens ?? Math.min(USUAL_CONTEXT, shape.positions ?? USUAL_CONTEXT);
}

/** The coefficients of equal layers in words, as `sizing.architecture.building_blocks.transformer` counts them. */
export function described(words: Words): SizeShape {
  const number = (name: string, fallback = 0) => (typeof words[name] === "number" ? words[name] : fallback);
  const has = (name: string) => words[name] === true;
  const [layers, width, heads, vocab] = [number("num_layers", 1), number("embed_dim"), number("num_heads", 1), number("vocab_size")];
  const [kvHeads, dim, inner] = [number("num_kv_heads", heads), number("head_dim", width / heads), number("ffn_dim", 4 * width)];
  const [experts, positions, window] = [number("num_experts", 1), number("learned_positions"), number("window")];
  const [norm, ups, causal] = [(NORMS[String(words.norm ?? "rms")] ?? 1) * width, has("gated") ? 2 : 1, words.causal !== false];
  const matrix = (inputs: number, outputs: number, bias: boolean) => inputs * outputs + (bias ? outputs : 0);
  const shared = matrix(width, dim, has("qkv_bias")); // of k, and of v, for one key/value head
  const forward = inner && (ups + 1) * width * inner + (has("ffn_bias") ? ups * inner + width : 0);
  const parts = {
    q: matrix(width, heads * dim, has("qkv_bias")), k: kvHeads * shared, v: kvHeads * shared, o: matrix(heads * dim, width, has("o_bias")),
    "feed-forward": experts * forward,
    router: experts > 1 ? matrix(width, experts, has("ffn_bias")) : 0, norm: norm * (inner ? 2 : 1),
  };
  const outside = { embedding: (vocab + positions) * width, norm: inner ? norm : 0, head: causal && !has("tied") ? vocab * width : 0 };
  const kind = [kindOf(kvHeads, heads), ...(window ? [`window ${integer(window)}`] : []), ...(experts > 1 ? [`${experts} experts`] : [])].join(", ");
  return {
    positions: positions || null, learned_positions: positions > 0, num_tokens: null, num_source: null,
    outside: present(outside), kinds: [{ kind, count: layers, parts: present(parts), per_kv_head: { k: shared, v: shared } }],
    num_heads: causal ? heads : null, num_kv_heads: causal ? kvHeads : null,
    terms: causal ? [{ width: layers * 2 * dim, window: window || null, crosses: false }] : [], variants: [], num_idle: layers * (experts - number("experts_per_token", 1)) * forward, state: 0, state32: 0, served: causal ? served() : null, notes: ["As described."],
  };
  /** Which of these numbers several GPUs divide: matrices, but neither norms, routers and positions nor a bias that is added last. */
  function served(): Served {
    const [lastOfO, lastOfForward] = [has("o_bias") ? width : 0, inner && has("ffn_bias") ? width : 0];
    return {
      embed_dim: width, vocab_size: vocab, runs: [[0, layers]],
      kinds: [{
        whole: parts.router + parts.norm + lastOfO + experts * lastOfForward, per_kv_head: 2 * shared,
        divided: [[parts.q, 1], [parts.o - lastOfO, 1], [forward - lastOfForward, experts]],
        attention: { num_heads: heads, num_kv_heads: kvHeads, width: 2 * dim, latent: false, window: window || null, chunked: false, scored: 2 * dim },
        forward: inner ? [[(ups + 1) * width * inner, number("experts_per_token", 1)]] : [], beside: experts > 1 ? number("experts_per_token", 1) * width : 0, state: 0, state32: 0,
      }],
      first: { whole: positions * width, divided: [[vocab * width, 0]] },
      last: { whole: outside.norm, divided: vocab ? [[outside.head, has("tied") ? vocab * width : 0]] : [] },
    };
  }
}

/** All numbers of an architecture at one use; `kv`: with that many key/value heads in place of its own. */
export function sized(shape: SizeShape, use: Use, kv: number | null = null): Sized {
  const bytes = (numbers: number) => (numbers * (BITS[use.dtype] ?? 16)) / 8;
  const heads = kv ?? shape.num_kv_heads;
  const kinds = shape.kinds.map((kind) => kindAt(kind, shape, heads));
  const parts = { ...shape.outside };
  for (const { count, parts: own } of kinds) for (const [part, number] of Object.entries(own)) parts[part] = (parts[part] ?? 0) + count * number;
  const num_parameters = sum(Object.values(parts));
  const state = bytes(shape.state) + 4 * shape.state32;
  const variants = variantsOf(shape, heads);
  /** Bytes of a variant's cache for all texts. Before a window is full it is one token short: the next brings its own. */
  const kept = (terms: readonly CacheTerm[], context: number, batch: number, spare = 1, source = context) =>
    batch * (bytes(tokensKept(terms, context, shape.num_source ?? source, spare)) + state);
  const own = variants.find((variant) => variant.own);
  const hardLimit = shape.learned_positions ? shape.positions : null;
  const end = hardLimit ?? Math.max(use.context, shape.positions ?? 0, LONGEST);
  const powers = Array.from({ length: Math.floor(Math.log2(end)) + 1 }, (_, power) => 2 ** power);
  const contexts = [...new Set([...powers, use.context])].sort((a, b) => a - b);
  const lines = variants
    .map(({ name, num_kv_heads, own, num_parameters, terms }) => ({
      name, num_kv_heads, own, num_parameters, num_bytes: kept(terms, use.context, use.batch),
      points: contexts.map((context) => ({ context, num_bytes: kept(terms, context, use.batch) })),
    }))
    .sort((a, b) => b.num_bytes - a.num_bytes);
  const weight_bytes = bytes(num_parameters);
  const reserved = own ? (context: number, batch: number) => kept(own.terms, context, batch, 0, use.context) : null;
  return {
    use, num_parameters, num_active: num_parameters - shape.num_idle, weight_bytes, parts, kinds, lines, num_kv_heads: heads, positions: shape.positions, learnedLimit: hardLimit, notes: shape.notes,
    cache_bytes: own ? kept(own.terms, use.context, use.batch) : null,
    token_bytes: own ? bytes(tokensKept(own.terms, 1, 0, 0)) : 0,
    fits: MACHINES.map(([name, memory]) => fit(name, memory, weight_bytes, reserved, use, hardLimit)),
    past: shape.positions !== null && use.context > shape.positions ? shape.positions : null,
  };
}

/** What fits into a memory beside the weights; `reserved`: bytes to set aside for so many texts of so many tokens. */
function fit(name: string, memory: number, weights: number, reserved: ((context: number, batch: number) => number) | null, use: Use, limit: number | null): Fit {
  const free = Math.floor(memory * OVERHEAD);
  const room = memory - free - weights;
  const missing = Math.max(0, (reserved?.(use.context, use.batch) ?? 0) - room);
  const shared = { name, memory, free, missing, weightsFit: room >= 0 };
  if (room < 0) return { ...shared, longest: 0, longestOfBatch: 0, largest: 0 };
  const one = reserved?.(use.context, 1);
  if (!reserved || !one) return { ...shared, longest: null, longestOfBatch: null, largest: null };
  /** The longest context at which so many texts fit, by halving; null where the cache has stopped growing. */
  const longest = (batch: number): number | null => {
    if (limit === null && reserved(FAR, batch) <= room) return null;
    let [fits, beyond] = [0, (limit ?? FAR) + 1];
    while (beyond - fits > 1) {
      const middle = Math.floor((fits + beyond) / 2);
      if (reserved(middle, batch) <= room) fits = middle;
      else beyond = middle;
    }
    return fits;
  };
  return { ...shared, longest: longest(1), longestOfBatch: longest(use.batch), largest: Math.floor(room / one) };
}

function tokensKept(terms: readonly CacheTerm[], context: number, source: number, spare: number): number {
  return sum(terms.map(({ width, window, crosses }) => width * (crosses ? source : window === null ? context : Math.min(context, window - spare))));
}

/** One kind of layer with `heads` key/value heads. */
function kindAt({ kind, count, parts, per_kv_head }: LayerKind, shape: SizeShape, heads: number | null): Kind {
  const more = (heads ?? 0) - (shape.num_kv_heads ?? 0);
  const changed = Object.fromEntries(Object.entries(parts).map(([part, number]) => [part, number + more * (per_kv_head[part] ?? 0)]));
  const of = (names: readonly string[]) => sum(names.map((name) => changed[name] ?? 0));
  const [attention, feed_forward] = [of(ATTENTION), of(FORWARD)];
  const words = more && heads && shape.num_heads ? kind.replace(/MHA|MQA|GQA-\d+/, kindOf(heads, shape.num_heads)) : kind;
  return { kind: words, count, parts: changed, attention, feed_forward, other: sum(Object.values(changed)) - attention - feed_forward };
}

interface Variant extends CacheShape {
  num_kv_heads: number | null;
}

/** As it is, and as MHA, GQA and MQA: with its own groups, or with the number nearest to the usual one. */
function variantsOf(shape: SizeShape, own: number | null): Variant[] {
  const heads = shape.num_heads;
  if (heads === null || own === null) return shape.variants.map((variant) => ({ ...variant, num_kv_heads: null }));
  const grouped = divisors(heads).filter((count) => count > 1 && count < heads);
  const usual = grouped.reduce((best, count) => (Math.abs(count - USUAL_GROUPS) < Math.abs(best - USUAL_GROUPS) ? count : best), grouped[0] ?? 0);
  const middle = own > 1 && own < heads ? own : usual;
  const parameters = (count: number) => {
    const kinds = shape.kinds.map((kind) => kindAt(kind, shape, count));
    return sum(Object.values(shape.outside)) + sum(kinds.map((kind) => kind.count * sum(Object.values(kind.parts))));
  };
  const byName = new Map<string, number | null>();
  for (const count of middle ? [null, middle, 1] : [null, 1]) byName.set(kindOf(count ?? heads, heads), count);
  return [...byName].map(([name, num_kv_heads]) => {
    const count = num_kv_heads ?? heads;
    return {
      name, num_kv_heads, own: name === kindOf(own, heads), num_parameters: parameters(count),
      terms: shape.terms.map((term) => ({ ...term, width: term.width * count })),
    };
  });
}

export function kindOf(kvHeads: number, heads: number): string {
  return kvHeads === heads ? "MHA" : kvHeads === 1 ? "MQA" : `GQA-${kvHeads}`;
}

export function divisors(number: number): number[] {
  return Array.from({ length: Math.min(number, 4096) }, (_, i) => i + 1).filter((divisor) => number % divisor === 0);
}

function present(parts: Record<string, number>): Record<string, number> {
  return Object.fromEntries(Object.entries(parts).filter(([, count]) => count > 0));
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
