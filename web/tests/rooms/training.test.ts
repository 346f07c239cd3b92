// The pure parts of the room Training: layers of heads, places in a picture, tables.
import { describe, expect, it } from "vitest";
import { indexAt, joined, lineOf, logOf, pathOf, placeOf, rangeOf, tableOf } from "../../src/rooms/training/curves";
import { rowsOf } from "../../src/rooms/experiment/heads";

const steps = Float64Array.of(1, 50, 100, 201);

describe("heads", () => {
  it("are put into their layers, in their order, whatever their stack is called", () => {
    expect(rowsOf(["L0H0", "L0H1", "cross:L0H0", "L12H0"])).toEqual([
      { name: "L0", heads: [{ name: "L0H0", index: 0 }, { name: "L0H1", index: 1 }] },
      { name: "cross:L0", heads: [{ name: "cross:L0H0", index: 2 }] },
      { name: "L12", heads: [{ name: "L12H0", index: 3 }] },
    ]);
    expect(rowsOf([])).toEqual([]);
  });
});

describe("steps", () => {
  it("lie where their number is, between the first and the last", () => {
    expect([0, 1, 101, 201, 500].map((step) => placeOf(step, steps))).toEqual([0, 0, 0.5, 1, 1]);
    expect(placeOf(7, Float64Array.of(7))).toBe(0.5);
  });

  it("are found by the last one that is not after a number", () => {
    expect([0, 1, 49, 50, 99.5, 200, 201, 999].map((step) => indexAt(step, steps))).toEqual([0, 0, 0, 1, 1, 2, 3, 3]);
    expect(indexAt(5, new Float64Array())).toBe(0);
  });
});

describe("a curve", () => {
  it("is drawn from bottom to top, is cut off at the ends of its scale, and breaks where there is no number", () => {
    expect(pathOf(Float32Array.of(0, 10, 20, 5), steps, [0, 10])).toBe("M0.0 100.0L24.5 0.0L49.5 0.0L100.0 50.0");
    expect(pathOf(Float32Array.of(0, NaN, 10, 10), steps, [0, 10])).toBe("M0.0 100.0h2M49.5 0.0L100.0 0.0");
    expect(pathOf(Float32Array.of(NaN, -Infinity, NaN, NaN), steps, [0, 10])).toBe("");
  });

  it("lies where its steps are between the ends of two trainings", () => {
    expect(pathOf(Float32Array.of(0, 10, 20, 5), steps, [0, 10], Float64Array.of(1, 401))).toBe("M0.0 100.0L12.3 0.0L24.8 0.0L50.0 50.0");
    expect(joined([1, 5], [-2, 3])).toEqual([-2, 5]);
  });

  it("has powers of ten on a log scale, and no number where there is none above 0", () => {
    expect(Array.from(logOf(Float32Array.of(1000, 1, 0, -5, NaN)))).toEqual([3, 0, NaN, NaN, NaN]);
  });

  it("has a range of some height, of its finite numbers", () => {
    expect(rangeOf([3, NaN, -2, Infinity])).toEqual([-2, 3]);
    expect(rangeOf([5, 5])).toEqual([4.5, 5.5]);
    expect(rangeOf([0])).toEqual([-0.1, 0.1]);
    expect(rangeOf([NaN])).toEqual([0, 1]);
  });

  it("is a column of the table, empty where there is no number", () => {
    const curves = { steps: Float64Array.of(1, 50), values: Float32Array.of(1.5, 2, NaN, -Infinity), loss: new Float32Array(), exact: true };
    expect(Array.from(lineOf(curves, 1))).toEqual([NaN, -Infinity]);
    expect(tableOf(curves, ["L0H0", "L0H1"])).toEqual([["step", "L0H0", "L0H1"], [1, 1.5, ""], [50, 2, ""]]);
  });
});
