// The Size room's request and its report: a preset or a model of the workspace as it is, or a description with changes. It
// is sent 150 ms after the last movement of a slider. The last report stays on screen until the next one arrives, and when
// a request is refused.
import type { Client } from "../../lib/api/client";
import { isAbort, StudioError } from "../../lib/api/source";
import type { RequestBody, SizeAsk, SizePreset, SizeReport } from "../../lib/api/types";
import { fromJson } from "../../lib/state/storage";
import {
  compact, inPlainWords, MOST_BATCH, MOST_CONTEXT, objection, sliderOf, withDefaults, type Objection, type Words,
} from "./sliders";

const PAUSE = 150; // ms
const START = "llama-2-70b";

/** The request as the address keeps it. */
interface SizeMemory {
  preset?: string;
  model?: string;
  words?: Words;
  kv?: number;
  context?: number;
  batch?: number;
  dtype?: string;
}

/** The use that a report was computed for: it is shown with these, whatever has been moved since. */
interface ReportedUse {
  context: number;
  batch: number;
  dtype: string;
}

export class SizeRequest {
  presets = $state.raw<SizePreset[]>([]);
  report = $state.raw<SizeReport | null>(null);
  reported = $state.raw<ReportedUse>({ context: 4096, batch: 8, dtype: "fp16" });
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

  #timer: ReturnType<typeof setTimeout> | undefined;
  #stop: AbortController | null = null;
  /** The name of the slider that was moved last: an objection to several sliders stands beside it. */
  #moved = "";

  constructor(readonly client: Client) {}

  /** The preset's description, or null if words cannot describe all of it. */
  readonly presetWords: Words | null = $derived(this.presets.find(({ name }) => name === this.preset)?.words ?? null);
  /** The description that the sliders show; null if there is none. */
  readonly description: Words | null = $derived.by(() => {
    const words = this.words ?? this.presetWords;
    return words ? withDefaults(words) : null;
  });
  /** The context that the slider shows: that of the report where none was chosen. */
  readonly currentContext: number = $derived(this.context ?? this.reported.context);
  readonly memory: SizeMemory = $derived({
    ...(this.preset && !this.words ? { preset: this.preset } : {}),
    ...(this.model ? { model: this.model } : {}),
    ...(this.words ? { words: compact(this.words) } : {}),
    ...(this.kv !== null ? { kv: this.kv } : {}),
    ...(this.context !== null ? { context: this.context } : {}),
    batch: this.batch,
    dtype: this.dtype,
  });

  async start(memory: SizeMemory | null): Promise<void> {
    try {
      if (!this.presets.length) this.presets = await this.client.presets();
    } catch (error) {
      this.trouble = error;
      return;
    }
    if (memory) this.#restore(memory);
    await this.send();
  }

  choose(preset: string): void {
    this.preset = preset;
    this.model = this.words = this.kv = null;
    const positions = this.presetWords?.learned_positions;
    if (this.context !== null && typeof positions === "number" && this.context > positions) this.context = null;
    this.schedule(0);
  }

  chooseModel(name: string): void {
    this.model = name;
    this.preset = this.words = this.kv = null;
    this.schedule(0);
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
    this.schedule(PAUSE);
  }

  setDtype(dtype: string): void {
    this.dtype = dtype;
    this.schedule(0);
  }

  /** Back to the preset as it is. */
  undo(): void {
    this.words = this.kv = null;
    this.preset ??= START;
    this.schedule(0);
  }

  schedule(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.send(), pause);
  }

  async send(): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    try {
      const problem = this.words && this.description ? objection(this.description, this.#moved) : null;
      if (problem) this.refused = problem;
      else await this.#load(this.#body(), stop.signal);
      if (problem && !this.report) await this.#loadPreset(stop.signal);
    } catch (error) {
      if (isAbort(error) || stop.signal.aborted) return;
      if (error instanceof StudioError && error.status < 500) {
        this.refused = { words: inPlainWords(error.message), slider: sliderOf(error.message, this.#moved) };
        if (!this.report) await this.#loadPreset(stop.signal);
      } else this.trouble = error;
    }
  }

  async #load(body: RequestBody<SizeAsk>, signal: AbortSignal): Promise<void> {
    const report = await this.client.size(body, signal);
    if (signal.aborted) return;
    this.reported = { context: contextOf(report) ?? body.context ?? 4096, batch: body.batch ?? 8, dtype: body.dtype ?? "fp16" };
    this.report = report;
    this.refused = this.trouble = null;
  }

  /** Loads the preset as it is, for an address that brought what cannot be sized: the page is then not empty. */
  async #loadPreset(signal: AbortSignal): Promise<void> {
    const { refused } = this;
    const preset = this.presets.some(({ name }) => name === this.preset) ? this.preset : START;
    try {
      await this.#load({ preset: preset ?? START, batch: 8, dtype: "fp16" }, signal);
    } catch (error) {
      if (!isAbort(error)) this.trouble = error;
    }
    this.refused = refused;
  }

  #body(): RequestBody<SizeAsk> {
    const { context, batch, dtype } = this;
    const use = { batch, dtype, ...(context !== null ? { context } : {}), ...(this.kv !== null ? { num_kv_heads: this.kv } : {}) };
    if (this.words) return { ...use, words: compact(this.words) };
    return this.model ? { ...use, model: this.model } : { ...use, preset: this.preset ?? START };
  }

  #restore(memory: SizeMemory): void {
    this.preset = memory.preset ?? (memory.words || memory.model ? null : START);
    this.model = memory.model ?? null;
    this.words = memory.words ?? null;
    this.kv = memory.kv ?? null;
    this.context = countIn(memory.context, MOST_CONTEXT) ?? this.context;
    this.batch = countIn(memory.batch, MOST_BATCH) ?? this.batch;
    this.dtype = memory.dtype ?? this.dtype;
  }
}

/** A count from the address: null for anything else, at most `most`. */
function countIn(value: unknown, most: number): number | null {
  return typeof value === "number" && value >= 1 ? Math.min(most, Math.round(value)) : null;
}

function contextOf(report: SizeReport): number | null {
  const request: unknown = report.document["asked"];
  const context = typeof request === "object" && request !== null ? (request as Record<string, unknown>)["context"] : null;
  return typeof context === "number" ? context : null;
}

/** The request that the address keeps, or null for a missing or damaged one. */
export function readMemory(text: string): SizeMemory | null {
  const memory = fromJson(text);
  return typeof memory === "object" && !Array.isArray(memory) ? (memory as SizeMemory | null) : null;
}
