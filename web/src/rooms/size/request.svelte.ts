// What the Size room sizes, and its numbers: a preset, a description, or a model of the studio, whose coefficients alone are
// asked of the server. All else is arithmetic of the page. The last numbers stay on screen when a request is refused.
import type { Client } from "../../lib/api/client";
import { inWords, placed, readDevices, undivided, type Devices, type Stage } from "./devices";
import { isAbort, StudioError } from "../../lib/api/source";
import type { RequestBody, SizeAsk, SizeShape } from "../../lib/api/types";
import { fromJson } from "../../lib/state/storage";
import { described, divisors, knowsDtype, PRESETS, sized, usualContext, type Preset, type Sized } from "./arithmetic";
import { compact, inPlainWords, MOST_BATCH, MOST_CONTEXT, objection, readWords, withDefaults, type Objection, type Words } from "./sliders";
import { integer } from "./units";

const START = "llama-3.1-8b"; // fits something that people have

/** The request as the address keeps it. */
interface SizeMemory {
  preset?: string;
  model?: string;
  words?: Words;
  kv?: number;
  context?: number;
  batch?: number;
  dtype?: string;
  /** "4x80GB", and in how many stages its layers are. */
  gpus?: string;
  stages?: number;
}

const DEVICES: Devices = { count: 4, memory: 80e9, stages: 1 };

export class SizeRequest {
  readonly presets = PRESETS;
  /** The numbers of the last use that was not refused, and what they are of. */
  report = $state.raw<Sized | null>(null);
  title = $state("");
  /** Why the last request was refused, and the slider beside which that stands. */
  refused = $state.raw<Objection | null>(null);
  trouble = $state.raw<unknown>(null);

  preset = $state<string | null>(START);
  model = $state<string | null>(null);
  /** The description after a change; null while the preset is as it is. */
  words = $state.raw<Words | null>(null);
  kv = $state<number | null>(null);
  /** Tokens of a text; null for 4,096, or as many as the model has positions for. */
  context = $state<number | null>(null);
  batch = $state(8);
  dtype = $state("fp16");
  devices = $state.raw<Devices>(DEVICES);
  /** What the numbers of the report are of. */
  #shape = $state.raw<SizeShape | null>(null);

  #models = new Map<string, SizeShape>();
  #stop: AbortController | null = null;
  /** The name of the slider that was moved last: an objection to several sliders stands beside it. */
  #moved = "";

  constructor(readonly client: Client) {}

  readonly #entry: Preset | undefined = $derived(PRESETS.find(({ name }) => name === this.preset));
  /** The description that the sliders show; null if words cannot describe all of it. */
  readonly description: Words | null = $derived.by(() => {
    const words = this.words ?? this.#entry?.words ?? null;
    return words ? withDefaults(words) : null;
  });
  /** The context that the slider shows: that of the report where none was chosen. */
  readonly currentContext: number = $derived(this.context ?? this.report?.use.context ?? 4096);
  readonly memory: SizeMemory = $derived({
    ...(this.preset && !this.words ? { preset: this.preset } : {}),
    ...(this.model ? { model: this.model } : {}),
    ...(this.words ? { words: compact(this.words) } : {}),
    ...(this.kv !== null ? { kv: this.kv } : {}),
    ...(this.context !== null ? { context: this.context } : {}),
    batch: this.batch,
    dtype: this.dtype,
    ...(this.devices !== DEVICES ? { gpus: `${this.devices.count}x${this.devices.memory / 1e9}GB`, stages: this.devices.stages } : {}),
  });

  /** What GPUs hold of it, and what that means in a sentence; null of what is no decoder. */
  readonly placed: { stages: Stage[]; said: string } | null = $derived.by(() => {
    const { report, devices } = this;
    const served = this.#shape?.served;
    if (!report || !served) return null;
    const of = [served, report.use, this.kv, report.learnedLimit, devices] as const;
    return { stages: undivided(served, devices, this.kv) ? [] : placed(...of), said: inWords(...of) };
  });

  async start(memory: SizeMemory | null): Promise<void> {
    const problem = memory ? this.#restore(memory) : null;
    await this.update();
    if (problem) this.refused = { words: problem, slider: null };
  }

  choose(preset: string): void {
    this.preset = preset;
    this.model = this.words = this.kv = null;
    const shape = this.#entry?.shape;
    if (this.context !== null && shape?.learned_positions && this.context > (shape.positions ?? 0)) this.context = null;
    void this.update();
  }

  chooseModel(name: string): void {
    this.model = name;
    this.preset = this.words = this.kv = null;
    void this.update();
  }

  /** Changes one number. In a description of multi-head attention the key/value heads follow the heads. */
  change(name: string, value: number | boolean): void {
    this.#moved = name;
    if (name === "context" && typeof value === "number") this.context = value;
    else if (name === "batch" && typeof value === "number") this.batch = value;
    else if (!this.description) {
      if (name === "num_kv_heads" && typeof value === "number") this.kv = value;
    } else {
      const previous = this.description;
      const words: Words = { ...previous, [name]: value, name: "your description" };
      const derivedHeadDim = Number(previous.embed_dim) === Number(previous.num_heads) * Number(previous.head_dim ?? 0);
      if (derivedHeadDim && (name === "num_heads" || name === "embed_dim")) delete words.head_dim;
      if (name === "num_heads" && previous.num_kv_heads === previous.num_heads) words.num_kv_heads = value;
      this.words = words;
    }
    void this.update();
  }

