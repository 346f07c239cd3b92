import { describe, expect, it } from "vitest";
import type { HeadEffects, Token } from "../../src/lib/api/types";
import { rowsOf } from "../../src/rooms/experiment/heads";
import {
  answerLabel, bandOf, columnsOf, effectRows, effectText, evenColumns, gridSvg, groupStartsOf, moved, pathRows, peakOf, percentAt, pinsIn, ranked, runRows, sharingWords,
} from "../../src/rooms/circuit/effects";

const HEADS = ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1"];
const result: HeadEffects = {
  model: "m & co", what: "out", direction: "denoise", metric: "logit_diff", unit: "logits", clean: 2, corrupted: -1, heads: HEADS, kv_groups: [0, 1, 2, 0, 1],
  effects: [0.1, -0.5, null, 0.004, 0.3], control: [0.2, -0.1, 0.05], beyond: ["L0H1", "L1H1"], verdict: "L0H1 <carries>", then: "", notes: {},
};
const token = (piece: string): Token => ({ piece, text: piece, label: piece, special: false, sink: false, unknown: false, span: null });
const side = (...pieces: string[]) => ({ tokens: pieces.map(token), next: [] });

describe("two texts, token under token", () => {
  it("marks the places that differ", () => {
    const columns = columnsOf({ clean: side("a", "b", "c"), corrupted: side("a", "x", "c"), differs: [1], aligned: true });
    expect(columns.map(({ state }) => state)).toEqual(["same", "differs", "same"]);
    expect(columns[1]!.corrupted!.piece).toBe("x");
  });
  it("sets nothing side by side after the first difference of texts of unlike length", () => {
    const columns = columnsOf({ clean: side("a", "b", "c"), corrupted: side("a", "x", "y", "c"), differs: [1], aligned: false });
    expect(columns.map(({ state }) => state)).toEqual(["same", "differs", "after", "after"]);
    expect(columns[3]).toMatchObject({ clean: null, corrupted: { piece: "c" } });
  });
  it("shows the blanks of an answer", () => {
    expect(answerLabel("  mode")).toBe("␣␣mode");
    expect(answerLabel("\n\tx y")).toBe("↵⇥x y");
  });
});

describe("effects", () => {
  it("are written with their sign, and next to nothing as nothing", () => {
    expect([0.344, -0.02, -0.004, 0, null, NaN].map(effectText)).toEqual(["+0.34", "−0.02", "0.00", "0.00", "none", "none"]);
  });
  it("rank by size, of either sign, and give the scale", () => {
    expect(ranked(result)).toEqual(["L0H1", "L1H1", "L0H0", "L1H0", "L0H2"]);
    expect(peakOf(result.effects)).toBe(0.5);
    expect(bandOf(result.control)).toEqual([-0.1, 0.2]);
    expect(bandOf([])).toBeNull();
    expect([percentAt(0, [-1, 3]), percentAt(9, [-1, 3]), percentAt(1, [1, 1])]).toEqual([25, 100, 50]);
  });
  it("are walked over by keys, from row to row", () => {
    expect(moved(HEADS, "L0H2", "ArrowDown")).toBe("L1H1"); // the row below is shorter
    expect(moved(HEADS, "L0H2", "ArrowRight")).toBe("L1H0");
    expect(moved(HEADS, "L1H0", "ArrowLeft")).toBe("L0H2");
    expect(moved(HEADS, "L1H0", "ArrowUp")).toBe("L0H0");
    expect([moved(HEADS, "L0H0", "ArrowUp"), moved(HEADS, "L1H1", "ArrowRight"), moved(HEADS, "L0H0", "x"), moved(HEADS, "L7H0", "End")]).toEqual([null, null, null, null]);
    expect([moved(HEADS, "L0H1", "Home"), moved(HEADS, "L0H1", "End")]).toEqual(["L0H0", "L1H1"]);
  });
  it("keep those pins of an address that the model has", () => {
    expect(pinsIn("L1H1, L9H9,L0H1", HEADS)).toEqual(["L0H1", "L1H1"]);
    expect(pinsIn("", HEADS)).toEqual([]);
  });
});

