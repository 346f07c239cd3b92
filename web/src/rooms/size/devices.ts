// Several GPUs that serve a decoder: what each of them holds, and how long and how many texts may be. Each layer is divided over
// the GPUs of a stage and the layers over the stages, and the cache is counted in blocks, as `manyheads.sizing.placement` says;
// what of a layer is divided at all is the library's (`Served`). A test holds every number to `mh.size(...).on(...)`.
import type { Served, ServedKind, ServedOutside } from "../../lib/api/types";
import { BITS, OVERHEAD, type Use } from "./arithmetic";
import table from "./sizes.generated.json";
import { gb, integer } from "./units";

/** How many GPUs, the bytes of one, and in how many stages the layers are. */
export interface Devices {
  count: number;
  memory: number;
  stages: number;
}

/** What each GPU of a stage holds, and what fits beside it. Layers count from 0. */
export interface Stage {
  layers: readonly [first: number, last: number];
  num_parameters: number;
  weight_bytes: number;
  activation_bytes: number;
  cache_bytes: number;
  /** Null for latents, and for layers that differ. */
  num_kv_heads: number | null;
  missing: number;
  weightsFit: boolean;
  /** Tokens that one text may have (null: any number), and how many texts of this length there may be (null: no cache). */
  longest: number | null;
  largest: number | null;
}

export const COUNTS: readonly number[] = [1, 2, 4, 8, 16, 32, 64];
export const MEMORIES: readonly number[] = [16, 24, 40, 48, 80, 96, 141, 192].map((size) => size * 1e9);
const LOGIT_BYTES = 4; // beside a logit's own: they are sampled from in float32
const FAR = 2 ** 48;
const NARROW = 1.5; // below this ratio of two kinds' layers the larger number is a group's, else the smaller

interface Shard {
  num_parameters: number;
  /** Numbers of a prompt's token at the widest place. */
  widest: number;
  kept: number | null;
  cache: Cached | null;
  state: number;
  state32: number;
}
interface Cached { width: number; window: number | null; chunked: boolean }
type Counts = Map<string, { cached: Cached; count: number }>;

/** Why heads cannot be divided so; else null. */
export function undivided({ kinds, runs }: Served, { count, stages }: Devices, kvHeads: number | null): string | null {
  const tensor = count / stages;
  const layers = runs.reduce((total, [, number]) => total + number, 0);
  if (stages > layers) return `There are ${integer(layers)} layers, and a stage has at least one.`;
  for (const { attention } of kinds) {
    if (!attention) continue;
    const [heads, shared] = [attention.num_heads, attention.latent ? attention.num_heads : (kvHeads ?? attention.num_kv_heads)];
    const can = (gpus: number) => heads % gpus === 0 && (shared % gpus === 0 || gpus % shared === 0);
    if (can(tensor)) continue;
    const others = COUNTS.filter((gpus) => gpus <= heads && can(gpus)).map(integer).join(", ");
    return `${integer(heads)} heads${shared === heads ? "" : ` on ${integer(shared)} KV heads`} do not divide over ${integer(tensor)} GPUs; over ${others} they do.`;
  }
  return null;
}

