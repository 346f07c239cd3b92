// The browser's own storage, where the page keeps what concerns this machine alone.

/** The part of `localStorage` that is used. */
export interface Store {
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
}

/** The browser's storage, or null where it cannot be used (a file without an origin, a browser that forbids it). */
export function browserStore(): Store | null {
  try {
    const store = globalThis.localStorage;
    store.getItem("manyheads"); // some browsers hand out a storage and throw at its first use
    return store;
  } catch {
    return null;
  }
}

/** Stores a value; false where the storage is missing, full or forbidden: the value then lasts as long as the page. */
export function save(store: Store | null, key: string, value: string): boolean {
  try {
    store?.setItem(key, value);
    return store !== null;
  } catch {
    return false;
  }
}

/** The value of a JSON text from the storage or the address; null for a missing or damaged one. */
export function fromJson(text: string | null | undefined): unknown {
  try {
    return JSON.parse(text || "null");
  } catch {
    return null;
  }
}
