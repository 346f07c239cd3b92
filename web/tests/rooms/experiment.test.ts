// Experiments: sets of heads, plans, results, stored entries, the sandbox.
import { describe, expect, it } from "vitest";
import type { Client } from "../../src/lib/api/client";
import type { LayerInfo } from "../../src/lib/api/types";
import { runningJobsOf } from "../../src/lib/state/running.svelte";
import type { Store } from "../../src/lib/state/storage";
import { keyOf, readEntries, saveEntries, usualName, withEntry, type Entry } from "../../src/rooms/experiment/entries";
import {
  allHeads, countInWords, headsBetween, headsInWords, headsNamed, headsOfColumn, placeOf,
  beginning,
} from "../../src/rooms/experiment/heads";
import {
  changeInShort, controlInWords, controlUnit, figure, resultCsv, summary, unitOf, whyNoControl, withoutRounding, withoutTrace, type ResultLike,
} from "../../src/rooms/experiment/result";
import { freeName, Sandbox } from "../../src/rooms/experiment/sandbox.svelte";
import text from "../../src/rooms/experiment/sandbox.svelte.ts?raw";
import { blended, mostMoved, ranked, sceneOf, SCENES, scenePlan } from "../../src/rooms/experiment/scenes";
import {
  ablate, copy, layersOf, OPERATIONS, planInWords, reordered, stepsFor, stepsIn, type Step,
} from "../../src/rooms/experiment/steps";

const options = { factor: 0.5, source: "L*H0", layers: ["L0", "L2"], seed: 3, text: "", sink: 1, recent: 4 };
const layers = [0, 1, 2].map((layer) => ({ stack: "", layer }));

const result: ResultLike = {
  plan: [ablate("L3H7", "zero")], metric: "cosine", unit: "", change: 0.02, before: null, after: null, control: [0.001, 0.004, 0.01],
  notes: {}, tokens: [{ piece: "a", text: "a" }, { piece: "=1+1", text: "=1+1" }], per_token: [0.5, null],
};

const entry = (key: string, name = key): Entry => ({
  key, name, made: 0, ask: { model: "m", text: "t", plan: [] }, metric: "cosine", unit: "", change: 1, low: null,
  high: null, control: [],
});

describe("steps", () => {
  it("each operation makes steps that are said", () => {
    for (const { operation, words } of OPERATIONS) {
      const steps = stepsFor(operation, "L3H7", options);
      expect(steps.length).toBeGreaterThan(0);
      expect(planInWords(steps)).toMatch(/L3H7|layer 0/);
      expect(words.endsWith(".")).toBe(true);
    }
    expect(stepsFor("skip_output_projection", "L0H1, L2", options)).toEqual([
      { step: "skip_output_projection", layer: "L0" },
      { step: "skip_output_projection", layer: "L2" },
    ]);
    expect(stepsFor("copy", "L*", options)).toEqual([{ step: "copy", heads: "L*", source: "L*H0", share: 1 }]);
  });
  it("an address that says nothing of a share means all of it", () => {
    expect(stepsIn([{ step: "copy", heads: "L1", source: "L1H0" }])).toEqual([copy("L1", "L1H0")]);
    expect(planInWords([copy("L1", "L1H0", 0.3)])).toBe("every head of layer 1 goes 30 % of the way to the map of L1H0");
  });
  it("a text to resample from is told only where there is one", () => {
    expect(stepsFor("resample", "L0", options)[0]).toHaveProperty("text", null);
    expect(stepsFor("resample", "L0", { ...options, text: "hello" })[0]).toHaveProperty("text", "hello");
  });
  it("a streaming head sees so many first and last tokens, the server's numbers where none are given", () => {
    expect(stepsFor("streaming", "L0", options)[0]).toMatchObject({ kind: "streaming", sink: 1, recent: 4 });
    expect(planInWords(stepsFor("streaming", "L0", { ...options, sink: null, recent: null }))).toBe("every head of layer 0 on a cache of the first 128 and last 256 tokens");
    expect(stepsFor("zero", "L0", options)[0]).toMatchObject({ sink: null, recent: null });
  });
  it("layers of ticked heads", () => {
    expect(layersOf(new Set(["L0H1", "L2H0", "L2H1"]), layers)).toEqual(["L0", "L2"]);
    expect(layersOf(new Set(["L0H1", "L1H0", "L2H1"]), layers)).toEqual(["L*"]);
    expect(layersOf(new Set(["L12H0"]), [{ stack: "", layer: 1 }, { stack: "", layer: 12 }])).toEqual(["L12"]);
  });
  it("reorders", () => {
    expect(reordered(["a", "b", "c"], 2, 0)).toEqual(["c", "a", "b"]);
    expect(reordered(["a", "b"], 0, 5)).toEqual(["b", "a"]);
  });
});