  setDtype(dtype: string): void {
    this.dtype = dtype;
    void this.update();
  }

  /** Back to the preset as it is. */
  undo(): void {
    this.words = this.kv = null;
    this.preset ??= START;
    void this.update();
  }

  /** Sizes what is chosen now, or says why that cannot be. */
  async update(): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    this.trouble = null;
    try {
      const problem = this.words && this.description ? objection(this.description, this.#moved) : null;
      const shape = problem ? null : await this.#shapeOf(stop.signal);
      if (stop.signal.aborted) return;
      const refused = problem ?? this.#limits(shape!);
      if (shape && !refused) {
        this.#shape = shape;
        this.report = sized(shape, { context: shape.num_tokens ?? this.context ?? usualContext(shape), batch: this.batch, dtype: this.dtype }, this.kv);
        this.title = this.words ? "your description" : (this.model ?? this.#entry?.title ?? "");
      }
      this.refused = refused;
    } catch (error) {
      if (isAbort(error) || stop.signal.aborted) return;
      if (error instanceof StudioError && error.status < 500) this.refused = { words: inPlainWords(error.message), slider: null };
      else this.trouble = error;
    }
    // An address may bring what cannot be sized: the page is then not empty.
    if (!this.report && !this.trouble) {
      const { shape, title } = this.#entry ?? PRESETS[0]!;
      this.title = title;
      this.report = sized(shape, { context: usualContext(shape), batch: 8, dtype: "fp16" });
    }
  }

  /** Everything that `manyheads size --json` prints, from the studio's server. */
  async document(): Promise<Record<string, unknown>> {
    const { context, batch, dtype } = this;
    const use = { batch, dtype, ...(context !== null ? { context } : {}), ...(this.kv !== null ? { num_kv_heads: this.kv } : {}) };
    const what: RequestBody<SizeAsk> = this.words ? { words: compact(this.words) } : this.model ? { model: this.model } : { preset: this.preset ?? START };
    return (await this.client.size({ ...use, ...what })).document;
  }

  async #shapeOf(signal: AbortSignal): Promise<SizeShape> {
    if (this.words) return { ...described(this.description ?? this.words) };
    if (!this.model) return (this.#entry ?? PRESETS[0]!).shape;
    const known = this.#models.get(this.model) ?? (await this.client.size({ model: this.model }, signal)).shape;
    this.#models.set(this.model, known);
    return known;
  }

  /** What of the use a model does not have: positions for so long a text, key/value heads that so many share. */
  #limits({ learned_positions, positions, num_heads }: SizeShape): Objection | null {
    if (learned_positions && positions !== null && this.context !== null && this.context > positions) {
      return { slider: "context", words: `It has positions for ${integer(positions)} tokens and no more.` };
    }
    if (this.kv !== null && (num_heads === null || num_heads % this.kv)) {
      return { slider: "kv-heads", words: num_heads === null ? "Its key/value heads cannot be changed." : `KV heads must divide the ${integer(num_heads)} heads evenly: ${divisors(num_heads).map(integer).join(", ")}.` };
    }
    return null;
  }

  /** Takes what the address asks for; returns what of it cannot be. */
  #restore(memory: SizeMemory): string | null {
    const words = memory.words === undefined ? null : readWords(memory.words);
    const known = memory.preset === undefined || PRESETS.some(({ name }) => name === memory.preset);
    this.model = typeof memory.model === "string" ? memory.model : null;
    this.words = words;
    this.preset = known && memory.preset !== undefined ? memory.preset : words || this.model ? null : START;
    this.kv = countIn(memory.kv, 100_000);
    this.context = countIn(memory.context, MOST_CONTEXT) ?? this.context;
    this.batch = countIn(memory.batch, MOST_BATCH) ?? this.batch;
    const dtype = memory.dtype ?? this.dtype;
    if (knowsDtype(dtype)) this.dtype = dtype;
    const devices = memory.gpus === undefined ? DEVICES : readDevices(memory.gpus, memory.stages);
    this.devices = devices ?? DEVICES;
    if (!devices) return `GPUs are not ${String(memory.gpus).slice(0, 20)} here. These are 4 of 80 GB.`;
    if (!known) return `There is no preset ${String(memory.preset).slice(0, 40)}. This is ${START}.`;
    if (memory.words !== undefined && !words) return `The address describes no model that can be sized. This is ${START}.`;
    return knowsDtype(dtype) ? null : `Numbers are not stored as ${String(dtype).slice(0, 20)} here. This is ${this.dtype}.`;
  }
}

/** A count from the address: null for anything else, at most `most`. */
function countIn(value: unknown, most: number): number | null {
  return typeof value === "number" && value >= 1 ? Math.min(most, Math.round(value)) : null;
}

/** The request that the address keeps, or null for a missing or damaged one. */
export function readMemory(text: string): SizeMemory | null {
  const memory = fromJson(text);
  return typeof memory === "object" && !Array.isArray(memory) ? (memory as SizeMemory | null) : null;
}
