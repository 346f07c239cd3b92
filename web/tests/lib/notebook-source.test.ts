import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { Connection } from "../../src/lib/api/connection.svelte";
import { NotebookSource, PATIENCE, type WidgetModel } from "../../src/lib/api/notebook-source";
import { ServerGone } from "../../src/lib/api/source";
import { ID, saved } from "./saved";

const EXACT = await saved(0);

interface Request {
  id?: string;
  cancel?: string;
  method?: string;
  path?: string;
  body?: unknown;
}

/** A kernel behind a widget: `answer` is called with each request. */
class Kernel implements WidgetModel {
  requests: Request[] = [];
  listeners: ((message: object, buffers?: ArrayBuffer[]) => void)[] = [];
  answer: (request: Request) => void = () => undefined;

  constructor(
    readonly snapshot: ArrayBuffer | null,
    readonly play: ArrayBuffer | null = null,
  ) {}

  get(name: string): unknown {
    if (name === "play" && this.play) return new DataView(this.play);
    return name === "snapshot" && this.snapshot ? new DataView(this.snapshot) : undefined;
  }
  send(content: unknown): void {
    this.requests.push(content as Request);
    this.answer(content as Request);
  }
  on(event: string, listener: (...values: never[]) => void): void {
    if (event === "msg:custom") this.listeners.push(listener as never);
  }
  off(_: string, listener: (...values: never[]) => void): void {
    this.listeners = this.listeners.filter((registered) => registered !== (listener as never));
  }
  say(message: object, body?: string): void {
    const bytes = body === undefined ? [] : [new TextEncoder().encode(body).buffer as ArrayBuffer];
    for (const listener of this.listeners) listener(message, bytes);
  }
  /** Answers at once, and says which path it was. */
  alive(): void {
    this.answer = ({ id, path }) => {
      this.say({ id, taken: true });
      if (id) this.say({ id, status: 200, kind: "application/json" }, JSON.stringify({ path }));
    };
  }
}

class Watched {
  lost = vi.fn();
  restored = vi.fn(async () => undefined);
  probe: () => Promise<boolean> = async () => false;
  watch(probe: () => Promise<boolean>): void {
    this.probe = probe;
  }
}

const makeSource = (kernel: Kernel, watched = new Watched()) => ({
  watched, source: new NotebookSource(kernel, watched as unknown as Connection),
});

beforeEach(() => void vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] }));
afterEach(() => void vi.useRealTimers());

describe("a widget with a kernel", () => {
  it("shows the snapshot at once, and asks the kernel for everything as soon as it answers", async () => {
    const kernel = new Kernel(EXACT);
    const { source, watched } = makeSource(kernel);
    expect((await source.get(`/api/recordings/${ID}`)).json<{ id: string }>().id).toBe(ID);
    kernel.alive();
    expect(await watched.probe()).toBe(true);
    expect((await source.get("/api/x?y=1")).json()).toEqual({ path: "/api/x?y=1" });
    expect((await source.get(`/api/recordings/${ID}`)).json()).toEqual({ path: `/api/recordings/${ID}` });
  });

  it("hands on bodies, and problems as they are", async () => {
    const kernel = new Kernel(null);
    const { source } = makeSource(kernel);
    kernel.answer = ({ id }) => kernel.say({ id, status: 404, kind: "application/json" }, '{"kind":"NotHere","words":"gone"}');
    const answer = await source.send("POST", "/api/sizes", { preset: "x" });
    expect(kernel.requests.at(-1)).toMatchObject({ method: "POST", path: "/api/sizes", body: { preset: "x" } });
    expect(() => answer.orThrow()).toThrow("gone");
  });

  it("waits as long as it takes once the question has come", async () => {
    const kernel = new Kernel(null);
    const { source } = makeSource(kernel);
    kernel.answer = ({ id }) => kernel.say({ id, taken: true });
    const answer = source.get("/api/slow");
    await vi.advanceTimersByTimeAsync(20 * PATIENCE);
    kernel.say({ id: kernel.requests.at(-1)!.id, status: 200, kind: "application/json" }, "1");
    expect((await answer).json()).toBe(1);
  });

  it("tells the kernel what is not needed any more", async () => {
    const kernel = new Kernel(null);
    const { source } = makeSource(kernel);
    kernel.answer = ({ id }) => kernel.say({ id, taken: true });
    const stop = new AbortController();
    const answer = source.get("/api/slow", stop.signal);
    stop.abort();
    await expect(answer).rejects.toMatchObject({ name: "AbortError" });
    expect(kernel.requests.at(-1)).toEqual({ cancel: kernel.requests.at(-2)!.id });
  });

  it("hears nothing of what was meant for another view of the same widget", async () => {
    const kernel = new Kernel(null);
    const [one, two] = [makeSource(kernel).source, makeSource(kernel).source];
    const answered = vi.fn();
    void one.get("/api/one").then(answered, answered);
    void two.get("/api/two").then(answered, answered);
    kernel.say({ id: kernel.requests.find(({ path }) => path === "/api/two")!.id, status: 200, kind: "" }, "2");
    await Promise.resolve();
    await Promise.resolve();
    await Promise.resolve();
    expect(answered).toHaveBeenCalledTimes(1);
    one.destroy();
    two.destroy();
    expect(kernel.listeners).toEqual([]);
  });
});

describe("a widget without a kernel", () => {
  it("says so after a while, and goes on with the snapshot", async () => {
    const kernel = new Kernel(EXACT);
    const { source, watched } = makeSource(kernel);
    await vi.advanceTimersByTimeAsync(PATIENCE + 10);
    expect(watched.lost).toHaveBeenCalled();
    expect((await source.get(`/api/recordings/${ID}`)).json<{ id: string }>().id).toBe(ID);
  });

  it("says that nothing answers where the snapshot does not know either", async () => {
    const kernel = new Kernel(null);
    kernel.send = () => {
      throw new Error("no comm");
    };
    const { source, watched } = makeSource(kernel);
    await expect(source.get("/api/workspace")).rejects.toBeInstanceOf(ServerGone);
    expect(watched.lost).toHaveBeenCalled();
  });

  it("falls back to the snapshot when a kernel that answered goes silent", async () => {
    const kernel = new Kernel(EXACT);
    const { source, watched } = makeSource(kernel);
    kernel.alive();
    await watched.probe();
    kernel.answer = () => undefined;
    const answer = source.get(`/api/recordings/${ID}`);
    await vi.advanceTimersByTimeAsync(PATIENCE + 10);
    expect((await answer).json<{ id: string }>().id).toBe(ID);
    expect(watched.lost).toHaveBeenCalled();
  });
});

describe("the program that plays scenes", () => {
  it("comes from the notebook, with or without a kernel", async () => {
    const stream = new Blob(["scenes()"]).stream().pipeThrough(new CompressionStream("gzip"));
    const kernel = new Kernel(null, await new Response(stream).arrayBuffer());
    const { source } = makeSource(kernel);
    const answer = await source.get("/play.js");
    expect(new TextDecoder().decode(answer.bytes)).toBe("scenes()");
    expect(kernel.requests.map(({ path }) => path)).not.toContain("/play.js");
  });

  it("is missed in words where a notebook was made without it", async () => {
    const { source } = makeSource(new Kernel(null));
    await expect(source.get("/play.js")).rejects.toThrow("run its cell again");
  });
});
