// What the page keeps on this machine alone: the browser's own storage, where there is one to use.

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

/** Whether it could be kept: a store may be missing, full or forbidden, and it then lasts as long as the page. */
export function keep(store: Store | null, key: string, value: string): boolean {
  try {
    store?.setItem(key, value);
    return store !== null;
  } catch {
    return false;
  }
}

/** What a text kept here, or in the address, says; null where there is none, or a damaged one. */
export function fromJson(text: string | null | undefined): unknown {
  try {
    return JSON.parse(text || "null");
  } catch {
    return null;
  }
}
