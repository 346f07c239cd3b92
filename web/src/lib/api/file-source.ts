// A saved page: answers every request from the snapshot inside it (`FileSource`), or from the snapshots that lie beside it
// in a published folder (`SiteSource`). What a snapshot does not hold is refused with a StudioError of status 400 whose
// words name the studio.
import { csvOf } from "./csv";
import type { Envelope, EnvelopeArray, Numbers } from "./envelope";
import { savedCell, savedScene, savedVerdict, type SavedLessons } from "./saved-lessons";
import { exactProgram } from "./exact";
import { heldFile, Snapshot, unzipped, type HeldRecording, type SnapshotText } from "./snapshot";
import { Answer, StudioError, type Source } from "./source";
import type { Atlas, CheckAsk, FileEntry, How, Job, RecordingInfo, Room, SwapAsk, Workspace } from "./types";

const SAVED = "This page was saved and has no model behind it.";
const INSTEAD = "The studio does this: manyheads studio.";
const OWN = "this page's own"; // recording, in a list beside those that were dropped

/** Rooms that need a recording at most; Size is arithmetic in the page. */
const ROOMS: readonly Room[] = ["atlas", "head", "compare", "size"];

/** A page without a server: what it holds, and the recordings that are dropped on it, until it is left. */
abstract class SavedSource implements Source {
  readonly home = "file";
  #lessons: Promise<SavedLessons> | null = null;
  #dropped: { entry: FileEntry; recording: HeldRecording }[] = [];
  #numDropped = 0;

  /** `rooms`: those that the page can fill, as whoever wrote it says. */
  constructor(readonly rooms = ROOMS) {}

  /** The workspace that was saved. */
  protected abstract workspace(): Promise<Workspace>;
  /** A recording that the page holds, by its id or by its name in the list. */
  protected abstract held(by: { id: string } | { name: string }): Promise<HeldRecording>;
  /** The first recordings that are unpacked already, of any model. */
  protected abstract unpacked(): Promise<HeldRecording[]>;
  protected abstract readLessons(): Promise<SavedLessons>;

  async get(path: string, signal?: AbortSignal): Promise<Answer> {
    const answer = await this.find(path, signal);
    signal?.throwIfAborted();
    return answer;
  }