/** The stages of a decoder on these GPUs; `limit`: positions past which there are none. Only for what can be divided (`undivided`). */
export function placed(served: Served, use: Use, kvHeads: number | null, limit: number | null, { count, memory, stages }: Devices): Stage[] {
  const [number, tensor] = [(BITS[use.dtype] ?? 16) / 8, count / stages];
  const shards = served.kinds.map((kind) => shardOf(kind, tensor, served.embed_dim, kvHeads));
  const layers = served.runs.flatMap(([kind, times]) => Array.from({ length: times }, () => shards[kind]!));
  const groups = groupsOf(countsOf(layers));
  const [inEach, more] = [Math.floor(layers.length / stages), layers.length % stages];
  let first = 0;
  return Array.from({ length: stages }, (_, index) => {
    const isLast = index === stages - 1;
    const own = layers.slice(first, (first += inEach + (index >= stages - more - 1 && !isLast ? 1 : 0)));
    const num_parameters = sum(own.map((shard) => shard.num_parameters)) + (index ? 0 : outside(served.first, tensor, false)) + (isLast ? outside(served.last, tensor, stages > 1) : 0);
    const weight_bytes = number * num_parameters;
    const row = isLast ? served.vocab_size * (number + LOGIT_BYTES) : 0;
    const computed = number * table.chunk * (2 * served.embed_dim + Math.max(0, ...own.map((shard) => shard.widest)));
    const state = number * sum(own.map((shard) => shard.state)) + 4 * sum(own.map((shard) => shard.state32));
    const counts = setAside(countsOf(own), groups);
    /** Bytes of a text of that length. */
    const needs = (length: number) => state + sum(counts.map(({ cached, count }) => number * table.block * cached.width * count * blocks(cached, length)));
    const room = (texts: number) => memory - Math.floor(memory * OVERHEAD) - weight_bytes - computed - texts * row;
    const cache_bytes = use.batch * needs(use.context);
    const kept = new Set(own.map((shard) => shard.kept).filter((heads) => heads !== null));
    return {
      layers: [first - own.length, first - 1] as const, num_parameters, weight_bytes, cache_bytes, activation_bytes: computed + use.batch * row,
      num_kv_heads: kept.size === 1 ? [...kept][0]! : null,
      missing: Math.max(0, cache_bytes - room(use.batch)), weightsFit: room(use.batch) >= 0, longest: longest(needs, room(1), limit),
      largest: needs(use.context) ? Math.max(0, Math.floor(room(0) / (needs(use.context) + row))) : null,
    };
  });
}

/** What these GPUs mean for the texts, in a sentence. */
export function inWords(served: Served, use: Use, kvHeads: number | null, limit: number | null, devices: Devices): string {
  const refused = undivided(served, devices, kvHeads);
  if (refused) return refused;
  const stages = placed(served, use, kvHeads, limit, devices);
  const where = `${integer(devices.count)} ${devices.count === 1 ? "GPU" : "GPUs"} of ${gigabytes(devices.memory)}`;
  const texts = `${integer(use.batch)} ${use.batch === 1 ? "text" : "texts"} of ${integer(use.context)} tokens`;
  const short = stages.reduce((worst, stage) => (stage.missing > worst.missing ? stage : worst));
  if (!short.missing) {
    const largest = Math.min(...stages.map((stage) => stage.largest ?? Infinity));
    return `${where} ${devices.count === 1 ? "holds" : "hold"} it with ${texts}; ${largest === Infinity ? "any number of texts fits" : `up to ${integer(largest)} of that length fit`}.`;
  }
  const enough = COUNTS.find((count) => {
    const larger = { ...devices, count, stages: 1 };
    return count > devices.count && !undivided(served, larger, kvHeads) && !placed(served, use, kvHeads, limit, larger)[0]!.missing;
  });
  const lack = `${gb(short.missing)} ${devices.count === 1 ? "are missing" : "are missing on a GPU"} for ${short.weightsFit ? texts : `the weights and ${texts}`}`;
  return `It does not fit on ${where}: ${lack}.${enough ? ` ${enough} would do.` : ""}`;
}

export function gigabytes(memory: number): string {
  return `${integer(memory / 1e9)} GB`;
}

/** Several GPUs from an address, "4x80GB", and their stages; null for anything else than the choices. */
export function readDevices(gpus: unknown, stages: unknown): Devices | null {
  const [, count, size] = /^(\d+)x(\d+)GB$/.exec(String(gpus)) ?? [];
  const devices = { count: Number(count), memory: Number(size) * 1e9, stages: typeof stages === "number" ? stages : 1 };
  return COUNTS.includes(devices.count) && MEMORIES.includes(devices.memory) && stagesOf(devices.count).includes(devices.stages) ? devices : null;
}

