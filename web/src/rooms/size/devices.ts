// Several GPUs that divide each layer of a preset: what each of them holds, and how long and how many texts may be. The library
// counts what a GPU holds (`Sizing.on`; sizes.generated.json); here it is put beside a memory, as a slider moves. A test holds
// every number to the command's.
import { BITS, OVERHEAD, type Use } from "./arithmetic";
import table from "./sizes.generated.json";

/** What each of several GPUs holds: parameters, key/value heads, numbers a token leaves in its cache, numbers of a prompt's token at
    the widest place, logits of a text. Null where a GPU's heads or its cache are no one number. */
export type Shard = readonly [parameters: number, kvHeads: number | null, cached: number | null, widest: number, logits: number];

export interface Device {
  count: number;
  num_parameters: number;
  weight_bytes: number;
  num_kv_heads: number | null;
  /** On how many GPUs each key/value head stands. */
  copies: number;
  /** Bytes of cache for the texts; null where that depends on more than a length. */
  cache_bytes: number | null;
  /** Tokens that one text may have, and how many texts of this length there may be; null as above. */
  longest: number | null;
  largest: number | null;
}

export const GPU = table.gpu;
const LOGIT_BYTES = 4; // beside a logit's own: they are sampled from in float32

export function devicesOf(shards: Readonly<Record<string, Shard>>, use: Use, kvHeads: number | null, limit: number | null): Device[] {
  const number = (BITS[use.dtype] ?? 16) / 8;
  return Object.entries(shards).map(([key, [num_parameters, num_kv_heads, cached, widest, logits]]) => {
    const count = Number(key);
    const weight_bytes = number * num_parameters;
    const free = GPU - Math.floor(GPU * OVERHEAD) - weight_bytes - number * table.chunk * widest;
    const row = logits * (number + LOGIT_BYTES);
    const page = cached === null ? null : number * table.block * cached;
    const own = page === null ? null : page * Math.ceil(use.context / table.block);
    return {
      count, num_parameters, weight_bytes, num_kv_heads, copies: num_kv_heads && kvHeads ? Math.max(1, (count * num_kv_heads) / kvHeads) : 1,
      cache_bytes: own === null ? null : use.batch * own,
      longest: page === null ? null : Math.min(limit ?? Infinity, table.block * Math.max(0, Math.floor((free - row) / page))),
      largest: own === null ? null : Math.max(0, Math.floor(free / (own + row))),
    };
  });
}
