// What a person is doing in the sandbox: the sentence, the ticked heads, the plan, the run under way, its result, and the
// kept entries. One for each mounted studio, and it outlives a walk to another room.
//
// What follows from its state is read by getters, never by $derived: a derived belongs to the component that first made
// it and is never computed anew after that has gone, while this goes on.
import type { Client } from "../../lib/client";
import { isAbort } from "../../lib/source";
import type { Experiment, LayerInfo, Progress } from "../../lib/types";
import { browserStore, fromJson } from "../../lib/storage";
import { keepEntries, keyOf, readEntries, usualName, withEntry, type Ask, type Entry } from "./entries";
import { allHeads, headName, headsInWords, headsNamed, layerName, placeOf } from "./heads";
import { doingOf, headsOf, layersOf, moved, stepsFor, stepsIn, type Doing, type Step } from "./steps";

const made = new WeakMap<object, Sandbox>();

/** The sandbox of one mounted studio (`owner` is anything that lives as long as it does). */
export function sandboxOf(owner: object, client: Client): Sandbox {
  const found = made.get(owner) ?? new Sandbox(client);
  made.set(owner, found);
  return found;
}

export class Sandbox {
  /** The text that is open above, and the sentence where the person wrote another: null follows what is open. */
  opened = $state("");
  edited = $state.raw<string | null>(null);
  model = $state("");
  layers = $state.raw<LayerInfo[]>([]);
  ticked = $state.raw<ReadonlySet<string>>(new Set());
  doing = $state<Doing>("zero");
  factor = $state(0.5);
  seed = $state(0);
  otherText = $state("");
  /** The head that others copy from, by its place in its layer; `sources` where a layer has another. */
  source = $state(0);
  sources = $state.raw<Record<string, number>>({});
  /** Steps that come before what is ticked now. */
  steps = $state.raw<Step[]>([]);
  progress = $state.raw<Progress | null>(null);
  running = $state(false);
  stopped = $state(false);
  trouble = $state.raw<unknown>(null);
  result = $state.raw<Experiment | null>(null);
  entries = $state.raw<Entry[]>([]);
  kept = $state(true);
  /** Entries put side by side, by key: two at most. */
  beside = $state.raw<string[]>([]);
  /** Names of pruned models that were written, or were found to be taken. */
  names = $state.raw<ReadonlySet<string>>(new Set());
  /** The arrival by address that was read last: what it brought is not brought again. */
  arrived = $state(-1);

  #store = browserStore();
  #stop: AbortController | null = null;

