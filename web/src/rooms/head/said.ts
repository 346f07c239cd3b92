// What a head says at one token, out of the server's envelope: the shares of its output and the output itself.
import { float32, type Envelope } from "../../lib/api/envelope";

export interface Said {
  /** The recording, and the text in it. */
  read: string;
  head: string;
  query: number;
  /** The tokens that are told apart; -1 stands for all others together. */
  keys: readonly number[];
  /** The share of the output that is heard from each; null where the head says next to nothing, or values were not kept. */
  heard: Float32Array | null;
  /** The head says next to nothing. */
  silent: boolean;
  /** Null where values were not kept. */
  out: Float32Array | null;
  /** How many numbers it becomes in the residual stream; null where the model is not at hand. */
  width: number | null;
  /** The ending sentence, and the line under it. */
  words: string;
  figures: string;
  /** Why values, or what is added, are not here; "" where they are. */
  because: string;
}

export function saidOf(envelope: Envelope, read: string, head: string, query: number): Said {
  const { header, arrays } = envelope;
  return {
    read,
    head,
    query,
    keys: header["keys"] as number[],
    heard: arrays["heard"] ? float32(envelope, "heard").data : null,
    silent: header["silent"] === true,
    out: arrays["out"] ? float32(envelope, "out").data : null,
    width: arrays["adds"]?.shape[0] ?? null,
    words: String(header["said"] ?? ""),
    figures: String(header["figures"] ?? ""),
    because: String(header["because"] ?? ""),
  };
}

/** A head's share of what its layer adds at the token, out of the layer's envelope; null where that is not known. */
export function wroteOf(layer: Envelope, head: string): number | null {
  if (!layer.arrays["wrote"]) return null;
  const share = float32(layer, "wrote").data[(layer.header["heads"] as string[]).indexOf(head)];
  return share === undefined || Number.isNaN(share) ? null : share;
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
