// Sets of heads in words and back.
import { describe, expect, it } from "vitest";
import {
  allHeads, countInWords, headsBetween, headsInWords, headsNamed, headsOfColumn, placeOf,
} from "../../src/rooms/experiment/heads";

const layers = Array.from({ length: 5 }, (_, layer) => ({ stack: "", layer, num_heads: 7 }));
const two = [
  { stack: "encoder", layer: 0, num_heads: 3 },
  { stack: "encoder", layer: 1, num_heads: 3 },
  { stack: "cross", layer: 0, num_heads: 2 },
];

describe("heads in words", () => {
  const cases: [string[], string][] = [
    [[], ""],
    [["L3H2"], "L3H2"],
    [["L3H2", "L3H3", "L3H4", "L3H6"], "L3H2-4, L3H6"],
    [allHeads(layers), "L*"],
    [allHeads(layers.slice(1, 4)), "L1-3"],
    [headsOfColumn(layers, "", 6), "L*H6"],
    [["L1H0", "L2H0"], "L1-2H0"],
    [[...allHeads(layers.slice(1, 2)), "L0H1"], "L0H1, L1"],
  ];
  it.each(cases)("%j", (ticked, words) => {
    expect(headsInWords(new Set(ticked), layers)).toBe(words);
    if (words) expect([...(headsNamed(words, layers) ?? [])].sort()).toEqual([...ticked].sort());
  });

  it("names the stack where there are several", () => {
    const ticked = new Set(["encoder:L0H0", "encoder:L1H0", "cross:L0H0", "cross:L0H1"]);
    expect(headsInWords(ticked, two)).toBe("encoder:L*H0, cross:L*");
    expect(headsNamed("encoder:L*H0, cross:L*", two)).toEqual(ticked);
  });

  it("a column is not everywhere where a pruned layer lacks it", () => {
    const pruned = [...layers.slice(0, 4), { stack: "", layer: 4, num_heads: 2 }];
    const ticked = new Set(headsOfColumn(pruned, "", 3));
    expect(headsNamed(headsInWords(ticked, pruned), pruned)).toEqual(ticked);
  });

  it("what is no set of heads is null", () => {
    for (const text of ["", "layer 3", "L9H1", "L3H99", "L3H", "encoder:L0"]) expect(headsNamed(text, layers)).toBeNull();
  });
});

describe("places", () => {
  it("a rectangle between two heads, whichever comes first", () => {
    const expected = ["L1H2", "L1H3", "L2H2", "L2H3"];
    expect(headsBetween(layers, "L1H2", "L2H3")).toEqual(expected);
    expect(headsBetween(layers, "L2H2", "L1H3")).toEqual(expected);
  });
  it("reads a name", () => {
    expect(placeOf("cross:L10H2")).toEqual({ stack: "cross", layer: 10, index: 2 });
    expect(placeOf("L1")).toBeNull();
  });
  it("counts in words", () => {
    expect([countInWords(1, 35), countInWords(3, 35), countInWords(35, 35)]).toEqual(["1 head", "3 heads", "all 35 heads"]);
  });
});
