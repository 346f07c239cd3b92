// A GIF read back by a reader that shares no code with the writer.
import { describe, expect, it } from "vitest";
import { GifWriter } from "../../src/play/gif";

interface Read {
  width: number;
  height: number;
  /** Each picture whole, as RGB. */
  frames: number[][][];
  delays: number[];
}

function read(bytes: Uint8Array): Read {
  const two = (at: number) => bytes[at]! + 256 * bytes[at + 1]!;
  expect(String.fromCharCode(...bytes.slice(0, 6))).toBe("GIF89a");
  const [width, height] = [two(6), two(8)];
  const palette = Array.from({ length: 256 }, (_, i) => [...bytes.slice(13 + 3 * i, 16 + 3 * i)]);
  const canvas: number[][] = Array.from({ length: width * height }, () => []);
  const [frames, delays]: [number[][][], number[]] = [[], []];
  let at = 13 + 768;
  let through = -1;
  while (bytes[at] !== 0x3b) {
    if (bytes[at] === 0x21) {
      if (bytes[at + 1] === 0xf9) {
        delays.push(two(at + 4));
        through = bytes[at + 6]!;
      }
      for (at += 2; bytes[at]; at += bytes[at]! + 1);
      at += 1;
      continue;
    }
    expect(bytes[at]).toBe(0x2c);
    const [left, top, w, h] = [two(at + 1), two(at + 3), two(at + 5), two(at + 7)];
    const bits: number[] = [];
    for (at += 11; bytes[at]; at += bytes[at]! + 1) {
      for (const byte of bytes.slice(at + 1, at + 1 + bytes[at]!)) for (let bit = 0; bit < 8; bit++) bits.push((byte >> bit) & 1);
    }
    at += 1;
    numbers(bits).forEach((colour, i) => {
      if (colour !== through) canvas[(top + Math.floor(i / w)) * width + left + (i % w)] = palette[colour]!;
    });
    expect(numbers(bits)).toHaveLength(w * h);
    frames.push([...canvas]);
  }
  return { width, height, frames, delays };
}

/** The textbook's reader of Lempel, Ziv and Welch: a table of whole strings. */
function numbers(bits: number[]): number[] {
  const out: number[] = [];
  let table: number[][] = [];
  let [size, before, place]: [number, number[] | null, number] = [9, null, 0];
  for (;;) {
    let code = 0;
    for (let bit = 0; bit < size; bit++) code += bits[place++]! << bit;
    if (code === 257) return out;
    if (code === 256) {
      table = Array.from({ length: 258 }, (_, i) => [i]);
      [size, before] = [9, null];
      continue;
    }
    const entry: number[] = table[code] ?? [...before!, before![0]!];
    out.push(...entry);
    if (before && table.length < 4096) table.push([...before, entry[0]!]);
    before = entry;
    if (table.length === 2 ** size && size < 12) size += 1;
  }
}

/** Random pixels of so many colours, as RGBA. */
function noise(count: number, colours: number[][]): Uint8ClampedArray {
  return Uint8ClampedArray.from(Array.from({ length: count }, () => [...colours[Math.floor(Math.random() * colours.length)]!, 255]).flat());
}

const rgb = (pixels: Uint8ClampedArray) => Array.from({ length: pixels.length / 4 }, (_, i) => [...pixels.slice(4 * i, 4 * i + 3)]);

describe("a GIF", () => {
  it("has every pixel of every picture, however long its table of codes becomes", () => {
    const [width, height] = [131, 97];
    const colours = Array.from({ length: 240 }, (_, i) => [i, (7 * i) % 256, 255 - i]);
    const first = noise(width * height, colours);
    const second = first.slice();
    second.set(noise(23 * width, colours), 4 * 31 * width);
    const flat = Uint8ClampedArray.from({ length: 4 * width * height }, (_, i) => [...colours[17]!, 255][i % 4]!);
    const gif = new GifWriter(width, height, [first, flat]);
    [first, second, second, flat].forEach((pixels, i) => gif.add(pixels, 8 + i));
    const shown = read(gif.end());
    expect([shown.width, shown.height, shown.delays]).toEqual([width, height, [8, 9, 10, 11]]);
    [first, second, second, flat].forEach((pixels, i) => expect(shown.frames[i]).toEqual(rgb(pixels)));
  });

  it("comes near to colours when there are too many", () => {
    const colours = Array.from({ length: 4000 }, () => Array.from({ length: 3 }, () => Math.floor(Math.random() * 256)));
    const pixels = noise(61 * 47, colours);
    const gif = new GifWriter(61, 47, [pixels]);
    gif.add(pixels, 8);
    const [shown] = read(gif.end()).frames;
    const off = rgb(pixels).flatMap((colour, i) => colour.map((value, channel) => Math.abs(value - shown![i]![channel]!)));
    expect(off.reduce((sum, value) => sum + value, 0) / off.length).toBeLessThan(25);
  });
});
