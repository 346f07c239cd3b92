// What the Size room asks: a preset (or an open model) as it is, or its words with something changed; asked again, 150 ms
// after the last move, with the last good answer kept in sight while the next comes or where it is refused.
import type { Client } from "../../lib/client";
import { StudioError, isAbort } from "../../lib/source";
import { fromJson } from "../../lib/storage";
import type { Asked, SizeAsk, SizePreset, SizeReport } from "../../lib/types";
import { inPlainWords, objection, type Objection } from "./rules";
import { MOST_BATCH, MOST_CONTEXT, asked, filled, sliderOf, type Words } from "./words";

const PAUSE = 150; // ms
const START = "llama-2-70b";

/** What the address keeps. */
interface SizeMemory {
  preset?: string;
  model?: string;
  words?: Words;
  kv?: number;
  context?: number;
  batch?: number;
  dtype?: string;
}

/** What a report was asked for: its numbers are said with these, whatever has been moved since. */
interface Answered {
  context: number;
  batch: number;
  dtype: string;
}

export class Asking {
  presets = $state.raw<SizePreset[]>([]);
  report = $state.raw<SizeReport | null>(null);
  answered = $state.raw<Answered>({ context: 4096, batch: 8, dtype: "fp16" });
  /** Why the last ask was refused, and beside which slider to say it. */
  refused = $state.raw<Objection | null>(null);
  trouble = $state.raw<unknown>(null);

  preset = $state<string | null>(START);
  model = $state<string | null>(null);
  /** The description, where one was changed; else what the preset says of itself. */
  words = $state.raw<Words | null>(null);
  kv = $state<number | null>(null);
  /** Tokens of a text; null: 4,096, or as many as the model has positions for. */
  context = $state<number | null>(null);
  batch = $state(8);
  dtype = $state("fp16");

  #timer: ReturnType<typeof setTimeout> | undefined;
  #stop: AbortController | null = null;
  /** The slider that was moved last: what is said against several is said there. */
  #moved = "";

  constructor(readonly client: Client) {}

  /** The preset's own words, or null where words cannot say all of it. */
  readonly own: Words | null = $derived(this.presets.find((each) => each.name === this.preset)?.words ?? null);
  /** What the sliders show. */
  readonly shown: Words | null = $derived.by(() => {
    const words = this.words ?? this.own;
    return words ? filled(words) : null;
  });
  /** The context that the slider stands at: where none was chosen, that of the report. */
  readonly contextNow: number = $derived(this.context ?? this.answered.context);
  readonly memory: SizeMemory = $derived({
    ...(this.preset && !this.words ? { preset: this.preset } : {}),
    ...(this.model ? { model: this.model } : {}),
    ...(this.words ? { words: asked(this.words) } : {}),
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
    if (memory) this.#recall(memory);
    await this.ask();
  }

  choose(preset: string): void {
    this.preset = preset;
    this.model = this.words = this.kv = null;
    const positions = this.own?.learned_positions;
    if (this.context !== null && typeof positions === "number" && this.context > positions) this.context = null;
    this.later(0);
  }

  chooseModel(name: string): void {
    this.model = name;
    this.preset = this.words = this.kv = null;
    this.later(0);
  }

  /** Changes one number of the description; heads of an MHA take their key/value heads with them. */
  change(name: string, value: number | boolean): void {
    this.#moved = name;
    if (name === "context" && typeof value === "number") this.context = value;
    else if (name === "batch" && typeof value === "number") this.batch = value;
    else if (!this.shown) {
      if (name === "num_kv_heads" && typeof value === "number") this.kv = value;
    } else {
      const before = this.shown;
      const words: Words = { ...before, [name]: value, name: "your description" };
      const usual = Number(before.embed_dim) === Number(before.num_heads) * Number(before.head_dim ?? 0);
      if (usual && (name === "num_heads" || name === "embed_dim")) delete words.head_dim;
      if (name === "num_heads" && before.num_kv_heads === before.num_heads) words.num_kv_heads = value;
      this.words = words;
    }
    this.later(PAUSE);
  }

  setDtype(dtype: string): void {
    this.dtype = dtype;
    this.later(0);
  }

  /** As the preset is. */
  undo(): void {
    this.words = this.kv = null;
    this.preset ??= START;
    this.later(0);
  }

  later(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.ask(), pause);
  }

  async ask(): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    try {
      const known = this.words && this.shown ? objection(this.shown, this.#moved) : null;
      if (known) this.refused = known;
      else await this.#take(this.#asked(), stop.signal);
      if (known && !this.report) await this.#fall(stop.signal);
    } catch (error) {
      if (isAbort(error) || stop.signal.aborted) return;
      const ours = error instanceof StudioError && error.status < 500;
      if (ours) {
        this.refused = { words: inPlainWords(error.message), slider: sliderOf(error.message, this.#moved) };
        if (!this.report) await this.#fall(stop.signal);
      } else this.trouble = error;
    }
  }

  async #take(ask: Asked<SizeAsk>, signal: AbortSignal): Promise<void> {
    const report = await this.client.size(ask, signal);
    if (signal.aborted) return;
    this.answered = { context: contextOf(report) ?? ask.context ?? 4096, batch: ask.batch ?? 8, dtype: ask.dtype ?? "fp16" };
    this.report = report;
    this.refused = this.trouble = null;
  }

  /** Where an address brought what cannot be sized: a preset as it is, so that the page is not empty beside the words. */
  async #fall(signal: AbortSignal): Promise<void> {
    const { refused } = this;
    const preset = this.presets.some((each) => each.name === this.preset) ? this.preset : START;
    try {
      await this.#take({ preset: preset ?? START, batch: 8, dtype: "fp16" }, signal);
    } catch (error) {
      if (!isAbort(error)) this.trouble = error;
    }
    this.refused = refused;
  }

  #asked(): Asked<SizeAsk> {
    const { context, batch, dtype } = this;
    const rest = { batch, dtype, ...(context !== null ? { context } : {}), ...(this.kv !== null ? { num_kv_heads: this.kv } : {}) };
    if (this.words) return { ...rest, words: asked(this.words) };
    return this.model ? { ...rest, model: this.model } : { ...rest, preset: this.preset ?? START };
  }

  #recall(memory: SizeMemory): void {
    this.preset = memory.preset ?? (memory.words || memory.model ? null : START);
    this.model = memory.model ?? null;
    this.words = memory.words ?? null;
    this.kv = memory.kv ?? null;
    this.context = counted(memory.context, MOST_CONTEXT) ?? this.context;
    this.batch = counted(memory.batch, MOST_BATCH) ?? this.batch;
    this.dtype = memory.dtype ?? this.dtype;
  }
}

/** A number of an address: null where it is none, the most where it is above. */
function counted(value: unknown, most: number): number | null {
  return typeof value === "number" && value >= 1 ? Math.min(most, Math.round(value)) : null;
}

function contextOf(report: SizeReport): number | null {
  const said: unknown = report.document["asked"];
  const context = typeof said === "object" && said !== null ? (said as Record<string, unknown>)["context"] : null;
  return typeof context === "number" ? context : null;
}

/** What the address kept, or null where it is damaged. */
export function readMemory(text: string): SizeMemory | null {
  const found = fromJson(text);
  return typeof found === "object" && !Array.isArray(found) ? (found as SizeMemory | null) : null;
}
