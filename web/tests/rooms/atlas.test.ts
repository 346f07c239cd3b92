import { describe, expect, it } from "vitest";
import { joined, lookCommand, placesOf } from "../../src/rooms/atlas/question.svelte";
import type { AtlasHead, RecordingInfo } from "../../src/lib/api/types";
import { compileFilter, unknownWords } from "../../src/rooms/atlas/filter";
import { byLayer, neighbour, ranked, wrapped } from "../../src/rooms/atlas/layout";
import { cellText, cellUnit, ordered, positionOn, scaleOf } from "../../src/rooms/atlas/scale";

const statistic = (name: string, title: string, low: number | null) => ({ name, title, unit: "nats", low, high: null, meaning: "", source: "" });
const statistics = [statistic("entropy", "entropy", 0), statistic("previous_mass", "previous mass", 0)];

function heads(layers: number, perLayer: number, group = 1): AtlasHead[] {
  return Array.from({ length: layers * perLayer }, (_, i) => {
    const [layer, index] = [Math.floor(i / perLayer), i % perLayer];
    const evidence = { statistic: "entropy", score: 0.5, chance: 0.1, distance: 0.4 / 0.9, low: 0.4, high: 0.6, num_queries: 9, given: null, words: "" };
    const role = index === 0 ? { name: "previous token", family: "previous", evidence } : null;
    return { head: `L${layer}H${index}`, stack: "", layer, index, kv_group: Math.floor(index / group), role, values: [i, null] };
  });
}

