// The state of the sandbox: the sentence, the ticked heads, the plan, the running experiment, its result, and the stored
// entries. There is one for each mounted studio, and it survives a visit to another room.
//
// Values computed from this state are getters, never $derived: a derived belongs to the component that first read it and is
// never computed anew once that component is destroyed, while the sandbox lives on.
import type { Client } from "../../lib/api/client";
import { isAbort } from "../../lib/api/source";
import type { Experiment, LayerInfo, Progress, SceneName } from "../../lib/api/types";
import { runningJobsOf } from "../../lib/state/running.svelte";
import { browserStore, fromJson } from "../../lib/state/storage";
import { keyOf, readEntries, saveEntries, usualName, withEntry, type Ask, type Entry } from "./entries";
import { allHeads, headName, headsInWords, headsNamed, layerName, placeOf } from "./heads";
import { headsOf, layersOf, operationOf, reordered, stepsFor, stepsIn, type Operation, type Step } from "./steps";
import { SCENES, sceneOf, scenePlan } from "./scenes";

const sandboxes = new WeakMap<object, Sandbox>();

/** The sandbox of one mounted studio (`owner` is anything that lives as long as it does). */
export function sandboxOf(owner: object, client: Client): Sandbox {
  const sandbox = sandboxes.get(owner) ?? new Sandbox(client);
  sandboxes.set(owner, sandbox);
  return sandbox;
}

export class Sandbox {
  /** The text that is open in the top line, and the sentence that the reader wrote instead; null follows the open text. */
  opened = $state("");
  edited = $state.raw<string | null>(null);
  model = $state("");
  layers = $state.raw<LayerInfo[]>([]);
  ticked = $state.raw<ReadonlySet<string>>(new Set());
  operation = $state<Operation>("zero");
  factor = $state(0.5);
  seed = $state(0);
  otherText = $state("");
  /** What a streaming head sees, in tokens; few, since texts here are short. */
  sink = $state<number | null>(1);
  recent = $state<number | null>(4);
  /** The number, in its layer, of the head that others copy from; `sources` holds exceptions by the layer's name. */
  source = $state(0);
  sources = $state.raw<Record<string, number>>({});
  /** Steps of the plan before the one that is ticked now. */
  steps = $state.raw<Step[]>([]);
  progress = $state.raw<Progress | null>(null);
  running = $state(false);
  stopped = $state(false);
  trouble = $state.raw<unknown>(null);
  result = $state.raw<Experiment | null>(null);
  entries = $state.raw<Entry[]>([]);
  /** Whether the entries are stored in the browser. */
  stored = $state(true);
  /** Keys of the entries that are shown side by side: two at most. */
  beside = $state.raw<string[]>([]);
  /** Names of pruned models that were written or were refused as taken. */
  names = $state.raw<ReadonlySet<string>>(new Set());
  /** The arrival by address whose plan was read last, so that none is read twice. */
  arrived = $state(-1);

  #store = browserStore();
  #stop: AbortController | null = null;

