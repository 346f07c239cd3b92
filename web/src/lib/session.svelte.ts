// What is open now: the workspace, one recording with its atlas and thumbnails, and its roles once they are known.
// A recording opens in this order: its description, then maps and numbers together, then roles (seconds, the first time).
import type { Client } from "./client";
import type { Connection } from "./connection.svelte";
import { count } from "./format";
import { ServerGone, StudioError, isAbort } from "./source";
import type {
  Asked, Atlas, AtlasHead, LayerInfo, Progress, RecordingAsk, RecordingInfo, RoleInfo, Roles, Workspace,
} from "./types";
import type { View } from "./view.svelte";

export interface Thumbnails {
  heads: string[];
  maps: Uint8Array;
  peaks: Float32Array;
  side: number;
}

interface Work {
  progress: Progress | null;
  cancel: () => void;
}

export const IMPORTANCE = "importance"; // a statistic that takes a run of the model, so that it comes when it is asked for
const THUMBNAIL = 48; // cells a side: what fits an atlas cell of a six-layer model on a 1,280-pixel screen

export class Session {
  workspace = $state.raw<Workspace | null>(null);
  info = $state.raw<RecordingInfo | null>(null);
  atlas = $state.raw<Atlas | null>(null);
  thumbnails = $state.raw<Thumbnails | null>(null);
  roles = $state.raw<Roles | null>(null);
  /** Opening a recording, while it lasts. */
  opening = $state<Work | null>(null);
  /** Labelling the heads, while it lasts. */
  labelling = $state<Work | null>(null);
  /** Finding what is lost without each head, while it lasts. */
  weighing = $state<Work | null>(null);
  trouble = $state.raw<unknown>(null);
  rolesTrouble = $state.raw<unknown>(null);
  /** Something else stands in the line above than what is open: rooms then say which text they show. */
  draft = $state(false);
  /** What was asked for could not be opened because the server is gone: it is, as soon as the server is back. */
  waiting = $state(false);
  /** Grows when the server came back: whoever shows fetched numbers fetches them again. */
  epoch = $state(0);

  /** Every head by its name, with its role as far as it is known. */
  heads = $derived.by(() => {
    const roles = new Map(this.roles?.roles.map((entry) => [entry.head, entry.role]));
    return new Map(this.atlas?.heads.map((h) => [h.head, { ...h, role: roles.get(h.head) ?? h.role } as AtlasHead]));
  });

