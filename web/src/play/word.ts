// Scene 1: one word asks. Its query travels along the keys, scores become shares, value strips are cut to their share, packed side by
// side and melted into their weighted mean; the output projection carries that into the stream, where it is added.
import type { Envelope } from "../lib/api/envelope";
import { cumulated, decimal, dot, inWords, peakOf, quoted, quotedAlone, share, upper } from "./figures";
import { keysOf, LEAST_MISSING, NOBODY, OTHERS, partsOf, rowsOf, vectorOf, type Key, type LookHeader, type Place } from "./look";
import { Places, type Chapter, type Scene, type Table, type Words } from "./scene";
import { marginOf, type Point, type Rect, type Stage } from "./stage";
import { ease, mix, mixRect } from "./time";

const CHAPTERS: readonly Chapter[] = [
  { name: "Ask", at: 0 }, { name: "Match", at: 1.6 }, { name: "Share", at: 6 }, { name: "Fetch", at: 8.6 },
  { name: "Mix", at: 11 }, { name: "Send on", at: 13 }, { name: "Add", at: 15 }, { name: "Said", at: 17 },
];
const END = 18.6;
const FIRST = 2.1; // seconds: the query is at the first key
const HOPS = 2.4; // seconds of its way along all keys
const STOP = 1.25; // ... and of its stop at the best one
const FLIGHTS = 1.44; // seconds between the first value strip's start and the last one's
const FLIGHT = 0.75;

/** The look of one word as numbers: one entry a column. */
interface Look {
  q: Float32Array;
  k: (Float32Array | null)[];
  v: (Float32Array | null)[];
  /** q·k of each key. */
  dots: number[];
  bias: number[] | null;
  scores: number[];
  shares: number[];
  /** Shares of the output along itself; null where it is too small to be divided. */
  heard: number[] | null;
  out: Float32Array | null;
  adds: Float32Array | null;
  before: Float32Array | null;
  after: Float32Array | null;
}

interface WordHeader extends LookHeader {
  /** The share that goes to no key, and its score. */
  missing: number;
  sink: number | null;
  /** The head says next to nothing here. */
  silent: boolean;
}

/** Plays the look of one head at one word. `ask`: a click on a word lets it ask. */
export function word(envelope: Envelope, place: Place, ask?: (token: number) => void): Scene {
  const header = envelope.header as unknown as WordHeader;
  const scores = vectorOf(envelope, "scores")!;
  const nobody = header.missing > LEAST_MISSING;
  const keys = keysOf(header, place, (column) => Number.isNaN(scores[column]!), nobody);
  const [q, adds, before] = [vectorOf(envelope, "q")!, vectorOf(envelope, "adds"), vectorOf(envelope, "before")];
  const [k, v] = [rowsOf(envelope, "k")!, rowsOf(envelope, "v")];
  /** Of each column, nobody's last. */
  const numbers = (name: string, missing: number) => {
    const values = vectorOf(envelope, name);
    return values && [...values, ...(nobody ? [missing] : [])];
  };
  const rows = (all: Float32Array[] | null) => keys.map(({ masked }, j) => (masked ? null : (all?.[j] ?? null)));
  return new Word(header, place, keys, {
    q, adds, before,
    k: rows(k).map((row, j) => (keys[j]!.token < 0 ? null : row)),
    v: rows(v),
    dots: keys.map(({ token, masked }, j) => (masked || token < 0 ? NaN : dot(q, k[j]!))),
    scores: numbers("scores", header.sink ?? NaN)!,
    shares: numbers("weights", header.missing)!,
    bias: numbers("bias", 0),
    heard: header.silent ? null : numbers("heard", 0),
    out: vectorOf(envelope, "out"),
    after: adds && before && Float32Array.from(before, (value, i) => value + adds[i]!),
  }, ask);
}

/** Places on one stage. */
interface Layout {
  /** Cells of a strip are means of so many numbers. */
  group: number;
  type: number;
  /** Labels of the columns, cut to their room. */
  labels: string[];
  strip: number;
  word(j: number): { x: number; y: number; box: Rect };
  /** The whole column (or row) of a word: for pointing and for masked keys. */
  lane(j: number): Rect;
  key(j: number): Rect;
  /** The query at a place along the sentence. */
  query(place: number): Rect;
  product(j: number): Rect;
  value(j: number): Rect;
  stem(j: number, score: number): { from: Point; to: Point };
  bar(j: number, share: number): Rect;
  scores: Rect;
  zero: number;
  shows: (string | null)[];
  shareShows: (string | null)[];
  rule: Rect;
  segment(begin: number, share: number): Rect;
  mosaic: Rect;
  part(begin: number, share: number): Rect;
  output: Rect;
  source: Rect;
  before: Rect;
  add: Rect;
  after: Rect;
  panel: Rect;
  gutter: number;
  end: number;
}

class Word implements Scene {
  readonly id = "word";
  readonly name = "Play one word";
  readonly chapters: readonly Chapter[];
  readonly end: number;
  readonly #best: number;
  readonly #visited: number[];
  readonly #hop: number;
  readonly #order: number[];
  readonly #cumulated: number[];
  readonly #peaks: { match: number; product: number; value: number; stream: number };
  readonly #parts: number;
  readonly #products: (Float32Array | null)[];
  readonly #places = new Places<Layout>();

  constructor(
    readonly header: WordHeader,
    readonly place: Place,
    readonly keys: readonly Key[],
    readonly look: Look,
    readonly ask?: (token: number) => void,
  ) {
    const { shares, v, q, k, out, adds, before } = look;
    // Without values the scene ends with the shares, without the model's output projection with the mean.
    this.end = !out ? 8.6 : !adds || !before ? 14.6 : END;
    this.chapters = !out ? CHAPTERS.slice(0, 3) : !adds || !before ? [...CHAPTERS.slice(0, 5), { name: "Said", at: 13 }] : CHAPTERS;
    const real = keys.flatMap((key, j) => (key.token >= 0 && !key.masked ? [j] : []));
    this.#best = real.reduce((best, j) => (shares[j]! > shares[best]! ? j : best), real[0]!);
    this.#visited = keys.flatMap((key, j) => (key.masked || key.token === NOBODY ? [] : [j]));
    this.#hop = Math.min(0.3, HOPS / this.#visited.length);
    this.#order = [...shares.keys()].filter((j) => !keys[j]!.masked).sort((a, b) => shares[b]! - shares[a]!);
    this.#cumulated = cumulated(shares);
    this.#products = k.map((key) => key && key.map((value, i) => value * q[i]!));
    const some = (rows: (Float32Array | null)[]) => rows.filter((row) => row !== null);
    this.#peaks = {
      match: peakOf(q, ...some(k)), product: peakOf(...some(this.#products)),
      value: peakOf(...some(v), out ?? []), stream: peakOf(before ?? [], adds ?? []),
    };
    this.#parts = before ? partsOf(before.length, place) : 1;
  }

  get #me(): string {
    return quoted(this.place.queries, this.place.query);
  }