describe("the atlas", () => {
  it.each([[6, 12], [32, 32], [2, 3], [48, 25]])("of %i layers of %i heads fits one screen", (layers, perLayer) => {
    const layout = byLayer(heads(layers, perLayer), 850, 520, () => false);
    expect(layout.width).toBeLessThanOrEqual(850);
    expect(layout.height).toBeLessThanOrEqual(520);
    expect(new Set(layout.cells.map(({ x, y }) => `${x},${y}`)).size).toBe(layers * perLayer);
    const sorted = ranked(heads(layers, perLayer), 850, 520);
    expect(sorted.height).toBeLessThanOrEqual(520);
    expect(sorted.width).toBeLessThanOrEqual(850);
  });

  it.each([[6, 12, 358], [32, 32, 358], [2, 3, 300], [3, 25, 560]])("of %i layers of %i heads has squares that a finger meets on %i pixels", (layers, perLayer, width) => {
    const { cells, size, width: wide, height } = wrapped(heads(layers, perLayer), width);
    expect(size).toBeGreaterThanOrEqual(44);
    expect(wide).toBeLessThanOrEqual(width);
    expect(Math.max(...cells.map(({ x }) => x + size))).toBeLessThanOrEqual(width);
    expect(Math.max(...cells.map(({ y }) => y + size))).toBeLessThan(height);
    expect(new Set(cells.map(({ x, y }) => `${x},${y}`)).size).toBe(layers * perLayer);
    if (perLayer === 12) expect(cells.filter(({ y }) => y === cells[0]!.y).length).toBe(6); // half a layer in each line
  });

  it("brackets heads that share keys and values", () => {
    const layout = byLayer(heads(2, 8, 4), 850, 520, () => true);
    expect(layout.brackets.map((b) => b.group)).toEqual([0, 1, 0, 1]);
    const cell = layout.cells[3]!;
    expect(layout.brackets[0]!.x + layout.brackets[0]!.width).toBe(cell.x + layout.size);
  });

  it.each([[30, 9, 3], [30, 9, 1], [28, 14, 7], [48, 6, 2]])("of %i layers of %i heads stands in blocks whose cells show a map", (layers, perLayer, group) => {
    const list = heads(layers, perLayer, group);
    const { cells, size, width, height, rowLabels, brackets } = byLayer(list, 860, 520, () => group > 1);
    expect(width).toBeLessThanOrEqual(860);
    expect(height).toBeLessThanOrEqual(520);
    expect(size).toBeGreaterThan(11); // a smaller cell is a dot
    expect(rowLabels.map(({ text }) => text)).toEqual(Array.from({ length: layers }, (_, layer) => `L${layer}`));
    expect(cells.map(({ head }) => head)).toEqual(list.map(({ head }) => head));
    expect(new Set(cells.map(({ x, y }) => `${x},${y}`)).size).toBe(layers * perLayer);
    expect(brackets).toHaveLength(group > 1 ? (layers * perLayer) / group : 0);
    for (const { x, y, width: wide } of brackets) {
      expect(x + wide).toBeLessThanOrEqual(width);
      expect(cells.filter((cell) => cell.x < x + wide && cell.x + size > x && cell.y < y + 1 && cell.y + size > y)).toEqual([]);
    }
    // Heads of a group stand together: the gap before the next group is larger, in every row alike.
    const first = cells.slice(0, perLayer);
    const steps = first.slice(1).map((cell, i) => cell.x - first[i]!.x);
    expect(new Set(steps.filter((_, i) => (i + 1) % group)).size).toBeLessThanOrEqual(1);
    if (group > 1) expect(Math.min(...steps.filter((_, i) => (i + 1) % group === 0))).toBeGreaterThan(steps[0]!);
    else expect(new Set(steps).size).toBe(1);
  });

  it("keeps a model in one piece where blocks would gain little", () => {
    for (const [layers, perLayer] of [[6, 12], [12, 12], [24, 16], [32, 32]] as const) {
      expect(new Set(byLayer(heads(layers, perLayer), 860, 520, () => false).cells.map(({ block }) => block)).size).toBe(1);
    }
  });

  it("does not part the heads of a layer that all share one key/value head, and draws one bracket", () => {
    const { cells, brackets, size } = byLayer(heads(4, 6, 6), 850, 520, () => true);
    expect(brackets.map(({ width }) => width)).toEqual(Array(4).fill(cells[5]!.x + size - cells[0]!.x));
    expect(new Set(cells.slice(1, 6).map((cell, i) => cell.x - cells[i]!.x)).size).toBe(1);
  });

  it("keeps a group in one line of a narrow page, with its bracket between squares and names", () => {
    const list = heads(30, 9, 3);
    const { cells, size, brackets, columnLabels, width } = wrapped(list, 366, () => true);
    expect(size).toBeGreaterThanOrEqual(44);
    expect(width).toBeLessThanOrEqual(366);
    for (let i = 0; i < cells.length; i += 3) expect(new Set(cells.slice(i, i + 3).map(({ y }) => y)).size).toBe(1);
    expect(brackets).toHaveLength(90);
    brackets.forEach(({ x, width: wide, y }, i) => {
      expect([x, wide]).toEqual([cells[3 * i]!.x, cells[3 * i + 2]!.x + size - cells[3 * i]!.x]);
      expect(y).toBeGreaterThan(cells[3 * i]!.y + size);
      expect(y).toBeLessThan(columnLabels[3 * i]!.y - 4);
    });
  });

  it("puts stacks side by side where that makes cells larger", () => {
    const three = ["encoder", "decoder", "cross"].flatMap((stack) => heads(6, 6).map((h) => ({ ...h, stack, head: `${stack}.${h.head}` })));
    const wide = byLayer(three, 1100, 500, () => false);
    expect(new Set(wide.titles.map((t) => t.y)).size).toBe(1);
    expect(wide.width).toBeLessThanOrEqual(1100);
    const tall = byLayer(three, 300, 1100, () => false);
    expect(new Set(tall.titles.map((t) => t.x)).size).toBe(1);
    for (const { cells, height } of [wide, tall]) {
      expect(new Set(cells.map(({ x, y }) => `${x},${y}`)).size).toBe(108);
      expect(Math.max(...cells.map((c) => c.y))).toBeLessThan(height);
    }
    // From the encoder's last head of a layer, one to the right is the decoder's first.
    const last = wide.cells.find((c) => c.head === "encoder.L2H5")!;
    expect(neighbour(wide.cells, last, "ArrowRight").head).toBe("decoder.L2H0");
  });

  it("is walked by arrow keys", () => {
    const { cells } = byLayer(heads(3, 5), 850, 520, () => false);
    const from = cells[6]!;
    expect(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].map((key) => neighbour(cells, from, key).head)).toEqual([
      "L1H0", "L1H2", "L0H1", "L2H1", "L0H0", "L2H4",
    ]);
    expect(neighbour(cells, cells[0]!, "ArrowUp")).toBe(cells[0]);
    // Beneath a block of layers comes the next layer, on top of the block beside it.
    const deep = byLayer(heads(30, 9, 3), 860, 520, () => true).cells;
    const head = (name: string) => deep.find((cell) => cell.head === name)!;
    expect([neighbour(deep, head("L14H4"), "ArrowDown").head, neighbour(deep, head("L15H4"), "ArrowUp").head]).toEqual(["L15H4", "L14H4"]);
    expect([neighbour(deep, head("L29H4"), "ArrowDown").head, neighbour(deep, head("L2H8"), "ArrowRight").head]).toEqual(["L29H4", "L17H0"]);
  });
});

