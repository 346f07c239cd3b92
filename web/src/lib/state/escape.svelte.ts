// What Escape leaves: the topmost thing alone. Whatever can be left puts itself on a stack for as long as it is there.
export class Escapes {
  #stack: (() => void)[] = [];

  /** For a component: while `active` is true, Escape calls `leave`, unless something lies above it. */
  use(active: () => boolean, leave: () => void): void {
    $effect(() => {
      if (!active()) return;
      return this.push(leave);
    });
  }

  /** Puts something on top; returns a function that takes it off. */
  push(leave: () => void): () => void {
    const entry = () => leave();
    this.#stack.push(entry);
    return () => {
      this.#stack = this.#stack.filter((other) => other !== entry);
    };
  }

  /** Leaves the topmost thing; false if there is none. */
  leave(): boolean {
    const top = this.#stack.at(-1);
    top?.();
    return top !== undefined;
  }
}