  constructor(readonly client: Client) {
    this.entries = readEntries(this.#store);
    this.stored = this.#store !== null;
  }

  get text(): string {
    return this.edited ?? this.opened;
  }

  set text(text: string) {
    this.edited = text === this.opened ? null : text;
  }

  get total(): number {
    return allHeads(this.layers).length;
  }

  get words(): string {
    return headsInWords(this.ticked, this.layers);
  }

  get draft(): Step[] {
    if (!this.ticked.size) return [];
    const layers = layersOf(this.ticked, this.layers);
    const { factor, seed, sink, recent } = this;
    return stepsFor(this.operation, this.words, { factor, source: this.sourceWords, layers, seed, text: this.otherText, sink, recent });
  }

  /** Exactly what a run does: the steps so far, then the one that is ticked now. */
  get plan(): Step[] {
    return [...this.steps, ...this.draft];
  }

  /** Layers with a ticked head, and their names. */
  get tickedLayers(): { layer: LayerInfo; name: string }[] {
    return this.layers
      .map((layer) => ({ layer, name: layerName(layer.stack, layer.layer) }))
      .filter(({ name }) => [...this.ticked].some((head) => head.startsWith(`${name}H`)));
  }

  get sourceWords(): string {
    const heads = this.tickedLayers.map(({ layer, name }) =>
      headName(layer.stack, layer.layer, Math.min(this.sources[name] ?? this.source, layer.num_heads - 1)),
    );
    return headsInWords(new Set(heads), this.layers);
  }

  /** Follows the open model and text. The plan of another model is dropped: its heads are other heads. */
  follow(model: string, text: string, layers: LayerInfo[]): void {
    const shape = (layers: LayerInfo[]) => layers.map((layer) => `${layer.stack}${layer.layer}.${layer.num_heads}`).join();
    if (model !== this.model || shape(layers) !== shape(this.layers)) {
      const names = allHeads(layers);
      const otherModel = model !== this.model;
      this.layers = layers;
      this.model = model;
      if (otherModel) {
        this.ticked = new Set([...this.ticked].filter((head) => names.includes(head)));
        this.steps = [];
        this.result = null;
      }
    }
    this.opened = text;
    if (this.edited === text) this.edited = null;
  }

  tick(heads: Iterable<string>, on: boolean): void {
    const next = new Set(this.ticked);
    for (const head of heads) on ? next.add(head) : next.delete(head);
    this.ticked = next;
  }

  /** Adds the ticked step to the plan and begins another. */
  addStep(): void {
    this.steps = this.plan;
    this.ticked = new Set();
  }

  removeStep(removed: number): void {
    this.steps = this.steps.filter((_, index) => index !== removed);
  }

  moveStep(from: number, to: number): void {
    this.steps = reordered(this.steps, from, to);
  }

  /** Moves a step of the plan back into the grid, where it can be changed. */
  editStep(index: number): void {
    const step = this.steps[index];
    if (!step) return;
    this.removeStep(index);
    if (this.draft.length) this.addStep();
    this.#show(step);
  }

  /** Loads a plan from an entry or an address. Its last step goes into the grid, where it can be changed. */
  load(stored: readonly Step[]): void {
    const plan = stepsIn(stored) ?? [];
    this.steps = plan.slice(0, -1);
    this.ticked = new Set();
    const last = plan[plan.length - 1];
    if (last && !this.#show(last)) this.steps = [...plan];
  }

  /** Turns a scene on, which runs it, or off, which leaves an empty plan. */
  turn(name: SceneName, on: boolean): void {
    this.cancel();
    this.#stop = null;
    this.running = false;
    this.stopped = false;
    this.trouble = null;
    this.result = null;
    this.sources = {};
    this.operation = "zero";
    this.load(on ? scenePlan(name, this.layers) : []);
    if (on) void this.run(SCENES.find((scene) => scene.name === name)?.title);
  }

  async run(name = "", ask: Ask = { model: this.model, text: this.text, plan: this.plan }): Promise<void> {
    if (this.running || !ask.plan.length) return;
    const stop = (this.#stop = new AbortController());
    this.running = true;
    this.stopped = false;
    this.trouble = null;
    this.progress = null;
    const sandbox = this;
    const shown = runningJobsOf(this.client).add({
      room: "experiment", words: name || usualName(ask), get progress() { return sandbox.#stop === stop ? sandbox.progress : null; }, cancel: () => stop.abort(),
    });
    try {
      const result = await this.client.runJob<Experiment>(
        () => this.client.startExperiment({ model: ask.model, text: ask.text, plan: ask.plan, name: name || usualName(ask) }),
        { signal: stop.signal, onProgress: (progress) => (this.progress = progress) },
      );
      if (this.#stop !== stop) return; // another scene was turned on meanwhile
      this.result = result;
      const { metric, unit, change, low, high, control } = result;
      const numbers = { metric, unit, change, low, high, control };
      const entry = { key: keyOf(ask), name: name || usualName(ask), made: Date.now(), ask, ...numbers };
      this.#replace(withEntry(this.entries, entry));
    } catch (error) {
      if (this.#stop !== stop) return;
      if (isAbort(error) || stop.signal.aborted) this.stopped = true;
      else this.trouble = error;
    } finally {
      shown();
      if (this.#stop === stop) {
        this.running = false;
        this.progress = null;
      }
    }
  }

  cancel(): void {
    this.#stop?.abort();
  }

  /** The scene whose plan this is, if it is one's. */
  get scene(): SceneName | null {
    return sceneOf(this.plan, this.layers)?.name ?? null;
  }

  /** Runs an entry again: experiments are deterministic, so the result is the same. The grid changes only for the open model. */
  async reopen(entry: Entry): Promise<void> {
    if (this.running) return;
    if (entry.ask.model === this.model) {
      this.text = entry.ask.text;
      this.load(entry.ask.plan);
    }
    await this.run(entry.name, entry.ask);
  }

  /** Marks a name of a pruned model as taken: the next proposal is another. */
  take(name: string): void {
    this.names = new Set([...this.names, name]);
  }

  rename(key: string, name: string): void {
    this.#replace(this.entries.map((entry) => (entry.key === key ? { ...entry, name: name.trim() || usualName(entry.ask) } : entry)));
  }

  remove(key: string): void {
    this.#replace(this.entries.filter((entry) => entry.key !== key));
    this.beside = this.beside.filter((entryKey) => entryKey !== key);
  }

  putBeside(key: string): void {
    this.beside = this.beside.includes(key) ? this.beside.filter((entryKey) => entryKey !== key) : [...this.beside, key].slice(-2);
  }

  #replace(entries: Entry[]): void {
    this.entries = entries;
    this.stored = saveEntries(this.#store, entries);
  }

  /** Puts a step into the grid; false if it names heads that the model does not have. */
  #show(step: Step): boolean {
    const heads = headsNamed(headsOf(step), this.layers);
    if (!heads || step.step === "skip_positions") return false;
    this.ticked = heads;
    this.operation = operationOf(step);
    if (step.step === "scale") this.factor = step.factor;
    if (step.step === "ablate") {
      this.seed = step.seed;
      this.otherText = step.text ?? "";
      if (step.kind === "streaming") [this.sink, this.recent] = [step.sink ?? null, step.recent ?? null];
    }
    if (step.step === "copy") {
      const sources = [...(headsNamed(step.source, this.layers) ?? [])].map(placeOf).filter((place) => place !== null);
      this.source = sources[0]?.index ?? 0;
      const others = sources.filter((place) => place.index !== this.source);
      this.sources = Object.fromEntries(others.map(({ stack, layer, index }) => [layerName(stack, layer), index]));
    }
    return true;
  }
}

/** A plan from the address; null for a missing or damaged one. */
export function readPlan(text: string): Step[] | null {
  return stepsIn(fromJson(text));
}

/** A name for a pruned model: "minilm-71-heads", or the same with the first number from 2 on that is not taken. */
export function freeName(model: string, heads: number, taken: ReadonlySet<string>): string {
  const short = model.replace(/[^A-Za-z0-9.]+/g, "-").slice(0, 40).replace(/^[^A-Za-z0-9]+/, "");
  const name = `${short || "model"}-${heads}-heads`;
  for (let number = 2, next = name; ; number += 1) {
    if (!taken.has(next)) return next;
    next = `${name}-${number}`;
  }
}
