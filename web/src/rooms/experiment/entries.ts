// The list of experiments that a person has run, kept in this browser: what was asked, and the numbers it gave.
//
// The ask is kept, not the answer's arrays: it is deterministic, so reopening runs it again (the server still has it,
// or makes it anew). Storage may be missing, full or forbidden (private windows, a file): then the list lives as long
// as the page, and that is said.
import { fromJson, keep, type Store } from "../../lib/storage";
import type { Experiment } from "../../lib/types";
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
  const found = fromJson(store?.getItem(KEY));
  return Array.isArray(found) ? found.filter(isEntry) : [];
}

/** Whether it could be kept. */
export function keepEntries(store: Store | null, entries: readonly Entry[]): boolean {
  return keep(store, KEY, JSON.stringify(entries.slice(0, MOST_ENTRIES)));
}

/** The entries with this one first; the same ask again takes the place of the old, and keeps its name. */
export function withEntry(entries: readonly Entry[], entry: Entry): Entry[] {
  const old = entries.find((each) => each.key === entry.key);
  const named = old ? { ...entry, name: old.name } : entry;
  return [named, ...entries.filter((each) => each.key !== entry.key)].slice(0, MOST_ENTRIES);
}

const USUAL = ["auto", 10, 0]; // metric, controls and seed, which no page asks otherwise: kept entries have them in their keys

/** The same ask is the same entry. */
export function keyOf({ model, text, plan }: Ask): string {
  return JSON.stringify([model, text, plan, ...USUAL]);
}

export function usualName(ask: Ask): string {
  const words = planInWords(ask.plan);
  return words.length > 60 ? `${words.slice(0, 57)}...` : words;
}

function isEntry(what: unknown): what is Entry {
  if (typeof what !== "object" || what === null) return false;
  const entry = what as Partial<Record<keyof Entry, unknown>>;
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
