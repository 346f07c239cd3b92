// Scene 3: a forward pass, as one token lives it. Its stream runs through the layers in turn; in each, the heads that move it most
// glow and link it to where they look; in a model that goes on with a text it ends in the next word.
import { float32, type Envelope } from "../lib/api/envelope";
import { label } from "../lib/draw/format";
import type { Token } from "../lib/api/types";
import { called, peakOf, quoted, share, upper } from "./figures";
import type { Chapter, Scene, Table, Words } from "./scene";
import { marginOf, type Rect, type Stage } from "./stage";
import { arcOf, ease, mix } from "./time";

const FIRST = 1.2; // seconds: the first layer begins
const LAYERS = 8; // seconds of all layers of a short model; a deep one takes a little longer
const SHORTEST = 0.32; // seconds of one layer
const ENDING = 2.6;
const MOST_CHAPTERS = 7;
const HARDLY = 0.005; // of what the token becomes: what rounds to less than 1 % is said in words
const NAMED = 3; // heads that the ending names, and whose links it draws
const CELLS = 96; // of the stream's strip; of a wider stream each is a mean

interface LayerPart {
  name: string;
  layer: number;
  heads: number;
  feed_forward: number;
  top: string[];
}

interface PassHeader {
  token: number;
  heads: string[];
  layers: LayerPart[];
  next: { text: string; probability: number }[];
  said: string;
}

/** A head's part: its share of what the token becomes, and where it looks most. */
interface Part {
  head: string;
  share: number;
  key: number;
  weight: number;
}

/** Plays one token's way through the layers. `open`: a click on a head plays its look. */
export function pass(envelope: Envelope, tokens: readonly Token[], open?: (head: string) => void): Scene {
  const header = envelope.header as unknown as PassHeader;
  const [shares, weights] = [float32(envelope, "share").data, float32(envelope, "weight").data];
  const keys = envelope.arrays["key"]!.data;
  const parts = header.heads.map((head, i) => ({ head, share: shares[i]!, key: Number(keys[i]), weight: weights[i]! }));
  const states: Float32Array[] = [];
  if (envelope.arrays["states"]) {
    const { data, shape } = float32(envelope, "states");
    for (let row = 0; row < shape[0]!; row++) states.push(data.subarray(row * shape[1]!, (row + 1) * shape[1]!));
  }
  return new Pass(header, parts, states, tokens, open);
}

class Pass implements Scene {
  readonly id = "pass";
  readonly name = "A forward pass";
  readonly chapters: readonly Chapter[];
  readonly end: number;
  /** Heads of each layer. */
  readonly #layers: Part[][];
  /** Seconds of a layer. */
  readonly #step: number;
  readonly #done: number;
  readonly #peak: number;
  readonly #streamPeak: number;
  readonly #me: string;