describe("result", () => {
  it("figures", () => {
    expect([figure(0.01234, true), figure(-2, true), figure(null), figure(0), figure(-0.0000162, true), figure(1234.5), figure(2e7)]).toEqual([
      "+0.0123", "−2.00", "–", "0", "−0.0000162", "1,235", "20,000,000",
    ]);
  });
  it("is never said without its control", () => {
    expect(controlInWords(result)).toBe(
      "The same done to the same number of random heads changed it by +0.00500 on average (+0.00100 to +0.0100). " +
        "There are only 3 other sets to draw.",
    );
    expect(controlInWords({ ...result, control: [-0.02, 0.001] }, 2)).toMatch(/on average \(−0\.0200 to \+0\.00100\)\.$/);
    expect(controlInWords({ ...result, control: [] })).toBe("");
    expect(summary([], 1)).toBeNull();
  });
  it("rounding is not a change", () => {
    expect(controlInWords({ ...result, change: 1e-17, control: [2e-17, 0] }, 2)).toMatch(/by 0\.$/);
    expect([withoutTrace(8e-17), withoutTrace(0.25)]).toEqual([0, 0.25]);
    expect([withoutRounding(1e-10), withoutRounding(-2e-9)]).toEqual([0, -2e-9]);
  });
  it("no control can exist where too few are left", () => {
    expect([whyNoControl(72, 72, "heads"), whyNoControl(40, 72, "heads"), whyNoControl(36, 72, "heads"), whyNoControl(35, 72, "heads")]).toEqual([
      "no control: a plan on all heads leaves none to draw", "no control: fewer heads are left than the plan changes",
      "no verdict: the other half of the heads is the only set to compare with", null,
    ]);
  });
  it("a change is counted in its unit, and in what was measured where it has none", () => {
    const of = (metric: string, unit: string) => unitOf({ metric, unit });
    expect([of("loss", "nats a token"), of("cosine", ""), of("class_error", "")]).toEqual(["nats a token", "1 − cosine", "class error"]);
    const short = (metric: string, unit: string, change: number) => changeInShort({ metric, unit, change });
    expect(short("cosine", "", 0.4156)).toEqual({ word: "cosine with before", figure: "0.584" });
    expect(short("loss", "nats a token", 0.25)).toEqual({ word: "loss", figure: "+0.250 nats a token" });
  });
  it("what is drawn beside a plan on layers is layers", () => {
    const plan: Step[] = [{ step: "skip_output_projection", layer: "L3" }];
    expect(controlInWords({ ...result, plan })).toMatch(/the same number of random layers /);
    expect(controlUnit([...plan, ablate("L0", "zero")])).toBe("heads");
  });
  it("CSV quotes what must be, and is not a formula", () => {
    expect(resultCsv(result).split("\n").slice(3, 6)).toEqual(["position,token,change", "0,a,0.5", "1,'=1+1,"]);
    expect(resultCsv({ ...result, tokens: [{ piece: 'a,"b"', text: "" }] }).split("\n")[4]).toBe('0,"a,""b""",0.5');
  });
});

describe("names of pruned models", () => {
  it("are free ones", () => {
    expect(freeName("minilm", 71, new Set())).toBe("minilm-71-heads");
    expect(freeName("minilm", 71, new Set(["minilm-71-heads", "minilm-71-heads-2"]))).toBe("minilm-71-heads-3");
    expect(freeName("../org/name", 3, new Set())).toBe("..-org-name-3-heads".replace(/^[^A-Za-z0-9]+/, ""));
  });
});

