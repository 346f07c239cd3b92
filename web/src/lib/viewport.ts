// Arithmetic between cells and screen pixels, and which labels fit a ruler. Pure, so that it is tested without a browser.
import type { Zoom } from "./view.svelte";

/** Pixels of cell (0, 0)'s corner, and pixels per cell. */
export interface Frame {
  left: number;
  top: number;
  scale: number;
}

export interface Cell {
  query: number;
  key: number;
}

/** The cell under a pixel, or null beside the map. */
export function cellAt(px: number, py: number, frame: Frame, numQueries: number, numKeys: number): Cell | null {
  const key = Math.floor((px - frame.left) / frame.scale);
  const query = Math.floor((py - frame.top) / frame.scale);
  return key < 0 || query < 0 || key >= numKeys || query >= numQueries ? null : { query, key };
}

/** The pixels per cell at which a whole map fits into a box. */
export function fit(width: number, height: number, numQueries: number, numKeys: number): number {
  return Math.max(1e-6, Math.min(width / numKeys, height / numQueries));
}

/** The positions of `n` that lie, in part at least, on `length` pixels, from one to before the other. */
export function seen(n: number, start: number, scale: number, length: number): [number, number] {
  return [Math.max(0, Math.floor(-start / scale)), Math.min(n, Math.ceil((length - start) / scale))];
}

/** Whether two regions are the same on screen; null is the whole map. */
export function sameZoom(a: Zoom | null, b: Zoom | null): boolean {
  if (!a || !b) return a === b;
  const near = (p: number, q: number) => Math.abs(p - q) * Math.max(a.scale, b.scale) < 0.5;
  return near(a.x, b.x) && near(a.y, b.y) && Math.abs(a.scale / b.scale - 1) < 1e-4;
}

interface Tick {
  /** The first position it stands for, and how many. */
  at: number;
  span: number;
  /** Pixels of its middle along the ruler. */
  middle: number;
}

const NICE = [1, 2, 5];

/** A step of 1, 2, 5, 10, 20, ... positions so that labels of `room` pixels do not collide. */
export function stepFor(scale: number, room: number): number {
  for (let power = 1; ; power *= 10) {
    for (const nice of NICE) if (nice * power * scale >= room) return nice * power;
  }
}

/** Which positions of `n` get a label along a ruler of `length` pixels that begins at `start` (pixels of position 0). */
export function ticks(n: number, start: number, scale: number, length: number, room: number): Tick[] {
  const step = stepFor(scale, room);
  const first = Math.max(0, Math.floor(-start / scale));
  const last = Math.min(n - 1, Math.floor((length - start) / scale));
  const out: Tick[] = [];
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
    out.push({ at, span: step, middle: start + (at + 0.5) * scale });
  }
  return out;
}

/** The fewest of a row's largest weights that together make `share` of what the row holds: the others become absent. */
export function largest(row: Float32Array, share: number): Uint8Array {
  const keep = new Uint8Array(row.length);
  const order = Array.from(row.keys()).filter((i) => row[i]! > 0).sort((a, b) => row[b]! - row[a]!);
  const goal = order.reduce((sum, i) => sum + row[i]!, 0) * share;
  let sum = 0;
  for (const i of order) {
    if (sum >= goal - 1e-9) break;
    keep[i] = 1;
    sum += row[i]!;
  }
  return keep;
}

/** A value's rank in its row, from 1; equal values share the better rank. */
export function rankOf(row: Float32Array, key: number): number {
  const value = row[key]!;
  let rank = 1;
  for (const other of row) if (other > value) rank += 1;
  return rank;
}
