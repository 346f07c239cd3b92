// Time to places: shares of a span of time, and what lies between two values or two rectangles.
import type { Point, Rect } from "./stage";

/** The share of the time from `from` to `to` that has passed at t, from 0 to 1. */
export function linear(t: number, from: number, to: number): number {
  return Math.max(0, Math.min(1, (t - from) / (to - from)));
}

/** The same, slow at both ends: 3p^2 - 2p^3. */
export function ease(t: number, from: number, to: number): number {
  const p = linear(t, from, to);
  return p * p * (3 - 2 * p);
}

export function mix(a: number, b: number, p: number): number {
  return a + (b - a) * p;
}

export function mixRect(a: Rect, b: Rect, p: number): Rect {
  return { x: mix(a.x, b.x, p), y: mix(a.y, b.y, p), w: mix(a.w, b.w, p), h: mix(a.h, b.h, p) };
}

const POINTS = 60; // of a link

/** A link from one word to another, above them: a curve as points, higher the farther apart its ends are. */
export function arcOf(from: Point, to: Point, most: number): Point[] {
  const high = Math.min(most, 26 + Math.abs(from.x - to.x) * 0.42) * 1.3;
  return Array.from({ length: POINTS + 1 }, (_, i) => {
    const s = i / POINTS;
    return { x: mix(from.x, to.x, s * s * (3 - 2 * s)), y: from.y - 3 * s * (1 - s) * high };
  });
}