describe("entries", () => {
  const memory = (): Store & { values: Map<string, string> } => {
    const values = new Map<string, string>();
    return { values, getItem: (key) => values.get(key) ?? null, setItem: (key, value) => void values.set(key, value) };
  };
  it("are read as they were kept", () => {
    const store = memory();
    expect(saveEntries(store, [entry("a"), entry("b")])).toBe(true);
    expect(readEntries(store).map(({ key }) => key)).toEqual(["a", "b"]);
  });
  it("damage, a full store and no store are survived", () => {
    const full: Store = { getItem: () => "{", setItem: () => { throw new Error("full"); } };
    expect(readEntries(full)).toEqual([]);
    expect(saveEntries(full, [])).toBe(false);
    expect(saveEntries(null, [])).toBe(false);
    expect(readEntries({ getItem: () => '[1, null, {"key": "a"}]', setItem: () => undefined })).toEqual([]);
  });
  it("the same ask again is one entry, with its name kept", () => {
    const entries = withEntry([entry("a"), entry("b", "mine")], entry("b"));
    expect(entries.map(({ name }) => name)).toEqual(["mine", "a"]);
  });
  it("a key is what is asked, a name what it does", () => {
    const plan: Step[] = [{ step: "scale", heads: "L0", factor: 2 }];
    expect(keyOf({ model: "m", text: "t", plan })).toBe('["m","t",[{"step":"scale","heads":"L0","factor":2}],"auto",10,0]');
    expect(usualName({ model: "m", text: "t", plan })).toBe("multiply every head of layer 0 by 2");
  });
});

const fiveLayers = Array.from({ length: 5 }, (_, layer) => ({ stack: "", layer, num_heads: 7 }));
const twoStacks = [
  { stack: "encoder", layer: 0, num_heads: 3 },
  { stack: "encoder", layer: 1, num_heads: 3 },
  { stack: "cross", layer: 0, num_heads: 2 },
];

describe("heads in words", () => {
  const cases: [string[], string][] = [
    [[], ""],
    [["L3H2"], "L3H2"],
    [["L3H2", "L3H3", "L3H4", "L3H6"], "L3H2-4, L3H6"],
    [allHeads(fiveLayers), "L*"],
    [allHeads(fiveLayers.slice(1, 4)), "L1-3"],
    [headsOfColumn(fiveLayers, "", 6), "L*H6"],
    [["L1H0", "L2H0"], "L1-2H0"],
    [[...allHeads(fiveLayers.slice(1, 2)), "L0H1"], "L0H1, L1"],
  ];
  it.each(cases)("%j", (ticked, words) => {
    expect(headsInWords(new Set(ticked), fiveLayers)).toBe(words);
    if (words) expect([...(headsNamed(words, fiveLayers) ?? [])].sort()).toEqual([...ticked].sort());
  });

  it("names the stack where there are several", () => {
    const ticked = new Set(["encoder:L0H0", "encoder:L1H0", "cross:L0H0", "cross:L0H1"]);
    expect(headsInWords(ticked, twoStacks)).toBe("encoder:L*H0, cross:L*");
    expect(headsNamed("encoder:L*H0, cross:L*", twoStacks)).toEqual(ticked);
  });

  it("a column is not everywhere where a pruned layer lacks it", () => {
    const pruned = [...fiveLayers.slice(0, 4), { stack: "", layer: 4, num_heads: 2 }];
    const ticked = new Set(headsOfColumn(pruned, "", 3));
    expect(headsNamed(headsInWords(ticked, pruned), pruned)).toEqual(ticked);
  });

  it("what is not a set of heads is null", () => {
    for (const text of ["", "layer 3", "L9H1", "L3H99", "L3H", "encoder:L0"]) expect(headsNamed(text, fiveLayers)).toBeNull();
  });
});

