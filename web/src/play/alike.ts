// Scene 5: all heads of a model on their way to one map. Maps of one layer slide onto that of head 0; beside them the nearest
// sentences, or the likeliest next tokens, change places. Computed at every tenth; between two tenths colours and places blend,
// figures are those of the nearer one.
import type { Blend } from "../lib/api/types";
import { decimal, share } from "./figures";
import type { Chapter, Scene, Table, Words } from "./scene";
import type { Picture, Rect, Stage } from "./stage";
import { ease, mix } from "./time";

const BEGIN = 1; // seconds: the maps begin to slide
const DONE = 9;
const LISTED = 5;
const LEVELS = 65_534;
const ABSENT = 65_535;
const FIGURES = 52; // pixels of a line's number
const ARRIVED = 0.62; // of the way between two tenths: a line that changes its place half-way is all there
const LEAP = 0.25; // of a line that it moves meanwhile

/** An item of the list at one tenth. */
interface Place {
  /** From 0; LISTED is below the list. */
  rank: number;
  value: number;
}

export function alike(data: Blend): AlikeScene {
  return new AlikeScene(data);
}

/** The moment at which heads share so much, from 0 to 1: the slider's way to a time. */
export function momentOf(shared: number): number {
  if (shared <= 0) return 0;
  if (shared >= 1) return DONE;
  return BEGIN + (DONE - BEGIN) * (0.5 - Math.sin(Math.asin(1 - 2 * shared) / 3)); // the inverse of 3p^2 - 2p^3
}

export class AlikeScene implements Scene {
  readonly id = "alike";
  readonly name = "All heads alike";
  readonly chapters: readonly Chapter[];
  readonly end = 11;
  /** Shares of each tenth: [tenth][head, query, key]; NaN where a cell is not seen. */
  readonly maps: Float32Array[];
  readonly #count: number;
  /** [tenth][item]. */
  readonly #places: Place[][];
  /** Pictures of the maps on their way, for the last share that was drawn: the same numbers are not painted twice. */
  #painted: { key: string; pictures: Picture[] } | null = null;

