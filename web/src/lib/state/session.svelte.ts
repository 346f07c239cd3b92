// What is open: the workspace, one recording with its atlas and thumbnails, and its roles once they are known.
// A recording opens in this order: its description, its thumbnails and statistics together, its roles (which take seconds
// the first time).
import type { Client } from "../api/client";
import type { Connection } from "../api/connection.svelte";
import type { Envelope } from "../api/envelope";
import { isAbort, ServerGone, StudioError } from "../api/source";
import type {
  Atlas, AtlasHead, LayerInfo, Progress, RecordingAsk, RecordingInfo, RequestBody, RoleInfo, Roles, Workspace,
} from "../api/types";
import { count } from "../draw/format";
import { roleName } from "../draw/role-groups";
import { BY_WORD, START, type View } from "./view.svelte";

export interface Thumbnails {
  heads: string[];
  maps: Uint8Array;
  peaks: Float32Array;
  side: number;
  /** Tokens for which a column stands; null where the columns share the tokens evenly. */
  span: number | null;
}

export function thumbnailsIn({ header, arrays }: Envelope): Thumbnails {
  const { maps, peaks } = arrays;
  return {
    heads: header["heads"] as string[],
    maps: maps!.data as Uint8Array,
    peaks: peaks!.data as Float32Array,
    side: maps!.shape[1]!,
    span: (header["span"] as number | undefined) ?? null,
  };
}

interface RunningJob {
  progress: Progress | null;
  cancel: () => void;
}

/** Files that are read as texts. */
export const TEXT_FILE = /\.(txt|md|py)$/i;
export const IMPORTANCE = "importance"; // a statistic that takes runs of the model, so it is computed on request only
const THUMBNAIL = 48; // cells a side: fits an atlas cell of a six-layer model on a 1,280-pixel screen

export class Session {
  workspace = $state.raw<Workspace | null>(null);
  info = $state.raw<RecordingInfo | null>(null);
  atlas = $state.raw<Atlas | null>(null);
  thumbnails = $state.raw<Thumbnails | null>(null);
  roles = $state.raw<Roles | null>(null);
  /** The job that opens a recording, while it runs. */
  opening = $state<RunningJob | null>(null);
  /** The job that labels the heads, while it runs. */
  labelling = $state<RunningJob | null>(null);
  /** The job that computes every head's importance, while it runs. */
  weighing = $state<RunningJob | null>(null);
  trouble = $state.raw<unknown>(null);
  rolesTrouble = $state.raw<unknown>(null);
  /** The text box holds another text than the open one: rooms then say which text they show. */
  draft = $state(false);
  /** Another text than a model's example was open: its reader is not offered the example's question any more. */
  leftExample = $state(false);
  /** A recording could not be opened because the server is gone: it is opened as soon as the server is back. */
  waiting = $state(false);
  /** Grows each time the server comes back: components that fetch numbers fetch them again. */
  epoch = $state(0);

  /** Every head by its name, with its role where it is known. */
  heads = $derived.by(() => {
    const roles = new Map(this.roles?.roles.map(({ head, role }) => [head, role]));
    return new Map(this.atlas?.heads.map((head) => [head.head, { ...head, role: roles.get(head.head) ?? head.role } as AtlasHead]));
  });

