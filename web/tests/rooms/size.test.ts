// The Size room's numbers, sliders and bars.
import { inWords, placed, readDevices, undivided, type Devices } from "../../src/rooms/size/devices";
import { describe, expect, it } from "vitest";
import { PRESETS, sized } from "../../src/rooms/size/arithmetic";
import { conclusion, finding, kindsInWords, segments, shares } from "../../src/rooms/size/breakdown";
import {
  compact, inPlainWords, nearestStop, objection, readWords, SLIDERS, typedNumber, withDefaults,
} from "../../src/rooms/size/sliders";
import { BINARY, brief, bytesInBoth, column, countOf, DECIMAL, gb, gib, percent, tokens } from "../../src/rooms/size/units";

const llama = { count: 80, kind: "GQA-8", attention: 150_994_944, feed_forward: 704_643_072, other: 16_384, parts: {} };

describe("units", () => {
  it("as `manyheads size` writes them", () => {
    expect(countOf(68_976_648_192)).toBe("68.98 B");
    expect(countOf(704_643_072)).toBe("704.6 M");
    expect(countOf(999_999)).toBe("1,000 k");
    expect([gib(137_953_296_384), gb(137_953_296_384)]).toEqual(["128.5 GiB", "138.0 GB"]);
    expect(bytesInBoth(10 * 2 ** 30)).toBe("10.00 GiB (10.74 GB)");
    expect(bytesInBoth(12)).toBe("12 bytes");
  });
  it("shares", () => {
    expect([percent(0.6667), percent(0.0123), percent(0.0001), percent(0), percent(1)]).toEqual([
      "67 %", "1.2 %", "under 0.1 %", "0.0 %", "100 %",
    ]);
  });
});

describe("sliders", () => {
  it("rise, and hold what real models have", () => {
    for (const slider of SLIDERS) {
      expect([...slider.stops].sort((a, b) => a - b)).toEqual(slider.stops);
      expect(new Set(slider.stops).size).toBe(slider.stops.length);
    }
    const stops = Object.fromEntries(SLIDERS.map((slider) => [slider.name, slider.stops]));
    for (const [name, value] of [["num_layers", 80], ["embed_dim", 384], ["embed_dim", 768], ["embed_dim", 8192], ["ffn_dim", 28_672], ["num_heads", 12], ["context", 4096], ["batch", 8]] as const) {
      expect(stops[name]).toContain(value);
    }
  });
  it("nearest by ratio", () => {
    expect(nearestStop([64, 128, 256], 100)).toBe(1);
    expect(nearestStop([0, 128], 0)).toBe(0);
  });
  it("a preset's words fill what they leave out", () => {
    const description = withDefaults({ num_layers: 6, embed_dim: 384, num_heads: 12, num_kv_heads: null, ffn_dim: null });
    expect(description).toMatchObject({ num_kv_heads: 12, ffn_dim: 1536, gated: false, vocab_size: 0 });
    expect(compact(description)).not.toHaveProperty("vocab_size");
    expect(compact({ ...description, ffn_dim: 0 })).toHaveProperty("ffn_dim", 0);
  });
  it("a description from an address is ours, or nothing", () => {
    const words = { num_layers: 2, embed_dim: 48, num_heads: 6, gated: true, norm: "rms", vocab_size: null };
    expect(readWords(words)).toEqual(words);
    for (const wrong of [null, 3, "x", [], {}, { ...words, num_heads: "many" }, { ...words, wings: 2 }, { ...words, gated: 1 }, { ...words, num_layers: 513 }, { ...words, embed_dim: -1 }, { ...words, head_dim: 2.5 }, { ...words, norm: "batch" }]) {
      expect(readWords(wrong)).toBeNull();
    }
  });
});

