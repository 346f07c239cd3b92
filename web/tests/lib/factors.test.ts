// Numbers as a page without a server keeps them: planes of bytes, the highest first.
import { expect, test } from "vitest";
import { numbersOf, rowsOf } from "../../src/lib/exact/factors";

function planes(bytes: Uint8Array, size: number) {
  const count = bytes.length / size;
  const data = new Uint8Array(bytes.length);
  for (let i = 0; i < count; i++) for (let b = 0; b < size; b++) data[b * count + i] = bytes[i * size + (size - 1 - b)]!;
  return { name: "q0", dtype: "uint8", shape: [size, count], data };
}

test("float16 is read at its ends: zeros, the smallest, the largest, and what is not a number", () => {
  const bits = new Uint16Array([0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xbc01, 0x7bff, 0x7c00, 0xfc00, 0x7e00]);
  const want = [0, -0, 2 ** -24, 1023 * 2 ** -24, 2 ** -14, 1, -1.0009765625, 65504, Infinity, -Infinity, NaN];
  expect([...numbersOf(planes(new Uint8Array(bits.buffer), 2))]).toEqual(want);
});

test("float32 comes back bit for bit", () => {
  const want = new Float32Array([0, -0, 1e-45, Math.PI, -123456.789, 3.4e38, -Infinity]);
  expect([...numbersOf(planes(new Uint8Array(want.buffer), 4))]).toEqual([...want]);
});

test("matrices that are kept by columns come back by rows, head by head", () => {
  const heads = [[[1, 2, 3], [4, 5, 6]], [[-7, 8, 9], [10, -11, 0.5]]]; // 2 heads, 2 rows, 3 wide
  const columns = heads.flatMap((rows) => [0, 1, 2].flatMap((x) => rows.map((row) => row[x]!)));
  const kept = { ...planes(new Uint8Array(new Float32Array(columns).buffer), 4), shape: [4, 2, 3, 2] };
  expect([...rowsOf(kept)]).toEqual(heads.flat(2));
});
