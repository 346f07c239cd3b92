// A watched training that the page follows: its state, and the curves on screen. While the room is open the server is asked
// for the state and answers when the file has grown; then the curves are fetched again.
import type { Client } from "../../lib/api/client";
import { isAbort, ServerGone } from "../../lib/api/source";
import type { History, HistoryEntry } from "../../lib/api/types";
import { curvesOf, type Curves } from "./curves";

const WAIT = 10; // seconds that the server may hold a question whether the file has grown
const PAUSE = 1500; // ms before a server that does not answer is asked again

export class Followed {
  entries = $state.raw<HistoryEntry[] | null>(null);
  state = $state.raw<History | null>(null);
  /** One statistic of all heads. */
  curves = $state.raw<(Curves & { statistic: string }) | null>(null);
  /** Every statistic of one head. */
  head = $state.raw<(Curves & { name: string }) | null>(null);
  trouble = $state.raw<unknown>(null);
  /** When the file last grew while the page looked, as a time of the clock. */
  grown = $state<string>("");
  #followed = new AbortController();
  #wanted = { statistic: "", head: "" };

  constructor(private readonly client: Client) {}

  async list(): Promise<void> {
    try {
      this.entries = await this.client.histories();
      this.trouble = null;
    } catch (error) {
      if (!(error instanceof ServerGone)) this.trouble = error;
    }
  }

  /** Follows a history until another one is followed or `stop` is called. */
  async follow(id: string): Promise<void> {
    this.stop();
    const { signal } = (this.#followed = new AbortController());
    [this.state, this.curves, this.head, this.grown, this.trouble] = [null, null, null, "", null];
    while (!signal.aborted) {
      try {
        const before = this.state as History | null;
        const state = await this.client.history(id, before?.version ?? "", before ? WAIT : 0, signal);
        if (state.version !== before?.version) {
          if (before) this.grown = new Date().toLocaleTimeString("en-GB");
          await this.#fetch(state, signal);
        }
        this.trouble = null;
        // A page that nobody sees asks for nothing.
        if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true, signal }));
      } catch (error) {
        if (isAbort(error) || signal.aborted) return;
        if (!(error instanceof ServerGone)) this.trouble = error;
        await new Promise((resolve) => setTimeout(resolve, PAUSE));
      }
    }
  }

  stop(): void {
    this.#followed.abort();
  }

  /** Says what is on screen; what is not here yet is fetched. */
  async show(statistic: string, head: string): Promise<void> {
    this.#wanted = { statistic, head };
    const { state } = this;
    if (!state || (this.curves?.statistic === statistic && this.head?.name === head)) return;
    try {
      await this.#fetch(state, this.#followed.signal);
    } catch (error) {
      if (!isAbort(error) && !(error instanceof ServerGone)) this.trouble = error;
    }
  }

  async #fetch(state: History, signal: AbortSignal): Promise<void> {
    const fresh = state.version !== this.state?.version;
    const { statistic, head } = this.#wanted;
    // Of a training beside another one: it may have neither.
    const [has, hasHead] = [state.num_steps && state.statistics.some(({ name }) => name === statistic), state.num_steps && state.heads.includes(head)];
    const [curves, line] = await Promise.all([
      has && (fresh || this.curves?.statistic !== statistic) ? this.client.historyCurves(state.id, statistic, signal) : null,
      hasHead && (fresh || this.head?.name !== head) ? this.client.historyHead(state.id, head, signal) : null,
    ]);
    if (signal.aborted) return;
    if (curves) this.curves = { ...curvesOf(curves), statistic };
    if (line) this.head = { ...curvesOf(line), name: head };
    this.state = state;
  }
}