describe("rules", () => {
  const words = { num_layers: 6, embed_dim: 384, num_heads: 12, num_kv_heads: 12, ffn_dim: 1536 };
  it("fit, or are said at the slider that was moved", () => {
    expect(objection(words, "embed_dim")).toBeNull();
    expect(objection({ ...words, embed_dim: 100 }, "embed_dim")).toEqual({
      slider: "width", words: "The width must be a multiple of the heads: 100 is not a multiple of 12. Widths that are: 96 and 108.",
    });
    expect(objection({ ...words, embed_dim: 100 }, "num_heads")?.slider).toBe("heads");
    expect(objection({ ...words, embed_dim: 100, head_dim: 64 }, "embed_dim")).toBeNull();
    expect(objection({ ...words, num_kv_heads: 5 }, "num_kv_heads")).toEqual({
      slider: "kv-heads", words: "KV heads must divide the heads evenly: 12 heads cannot share 5. KV heads that do: 4 and 6.",
    });
    expect(objection({ ...words, num_kv_heads: 24 }, "")?.slider).toBe("kv-heads");
    expect(objection({ ...words, num_layers: 0 }, "embed_dim")?.slider).toBe("layers");
  });
  it("what is typed is a whole number, and no more than the most", () => {
    expect(typedNumber("1,048,576", 1, 100_000_000)).toEqual({ value: 1_048_576, words: null });
    expect([typedNumber("128k", 1, 1e9).value, typedNumber("1M", 1, 1e9).value]).toEqual([131_072, 1_048_576]);
    expect(typedNumber("200000000", 1, 100_000_000)).toEqual({ value: 100_000_000, words: "100,000,000 is the most here." });
    for (const text of ["abc", "", "0", "-1", "1.5", "1e3"]) expect(typedNumber(text, 1, 9)).toEqual({ value: null, words: "A whole number, 1 or more." });
    expect(typedNumber("0", 0, 9).value).toBe(0);
  });
  it("the library's names are said as the sliders say them", () => {
    expect(inPlainWords("num_heads=7 is not a multiple of num_kv_heads=2: give head_dim")).toBe("heads (7) is not a multiple of KV heads (2): give the width of a head");
  });
});

describe("bars", () => {
  it("stack up to the whole layer, equal layers once", () => {
    expect(segments([llama]).map(({ label, part, begin, end }) => [label, part, begin, end])).toEqual([
      ["80 × GQA-8", "attention", 0, 150_994_944],
      ["80 × GQA-8", "feed-forward", 150_994_944, 855_638_016],
      ["80 × GQA-8", "other", 855_638_016, 855_654_400],
    ]);
    expect(kindsInWords([llama, { ...llama, count: 1, attention: 5 }])).toEqual([
      "80 × GQA-8, each: 151.0 M attention, 704.6 M feed-forward",
      "1 × GQA-8: 5 attention, 704.6 M feed-forward",
    ]);
  });
  it("parts from the largest on", () => {
    expect(shares({ q: 1, o: 3, none: 0 })).toEqual([
      { part: "o", count: 3, share: 0.75 },
      { part: "q", count: 1, share: 0.25 },
    ]);
  });
  it("says the conclusion", () => {
    expect(conclusion([llama])).toBe("82 % of the layers’ parameters are in the feed-forward, 18 % in attention.");
    expect(conclusion([{ ...llama, feed_forward: 0 }])).toMatch(/attention alone/);
    expect(conclusion([])).toMatch(/no layers/);
  });
});

