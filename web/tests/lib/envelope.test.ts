import { describe, expect, it } from "vitest";
import { float32, parseEnvelope } from "../../src/lib/api/envelope";

/** An envelope as the server makes it, by hand: "MHB1", length, padded header, arrays at multiples of 8. */
function packed(header: object, arrays: [string, Float32Array | Uint8Array, number[]][]): ArrayBuffer {
  let offset = 0;
  const list = arrays.map(([name, data, shape]) => {
    const entry = { name, dtype: data instanceof Uint8Array ? "uint8" : "float32", shape, offset };
    offset = Math.ceil((offset + data.byteLength) / 8) * 8;
    return entry;
  });
  let text = JSON.stringify({ ...header, arrays: list });
  const bytes = new TextEncoder().encode(text).length;
  text += " ".repeat((8 - ((8 + bytes) % 8)) % 8);
  const head = new TextEncoder().encode(text);
  const out = new Uint8Array(8 + head.length + offset);
  out.set([77, 72, 66, 49]);
  new DataView(out.buffer).setUint32(4, head.length, true);
  out.set(head, 8);
  arrays.forEach(([, data], i) => out.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), 8 + head.length + list[i]!.offset));
  return out.buffer;
}

describe("an envelope", () => {
  const buffer = packed({ words: "mean of 4 x 4 cells · ü", exact: false }, [
    ["maps", new Uint8Array([1, 2, 255]), [1, 3]],
    ["values", new Float32Array([0.25, NaN, 1e-9, 3]), [2, 2]],
  ]);

  it("gives its arrays by name, and its words", () => {
    const found = parseEnvelope(buffer);
    expect(found.header.words).toBe("mean of 4 x 4 cells · ü");
    expect(found.header.exact).toBe(false);
    expect(Array.from(found.arrays["maps"]!.data)).toEqual([1, 2, 255]);
    const { data, shape } = float32(found, "values");
    expect(Array.from(data)).toEqual([0.25, NaN, Math.fround(1e-9), 3]);
    expect(shape).toEqual([2, 2]);
  });

  it("says what is wrong with others", () => {
    expect(() => parseEnvelope(new TextEncoder().encode("PK\u0003\u0004zip file").buffer as ArrayBuffer)).toThrow(/not an MHB1 envelope/);
    expect(() => parseEnvelope(buffer.slice(0, 40))).toThrow(/cut off/);
    expect(() => float32(parseEnvelope(buffer), "maps")).toThrow(/expected float32 maps, got maps, values/);
  });
});