  constructor(readonly data: Blend) {
    this.#count = data.heads.length;
    this.chapters = [{ name: "Apart", at: 0 }, { name: "Slide", at: BEGIN }, { name: "One map", at: DONE }];
    const bytes = Uint8Array.from(atob(data.maps), (letter) => letter.charCodeAt(0));
    const levels = new Uint16Array(bytes.buffer, 0, bytes.length / 2);
    const cells = levels.length / data.steps.length;
    this.maps = data.steps.map((_, step) => Float32Array.from(levels.subarray(step * cells, (step + 1) * cells), (level) => (level === ABSENT ? NaN : level / LEVELS)));
    this.#places = data.steps.map(({ values }) => {
      const order = values.map((_, item) => item).sort((a, b) => values[b]! - values[a]!);
      return values.map((value, item) => ({ rank: Math.min(LISTED, order.indexOf(item)), value }));
    });
  }

  /** How far heads are on their way at t, in steps. */
  at(t: number): number {
    return ease(t, BEGIN, DONE) * (this.data.steps.length - 1);
  }

  words(t: number): Words {
    const { headline, figures } = this.data.steps[Math.round(this.at(t))]!;
    return { headline, figures };
  }

  table(): Table {
    const { steps, items, kind } = this.data;
    const list = (values: readonly number[]) => values.map((_, i) => i).sort((a, b) => values[b]! - values[a]!).slice(0, LISTED);
    return {
      caption: kind === "guesses" ? "The likeliest next tokens at each step" : "The nearest sentences at each step",
      head: ["alike", ...Array.from({ length: Math.min(LISTED, items.length) }, (_, i) => `${i + 1}.`)],
      rows: steps.map(({ share: part, values }) => [share(part), ...list(values).map((i) => `${items[i]} ${values[i]!.toFixed(4)}`)]),
    };
  }

  draw(stage: Stage, t: number): void {
    const { tall, width, height, scale } = stage;
    const s = this.at(t);
    const listed = this.data.items.length > 0;
    const left = tall ? 12 : 32 * scale;
    // Maps leave the list the width of its longest line; they are no smaller than they can be, and no less than 45 % of the stage.
    const [gap, wide] = [36 * scale, width - 68 * scale];
    const need = Math.min(0.55 * wide - gap, this.#listWidth(stage, 14));
    const side = tall ? width - 24 : listed ? Math.min(wide - gap - need, height * 1.25) : width - 64;
    const high = tall && listed ? Math.min(height * 0.56, width) : height;
    const { right, bottom } = this.#maps(stage, s, { x: left, y: 0, w: side, h: high });
    if (!listed) return;
    if (tall) this.#list(stage, s, { x: 12, y: bottom + 10, w: width - 24, h: height - bottom - 14 });
    else this.#list(stage, s, { x: right + gap, y: 12 * scale, w: left + wide - right - gap, h: height - 20 * scale });
  }

  /** Items that are listed at some tenth. */
  get #listed(): string[] {
    return this.data.items.filter((_, i) => this.#places.some((places) => places[i]!.rank < LISTED));
  }

  #listWidth(stage: Stage, size: number): number {
    const mono = this.data.kind === "guesses";
    return FIGURES * stage.scale + Math.max(0, ...this.#listed.map((item) => stage.measure(item.trim(), { size, weight: 620, mono })));
  }

  /** The maps in a grid; gives where it ends. */
  #maps(stage: Stage, s: number, room: Rect): { right: number; bottom: number } {
    const { scale, colours } = stage;
    const label = 18 * scale;
    const gap = 12;
    let best = { cell: 0, columns: 1 };
    for (let columns = 1; columns <= this.#count; columns++) {
      const rows = Math.ceil(this.#count / columns);
      const cell = Math.floor(Math.min(room.w / columns - gap, room.h / rows - label - 6));
      if (cell > best.cell) best = { cell, columns };
    }
    const { cell, columns } = best;
    const wide = "H0, used by all";
    const size = 11;
    const step = Math.min(room.w / columns, Math.max(cell + Math.max(gap, 0.14 * cell), stage.measure(wide, { size, weight: 700 }) + 8));
    const down = cell + label + 6;
    const pictures = this.#pictures(stage, s);
    const { heads, side, exact, tokens } = this.data;
    heads.forEach((head, h) => {
      const rect = { x: room.x + (h % columns) * step, y: room.y + label + Math.floor(h / columns) * down, w: cell, h: cell };
      const name = head.replace(/^.*H/, "H");
      stage.picture(pictures[h]!, rect);
      stage.frame(rect, h ? colours.line2 : colours.accent, h ? 1 : 2);
      const fits = !h && stage.measure(wide, { size, weight: 700 }) <= step - 4;
      stage.text(fits ? wide : name, rect.x, rect.y - 5 * scale, { size, weight: h ? 400 : 700, colour: h ? colours.ink2 : colours.accent });
      stage.spot(rect, (x, y) => {
        const [q, k] = [stage.placeIn(rect, side, x, y, false), stage.placeIn(rect, side, x, y, true)];
        const tenth = Math.round(s);
        const weight = this.maps[tenth]![(h * side + q) * side + k]!;
        const cellWords = exact ? `${tokens[q]?.label ?? q} → ${tokens[k]?.label ?? k}` : `block ${q + 1}, ${k + 1} of ${side}`;
        return `${head}, ${cellWords}\n${Number.isNaN(weight) ? "not seen" : `${weight.toFixed(4)} at ${share(this.data.steps[tenth]!.share)}`}`;
      });
    });
    return { right: room.x + (columns - 1) * step + cell, bottom: room.y + Math.ceil(this.#count / columns) * down };
  }

  #pictures(stage: Stage, s: number): Picture[] {
    const low = Math.min(this.maps.length - 2, Math.floor(s));
    const part = Math.round((s - low) * 64) / 64;
    const key = `${low} ${part} ${stage.dark}`;
    if (this.#painted?.key === key) return this.#painted.pictures;
    const [a, b] = [this.maps[low]!, this.maps[low + 1]!];
    const cells = this.data.side ** 2;
    const pictures = this.data.heads.map((_, h) => {
      const values = new Float32Array(cells);
      for (let i = 0; i < cells; i++) values[i] = mix(a[h * cells + i]!, b[h * cells + i]!, part);
      return stage.grid(values, this.data.side, this.data.side, 1, false);
    });
    this.#painted = { key, pictures };
    return pictures;
  }

  #list(stage: Stage, s: number, room: Rect): void {
    const { scale, colours, tall } = stage;
    const { items, kind } = this.data;
    const guesses = kind === "guesses";
    const low = Math.min(this.#places.length - 2, Math.floor(s));
    const part = s - low;
    const [from, to] = [this.#places[low]!, this.#places[low + 1]!];
    const title = guesses ? "likeliest next tokens" : `nearest of ${items.length} sentences`;
    const figures = FIGURES * scale;
    // As large as the longest of all that are listed at some tenth allows, down to 11.
    let size = tall ? 12 : 15;
    while (size > 11 && this.#listWidth(stage, size) > room.w) size -= 0.5;
    stage.text(title, room.x, room.y + 12 * scale, { size: tall ? 12 : 14, weight: 620 });
    const line = Math.min(54 * scale, (room.h - 24 * scale) / (LISTED + 0.2));
    items.forEach((item, i) => {
      const [a, b] = [from[i]!, to[i]!];
      if (a.rank >= LISTED && b.rank >= LISTED) return;
      // Half-way the list is the other one: lines that changed places come from where they were, and are never printed on each other.
      const before = part < 0.5;
      const rank = before ? a.rank : b.rank;
      const alpha = rank >= LISTED ? 0 : before || a.rank === b.rank ? 1 : mix(0.45, 1, ease(part, 0.5, ARRIVED));
      if (!alpha) return;
      const y = room.y + 24 * scale + line * (rank + Math.sign(a.rank - rank) * LEAP * (1 - alpha) + 0.5);
      const isNew = this.#places[0]![i]!.rank >= LISTED;
      const value = (part < 0.5 ? a : b).value;
      const colour = isNew ? colours.accent : colours.ink;
      const style = { size, weight: isNew ? 620 : 400, mono: guesses, colour, alpha };
      const rows = fitted(stage, item, room.w - figures, style, line >= 40 * scale);
      rows.forEach((words, n) => stage.text(words, room.x, y - (rows.length - 1 - n) * 1.15 * size * scale, style));
      stage.text(guesses ? share(value) : decimal(value, 3), room.x + room.w, y, { size: 12, align: "right", colour: colours.ink2, alpha });
      const bar = Math.max(0, mix(a.value, b.value, part));
      stage.rect({ x: room.x, y: y + 6 * scale, w: room.w * bar, h: 3 }, isNew ? colours.accent : colours.ink3, alpha);
      stage.spot({ x: room.x, y: y - line / 2, w: room.w, h: line }, () => `${item}\n${value.toFixed(4)}, at 0 % ${this.#places[0]![i]!.value.toFixed(4)}`);
    });
  }
}

/** A text in its room: on one line, else on two where there is room for them, else cut. */
function fitted(stage: Stage, words: string, room: number, style: { size: number; weight: number; mono: boolean }, two: boolean): string[] {
  const fits = (line: string) => stage.measure(line, style) <= room;
  const text = words.trim() || words;
  if (fits(text)) return [text];
  const parts = text.split(" ");
  const breaks = parts.map((_, i) => [parts.slice(0, i).join(" "), parts.slice(i).join(" ")]).slice(1);
  const broken = two ? breaks.findLast((lines) => lines.every(fits)) : undefined;
  if (broken) return broken;
  let begin = text;
  while (begin.length > 2 && !fits(`${begin}…`)) begin = begin.slice(0, -1);
  return [`${begin}…`];
}
