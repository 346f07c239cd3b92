import { describe, expect, it } from "vitest";
import type { AtlasHead } from "../../src/lib/api/types";
import { countedLayers } from "../../src/lib/exact/heads-file";
import { stepLayer } from "../../src/rooms/head/head";

const sites = (...modules: [string, number][]) => modules.map(([module, layer]) => ({ stack: "", layer, module }));

describe("layers with the model's own numbers", () => {
  it("are stepped over from one that attends to the next", () => {
    const heads = [[1, 3], [3, 2], [4, 3]].flatMap(([layer, count]) =>
      Array.from({ length: count! }, (_, index): AtlasHead => ({ head: `L${layer}H${index}`, stack: "", layer: layer!, index, kv_group: index, role: null, values: [] })));
    expect(stepLayer(heads, "L1H1", 1)).toBe("L3H1");
    expect(stepLayer(heads, "L1H2", 1)).toBe("L3H1");
    expect(stepLayer(heads, "L4H0", -1)).toBe("L3H0");
    expect(stepLayer(heads, "L4H0", 1)).toBeNull();
    expect(stepLayer(heads, "L1H0", -1)).toBeNull();
  });

  it("are told from layers that an earlier manyheads counted", () => {
    expect(countedLayers(sites(["model.layers.1.self_attn", 0], ["model.layers.3.self_attn", 1]))).toBe(
      "layers are counted in the order of their first calls, not by the model's own numbers: L0 is model.layers.1.self_attn");
    expect(countedLayers(sites(["layers.6.shared", 0], ["layers.6.shared#2", 1]))).toContain("L0 is layers.6.shared");
    for (const fine of [
      sites(["model.layers.1.self_attn", 1], ["model.layers.3.self_attn", 3]),
      sites(["h.0.attn", 0], ["h.1.attn", 1]),
      sites(["layers.0.blocks.0", 0], ["layers.0.blocks.1", 1], ["layers.1.blocks.0", 2]),
      sites(["net.1.layers.0.attn", 0], ["net.1.layers.1.attn", 1]),
      sites(["1.attn", 0]),
      sites(["layer 3", 3]),
    ]) expect(countedLayers(fine)).toBe("");
  });
});
