import { describe, expect, it } from "vitest";
import type { WhyWriter } from "../../src/lib/api/types";
import { isAtRivals, leading, named, nats } from "../../src/rooms/head/explain/words";

const writer = (writer: string, share: number, at_rivals: number | null = null): WhyWriter => ({ writer, kind: "head", share, without: 0.5, looks_at: null, at_rivals });
const TABLE = [0.9, 0.7, 0.31, 0.11, 0.05, 0.019, -0.03, -0.4, -1.2].map((share, i) => writer(`L1H${i}`, share));

describe("the writers of a side", () => {
  it("are the four largest for the weight, then the two largest against it", () => {
    expect(leading(TABLE).rows.map(({ share }) => share)).toEqual([0.9, 0.7, 0.31, 0.11, -1.2, -0.4]);
  });
  it("add up with all others, however many are listed", () => {
    for (const table of [TABLE, TABLE.slice(5, 6), []]) {
      const { rows, others, rest } = leading(table);
      const sum = (list: readonly WhyWriter[]) => list.reduce((total, { share }) => total + share, 0);
      expect(sum(rows) + rest).toBeCloseTo(sum(table), 12);
      expect(rows.length + others).toBe(table.length);
    }
  });
  it("leave out what adds next to nothing", () => {
    expect(leading([writer("L0H1", 0.0199), writer("L0H2", -0.0199)]).rows).toEqual([]);
  });
  it("are at the rivals where most of the share was written there", () => {
    expect(isAtRivals(writer("L2H1", -0.5, -0.4))).toBe(true);
    expect(isAtRivals(writer("L2H1", 0.5, 0.2))).toBe(false);
    expect(isAtRivals(writer("L2H1", 0.5))).toBe(false);
  });
});

describe("numbers and tokens", () => {
  it("have a sign, but for nothing", () => {
    expect([1.404, -0.55, 0.004, -0.004].map(nats)).toEqual(["+1.40", "−0.55", "0.00", "0.00"]);
  });
  it("are without their blanks, unless they are nothing else", () => {
    expect([" cat", "␣", "a".repeat(20)].map((token) => named(token, 6))).toEqual(["cat", "␣", "aaaaa…"]);
  });
});
