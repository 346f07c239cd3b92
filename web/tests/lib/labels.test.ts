import { describe, expect, it } from "vitest";
import { rulerLabels } from "../../src/lib/draw/labels";

const tokens = ["[CLS]", "un", "##believ", "##able", "cats", "."].map((piece, i) => ({ piece, text: i ? piece.replace("##", "") : "", special: !i, sink: !i, unknown: false }));
const words = [{ begin: 1, end: 4, text: "unbelievable" }, { begin: 4, end: 5, text: "cats" }, { begin: 5, end: 6, text: "." }];

describe("ruler labels", () => {
  it("name every token where there is room", () => {
    expect(rulerLabels(6, 0, 20, 200, 15, tokens, null).map((label) => label.text)).toEqual(["[CLS]", "un", "believ", "able", "cats", "."]);
  });

  it("name words at their first piece, with the stretch of all of them, and what belongs to no word", () => {
    const labels = rulerLabels(6, 0, 20, 200, 15, tokens, words);
    expect(labels.map((label) => [label.text, label.middle])).toEqual([["[CLS]", 10], ["unbelievable", 30], ["cats", 90], [".", 110]]);
    expect(labels.map((label) => label.stretch)).toEqual([null, [20, 80], null, null]);
  });

  it("are positions alone without tokens, and thinned where crowded", () => {
    expect(rulerLabels(100, 0, 2, 200, 15, null, null).map((label) => [label.position, label.text])[1]).toEqual([10, ""]);
  });
});