  /** The same above a block, where room is short. */
  get #short(): string {
    const words = quotedAlone(this.place.queries, this.place.query);
    return words.length > 12 ? `${words.slice(0, 10)}…${words.startsWith("“") ? "”" : ""}` : words;
  }

  /** The title of a block of the stream: above it, to its right edge, where room is at the left; on a tall stage, where the ribbon
      comes from above, below it. */
  #title(stage: Stage, rect: Rect, words: string, colour: string, alpha: number, weight = 620): void {
    const style = { size: weight === 620 ? 11.5 : 11, weight, colour, alpha };
    if (stage.tall) stage.text(words, rect.x, rect.y + rect.h + 13, style);
    else stage.text(words, rect.x + rect.w, rect.y - 7, { ...style, align: "right" });
  }

  /** When the query is at a column. */
  #visit(j: number): number {
    const [turn, best] = [this.#visited.indexOf(j), this.#visited.indexOf(this.#best)];
    if (turn < 0) return this.#met; // a sink without a key: after all others
    return FIRST + turn * this.#hop + (turn > best ? STOP : 0);
  }

  /** When the query has met every key: from here to the end of the chapter the best one is shown once more. */
  get #met(): number {
    return FIRST + this.#visited.length * this.#hop + STOP;
  }

  /** The column whose working is shown: where the query is, or was last, then the best one; null before the first. */
  #current(t: number): number | null {
    if (t >= this.#met) return this.#best;
    return this.#visited.findLast((j) => t >= this.#visit(j) - 0.08) ?? null;
  }

  words(t: number): Words {
    const { place, look, header, keys } = this;
    const { q, scores, shares, dots, out, v, adds, before } = look;
    const [me, best, d] = [this.#me, this.#best, look.q.length];
    const head = `head ${place.index}`;
    const count = keys.filter(({ masked, token }) => !masked && token !== NOBODY).length;
    if (t < 1.6) {
      const carries = before ? ` (${before.length} numbers)` : "";
      const normed = header.norm === "pre" ? ", normed," : "";
      return {
        headline: `${upper(me)} asks a question: ${d} numbers, its query.`,
        figures: `q = what ${me} carries into ${place.layer}${carries}${normed} × W_Q of ${head}${header.turned ? ", turned by position" : ""}`,
      };
    }
    if (t < 6) {
      const j = this.#current(t) ?? this.#visited[0]!;
      const headline = "Every word holds up a key. How well does it fit the question?";
      if (keys[j]!.token === OTHERS) return { headline, figures: `${keys[j]!.called}: the log of the sum of their e^score = ${decimal(scores[j]!)}` };
      const fits = t >= this.#met && count > 1 ? " fits best" : "";
      return { headline, figures: `${keys[j]!.called}${fits}: q · k = ${decimal(dots[j]!)}${this.#scaled(j)}: its score` };
    }
    if (t < 8.6) {
      return {
        headline: `Softmax turns ${inWords(count)} ${count === 1 ? "score into the share" : "scores into shares"} of one look.`,
        figures: this.#softmax(best),
      };
    }
    if (!out) return { headline: this.words(8.5).headline, figures: this.#softmax(best) };
    if (t < 11) return { headline: "Each word hands over its value, cut to its share.", figures: `a strip as wide as its share: ${keys[best]!.called} ${share(shares[best]!, 1)}` };
    if (t < 13) {
      const place = largest(out);
      const own = shares[best]! * v[best]![place]!;
      return {
        headline: "The strips melt into one: their weighted mean.",
        figures: `number ${place + 1}: ${decimal(shares[best]!, 3)} × ${decimal(v[best]![place]!, 3)} from ${keys[best]!.called} + ${decimal(out[place]! - own, 3)} from the others = ${decimal(out[place]!, 3)}`,
      };
    }
    if (!adds || !before || t >= 17) return { headline: header.said, figures: header.figures };
    if (t < 15) return { headline: `Wᴼ carries the ${out.length} numbers into all ${adds.length} places of the stream.`, figures: `${head}’s rows of Wᴼ: ${out.length} × ${adds.length}` };
    const then = [place.numHeads > 1 ? `${inWords(place.numHeads - 1)} other ${place.numHeads === 2 ? "head" : "heads"}` : "", header.norm === "post" ? "a layer norm" : ""].filter(Boolean).join(", and ");
    return {
      headline: `They are added to what ${me} carried.`,
      figures: `number 1 of ${q.length && before.length}: ${decimal(before[0]!, 3)} + ${decimal(adds[0]!, 3)} = ${decimal(before[0]! + adds[0]!, 3)}${then ? `   (then ${then})` : ""}`,
    };
  }

  /** What becomes of q·k: ", divided by √32 = 3.83". */
  #scaled(j: number): string {
    const { dots, bias, scores } = this.look;
    const root = Math.abs(this.header.scale * Math.sqrt(this.look.q.length) - 1) < 1e-6;
    const scaled = dots[j]! * this.header.scale;
    const factor = this.header.scale === 1 ? "" : root ? `, divided by √${this.look.q.length}` : `, × ${+this.header.scale.toPrecision(4)}`;
    const own = bias?.[j] ?? 0;
    if (this.header.softcap !== null) return `${factor}, capped at ${this.header.softcap} = ${decimal(scores[j]!)}`;
    return own ? `${factor} = ${decimal(scaled)}, with its bias ${decimal(own)} = ${decimal(scores[j]!)}` : `${factor} = ${decimal(scores[j]!)}`;
  }

  /** How a share comes about: e^3.83 = 46.24, of 68.32 in all. */
  #softmax(j: number): string {
    const { scores, shares } = this.look;
    const exp = Math.exp(scores[j]!);
    const whole = exp / shares[j]!;
    const figure = (value: number) => (value >= 1e5 || value < 0.01 ? value.toExponential(2).replace("e+", "e") : decimal(value));
    return `${this.keys[j]!.called}: e^${decimal(scores[j]!)} = ${figure(exp)}, of ${figure(whole)} in all: ${share(shares[j]!, 1)}`;
  }

  table(): Table {
    const { scores, shares, heard } = this.look;
    return {
      caption: `${this.place.head}, the look of ${this.#me}`,
      head: ["word", "score", "share of the look", "share of what is said"],
      rows: this.keys.map((key, j) => [
        key.called, ...(key.masked ? ["not visible", "0"] : [decimal(scores[j]!, 4), decimal(shares[j]!, 4)]), heard ? decimal(heard[j]!, 4) : "",
      ]),
    };
  }

  // ------------------------------------------------------------------ drawing
  draw(stage: Stage, t: number): void {
    const layout = this.#places.on(stage, () => (stage.tall ? this.#rows(stage) : this.#columns(stage)));
    this.#drawLanes(stage, layout, t);
    this.#drawWords(stage, layout, t);
    this.#drawKeys(stage, layout, t);
    this.#drawScores(stage, layout, t);
    this.#drawQuery(stage, layout, t);
    if (this.look.out && t > 6.9) this.#drawRule(stage, layout, t);
    if (this.look.out && t > 7.9) this.#drawValues(stage, layout, t);
    this.#drawStream(stage, layout, t);
    this.#drawWorking(stage, layout, t);
    if (t > 9.4) this.#drawHeard(stage, layout, t);
  }

  /** Names of the lanes, masked columns, and dashed frames where something is still to come. */
  #drawLanes(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const { q, out } = this.look;
    const hidden = ease(t, 1, 1.7);
    this.keys.forEach(({ masked }, j) => masked && stage.hatch(layout.lane(j), colours.line2, 0.55 * hidden));
    if (!tall) {
      const name = (title: string, below: string[], y: number, alpha: number) => {
        stage.text(title, layout.gutter - 12, y, { weight: 620, align: "right", alpha });
        below.forEach((line, i) => stage.text(stage.fitted(line, layout.gutter - 14, { size: 11 }), layout.gutter - 12, y + (15 + 14 * i) * scale, { size: 11, colour: colours.ink3, align: "right", alpha }));
      };
      const cells = layout.group > 1 ? [`${layout.group} a cell`] : [];
      const shared = this.place.numKvHeads < this.place.numHeads ? sharedLines(this.place) : [];
      const middle = (rect: Rect, lines: number) => rect.y + rect.h / 2 - (lines > 1 ? 10 : 4) * scale;
      const below = [`${q.length} each`, ...cells, ...(this.header.turned ? ["turned"] : []), ...shared];
      name("keys", below, middle(layout.key(this.#best), below.length), ease(t, 1.2, 1.8));
      const scored = t < 6.5;
      name(scored ? "scores" : "shares", [scored ? (this.header.scale === 1 || scale > 1 ? "q·k" : "q·k, scaled") : "of 100 %"], layout.scores.y + layout.scores.h / 2, ease(t, 1.8, 2.4));
      if (out) name("values", [`${out.length} each`, ...cells, ...shared], middle(layout.value(this.#best), 1 + cells.length + shared.length), ease(t, 8, 8.8));
    }
    if (!out) return;
    const coming = (rect: Rect, title: string, alpha: number) => {
      stage.frame(rect, colours.line2, 1, 0.9 * alpha, true);
      if (alpha > 0.05) this.#title(stage, rect, title, colours.ink3, alpha, 400);
    };
    const shown = ease(t, 0.9, 1.6);
    coming(layout.mosaic, "", shown * (1 - ease(t, 9, 10)));
    coming(layout.output, "", shown * (1 - ease(t, 12, 12.5)));
    if (!this.look.adds) return;
    coming(layout.add, `+ head ${this.place.index}`, shown * (1 - ease(t, 13.5, 13.9)));
    coming(layout.after, "= so far", shown * (1 - ease(t, 14.9, 15.3)));
  }

  #drawWords(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall } = stage;
    const lit = t >= 1.6 && t < 6 ? this.#current(t) : null;
    this.keys.forEach((key, j) => {
      const asks = key.token === this.place.query && this.#sameSide;
      const weight = this.look.shares[j]! * ease(t, 6.6, 7.6);
      const { x, y, box } = layout.word(j);
      if (asks) stage.rect(box, colours.accent, 1, 4);
      else if (weight > 0.02) stage.rect(box, stage.sequential(weight), 1, 4);
      const colour = asks ? colours.onAccent : weight > 0.02 ? stage.inkOn(weight) : j === lit ? colours.accent : key.parking || key.masked || key.token < 0 ? colours.ink3 : colours.ink;
      stage.text(layout.labels[j]!, x, y, { size: layout.type, least: layout.type, mono: true, weight: asks || j === lit ? 700 : 400, align: tall ? "right" : "center", colour });
      const { token, name } = key;
      if (token < 0) stage.spot(box, token === OTHERS ? `${name}: the keys with the smallest shares, together` : "a sink: a share that goes to no word");
      else if (!this.ask || !this.#sameSide) stage.spot(box, `${name}, token ${token}`);
      else stage.spot(box, `${name}, token ${token}\n${asks ? "asks: its query travels" : "click: let this one ask"}`, asks ? undefined : () => this.ask!(token));
    });
  }

  /** Whether queries and keys are the same words; a decoder that looks at an encoder's asks from another text. */
  get #sameSide(): boolean {
    return this.place.queries === this.place.keys;
  }

  #drawKeys(stage: Stage, layout: Layout, t: number): void {
    const { colours } = stage;
    const { q, k, shares } = this.look;
    const shown = ease(t, 1, 1.7);
    if (shown === 0) return;
    const rest = 1 - 0.75 * ease(t, 6, 6.8); // what has done its work fades
    const matching = t >= 1.6 && t < 6;
    const current = this.#current(t);
    this.keys.forEach((key, j) => {
      const rect = layout.key(j);
      const numbers = k[j];
      if (!numbers) {
        if (key.token === OTHERS) stage.frame(rect, colours.line2, 1, shown * rest, true);
        return;
      }
      const lit = Math.min(1, 3 * shares[j]!) * ease(t, this.#visit(j), this.#visit(j) + 0.25);
      const strength = Math.max(lit, matching && j === current ? 1 : t > this.#visit(j) ? 0.35 : 0);
      stage.picture(stage.strip(numbers, this.#peaks.match, stage.tall, layout.group), rect, shown * mix(0.42, 1, strength) * rest);
      stage.frame(rect, colours.line2, 1, shown * rest);
      if (t < 8.6 && lit > 0.05) stage.frame(rect, colours.accent, 2, lit * rest);
      if (shown < 0.5) return;
      stage.spot(rect, (x, y) => {
        const i = stage.placeIn(rect, numbers.length, x, y);
        return `key of ${key.name}, number ${i + 1} of ${numbers.length}: ${decimal(numbers[i]!, 4)}\n× query ${decimal(q[i]!, 4)} = ${decimal(numbers[i]! * q[i]!, 4)}`;
      });
    });
  }

  /** The query leaves the block of its word, stops at every key, and comes back; beside a key the products flash. */
  #drawQuery(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const { q } = this.look;
    for (const j of this.#visited) {
      const numbers = this.#products[j];
      const begin = this.#visit(j);
      const stay = j === this.#best ? 1 : 0.02;
      if (!numbers || t < begin - 0.02 || t > begin + stay + 0.3 || tall) continue;
      const [grown, gone] = [ease(t, begin - 0.02, begin + 0.06), ease(t, begin + stay, begin + stay + 0.28)];
      const { to } = layout.stem(j, this.look.scores[j]!);
      const rect = j === this.#best ? mixRect(layout.product(j), { x: to.x - 2, y: to.y - 2, w: 4, h: 4 }, gone) : layout.product(j);
      stage.picture(stage.strip(numbers, this.#peaks.product, false, layout.group), rect, grown * (1 - gone * (j === this.#best ? 0.6 : 1)));
      if (gone > 0) continue;
      stage.spot(rect, (x, y) => {
        const i = stage.placeIn(rect, numbers.length, x, y);
        return `q × k of ${this.keys[j]!.name}, number ${i + 1} of ${numbers.length}: ${decimal(numbers[i]!, 4)}`;
      });
    }
    if (t < 0.5 || t > 6.5) return;
    const [born, fade] = [ease(t, 0.5, 1.3), 1 - ease(t, 5.9, 6.5)];
    const home = this.#home;
    const [first, last] = [this.#visited[0]!, this.#visited.at(-1)!];
    let at = mix(home, first, ease(t, 1.6, FIRST - 0.08));
    for (let i = 1; i < this.#visited.length; i++) {
      const arrives = this.#visit(this.#visited[i]!);
      at += (this.#visited[i]! - this.#visited[i - 1]!) * ease(t, arrives - Math.min(0.13, this.#hop), arrives);
    }
    at = mix(at, mix(last, home, 1), ease(t, 5.7, 6.2));
    const rect = mixRect(layout.source, layout.query(at), born);
    const alpha = ease(t, 0.5, 0.9) * fade;
    stage.picture(stage.strip(q, this.#peaks.match, tall, layout.group), rect, alpha);
    stage.frame(rect, colours.accent, 2, alpha);
    if (born < 1 || fade < 0.5) return;
    if (!tall) stage.text("q", rect.x + rect.w / 2, rect.y + rect.h + 13 * scale, { weight: 700, colour: colours.accent, align: "center", alpha: fade });
    stage.spot(rect, (x, y) => {
      const i = stage.placeIn(rect, q.length, x, y);
      return `query of ${this.#me}, number ${i + 1} of ${q.length}: ${decimal(q[i]!, 4)}`;
    });
  }

  /** The column above which the asking word stands; the middle where it is not among the keys. */
  get #home(): number {
    const own = this.#sameSide ? this.keys.findIndex(({ token }) => token === this.place.query) : -1;
    return own < 0 ? (this.keys.length - 1) / 2 : own;
  }

  /** Scores as stems, which become bars of shares. */
  #drawScores(stage: Stage, layout: Layout, t: number): void {
    if (t <= 2) return;
    const { colours, tall } = stage;
    const { scores, shares, bias } = this.look;
    const axis = ease(t, 2, 2.4) * (1 - ease(t, 6, 6.6));
    const { scores: lane, zero } = layout;
    const across = tall ? [{ x: zero, y: lane.y }, { x: zero, y: lane.y + lane.h }] : [{ x: layout.gutter, y: zero }, { x: layout.end, y: zero }];
    stage.line(across, colours.line2, 1, axis);
    if (!tall) stage.rect({ x: layout.gutter, y: lane.y + lane.h, w: layout.end - layout.gutter, h: 1 }, colours.line2, ease(t, 6.5, 7));
    const negative = stage.signed(-0.35, 1);
    this.keys.forEach((key, j) => {
      if (key.masked) return;
      const begin = this.#visit(j) + (j === this.#best ? 1 : 0.1);
      const up = ease(t, begin, begin + 0.25);
      if (up === 0) return;
      const score = scores[j]!;
      const morph = ease(t, 6.15, 6.9);
      const { from, to } = layout.stem(j, score * up);
      const stem = tall
        ? { x: Math.min(from.x, to.x), y: from.y - 1, w: Math.abs(to.x - from.x), h: 2 }
        : { x: from.x - 1, y: Math.min(from.y, to.y), w: 2, h: Math.abs(to.y - from.y) };
      const bar = layout.bar(j, shares[j]!);
      const colour = morph < 0.5 ? (score > 0 ? colours.accent : negative) : key.parking ? colours.ink3 : stage.sequential(0.25 + 0.75 * shares[j]!);
      stage.rect(mixRect(stem, bar, morph), colour, mix(1, 0.4, ease(t, 8.6, 9.2) * (j === this.#best ? 0.4 : 1)));
      stage.dot(to, tall ? 2.6 : 3.6, colour, 1 - morph);
      if (bias?.[j]) {
        const end = layout.stem(j, bias[j]! * up).to;
        stage.rect(tall ? { x: Math.min(zero, end.x), y: from.y + 3, w: Math.abs(end.x - zero), h: 2 } : { x: from.x + 5, y: Math.min(zero, end.y), w: 3, h: Math.abs(end.y - zero) }, colours.ink3, 1 - morph);
      }
      const shows = layout.shows[j];
      if (shows && !tall) stage.text(shows, to.x, score > 0 ? to.y - 8 : to.y + 15 * stage.scale, { size: 11, align: "center", colour: colours.ink2, alpha: up * (1 - ease(t, 6, 6.3)) });
      const bold = j === this.#best;
      const figure = layout.shareShows[j];
      const arrived = ease(t, 6.6, 7);
      if (figure && !tall) stage.text(figure, bar.x + bar.w / 2, bar.y - 6, { size: 11, weight: bold ? 700 : 400, align: "center", colour: bold ? colours.ink : colours.ink2, alpha: arrived });
      if (figure && tall) stage.text(figure, bar.x + bar.w + 4, bar.y + bar.h - 1, { size: 11, weight: bold ? 700 : 400, colour: bold ? colours.ink : colours.ink2, alpha: arrived });
      stage.spot(tall ? { ...layout.lane(j), x: lane.x, w: lane.w } : { ...layout.lane(j), y: lane.y - 4, h: lane.h + 8 }, this.#scoreWords(j, t));
    });
  }

  #scoreWords(j: number, t: number): string {
    const { dots, scores, shares, bias, heard } = this.look;
    const key = this.keys[j]!;
    const lines = [`${this.#me} → ${key.name}`];
    if (key.token >= 0) lines.push(`q·k ${decimal(dots[j]!, 4)}, score ${decimal(scores[j]!, 4)}${bias ? ` (bias ${decimal(bias[j]!, 4)})` : ""}`);
    else lines.push(`score ${decimal(scores[j]!, 4)}${key.token === OTHERS ? ": the log of the sum of e^score" : ""}`);
    if (t > 6.6) lines.push(`share of the look ${decimal(shares[j]!, 4)}`);
    if (t > 12.2 && heard) lines.push(`share of what is said ${decimal(heard[j]!, 4)}`);
    return lines.join("\n");
  }

  /** Bars lie down end to end: one whole. */
  #drawRule(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall } = stage;
    const { shares } = this.look;
    const n = this.keys.length;
    this.keys.forEach((key, j) => {
      const begin = 7 + (0.5 * j) / n;
      const p = ease(t, begin, begin + 0.7);
      if (p === 0 || key.masked) return;
      const rect = mixRect(layout.bar(j, shares[j]!), layout.segment(this.#cumulated[j]!, shares[j]!), p);
      stage.rect(rect, key.parking ? colours.ink3 : stage.sequential(0.25 + 0.75 * shares[j]!));
      if (p === 1 && shares[j]! > 0.004) stage.rect(tall ? { ...rect, y: rect.y + rect.h - 0.5, h: 1 } : { ...rect, x: rect.x + rect.w - 0.5, w: 1 }, colours.paper);
      if (p === 1) stage.spot(rect, this.#scoreWords(j, t));
    });
    const alpha = ease(t, 8.1, 8.5);
    const { rule } = layout;
    stage.frame(rule, colours.line2, 1, alpha);
    if (tall) return;
    const best = this.keys[this.#best]!;
    const words = `${best.label} ${share(shares[this.#best]!)}`;
    const whole = stage.measure("100 %", { size: 11 });
    const room = rule.w - whole - 10;
    const width = stage.measure(words, { weight: 620 });
    if (width <= room || width > rule.w) stage.text("100 %", rule.x + rule.w, rule.y - 6, { size: 11, align: "right", colour: colours.ink2, alpha });
    else stage.text(words, rule.x + rule.w, rule.y - 6, { weight: 620, align: "right", alpha });
    if (width <= room) {
      const middle = rule.x + (this.#cumulated[this.#best]! + shares[this.#best]! / 2) * rule.w;
      stage.text(words, Math.max(rule.x, Math.min(rule.x + room - width, middle - width / 2)), rule.y - 6, { weight: 620, alpha });
    }
  }

  /** Values fly under their shares, melt along their rows, and become one strip. */
  #drawValues(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const { v, shares } = this.look;
    const out = this.look.out!;
    const strip = (numbers: Float32Array) => stage.strip(numbers, this.#peaks.value, tall, layout.group);
    const shown = ease(t, 7.9, 8.7);
    const gap = Math.min(0.09, FLIGHTS / Math.max(1, this.#order.length - 1));
    const flight = (j: number) => {
      const start = 8.9 + this.#order.indexOf(j) * gap;
      return ease(t, start, start + FLIGHT);
    };
    const part = (j: number) => layout.part(this.#cumulated[j]!, shares[j]!);
    // Strips fly behind the values of other words and behind what has landed: no number is covered on the way.
    for (const j of this.#order) {
      const p = flight(j);
      if (p > 0 && p < 1 && v[j]) stage.picture(strip(v[j]), mixRect(layout.value(j), part(j), p));
    }
    this.keys.forEach((key, j) => {
      const numbers = v[j];
      if (!numbers) return;
      const rect = layout.value(j);
      const left = mix(1, mix(0.25, 1, Math.min(1, 1.6 * shares[j]!)), ease(t, 8.8, 9.6));
      stage.rect(rect, colours.paper, shown);
      stage.picture(strip(numbers), rect, shown * left);
      stage.frame(rect, colours.line2, 1, shown * left);
      stage.spot(rect, (x, y) => {
        const i = stage.placeIn(rect, numbers.length, x, y);
        return `value of ${key.name}, number ${i + 1} of ${numbers.length}: ${decimal(numbers[i]!, 4)}\n× share ${decimal(shares[j]!, 4)} = ${decimal(shares[j]! * numbers[i]!, 4)}`;
      });
    });
    const melted = ease(t, 11.2, 12.3);
    const faded = 1 - 0.7 * ease(t, 12.4, 12.9);
    for (const j of this.#order) if (flight(j) === 1 && v[j]) stage.picture(strip(v[j]), part(j), (1 - melted) * faded);
    if (melted > 0) stage.picture(strip(out), layout.mosaic, melted * faded);
    if (t > 9.6) {
      const { mosaic } = layout;
      stage.frame(mosaic, colours.line2, 1, ease(t, 9.6, 10.4) * faded);
      stage.spot(mosaic, (x, y) => {
        const i = stage.placeIn(mosaic, out.length, x, y);
        const along = Math.max(0, Math.min(1, tall ? (y - mosaic.y) / mosaic.h : (x - mosaic.x) / mosaic.w));
        const j = Math.max(0, this.#cumulated.findLastIndex((begin, k) => k < this.keys.length && begin <= along && shares[k]! > 0));
        const value = v[j]?.[i] ?? 0;
        return `number ${i + 1}: ${decimal(shares[j]!, 4)} × ${decimal(value, 4)} of ${this.keys[j]!.name} = ${decimal(shares[j]! * value, 4)}\nall together: ${decimal(out[i]!, 4)}`;
      });
    }
    const narrow = ease(t, 12.3, 12.9);
    if (narrow === 0) return;
    stage.picture(strip(out), mixRect(layout.mosaic, layout.output, narrow), narrow);
    stage.frame(mixRect(layout.mosaic, layout.output, narrow), colours.accent, 2, narrow);
    const { output } = layout;
    if (!tall) stage.text("output", output.x + output.w / 2, output.y + output.h + 15 * scale, { size: 11, weight: 620, align: "center", colour: colours.accent, alpha: narrow });
    stage.spot(output, (x, y) => {
      const i = stage.placeIn(output, out.length, x, y);
      return `output, number ${i + 1} of ${out.length}: ${decimal(out[i]!, 4)}\nthe weighted mean of the values`;
    });
  }

  /** The stream of the asking word: its block before, what the head adds, and their sum. */
  #drawStream(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const { before, adds, after, out } = this.look;
    if (!before) return;
    const me = this.#me;
    const block = (values: Float32Array) => stage.block(values, this.#parts, this.#peaks.stream);
    const spot = (rect: Rect, words: (i: number) => string) =>
      stage.spot(rect, (x, y) => words(stage.placeInBlock(rect, before.length, this.#parts, x, y)));
    if (adds && out && t > 13) {
      const [from, to] = [layout.output, layout.add];
      const sent = ease(t, 13, 13.9);
      const fans = Math.min(32, out.length);
      for (let i = 0; i < fans; i++) {
        const begin = tall ? { x: from.x + (from.w * i) / fans, y: from.y, w: from.w / fans, h: from.h } : { x: from.x, y: from.y + (from.h * i) / fans, w: from.w, h: from.h / fans };
        const end = mixRect(tall ? { ...begin, y: begin.y + begin.h + 1 } : { ...begin, x: begin.x + begin.w + 1 }, to, sent);
        stage.ribbon(begin, end, stage.signed(out[Math.floor((i * out.length) / fans)]!, this.#peaks.value), 0.035 * sent * (1 - 0.3 * ease(t, 15, 16)));
      }
      if (!tall) {
        const middle = (from.x + from.w + to.x) / 2;
        stage.text("Wᴼ", middle, from.y + from.h / 2 + 2, { size: 17, weight: 620, align: "center", alpha: sent });
        const size = `${out.length} → ${adds.length}`;
        if (stage.measure(size, { size: 11 }) < to.x - from.x - from.w - 12) stage.text(size, middle, from.y + from.h / 2 + 18 * scale, { size: 11, colour: colours.ink2, align: "center", alpha: sent });
      }
      const landed = ease(t, 13.9, 14.8);
      if (landed > 0) {
        stage.clip(tall ? { x: to.x - 1, y: to.y - 1, w: to.w + 2, h: (to.h + 2) * landed } : { x: to.x - 1, y: to.y - 1, w: (to.w + 2) * landed, h: to.h + 2 }, () => {
          stage.picture(block(adds), to);
          stage.frame(to, colours.line2);
        });
        if (landed === 1) spot(to, (i) => `what head ${this.place.index} adds, number ${i + 1} of ${adds.length}: ${decimal(adds[i]!, 4)}`);
      }
      this.#title(stage, to, `+ head ${this.place.index}`, colours.ink2, ease(t, 13.9, 14.3));
    }
    const risen = ease(t, 0, 0.35);
    const lifted = tall ? layout.source : mixRect({ ...layout.source, y: layout.source.y + 8 }, layout.source, risen);
    const own = mixRect(lifted, layout.before, ease(t, 0.8, 1.5));
    stage.picture(block(before), own, risen);
    stage.frame(own, colours.line2, 1, risen);
    spot(own, (i) => `${me} before, number ${i + 1} of ${before.length}: ${decimal(before[i]!, 4)}`);
    this.#title(stage, layout.before, `${this.#short} before`, colours.ink2, ease(t, 1.5, 1.8));
    if (!adds || !after || t < 15.3) return;
    const added = ease(t, 15.3, 16.3);
    if (added < 1) {
      stage.picture(block(before), mixRect(layout.before, layout.after, added), 0.8);
      stage.picture(block(adds), mixRect(layout.add, layout.after, added), 0.1 + 0.5 * (1 - added));
    } else {
      stage.picture(block(after), layout.after);
      stage.frame(layout.after, colours.accent, 2);
      spot(layout.after, (i) => `number ${i + 1} of ${after.length}\n${decimal(before[i]!, 4)} + ${decimal(adds[i]!, 4)} = ${decimal(after[i]!, 4)}`);
    }
    this.#title(stage, layout.after, "= so far", colours.accent, ease(t, 15.3, 15.8));
  }

  /** Below, while the query matches: q, k and their products as bars, their sum, and the score. */
  #drawWorking(stage: Stage, layout: Layout, t: number): void {
    const { panel } = layout;
    if (stage.tall || t < 2 || t > 6.8 || panel.h < 60) return;
    const { colours, scale } = stage;
    const j = this.#current(t) ?? this.#visited[0]!;
    const key = this.look.k[j];
    if (!key) return;
    const { q, dots, scores } = this.look;
    const product = this.#products[j]!;
    const alpha = ease(t, 2, 2.3) * (1 - ease(t, 6.3, 6.8));
    const side = Math.min(300 * scale, panel.w * 0.4);
    const cell = Math.min(14, (panel.w - side - 28) / q.length);
    const pitch = Math.min(46 * scale, panel.h / 3);
    const rows: [string, ArrayLike<number>, number, boolean][] = [
      ["q", q, this.#peaks.match, false], ["k", key, this.#peaks.match, false], ["q × k", product, this.#peaks.product, true],
    ];
    rows.forEach(([name, numbers, peak, signed], row) => {
      const y = panel.y + pitch * (row + 0.5);
      stage.text(name, panel.x - 10, y + 4 * scale, { mono: true, align: "right", colour: colours.ink2, alpha });
      for (let i = 0; i < numbers.length; i++) {
        const height = Math.max(-1, Math.min(1, numbers[i]! / peak)) * pitch * 0.48;
        stage.rect(
          { x: panel.x + i * cell + cell * 0.08, y: height > 0 ? y - height : y, w: Math.max(0.5, cell * 0.84), h: Math.max(0.8, Math.abs(height)) },
          !signed ? colours.ink2 : numbers[i]! > 0 ? colours.accent : stage.signed(-0.35, 1), alpha,
        );
      }
      stage.rect({ x: panel.x, y, w: cell * q.length, h: 0.7 }, colours.line2, alpha);
    });
    const bars = { x: panel.x, y: panel.y, w: cell * q.length, h: pitch * 3 };
    stage.spot(bars, (x) => {
      const i = Math.max(0, Math.min(q.length - 1, Math.floor((x - bars.x) / cell)));
      return `number ${i + 1} of ${q.length}\nq ${decimal(q[i]!, 4)} × k ${decimal(key[i]!, 4)} = ${decimal(product[i]!, 4)}`;
    });
    const x = bars.x + bars.w + 28;
    const right = Math.min(panel.x + panel.w, x + 260 * scale);
    const line = (y: number, forms: string[], figure: string, strong: boolean) => {
      const room = right - x - stage.measure(figure, { size: 14, weight: 700 }) - 6;
      stage.text(forms.find((form) => stage.measure(form) <= room) ?? "", x, y, { colour: colours.ink2, alpha });
      stage.text(figure, right, y, { size: 14, weight: strong ? 700 : 620, align: "right", colour: strong ? colours.accent : colours.ink, alpha });
    };
    const top = panel.y + Math.min(pitch * 0.5, 16 * scale) + 4;
    const step = Math.min(24 * scale, (panel.h - 20) / 3);
    stage.text(`${this.#home === j ? "itself" : "→"} ${this.keys[j]!.called}`, x, top, { size: 14, mono: true, weight: 620, alpha });
    line(top + step * 1.1, [`sum of the ${q.length} products`, "q·k"], decimal(dots[j]!), false);
    const root = Math.abs(this.header.scale * Math.sqrt(q.length) - 1) < 1e-6;
    line(top + step * 2.1, [root ? `÷ √${q.length}: the score` : "scaled: the score", "score"], decimal(scores[j]!), true);
  }

  /** Below, from the mean on: how much of the look a word has, and how much of what is said. */
  #drawHeard(stage: Stage, layout: Layout, t: number): void {
    const { panel } = layout;
    if (panel.h < 44) return;
    const { colours, tall, scale } = stage;
    const { shares, heard } = this.look;
    // The words that are most of the look or of what is said, in the order of the look, which stands there first.
    const order = [...shares.keys()].filter((j) => !this.keys[j]!.masked).sort((a, b) => Math.max(shares[b]!, heard?.[b] ?? 0) - Math.max(shares[a]!, heard?.[a] ?? 0));
    const rows = order.slice(0, Math.max(2, Math.min(tall ? 4 : 5, Math.floor((panel.h - 14) / (15 * scale))))).sort((a, b) => shares[b]! - shares[a]!);
    const [alpha, spoken] = [ease(t, 9.4, 10.2), ease(t, 12.2, 13)];
    const pitch = Math.min(27 * scale, (panel.h - 16) / rows.length);
    const size = tall ? 11 : 12.5;
    const names = Math.max(tall ? 46 : 60 * scale, ...rows.map((j) => stage.measure(this.keys[j]!.called, { size, mono: true, weight: 700 }) + 12));
    const half = Math.min(360 * scale, (panel.w - names - 12) / 2);
    const second = panel.x + names + half + 12;
    const most = half - stage.measure("100 %", { size, weight: 700 }) - 8;
    const title = tall || half < 160 * scale ? "is heard" : "is heard in the output";
    stage.text(half < 130 * scale ? "looks" : "looks, most first", panel.x + names, panel.y + 2, { weight: 620, alpha });
    stage.text(title, second, panel.y + 2, { weight: 620, alpha: spoken });
    rows.forEach((j, row) => {
      const y = panel.y + 12 * scale + pitch * (row + 0.5);
      const key = this.keys[j]!;
      const thick = Math.min(10 * scale, pitch * 0.5);
      const weight = row === 0 ? 700 : 400;
      stage.text(key.called, panel.x + names - 10, y + 4 * scale, { size, mono: true, align: "right", weight, alpha });
      stage.rect({ x: panel.x + names, y: y - thick / 2, w: Math.max(1, most * shares[j]!), h: thick }, key.parking ? colours.ink3 : stage.sequential(0.25 + 0.75 * shares[j]!), alpha);
      stage.text(share(shares[j]!), panel.x + names + most * shares[j]! + 6, y + 4 * scale, { size, weight, alpha });
      const part = heard?.[j] ?? 0;
      if (heard) {
        const length = most * Math.min(1, Math.abs(part)) * spoken;
        stage.rect({ x: second, y: y - thick / 2, w: Math.max(1, length), h: thick }, part < 0 ? stage.signed(-0.35, 1) : colours.accent, spoken);
        stage.text(share(part), second + length + 6, y + 4 * scale, { size, weight, alpha: spoken });
      }
      stage.spot({ x: panel.x, y: y - pitch / 2, w: panel.w, h: pitch }, [
        `${key.name}: share of the look ${decimal(shares[j]!, 4)}`,
        ...(heard ? [`share of what is said ${decimal(part, 4)}${part < 0 ? ": it speaks against" : ""}`, "(share × value · output ÷ output · output)"] : []),
      ].join("\n"));
    });
    if (!heard) stage.text("next to nothing", second, panel.y + 12 * scale + pitch * 0.5 + 4, { size, colour: colours.ink2, alpha: spoken });
  }

  // ------------------------------------------------------------------ places
  #columns(stage: Stage): Layout {
    const { width: W, height: H, scale: b } = stage;
    const { scores, shares, q, out } = this.look;
    const n = this.keys.length;
    const d = out?.length ?? q.length;
    const [roomy, small] = [H >= 640, H < 480];
    const large = b > 1; // type for the last row: words get room, pictures less
    // Down the page: words, keys, scores, values, and below them as much again for the working.
    const fixed = large ? 222 + (b - 1) * 290 : roomy ? 276 : small ? 180 : 222;
    const { strip, group } = stripLength((H - fixed) / 3, d);
    const wordY = (small ? 18 : 26) * b;
    const keyY = wordY + (small ? 12 : 20);
    const scoreY = keyY + strip + (small ? 16 : 20 * b);
    const spare = Math.max(0, H - fixed - 3 * strip);
    const scoreH = (large ? 84 * b : roomy ? 116 : small ? 60 : 80) + Math.min(70, 0.8 * spare);
    const valueY = scoreY + scoreH + (small ? 32 : 38 * b);
    // Across: the words, then packed mean, output, stream.
    const gutter = large ? 76 * b : W < 1000 ? 76 : 92;
    const right = W - 32;
    const blockW = Math.max(60, Math.min(150 * b, Math.round(strip * 0.84)));
    const [slim, tight] = [W < 1250, W < 1000];
    const streamX = right - blockW;
    const outputX = streamX - (large ? 68 * b : tight ? 62 : slim ? 84 : 100);
    const mosaicW = large ? 84 * b : tight ? 84 : slim ? 120 : 150;
    const mosaicX = outputX - (large || tight ? 30 : 40) - mosaicW;
    const free = mosaicX - (large || tight ? 20 : 36) - gutter;
    // Words get the room that they need; where all do not fit, type gets smaller, then labels are cut.
    const pad = small || large ? 5 : 12;
    const least = large ? 11 : 9.5;
    let type = large ? 14 : 13.5;
    let letters = 16;
    let widths: number[];
    let labels = this.keys.map(({ label }) => label);
    for (;;) {
      const narrowest = Math.min(large ? 26 : 28, free / n);
      widths = labels.map((label) => Math.max(narrowest, stage.measure(label, { size: type, least, mono: true, weight: 700 }) + pad));
      const sum = widths.reduce((a, c) => a + c, 0);
      if (sum <= free + 0.5) {
        widths = widths.map((width) => width + (free - sum) / n);
        break;
      }
      if (type > least) type -= 0.5;
      else if (letters > 1) {
        letters -= 1;
        labels = this.keys.map(({ label }) => (label.length > letters ? `${label.slice(0, Math.max(1, letters - 1))}…` : label));
      } else {
        widths = widths.map(() => free / n);
        break;
      }
    }
    const ends = cumulated(widths).map((x) => gutter + x);
    const middle = (j: number) => (ends[j]! + ends[j + 1]!) / 2;
    const end = ends[n]!;
    const thin = Math.max(3, Math.min(14 * b, (Math.min(...widths) - 5) / 3));
    const along = (place: number) => {
      const j = Math.max(0, Math.min(n - 2, Math.floor(place)));
      return n === 1 ? middle(0) : mix(middle(j), middle(j + 1), place - j);
    };
    const real = scores.filter(Number.isFinite);
    const [high, low] = [Math.max(0, ...real), Math.min(0, ...real)];
    const [above, below] = [18 * b, low < 0 ? 18 * b : 2];
    const unit = (scoreH - above - below) / (high - low || 1);
    const zero = scoreY + above + high * unit;
    const stem = (j: number, score: number) => ({ from: { x: middle(j), y: zero }, to: { x: middle(j), y: zero - score * unit } });
    const bar = (j: number, weight: number) => {
      const h = Math.max(0.6, weight * (scoreH - above));
      return { x: middle(j) - thin / 2, y: scoreY + scoreH - h, w: thin, h };
    };
    const gap = Math.max(roomy ? 36 : small ? 22 : 26, large ? 18 * b : 0);
    const strips = (y: number, shift: number) => (j: number) => ({ x: middle(j) + shift, y, w: thin, h: strip });
    const key = strips(keyY, -thin / 2);
    const rule = { x: mosaicX, y: valueY - 16, w: mosaicW, h: 9 };
    const mosaic = { x: mosaicX, y: valueY, w: mosaicW, h: strip };
    const add = { x: streamX, y: valueY, w: blockW, h: strip };
    const scoreTexts = fitting(stage, this.keys.map((entry, j) => {
      const { to } = stem(j, scores[j]!);
      return { words: entry.masked ? [] : [decimal(scores[j]!), decimal(scores[j]!, 1)], x: to.x, y: scores[j]! > 0 ? to.y - 8 : to.y + 15 * b, size: 11, rank: j === this.#best ? Infinity : Math.abs(scores[j]!) };
    }));
    const shareTexts = fitting(stage, this.keys.map((entry, j) => {
      const rect = bar(j, shares[j]!);
      return { words: entry.masked ? [] : [bare(shares[j]!)], x: rect.x + rect.w / 2, y: rect.y - 6, size: 11, weight: j === this.#best ? 700 : 400, rank: shares[j]! };
    }));
    const panelY = valueY + strip + 36 * b;
    return {
      group, type, labels, strip, key, stem, bar, zero, rule, mosaic, add, gutter, end,
      word: (j) => {
        const width = Math.min(ends[j + 1]! - ends[j]! - 2, stage.measure(labels[j]!, { size: type, least, mono: true, weight: 700 }) + 10);
        return { x: middle(j), y: wordY, box: { x: middle(j) - width / 2, y: wordY - 14 * b, w: width, h: 20 * b } };
      },
      lane: (j) => ({ x: ends[j]! + 2, y: keyY, w: ends[j + 1]! - ends[j]! - 4, h: valueY + strip - keyY }),
      query: (place) => ({ x: along(place) - thin * 1.5 - 1, y: keyY, w: thin, h: strip }),
      product: strips(keyY, thin / 2 + 1),
      value: strips(valueY, -thin / 2),
      scores: { x: gutter, y: scoreY, w: end - gutter, h: scoreH },
      shows: scoreTexts, shareShows: shareTexts,
      segment: (begin, weight) => ({ ...rule, x: rule.x + begin * mosaicW, w: weight * mosaicW }),
      part: (begin, weight) => ({ ...mosaic, x: mosaicX + begin * mosaicW, w: weight * mosaicW }),
      output: { x: outputX - 18, y: valueY, w: 18, h: strip },
      source: { x: Math.max(gutter, Math.min(mosaicX - blockW, along(this.#home) - blockW / 2)), y: keyY, w: blockW, h: strip },
      before: { ...add, y: valueY - strip - gap },
      after: { ...add, y: valueY + strip + gap },
      panel: { x: gutter, y: panelY, w: mosaicX + mosaicW - gutter - 20, h: H - panelY - 8 },
    };
  }

  #rows(stage: Stage): Layout {
    const { width: W, height: H } = stage;
    const { scores, shares } = this.look;
    const n = this.keys.length;
    const d = this.look.out?.length ?? this.look.q.length;
    const wide = W > 560;
    // Rows leave what is below them its room; where they would be too thin for their words, only as much as it needs.
    const pitch = Math.max(9.5, Math.min(13, (H - 168) / n), Math.min(wide ? 26 : 21, (H - 212) / n));
    const { strip, group } = stripLength(wide ? 192 : 96, d);
    const top = 10;
    const row = (j: number) => top + pitch * (j + 0.5);
    const thin = Math.max(5, pitch * 0.36);
    const margin = marginOf(stage);
    const [keyX, valueX] = [margin + 72, W - margin - strip];
    const scoreX = keyX + strip + 10;
    const scoreW = valueX - 10 - scoreX;
    const real = scores.filter(Number.isFinite);
    const [high, low] = [Math.max(0, ...real), Math.min(0, ...real)];
    const unit = (scoreW - 8) / (high - low || 1);
    const zero = scoreX + 4 - low * unit;
    const type = Math.min(11.5, 0.86 * pitch);
    const labels = this.keys.map(({ label }) => stage.fitted(label, keyX - 20, { size: type, mono: true, weight: 700 }));
    const streamH = wide ? 84 : 52;
    const mosaicY = top + pitch * n + 14;
    const mosaicH = Math.max(40, Math.min(wide ? 130 : 84, H - mosaicY - streamH - 60));
    const mosaic = { x: valueX, y: mosaicY, w: strip, h: mosaicH };
    const rule = { x: valueX - 14, y: mosaicY, w: 7, h: mosaicH };
    const output = { x: valueX, y: mosaicY + mosaicH + 8, w: strip, h: 10 };
    const streamY = Math.min(H - streamH - 18, output.y + (wide ? 70 : 120)); // titles are below
    const streamW = Math.min(wide ? 192 : 96, (W - 80) / 3);
    const at = (place: number) => top + pitch * (place + 0.5);
    const bar = (j: number, weight: number) => ({ x: scoreX, y: row(j) - thin / 2 - 1, w: Math.max(0.6, weight * (scoreW - 20)), h: thin + 2 });
    return {
      group, type, labels, strip, zero, rule, mosaic, output, bar, gutter: margin, end: W - margin,
      word: (j) => {
        const width = stage.measure(labels[j]!, { size: type, mono: true, weight: 700 });
        return { x: keyX - 10, y: row(j) + 4, box: { x: keyX - 14 - width, y: row(j) - pitch / 2 + 1, w: width + 8, h: pitch - 2 } };
      },
      lane: (j) => ({ x: keyX, y: row(j) - pitch / 2 + 1, w: W - margin - keyX, h: pitch - 2 }),
      key: (j) => ({ x: keyX, y: row(j) - thin / 2, w: strip, h: thin }),
      query: (place) => ({ x: keyX, y: at(place) - thin - 2, w: strip, h: thin }),
      product: (j) => ({ x: keyX, y: row(j) - thin / 2, w: strip, h: thin }),
      value: (j) => ({ x: valueX, y: row(j) - thin / 2 - 1, w: strip, h: thin + 2 }),
      stem: (j, score) => ({ from: { x: zero, y: row(j) }, to: { x: zero + score * unit, y: row(j) } }),
      scores: { x: scoreX, y: top, w: scoreW, h: pitch * n },
      shows: this.keys.map(() => null),
      shareShows: this.keys.map((key, j) => (key.masked || shares[j]! < 0.03 ? null : bare(shares[j]!))),
      segment: (begin, weight) => ({ ...rule, y: rule.y + begin * mosaicH, h: weight * mosaicH }),
      part: (begin, weight) => ({ ...mosaic, y: mosaic.y + begin * mosaicH, h: weight * mosaicH }),
      source: { x: keyX, y: Math.max(top, Math.min(streamY - streamH - 4, at(this.#home) - streamH / 2)), w: strip, h: streamH },
      before: { x: margin, y: streamY, w: streamW, h: streamH },
      add: { x: (W - streamW) / 2, y: streamY, w: streamW, h: streamH },
      after: { x: W - margin - streamW, y: streamY, w: streamW, h: streamH },
      panel: { x: margin, y: mosaicY + 10, w: valueX - margin - 32, h: streamY - mosaicY - 22 },
    };
  }
}

/** The length of a strip of d numbers in about `room` pixels: whole pixels a cell where they are large, cells of several numbers where
    they would be under 1.5 pixels. */
export function stripLength(room: number, d: number): { strip: number; group: number } {
  let group = 1;
  while ((room * group) / d < 1.5 && group < d) group *= 2;
  const cells = Math.ceil(d / group);
  const cell = Math.min(8, Math.max(1.25, room / cells));
  return { strip: Math.round((cell >= 3 ? Math.floor(cell) : Math.floor(cell * 4) / 4) * cells), group };
}

interface Label {
  /** The longest form first; none where nothing is to be shown. */
  words: string[];
  x: number;
  y: number;
  size: number;
  weight?: number;
  rank: number;
}

/** Of labels centred at their places, in the order of their rank, the longest form that touches no other. */
function fitting(stage: Stage, labels: readonly Label[]): (string | null)[] {
  const placed: Rect[] = [];
  const shown = labels.map((): string | null => null);
  const order = [...labels.keys()].sort((a, b) => labels[b]!.rank - labels[a]!.rank);
  for (const j of order) {
    const { words, x, y, size, weight } = labels[j]!;
    const height = stage.sized(size) * stage.scale * 1.25;
    for (const form of words) {
      const w = stage.measure(form, { size, weight }) + 3;
      const box = { x: x - w / 2, y: y - height, w, h: height };
      if (placed.some((other) => box.x < other.x + other.w && other.x < box.x + box.w && box.y < other.y + other.h && other.y < box.y + box.h)) continue;
      placed.push(box);
      shown[j] = form;
      break;
    }
  }
  return shown;
}

const bare = (value: number) => share(value).replace(/ /g, "").replace("%", ""); // on a scale of per cent: "<1", "68"

function largest(values: Float32Array): number {
  return values.reduce((best, value, i) => (Math.abs(value) > Math.abs(values[best]!) ? i : best), 0);
}

/** "shared by", "H3 to H5" or "H3 and H4": the heads that use the same keys and values. */
function sharedLines(place: Place): string[] {
  const size = place.numHeads / place.numKvHeads;
  const first = Math.floor(place.index / size) * size;
  return ["shared by", `H${first} ${size === 2 ? "and" : "to"} H${first + size - 1}`];
}
