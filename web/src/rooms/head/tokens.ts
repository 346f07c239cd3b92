// Whose tokens a head's rows and columns are: the recording's own, or another text's under cross-attention.
import type { LayerInfo, RecordingInfo, Token, WordInfo } from "../../lib/types";

interface Sides {
  queries: Token[] | null;
  keys: Token[] | null;
  queryWords: WordInfo[] | null;
  keyWords: WordInfo[] | null;
}

/** Null where a side is no text (or not as long as its tokens): positions are shown instead. */
export function sidesOf(info: RecordingInfo, layer: LayerInfo): Sides {
  const of = (name: string | null, n: number): Token[] | null => {
    const tokens = name === null ? null : name === "" ? info.tokens : (info.tokens_of[name] ?? null);
    return tokens?.length === n ? tokens : null;
  };
  const queries = of(layer.reads, layer.num_queries);
  const keys = of(layer.looks_at, layer.num_keys);
  return {
    queries,
    keys,
    queryWords: queries === info.tokens ? info.words : null,
    keyWords: keys === info.tokens ? info.words : null,
  };
}