/** In how many stages so many GPUs can be. */
export function stagesOf(count: number): number[] {
  return COUNTS.filter((stages) => stages <= count);
}

function shardOf({ whole, divided, per_kv_head, attention, forward, beside, state, state32 }: ServedKind, tensor: number, embedDim: number, kvHeads: number | null): Shard {
  const own = attention ? attention.num_heads / tensor : 0;
  const kept = !attention ? 0 : attention.latent ? own : Math.max(1, (kvHeads ?? attention.num_kv_heads) / tensor);
  const inner = sum(forward.map(([matmul, chosen]) => chosen * Math.floor(Math.ceil(matmul / tensor) / embedDim))) + beside;
  const width = attention ? attention.width * (attention.latent ? 1 : kept) : 0;
  return {
    num_parameters: whole + sum(divided.map(([size, times]) => times * Math.ceil(size / tensor))) + per_kv_head * kept,
    widest: Math.max(inner, (own + kept) * (attention?.scored ?? 0)),
    kept: attention && !attention.latent ? kept : null,
    cache: attention && width ? { width, window: attention.window, chunked: attention.chunked } : null,
    state: Math.ceil(state / tensor), state32: Math.ceil(state32 / tensor),
  };
}

function outside({ whole, divided }: ServedOutside, tensor: number, copied: boolean): number {
  return whole + sum(divided.map(([size, copy]) => Math.ceil((size + (copied ? copy : 0)) / tensor)));
}

/** Layers by what they keep. */
function countsOf(layers: readonly Shard[]): Counts {
  const counts: Counts = new Map();
  for (const { cache } of layers) {
    if (!cache) continue;
    const key = JSON.stringify(cache);
    counts.set(key, { cached: cache, count: (counts.get(key)?.count ?? 0) + 1 });
  }
  return counts;
}

const sightOf = ({ window, chunked }: Cached) => `${window},${chunked}`;

/** Into how many groups of layers each kind goes, where all keep equally many bytes and see differently far; else none. */
function groupsOf(counts: Counts): Map<string, number> {
  const kinds = [...counts.values()];
  if (kinds.length < 2 || new Set(kinds.map(({ cached }) => cached.width)).size > 1) return new Map();
  const [fewest, most] = [Math.min(...kinds.map(({ count }) => count)), Math.max(...kinds.map(({ count }) => count))];
  const size = most < fewest * NARROW ? most : fewest;
  return new Map(kinds.map(({ cached, count }) => [sightOf(cached), Math.ceil(count / size)]));
}

/** The layers that are set aside: more than there are where the last group is filled up. */
function setAside(counts: Counts, groups: ReadonlyMap<string, number>): { cached: Cached; count: number }[] {
  const kinds = [...counts.values()];
  if (!groups.size) return kinds;
  const size = Math.max(...kinds.map(({ cached, count }) => Math.ceil(count / groups.get(sightOf(cached))!)));
  return kinds.map(({ cached }) => ({ cached, count: size * groups.get(sightOf(cached))! }));
}

/** Blocks of one layer for a text of that length; a window need not begin where a block does. */
function blocks({ window, chunked }: Cached, length: number): number {
  const seen = window === null ? length : Math.min(length, window - (chunked ? 0 : 1) + table.chunk);
  return Math.ceil(seen / table.block) + (window !== null && !chunked ? 1 : 0);
}

function longest(needs: (length: number) => number, room: number, limit: number | null): number | null {
  if (room < 0 || needs(1) > room) return 0;
  if (limit === null && needs(FAR) <= room) return null;
  let [fits, beyond] = [1, (limit ?? FAR) + 1];
  while (beyond - fits > 1) {
    const middle = Math.floor((fits + beyond) / 2);
    if (needs(middle) <= room) fits = middle;
    else beyond = middle;
  }
  return fits;
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}