describe("places", () => {
  it("a rectangle between twoStacks heads, whichever comes first", () => {
    const expected = ["L1H2", "L1H3", "L2H2", "L2H3"];
    expect(headsBetween(fiveLayers, "L1H2", "L2H3")).toEqual(expected);
    expect(headsBetween(fiveLayers, "L2H2", "L1H3")).toEqual(expected);
  });
  it("reads a name", () => {
    expect(placeOf("cross:L10H2")).toEqual({ stack: "cross", layer: 10, index: 2 });
    expect(placeOf("L1")).toBeNull();
  });
  it("counts in words", () => {
    expect([countInWords(1, 35), countInWords(3, 35), countInWords(35, 35)]).toEqual(["1 head", "3 heads", "all 35 heads"]);
  });
});

const twoLayers = [0, 1].map((layer) => ({ stack: "", layer, num_heads: 2 }) as LayerInfo);
const makeSandbox = (): Sandbox => {
  const sandbox = new Sandbox({} as Client);
  sandbox.follow("minilm", "The cat sat", twoLayers);
  return sandbox;
};

describe("the sandbox", () => {
  it("has no derived, which would die with the room that made it", () => {
    expect(text.split("\n").filter((line) => !line.startsWith("//")).join("\n")).not.toContain("$derived");
  });
  it("plans what is ticked", () => {
    const sandbox = makeSandbox();
    sandbox.tick(["L0H1"], true);
    expect(sandbox.plan).toMatchObject([{ step: "ablate", heads: "L0H1", kind: "zero" }]);
    expect(sandbox.total).toBe(4);
  });
  it("a scene turned on is its plan, known by it, and turned off it leaves none", () => {
    const sandbox = makeSandbox();
    for (const { name } of SCENES.filter(({ name }) => name !== "half")) {
      sandbox.turn(name, true);
      expect(sandbox.plan).toEqual(scenePlan(name, twoLayers));
      expect(sandbox.scene).toBe(name);
      sandbox.turn(name, false);
      expect([sandbox.plan, sandbox.scene, sandbox.result]).toEqual([[], null, null]);
    }
  });
  it("follows the open text until another sentence is written", () => {
    const sandbox = makeSandbox();
    sandbox.follow("minilm", "The dog ran", twoLayers);
    expect([sandbox.text, sandbox.edited]).toEqual(["The dog ran", null]);
    sandbox.text = "A bird sang";
    sandbox.follow("minilm", "The cow slept", twoLayers);
    expect([sandbox.text, sandbox.edited]).toEqual(["A bird sang", "A bird sang"]);
    sandbox.text = "The cow slept";
    expect(sandbox.edited).toBeNull();
    sandbox.text = "";
    expect(sandbox.text).toBe("");
  });
});