describe("what is saved", () => {
  it("is a table of heads, of paths, of a circuit beside random sets", () => {
    expect(effectRows(result)[2]).toEqual(["L0H1", "", 0, 1, -0.5, 1]);
    expect(effectRows(result)).toHaveLength(6);
    expect(pathRows({ head: "L1H0", direction: "noise", paths: [{ sender: "L0H1", channel: "k", effect: 0.2 }], words: "", notes: {} })[1]).toEqual(["L0H1", "L1H0", "k", 0.2]);
    const run = { heads: ["L0H1", "L1H0"], costs: [1, 2], kept: 0.9, left: 0.1, random_kept: [0.2, 0.3], random_left: [0.7, 0.8], keep: null, num_heads: 5, words: "", then: "", notes: {} };
    expect(runRows(run)).toEqual([["set", "keeps", "left_without"], ["L0H1 L1H0", 0.9, 0.1], ["random 1", 0.2, 0.7], ["random 2", 0.3, 0.8]]);
  });
  it("is a picture that says its scale and its controls, with all texts escaped", () => {
    const svg = gridSvg(result, ["L1H0"], false);
    expect(svg).toContain("L0H1 &lt;carries&gt;");
    expect(svg).toContain("m &amp; co");
    expect(svg).toContain("−0.50 to +0.50, 0 is paper");
    expect(svg).toContain("controls −0.10 to +0.20");
    expect(svg.match(/<rect /g)).toHaveLength(1 + HEADS.length);
    expect(svg.match(/stroke-width="2.5"/g)).toHaveLength(1);
    expect(svg.match(/stroke-width="1.5"/g)).toHaveLength(2);
    expect(gridSvg(result, [], true)).not.toBe(svg);
  });
});

describe("heads that share one key/value head", () => {
  const rows = rowsOf(["L0", "L1"].flatMap((layer) => [0, 1, 2, 3, 4, 5].map((index) => `${layer}H${index}`)));
  const groups = [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1];
  it("begin a group, and are said in words", () => {
    expect([...groupStartsOf(rows, groups)]).toEqual(["L0H3", "L1H3"]);
    expect(sharingWords(rows, groups)).toBe("3 query heads share one key/value head");
    const all = groups.map(() => 0);
    expect([groupStartsOf(rows, all).size, sharingWords(rows, all)]).toEqual([0, "6 query heads share one key/value head"]);
  });
  it("are not told of where each head has its own", () => {
    const own = groups.map((_, i) => i % 6);
    expect([groupStartsOf(rows, own).size, sharingWords(rows, own)]).toEqual([0, ""]);
    expect(groupStartsOf(rows, [...own.slice(0, 6), ...groups.slice(6)])).toEqual(new Set(["L1H3"]));
    expect(sharingWords(rows, [...own.slice(0, 6), ...groups.slice(6)])).toBe(""); // layers differ: no one number says it
  });
  it("stand apart in the picture", () => {
    const shared = { ...result, heads: rows.flatMap((row) => row.heads.map(({ name }) => name)), kv_groups: groups, effects: groups.map((_, i) => i / 20) };
    const places = [...gridSvg(shared, [], false).matchAll(/<rect x="([\d.]+)"[^>]*><title>L0H/g)].map(([, x]) => Number(x));
    const steps = places.slice(1).map((x, i) => x - places[i]!);
    expect(steps).toEqual([46, 46, 54, 46, 46]);
    expect(gridSvg(shared, [], false)).toContain("3 query heads share one key/value head");
  });
});

describe("a phone's grid", () => {
  it("has as many heads in each row, and never a short last one", () => {
    expect([6, 8, 9, 10, 12, 14, 16, 32].map(evenColumns)).toEqual([6, 8, 9, 5, 6, 7, 8, 8]);
    for (let heads = 1; heads <= 64; heads++) expect(evenColumns(heads) * Math.ceil(heads / evenColumns(heads)) - heads).toBeLessThan(Math.ceil(heads / 8) + 1);
  });
});