  constructor(
    readonly header: PassHeader,
    readonly parts: readonly Part[],
    readonly states: readonly Float32Array[],
    readonly tokens: readonly Token[],
    readonly open?: (head: string) => void,
  ) {
    const { layers } = header;
    this.#layers = layers.map(({ name }) => parts.filter(({ head }) => head.startsWith(`${name}H`)));
    this.#step = Math.max(SHORTEST, LAYERS / layers.length);
    this.#done = FIRST + this.#step * layers.length;
    this.end = this.#done + ENDING;
    this.#peak = Math.max(...parts.map((part) => Math.abs(part.share)), ...layers.map((layer) => Math.abs(layer.feed_forward)), 1e-9);
    this.#streamPeak = peakOf(...states);
    this.#me = quoted(tokens, header.token);
    const group = Math.ceil(layers.length / MOST_CHAPTERS);
    const inside = layers.flatMap(({ layer }, i) => {
      if (i % group) return [];
      const last = layers[Math.min(layers.length, i + group) - 1]!.layer;
      return [{ name: last === layer ? `L${layer}` : `L${layer}–${last}`, at: FIRST + this.#step * i }];
    });
    this.chapters = [{ name: "Begin", at: 0 }, ...inside, { name: header.next.length ? "Next word" : "End", at: this.#done }];
  }

  /** The layer that works at t; -1 before the first, their number after the last. */
  #at(t: number): number {
    if (t < FIRST) return -1;
    return Math.min(this.header.layers.length, Math.floor((t - FIRST) / this.#step + 1e-6));
  }

  words(t: number): Words {
    const { layers, said } = this.header;
    const now = this.#at(t);
    if (now < 0) return { headline: `${upper(this.#me)} begins as a word at its place, and knows no other.`, figures: `${layers.length} layers of ${this.#layers[0]!.length} heads will move it` };
    if (now >= layers.length) return { headline: said, figures: this.#ending() };
    const layer = layers[now]!;
    const best = this.#best(now)[0]!;
    const looks = `${best.head} looks at ${quoted(this.tokens, best.key)} (${share(best.weight)})`;
    const isFelt = (part: number) => Math.abs(part) >= HARDLY;
    if (![layer.heads, layer.feed_forward, best.share].some(isFelt)) {
      return { headline: `Layer ${layer.layer} hardly moves ${this.#me}; ${looks}.`, figures: `its heads and its feed-forward: each less than 1 % of what ${this.#me} becomes` };
    }
    const figures = `this layer: ${share(layer.heads + layer.feed_forward)} of what ${this.#me} becomes · its heads ${share(layer.heads)} (${best.head} ${share(best.share)}) · its feed-forward ${share(layer.feed_forward)}`;
    if (!isFelt(best.share) && isFelt(layer.heads)) return { headline: `Layer ${layer.layer}: no head alone moves ${this.#me} much; ${looks}.`, figures };
    if (!isFelt(best.share)) return { headline: `Layer ${layer.layer}: its feed-forward moves ${this.#me}; its heads hardly do.`, figures: `${figures} · ${looks}` };
    return { headline: `Layer ${layer.layer}: ${best.head} moves ${this.#me} most, and looks at ${quoted(this.tokens, best.key)} (${share(best.weight)}).`, figures };
  }

  /** What moved the token most, over all layers: the feed-forward, and the heads with where they look. */
  #ending(): string {
    const feed = this.header.layers.reduce((top, layer) => (layer.feed_forward > top.feed_forward ? layer : top));
    const names = this.#most().map(({ head, share: part, key, weight }) => `${head} ${share(part)}${key === this.header.token ? "" : ` → ${quoted(this.tokens, key)} (${share(weight)})`}`);
    const parts = [`feed-forward L${feed.layer} ${share(feed.feed_forward)}`, names.length ? `heads ${names.join(", ")}` : ""];
    if ((this.#most()[0]?.share ?? 0) > feed.feed_forward) parts.reverse();
    return `moved it most: ${parts.filter(Boolean).join(" · ")}`;
  }

  /** The heads that moved the token most, over all layers; where all of those park, also the first that reads a word. */
  #most(): Part[] {
    const felt = this.parts.filter((part) => part.share >= HARDLY).sort((a, b) => b.share - a.share);
    const most = felt.slice(0, NAMED);
    const reader = most.some((part) => this.#reads(part)) ? undefined : felt.find((part) => this.#reads(part));
    return reader ? [...most, reader] : most;
  }

  /** Whether a head looks at a word, and neither at a parking spot nor at the token itself. */
  #reads({ key }: Part): boolean {
    return !this.tokens[key]!.sink && key !== this.header.token;
  }

  table(): Table {
    return {
      caption: `What moves ${this.#me}, layer by layer`,
      head: ["layer", "share of its heads", "share of its feed-forward", "the head that moves it most", "its share", "looks at", "with"],
      rows: this.header.layers.map((layer, i) => {
        const best = this.#best(i)[0]!;
        return [layer.name, layer.heads.toFixed(4), layer.feed_forward.toFixed(4), best.head, best.share.toFixed(4), called(this.tokens, best.key), best.weight.toFixed(4)];
      }),
    };
  }

  /** The heads of a layer that move the token most. */
  #best(layer: number): Part[] {
    return this.header.layers[layer]!.top.map((name) => this.#layers[layer]!.find(({ head }) => head === name)!);
  }

  /** The heads that are framed: those that move the token most, where they move it at all; while a layer works, whose links are drawn. */
  #glowing(layer: number, current: boolean): Set<string> {
    return new Set(this.#best(layer).flatMap(({ head, share }) => (current || Math.abs(share) >= HARDLY ? [head] : [])));
  }

  draw(stage: Stage, t: number): void {
    if (stage.tall) this.#tall(stage, t);
    else this.#wide(stage, t);
  }

  /** How far a layer has come at t, from 0 to 1. */
  #progress(t: number, layer: number): number {
    const begin = FIRST + this.#step * layer;
    return ease(t, begin, begin + Math.min(this.#step, 0.8));
  }

  #head(stage: Stage, rect: Rect, part: Part, p: number, glows: boolean, current: boolean): void {
    const { colours } = stage;
    stage.rect(rect, colours.paper2);
    stage.rect(rect, stage.signed(part.share, this.#peak), p);
    stage.frame(rect, glows && p > 0 ? colours.accent : colours.line2, glows && p > 0 ? (current ? 2.5 : 1.5) : 1, glows && !current ? mix(1, 0.6, p) : 1);
    stage.spot(rect, `${part.head}: ${share(part.share)} of what ${this.#me} becomes (${part.share.toFixed(4)})\nlooks most at ${quoted(this.tokens, part.key)}: ${part.weight.toFixed(4)}`, this.open && (() => this.open!(part.head)));
  }

  #feedForward(stage: Stage, rect: Rect, layer: LayerPart, p: number): void {
    stage.rect(rect, stage.colours.paper2);
    stage.rect(rect, stage.signed(layer.feed_forward, this.#peak), p);
    stage.frame(rect, stage.colours.line2);
    stage.spot(rect, `feed-forward of layer ${layer.layer}: ${share(layer.feed_forward)} of what ${this.#me} becomes (${layer.feed_forward.toFixed(4)})`);
  }

  #strip(stage: Stage, rect: Rect, row: number, p: number): void {
    const values = this.states[row];
    if (!values) return;
    const along = rect.w > rect.h;
    const group = Math.max(1, Math.ceil(values.length / CELLS));
    stage.picture(stage.strip(values, this.#streamPeak, along, group), rect, p);
    stage.frame(rect, stage.colours.line2, 1, Math.max(p, 0.3), p < 0.5);
    const where = row < this.header.layers.length ? `before layer ${this.header.layers[row]!.layer}` : "at the end";
    stage.spot(rect, (x, y) => {
      const place = stage.placeIn(rect, values.length, x, y, along);
      return `${this.#me} ${where}, number ${place + 1} of ${values.length}: ${values[place]!.toFixed(4)}`;
    });
  }

  // ------------------------------------------------------------------ layers side by side
  #wide(stage: Stage, t: number): void {
    const { width, height, scale, colours } = stage;
    const { layers, next } = this.header;
    const now = this.#at(t);
    const left = 104 * scale;
    const right = next.length ? 210 * scale : 24 * scale;
    const column = (width - left - right) / (layers.length + 0.6);
    const most = Math.max(...this.#layers.map((heads) => heads.length));
    const top = Math.min(height * 0.26, 150 * scale); // the sentence and its links lie above
    const bottom = height - 26 * scale;
    const cell = Math.max(3, Math.min(48 * scale, column * 0.52));
    const tall = Math.max(3, Math.min(48 * scale, (bottom - top - 30 * scale) / (most + 1.8)));
    const narrow = Math.max(3, Math.min(14 * scale, column * 0.26));
    const tallest = tall * most;
    const every = Math.ceil((30 * scale) / column); // names of layers that would touch are left out
    stage.text("heads", left - 12 * scale, top - 8 * scale, { size: 12, weight: 620, align: "right" });
    const each = Math.ceil((13 * scale) / tall); // names of heads that would touch are left out
    for (let h = 0; h < most; h += each) stage.text(`H${h}`, left - 12 * scale, top + tall * (h + 0.5) + 3 * scale, { size: 11, align: "right", colour: colours.ink3 });
    stage.text("feed-forward", left - 12 * scale, top + tallest + tall * 1.1 + 4 * scale, { size: 11, align: "right", colour: colours.ink2 });
    layers.forEach((layer, i) => {
      const x = left + column * i;
      const p = this.#progress(t, i);
      const current = i === now;
      this.#strip(stage, { x, y: top, w: narrow, h: tallest }, i, i === 0 ? ease(t, 0.1, 0.8) : this.#progress(t, i - 1));
      const glowing = this.#glowing(i, current);
      const at = x + narrow + Math.min(8 * scale, column * 0.1);
      this.#layers[i]!.forEach((part, h) => this.#head(stage, { x: at, y: top + tall * h, w: cell - 2, h: tall - 2 }, part, p, glowing.has(part.head), current));
      // Where there is room, the words that the glowing heads look at.
      const beside = at + cell + 4 * scale;
      const free = left + column * (i + 1) - beside - 8 * scale;
      if (free > 56 * scale && p > 0.5) {
        for (const part of this.#best(i)) {
          const words = stage.fitted(called(this.tokens, part.key), free, { size: 11, mono: true, weight: 700 });
          stage.text(words, beside, top + tall * (this.#layers[i]!.indexOf(part) + 0.5) + 3 * scale, { size: 11, mono: true, colour: current ? colours.accent : colours.ink2, weight: current ? 700 : 400 });
        }
      }
      this.#feedForward(stage, { x: at, y: top + tallest + tall * 0.6, w: cell - 2, h: tall - 2 }, layer, p);
      if (i % every === 0) stage.text(`L${layer.layer}`, at + cell / 2, top - 8 * scale, { size: 11, weight: current ? 700 : 400, align: "center", colour: current ? colours.accent : colours.ink3 });
    });
    this.#strip(stage, { x: left + column * layers.length, y: top, w: narrow, h: tallest }, layers.length, this.#progress(t, layers.length - 1));
    this.#legend(stage, { x: left, y: top + tallest + tall * 1.6 + 24 * scale, w: width - left - right, h: height });
    this.#sentence(stage, t, { x: 32 * scale, y: 0, w: width - 64 * scale, h: top - 26 * scale });
    if (next.length) this.#next(stage, t, { x: width - right + 24 * scale, y: top, w: right - 56 * scale, h: Math.max(tallest, 150 * scale) });
  }

  /** What boxes and stripes are, where there is room for a line below them. */
  #legend(stage: Stage, room: Rect): void {
    const { scale, colours } = stage;
    const [me, peak] = [this.#me, this.#peak];
    const entries = [
      { words: `a box moves ${me} towards what it becomes`, sign: 0.6 },
      { words: "away from it", sign: -0.6 },
      { words: "framed: the heads that move it most", sign: 0 },
      ...(this.states.length ? [{ words: `striped: its ${this.states[0]!.length} numbers between two layers`, sign: null }] : []),
    ];
    const style = { size: 11, colour: colours.ink3 };
    const widths = entries.map(({ words }) => stage.measure(words, style) + 40 * scale);
    if (room.y > room.h - 4 * scale || widths.reduce((sum, width) => sum + width, 0) > room.w) return;
    let x = room.x;
    entries.forEach(({ words, sign }, i) => {
      const box = { x, y: room.y - 10 * scale, w: 11 * scale, h: 11 * scale };
      if (sign === null) stage.picture(stage.strip(this.states[0]!, this.#streamPeak, false, Math.ceil(this.states[0]!.length / 12)), box, 1);
      else stage.rect(box, sign ? stage.signed(sign * peak, peak) : colours.paper2);
      stage.frame(box, sign === 0 ? colours.accent : colours.line2, sign === 0 ? 1.5 : 1);
      stage.text(words, x + 17 * scale, room.y, style);
      x += widths[i]!;
    });
  }

  /** The words, and links from the token to where the heads that move it most look. */
  #sentence(stage: Stage, t: number, room: Rect): void {
    const { scale, colours } = stage;
    const now = this.#at(t);
    const last = this.header.layers.length;
    const weight = (token: number) => Math.max(0, ...this.parts.map((part) => (part.key === token ? part.weight : 0)));
    const asks = this.header.token;
    const order = this.tokens.map((_, i) => i).sort((a, b) => (b === asks ? 1 : 0) - (a === asks ? 1 : 0) || weight(b) - weight(a));
    const size = 13;
    const wide = (token: number) => stage.measure(label(this.tokens[token], 14), { size, mono: true, weight: token === asks ? 700 : 400 }) + 14 * scale;
    const shown: number[] = [];
    let used = 0;
    for (const token of order) {
      if (used + wide(token) > room.w) break;
      used += wide(token);
      shown.push(token);
    }
    shown.sort((a, b) => a - b);
    const y = room.y + room.h;
    let x = room.x + (room.w - used) / 2;
    const middles = new Map<number, number>();
    for (const token of shown) {
      middles.set(token, x + wide(token) / 2);
      x += wide(token);
    }
    const from = { x: middles.get(asks)!, y: y - 18 * scale };
    const looked = new Set<number>();
    // While a layer works, its heads' links; at the end those of the heads that moved it most of all.
    const working = now >= 0 && now < last;
    const heads = working ? this.#best(now) : now < 0 ? [] : this.#most();
    const p = working ? this.#progress(t, now) : ease(t, this.#done, this.#done + 0.9);
    const reader = heads.find((part) => this.#reads(part));
    for (const { key, weight: part, head } of [...heads].reverse()) { // the one that moves it most lies on top
      if (!middles.has(key) || key === asks) continue;
      looked.add(key);
      const first = head === reader?.head; // a look that parks is grey, as in every scene
      stage.line(arcOf(from, { x: middles.get(key)!, y: from.y }, room.h - 30 * scale), first ? colours.accent : colours.ink3, Math.max(1, part * 22 * scale * p), first ? 0.9 : 0.55);
    }
    for (const token of shown) {
      const entry = this.tokens[token]!;
      const strong = token === asks;
      const colour = strong ? colours.accent : looked.has(token) ? colours.ink : entry.special || working ? colours.ink3 : colours.ink2;
      stage.text(label(entry, 14), middles.get(token)!, y, { size, mono: true, align: "center", weight: strong ? 700 : 400, colour });
    }
  }

  /** The likeliest next tokens. */
  #next(stage: Stage, t: number, room: Rect): void {
    const { scale, colours } = stage;
    const p = ease(t, this.#done, this.#done + 0.9);
    stage.text("next word", room.x, room.y - 8 * scale, { size: 12, weight: 620, colour: colours.ink2 });
    const line = Math.min(34 * scale, room.h / Math.max(1, this.header.next.length));
    this.header.next.forEach(({ text, probability }, i) => {
      const y = room.y + line * (i + 0.5);
      const written = text.trim() || text;
      const short = written.length > 12 ? `${written.slice(0, 11)}…` : written;
      stage.text(short, room.x, y, { size: 13, mono: true, weight: i ? 400 : 700, colour: i ? colours.ink : colours.accent, alpha: p });
      stage.text(share(probability), room.x + room.w, y, { size: 12, align: "right", colour: colours.ink2, alpha: p });
      stage.rect({ x: room.x, y: y + 5 * scale, w: room.w * probability * p, h: 4 }, i ? colours.ink3 : colours.accent, p);
      if (p > 0) stage.spot({ x: room.x, y: y - line / 2, w: room.w, h: line }, `${written}: ${probability.toFixed(4)}`);
    });
  }

  // ------------------------------------------------------------------ layers under each other
  #tall(stage: Stage, t: number): void {
    const { width, height, colours } = stage;
    const { layers, next } = this.header;
    const now = this.#at(t);
    const under = next.length ? 20 + 24 * next.length : 8;
    const top = 22;
    const row = (height - top - under) / (layers.length + 0.5);
    const most = Math.max(...this.#layers.map((heads) => heads.length));
    const margin = marginOf(stage);
    const left = margin + 22;
    const room = width * 0.5;
    const cell = Math.max(3, Math.min(30, room / (most + 1.6)));
    const tall = Math.max(3, Math.min(cell, row * 0.62));
    const thin = Math.max(2, Math.min(8, row * 0.2));
    const every = Math.ceil(13 / row);
    stage.text(`${this.#me}, through ${layers.length} layers`, margin, 14, { size: 12, weight: 620 });
    layers.forEach((layer, i) => {
      const y = top + row * i;
      const p = this.#progress(t, i);
      const current = i === now;
      this.#strip(stage, { x: left, y, w: cell * most, h: thin }, i, i === 0 ? ease(t, 0.1, 0.8) : this.#progress(t, i - 1));
      const glowing = this.#glowing(i, current);
      const line = y + thin + 2;
      this.#layers[i]!.forEach((part, h) => this.#head(stage, { x: left + cell * h, y: line, w: cell - 2, h: tall - 1 }, part, p, glowing.has(part.head), current));
      this.#feedForward(stage, { x: left + cell * (most + 0.5), y: line, w: cell - 2, h: tall - 1 }, layer, p);
      if (i % every === 0) stage.text(`L${layer.layer}`, left - 6, line + tall / 2 + 3, { size: 11, align: "right", weight: current ? 700 : 400, colour: current ? colours.accent : colours.ink3 });
      if (p < 0.5 || (row < 15 && !current)) return;
      const best = this.#best(i)[0]!;
      const words = `${best.head.replace(/^.*H/, "H")} → ${called(this.tokens, best.key)} ${share(best.weight)}`;
      stage.text(words, left + cell * (most + 1.5) + 6, line + tall / 2 + 4, { size: 11, colour: current ? colours.accent : colours.ink2, weight: current ? 620 : 400 });
    });
    this.#strip(stage, { x: left, y: top + row * layers.length, w: cell * most, h: thin }, layers.length, this.#progress(t, layers.length - 1));
    if (next.length) this.#next(stage, t, { x: margin, y: height - under + 16, w: width - 2 * margin, h: under - 20 });
  }
}