describe("scenes", () => {
  const shapes = [{ stack: "", layer: 0, num_heads: 12 }, { stack: "", layer: 1, num_heads: 12 }];
  it("each is a plan of its own", () => {
    expect(SCENES.map(({ name }) => planInWords(scenePlan(name, shapes)))).toEqual([
      "every head uses the map of its layer’s first head", "no output projection in any layer", "set heads 1 to 11 of every layer to zero", "set heads 6 to 11 of every layer to zero", "no positions",
    ]);
    expect(SCENES.map(({ name }) => sceneOf(scenePlan(name, shapes), shapes)?.name)).toEqual(SCENES.map(({ name }) => name));
    expect([sceneOf([], shapes), sceneOf([ablate("L0H1", "zero")], shapes)]).toEqual([null, null]);
  });
  it("several stacks, and layers of one head", () => {
    const two = [{ stack: "encoder", layer: 0, num_heads: 3 }, { stack: "decoder", layer: 0, num_heads: 2 }];
    expect(scenePlan("same", two)).toEqual([{ step: "copy", heads: "encoder:L*, decoder:L*", source: "encoder:L0H0, decoder:L0H0", share: 1 }]);
    const single = [{ stack: "", layer: 0, num_heads: 1 }];
    expect((["same", "one", "half"] as const).map((name) => scenePlan(name, single))).toEqual([[], [], []]);
    expect(scenePlan("half", twoLayers)).toEqual([]);
  });
  it("maps move from one to the other, hidden cells at once", () => {
    const maps = (...bytes: number[]) => ({ heads: ["L0H0"], maps: Uint8Array.from(bytes), peaks: new Float32Array(1), side: 2, span: null });
    const [from, to] = [maps(0, 100, 255, 10), maps(200, 0, 40, 255)];
    expect([...blended(from, to, 0.25).maps]).toEqual([50, 75, 40, 255]);
    expect([blended(from, to, 0), blended(from, to, 1)]).toEqual([from, to]);
    expect(blended(from, maps(1), 0.5).maps).toHaveLength(1);
  });
  it("each side lists its own first, and what the other has as well", () => {
    const neighbours = Array.from({ length: 7 }, (_, i) => ({ sentence: `s${i}`, before: 1 - i / 10, after: i / 10 }));
    const lists = ranked({ guesses: [], neighbours });
    expect(lists.before.map(({ text }) => text)).toEqual(["s0", "s1", "s2", "s3", "s4"]);
    expect(lists.after.map(({ text, stays }) => `${text}${stays}`)).toEqual(["s6false", "s5false", "s4true", "s3true", "s2true"]);
    expect([lists.kind, ranked({ guesses: [], neighbours: [] }).kind]).toEqual(["neighbours", null]);
  });
  it("the maps that moved most come first, by the share of their weight that lies elsewhere", () => {
    // Bytes are square roots of shares of a peak: 254 is the peak, 127 a quarter of it; 255 is a cell that is not seen.
    const from = { heads: ["L0H0", "L0H1", "L0H2"], side: 2, span: null, peaks: new Float32Array([1, 1, 0.5]), maps: new Uint8Array([254, 255, 127, 127, 254, 255, 0, 254, 254, 255, 254, 254]) };
    const to = { ...from, maps: new Uint8Array([254, 255, 254, 0, 254, 255, 254, 0, 254, 255, 254, 254]) };
    const moved = mostMoved(from, to, 5);
    expect(moved.map(({ head }) => head)).toEqual(["L0H1", "L0H0"]);
    expect(moved[0]!.moved).toBeCloseTo(2 / 4, 6);
    expect(moved[1]!.moved).toBeCloseTo((0.75 + 0.25) / (1.5 + 2), 6);
    expect(mostMoved(from, to, 1)).toHaveLength(1);
  });
});

describe("a first run", () => {
  const tokens = ["When", "Mary", "went", "to", "Mary"].map((label) => ({ label }));
  it("is offered for the head that links two words most, with what it does", () => {
    expect(beginning({ head: "L4H3", query: 3, key: 4, weight: 0.812 }, tokens, ["L0H0", "L4H3"])).toEqual({ head: "L4H3", words: "L4H3 links “to” to the second “Mary” (81 %)." });
  });
  it("is offered for no head that the model does not have, and for no link of another text", () => {
    expect(beginning({ head: "L4H3", query: 3, key: 4, weight: 0.8 }, tokens, ["L0H0"])).toBeNull();
    expect(beginning({ head: "L4H3", query: 7, key: 4, weight: 0.8 }, tokens, ["L4H3"])).toBeNull();
    expect(beginning(null, tokens, ["L4H3"])).toBeNull();
  });
});

describe("an experiment that runs on in another room", () => {
  it("is shown there until it is stopped or ends", async () => {
    const untilStopped = (_: unknown, { signal }: { signal: AbortSignal }) =>
      new Promise((_, reject) => signal.addEventListener("abort", () => reject(new DOMException("stopped", "AbortError"))));
    const client = { runJob: untilStopped } as unknown as Client;
    const sandbox = new Sandbox(client);
    const run = sandbox.run("All heads the same", { model: "m", text: "t", plan: [ablate("L3H7", "zero")] });
    const jobs = runningJobsOf(client);
    expect(jobs.outside("experiment")).toEqual([]);
    expect(jobs.outside("size").map(({ words }) => words)).toEqual(["All heads the same"]);
    jobs.outside("size")[0]!.cancel();
    await run;
    expect([jobs.list.length, sandbox.running, sandbox.stopped]).toEqual([0, false, true]);
  });
});
