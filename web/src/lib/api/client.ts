// Every route of the server as a typed function. A recording that the server no longer holds is recorded again once,
// through `onLost`; a job is followed until it ends.
import { spoken } from "../draw/spoken";
import type { Envelope } from "./envelope";
import type { SavedScene } from "./saved-lessons";
import { StudioError, type Answer, type Source } from "./source";
import type {
  Atlas, BlendAsk, CellAsk, CheckAsk, CheckResult, ExperimentAsk, FileEntry, HeadCard, History, HistoryEntry, How, Job, Lesson, LessonEntry, Pair,
  Progress, PruningAsk, RecordingAsk, RecordingInfo, RequestBody, SizeAsk, SizeReport, SwapAsk, Trained, WhyAnswer, Workspace,
} from "./types";

interface JobOptions {
  onProgress?: (progress: Progress) => void;
  signal?: AbortSignal;
}

type Query = Record<string, string | number | undefined>;

const WAIT = 1; // seconds that the server may hold a request about a running job before it answers "still running"
const e = encodeURIComponent;

function query(values: Query): string {
  const parts = Object.entries(values).filter(([, value]) => value !== undefined && value !== "");
  return parts.length ? `?${parts.map(([name, value]) => `${e(name)}=${e(String(value))}`).join("&")}` : "";
}

/** An answer's arrays, with the sentences of its header as the page sets them. */
function spokenEnvelope(answer: Answer): Envelope {
  const envelope = answer.envelope();
  return { ...envelope, header: spoken(envelope.header) };
}

function refused(words: string): StudioError {
  return new StudioError(400, { kind: "FileError", words });
}

export class Client {
  /** Records anew what the server no longer holds; true if that worked and the request can be repeated. */
  onLost: (recording: string) => Promise<boolean> = async () => false;
  /** Jobs that are waited for. */
  readonly #running = new Set<string>();

  constructor(readonly source: Source) {}

  // ------------------------------------------------------------------ the workspace and its recordings
  workspace(): Promise<Workspace> {
    return this.#json("/api/workspace");
  }

  startRecording(body: RequestBody<RecordingAsk>): Promise<Job> {
    return this.#post("/api/recordings", body);
  }

  /** Adds a recording's file to the workspace. Throws a StudioError whose words say why it is refused. */
  async takeIn(file: File): Promise<FileEntry> {
    if (!file.name.endsWith(".heads")) throw refused(`${file.name} is not a recording: drop a file that ends in .heads, as rec.save("text.heads") writes it.`);
    if (!this.source.upload) throw refused(`A notebook’s page takes no files: mh.show(mh.open_recording("${file.name}")).`);
    return (await this.source.upload(`/api/uploads${query({ file_name: file.name })}`, file)).orThrow().json<FileEntry>();
  }

  recording(id: string, text = 0, signal?: AbortSignal): Promise<RecordingInfo> {
    return this.#recording(id, query({ text: text || undefined }), signal).then((answer) => spoken(answer.json()));
  }

  atlas(id: string, text = 0, signal?: AbortSignal): Promise<Atlas> {
    return this.#recording(id, `/atlas${query({ text })}`, signal).then((answer) => spoken(answer.json()));
  }