  /** What roles were found on: never the text that is shown. */
  #page = $derived.by(() => {
    const texts = this.roles ? count(this.roles.num_texts, "text") : /^[\d,]+ texts?\b/.exec(this.atlas?.roles_because ?? "")?.[0];
    return texts ? `a page of ${texts}` : "the bundled page";
  });

  #asks = new Map<string, Asked<RecordingAsk>>();
  #stop: AbortController | null = null;
  #begun: Promise<void> | null = null;

  constructor(
    readonly client: Client,
    readonly view: View,
    readonly connection: Connection,
  ) {
    client.onLost = (id) => this.#again(id);
    connection.onBack(() => this.#back());
  }

  /** Reads the workspace, then opens what the address names, else what the command line did, else the usual text. */
  start(): Promise<void> {
    return (this.#begun = this.#start());
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

  /** Opens what the view names, unless it is open already. */
  async follow(): Promise<void> {
    const { view, workspace } = this;
    if (!workspace) return;
    if (view.recording) {
      if (this.info?.id === view.recording && this.info.text === view.part) return;
      const ask = view.file ? { file: view.file } : view.model && view.text !== null ? { model: view.model, text: view.text } : null;
      return this.#open(view.recording, ask);
    }
    const named = view.file || view.model || view.text !== null;
    if (!named && workspace.opened) return this.#open(workspace.opened, null);
    const ask = view.file ? { file: view.file } : { model: view.model ?? workspace.default_model, text: view.text ?? workspace.default_text };
    if (!("file" in ask) && !ask.model) return;
    const open = this.info && this.#asks.get(this.info.id);
    if (open && this.info?.text === view.part && JSON.stringify(open) === JSON.stringify(ask) && !this.opening) return;
    return this.#open(null, ask);
  }

  /** Opens a text through a model, a file of the workspace, or a recording by its id; says so in the address. */
  async open(ask: { model: string; text: string } | { file: string } | { recording: string; part?: number }): Promise<void> {
    const none = { model: null, text: null, file: null, recording: null, part: 0, pin: null, zoom: null };
    if ("recording" in ask) {
      const known = this.#asks.get(ask.recording);
      this.view.go({ ...none, model: known?.model ?? null, text: known?.text ?? null, file: known?.file ?? null,
        recording: ask.recording, part: ask.part ?? 0 });
    } else this.view.go({ ...none, ...ask });
    await this.follow();
  }

  /** The same recording, another of its texts. */
  async turnTo(part: number): Promise<void> {
    if (this.info) await this.open({ recording: this.info.id, part });
  }

  /** Remembers what made a recording, so that it can be made again (an experiment's, for example). */
  remember(id: string, ask: Asked<RecordingAsk>): void {
    this.#asks.set(id, ask);
  }

  layerOf(head: string): LayerInfo | null {
    const found = this.heads.get(head);
    return this.info?.layers.find((l) => found && l.stack === found.stack && l.layer === found.layer) ?? null;
  }

  roleOf(head: string): RoleInfo | null {
    return this.heads.get(head)?.role ?? null;
  }

  /** A role's evidence in words, with what it was found on. */
  evidence(role: RoleInfo): string {
    return `On ${this.#page}: ${role.evidence.words}`;
  }

  close(): void {
    this.#stop?.abort();
    this.connection.stop();
  }

  async #open(id: string | null, ask: Asked<RecordingAsk> | null): Promise<void> {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    const { signal } = stop;
    this.trouble = this.rolesTrouble = null;
    this.labelling = null;
    this.waiting = false;
    this.opening = { progress: null, cancel: () => stop.abort() };
    const part = this.view.part;
    try {
      const info = await this.#info(id, ask, part, signal);
      this.#asks.set(info.id, ask ?? this.#asks.get(info.id) ?? askOf(info));
      const numbers = this.client.atlas(info.id, part, signal);
      numbers.catch(() => undefined); // it is awaited below; the maps may fail first
      const envelope = await this.client.thumbnails(info.id, { text: part, size: THUMBNAIL }, signal);
      const { maps, peaks } = envelope.arrays;
      const other = this.info?.model !== info.model;
      this.thumbnails = {
        heads: envelope.header["heads"] as string[],
        maps: maps!.data as Uint8Array,
        peaks: peaks!.data as Float32Array,
        side: maps!.shape[1]!,
      };
      if (other) this.roles = null; // roles are a model's, not a text's
      this.atlas = unnumbered(info); // maps are there before numbers: nobody waits for what they do not see yet
      this.info = info;
      this.view.name(info.id);
      this.opening = null;
      this.atlas = await numbers;
    } catch (error) {
      if (this.#stop !== stop) return;
      this.opening = null;
      if (error instanceof ServerGone && this.info) this.waiting = true;
      else if (!isAbort(error)) this.trouble = error;
      return;
    }
    await this.#label(signal);
  }

  async #info(id: string | null, ask: Asked<RecordingAsk> | null, part: number, signal: AbortSignal): Promise<RecordingInfo> {
    if (id !== null) {
      try {
        return await this.client.recording(id, part, signal);
      } catch (error) {
        if (!(error instanceof StudioError) || error.status !== 404 || !ask) throw error;
      }
    }
    const made = await this.#make(ask!, signal);
    return part ? this.client.recording(made.id, part, signal) : made;
  }

  #make(ask: Asked<RecordingAsk>, signal?: AbortSignal): Promise<RecordingInfo> {
    const onProgress = (progress: Progress) => this.opening && (this.opening.progress = progress);
    return this.client.runJob<RecordingInfo>(() => this.client.startRecording(ask), { signal, onProgress });
  }

  async #label(signal: AbortSignal): Promise<void> {
    const { info, atlas } = this;
    if (!info || !atlas || !info.model_here || atlas.heads.every((h) => h.role) || this.roles) return;
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

  /** Asks for every head's importance on this text, which then stands among the atlas's statistics. */
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

  async #again(id: string): Promise<boolean> {
    const ask = this.#asks.get(id);
    if (!ask) return false;
    const made = await this.client.runJob<RecordingInfo>(() => this.client.startRecording(ask));
    return made.id === id;
  }

  async #back(): Promise<void> {
    try {
      this.trouble = null;
      await this.#begun; // a notebook's kernel may answer while its snapshot is still being opened
      const workspace = await this.client.workspace();
      const { info } = this;
      if (this.waiting) {
        this.waiting = false;
        this.workspace = workspace;
        return await this.follow();
      }
      const now = info && (await this.client.recording(info.id, info.text)); // made anew where it was lost
      this.workspace = workspace;
      if (!info || !now) return await this.follow();
      if (now.min_level !== info.min_level || now.model_here !== info.model_here) this.info = now; // a notebook's, saved so far
      this.epoch += 1;
      if (this.#stop) await this.#label(this.#stop.signal);
    } catch (error) {
      this.trouble = error;
    }
  }
}

/** What would make a recording that was opened by its id alone. */
function askOf(info: RecordingInfo): Asked<RecordingAsk> {
  return { model: info.model, text: info.written }; // of several texts, `written` is one: nothing makes that recording again
}

/** The heads of a recording before anything is known of them. */
function unnumbered(info: RecordingInfo): Atlas {
  const heads = info.layers.flatMap((layer) =>
    Array.from({ length: layer.num_heads }, (_, index): AtlasHead => ({
      head: `${layer.name}H${index}`, stack: layer.stack, layer: layer.layer, index,
      kv_group: Math.floor((index * layer.num_kv_heads) / layer.num_heads), role: null, values: [],
    })),
  );
  return { recording: info.id, text: info.text, statistics: [], heads, roles_because: "", caveat: "", exact: "" };
}
