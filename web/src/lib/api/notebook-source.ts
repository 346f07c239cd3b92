// A notebook's widget: answers come from the snapshot at first, and from the kernel as soon as it answers. The kernel
// acknowledges a request at once ({id, taken}) and answers later; if no acknowledgement comes, it is busy or has stopped:
// the snapshot then stays on screen, and the page says so.
import type { Connection } from "./connection.svelte";
import { FileSource } from "./file-source";
import { unzipped } from "./snapshot";
import { Answer, ServerGone, type Source } from "./source";
import { ROOMS } from "./types";

/** The part of the model that anywidget passes to `render` which this file uses. */
export interface WidgetModel {
  get(name: string): unknown;
  send(content: unknown, callbacks?: unknown, buffers?: unknown): void;
  on(event: string, listener: (...values: never[]) => void): void;
  off(event: string, listener: (...values: never[]) => void): void;
}

interface PendingRequest {
  resolve(answer: Answer): void;
  reject(error: unknown): void;
  timer: ReturnType<typeof setTimeout> | undefined;
}

interface Message {
  id?: string;
  taken?: boolean;
  status?: number;
  kind?: string;
}

const PLAY = "/play.js";
export const PATIENCE = 4000; // ms without an acknowledgement after which the kernel counts as silent
let views = 0;

export class NotebookSource implements Source {
  readonly home = "notebook";
  /** Training and Circuit are parts of the page that the studio's server hands out when they are opened. */
  readonly rooms = ROOMS.filter((room) => room !== "training" && room !== "circuit");
  readonly #name = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}-${(views += 1)}`;
  readonly #pending = new Map<string, PendingRequest>();
  #file: FileSource | null;
  #kernelAnswers = false;
  #numRequests = 0;

  constructor(
    private readonly model: WidgetModel,
    private readonly connection: Connection,
  ) {
    this.#file = snapshotOf(model);
    model.on("msg:custom", this.#receive);
    model.on("change:snapshot", this.#reread);
    connection.watch(() => this.#ping());
    void this.#connect();
  }

  destroy(): void {
    this.model.off("msg:custom", this.#receive);
    this.model.off("change:snapshot", this.#reread);
    this.#reject(new ServerGone());
  }

  async get(path: string, signal?: AbortSignal): Promise<Answer> {
    if (path === PLAY) return this.#program();
    if (!this.#kernelAnswers && this.#file) {
      try {
        return await this.#file.get(path, signal);
      } catch (error) {
        if (signal?.aborted) throw error;
        // The snapshot does not hold it: the kernel may.
      }
    }
    try {
      return await this.#request("GET", path, undefined, signal);
    } catch (error) {
      if (!(error instanceof ServerGone)) throw error;
      this.#lost();
      if (this.#file) return this.#file.get(path, signal);
      throw error;
    }
  }

  /** The program that plays scenes, which is saved with the notebook. */
  async #program(): Promise<Answer> {
    const bytes = bytesOf(this.model.get("play"));
    if (!bytes?.byteLength) throw new Error("this notebook was made without the part that plays scenes: run its cell again");
    return new Answer(200, "text/javascript", await unzipped(bytes));
  }

  async send(method: "POST" | "DELETE", path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    // What a changed word becomes may be saved: without a kernel that is what plays.
    if (!this.#kernelAnswers && this.#file && path.endsWith("/swap")) return this.#file.send(method, path, body);
    try {
      return await this.#request(method, path, body, signal);
    } catch (error) {
      if (error instanceof ServerGone) this.#lost();
      throw error;
    }
  }

  /** Listeners of `connection` fetch again when the kernel answers: until then they show the snapshot. */
  async #connect(): Promise<void> {
    if (await this.#ping()) await this.connection.restored();
    else this.#lost();
  }

  #lost(): void {
    this.#kernelAnswers = false;
    this.connection.lost();
  }

  async #ping(): Promise<boolean> {
    try {
      await this.#request("GET", "/api/workspace");
      return (this.#kernelAnswers = true);
    } catch {
      return false;
    }
  }

  #request(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    const id = `${this.#name}-${(this.#numRequests += 1)}`;
    return new Promise<Answer>((resolve, reject) => {
      const timer = setTimeout(() => this.#reject(new ServerGone(), id), PATIENCE);
      this.#pending.set(id, { resolve, reject, timer });
      signal?.addEventListener("abort", () => {
        if (!this.#pending.has(id)) return;
        this.#reject(signal.reason, id);
        this.#post({ cancel: id });
      });
      if (!this.#post(body === undefined ? { id, method, path } : { id, method, path, body })) this.#reject(new ServerGone(), id);
    });
  }

  #post(content: unknown): boolean {
    try {
      this.model.send(content);
      return true;
    } catch {
      return false; // this widget has no kernel at all
    }
  }

  /** Rejects the request `id`, or every pending request. */
  #reject(error: unknown, id?: string): void {
    for (const requestId of id === undefined ? [...this.#pending.keys()] : [id]) {
      const pending = this.#pending.get(requestId);
      clearTimeout(pending?.timer);
      this.#pending.delete(requestId);
      pending?.reject(error);
    }
  }

  readonly #receive = (message: Message, buffers?: (DataView | ArrayBuffer)[]): void => {
    const pending = this.#pending.get(message.id ?? "");
    if (!pending) return;
    clearTimeout(pending.timer);
    if (message.taken) return;
    this.#pending.delete(message.id!);
    pending.resolve(new Answer(message.status ?? 500, message.kind ?? "", bytesOf(buffers?.[0]) ?? new ArrayBuffer(0)));
  };

  readonly #reread = (): void => {
    this.#file = snapshotOf(this.model);
  };
}

function snapshotOf(model: WidgetModel): FileSource | null {
  const bytes = bytesOf(model.get("snapshot"));
  return bytes?.byteLength ? new FileSource(bytes) : null;
}

/** A copy of the bytes at offset 0 of their own buffer: typed arrays need offsets that are multiples of their item size. */
function bytesOf(value: unknown): ArrayBuffer | null {
  if (value instanceof ArrayBuffer) return value;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength).slice().buffer as ArrayBuffer;
  return null;
}
