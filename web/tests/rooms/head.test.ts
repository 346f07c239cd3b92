import { describe, expect, it } from "vitest";
import type { Token } from "../../src/lib/api/types";
import { lineStyles, linkWords, tellingRow } from "../../src/rooms/head/head";
import { largest } from "../../src/rooms/head/row.svelte";
import { heardByPlace, type Said } from "../../src/rooms/head/said";
import { ROLE_GROUPS } from "../../src/lib/draw/role-groups";
import { Escapes } from "../../src/lib/state/escape.svelte";

const token = (text: string, more: Partial<Token> = {}): Token => ({ piece: text, text, label: text, special: false, sink: false, unknown: false, span: null, ...more });
const TOKENS = [token("[CLS]", { special: true, sink: true, text: "" }), token("The"), token("animal"), token(","), token("it"), token("was")];
const link = (query: number, key: number, weight: number) => ({ query, key, weight });

describe("the row to begin with", () => {
  it("links two ordinary words that are not neighbours", () => {
    expect(tellingRow([link(3, 0, 0.99), link(5, 4, 0.9), link(4, 2, 0.7)], TOKENS, TOKENS)).toBe(4);
  });
  it("else any two words, else whatever is linked", () => {
    expect(tellingRow([link(3, 0, 0.99), link(5, 4, 0.9)], TOKENS, TOKENS)).toBe(5);
    expect(tellingRow([link(3, 0, 0.99)], TOKENS, TOKENS)).toBe(3);
    expect(tellingRow([link(7, 1, 0.5)], null, null)).toBe(7);
    expect(tellingRow([], TOKENS, TOKENS)).toBeNull();
  });
});

describe("a link in words", () => {
  it("says where a word looks, and where nothing is found", () => {
    expect(linkWords(TOKENS, 4, TOKENS, 2, 0.676)).toBe("links “it” to “animal”, 68 %");
    expect(linkWords(TOKENS, 4, TOKENS, 0, 0.5)).toBe("parks 50 % of the look of “it” on [CLS]");
    expect(linkWords(TOKENS, 4, TOKENS, 4, 0.9)).toBe("keeps “it” to itself, 90 %");
  });
});

describe("a row", () => {
  it("lists its largest weights, largest first, as a sort does", () => {
    const weights = Float32Array.from({ length: 40 }, (_, i) => ((i * 7919) % 41) / 41);
    const out = Array.from(weights, (_, i) => i % 5 === 0);
    const sorted = Array.from(weights.keys()).filter((i) => weights[i]! > 0 && !out[i]).sort((a, b) => weights[b]! - weights[a]!);
    expect(largest(weights, 7, out)).toEqual(sorted.slice(0, 7));
    expect(largest(new Float32Array(3), 5)).toEqual([]);
  });
});

describe("what is heard", () => {
  const said: Said = { read: "r1/0", head: "L0H0", query: 4, keys: [1, 2, 3, -1], heard: Float32Array.of(0.25, 0.5, -0.125, 0.375), silent: false, out: null, width: null, words: "", figures: "", because: "" };
  it("is listed by token, and summed over the pieces of a word; the others have no place", () => {
    expect([...heardByPlace(said, null)]).toEqual([[1, 0.25], [2, 0.5], [3, -0.125]]);
    expect([...heardByPlace(said, [0, 1, 1, 2, 3])]).toEqual([[1, 0.75], [2, -0.125]]);
    expect(heardByPlace({ ...said, heard: null }, null).size).toBe(0);
  });
});

describe("lines of several heads", () => {
  it("have the colours of their roles, and dashes where one is there again", () => {
    const previous = ROLE_GROUPS.find(({ name }) => name === "previous")!.colour;
    const styles = lineStyles(["previous", "unlabelled", "previous", null]);
    expect(styles.map(({ colour }) => colour)).toEqual([previous, "var(--ink-2)", previous, "var(--ink-2)"]);
    expect(new Set(styles.map(({ colour, dash }) => colour + dash)).size).toBe(4);
  });
});

describe("Escape", () => {
  it("leaves the topmost thing alone, and what is gone no more", () => {
    const escapes = new Escapes();
    const left: string[] = [];
    const row = escapes.push(() => left.push("row"));
    const cell = escapes.push(() => left.push("cell"));
    expect(escapes.leave()).toBe(true);
    cell();
    escapes.leave();
    row();
    expect(escapes.leave()).toBe(false);
    expect(left).toEqual(["cell", "row"]);
  });
});