  constructor(readonly client: Client) {
    this.entries = readEntries(this.#store);
    this.kept = this.#store !== null;
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
    const { factor, seed } = this;
    return stepsFor(this.doing, this.words, { factor, source: this.sourceWords, layers, seed, text: this.otherText });
  }

  /** Exactly what a run does: the steps so far, then what is ticked now. */
  get plan(): Step[] {
    return [...this.steps, ...this.draft];
  }

  /** Layers (by name) that have a ticked head, with how many heads there are to copy from. */
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

  /** The model and text that are open: a new model's heads are other heads. */
  follow(model: string, text: string, layers: LayerInfo[]): void {
    const shape = (of: LayerInfo[]) => of.map((layer) => `${layer.stack}${layer.layer}.${layer.num_heads}`).join();
    if (model !== this.model || shape(layers) !== shape(this.layers)) {
      const fresh = model !== this.model;
      this.layers = layers;
      this.model = model;
      if (fresh) {
        this.ticked = new Set([...this.ticked].filter((head) => allHeads(layers).includes(head)));
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

  /** Makes what is ticked a step of the plan, and begins another. */
  addStep(): void {
    this.steps = this.plan;
    this.ticked = new Set();
  }

  removeStep(at: number): void {
    this.steps = this.steps.filter((_, index) => index !== at);
  }

  moveStep(from: number, to: number): void {
    this.steps = moved(this.steps, from, to);
  }

  /** Takes a step back into the grid, to change it. */
  editStep(at: number): void {
    const step = this.steps[at];
    if (!step) return;
    this.removeStep(at);
    if (this.draft.length) this.addStep();
    this.#show(step);
  }

  /** A plan from an entry or an address: its last step is in the grid, ready to be changed. */
  load(plan: readonly Step[]): void {
    this.steps = plan.slice(0, -1);
    this.ticked = new Set();
    const last = plan[plan.length - 1];
    if (last && !this.#show(last)) this.steps = [...plan];
  }

  preset(which: "same" | "unmixed" | "remove", head: string | null): void {
    this.steps = [];
    this.sources = {};
    this.source = 0;
    this.doing = { same: "copy", unmixed: "skip_output_projection", remove: "zero" }[which] as Doing;
    this.ticked = new Set(which === "remove" && head ? [head] : allHeads(this.layers));
  }

  async run(name = "", ask: Ask = { model: this.model, text: this.text, plan: this.plan }): Promise<void> {
    if (this.running || !ask.plan.length) return;
    const stop = (this.#stop = new AbortController());
    this.running = true;
    this.stopped = false;
    this.trouble = null;
    this.progress = null;
    try {
      const found = await this.client.runJob<Experiment>(
        () => this.client.startExperiment({ model: ask.model, text: ask.text, plan: ask.plan, name: name || usualName(ask) }),
        { signal: stop.signal, onProgress: (progress) => (this.progress = progress) },
      );
      this.result = found;
      this.#keep(ask, found, name);
    } catch (error) {
      if (isAbort(error) || stop.signal.aborted) this.stopped = true;
      else this.trouble = error;
    } finally {
      this.running = false;
      this.progress = null;
    }
  }

  cancel(): void {
    this.#stop?.abort();
  }

  /** An entry's ask again: it is deterministic, so it gives what it gave. Another model's leaves the grid as it is. */
  async reopen(entry: Entry): Promise<void> {
    if (this.running) return;
    if (entry.ask.model === this.model) {
      this.text = entry.ask.text;
      this.load(entry.ask.plan);
    }
    await this.run(entry.name, entry.ask);
  }

  /** A name that is spoken for: the next proposal is another. */
  take(name: string): void {
    this.names = new Set([...this.names, name]);
  }

  rename(key: string, name: string): void {
    this.#replace(this.entries.map((entry) => (entry.key === key ? { ...entry, name: name.trim() || usualName(entry.ask) } : entry)));
  }

  remove(key: string): void {
    this.#replace(this.entries.filter((entry) => entry.key !== key));
    this.beside = this.beside.filter((each) => each !== key);
  }

  putBeside(key: string): void {
    this.beside = this.beside.includes(key) ? this.beside.filter((each) => each !== key) : [...this.beside, key].slice(-2);
  }

  #keep(ask: Ask, found: Experiment, name: string): void {
    const { metric, unit, change, low, high, control } = found;
    const numbers = { metric, unit, change, low, high, control };
    const key = keyOf(ask);
    this.#replace(withEntry(this.entries, { key, name: name || usualName(ask), made: Date.now(), ask, ...numbers }));
  }

  #replace(entries: Entry[]): void {
    this.entries = entries;
    this.kept = keepEntries(this.#store, entries);
  }

  /** Puts a step into the grid; false where it names heads that are not here. */
  #show(step: Step): boolean {
    const heads = headsNamed(headsOf(step), this.layers);
    if (!heads) return false;
    this.ticked = heads;
    this.doing = doingOf(step);
    if (step.step === "scale") this.factor = step.factor;
    if (step.step === "ablate") {
      this.seed = step.seed;
      this.otherText = step.text ?? "";
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

/** A plan that the address kept, or null where there is none, or a damaged one. */
export function readPlan(text: string): Step[] | null {
  return stepsIn(fromJson(text));
}
