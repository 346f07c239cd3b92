// The state of the room Circuit: the pair, what is patched, the jobs about it and their results. There is one for each mounted
// studio, and it survives a visit to another room; so values computed from it are getters, never $derived.
import type { Client } from "../../lib/api/client";
import { isAbort } from "../../lib/api/source";
import { runningJobsOf } from "../../lib/state/running.svelte";
import type { CircuitRun, ExamplePair, HeadEffects, HeadPaths, HeadWriting, Job, PairReading, PatchAsk, Progress } from "../../lib/api/types";

export type What = PatchAsk["what"];
export type Direction = PatchAsk["direction"];

const works = new WeakMap<object, Work>();

/** The work of one mounted studio (`owner` is anything that lives as long as it does). */
export function workOf(owner: object, client: Client): Work {
  const work = works.get(owner) ?? new Work(client);
  works.set(owner, work);
  return work;
}

/** One kind of job: starting another one stops it. `key`: what the result is of. */
export class Task<T> {
  running = $state(false);
  stopped = $state(false);
  progress = $state.raw<Progress | null>(null);
  trouble = $state.raw<unknown>(null);
  result = $state.raw<T | null>(null);
  key = $state("");
  #stop: AbortController | null = null;

  constructor(private readonly client: Client) {}

  async run(key: string, start: () => Promise<Job>): Promise<T | null> {
    this.cancel();
    const stop = (this.#stop = new AbortController());
    [this.running, this.stopped, this.progress, this.trouble] = [true, false, null, null];
    const task = this;
    const shown = runningJobsOf(this.client).add({ room: "circuit", words: "a pair of texts", get progress() { return task.#stop === stop ? task.progress : null; }, cancel: () => stop.abort() });
    try {
      const result = await this.client.runJob<T>(start, { signal: stop.signal, onProgress: (progress) => this.#stop === stop && (this.progress = progress) });
      if (this.#stop !== stop) return null;
      [this.result, this.key] = [result, key];
      return result;
    } catch (error) {
      if (this.#stop !== stop) return null;
      if (isAbort(error) || stop.signal.aborted) this.stopped = true;
      else this.trouble = error;
      return null;
    } finally {
      shown();
      if (this.#stop === stop) this.running = false;
    }
  }

  cancel(): void {
    this.#stop?.abort();
  }

  /** Stops what runs, and forgets what was found. */
  clear(): void {
    this.cancel();
    this.#stop = null;
    [this.running, this.stopped, this.progress, this.trouble, this.result, this.key] = [false, false, null, null, null, ""];
  }
}

export class Work {
  model = $state("");
  clean = $state("");
  corrupted = $state("");
  right = $state("");
  wrong = $state("");
  what = $state<What>("out");
  direction = $state<Direction>("denoise");
  /** The example of the model: fields that are equal to it are left out of the address. */
  example = $state.raw<ExamplePair | null>(null);
  pins = $state.raw<readonly string[]>([]);
  /** Pins of the address that wait for the model's heads. */
  wanted = $state<string | null>(null);
  /** The arrival by address that was read last, so that none is read twice. */
  arrived = $state(-1);

  readonly reading: Task<PairReading>;
  readonly patching: Task<HeadEffects>;
  readonly writing: Task<HeadWriting>;
  readonly paths: Task<HeadPaths>;
  readonly circuit: Task<CircuitRun>;

  constructor(readonly client: Client) {
    this.reading = new Task(client);
    this.patching = new Task(client);
    this.writing = new Task(client);
    this.paths = new Task(client);
    this.circuit = new Task(client);
  }

  get pair() {
    const { model, clean, corrupted, right, wrong } = this;
    return { model, clean, corrupted, right, wrong };
  }

  /** What names the pair, and with it what is patched: results of another one are old. */
  get pairKey(): string {
    return JSON.stringify(this.pair);
  }

  get key(): string {
    return JSON.stringify([this.pair, this.what, this.direction]);
  }

  get isExample(): boolean {
    return JSON.stringify(this.pair) === JSON.stringify({ model: this.model, ...this.example });
  }

  /** Takes another model, with its example where the pair on screen was the other model's. */
  take(model: string, example: ExamplePair | null): void {
    if (model === this.model) return;
    const own = !this.clean || this.isExample;
    [this.model, this.example] = [model, example];
    if (own && example) ({ clean: this.clean, corrupted: this.corrupted, right: this.right, wrong: this.wrong } = example);
    this.pins = [];
    for (const task of [this.reading, this.patching, this.writing, this.paths, this.circuit]) task.clear();
  }

  read(): void {
    const { pair, pairKey } = this;
    if (pair.clean && pair.corrupted) void this.reading.run(pairKey, () => this.client.startPair("pairs", pair));
    else this.reading.clear();
  }

  patch(): void {
    const { pair, key, what, direction } = this;
    this.circuit.cancel();
    void this.patching.run(key, () => this.client.startPair("effects", { ...pair, what, direction }));
  }

  /** What a head writes; what is known of it stays. */
  write(head: string): void {
    const key = JSON.stringify([this.pair, head]);
    if (this.writing.key === key && !this.writing.running) return;
    void this.writing.run(key, () => this.client.startPair("writing", { ...this.pair, head }));
  }

  pathsKey(head: string): string {
    return JSON.stringify([this.pair, this.direction, head]);
  }

  listen(head: string): void {
    void this.paths.run(this.pathsKey(head), () => this.client.startPair("paths", { ...this.pair, head, direction: this.direction }));
  }

  pin(head: string, heads: readonly string[]): void {
    const next = new Set(this.pins);
    if (!next.delete(head)) next.add(head);
    this.pins = heads.filter((name) => next.has(name));
  }

  get pinsKey(): string {
    return JSON.stringify([this.pair, this.pins]);
  }

  alone(): void {
    const { pair, pins, pinsKey } = this;
    void this.circuit.run(pinsKey, () => this.client.startPair("alone", { ...pair, heads: pins.join(", ") }));
  }

  /** Finds the fewest heads that keep a share of the answer, and pins them. */
  async smallest(keep: number): Promise<void> {
    const { pair } = this;
    const run = await this.circuit.run("", () => this.client.startPair("smallest", { ...pair, keep }));
    if (!run) return;
    this.pins = run.heads;
    this.circuit.key = this.pinsKey;
  }
}