  /** The texts on which roles were found: never the text on screen. */
  #page = $derived.by(() => {
    const texts = this.roles ? count(this.roles.num_texts, "bundled text") : /^[\d,]+ [^,;]*\btexts?\b/.exec(this.atlas?.roles_because ?? "")?.[0];
    return texts ?? "the bundled texts";
  });

  /** The request that made each recording, by the recording's id: it can make the recording again. */
  #requests = new Map<string, RequestBody<RecordingAsk>>();
  #stop: AbortController | null = null;
  #started: Promise<void> | null = null;

  constructor(
    readonly client: Client,
    readonly view: View,
    readonly connection: Connection,
  ) {
    client.onLost = (id) => this.#remake(id);
    connection.onBack(() => this.#refresh());
  }

  /** Reads the workspace, then opens what the address names, else what the command line opened, else the default text. */
  start(): Promise<void> {
    return (this.#started = this.#start());
  }

  async #start(): Promise<void> {
    this.trouble = null;
    try {
      this.workspace = await this.client.workspace();
    } catch (error) {
      this.trouble = error;
      return;
    }
    await this.follow();
  }

  /** Opens what the view names, unless it is already open. */
  async follow(): Promise<void> {
    const { view, workspace } = this;
    await view.arrived;
    if (!workspace) return;
    if (view.recording) {
      if (this.info?.id === view.recording && this.info.text === view.part) return this.#leaveOutBeyond(this.info);
      const request = view.file ? { file: view.file } : view.model && view.text !== null ? { model: view.model, text: view.text } : null;
      return this.#open(view.recording, request);
    }
    const viewIsEmpty = !view.file && !view.model && view.text === null;
    if (viewIsEmpty && workspace.opened) return this.#open(workspace.opened, null);
    const request = view.file ? { file: view.file } : { model: view.model ?? workspace.default_model, text: view.text ?? this.firstText };
    if (!("file" in request) && !request.model) return;
    const current = this.info && this.#requests.get(this.info.id);
    if (current && this.info?.text === view.part && JSON.stringify(current) === JSON.stringify(request) && !this.opening) return this.#leaveOutBeyond(this.info);
    return this.#open(null, request);
  }

  /** Opens a text with a model, a file of the workspace, or a recording by its id, and names it in the address. What cannot be
      opened leaves what is shown, and its address. */
  async open(target: { model: string; text: string } | { file: string } | { recording: string; part?: number }): Promise<void> {
    const { info } = this;
    const { model, text, file, recording, part, pin, zoom, fromWord, toWord, packed, sort, colour } = this.view;
    const none = { model: null, text: null, file: null, recording: null, part: 0, pin: null, zoom: null, fromWord: null, toWord: null };
    // An order, or a colour, that was chosen for these heads says nothing of another model's; the words that ordered them are gone.
    const sameModel = "recording" in target || ("model" in target && target.model === info?.model);
    if (!sameModel || sort === BY_WORD) this.view.go({ sort: START.sort });
    if (!sameModel) this.view.go({ colour: START.colour });
    if ("recording" in target) {
      const request = this.#requests.get(target.recording);
      this.view.go({ ...none, model: request?.model ?? null, text: request?.text ?? null, file: request?.file ?? null,
        recording: target.recording, part: target.part ?? 0 });
    } else this.view.go({ ...none, ...target });
    await this.follow();
    const failed = info !== null && this.info === info && !this.opening && !this.waiting;
    if (failed) this.view.replace({ model, text, file, recording, part, pin, zoom, fromWord, toWord, packed, sort, colour });
  }

  /** The text of an address that names none: the sample of the model that it names, else the default one. */
  get firstText(): string {
    return this.#sampleOf(this.view.model ?? "") ?? this.workspace?.default_text ?? "";
  }

  /** What an address adds to name the open text; nothing where it names one, or where a file or a recording holds it. */
  get naming(): { model?: string; text?: string } {
    const { info, view } = this;
    if (!info || view.text !== null || view.file !== null || view.recording !== null || info.source.startsWith("file")) return {};
    return { model: info.model, text: info.written };
  }

  /** The text that another model begins with: its own sample in place of this model's, which is of the kind that this one reads. */
  textFor(model: string, text: string, before: string): string {
    return text === this.#sampleOf(before) ? (this.#sampleOf(model) ?? text) : text;
  }

  #sampleOf(model: string): string | undefined {
    return this.workspace?.models.find(({ name }) => name === model)?.sample;
  }

  /** Says it where the open text does not have the row of the address. In Compare it may be a row of another text. */
  #leaveOutBeyond(info: RecordingInfo): void {
    const { view } = this;
    if (view.room === "compare") return;
    const longest = Math.max(info.num_tokens, ...info.layers.map((layer) => Math.max(layer.num_queries, layer.num_keys)));
    if (view.pin === null || view.pin < longest) return;
    view.leaveOut(`pin=${view.pin} in the address is beyond this text of ${count(longest, "token")}, so it was left out.`, { pin: null });
  }

  /** Adds a recording's file to the workspace, and opens it. */
  async takeIn(file: File): Promise<void> {
    const { name } = await this.client.takeIn(file);
    this.workspace = await this.client.workspace();
    await this.open({ file: name });
  }

  /** Opens the text of a file with the model that is open. Throws a StudioError that says why it cannot be read. */
  async openText(file: File): Promise<void> {
    const refused = (words: string) => new StudioError(400, { kind: "TextError", words });
    const model = this.info?.model ?? this.view.model ?? this.workspace?.default_model;
    if (!this.workspace?.default_model || !model) throw refused(`${file.name} is a text, and this page has no model that could read it: manyheads studio.`);
    let text: string;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    } catch {
      throw refused(`${file.name} is not a text in UTF-8: save it as UTF-8 and open it again.`);
    }
    const most = this.workspace.limits.max_text;
    if (!text.trim()) throw refused(`${file.name} is empty: give a file with some words.`);
    if (text.length > most) throw refused(`${file.name} has ${count(text.length, "character")}, and the studio reads up to ${most.toLocaleString("en")}: manyheads look --file reads longer ones.`);
    await this.open({ model, text });
  }

  /** Reads the open text once more, and keeps values: what heads say is then known. */
  async readWithValues(): Promise<void> {
    const { info } = this;
    const request = info && this.#requests.get(info.id);
    if (!request) return;
    const id = info.id;
    await this.client.runJob<RecordingInfo>(() => this.client.startRecording({ ...request, values: true }));
    this.#requests.set(id, { ...request, values: true });
    this.epoch += 1;
  }

  /** Opens another text of the same recording. */
  async turnTo(part: number): Promise<void> {
    if (this.info) await this.open({ recording: this.info.id, part });
  }

  /** Stores the request that makes a recording, so that it can be made again (an experiment's, for example). */
  remember(id: string, request: RequestBody<RecordingAsk>): void {
    this.#requests.set(id, request);
  }

  layerOf(head: string): LayerInfo | null {
    const entry = this.heads.get(head);
    return this.info?.layers.find((layer) => layer.stack === entry?.stack && layer.layer === entry.layer) ?? null;
  }

  roleOf(head: string): RoleInfo | null {
    return this.heads.get(head)?.role ?? null;
  }

  /** A role's evidence in words, with the texts on which it was found. */
  evidence(role: RoleInfo): string {
    return `On ${this.#page}: ${role.evidence.words}`;
  }

  /** A head's role as the rest of a sentence that begins with what it does on this text: "over 299 texts it has no role"; "" while
      roles are not known. */
  roleWords(head: string): string {
    const role = this.roleOf(head);
    if (!role) return "";
    const texts = this.#page.replace(/^(\d+) bundled /, "$1 ");
    // A head that parks elsewhere may read a word of this text: the two are no contradiction, and must not read as one.
    if (role.family === "sink") return `over ${texts} it parks on ${role.name.replace(/^sink /, "")}`;
    return `over ${texts} ${role.family === "unlabelled" ? "it has no role" : `its role is “${roleName(role.name)}”`}`;
  }

  close(): void {
    this.#stop?.abort();
    this.connection.stop();
  }

  async #open(id: string | null, request: RequestBody<RecordingAsk> | null): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    const { signal } = stop;
    this.trouble = this.rolesTrouble = null;
    this.labelling = null;
    this.waiting = false;
    this.opening = { progress: null, cancel: () => stop.abort() };
    const part = this.view.part;
    try {
      const info = await this.#info(id, request, part, signal);
      // `written` is a single text: a recording of several, opened by its id alone, cannot be made again.
      this.#requests.set(info.id, request ?? this.#requests.get(info.id) ?? { model: info.model, text: info.written });
      const atlas = this.client.atlas(info.id, part, signal);
      atlas.catch(() => undefined); // it is awaited below; if the thumbnails fail first, its rejection has no handler yet
      const envelope = await this.client.thumbnails(info.id, { text: part, size: THUMBNAIL }, signal);
      const otherModel = this.info?.model !== info.model;
      this.thumbnails = thumbnailsIn(envelope);
      if (otherModel) this.roles = null; // roles belong to a model, not to a text
      this.atlas = emptyAtlas(info); // thumbnails arrive before statistics: show them at once
      this.info = info;
      if (!this.workspace?.models.some(({ question }) => question?.text === info.written.trim())) this.leftExample = true;
      void this.view.name(info.id);
      this.#leaveOutBeyond(info);
      this.opening = null;
      this.atlas = await atlas;
    } catch (error) {
      if (this.#stop !== stop) return;
      this.opening = null;
      if (error instanceof ServerGone && this.info) this.waiting = true;
      else if (!isAbort(error)) this.trouble = error;
      return;
    }
    await this.#label(signal);
  }

  async #info(id: string | null, request: RequestBody<RecordingAsk> | null, part: number, signal: AbortSignal): Promise<RecordingInfo> {
    if (id !== null) {
      try {
        return await this.client.recording(id, part, signal);
      } catch (error) {
        if (!(error instanceof StudioError) || error.status !== 404 || !request) throw error;
      }
    }
    const onProgress = (progress: Progress) => this.opening && (this.opening.progress = progress);
    const info = await this.client.runJob<RecordingInfo>(() => this.client.startRecording(request!), { signal, onProgress });
    return part ? this.client.recording(info.id, part, signal) : info;
  }

  async #label(signal: AbortSignal): Promise<void> {
    const { info, atlas } = this;
    if (!info || !atlas || !info.model_here || atlas.heads.every((head) => head.role) || this.roles) return;
    this.labelling = { progress: null, cancel: () => this.#stop?.abort() };
    const onProgress = (progress: Progress) => this.labelling && (this.labelling.progress = progress);
    try {
      this.roles = await this.client.runJob<Roles>(() => this.client.startRoles(info.id), { signal, onProgress });
    } catch (error) {
      if (!isAbort(error) && !signal.aborted) this.rolesTrouble = error;
    } finally {
      if (!signal.aborted || this.labelling?.progress) this.labelling = null;
    }
  }

  /** Computes every head's importance on this text; it is then one of the atlas's statistics. */
  async weigh(): Promise<void> {
    const { info } = this;
    if (!info || this.weighing) return;
    const stop = new AbortController();
    this.weighing = { progress: null, cancel: () => stop.abort() };
    const onProgress = (progress: Progress) => this.weighing && (this.weighing.progress = progress);
    try {
      const atlas = await this.client.runJob<Atlas>(() => this.client.startImportance(info.id, info.text), { signal: stop.signal, onProgress });
      if (this.info === info) this.atlas = atlas;
    } catch (error) {
      if (!isAbort(error)) this.rolesTrouble = error;
      this.view.go({ colour: this.view.colour === IMPORTANCE ? "role" : this.view.colour, sort: this.view.sort === IMPORTANCE ? "layer" : this.view.sort });
    } finally {
      this.weighing = null;
    }
  }

  async #remake(id: string): Promise<boolean> {
    const request = this.#requests.get(id);
    if (!request) return false;
    const info = await this.client.runJob<RecordingInfo>(() => this.client.startRecording(request));
    return info.id === id;
  }

  async #refresh(): Promise<void> {
    try {
      this.trouble = null;
      await this.#started; // a notebook's kernel may answer while its snapshot is still being opened
      const workspace = await this.client.workspace();
      const { info } = this;
      if (this.waiting) {
        this.waiting = false;
        this.workspace = workspace;
        return await this.follow();
      }
      const current = info && (await this.client.recording(info.id, info.text)); // the client makes a lost one again
      this.workspace = workspace;
      if (!info || !current) return await this.follow();
      // In a notebook the snapshot's description was shown so far: the kernel has finer levels, and the model.
      if (current.min_level !== info.min_level || current.model_here !== info.model_here) this.info = current;
      this.epoch += 1;
      if (this.#stop) await this.#label(this.#stop.signal);
    } catch (error) {
      this.trouble = error;
    }
  }
}

/** The heads of a recording without statistics and roles. */
function emptyAtlas(info: RecordingInfo): Atlas {
  const heads = info.layers.flatMap((layer) =>
    Array.from({ length: layer.num_heads }, (_, index): AtlasHead => ({
      head: `${layer.name}H${index}`, stack: layer.stack, layer: layer.layer, index,
      kv_group: Math.floor((index * layer.num_kv_heads) / layer.num_heads), role: null, values: [],
    })),
  );
  return { recording: info.id, text: info.text, statistics: [], heads, roles_because: "", caveat: "", exact: "" };
}
