// A GIF of pictures of one size, written here: one palette for all, and of each picture only what differs from the one before.
// Source: CompuServe 1990, Graphics Interchange Format, version 89a.

const COLOURS = 255; // and one more, transparent: what is as it was
const CLEAR = 256;
const END = 257;
const MOST_CODES = 4096;
const LOOP = [0x21, 0xff, 11, ..."NETSCAPE2.0"].flatMap((part) => (typeof part === "string" ? part.charCodeAt(0) : part));

export class GifWriter {
  #bytes: number[] = [];
  #before: Uint8Array | null = null;
  #known = new Map<number, number>();

  /** `samples`: pictures (RGBA) that have the colours of all; `times` the GIF plays, 0 for ever. */
  constructor(
    private readonly width: number,
    private readonly height: number,
    samples: readonly Uint8ClampedArray[],
    times = 0,
  ) {
    this.#palette = paletteOf(samples);
    this.#bytes.push(...text("GIF89a"), ...short(width), ...short(height), 0xf7, 0, 0, ...this.#palette.flat());
    if (times !== 1) this.#bytes.push(...LOOP, 3, 1, ...short(times && times - 1), 0);
  }
  readonly #palette: number[][];

  /** A picture (RGBA), shown for so many hundredths of a second. */
  add(pixels: Uint8ClampedArray, hundredths: number): void {
    const { width, height } = this;
    const now = new Uint8Array(width * height);
    for (let i = 0; i < now.length; i++) now[i] = this.#nearest(pixels[4 * i]!, pixels[4 * i + 1]!, pixels[4 * i + 2]!);
    const before = this.#before;
    let [left, top, right, bottom] = before ? [width, height, -1, -1] : [0, 0, width - 1, height - 1];
    if (before) {
      for (let y = 0, i = 0; y < height; y++) {
        for (let x = 0; x < width; x++, i++) {
          if (now[i] === before[i]) continue;
          [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), y];
        }
      }
      if (right < 0) [left, top, right, bottom] = [0, 0, 0, 0]; // nothing moves: one cell that stays as it is
    }
    const part = new Uint8Array((right - left + 1) * (bottom - top + 1));
    for (let y = top, i = 0; y <= bottom; y++) {
      for (let x = left; x <= right; x++, i++) {
        const at = y * width + x;
        part[i] = before && now[at] === before[at] ? COLOURS : now[at]!;
      }
    }
    this.#bytes.push(0x21, 0xf9, 4, 0b101, ...short(hundredths), COLOURS, 0);
    this.#bytes.push(0x2c, ...short(left), ...short(top), ...short(right - left + 1), ...short(bottom - top + 1), 0, 8);
    const data = packed(part);
    for (let i = 0; i < data.length; i += 255) {
      const block = data.subarray(i, i + 255);
      this.#bytes.push(block.length, ...block);
    }
    this.#bytes.push(0);
    this.#before = now;
  }

  end(): Uint8Array<ArrayBuffer> {
    return Uint8Array.from([...this.#bytes, 0x3b]);
  }

  /** The number of the palette's nearest colour. */
  #nearest(r: number, g: number, b: number): number {
    const key = (r << 16) | (g << 8) | b;
    let best = this.#known.get(key);
    if (best === undefined) {
      let least = Infinity;
      this.#palette.forEach(([red = 0, green = 0, blue = 0], i) => {
        const distance = 2 * (r - red) ** 2 + 4 * (g - green) ** 2 + 3 * (b - blue) ** 2;
        if (i < COLOURS && distance < least) [best, least] = [i, distance];
      });
      this.#known.set(key, best!);
    }
    return best!;
  }
}

/** 256 colours: boxes of the samples' colours are halved where they are longest, by how often each colour is there. */
function paletteOf(samples: readonly Uint8ClampedArray[]): number[][] {
  const counts = new Map<number, number>();
  for (const pixels of samples) {
    for (let i = 0; i < pixels.length; i += 4) {
      const key = (pixels[i]! << 16) | (pixels[i + 1]! << 8) | pixels[i + 2]!;
      counts.set(key, (counts.get(key) ?? 0) + 1);
    }
  }
  type Colour = [red: number, green: number, blue: number, count: number];
  const spread = (box: Colour[]) => [0, 1, 2].map((channel) => {
    const values = box.map((colour) => colour[channel]!);
    return values.reduce((most, value) => Math.max(most, value), 0) - values.reduce((least, value) => Math.min(least, value), 255);
  });
  const worth = (box: Colour[]) => (box.length < 2 ? -1 : Math.max(...spread(box)) * Math.cbrt(box.reduce((sum, colour) => sum + colour[3], 0)));
  const whole: Colour[] = [...counts].map(([key, count]) => [key >> 16, (key >> 8) & 255, key & 255, count]);
  const boxes = [{ box: whole, worth: worth(whole) }];
  while (boxes.length < COLOURS) {
    const next = boxes.reduce((most, other) => (other.worth > most.worth ? other : most));
    if (next.worth < 0) break;
    const sizes = spread(next.box);
    const channel = sizes.indexOf(Math.max(...sizes));
    const sorted = next.box.sort((a, b) => a[channel]! - b[channel]!);
    const half = sorted.reduce((sum, colour) => sum + colour[3], 0) / 2;
    let [cut, seen] = [0, 0];
    while (cut < sorted.length - 1 && (seen += sorted[cut]![3]) < half) cut += 1;
    cut = Math.max(1, cut);
    boxes.splice(boxes.indexOf(next), 1, ...[sorted.slice(0, cut), sorted.slice(cut)].map((box) => ({ box, worth: worth(box) })));
  }
  const palette = boxes.map(({ box }) => {
    const total = box.reduce((sum, colour) => sum + colour[3], 0);
    return [0, 1, 2].map((channel) => Math.round(box.reduce((sum, colour) => sum + colour[channel]! * colour[3], 0) / total));
  });
  while (palette.length < 256) palette.push([0, 0, 0]);
  return palette;
}

/** Numbers of 0 to 255 in the format's variant of Lempel, Ziv and Welch: codes of 9 to 12 bits, the lowest bit first. */
function packed(numbers: Uint8Array): Uint8Array {
  const out: number[] = [];
  let [bits, held, size] = [0, 0, 9];
  const write = (code: number) => {
    bits |= code << held;
    for (held += size; held >= 8; held -= 8) {
      out.push(bits & 255);
      bits >>>= 8;
    }
  };
  let codes = new Map<number, number>();
  let next = END + 1;
  write(CLEAR);
  let run = numbers[0]!;
  for (let i = 1; i < numbers.length; i++) {
    const key = (run << 8) | numbers[i]!;
    const longer = codes.get(key);
    if (longer !== undefined) {
      run = longer;
      continue;
    }
    write(run);
    if (next === MOST_CODES) {
      write(CLEAR);
      [codes, next, size] = [new Map(), END + 1, 9];
    } else {
      if (next === 1 << size) size += 1; // the reader is one code behind
      codes.set(key, next++);
    }
    run = numbers[i]!;
  }
  write(run);
  // The reader's table may have grown with that code.
  if (next === 1 << size && size < 12) size += 1;
  write(END);
  if (held > 0) out.push(bits & 255);
  return Uint8Array.from(out);
}

const short = (value: number) => [value & 255, value >> 8];
const text = (words: string) => [...words].map((character) => character.charCodeAt(0));
