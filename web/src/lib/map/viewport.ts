// Arithmetic between cells and screen pixels, and the ticks of a ruler. Pure, so that it is tested without a browser.

/** A region of a map in cells: the middle of the screen, and screen pixels per cell. */
export interface Zoom {
  x: number;
  y: number;
  scale: number;
}

/** Pixels of the corner of cell (0, 0), and pixels per cell. */
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

/** The positions of `n` that lie at least partly on `length` pixels: the first, and one after the last. */
export function visibleRange(n: number, start: number, scale: number, length: number): [number, number] {
  return [Math.max(0, Math.floor(-start / scale)), Math.min(n, Math.ceil((length - start) / scale))];
}

/** Whether two regions are the same on screen; null is the whole map. */
export function sameZoom(a: Zoom | null, b: Zoom | null): boolean {
  if (!a || !b) return a === b;
  const near = (p: number, q: number) => Math.abs(p - q) * Math.max(a.scale, b.scale) < 0.5;
  return near(a.x, b.x) && near(a.y, b.y) && Math.abs(a.scale / b.scale - 1) < 1e-4;
}

interface Tick {
  /** The first position that the tick stands for, and how many. */
  position: number;
  span: number;
  /** Pixels along the ruler of the middle of the first position. */
  middle: number;
}

/** The smallest step of 1, 2, 5, 10, 20, ... positions at which labels of `room` pixels do not collide. */
export function stepFor(scale: number, room: number): number {
  for (let power = 1; ; power *= 10) {
    for (const factor of [1, 2, 5]) if (factor * power * scale >= room) return factor * power;
  }
}

/** The positions of `n` that get a label along a ruler of `length` pixels; `start` is the pixel of position 0. */
export function ticks(n: number, start: number, scale: number, length: number, room: number): Tick[] {
  const step = stepFor(scale, room);
  const first = Math.max(0, Math.floor(-start / scale));
  const last = Math.min(n - 1, Math.floor((length - start) / scale));
  const list: Tick[] = [];
  for (let position = Math.ceil(first / step) * step; position <= last; position += step) {
    list.push({ position, span: step, middle: start + (position + 0.5) * scale });
  }
  return list;
}
