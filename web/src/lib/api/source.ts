// Where the page's answers come from: one interface for a local server (`ServerSource`, below), a notebook's messages
// (notebook-source.ts), and snapshots inside a saved page or beside it (file-source.ts).
import { apostrophes } from "../draw/spoken";
import type { Connection } from "./connection.svelte";
import { parseEnvelope, type Envelope } from "./envelope";
import type { Problem, Room } from "./types";

export interface Source {
  readonly home: "server" | "notebook" | "file";
  /** The rooms that this source can fill: others are not offered. All of them where it is not said. */
  readonly rooms?: readonly Room[];
  /** The address of the list of recordings of which the page shows one; only in a published folder. */
  readonly index?: string;
  get(path: string, signal?: AbortSignal): Promise<Answer>;
  send(method: "POST" | "DELETE", path: string, body?: unknown, signal?: AbortSignal): Promise<Answer>;
  /** Sends a file as it is, where the source takes any. */
  upload?(path: string, file: File): Promise<Answer>;
  destroy?(): void;
}

/** An answer's status and bytes, not yet decoded. `kind` is the media type. */
export class Answer {
  constructor(
    readonly status: number,
    readonly kind: string,
    readonly bytes: ArrayBuffer,
  ) {}

  json<T>(): T {
    return JSON.parse(new TextDecoder().decode(this.bytes)) as T;
  }

  envelope(): Envelope {
    return parseEnvelope(this.bytes);
  }

  /** This answer. Throws a StudioError for a status of 400 or more. */
  orThrow(): this {
    if (this.status < 400) return this;
    throw StudioError.from(this);
  }
}

/** A `Problem` from the server: `words` are for the reader; a `status` below 500 is the reader's mistake, else ours. */
export class StudioError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.words);
    this.name = "StudioError";
  }

  static from(answer: Answer): StudioError {
    try {
      const { kind, words } = answer.json<Partial<Problem>>();
      if (words) return new StudioError(answer.status, { kind: kind ?? "problem", words: apostrophes(words) });
    } catch {
      // A body that is not JSON has no words of its own: the sentence below stands for it.
    }
    return new StudioError(answer.status, { kind: "problem", words: `The studio answered ${answer.status} and no more.` });
  }
}

/** No answer at all: the server, or the notebook's kernel, has stopped. */
export class ServerGone extends Error {
  constructor() {
    super("The studio’s server does not answer.");
    this.name = "ServerGone";
  }
}

export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** The local server by fetch. A failed request throws `ServerGone` and makes `connection` wait for the server's return. */
export class ServerSource implements Source {
  readonly home = "server";

  constructor(
    private readonly connection: Connection,
    private readonly base = "",
  ) {
    connection.watch(() => this.#answers());
  }

  get(path: string, signal?: AbortSignal): Promise<Answer> {
    return this.#request(path, { signal });
  }

  send(method: "POST" | "DELETE", path: string, body?: unknown, signal?: AbortSignal): Promise<Answer> {
    const headers: HeadersInit = body === undefined ? {} : { "Content-Type": "application/json" };
    // What is stopped as the page is left has to outlive the page.
    const keepalive = method === "DELETE";
    return this.#request(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, keepalive });
  }

  upload(path: string, file: File): Promise<Answer> {
    return this.#request(path, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file });
  }

  async #request(path: string, init: RequestInit): Promise<Answer> {
    try {
      const response = await fetch(this.base + path, init);
      const bytes = await response.arrayBuffer();
      return new Answer(response.status, response.headers.get("Content-Type") ?? "", bytes);
    } catch (error) {
      if (isAbort(error)) throw error;
      this.connection.lost();
      throw new ServerGone();
    }
  }

  async #answers(): Promise<boolean> {
    try {
      return (await fetch(`${this.base}/api/workspace`)).ok;
    } catch {
      return false;
    }
  }
}
