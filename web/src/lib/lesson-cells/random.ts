// NumPy's random numbers: Generator(PCG64(seed)).standard_normal(), draw for draw, so that a page shows the numbers of the library's
// lessons for any seed. Normals are equal to some 1e-13, since the ziggurat's tables are computed here.
// Sources: O'Neill 2014 (PCG XSL RR 128/64, and the seed sequence's hash); Marsaglia and Tsang 2000 (ziggurat, 256 layers).

const [MASK64, MASK128] = [(1n << 64n) - 1n, (1n << 128n) - 1n];
const MULTIPLIER = (2549297995355413924n << 64n) | 4865540595714422341n;

const EDGE = 3.654152885361009; // where the ziggurat's lowest layer ends and the tail begins
const AREA = 0.004928673233974655; // of each layer
const LAYERS = 256;
const UNIT = 2 ** 52;

/** x of each layer's edge, 0 the widest, which stands for the tail; and exp(-x²/2) there. */
const EDGES = new Float64Array(LAYERS);
const HEIGHTS = new Float64Array(LAYERS);
HEIGHTS[LAYERS - 1] = Math.exp(-0.5 * EDGE * EDGE);
EDGES[LAYERS - 1] = EDGE;
for (let i = LAYERS - 2; i > 0; i--) {
  HEIGHTS[i] = HEIGHTS[i + 1]! + AREA / EDGES[i + 1]!;
  EDGES[i] = Math.sqrt(-2 * Math.log(HEIGHTS[i]!));
}
[EDGES[0], HEIGHTS[0]] = [AREA / HEIGHTS[LAYERS - 1]!, 1];

/** Four 64-bit words that a seed below 2^32 is spread over. */
function spread(seed: number): bigint[] {
  const hashed = (value: number, state: { constant: number }, by: number) => {
    const mixed = value ^ state.constant;
    state.constant = Math.imul(state.constant, by);
    const product = Math.imul(mixed, state.constant);
    return product ^ (product >>> 16);
  };
  const into = { constant: 0x43b0d7e5 };
  const pool = [seed, 0, 0, 0].map((word) => hashed(word, into, 0x931e8875));
  for (let from = 0; from < 4; from++) {
    for (let to = 0; to < 4; to++) {
      if (from === to) continue;
      const mixed = Math.imul(0xca01f9dd, pool[to]!) - Math.imul(0x4973f715, hashed(pool[from]!, into, 0x931e8875));
      pool[to] = mixed ^ (mixed >>> 16);
    }
  }
  const out = { constant: 0x8b51f9dd };
  const words = Array.from({ length: 8 }, (_, i) => BigInt(hashed(pool[i % 4]!, out, 0x58f38ded) >>> 0));
  return [0, 2, 4, 6].map((i) => words[i]! | (words[i + 1]! << 32n));
}

export class Random {
  #state: bigint;
  readonly #increment: bigint;

  constructor(seed: number) {
    const [high, low, incrementHigh, incrementLow] = spread(seed) as [bigint, bigint, bigint, bigint];
    this.#increment = ((((incrementHigh << 64n) | incrementLow) << 1n) | 1n) & MASK128;
    this.#state = (this.#increment + ((high << 64n) | low)) & MASK128;
    this.#step();
  }

  normal(): number {
    for (;;) {
      const drawn = this.#next();
      const layer = Number(drawn & 255n);
      const place = Number((drawn >> 9n) & 0xfffffffffffffn);
      const x = (drawn & 256n ? -1 : 1) * place * (EDGES[layer]! / UNIT);
      const inner = layer === 0 ? EDGE : layer === 1 ? 0 : EDGES[layer - 1]!;
      if (place < Math.floor((inner / EDGES[layer]!) * UNIT)) return x;
      if (layer === 0) return this.#tail((place / 256) % 2 >= 1);
      if ((HEIGHTS[layer - 1]! - HEIGHTS[layer]!) * this.#uniform() + HEIGHTS[layer]! < Math.exp(-0.5 * x * x)) return x;
    }
  }

  /** A matrix of normals times `scale`, row after row. */
  normals(rows: number, columns: number, scale = 1): number[][] {
    return Array.from({ length: rows }, () => Array.from({ length: columns }, () => scale * this.normal()));
  }

  #tail(negative: boolean): number {
    for (;;) {
      const beyond = -Math.log1p(-this.#uniform()) / EDGE;
      const height = -Math.log1p(-this.#uniform());
      if (2 * height > beyond * beyond) return negative ? -(EDGE + beyond) : EDGE + beyond;
    }
  }

  #uniform(): number {
    return Number(this.#next() >> 11n) / 2 ** 53;
  }

  #next(): bigint {
    this.#step();
    const folded = (this.#state >> 64n) ^ (this.#state & MASK64);
    const turn = this.#state >> 122n;
    return ((folded >> turn) | (folded << (64n - turn))) & MASK64;
  }

  #step(): void {
    this.#state = (this.#state * MULTIPLIER + this.#increment) & MASK128;
  }
}
