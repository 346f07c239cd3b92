// The rows of a side of a weight that are shown, and how their numbers are written.
import type { FullCard, WhyAnswer, WhyWriter } from "../../../lib/api/types";
import { short } from "../../../lib/draw/format";
import { LEAST_SHARE } from "../../../lib/exact/sentences.generated";

export type Side = "query" | "key";
const FOR = 4; // writers for the weight that are listed
const AGAINST = 2;

/** The largest shares for the weight, then those against it; and what all others give together. */
export function leading(table: readonly WhyWriter[]): { rows: WhyWriter[]; others: number; rest: number } {
  const order = [...table].sort((a, b) => Math.abs(b.share) - Math.abs(a.share)).filter(({ share }) => Math.abs(share) >= LEAST_SHARE);
  const rows = [...order.filter(({ share }) => share > 0).slice(0, FOR), ...order.filter(({ share }) => share < 0).slice(0, AGAINST)];
  const sum = (list: readonly WhyWriter[]) => list.reduce((total, { share }) => total + share, 0);
  return { rows, others: table.length - rows.length, rest: sum(table) - sum(rows) };
}

/** The largest share of either side, to which bars are drawn. */
export function peakOf(answer: WhyAnswer): number {
  return Math.max(1e-9, ...[...answer.query, ...answer.key].map(({ share }) => Math.abs(share)));
}

/** A log-odds, or a share of it, with its sign: "+1.40", "−0.55". */
export function nats(value: number): string {
  const text = Math.abs(value).toFixed(2);
  return Number(text) === 0 ? text : `${value < 0 ? "−" : "+"}${text}`;
}

/** A token as a sentence names it. */
export function named(token: string, most = 18): string {
  return short(token.trim() || token, most);
}

/** Most of a key writer's share is of what it wrote at other keys than the one looked at. */
export function isAtRivals({ share, at_rivals: rivals }: WhyWriter): boolean {
  return rivals !== null && Math.abs(rivals) > Math.abs(share - rivals);
}

/** What is explained of a head: the weight of a cell, or, where that is null, the head itself. */
export interface Explained {
  head: string;
  cell: { query: number; key: number; against: "rest" | number } | null;
  onagainst?: (against: "rest" | number) => void;
  onclose?: () => void;
  /** Called with the card that is on screen, null while there is none. */
  oncard?: (card: FullCard | null) => void;
}
