import { describe, expect, it, vi } from "vitest";
import { formatFragment, packText, parseFragment, unpackText, View } from "../../src/lib/state/view.svelte";

describe("the fragment", () => {
  it("holds the whole view, and gives it back", () => {
    const view = {
      ...parseFragment(""), room: "head" as const, model: "minilm", text: "a&b=c #1 ü <b>\n?", head: "encoder.L3H7", part: 2, pin: 5,
      fromWord: 10, toWord: 0, zoom: { x: 12.5, y: 40.25, scale: 18 }, how: "max" as const, colour: "entropy", sort: "entropy", filter: "previous, L3",
      otherHead: "L1H1", otherRecording: "abc", recording: "def", params: { words: "1", share: "0.8" },
    };
    expect(parseFragment(formatFragment(view))).toEqual(view);
  });

  it("says nothing of what is usual", () => {
    expect(formatFragment(parseFragment(""))).toBe("#/atlas");
  });

  it("says what it cannot read, and leaves it out", () => {
    const view = parseFragment("#/nowhere/%E0%A4%A?pin=-3&part=x&at=1,2&how=all&from=it");
    expect([view.room, view.pin, view.part, view.zoom, view.how, view.fromWord]).toEqual(["atlas", null, 0, null, "mean", null]);
    expect(view.unread[0]).toBe("There is no room “nowhere”: this is the Atlas.");
    expect(view.unread.slice(1).map((words) => words.split("=")[0])).toEqual(["pin", "part", "at", "how", "from"]);
    expect(parseFragment("#/size/nope")).toMatchObject({ head: null, unread: [expect.stringMatching("“nope” in the address is not a head")] });
    expect(parseFragment("#/learn/one-head")).toMatchObject({ room: "learn", head: null, params: { lesson: "one-head" }, unread: [] });
    expect(parseFragment("#/compare/decoder.cross:L1H2").unread).toEqual([]);
    expect(parseFragment("#/head/L1H2?pin=3&how=max&at=1,2,3&from=0").unread).toEqual([]);
  });

  it("holds a long text packed, and without its packing leaves it out", async () => {
    const text = "Ein längerer Text: שלום, \u{1f600}, and so on. ".repeat(300);
    const packed = await packText(text);
    const fragment = formatFragment({ ...parseFragment(""), text, packed });
    expect(fragment.length).toBeLessThan(text.length / 10);
    expect(fragment).toBe(`#/atlas?z=${packed}`); // no letter of it needs another one in an address
    expect(await unpackText(parseFragment(fragment).packed!)).toBe(text);
    await expect(unpackText(packed.slice(0, 40))).rejects.toThrow();
    expect(formatFragment({ ...parseFragment(""), text })).toBe("#/atlas");
  });

  it("names the recording where a text is too long even when packed", async () => {
    const place = { hash: "" };
    vi.stubGlobal("location", place);
    for (const name of ["addEventListener", "removeEventListener"]) vi.stubGlobal(name, () => undefined);
    vi.stubGlobal("history", { pushState: () => undefined, replaceState: () => undefined });
    const view = new View(true);
    view.go({ model: "minilm", text: "a short text" });
    await view.name("c0ffee");
    expect([view.packed, view.recording]).toEqual([null, null]);
    view.text = "so long, ".repeat(400);
    await view.name("c0ffee");
    expect(await unpackText(view.packed!)).toBe(view.text);
    let state = 1; // letters without an order: they do not get smaller
    const letters = Array.from({ length: 12_000 }, () => String.fromCharCode(97 + ((state = (state * 48_271) % 2_147_483_647) % 26)));
    [view.text, view.packed] = [letters.join(""), null];
    await view.name("c0ffee");
    expect([view.packed, view.recording]).toEqual([null, "c0ffee"]);
    view.destroy();
    vi.unstubAllGlobals();
  });
});
