import { describe, expect, it } from "vitest";
import { formatFragment, parseFragment } from "../../src/lib/state/view.svelte";

describe("the fragment", () => {
  it("holds the whole view, and gives it back", () => {
    const view = {
      ...parseFragment(""), room: "head" as const, model: "minilm", text: "a&b=c #1 ü <b>\n?", head: "encoder.L3H7", part: 2, pin: 5,
      zoom: { x: 12.5, y: 40.25, scale: 18 }, how: "max" as const, colour: "entropy", sort: "entropy", filter: "previous, L3",
      otherHead: "L1H1", otherRecording: "abc", recording: "def", params: { words: "1", share: "0.8" },
    };
    expect(parseFragment(formatFragment(view))).toEqual(view);
  });

  it("says nothing of what is usual", () => {
    expect(formatFragment(parseFragment(""))).toBe("#/atlas");
  });

  it("takes what it cannot read as not said", () => {
    const view = parseFragment("#/nowhere/%E0%A4%A?pin=-3&part=x&at=1,2&how=all");
    expect([view.room, view.pin, view.part, view.zoom, view.how]).toEqual(["atlas", null, 0, null, "mean"]);
  });

  it("leaves out a text too long for an address", () => {
    expect(formatFragment({ ...parseFragment(""), text: "x".repeat(50_000) })).toBe("#/atlas");
  });
});
