import { describe, expect, it } from "vitest";
import { float32, parseEnvelope } from "../../src/lib/api/envelope";
import { envelope as packed } from "./saved";

describe("an envelope", () => {
  const buffer = packed({ words: "mean of 4 x 4 cells · ü", exact: false }, {
    maps: [new Uint8Array([1, 2, 255]), [1, 3]],
    values: [new Float32Array([0.25, NaN, 1e-9, 3]), [2, 2]],
  }).buffer as ArrayBuffer;

  it("gives its arrays by name, and its words", () => {
    const envelope = parseEnvelope(buffer);
    expect(envelope.header.words).toBe("mean of 4 x 4 cells · ü");
    expect(envelope.header.exact).toBe(false);
    expect(Array.from(envelope.arrays["maps"]!.data)).toEqual([1, 2, 255]);
    const { data, shape } = float32(envelope, "values");
    expect(Array.from(data)).toEqual([0.25, NaN, Math.fround(1e-9), 3]);
    expect(shape).toEqual([2, 2]);
  });

  it("says what is wrong with others", () => {
    expect(() => parseEnvelope(new TextEncoder().encode("PK\u0003\u0004zip file").buffer as ArrayBuffer)).toThrow(/not an MHB1 envelope/);
    expect(() => parseEnvelope(buffer.slice(0, 40))).toThrow(/cut off/);
    expect(() => float32(parseEnvelope(buffer), "maps")).toThrow(/expected float32 maps, got maps, values/);
  });
});
