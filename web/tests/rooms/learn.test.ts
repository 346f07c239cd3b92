// Stored points, and values of live cells.
import { describe, expect, it } from "vitest";
// @ts-expect-error a script of the build, without types
import { typeset } from "../../dev/formulas.mjs";
import stored from "../../../src/manyheads/lab/lessons/formulas.mathml.json?raw";
import type { Store } from "../../src/lib/state/storage";
import {
  digitsByColumn, digitsOf, firstStop, hasNegative, inQuotes, looksAt, partInWords, shapeInWords, stepAbout, tiedAtTop,
  withChange, written, type FillingParameter,
} from "../../src/rooms/learn/cell";
import {
  numAnswered, pointsOf, readPoints, readTicks, savePoints, saveTicks, withPoints, withTicks,
} from "../../src/rooms/learn/progress";

const memory = (): Store => {
  const values = new Map<string, string>();
  return { getItem: (key) => values.get(key) ?? null, setItem: (key, value) => void values.set(key, value) };
};

describe("points", () => {
  it("what was reached stays reached, and is read as it was kept", () => {
    const store = memory();
    let points = withPoints({}, "one", "a", 2);
    points = withPoints(points, "one", "a", 0);
    points = withPoints(points, "two", "b", 3);
    savePoints(store, points);
    expect(readPoints(store)).toEqual({ one: { a: 2 }, two: { b: 3 } });
    expect([pointsOf(points), pointsOf(points, "two"), numAnswered(points, "one", { a: 2, gone: 1 })]).toEqual([5, 3, 1]);
  });
  it("ticks are kept beside them, each in its point's own words", () => {
    const store = memory();
    savePoints(store, withPoints({}, "one", "a", 2));
    saveTicks(store, withTicks(withTicks({}, "one", "b", ["this", "that"]), "one", "b", ["that"]));
    expect([readPoints(store), readTicks(store)]).toEqual([{ one: { a: 2 } }, { one: { b: ["that"] } }]);
    for (const text of ["{", '{"one": {"b": "that"}}', '{"one": {"b": [3]}}']) {
      expect(Object.values(readTicks({ getItem: () => text, setItem: () => undefined })).flatMap(Object.keys)).toEqual([]);
    }
  });
  it("damage is survived", () => {
    for (const text of ["{", "[]", "null", '{"one": 3}', '{"one": {"a": "x"}}']) {
      expect(pointsOf(readPoints({ getItem: () => text, setItem: () => undefined }))).toBe(0);
    }
    expect(readPoints(null)).toEqual({});
  });
});

describe("a map's row", () => {
  it("its largest weights first, what is not visible left out", () => {
    expect(looksAt([0.1, null, 0.6, 0.3], ["a", "b", "c", "d"], 2)).toEqual([["c", 0.6], ["d", 0.3]]);
    expect(looksAt([null], ["a"], 2)).toEqual([]);
  });
});

describe("values", () => {
  it("shapes in words", () => {
    expect([shapeInWords([12, 64]), shapeInWords([7]), shapeInWords([])]).toEqual(["12 × 64", "7", "one number"]);
    expect(partInWords({ shape: [100, 64], values: [[1, 2], [3, 4]] })).toBe("2 × 2 of it shown");
    expect(partInWords({ shape: [2], values: [[1, 2]] })).toBe("");
  });
  it("digits so that a column lines up", () => {
    expect([digitsOf([[1, 2]]), digitsOf([[0.5]]), digitsOf([[12.5]]), digitsOf([[0.001]]), digitsOf([[null]])]).toEqual([
      0, 3, 1, 5, 0,
    ]);
    expect([written(-1.25, 2), written(null, 2)]).toEqual(["−1.25", "·"]);
  });
  it("of either sign are told from those of one", () => {
    expect([hasNegative([[-2, 1, null]]), hasNegative([[0, 1]])]).toEqual([true, false]);
  });
});

describe("a slider", () => {
  it("stops at the value that its parameter has, and at nothing below the least", () => {
    const at = (value: number, low: number | null, step: number | null) => firstStop({ value, low, step });
    expect([at(512, 1, 64), at(2048, 1, 64), at(65, 1, 64), at(6, 0, 0.5), at(0.3, 0, 0.1), at(5, 2, null), at(5, null, 1)]).toEqual([
      64, 64, 1, 0, expect.closeTo(0), 2, undefined,
    ]);
  });
});

describe("choices that fill boxes", () => {
  const parameters: FillingParameter[] = [
    { name: "weights", choices: ["head 0", "head 1", "my own"], fills: { "head 0": { w: "1 0" }, "head 1": { w: "0 1" } } },
    { name: "w", choices: [], fills: {} },
    { name: "x", choices: [], fills: {} },
  ];
  const [weights, w, x] = parameters as [FillingParameter, FillingParameter, FillingParameter];
  const start = { weights: "head 0", w: "1 0", x: "5" };
  it("fill theirs; a change in one of these is the reader's own", () => {
    expect(withChange(parameters, start, weights, "head 1")).toEqual({ weights: "head 1", w: "0 1", x: "5" });
    expect(withChange(parameters, start, w, "9 9")).toEqual({ weights: "my own", w: "9 9", x: "5" });
    expect(withChange(parameters, start, x, "6")).toEqual({ ...start, x: "6" });
    expect(withChange(parameters, { ...start, w: "9 9" }, weights, "my own")).toEqual({ weights: "my own", w: "9 9", x: "5" });
  });
});

describe("what is said of a value", () => {
  it("columns of a small table have three figures each, maps and wide ones the same everywhere", () => {
    expect(digitsByColumn([[80, 85.9], [1.25, 1.342]])).toEqual([2, 2]);
    expect(digitsByColumn([[1, 0.5], [2, 0.25]])).toEqual([0, 3]);
    expect(digitsByColumn([[80, 85.9], [1.25, 1.342]], true)).toEqual([1, 1]);
  });
  it("tokens are quoted, ties counted, and a question's step found", () => {
    expect([inQuotes("cat"), inQuotes("token 2"), inQuotes(".")]).toEqual(["‘cat’", "token 2", "‘.’"]);
    expect([tiedAtTop([0.5, null, 0.5]), tiedAtTop([0.2, 0.8])]).toEqual([2, 1]);
    expect(stepAbout(["L0H2", "L2H8"], [4, "L2H8"])).toBe(1);
    expect(stepAbout(["L0H0", "L1H0, with L0H0"], ["with L0H0"])).toBe(1);
    expect(stepAbout(["weights"], ["MQA", 2])).toBeNull();
  });
});

describe("formulas", () => {
  it("are typeset as their TeX says: else npm run formulas", () => {
    expect(stored).toBe(typeset());
  });
});