  startRoles(id: string): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/roles`);
  }

  thumbnails(id: string, options: { text?: number; size?: number; how?: How } = {}, signal?: AbortSignal): Promise<Envelope> {
    return this.#recording(id, `/thumbnails${query({ ...options })}`, signal).then(spokenEnvelope);
  }

  // ------------------------------------------------------------------ one head
  tile(
    id: string, head: string, level: number, column: number, row: number,
    options: { text?: number; how?: How; rows?: "auto" | "all" } = {}, signal?: AbortSignal,
  ): Promise<Envelope> {
    return this.#recording(id, `/tiles/${e(head)}/${level}/${column}/${row}${query({ ...options })}`, signal).then(spokenEnvelope);
  }

  row(id: string, head: string, row: number, text = 0): Promise<Envelope> {
    return this.#recording(id, `/rows/${e(head)}/${row}${query({ text })}`).then(spokenEnvelope);
  }

  /** How one weight comes about from q and k. */
  pair(id: string, head: string, row: number, column: number, text = 0, signal?: AbortSignal): Promise<Pair> {
    return this.#recording(id, `/pairs/${e(head)}/${row}/${column}${query({ text })}`, signal).then((answer) => spoken(answer.json()));
  }

  /** The row of the word that holds `token` in every head; `keys` is a range of words, as in "0:64". */
  wordRow(id: string, token: number, keys: string, text = 0, signal?: AbortSignal): Promise<Envelope> {
    return this.#recording(id, `/words/${token}${query({ keys, text })}`, signal).then(spokenEnvelope);
  }

  /** What a head ("L3H1") or a whole layer ("L3") says at a token: scores, shares, values, output and what it adds, in at most
      `keys` columns; what is left out, and why, stands in the header. */
  said(id: string, name: string, token: number, options: { text?: number; keys?: number } = {}, signal?: AbortSignal): Promise<Envelope> {
    return this.#recording(id, `/said/${e(name)}/${token}${query({ ...options })}`, signal).then(spokenEnvelope);
  }

  /** Why a head looks from one token to another: what wrote the query and what wrote the key. */
  why(id: string, head: string, row: number, column: number, options: { text?: number; against?: "rest" | number } = {}, signal?: AbortSignal): Promise<WhyAnswer> {
    return this.#recording(id, `/why/${e(head)}/${row}/${column}${query({ ...options })}`, signal).then((answer) => spoken(answer.json()));
  }

  /** One token's way through the layers: each head's share of what the token became, where it looks most, and what comes next. */
  forwardPass(id: string, token: number, text = 0, signal?: AbortSignal): Promise<Envelope> {
    return this.#recording(id, `/pass/${token}${query({ text })}`, signal).then(spokenEnvelope);
  }

  headCard(id: string, head: string, text = 0, signal?: AbortSignal): Promise<HeadCard> {
    return this.#recording(id, `/heads/${e(head)}${query({ text })}`, signal).then((answer) => spoken(answer.json()));
  }

  /** The card of a head, remembered or measured. */
  startCard(id: string, head: string): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/heads/${e(head)}/card`);
  }

  /** Each head's importance on a text: the job's result is the atlas with importance among its statistics. */
  startImportance(id: string, text = 0): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/importance${query({ text })}`);
  }

  startWorth(id: string, head: string, kind = "mean", text = 0): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/heads/${e(head)}/worth${query({ kind, text })}`);
  }

  /** The statistics of every head as the bytes of a file. */
  table(id: string, format: "csv" | "parquet" | "json", text = 0): Promise<Answer> {
    return this.#recording(id, `/table${query({ format, text })}`);
  }

  /** A window of the exact map as the bytes of a file; `queries` and `keys` are ranges such as "0:64". */
  window(id: string, head: string, format: "csv" | "parquet", queries: string, keys: string, text = 0): Promise<Answer> {
    return this.#recording(id, `/window/${e(head)}${query({ format, queries, keys, text })}`);
  }

  // ------------------------------------------------------------------ experiments, sizes, lessons
  startExperiment(body: RequestBody<ExperimentAsk, "model" | "text" | "plan">): Promise<Job> {
    return this.#post("/api/experiments", body);
  }

  /** All heads of each layer on their way to one map, in two to eleven steps. */
  startBlend(body: RequestBody<BlendAsk, "model" | "text">): Promise<Job> {
    return this.#post("/api/experiments/blend", body);
  }

  /** The text of a recording with one word changed, and what becomes of another word's looks. */
  startSwap(id: string, body: SwapAsk): Promise<Job> {
    return this.#post(`/api/recordings/${e(id)}/swap`, body);
  }

  /** What becomes of nets that are trained as each scene has it. */
  trained(): Promise<Trained[]> {
    return this.#json("/api/trained");
  }

  startPruning(body: RequestBody<PruningAsk, "model" | "heads" | "name">): Promise<Job> {
    return this.#post("/api/prunings", body);
  }

  size(body: RequestBody<SizeAsk>, signal?: AbortSignal): Promise<SizeReport> {
    return this.#post("/api/sizes", body, signal);
  }

  /** A scene of a lesson that a page without a model keeps. */
  savedScene(slug: string, number: number, signal?: AbortSignal): Promise<SavedScene> {
    return this.#json(`/api/lessons/${e(slug)}/scenes/${number}`, signal);
  }

  lessons(): Promise<LessonEntry[]> {
    return this.#json("/api/lessons");
  }

  /** One lesson, in English where it is not there in the language. With a seed, the inputs of its checks are drawn at random. */
  lesson(slug: string, how: { seed?: number; language?: string } = {}, signal?: AbortSignal): Promise<Lesson> {
    return this.#json(`/api/lessons/${e(slug)}${query(how)}`, signal);
  }

  startCell(slug: string, cell: string, parameters: CellAsk["parameters"]): Promise<Job> {
    return this.#post(`/api/lessons/${e(slug)}/cells/${e(cell)}`, { parameters });
  }

  check(slug: string, check: string, body: RequestBody<CheckAsk, "answer">, language?: string): Promise<CheckResult> {
    return this.#post(`/api/lessons/${e(slug)}/checks/${e(check)}${query({ language })}`, body);
  }

  // ------------------------------------------------------------------ pairs of texts, and circuits
  /** A job about a pair: how it reads, every head's effect, what one head writes, whom it listens to, a set of heads run alone,
      the smallest set. */
  startPair(about: "pairs" | "effects" | "writing" | "paths" | "alone" | "smallest", body: object): Promise<Job> {
    return this.#post(`/api/circuits/${about}`, body);
  }

  // ------------------------------------------------------------------ watched trainings
  histories(): Promise<HistoryEntry[]> {
    return this.#json("/api/histories");
  }

  /** A training's state, as soon as it is no longer the version `seen`, or after `wait` seconds. */
  history(id: string, seen: string, wait: number, signal?: AbortSignal): Promise<History> {
    return this.#json(`/api/histories/${e(id)}${query({ seen, wait: wait || undefined })}`, signal);
  }

  /** One statistic of every head. */
  historyCurves(id: string, statistic: string, signal?: AbortSignal): Promise<Envelope> {
    return this.source.get(`/api/histories/${e(id)}/curves/${e(statistic)}`, signal).then((answer) => spokenEnvelope(answer.orThrow()));
  }

  /** Every statistic of one head. */
  historyHead(id: string, head: string, signal?: AbortSignal): Promise<Envelope> {
    return this.source.get(`/api/histories/${e(id)}/heads/${e(head)}`, signal).then((answer) => spokenEnvelope(answer.orThrow()));
  }

  // ------------------------------------------------------------------ jobs
  /** Starts a job, follows it and returns its result; cancels it on the server when `signal` aborts. */
  async runJob<T>(start: () => Promise<Job>, { onProgress, signal }: JobOptions = {}): Promise<T> {
    signal?.throwIfAborted();
    let job = await start();
    this.#running.add(job.id);
    try {
      while (job.state === "running") {
        onProgress?.(job.progress);
        job = await this.#json(`/api/jobs/${e(job.id)}${query({ wait: WAIT })}`, signal);
      }
    } catch (error) {
      if (signal?.aborted) this.#stop(job.id);
      throw error;
    } finally {
      this.#running.delete(job.id);
    }
    if (signal?.aborted) throw signal.reason;
    if (job.state === "done") return job.result as T;
    throw new StudioError(job.state === "failed" ? 500 : 409, job.problem ?? { kind: job.state, words: "It was stopped." });
  }

  /** Stops what is still running: the page is left, and nobody will ask for it. */
  leave(): void {
    for (const job of this.#running) this.#stop(job);
  }

  #stop(job: string): void {
    void this.source.send("DELETE", `/api/jobs/${e(job)}`).catch(() => undefined);
  }

  // ------------------------------------------------------------------ requests
  async #json<T>(path: string, signal?: AbortSignal): Promise<T> {
    return spoken((await this.source.get(path, signal)).orThrow().json<T>());
  }

  async #post<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
    return spoken((await this.source.send("POST", path, body, signal)).orThrow().json<T>());
  }

  async #recording(id: string, suffix: string, signal?: AbortSignal): Promise<Answer> {
    const path = `/api/recordings/${e(id)}${suffix}`;
    const answer = await this.source.get(path, signal);
    if (answer.status !== 404 || !(await this.onLost(id))) return answer.orThrow();
    return (await this.source.get(path, signal)).orThrow();
  }
}