describe("arithmetic", () => {
  const of = (name: string) => PRESETS.find((preset) => preset.name === name)!.shape;
  const use = { context: 4096, batch: 8, dtype: "fp16" };
  it("says Llama 2 70B as the command does", () => {
    const report = sized(of("llama-2-70b"), use);
    expect(finding(report)).toBe("68.98 B parameters, 138 GB in fp16, 320 KiB of cache a token: 10 GiB at 8\u00a0×\u00a04k.");
    expect(report.lines.map(({ name, num_bytes, own }) => [name, num_bytes / 2 ** 30, own])).toEqual([["MHA", 80, false], ["GQA-8", 10, true], ["MQA", 1.25, false]]);
    expect(report.kinds.map(({ count, kind }) => [count, kind])).toEqual([[80, "GQA-8"]]);
  });
  const placedOn = (name: string, devices: Devices, kv: number | null = null) => {
    const shape = of(name);
    const one = { context: 4096, batch: 1, dtype: "fp16" };
    return { stages: placed(shape.served!, one, kv, null, devices), said: inWords(shape.served!, one, kv, null, devices) };
  };
  it("says what each of several GPUs holds as the command does", () => {
    // `manyheads size llama-3-70b --gpus 4x80GB --batch 1`, and 2x80GB and 8x80GB
    const [four] = placedOn("llama-3-70b", { count: 4, memory: 80e9, stages: 1 }).stages;
    expect([four!.num_parameters, four!.weight_bytes / 1e9, four!.num_kv_heads, four!.longest, four!.largest]).toEqual([17_639_415_808, 35.278831616, 2, 446_352, 108]);
    const others = [2, 8].map((count) => placedOn("llama-3-70b", { count, memory: 80e9, stages: 1 }).stages[0]!);
    expect(others.map((stage) => [stage.num_kv_heads, stage.longest, stage.largest])).toEqual([[4, 7328, 1], [1, 1_324_384, 321]]);
    expect(placedOn("llama-3-70b", { count: 16, memory: 80e9, stages: 4 }).stages.map(({ layers }) => layers)).toEqual([[0, 19], [20, 39], [40, 59], [60, 79]]);
    expect(placedOn("qwen2.5-3b", { count: 8, memory: 24e9, stages: 1 }).stages[0]!.num_kv_heads).toBe(1);
  });
  it("says in a sentence whether GPUs hold it, how many would, and what cannot be divided", () => {
    expect(placedOn("llama-3-70b", { count: 4, memory: 80e9, stages: 1 }).said).toBe("4 GPUs of 80 GB hold it with 1 text of 4,096 tokens; up to 108 of that length fit.");
    expect(placedOn("llama-3-70b", { count: 1, memory: 80e9, stages: 1 }).said).toMatch(/^It does not fit on 1 GPU of 80 GB: .* are missing for the weights and 1 text of 4,096 tokens\. 2 would do\.$/);
    expect(undivided(of("qwen2.5-0.5b").served!, { count: 4, memory: 24e9, stages: 1 }, null)).toBe("14 heads on 2 KV heads do not divide over 4 GPUs; over 1, 2 they do.");
    expect(undivided(of("gpt2").served!, { count: 16, memory: 24e9, stages: 16 }, null)).toBe("There are 12 layers, and a stage has at least one.");
    expect(readDevices("8x141GB", 2)).toEqual({ count: 8, memory: 141e9, stages: 2 });
    for (const wrong of ["3x80GB", "8x81GB", "many", null]) expect(readDevices(wrong, 1)).toBeNull();
    expect(readDevices("4x80GB", 8)).toBeNull();
  });
  it("what does not fit is short by something, never by less than nothing", () => {
    for (const { name, shape } of PRESETS) {
      for (const fit of sized(shape, { ...use, batch: 40, context: shape.learned_positions ? 64 : 50_000 }).fits) {
        expect(fit.missing, name).toBeGreaterThanOrEqual(0);
        expect(fit.weightsFit || (fit.missing > 0 && fit.longest === 0 && fit.largest === 0), name).toBe(true);
      }
    }
    expect(sized(of("mistral-7b"), use).fits[4]?.longest).toBeNull();
  });
  it("a context past the model's positions is said", () => {
    expect(sized(of("llama-3-8b"), { ...use, context: 8192 }).past).toBeNull();
    expect(sized(of("llama-3-8b"), { ...use, context: 8193 }).past).toBe(8192);
  });
  it("numbers for sentences", () => {
    expect([brief(131_072, BINARY), brief(16_060_522_496, DECIMAL), brief(2 ** 30, BINARY), brief(0, BINARY), brief(999_999_999, DECIMAL)]).toEqual(["128 KiB", "16.1 GB", "1 GiB", "0 B", "1 GB"]);
    expect(column([80 * 2 ** 30, 10 * 2 ** 30, 1.25 * 2 ** 30], BINARY)).toEqual({ texts: ["80.00", "10.00", "1.25"], unit: "GiB" });
    expect(column([2 ** 34, 2 ** 32, 2 ** 29], BINARY)).toEqual({ texts: ["16.00", "4.00", "0.50"], unit: "GiB" });
    expect(column([2 ** 31, 2 ** 30], BINARY)).toEqual({ texts: ["2", "1"], unit: "GiB" });
    expect([tokens(131_072), tokens(1_048_576), tokens(5000), tokens(512)]).toEqual(["128k", "1M", "5,000", "512"]);
  });
});
