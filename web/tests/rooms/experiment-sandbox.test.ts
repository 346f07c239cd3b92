// The sandbox: it outlives the room that it was made in, its plan follows what is ticked, its sentence what is open.
import { describe, expect, it } from "vitest";
import type { Client } from "../../src/lib/api/client";
import type { LayerInfo } from "../../src/lib/api/types";
import { Sandbox } from "../../src/rooms/experiment/sandbox.svelte";
import text from "../../src/rooms/experiment/sandbox.svelte.ts?raw";

const layers = [0, 1].map((layer) => ({ stack: "", layer, num_heads: 2 }) as LayerInfo);
const made = (): Sandbox => {
  const sandbox = new Sandbox({} as Client);
  sandbox.follow("minilm", "The cat sat", layers);
  return sandbox;
};

describe("the sandbox", () => {
  it("has no derived, which would die with the room that made it", () => {
    expect(text.split("\n").filter((line) => !line.startsWith("//")).join("\n")).not.toContain("$derived");
  });
  it("plans what is ticked", () => {
    const sandbox = made();
    sandbox.tick(["L0H1"], true);
    expect(sandbox.plan).toMatchObject([{ step: "ablate", heads: "L0H1", kind: "zero" }]);
    sandbox.preset("same", null);
    expect(sandbox.plan).toEqual([{ step: "copy", heads: "L*", source: "L*H0" }]);
    expect(sandbox.total).toBe(4);
    sandbox.preset("remove", "L1H0");
    expect(sandbox.plan).toMatchObject([{ heads: "L1H0" }]);
  });
  it("follows the open text until another sentence is written", () => {
    const sandbox = made();
    sandbox.follow("minilm", "The dog ran", layers);
    expect([sandbox.text, sandbox.edited]).toEqual(["The dog ran", null]);
    sandbox.text = "A bird sang";
    sandbox.follow("minilm", "The cow slept", layers);
    expect([sandbox.text, sandbox.edited]).toEqual(["A bird sang", "A bird sang"]);
    sandbox.text = "The cow slept";
    expect(sandbox.edited).toBeNull();
    sandbox.text = "";
    expect(sandbox.text).toBe("");
  });
});