describe("the question of a first visit", () => {
  const info = { words: ["to", "Mary", "gave", "to", "Mary", "to"].map((text, begin) => ({ begin, end: begin + 1, text })) } as RecordingInfo;
  it("asks the last word of that text, and finds the first", () => {
    expect(placesOf(info, "to", "Mary")).toEqual({ fromWord: 5, toWord: 1 });
    expect(placesOf(info, "to", "John")).toBeNull();
  });
});

describe("the share card", () => {
  it("writes words as the text joins them", () => {
    expect(joined("The animal was too tired.", ["[CLS]", "the", "animal", "was", "too", "tired", ".", "[SEP]"])).toEqual([false, false, false, false, false, false, true, false]);
  });
  it("prints a command that is cut between words", () => {
    const asked = { text: "The animal didn't cross the street because it was too tired.", model: null, from: "it", to: "animal" };
    expect(lookCommand(asked, 120)).toBe('manyheads look "The animal didn\'t cross the street because it was too tired." --from it --to animal');
    expect(lookCommand(asked, 60)).toBe('manyheads look "The animal didn\'t …" --from it --to animal');
    expect(lookCommand({ ...asked, text: 'a "b" $c', model: "tiny", to: "[SEP]" }, 120)).toBe('manyheads look "a \\"b\\" \\$c" --model tiny --from it --to "[SEP]"');
  });
});

describe("the filter", () => {
  const list = heads(3, 5);
  const namesOf = (text: string) => list.filter(compileFilter(text, statistics)).map((h) => h.head);

  it("knows roles, layers, heads and thresholds, all of which must hold", () => {
    expect(namesOf("previous")).toEqual(["L0H0", "L1H0", "L2H0"]);
    expect(namesOf("previous token L1")).toEqual(["L1H0"]);
    expect(namesOf("l2h3")).toEqual(["L2H3"]);
    expect(namesOf("entropy < 2")).toEqual(["L0H0", "L0H1"]);
    expect(namesOf("previous entropy >= 5")).toEqual(["L1H0", "L2H0"]);
    expect(namesOf("previous mass > 0")).toEqual([]);
    expect(namesOf("")).toHaveLength(15);
  });

  it("takes what docs/howto/from-bertviz.md says", () => {
    const namesOf = (text: string) => heads(4, 2).filter(compileFilter(text, statistics)).map((h) => h.head);
    expect(namesOf("L3")).toEqual(["L3H0", "L3H1"]);
    expect(namesOf("previous")).toEqual(["L0H0", "L1H0", "L2H0", "L3H0"]);
    expect(namesOf("entropy < 1.5")).toEqual(["L0H0", "L0H1"]);
  });

  it("takes commas and the word and between conditions", () => {
    expect(namesOf("previous and L1")).toEqual(["L1H0"]);
    expect(namesOf("previous, entropy >= 5")).toEqual(["L1H0", "L2H0"]);
    expect(namesOf("previous and entropy >= 5 and L2")).toEqual(["L2H0"]);
  });

  it("says what it does not understand", () => {
    const message = (text: string) => unknownWords(text, statistics, list);
    expect(message("previous token, L1 and H2 and L9")).toBe("");
    expect(message("induction")).toBe(""); // a role that no head of this model has
    expect(message("previous zzz")).toBe("zzz is not a role, head, layer or statistic");
    expect(message("entro")).toContain("entropy > 0.5");
  });
});

describe("values", () => {
  it("small numbers share a unit in which none is shown as 0.00", () => {
    const small = { low: 0.0000398, high: 0.0787 };
    expect([small.high, 0.00498, 0.000398, small.low, -0.002, 0, null].map((value) => cellText(value, small))).toEqual(["79", "5", "0.4", "0.04", "-2", "0", "–"]);
    expect([cellUnit(small).words, cellUnit({ low: 0, high: 2.3 }).words, cellUnit({ low: 0, high: 5e-5 }).words]).toEqual(["thousandths", "", "millionths"]);
    expect([2.304, 12.34, 0.004, 0].map((value) => cellText(value, { low: 0, high: 12.34 }))).toEqual(["2.30", "12.3", "0.004", "0.00"]);
  });
  it("scale from their least to their most, and order most first with the missing last", () => {
    const list = heads(1, 3).concat({ ...heads(1, 1)[0]!, head: "L9H9", values: [null, null] });
    const scale = scaleOf("entropy", list, statistics)!;
    expect([scale.low, scale.high]).toEqual([0, 2]);
    expect(list.map((h) => positionOn(scale, h))).toEqual([0, 0.5, 1, null]);
    expect(ordered(list, "entropy", statistics).map((h) => h.head)).toEqual(["L0H2", "L0H1", "L0H0", "L9H9"]);
  });
});
