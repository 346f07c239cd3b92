// One row of a map, fetched when it is wanted; cells that are on screen are here already, and are shown at once.
import type { RowFeed, RowValues } from "../../lib/map/feed";

interface Wanted {
  feed: RowFeed | null;
  query: number | null;
  /** Milliseconds to wait before it is fetched: a pointer passes over rows. */
  pause: number;
  epoch: number;
}

export class RowReader {
  #fetched = $state.raw<{ feed: RowFeed; query: number; values: RowValues } | null>(null);
  error = $state.raw<unknown>(null);
  readonly #wanted: () => Wanted;

  /** The row that is wanted; null until it is here. */
  values = $derived.by<RowValues | null>(() => {
    const { feed, query } = this.#wanted();
    if (!feed || query === null) return null;
    const fetched = this.#fetched;
    return fetched?.feed === feed && fetched.query === query ? fetched.values : (feed.peekRow(query) ?? null);
  });

  constructor(wanted: () => Wanted) {
    this.#wanted = wanted;
    $effect(() => {
      const { feed, query, pause } = wanted();
      this.error = null;
      if (!feed || query === null) return;
      let current = true;
      const timer = setTimeout(() => {
        feed.row(query).then(
          (values) => current && (this.#fetched = { feed, query, values }),
          (problem: unknown) => current && (this.error = problem),
        );
      }, pause);
      return () => {
        current = false;
        clearTimeout(timer);
      };
    });
  }
}

/** The positions of the `most` largest positive weights, largest first; those of `out` are left out. */
export function largest(weights: ArrayLike<number>, most: number, out: readonly boolean[] | null = null): number[] {
  // Insertion into a short list: a row may have 100,000 weights, too many to sort at every click.
  const best: number[] = [];
  for (let k = 0; k < weights.length; k++) {
    const value = weights[k]!;
    if (!(value > 0) || out?.[k] || (best.length === most && value <= weights[best[most - 1]!]!)) continue;
    let rank = best.length;
    while (rank > 0 && weights[best[rank - 1]!]! < value) rank -= 1;
    best.splice(rank, 0, k);
    if (best.length > most) best.pop();
  }
  return best;
}
