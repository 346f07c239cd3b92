// One side of Compare: what the address says of it, and its recording, which is made where it does not exist yet.
import type { Client } from "../../lib/api/client";
import { isAbort } from "../../lib/api/source";
import type { PlanStep, Progress, RecordingAsk, RecordingInfo, RequestBody } from "../../lib/api/types";
import type { Session } from "../../lib/state/session.svelte";
import { fromJson } from "../../lib/state/storage";
import { MAX_TEXT } from "../../lib/state/view.svelte";
import { stepsIn } from "../experiment/steps";

/** How a side's recording differs from the open one; {} is the open recording itself. */
export interface Side {
  model?: string;
  text?: string;
  file?: string;
  plan?: PlanStep[];
}

interface OpenRecording {
  model: string;
  text: string;
}

/** A side as text for the address: "" for the open recording. */
export function formatSide(side: Side, open: OpenRecording | null): string {
  const difference: Side = {};
  if (side.file) difference.file = side.file;
  else {
    if (side.model && side.model !== open?.model) difference.model = side.model;
    if (side.text !== undefined && side.text !== open?.text && side.text.length <= MAX_TEXT) difference.text = side.text;
  }
  if (side.plan?.length) difference.plan = side.plan;
  return Object.keys(difference).length ? JSON.stringify(difference) : "";
}

/** A side from the address; {} for the open recording and for damaged text. */
export function readSide(param: string): Side {
  const { model, text, file, plan } = (fromJson(param) ?? {}) as Record<string, unknown>;
  const steps = stepsIn(plan);
  return {
    ...(typeof model === "string" ? { model } : {}),
    ...(typeof text === "string" ? { text } : {}),
    ...(typeof file === "string" ? { file } : {}),
    ...(steps ? { plan: steps } : {}),
  };
}

/** The request that makes a side's recording, or null for the open recording. */
export function requestFor(side: Side, open: OpenRecording | null): RequestBody<RecordingAsk> | null {
  if (side.file) return { file: side.file };
  if (!Object.keys(side).length) return null;
  const model = side.model ?? open?.model;
  const text = side.text ?? open?.text;
  return { ...(model ? { model } : {}), ...(text !== undefined ? { text } : {}), ...(side.plan ? { plan: side.plan } : {}) };
}

/** A side's recording as it loads. Recordings that were made are kept by their request in `cache` for as long as the room
    is open, so that swapping the sides makes none anew. */
export class SideLoader {
  info = $state.raw<RecordingInfo | null>(null);
  progress = $state.raw<Progress | null>(null);
  trouble = $state.raw<unknown>(null);
  busy = $state(false);
  #stop: AbortController | null = null;

  constructor(
    readonly client: Client,
    readonly session: Session,
    readonly cache: Map<string, RecordingInfo>,
  ) {}

  /** Loads the recording of a request, or takes the open one where `request` is null. */
  async load(request: RequestBody<RecordingAsk> | null, open: RecordingInfo | null): Promise<void> {
    this.#stop?.abort();
    this.trouble = null;
    this.busy = false;
    const name = JSON.stringify(request);
    const cached = request ? this.cache.get(name) : open;
    if (cached || !request) {
      this.info = cached ?? null;
      return;
    }
    const stop = (this.#stop = new AbortController());
    this.busy = true;
    this.progress = null;
    try {
      const onProgress = (progress: Progress) => (this.progress = progress);
      const info = await this.client.runJob<RecordingInfo>(() => this.client.startRecording(request), { signal: stop.signal, onProgress });
      this.cache.set(name, info);
      this.session.remember(info.id, request);
      if (!stop.signal.aborted) this.info = info;
    } catch (error) {
      if (!isAbort(error) && this.#stop === stop) this.trouble = error;
    } finally {
      if (this.#stop === stop) this.busy = false;
    }
  }

  stop(): void {
    this.#stop?.abort();
    this.busy = false;
  }
}
