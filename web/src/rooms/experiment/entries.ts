// The experiments that a reader has run, stored in the browser: each one's request and its numbers.
//
// The result's arrays are not stored: experiments are deterministic, so an entry is opened by running it again. Where the
// browser has no storage, or it is full or forbidden (a private window, a file), the list lasts as long as the page.
import type { Experiment } from "../../lib/api/types";
import { fromJson, save, type Store } from "../../lib/state/storage";
import { planInWords, type Step } from "./steps";

export interface Ask {
  model: string;
  text: string;
  plan: Step[];
}

export interface Entry extends Pick<Experiment, "metric" | "unit" | "change" | "low" | "high" | "control"> {
  key: string;
  name: string;
  made: number;
  ask: Ask;
}

const KEY = "manyheads.experiments";
const MOST_ENTRIES = 60;

export function readEntries(store: Store | null): Entry[] {
  const entries = fromJson(store?.getItem(KEY));
  return Array.isArray(entries) ? entries.filter(isEntry) : [];
}

/** Stores the entries; whether that worked. */
export function saveEntries(store: Store | null, entries: readonly Entry[]): boolean {
  return save(store, KEY, JSON.stringify(entries.slice(0, MOST_ENTRIES)));
}

/** The entries with a new one first. It replaces an entry of the same request and takes over its name. */
export function withEntry(entries: readonly Entry[], entry: Entry): Entry[] {
  const old = entries.find(({ key }) => key === entry.key);
  const named = old ? { ...entry, name: old.name } : entry;
  return [named, ...entries.filter(({ key }) => key !== entry.key)].slice(0, MOST_ENTRIES);
}

const DEFAULTS = ["auto", 10, 0]; // metric, controls and seed: the page never changes them, but stored keys have them

/** An entry's key: equal for equal requests. */
export function keyOf({ model, text, plan }: Ask): string {
  return JSON.stringify([model, text, plan, ...DEFAULTS]);
}

export function usualName(ask: Ask): string {
  const words = planInWords(ask.plan);
  return words.length > 60 ? `${words.slice(0, 57)}...` : words;
}

function isEntry(value: unknown): value is Entry {
  if (typeof value !== "object" || value === null) return false;
  const entry = value as Partial<Record<keyof Entry, unknown>>;
  const ask = entry.ask as Partial<Record<keyof Ask, unknown>> | undefined;
  return (
    typeof entry.key === "string" &&
    typeof entry.name === "string" &&
    typeof entry.change === "number" &&
    Array.isArray(entry.control) &&
    typeof ask === "object" &&
    ask !== null &&
    typeof ask.model === "string" &&
    typeof ask.text === "string" &&
    Array.isArray(ask.plan)
  );
}
