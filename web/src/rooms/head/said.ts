// What a head says at one token, out of the server's envelope: the shares of its output and the output itself.
import { float32, type Envelope } from "../../lib/api/envelope";

export interface Said {
  head: string;
  query: number;
  /** The tokens that are told apart; -1 stands for all others together. */
  keys: readonly number[];
  /** The share of the output that is heard from each; null where the head says next to nothing. */
  heard: Float32Array | null;
  out: Float32Array;
  /** How many numbers it becomes in the residual stream; null where the model is not at hand. */
  width: number | null;
  /** The head's share of what its layer adds; null where that is not known. */
  wrote: number | null;
  /** The ending sentence. */
  words: string;
}

export function saidOf(envelope: Envelope, head: string, query: number): Said {
  const { header, arrays } = envelope;
  const heard = arrays["heard"] ? float32(envelope, "heard").data : null;
  return {
    head,
    query,
    keys: header["keys"] as number[],
    heard: heard && heard.some((share) => !Number.isNaN(share)) ? heard : null,
    out: float32(envelope, "out").data,
    width: arrays["adds"]?.shape[0] ?? null,
    wrote: (header["wrote"] as number | null | undefined) ?? null,
    words: (header["said"] as string | undefined) ?? "",
  };
}

/** Shares by the place at which a key is listed: itself, or the word of which it is a piece. The others have no place. */
export function heardByPlace({ keys, heard }: Said, wordOf: readonly number[] | null): Map<number, number> {
  const shares = new Map<number, number>();
  keys.forEach((token, i) => {
    if (token < 0 || !heard) return;
    const place = wordOf?.[token] ?? token;
    shares.set(place, (shares.get(place) ?? 0) + heard[i]!);
  });
  return shares;
}
