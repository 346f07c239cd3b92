import { describe, expect, it } from "vitest";
import { apostrophes, spoken } from "../../src/lib/draw/spoken";

describe("sentences of the library", () => {
  it("get ’ for an apostrophe, and neither code nor tags nor quotes change", () => {
    expect(apostrophes("the head's output, all heads' sum; it's 3's")).toBe("the head’s output, all heads’ sum; it’s 3’s");
    expect(apostrophes("say which: 'it#1' or 'the heads' of L3's map")).toBe("say which: 'it#1' or 'the heads' of L3’s map");
    expect(apostrophes("<p title=\"a head's\">a head's <code>x['a'] don't</code></p>")).toBe("<p title=\"a head's\">a head’s <code>x['a'] don't</code></p>");
    expect(apostrophes("1 < 2's and 3 > 2's")).toBe("1 < 2’s and 3 > 2’s");
  });

  it("are set so in an answer, but its texts, names and code stay as they are", () => {
    const answer = {
      said: 'The second "to" asked', text: "it's", because: 'record(lm, keep=("v",)) keeps what a head\'s output needs', tokens: [{ label: "'s" }],
      steps: [{ words: "a layer's map" }], notes: { control: "the plan's" }, words: ["dog's"], data: Float32Array.of(1),
    };
    expect(spoken(answer)).toEqual({
      said: "The second “to” asked", text: "it's", because: 'record(lm, keep=("v",)) keeps what a head’s output needs', tokens: [{ label: "'s" }],
      steps: [{ words: "a layer’s map" }], notes: { control: "the plan’s" }, words: ["dog's"], data: Float32Array.of(1),
    });
  });
});
