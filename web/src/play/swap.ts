// Scene 4: one word of the text is changed. The links of the word that asks swing to their new widths, ghosts of the old ones
// stay, and both shares stand under the words. A second head shows that another one may hold on.
import type { Swap } from "../lib/api/types";
import { share } from "./figures";
import type { Chapter, Scene, Table, Words } from "./scene";
import type { Rect, Stage } from "./stage";
import { arcOf, ease, mix } from "./time";

const TURN = 2.4; // seconds: the word begins to turn
const TURNED = 3.4;
const GROWN = 1.1;
const MOST = 24; // columns; of more words, those that are looked at most, and one column for the others
const MOST_TALL = 16;
const FAINT = 0.03; // of a look: less has no figure under its word

/** What a click on the stage does. */
interface Acts {
  /** The changed word turns again. */
  turn?: () => void;
  /** Another word is to be changed: its number among the words. */
  change?: (word: number) => void;
}

/** A column: a word, or all that are not shown (`word` is -1). */
interface Column {
  word: number;
  label: string;
}

interface Row {
  head: string;
  before: number[];
  after: number[];
}

export function swap(data: Swap, acts: Acts = {}): Scene {
  return new SwapScene(data, acts);
}

class SwapScene implements Scene {
  readonly id = "swap";
  readonly name: string;
  readonly chapters: readonly Chapter[];
  readonly end = 6;
  readonly #old: string;

  constructor(readonly data: Swap, readonly acts: Acts) {
    this.#old = data.words[data.place]!;
    this.name = `${this.#old} ↔ ${data.new}`;
    this.chapters = [{ name: `With “${this.#old}”`, at: 0 }, { name: "Change", at: TURN }, { name: `With “${data.new}”`, at: 3.6 }];
  }

  words(t: number): Words {
    if (t < TURN) return { headline: this.data.linked, figures: `click “${this.#old}”, or press C, to change it` };
    return { headline: this.data.said, figures: this.data.figures };
  }

  table(): Table {
    const { words, rows, place } = this.data;
    const names = words.map((word, i) => (i === place ? `${word}, then ${this.data.new}` : word));
    return {
      caption: `How much “${words[this.data.query]}” looks at each word with “${this.#old}” and with “${this.data.new}”`,
      head: ["word", ...rows.flatMap(({ head }) => [`${head} before`, `${head} after`])],
      rows: names.map((name, i) => [name, ...rows.flatMap(({ before, after }) => [before[i]!.toFixed(4), after[i]!.toFixed(4)])]),
    };
  }

  draw(stage: Stage, t: number): void {
    const most = stage.tall ? MOST_TALL : MOST;
    const columns = this.#columns(most);
    const rows = this.data.rows.map((row) => ({ head: row.head, before: gathered(row.before, columns), after: gathered(row.after, columns) }));
    if (stage.tall) this.#tall(stage, t, columns, rows[0]!);
    else this.#wide(stage, t, columns, rows);
  }

