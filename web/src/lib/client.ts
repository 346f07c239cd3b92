// Every route as a typed function. A recording that the server has forgotten is asked for again, once, by whoever knows
// what made it (`onLost`); a job is followed until it ends.
import type { Envelope } from "./envelope";
import { StudioError, type Answer, type Source } from "./source";
import type {
  Asked, Atlas, CellAsk, CheckAsk, CheckResult, ExperimentAsk, HeadCard, How, Job, Lesson, LessonEntry, Progress,
  PruningAsk, RecordingAsk, RecordingInfo, SizeAsk, SizePreset, SizeReport, Workspace,
} from "./types";

interface JobOptions {
  onProgress?: (progress: Progress) => void;
  signal?: AbortSignal;
}

type Query = Record<string, string | number | undefined>;

const WAIT = 1; // seconds that the server may take to say that a job has not ended yet
const e = encodeURIComponent;

function query(values: Query): string {
  const parts = Object.entries(values).filter(([, v]) => v !== undefined && v !== "");
  return parts.length ? `?${parts.map(([k, v]) => `${e(k)}=${e(String(v))}`).join("&")}` : "";
}

export class Client {
  /** Makes a forgotten recording anew; true where that worked and the request is worth repeating. */
  onLost: (recording: string) => Promise<boolean> = async () => false;

  constructor(readonly source: Source) {}

  // ------------------------------------------------------------------ what is here
  workspace(): Promise<Workspace> {
    return this.#json("/api/workspace");
  }

  startRecording(ask: Asked<RecordingAsk>): Promise<Job> {
    return this.#post("/api/recordings", ask);
  }

  recording(id: string, text = 0, signal?: AbortSignal): Promise<RecordingInfo> {
    return this.#of(id, query({ text: text || undefined }), signal).then((a) => a.json());
  }

  atlas(id: string, text = 0, signal?: AbortSignal): Promise<Atlas> {
    return this.#of(id, `/atlas${query({ text })}`, signal).then((a) => a.json());
  }

  startRoles(id: string): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/roles`);
  }

  thumbnails(id: string, o: { text?: number; size?: number; how?: How } = {}, signal?: AbortSignal): Promise<Envelope> {
    return this.#of(id, `/thumbnails${query({ ...o })}`, signal).then((a) => a.envelope());
  }

  // ------------------------------------------------------------------ one head
  tile(
    id: string, head: string, level: number, column: number, row: number,
    o: { text?: number; how?: How; rows?: "auto" | "all" } = {}, signal?: AbortSignal,
  ): Promise<Envelope> {
    return this.#of(id, `/tiles/${e(head)}/${level}/${column}/${row}${query({ ...o })}`, signal).then((a) => a.envelope());
  }

  row(id: string, head: string, row: number, text = 0): Promise<Envelope> {
    return this.#of(id, `/rows/${e(head)}/${row}${query({ text })}`).then((a) => a.envelope());
  }

  headCard(id: string, head: string, text = 0, signal?: AbortSignal): Promise<HeadCard> {
    return this.#of(id, `/heads/${e(head)}${query({ text })}`, signal).then((a) => a.json());
  }

  /** What is lost on a text without each head: the job's result is the atlas with that beside its statistics. */
  startImportance(id: string, text = 0): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/importance${query({ text })}`);
  }

  startWorth(id: string, head: string, kind = "mean", text = 0): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/heads/${e(head)}/worth${query({ kind, text })}`);
  }

  /** Every head's numbers as a file's bytes. */
  table(id: string, format: "csv" | "parquet" | "json", text = 0): Promise<Answer> {
    return this.#of(id, `/table${query({ format, text })}`);
  }

  /** A window of the exact map as a file's bytes; ranges as in "0:64". */
  window(id: string, head: string, format: "csv" | "parquet", queries: string, keys: string, text = 0): Promise<Answer> {
    return this.#of(id, `/window/${e(head)}${query({ format, queries, keys, text })}`);
  }

  // ------------------------------------------------------------------ experiments, sizes, lessons
  startExperiment(ask: Asked<ExperimentAsk, "model" | "text" | "plan">): Promise<Job> {
    return this.#post("/api/experiments", ask);
  }

  startPruning(ask: Asked<PruningAsk, "model" | "heads" | "name">): Promise<Job> {
    return this.#post("/api/prunings", ask);
  }

  presets(): Promise<SizePreset[]> {
    return this.#json("/api/presets");
  }

  size(ask: Asked<SizeAsk>, signal?: AbortSignal): Promise<SizeReport> {
    return this.#post("/api/sizes", ask, signal);
  }

  lessons(): Promise<LessonEntry[]> {
    return this.#json("/api/lessons");
  }

  /** With a seed, the inputs of its checks are drawn. */
  lesson(slug: string, seed?: number, signal?: AbortSignal): Promise<Lesson> {
    return this.#json(`/api/lessons/${e(slug)}${query({ seed })}`, signal);
  }

  startCell(slug: string, cell: string, parameters: CellAsk["parameters"]): Promise<Job> {
    return this.#post(`/api/lessons/${e(slug)}/cells/${e(cell)}`, { parameters });
  }

  check(slug: string, check: string, ask: Asked<CheckAsk, "answer">): Promise<CheckResult> {
    return this.#post(`/api/lessons/${e(slug)}/checks/${e(check)}`, ask);
  }

  // ------------------------------------------------------------------ jobs
  /** Starts a job, follows it, and gives its result; stops it when the signal says so. */
  async runJob<T>(start: () => Promise<Job>, { onProgress, signal }: JobOptions = {}): Promise<T> {
    signal?.throwIfAborted();
    let job = await start();
    try {
      while (job.state === "running") {
        onProgress?.(job.progress);
        job = await this.#json(`/api/jobs/${e(job.id)}${query({ wait: WAIT })}`, signal);
      }
    } catch (error) {
      if (signal?.aborted) void this.source.send("DELETE", `/api/jobs/${e(job.id)}`).catch(() => undefined);
      throw error;
    }
    if (signal?.aborted) throw signal.reason;
    if (job.state === "done") return job.result as T;
    throw new StudioError(job.state === "failed" ? 500 : 409, job.problem ?? { kind: job.state, words: "It was stopped." });
  }

  // ------------------------------------------------------------------ below
  async #json<T>(path: string, signal?: AbortSignal): Promise<T> {
    return (await this.source.get(path, signal)).orThrow().json<T>();
  }

  async #post<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
    return (await this.source.send("POST", path, body, signal)).orThrow().json<T>();
  }

  async #of(id: string, rest: string, signal?: AbortSignal): Promise<Answer> {
    const path = `/api/recordings/${e(id)}${rest}`;
    const answer = await this.source.get(path, signal);
    if (answer.status !== 404 || !(await this.onLost(id))) return answer.orThrow();
    return (await this.source.get(path, signal)).orThrow();
  }
}
