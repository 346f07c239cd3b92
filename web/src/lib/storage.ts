/** What the page keeps on this machine alone: the browser's own storage, where there is one to use. */

/** What is needed of `localStorage`. */
export interface Store {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

/** The browser's own storage, or null where there is none to use (a file without an origin, a browser that forbids it). */
export function browserStore(): Store | null {
  try {
    const store = globalThis.localStorage;
    store.getItem("manyheads");
    return store;
  } catch {
    return null;
  }
}