  /** The page's answer to a path. Throws a StudioError where it holds none. */
  async find(path: string, signal?: AbortSignal): Promise<Answer> {
    if (path.startsWith("/api/lessons")) return ofLessons(await this.#saved(), path);
    const { pathname, searchParams } = new URL(path, "http://saved/");
    const [, id = "", resource, ...address] = pathname.split("/").slice(2).map(decodeURIComponent);
    if (pathname === "/api/workspace") return json(await this.#listed());
    if (!pathname.startsWith("/api/recordings/")) throw refusal(`${SAVED} ${INSTEAD}`);
    const recording = await this.#recordingOf(id);
    const textIndex = Number(searchParams.get("text") ?? 0);
    const info = recording.infos[textIndex];
    if (!info) throw refusal(`${SAVED} It holds ${recording.words}.`);
    if (resource === undefined) return json(await described(recording, textIndex));
    return ofText(await recording.text(textIndex), resource, address, searchParams, signal);
  }

  /** Opens a recording by its name, answers for a lesson, or finds a changed word that was stored: a page can do no more. */
  async send(method: "POST" | "DELETE", path: string, body?: unknown): Promise<Answer> {
    if (path.startsWith("/api/lessons/")) return ofLessons(await this.#saved(), path, body);
    const [, id] = /^\/api\/recordings\/([^/]+)\/swap$/.exec(path) ?? [];
    if (id !== undefined) {
      const text = await (await this.#recordingOf(decodeURIComponent(id))).text(0);
      const swap = text.swapped(body as SwapAsk);
      if (typeof swap === "string") throw refusal(`${swap} ${INSTEAD}`);
      return json(done(swap));
    }
    const name = (body as { file?: string } | undefined)?.file;
    if (method !== "POST" || path !== "/api/recordings" || name === undefined) throw refusal(`${SAVED} ${INSTEAD}`);
    const recording = this.#dropped.find(({ entry }) => entry.name === name)?.recording ?? (await this.held({ name }));
    return json(done(await described(recording, 0)));
  }

  async #recordingOf(id: string): Promise<HeldRecording> {
    return this.#dropped.find(({ entry }) => entry.id === id)?.recording ?? this.held({ id });
  }

  /** Reads a recording's file in the page, in place of an earlier one of its name. */
  async upload(_: string, file: File): Promise<Answer> {
    const workspace = await this.workspace();
    if (workspace.files.some(({ name }) => name === file.name)) throw refusal(`This page has a recording '${file.name}' already: rename the file.`);
    const entry = { name: file.name, id: `dropped-${(this.#numDropped += 1)}`, num_bytes: file.size, unreadable: null };
    let recording: HeldRecording;
    try {
      const read = await (await exactProgram()).readHeads(file, entry.id);
      recording = heldFile(read, await this.#rolesOf(read.infos[0]!.model));
    } catch (error) {
      throw refusal(error instanceof Error ? error.message : String(error));
    }
    this.#dropped = [...this.#dropped.filter((other) => other.entry.name !== file.name), { entry, recording }];
    return json(entry);
  }

  /** What the page knows of the roles of a model's heads. */
  async #rolesOf(model: string): Promise<Atlas | null> {
    const same = (await this.unpacked()).find(({ infos }) => infos[0]!.model === model);
    const atlas = same && (await same.text(0)).atlas;
    return atlas?.heads.some(({ role }) => role) ? atlas : null;
  }

  /** The workspace with what was dropped. A page of one recording then lists that one as well: it is the way back. */
  async #listed(): Promise<Workspace> {
    const workspace = await this.workspace();
    if (!this.#dropped.length) return workspace;
    const own = workspace.files.length ? workspace.files : [{ name: OWN, id: workspace.opened ?? "", num_bytes: 0, unreadable: null }];
    return { ...workspace, files: [...own, ...this.#dropped.map(({ entry }) => entry)] };
  }

  #saved(): Promise<SavedLessons> {
    this.#lessons ??= this.readLessons();
    this.#lessons.catch(() => (this.#lessons = null)); // the next request tries again
    return this.#lessons;
  }
}

/** A page with one recording inside. */
export class FileSource extends SavedSource {
  readonly #snapshot: Promise<Snapshot>;

  constructor(bytes: Promise<ArrayBuffer> | ArrayBuffer, rooms = ROOMS) {
    super(rooms);
    this.#snapshot = Promise.resolve(bytes).then((buffer) => Snapshot.read(buffer));
    this.#snapshot.catch(() => undefined); // `held` reports it; without this line the browser logs an unhandled rejection
  }

  protected async workspace(): Promise<Workspace> {
    return (await this.#read()).workspace;
  }

  protected async unpacked(): Promise<HeldRecording[]> {
    return [await this.#read()];
  }

  async held(by: { id: string } | { name: string }): Promise<Snapshot> {
    const snapshot = await this.#read();
    if ("id" in by ? by.id === snapshot.infos[0]?.id : by.name === OWN) return snapshot;
    if ("id" in by) throw refusal(`${SAVED} It holds one recording, and not this one.`);
    throw refusal(`'${by.name.slice(0, 60)}' is not in this page: it holds one recording, and forgets a file that was dropped on it. Drop the file again.`);
  }

  protected async readLessons(): Promise<SavedLessons> {
    const { lessons } = await this.#read();
    if (!lessons) throw refusal(`${SAVED} It holds no lessons. ${INSTEAD}`);
    return parsed<SavedLessons>(await unzipped(lessons));
  }

  async #read(): Promise<Snapshot> {
    return this.#snapshot.catch((error: unknown) => {
      throw refusal(`The saved page cannot be read: ${error instanceof Error ? error.message : String(error)}.`);
    });
  }
}

/** A published folder: `site` is the address of its list. A recording's snapshot is fetched when it is opened, and of an exact
    one the numbers of a layer when a head of it is. */
export class SiteSource extends SavedSource {
  readonly index = "index.html";
  #workspace: Promise<Workspace> | null = null;
  #recordings = new Map<string, Promise<Snapshot>>();

  constructor(
    private readonly site: string,
    rooms = ROOMS,
  ) {
    super(rooms);
  }

  protected workspace(): Promise<Workspace> {
    this.#workspace ??= this.#fetch(this.site).then((response) => response.json()).then((site: { workspace: Workspace }) => site.workspace);
    this.#workspace.catch(() => (this.#workspace = null)); // the next request tries again
    return this.#workspace;
  }

  protected unpacked(): Promise<HeldRecording[]> {
    return Promise.all(this.#recordings.values());
  }

  protected async held(by: { id: string } | { name: string }): Promise<HeldRecording> {
    const { files } = await this.workspace();
    const entry = files.find((file) => ("id" in by ? file.id === by.id : file.name === by.name));
    if (!entry) {
      throw refusal(
        "id" in by
          ? "This recording is not in this folder: choose one from its list."
          : `There is no recording '${by.name.slice(0, 60)}' in this folder: choose one from its list. A file that was dropped on the page must be dropped again.`,
      );
    }
    let recording = this.#recordings.get(entry.id);
    if (!recording) {
      const fetchPart = async (part: string) => (await this.#fetch(`recordings/${entry.name}${part}.heads-page`)).arrayBuffer();
      recording = fetchPart("").then((bytes) => Snapshot.read(bytes, (text, layer) => fetchPart(`--${text}-${layer}`)));
      recording.catch(() => this.#recordings.delete(entry.id));
      this.#recordings.set(entry.id, recording);
    }
    return recording;
  }

  protected async readLessons(): Promise<SavedLessons> {
    return parsed(await unzipped(await (await this.#fetch("lessons.heads-page")).arrayBuffer()));
  }

  async #fetch(address: string): Promise<Response> {
    const response = await fetch(address).catch(() => null);
    if (response?.ok) return response;
    throw refusal(`${address} cannot be fetched from where this page is stored${response ? `: ${response.status}` : ""}. A browser fetches nothing for a page that is opened as a file: serve the folder, for example with python -m http.server.`);
  }
}

/** The description of a text, with what computes its maps. */
async function described(recording: HeldRecording, index: number): Promise<RecordingInfo> {
  const { factors, info } = await recording.text(index);
  return factors ? { ...info, notes: { ...info.notes, computed: factors.computed, kept: factors.words } } : info;
}

/** What saved lessons answer: their list, one of them, a cell's result, the verdict on an answer. */
async function ofLessons(saved: SavedLessons, path: string, body?: unknown): Promise<Answer> {
  const { pathname, searchParams } = new URL(path, "http://saved/");
  const [slug, kind, name = ""] = pathname.split("/").slice(3).map(decodeURIComponent);
  if (slug === undefined) return json(saved.entries);
  const translated = `${slug}?language=${searchParams.get("language")}`;
  const page = translated in saved.lessons ? translated : slug;
  const lesson = saved.lessons[page];
  if (!lesson) throw refusal(`There is no lesson '${slug.slice(0, 60)}' in this page.`);
  if (kind === "scenes") return json(savedScene(saved, slug, Number(name)));
  if (kind === "cells") return json(done(await savedCell(saved, slug, name, (body as { parameters: Record<string, string | number> }).parameters)));
  if (kind === "checks") return json(await savedVerdict(saved, page, name, body as CheckAsk));
  return json(lesson);
}

/** A job that has ended. */
function done(result: Job["result"]): Pick<Job, "id" | "state" | "result"> {
  return { id: "", state: "done", result };
}

function parsed<T>(bytes: ArrayBuffer): T {
  return JSON.parse(new TextDecoder().decode(bytes)) as T;
}

async function ofText(
  text: SnapshotText, resource: string, address: string[], query: URLSearchParams, signal?: AbortSignal,
): Promise<Answer> {
  const how: How = query.get("how") === "max" ? "max" : "mean";
  const head = address[0] ?? "";
  if (resource === "atlas") return json(text.atlas);
  if (resource === "thumbnails") {
    const { maps, peaks, side, span, words, exact } = await text.thumbnails(how);
    const header = { heads: text.heads, how, span, words, exact, text: text.info.text };
    return arrays(header, { maps: [maps, text.heads.length, side, side], peaks: [peaks, peaks.length] });
  }
  if (resource === "words") {
    await text.ready();
    const row = text.wordRow(Number(head));
    if (!row) throw refusal(`${SAVED} For a text this long it holds blocks of cells, not the rows of words. ${INSTEAD}`);
    const { weights, even, begin, end, numWords } = row;
    const [numHeads, words] = [text.heads.length, "weights from one word to each, as precise as this page holds them"];
    const header = { heads: text.heads, begin, end, keys: [0, numWords], words, exact: true };
    return arrays(header, { weights: [weights, numHeads, numWords], even: [even, numHeads, numWords] });
  }
  if (resource === "said") {
    const answer = await text.said(head, Number(address[1]), Number(query.get("keys") ?? 24));
    if (typeof answer === "string") throw refusal(`${answer} ${INSTEAD}`);
    return arrays(answer.header, answer.arrays);
  }
  if (resource === "pass") {
    const answer = text.forwardPass(Number(address[0]));
    if (typeof answer === "string") throw refusal(`${answer} ${INSTEAD}`);
    return new LocalAnswer("application/vnd.manyheads.arrays", answer);
  }
  if (resource === "table") return table(text, query.get("format") ?? "csv");
  if (!text.has(head)) throw refusal(`There is no head ${head} in this page.`);
  if (resource === "heads" && address.length === 1) return json(text.card(head));
  await text.ready(head);
  if (resource === "tiles") {
    const [level = 0, column = 0, row = 0] = address.slice(1).map(Number);
    const grid = await text.tile(head, how, level, column, row, query.get("rows") === "all", signal);
    if (!grid) throw refusal(`There is no tile ${column}, ${row} of level ${level} in this map.`);
    const header = { level, column, row, how, cells: 2 ** level, exact: grid.exact, words: grid.words };
    return arrays(header, { values: [grid.values, grid.rows, grid.columns] });
  }
  if (resource === "rows") {
    const row = text.row(head, Number(address[1]));
    if (!row) throw refusal("A text this long is saved without its rows. The studio shows them: manyheads studio.");
    const { weights, ...header } = row;
    return arrays({ ...header, head, row: Number(address[1]), exact: true }, { weights: [weights, weights.length] });
  }
  if (resource === "pairs") {
    const pair = text.pair(head, Number(address[1]), Number(address[2]));
    if (!pair) throw refusal(`${SAVED} It does not hold q and k for this cell: manyheads look --exact keeps them, and the studio has them.`);
    return json(pair);
  }
  if (resource === "window") return weightWindow(text, head, query);
  throw refusal(`${SAVED} ${INSTEAD}`);
}

/** The statistics of every head, as in the server's file but without chance levels. */
function table(text: SnapshotText, format: string): Answer {
  const { atlas, info } = text;
  const names = ["head", "stack", "layer", "index", "module", ...atlas.statistics.map((statistic) => statistic.name)];
  const rows = atlas.heads.map((head) => {
    const layer = info.layers.find((candidate) => candidate.stack === head.stack && candidate.layer === head.layer);
    return [head.head, head.stack, head.layer, head.index, layer?.module ?? "", ...head.values];
  });
  if (format === "csv") return file("text/csv", csvOf([names, ...rows]));
  if (format === "json") {
    return file("application/json", JSON.stringify(rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])))));
  }
  throw refusal(`A saved page writes .csv and .json, not .${format}. ${INSTEAD}`);
}

/** A window of exact weights as CSV, where the snapshot has single cells. */
function weightWindow(text: SnapshotText, head: string, query: URLSearchParams): Answer {
  if (text.level > 0) throw refusal(`${SAVED} Of a text this long it holds blocks of cells, not every weight. ${INSTEAD}`);
  if (query.get("format") === "parquet") throw refusal(`A saved page writes .csv, not .parquet. ${INSTEAD}`);
  const layer = text.layerOf(head);
  const [top, bottom] = range(query.get("queries"), layer.num_queries);
  const [left, right] = range(query.get("keys"), layer.num_keys);
  const piece = (position: number) => text.info.tokens[position]?.piece ?? "";
  // Under cross-attention the keys are of another text, whose tokens a snapshot does not hold.
  const names = ["query", "key", "query_token", ...(layer.crosses ? [] : ["key_token"]), "weight"];
  const lines: (string | number)[][] = [];
  for (let q = top; q < bottom; q++) {
    const weights = text.cells(head, q, left, right)!;
    for (let k = left; k < right; k++) {
      const weight = weights[k - left]!;
      if (!Number.isNaN(weight)) lines.push([q, k, piece(q), ...(layer.crosses ? [] : [piece(k)]), weight]);
    }
  }
  return file("text/csv", csvOf([names, ...lines]));
}

/** "3:7" as [3, 7], each end at most `length`; a missing end is the first or the last position. */
function range(text: string | null, length: number): [number, number] {
  const [begin = "", end = ""] = (text ?? ":").split(":");
  return [Math.min(Number(begin || 0), length), Math.min(Number(end || length), length)];
}

function refusal(words: string): StudioError {
  return new StudioError(400, { kind: "Saved", words });
}

/** An answer from memory: its value is handed on as it is, without being encoded and decoded. */
class LocalAnswer extends Answer {
  constructor(
    kind: string,
    private readonly value: unknown,
    bytes = new ArrayBuffer(0),
  ) {
    super(200, kind, bytes);
  }

  override json<T>(): T {
    return this.value as T;
  }

  override envelope(): Envelope {
    return this.value as Envelope;
  }
}

function json(value: unknown): Answer {
  return new LocalAnswer("application/json", value);
}

function file(kind: string, text: string): Answer {
  return new LocalAnswer(kind, null, new TextEncoder().encode(text).buffer);
}

function arrays(header: Record<string, unknown>, named: Record<string, [Numbers, ...number[]]>): Answer {
  const entries: Record<string, EnvelopeArray> = {};
  for (const [name, [data, ...shape]] of Object.entries(named)) entries[name] = { name, dtype: "", shape, data };
  return new LocalAnswer("application/vnd.manyheads.arrays", { header: { ...header, arrays: [] }, arrays: entries });
}
