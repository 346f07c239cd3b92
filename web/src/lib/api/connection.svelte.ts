// Whether the server answers. After it stops, `probe` is called every two seconds until it answers again; then the
// listeners fetch again what they need. A recording's id is a digest of its inputs, so ids stay valid over a restart.

const PAUSE = 2000; // ms between two attempts

export class Connection {
  gone = $state(false);
  /** Attempts since the server stopped: shown, so that a reader sees that the page still works. */
  tries = $state(0);
  #probe: (() => Promise<boolean>) | null = null;
  #listeners: (() => void | Promise<void>)[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `probe` returns whether the server answers. A source that cannot fail (a saved page) never calls this. */
  watch(probe: () => Promise<boolean>): void {
    this.#probe = probe;
  }

  onBack(listener: () => void | Promise<void>): void {
    this.#listeners.push(listener);
  }

  lost(): void {
    if (this.gone || !this.#probe) return;
    this.gone = true;
    this.tries = 0;
    this.#schedule();
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#probe = null;
  }

  #schedule(): void {
    this.#timer = setTimeout(() => void this.tryNow(), PAUSE);
  }

  async tryNow(): Promise<void> {
    clearTimeout(this.#timer);
    if (!this.#probe) return;
    this.tries += 1;
    if (!(await this.#probe())) return this.#schedule();
    await this.restored();
  }

  /** The server answers (again): calls every listener, in the order in which they registered. */
  async restored(): Promise<void> {
    clearTimeout(this.#timer);
    this.gone = false;
    for (const listener of this.#listeners) await listener();
  }
}
