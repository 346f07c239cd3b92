// The two sides of Compare as the address keeps them: what makes a recording, shortened by what is open anyway.
import { fromJson } from "../../lib/storage";
import type { Asked, PlanStep, RecordingAsk } from "../../lib/types";
import { MAX_TEXT } from "../../lib/view.svelte";
import { stepsIn } from "../experiment/steps";

/** What makes a recording; what is left out is as what is open has it. */
export interface Side {
  model?: string;
  text?: string;
  file?: string;
  plan?: PlanStep[];
}

interface Open {
  model: string;
  text: string;
}

/** A side for the address: "" where it is just what is open. */
export function sideFor(side: Side, open: Open | null): string {
  const short: Side = {};
  if (side.file) short.file = side.file;
  else {
    if (side.model && side.model !== open?.model) short.model = side.model;
    if (side.text !== undefined && side.text !== open?.text && side.text.length <= MAX_TEXT) short.text = side.text;
  }
  if (side.plan?.length) short.plan = side.plan;
  return Object.keys(short).length ? JSON.stringify(short) : "";
}

/** A side from the address, {} for what is open; damage reads as what is open. */
export function readSide(kept: string): Side {
  const { model, text, file, plan } = (fromJson(kept) ?? {}) as Record<string, unknown>;
  const steps = stepsIn(plan);
  return {
    ...(typeof model === "string" ? { model } : {}),
    ...(typeof text === "string" ? { text } : {}),
    ...(typeof file === "string" ? { file } : {}),
    ...(steps ? { plan: steps } : {}),
  };
}

/** The request that makes a side's recording, or null where it is what is open as it is. */
export function askFor(side: Side, open: Open | null): Asked<RecordingAsk> | null {
  if (side.file) return { file: side.file };
  if (!Object.keys(side).length) return null;
  const model = side.model ?? open?.model;
  const text = side.text ?? open?.text;
  return { ...(model ? { model } : {}), ...(text !== undefined ? { text } : {}), ...(side.plan ? { plan: side.plan } : {}) };
}
