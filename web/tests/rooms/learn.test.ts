// Stored points, and values of live cells.
import { describe, expect, it } from "vitest";
// @ts-expect-error a script of the build, without types
import { typeset } from "../../dev/formulas.mjs";
import stored from "../../../src/manyheads/lab/lessons/formulas.mathml.json?raw";
import type { Store } from "../../src/lib/state/storage";
import {
  digitsByColumn, digitsOf, firstStop, hasNegative, inQuotes, looksAt, partInWords, shapeInWords, stepAbout, stepNamed, tiedAtTop,
  traced, withChange, written, type FillingParameter,
} from "../../src/rooms/learn/cell";
import { foldAt, rowsOf, type Part } from "../../src/rooms/learn/lesson";
import { savedVerdict, storedCell, type SavedLessons } from "../../src/lib/api/saved-lessons";
import {
  numAnswered, pointsLeft, pointsOf, readPoints, readTicks, readTries, savePoints, saveTicks, saveTries, withPoints, withTicks, withTry, wrongOf,
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
  it("a cell that runs by itself shows the step that its title names", () => {
    const labels = ["heads", "W_O", "parts", "sum", "concat W_O"];
    expect(stepNamed(labels, "Three heads, and the sum of their parts")).toBe(3);
    expect(stepNamed(labels, "Two HEADS, one layer")).toBe(0);
    expect(stepNamed(labels, "Apartment, summing")).toBe(0);
    expect(stepNamed([], "None")).toBe(0);
  });
});

describe("formulas", () => {
  it("are typeset as their TeX says: else npm run formulas", () => {
    expect(stored).toBe(typeset());
  });
});

describe("tries", () => {
  it("are kept by a question's inputs, and other inputs are another question", () => {
    const store = memory();
    saveTries(store, withTry(withTry({}, "one", "a", "[1]", 1), "one", "a", "[1]", 2));
    const tries = readTries(store);
    expect([wrongOf(tries, "one", "a", "[1]"), wrongOf(tries, "one", "a", "[2]"), wrongOf(tries, "two", "a", "[1]")]).toEqual([2, 0, 0]);
    expect([0, 1, 2, 3].map((wrong) => pointsLeft([2, 1], wrong))).toEqual([2, 1, 0, 0]);
    for (const text of ["{", '{"one": {"a": 3}}', '{"one": {"a": {"inputs": 1, "wrong": 2}}}']) {
      expect(Object.values(readTries({ getItem: () => text, setItem: () => undefined })).flatMap(Object.keys)).toEqual([]);
    }
  });
});

const prose = (html: string): Part => ({ kind: "prose", html });
const check = (name: string, cell: string | null = null): Part => ({
  kind: "check", check: name, question: "?", answer: "number", choices: [], points: 2, worth: [2, 1], inputs: {}, cell, computed_by: "",
});
const cell = (name: string, wide = false): Part => ({ kind: "cell", cell: name, title: name, parameters: [], at_once: false, wide, code: [], page_part: "", computed_by: "" });

describe("how much of a lesson is open", () => {
  const parts = [prose("a"), check("one"), check("two", "x"), prose("b"), cell("x"), prose("c"), check("three"), prose("d")];
  const open = (...done: string[]) => foldAt(parts, (part) => part.kind === "check" && done.includes(part.check));
  it("up to the first question that is not done with; its cell, and questions that follow it, with it", () => {
    expect([open(), open("one"), open("two"), open("one", "two"), open("one", "two", "three")]).toEqual([5, 5, 5, 7, 8]);
    expect(foldAt([prose("a"), check("one"), prose("b")], () => false)).toBe(2);
    expect(foldAt([prose("a")], () => false)).toBe(1);
  });
});

describe("the rows of a lesson", () => {
  it("text stands beside its cell; a heading, another cell or a wide one begins a new row", () => {
    const rows = rowsOf([prose("a<h2>B</h2>b"), check("one"), cell("x"), prose("c<h2>D</h2>d"), cell("y"), cell("z"), cell("w", true), prose("e")]);
    expect(rows.map(({ pieces }) => pieces.map(({ part }) => (part.kind === "prose" ? part.html : part.kind === "cell" ? part.cell : "?")))).toEqual([
      ["a"], ["<h2>B</h2>b", "?", "x", "c"], ["<h2>D</h2>d", "y"], ["z"], ["w"], ["e"],
    ]);
    expect(rows.map(({ wide, beside }) => [wide, beside?.key ?? null])).toEqual([
      [false, null], [false, "2"], [false, "4"], [false, "5"], [true, null], [false, null],
    ]);
    expect(new Set(rows.flatMap(({ pieces }) => pieces.map(({ key }) => key))).size).toBe(10);
  });
});

