// The largest value seen at each level of a map: what full colour means. Two maps that share one share their scale.
// It only grows while a map is looked at, so that a cell keeps its colour as one moves about.

export class Peaks {
  #levels = $state.raw<readonly number[]>([]);

  at(level: number): number {
    return this.#levels[level] ?? 0;
  }

  /** True where that changed the scale. */
  raise(level: number, value: number): boolean {
    if (!(value > this.at(level))) return false;
    const levels = Array.from(this.#levels);
    levels[level] = value;
    this.#levels = levels;
    return true;
  }
}

/** The largest size of a value, NaN left out. */
export function peakOf(values: Float32Array): number {
  let most = 0;
  for (const value of values) {
    const size = Math.abs(value);
    if (size > most) most = size;
  }
  return most;
}
