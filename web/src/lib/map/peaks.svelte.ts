// The largest value seen at each level of a map: the value of full colour. Two maps that share a `Peaks` share their scale.
// A peak only grows while a map is looked at, so that a cell keeps its colour while the reader moves about.

export class Peaks {
  #levels = $state.raw<readonly number[]>([]);

  at(level: number): number {
    return this.#levels[level] ?? 0;
  }

  /** Raises a level's peak to `value`; true if that changed the scale. */
  raise(level: number, value: number): boolean {
    if (!(value > this.at(level))) return false;
    const levels = Array.from(this.#levels);
    levels[level] = value;
    this.#levels = levels;
    return true;
  }
}

/** The largest absolute value; NaN does not count. */
export function peakOf(values: Float32Array): number {
  let peak = 0;
  for (const value of values) {
    const size = Math.abs(value);
    if (size > peak) peak = size;
  }
  return peak;
}