describe("a number of a product", () => {
  const shown = (label: string, values: number[][]) => ({
    label, words: "", values, shape: [values.length, values[0]!.length], row_labels: values.map((_, i) => `r${i}`), column_labels: values[0]!.map((_, i) => `c${i}`), as_map: false,
  });
  const all = [shown("X", [[1, 2], [3, 4]]), shown("Q, head 0", [[1, 0.5], [2, -1]]), shown("K, head 0", [[2, 4], [3, 1]]), shown("W_O", [[1, 5], [7, 2]])];
  const code = [{ name: "NumPy", lines: [
    { text: "scores = q @ k.T / np.sqrt(2)", steps: ["scores"] }, { text: "out = x @ w_o", steps: ["out"] }, { text: "y = exp(x)", steps: ["y"] },
  ] }];
  it("is traced to a row and a column, turned where the code turns it, and to what else is done", () => {
    expect(traced(all, shown("scores, head 0", [[2.828, 2.475], [0, 3.536]]), code, 1, 1)).toBe(
      "Q, head 0 row r1 · K, head 0 row r1 = 2 × 3 + −1 × 1 = 5, then 3.536",
    );
    expect(traced(all, shown("out", [[15, 9], [31, 23]]), code, 0, 1)).toBe("X row r0 · W_O column c1 = 1 × 5 + 2 × 2 = 9");
    expect(traced(all, shown("y", [[1]]), code, 0, 0)).toBe("");
    expect(traced([all[0]!], shown("out", [[15, 9]]), code, 0, 1)).toBe("");
  });
});

describe("lessons of a saved page", () => {
  const result = (words: string) => ({ lesson: "l", cell: "x", words, shown: [], links: [], flow: [], cards: [], chart: [], frames: [], headlines: [], marked: [], born: null });
  const parameter = (name: string, kind: "choice" | "number", value: string | number, fills = {}) => ({ name, label: name, kind, value, low: null, high: null, step: null, choices: [], fills, whole: false });
  const asked = { ...check("one"), worth: [2, 1] } as Part;
  const saved = {
    entries: [], lessons: { l: { slug: "l", title: "", summary: "", minutes: 1, sources: [], seed: null, language: "en", languages: ["en"], parts: [
      { ...cell("x"), parameters: [parameter("way", "choice", "a", { b: { width: "9" } }), parameter("width", "number", 3)] } as Part, asked,
    ] } },
    cells: { "l/x": result("a"), "l/x?way=b": result("b") },
    scenes: {}, checks: { "l/one": { unit: "", tolerance: 0, known: [{ answer: 4, right: true, points: 2, words: "Right. So.", answered: true, solution: "" }],
      otherwise: { right: false, points: 0, words: "Not yet. Think.", answered: true, solution: "" }, hint: "Think.", solution: "4. So." } },
  } as SavedLessons;
  it("have a result for each choice, and compute no other number", () => {
    expect(storedCell(saved, "l", "x", { way: "a", width: 3 }).words).toBe("a");
    expect(storedCell(saved, "l", "x", { way: "b", width: 9 }).words).toBe("b");
    expect(() => storedCell(saved, "l", "x", { way: "a", width: 4 })).toThrow("“width” = 3. To compute others: manyheads studio");
    expect(() => storedCell(saved, "l", "x", { way: "b", width: 9 }, false)).toThrow("“way” = a");
  });
  it("halve the points after a wrong answer or the hint, and show the solution after two", async () => {
    const ask = async (answer: string, num_wrong = 0, show: "verdict" | "hint" | "solution" = "verdict") =>
      savedVerdict(saved, "l", "one", { answer, inputs: {}, cell: {}, num_wrong, show });
    const points = await Promise.all([0, 1, 2].map(async (wrong) => (await ask("4", wrong)).points));
    expect(points).toEqual([2, 1, 0]);
    expect([(await ask("5")).solution, (await ask("5", 1)).solution, (await ask("nothing", 1)).solution]).toEqual(["", "4. So.", ""]);
    expect([(await ask("", 0, "hint")).words, (await ask("", 0, "solution")).solution]).toEqual(["Think.", "4. So."]);
  });
});