  /** Words that are shown, in the order of the text: all of a short one. */
  #columns(most: number): Column[] {
    const { words, rows, query, place, links } = this.data;
    const all = words.map((label, word) => ({ word, label }));
    if (words.length <= most) return all;
    const weight = (word: number) => Math.max(...rows.map(({ before, after }) => Math.max(before[word]!, after[word]!)));
    const always = new Set([query, place, ...links]);
    const rest = all.filter(({ word }) => !always.has(word)).sort((a, b) => weight(b.word) - weight(a.word));
    const shown = [...all.filter(({ word }) => always.has(word)), ...rest.slice(0, most - 1 - always.size)].sort((a, b) => a.word - b.word);
    return [...shown, { word: -1, label: `${words.length - shown.length} others` }];
  }

  #colour(stage: Stage, column: Column): string {
    const { links, special } = this.data;
    if (links.includes(column.word)) return stage.colours.accent;
    return column.word < 0 || special[column.word] ? stage.colours.ink3 : stage.colours.ink2;
  }

  /** The chip of the changed word, its text turning over; a click changes it again. */
  #chip(stage: Stage, box: Rect, t: number, size: number): void {
    const { colours } = stage;
    const p = ease(t, TURN, TURNED);
    stage.rect(box, colours.accentSoft, 1, box.h / 2);
    const middle = { x: box.x + box.w / 2, y: box.y + box.h / 2 + size * 0.35 * stage.scale };
    const style = { size, weight: 700, mono: true, align: "center" as const, colour: colours.accent };
    const rise = box.h * 0.7;
    stage.clip(box, () => {
      if (p < 1) stage.text(this.#old, middle.x, middle.y - rise * p, { ...style, alpha: 1 - p });
      if (p > 0) stage.text(this.data.new, middle.x, middle.y + rise * (1 - p), { ...style, alpha: p });
    });
    stage.spot(box, `“${this.#old}” ↔ “${this.data.new}”\nclick: change it again`, this.acts.turn);
  }

  #spot(stage: Stage, rect: Rect, column: Column, j: number, row: Row): void {
    if (column.word === this.data.place) return;
    const asks = this.data.words[this.data.query];
    const figures = `${this.#old} ${row.before[j]!.toFixed(4)}, ${this.data.new} ${row.after[j]!.toFixed(4)}`;
    const change = this.acts.change;
    const can = column.word >= 0 && !this.data.special[column.word] && change;
    stage.spot(rect, `${row.head}: ${asks} → ${column.label}\n${figures}`, can ? () => change(column.word) : undefined);
  }

  // ------------------------------------------------------------------ columns of words, links above them
  #wide(stage: Stage, t: number, columns: readonly Column[], rows: readonly Row[]): void {
    const { width, height, scale, colours } = stage;
    const { query, place, links, data } = { ...this.data, data: this.data };
    const p = ease(t, TURN, TURNED);
    const grow = ease(t, 0.1, GROWN);
    const left = 96 * scale;
    const longest = (label: string, word: number) => (word === place && data.new.length > label.length ? data.new : label);
    const widths = (size: number) => columns.map(({ label, word }) => stage.measure(longest(label, word), { size, mono: true, weight: word === query || word === place ? 700 : 400 }) + (word === place ? 30 : 14) * scale);
    const total = (size: number) => widths(size).reduce((sum, w) => sum + w, 0);
    let size = 14;
    const panel = 264 * scale; // the two links in large figures, where there is room beside the words
    const hasPanel = total(size) <= width - left - panel - 24;
    const room = width - left - (hasPanel ? panel : 24);
    while (size > 9.5 && total(size) > room) size -= 0.5;
    const wide = widths(size);
    const extra = Math.max(0, room - total(size)) / columns.length;
    let x = left;
    const middles = wide.map((w) => {
      const middle = x + (w + extra) / 2;
      x += w + extra;
      return middle;
    });
    const from = columns.findIndex(({ word }) => word === query);
    const under = 48 * scale; // two lines of figures below the words
    const share_ = (height - 12) / rows.length;
    rows.forEach((row, n) => {
      const base = share_ * (n + 1) - under;
      const rise = Math.max(40, share_ - under - 34 * scale);
      const first = n === 0;
      const holds = row.after[columnOf(columns, links[0]!)]! >= 0.8 * row.before[columnOf(columns, links[0]!)]!;
      stage.text(row.head, left - 20 * scale, base - 2 * scale, { size: 15, weight: 700, align: "right", colour: first ? colours.accent : colours.ink });
      stage.text(holds ? "holds on" : "lets go", left - 20 * scale, base + 16 * scale, { size: 12, align: "right", colour: colours.ink3, alpha: ease(t, TURNED, TURNED + 0.4) });
      columns.forEach((column, j) => {
        const [was, is] = [row.before[j]!, row.after[j]!];
        if (j !== from && column.word !== place) {
          const arc = arcOf({ x: middles[from]!, y: base - 20 * scale }, { x: middles[j]!, y: base - 20 * scale }, rise);
          const most = 26 * scale;
          if (p > 0 && was > 0.01) stage.line(arc, colours.ink3, 1, 0.55 * p, true);
          const now = mix(was, is, p) * grow;
          if (now > 0.004) stage.line(arc, this.#colour(stage, column), Math.max(0.7, now * most), mix(0.25, 0.9, Math.min(1, now * 2)));
        }
        this.#spot(stage, { x: middles[j]! - wide[j]! / 2, y: base - 18 * scale, w: wide[j]!, h: 18 * scale + under - 6 }, column, j, row);
        if (column.word === place) {
          this.#chip(stage, { x: middles[j]! - wide[j]! / 2 + 4 * scale, y: base - 16 * scale, w: wide[j]! - 8 * scale, h: 26 * scale }, t, size);
          return;
        }
        const asks = column.word === query;
        stage.text(column.label, middles[j]!, base + 2 * scale, { size, mono: true, align: "center", weight: asks ? 700 : 400, colour: asks ? colours.accent : column.word >= 0 && !data.special[column.word] ? colours.ink : colours.ink3 });
      });
      this.#figures(stage, columns, row, middles, base, p, grow);
      if (hasPanel) this.#panel(stage, row, columns, width - panel + 20 * scale, base, p, grow);
    });
  }

  /** The share of each word under it, and what it was; where two would touch, the smaller is left to the pointer. */
  #figures(stage: Stage, columns: readonly Column[], row: Row, middles: readonly number[], base: number, p: number, grow: number): void {
    const { scale, colours } = stage;
    const order = columns.map((_, j) => j).filter((j) => row.before[j]! > FAINT || row.after[j]! > FAINT);
    const rank = (j: number) => (this.data.links.includes(columns[j]!.word) ? 2 : 0) + Math.max(row.before[j]!, row.after[j]!);
    order.sort((a, b) => rank(b) - rank(a));
    const taken: [number, number][][] = [[], []];
    const write = (words: string, x: number, line: 0 | 1, style: { size: number; weight?: number; colour: string; alpha: number }) => {
      const half = stage.measure(words, style) / 2 + 3;
      if (x - half < 4 || x + half > stage.width - 4 || taken[line]!.some(([a, b]) => x + half > a && x - half < b)) return;
      taken[line]!.push([x - half, x + half]);
      stage.text(words, x, base + (line ? 38 : 22) * scale, { ...style, align: "center" });
    };
    for (const j of order) {
      const colour = this.data.links.includes(columns[j]!.word) ? colours.accent : colours.ink2;
      write(share(p < 0.5 ? row.before[j]! : row.after[j]!), middles[j]!, 0, { size: 12, weight: 620, colour, alpha: grow });
      if (p > 0.5) write(`was ${share(row.before[j]!)}`, middles[j]!, 1, { size: 11, colour: colours.ink3, alpha: 1 });
    }
  }

  /** The two links of the sentence in large figures. */
  #panel(stage: Stage, row: Row, columns: readonly Column[], x: number, base: number, p: number, grow: number): void {
    const { scale, colours } = stage;
    this.data.links.forEach((word, n) => {
      const j = columnOf(columns, word);
      const y = base - (96 - 62 * n) * scale;
      stage.text(`${this.data.words[this.data.query]} → ${this.data.words[word]}`, x, y, { size: 12, mono: true, colour: colours.ink2 });
      const style = { size: 24, weight: 620 };
      stage.text(share(row.before[j]!), x, y + 30 * scale, { ...style, colour: p > 0 ? colours.ink3 : colours.ink, alpha: grow });
      if (p === 0) return;
      const past = x + stage.measure(share(row.before[j]!), style) + 14 * scale;
      stage.text("→", past, y + 28 * scale, { size: 20, colour: colours.ink3, alpha: p });
      stage.text(share(row.after[j]!), past + 34 * scale, y + 30 * scale, { ...style, colour: colours.accent, alpha: p });
    });
  }

  // ------------------------------------------------------------------ rows of words, bars beside them
  #tall(stage: Stage, t: number, columns: readonly Column[], row: Row): void {
    const { width, height, colours } = stage;
    const p = ease(t, TURN, TURNED);
    const grow = ease(t, 0.1, GROWN);
    const top = 30;
    const high = Math.min(34, (height - top - 8) / columns.length);
    const words = 96;
    const figures = 92;
    const most = width - words - figures - 16;
    const size = high < 20 ? 11 : 12.5;
    stage.text(row.head, 12, 19, { size: 13, weight: 700, colour: colours.accent });
    stage.text(`“${this.data.words[this.data.query]}” looks at`, 22 + stage.measure(row.head, { size: 13, weight: 700 }), 19, { size: 12, colour: colours.ink2 });
    columns.forEach((column, j) => {
      const y = top + high * (j + 0.5);
      const now = mix(row.before[j]!, row.after[j]!, p) * grow;
      const strong = column.word === this.data.query;
      this.#spot(stage, { x: 0, y: y - high / 2, w: width, h: high }, column, j, row);
      if (column.word === this.data.place) this.#chip(stage, { x: 4, y: y - Math.min(13, high / 2 - 1), w: words - 8, h: Math.min(26, high - 2) }, t, size);
      else {
        stage.clip({ x: 0, y: y - high / 2, w: words, h: high }, () => stage.text(stage.fitted(column.label, words - 16, { size, mono: true }), words - 10, y + 4, {
          size, mono: true, align: "right", weight: strong ? 700 : 400, colour: strong ? colours.accent : column.word >= 0 && !this.data.special[column.word] ? colours.ink : colours.ink3,
        }));
      }
      if (p > 0) stage.rect({ x: words, y: y - 8, w: Math.max(1, most * row.before[j]!), h: 2 }, colours.ink3, p);
      stage.rect({ x: words, y: y - 5, w: Math.max(1, most * now), h: 9 }, this.#colour(stage, column));
      if (row.before[j]! <= FAINT && row.after[j]! <= FAINT) return;
      const said = p > 0.5 ? `${share(row.before[j]!)} → ${share(row.after[j]!)}` : share(row.before[j]!);
      const end = words + most * Math.max(now, p * row.before[j]!) + 6;
      stage.text(said, Math.min(end, width - figures), y + 4, { size: 11.5, colour: this.data.links.includes(column.word) ? colours.accent : colours.ink2, weight: 620, alpha: grow });
    });
  }
}

/** Shares of the columns: those of words that are not shown are summed. */
function gathered(values: readonly number[], columns: readonly Column[]): number[] {
  const shown = new Set(columns.map(({ word }) => word));
  const others = values.reduce((sum, value, word) => (shown.has(word) ? sum : sum + value), 0);
  return columns.map(({ word }) => (word < 0 ? others : values[word]!));
}

function columnOf(columns: readonly Column[], word: number): number {
  return Math.max(0, columns.findIndex((column) => column.word === word));
}
