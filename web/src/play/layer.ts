// Scene 2: all heads of a layer at once. Each gets its query of the same word, looks, fetches; the outputs are laid end to end, go
// through the output projection as one sheet a head, are summed and added to the stream. Its last still is the layer's diagram.
import type { Envelope } from "../lib/api/envelope";
import { cumulated, decimal, inWords, peakOf, quoted, quotedAlone, share, upper } from "./figures";
import { keysOf, LEAST_MISSING, NOBODY, partsOf, rowsOf, vectorOf, type Key, type LookHeader, type Place } from "./look";
import { Places, type Chapter, type Scene, type Table, type Words } from "./scene";
import { marginOf, type Rect, type Stage } from "./stage";
import { ease, linear, mix, mixRect } from "./time";
import { stripLength } from "./word";

const CHAPTERS: readonly Chapter[] = [
  { name: "In", at: 0 }, { name: "Look", at: 1.7 }, { name: "Answer", at: 4.2 }, { name: "Join", at: 7 },
  { name: "Mix", at: 9 }, { name: "Add", at: 14 }, { name: "Said", at: 16 },
];
const END = 17.6;
const MIXED = 9.6; // seconds: the first sheet lands
const SHEETS = 4; // seconds between the first sheet and the last
const MARGIN = 32; // CSS pixels: that of the headline
const IN_A_ROW = 16; // heads; more are set in several rows

interface LayerHeader extends LookHeader {
  heads: string[];
  num_kv_heads: number;
  /** Of each head, the share that goes to no key. */
  missing: number[];
  silent: boolean[];
  bias_wrote: number | null;
}

/** What all heads of a layer do at one word. */
interface Looks {
  q: Float32Array[];
  /** Shares of each head, a number a column. */
  shares: number[][];
  /** Values of each head, an entry a column. */
  v: (Float32Array | null)[][] | null;
  out: Float32Array[] | null;
  adds: Float32Array[] | null;
  outputBias: Float32Array | null;
  before: Float32Array | null;
  /** What a feed-forward adds in the same sum, in models with parallel branches. */
  beside: Float32Array | null;
  after: Float32Array | null;
  wrote: Float32Array | null;
}

/** Plays all heads of a layer at one word. `open`: a click on a head plays that head. */
export function layer(envelope: Envelope, place: Place, open?: (head: number) => void): Scene {
  const header = envelope.header as unknown as LayerHeader;
  const weights = rowsOf(envelope, "weights")!;
  const heads = weights.length;
  const nobody = header.missing.some((missing) => missing > LEAST_MISSING);
  const keys = keysOf(header, place, (column) => place.causal && header.keys[column]! > place.query, nobody);
  const [values, others] = [rowsOf(envelope, "v"), rowsOf(envelope, "others")];
  const columns = header.keys.length;
  const v = values && weights.map((_, head) => {
    const group = Math.floor((head * header.num_kv_heads) / heads);
    return keys.map(({ token, masked }, j) => {
      if (masked || token === NOBODY) return null;
      return token < 0 ? (others?.[head] ?? null) : values[group * columns + j]!;
    });
  });
  return new Layer(header, place, keys, {
    v,
    q: rowsOf(envelope, "q")!,
    shares: weights.map((row, head) => [...row, ...(nobody ? [header.missing[head]!] : [])]),
    out: rowsOf(envelope, "out"),
    adds: rowsOf(envelope, "adds"),
    outputBias: vectorOf(envelope, "output_bias"),
    before: vectorOf(envelope, "before"),
    beside: vectorOf(envelope, "beside"),
    after: vectorOf(envelope, "after"),
    wrote: vectorOf(envelope, "wrote"),
  }, open);
}

/** Places on one stage. */
interface Layout {
  source: Rect;
  head(h: number): { x: number; y: number; align: "center" | "right"; box: Rect };
  query(h: number): Rect;
  /** The zone of a head's bars, and one bar. */
  zone(h: number): Rect;
  bar(h: number, j: number, share: number): Rect;
  top(h: number): { x: number; y: number };
  /** Whether every head has room for its name. */
  names: boolean;
  /** Whether word and share of the look stand in two lines. */
  twoLines: boolean;
  labels: boolean;
  whole(h: number): Rect;
  part(h: number, begin: number, share: number): Rect;
  output(h: number): Rect;
  joined: Rect;
  slot(h: number): Rect;
  sum: Rect;
  before: Rect;
  beside: Rect;
  after: Rect;
  list: Rect | null;
  lanes: { title: string; below: string[]; y: number; from: number }[];
  gutter: number;
  group: number;
  joinedGroup: number;
}

class Layer implements Scene {
  readonly id = "layer";
  readonly name = "Play the layer";
  readonly chapters: readonly Chapter[];
  readonly end: number;
  readonly #heads: number;
  readonly #cumulated: number[][];
  readonly #tops: number[];
  readonly #sums: Float32Array[];
  readonly #parts: number;
  readonly #step: number;
  readonly #peaks: { query: number; value: number; stream: number };
  readonly #places = new Places<Layout>();

  constructor(
    readonly header: LayerHeader,
    readonly place: Place,
    readonly keys: readonly Key[],
    readonly looks: Looks,
    readonly open?: (head: number) => void,
  ) {
    const { q, shares, v, out, adds, outputBias, before } = looks;
    this.#heads = q.length;
    this.end = !out ? 5.8 : !adds || !before ? 10.6 : END;
    const said = (at: number): Chapter => ({ name: "Said", at });
    this.chapters = !out ? [...CHAPTERS.slice(0, 2), said(4.2)] : !adds || !before ? [...CHAPTERS.slice(0, 4), said(9)] : CHAPTERS;
    this.#cumulated = shares.map(cumulated);
    const real = keys.flatMap(({ token, masked }, j) => (token >= 0 && !masked ? [j] : []));
    this.#tops = shares.map((row) => real.reduce((best, j) => (row[j]! > row[best]! ? j : best), real[0]!));
    this.#step = Math.min(0.4, SHEETS / this.#heads);
    // The sum after each head, beginning with the projection's bias: what lies on the pile at every moment.
    this.#sums = [];
    if (adds && outputBias) {
      let sum = outputBias;
      this.#sums.push(sum);
      for (const sheet of adds) this.#sums.push((sum = sum.map((value, i) => value + sheet[i]!)));
    }
    const some = (rows: (Float32Array | null)[][] | null) => (rows ?? []).flat().filter((row) => row !== null);
    this.#peaks = {
      query: peakOf(...q),
      value: peakOf(...(out ?? []), ...some(v).filter((row, i, all) => all.indexOf(row) === i).slice(0, 256)),
      stream: peakOf(before ?? [], this.#sums.at(-1) ?? []),
    };
    this.#parts = before ? partsOf(before.length, place) : 1;
  }

  get #me(): string {
    return quoted(this.place.queries, this.place.query);
  }

  /** The same where room is short. */
  get #alone(): string {
    return quotedAlone(this.place.queries, this.place.query);
  }

  /** How many sheets lie on the sum. */
  #landed(t: number): number {
    return Math.max(0, Math.min(this.#heads, Math.floor((t - MIXED) / this.#step + 0.15)));
  }

  words(t: number): Words {
    const { place, looks, header, keys } = this;
    const { q, out, adds, before, beside, shares } = looks;
    const [me, n] = [this.#me, this.#heads];
    const some = inWords(n);
    const d = q[0]!.length;
    const m = before?.length;
    const grouped = header.num_kv_heads < n ? `, ${header.num_kv_heads} × k and v: ${n / header.num_kv_heads} heads share them` : "";
    if (t < 1.7) {
      return {
        headline: `${upper(me)} carries ${m ? `${m} numbers` : "its vector"} into the layer. ${upper(some)} ${n === 1 ? "head reads" : "heads read"} ${n === 1 ? "it" : "them"}.`,
        figures: `${n} ${n === 1 ? "query" : "queries"} of ${d} numbers: ${header.norm === "pre" ? "normed, " : ""}${m ?? "m"} × W_Q each${header.turned ? ", turned by position" : ""}${grouped}`,
      };
    }
    if (t < 4.2) {
      const reading = t < 3.3 ? this.#reading(t) : null;
      const firm = [...shares.keys()].sort((a, b) => shares[b]![this.#tops[b]!]! - shares[a]![this.#tops[a]!]!);
      const listed = [...new Set([place.index, ...firm])].slice(0, 4);
      return {
        headline: `${upper(some)} ${n === 1 ? "head looks" : "heads look"} at the same text, ${n === 1 ? "in its own way" : `at once, in ${some} ways`}.`,
        figures: reading === null ? listed.map((h) => `H${h}: ${keys[this.#tops[h]!]!.called} ${share(shares[h]![this.#tops[h]!]!)}`).join("    ") : `a bar is a share of one look: ${keys[reading]!.name}`,
      };
    }
    if (!out) return { headline: header.said, figures: header.figures };
    const f = out[0]!.length;
    if (t < 7) return { headline: `Each fetches its words’ values and melts them into ${f} numbers.`, figures: "a weighted mean, as in one head: softmax(q·k) × v" };
    if (t < 9) return { headline: `The ${some} answers are laid end to end: ${n} × ${f} = ${n * f} numbers.`, figures: "nothing is mixed yet: each strip still knows only its own head" };
    if (!adds || !before || t >= 16) {
      const then = header.norm === "post" && adds ? " · a layer norm follows" : "";
      return { headline: header.said, figures: header.figures + then };
    }
    if (t < 14) {
      const h = Math.min(n - 1, Math.max(0, this.#landed(t) - 1));
      return {
        headline: `Wᴼ lets every head write into all ${m} places, and adds them up.`,
        figures: `number 1 so far: ${decimal(this.#sums[this.#landed(t)]![0]!, 3)}   (H${h} adds ${decimal(adds[h]![0]!, 3)})`,
      };
    }
    const sum = this.#sums.at(-1)!;
    const also = beside ? ` + ${decimal(beside[0]!, 3)} from the feed-forward` : "";
    return {
      headline: `The sum is added to what ${me} carried.`,
      figures: `number 1 of ${m}: ${decimal(before[0]!, 3)} + ${decimal(sum[0]!, 3)}${also} = ${decimal(this.#after![0]!, 3)}`,
    };
  }

  /** The share of the output projection's bias in the sum; null where it has none, or is not known. */
  get #biasWrote(): number | null {
    return this.header.bias_wrote || null;
  }

  /** The stream after the sum, as the model has it. */
  get #after(): Float32Array | null {
    return this.looks.after;
  }

  /** The column whose bars are growing. */
  #reading(t: number): number | null {
    const j = Math.floor(((t - 1.8) / 1.5) * this.keys.length);
    return j >= 0 && j < this.keys.length ? j : null;
  }

  table(): Table {
    const { shares, wrote } = this.looks;
    return {
      caption: `${upper(this.place.layer)} at ${this.#me}: ${this.header.num_kv_heads} key/value heads for ${this.#heads} query heads`,
      head: ["head", "looks most at", "share of the look", "share of what the layer adds"],
      rows: [
        ...shares.map((row, h) => [`H${h}`, this.keys[this.#tops[h]!]!.called, decimal(row[this.#tops[h]!]!, 4), wrote ? decimal(wrote[h]!, 4) : ""]),
        ...(this.#biasWrote === null ? [] : [["bias", "", "", decimal(this.#biasWrote, 4)]]),
      ],
    };
  }

  // ------------------------------------------------------------------ drawing
  draw(stage: Stage, t: number): void {
    const layout = this.#places.on(stage, () => (stage.tall ? this.#rows(stage) : this.#columns(stage)));
    this.#drawLanes(stage, layout, t);
    const frames: (() => void)[] = [];
    for (let h = 0; h < this.#heads; h++) this.#drawHead(stage, layout, t, h, frames);
    frames.forEach((draw) => draw());
    if (t > 1.7) this.#drawGroups(stage, layout, t);
    if (this.looks.out && t > 7.7) {
      const { joined } = layout;
      const alpha = ease(t, 7.8, 8.4);
      this.#title(stage, joined, ["end to end", "joined"], alpha, stage.colours.ink);
      const [n, f] = [this.#heads, this.looks.out[0]!.length];
      if (!stage.tall) stage.text(`${n} × ${f} = ${n * f}`, joined.x, joined.y + joined.h + 17 * stage.scale, { size: 11, colour: stage.colours.ink3, alpha });
    }
    if (this.looks.adds && t > 9) this.#drawMix(stage, layout, t);
    if (this.looks.before && this.looks.adds && t > 13.4) this.#drawSum(stage, layout, t);
  }

  #drawLanes(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const { before, beside, out, adds } = this.looks;
    for (const { title, below, y, from } of layout.lanes) {
      const alpha = ease(t, from, from + 0.6);
      stage.text(title, layout.gutter - 18, y, { weight: 620, align: "right", alpha });
      below.forEach((words, i) => stage.text(words, layout.gutter - 18, y + (15 + 14 * i) * scale, { size: 11, colour: colours.ink3, align: "right", alpha }));
    }
    // Where there is no room to tell it apart, its word alone.
    const room = layout.source.w + 26;
    const me = [this.#me, this.#alone].find((form) => stage.measure(form, { weight: 620 }) <= room) ?? this.#alone;
    if (!tall) stage.text(stage.fitted(me, room, { weight: 620 }), layout.source.x, layout.source.y - 8, { weight: 620, colour: colours.accent });
    if (before) {
      const alpha = ease(t, 0, 0.4) * (tall ? 1 - ease(t, 1.2, 1.8) : 1);
      stage.picture(stage.block(before, this.#parts, this.#peaks.stream), layout.source, alpha);
      stage.frame(layout.source, colours.line2, 1, alpha);
      if (alpha > 0.5) this.#blockSpot(stage, layout.source, before, (i) => `${this.#me} into ${this.place.layer}, number ${i + 1} of ${before.length}: ${decimal(before[i]!, 4)}`);
    } else stage.frame(layout.source, colours.line2, 1, ease(t, 0, 0.4), true);
    if (!out) return;
    const coming = (rect: Rect, forms: string[], alpha: number) => {
      stage.frame(rect, colours.line2, 1, 0.9 * alpha, true);
      this.#title(stage, rect, forms, alpha, colours.ink3, 400);
    };
    const shown = ease(t, 0.2, 0.9);
    const awaited = shown * (1 - ease(t, 4.3, 4.8));
    if (layout.labels) for (let h = 0; h < this.#heads; h++) stage.frame(layout.whole(h), colours.line2, 1, 0.9 * awaited, true);
    coming(layout.joined, ["end to end", "joined"], shown * (1 - ease(t, 7.4, 7.8)));
    if (!adds) return;
    coming(layout.sum, SUM, shown * (1 - ease(t, 9, 9.4)));
    coming(layout.before, this.#beforeForms, shown * (1 - ease(t, 13, 13.4)));
    if (beside) coming(layout.beside, ["+ feed-forward", "+ ff"], shown * (1 - ease(t, 13, 13.4)));
    coming(layout.after, this.#afterForms, shown * (1 - ease(t, 13.9, 14.3)));
  }

  get #beforeForms(): string[] {
    return [`+ ${this.#alone} before`, "+ before"];
  }

  get #afterForms(): string[] {
    return [`= ${this.#alone} after attention`, `= ${this.#alone} after`, "= after"];
  }

  /** A title above a block, in the longest form that its column has room for. */
  #title(stage: Stage, rect: Rect, forms: string[], alpha: number, colour: string, weight = 620): void {
    const size = stage.tall ? 11 : 12;
    const room = rect.w + (stage.tall ? 4 : stage.width < 1000 ? 20 : 30);
    const words = forms.find((form) => stage.measure(form, { size, weight: 620 }) <= room) ?? forms.at(-1)!;
    stage.text(words, rect.x, rect.y - 9, { size, weight, colour, alpha });
  }

  #blockSpot(stage: Stage, rect: Rect, values: Float32Array, words: (i: number) => string): void {
    stage.spot(rect, (x, y) => words(stage.placeInBlock(rect, values.length, this.#parts, x, y)));
  }

  /** `frames`: what is to be drawn above all heads. */
  #drawHead(stage: Stage, layout: Layout, t: number, h: number, frames: (() => void)[]): void {
    const { colours, tall } = stage;
    const { q } = this.looks;
    const follows = h === this.place.index;
    const colour = follows ? colours.accent : colours.ink2;
    const weight = follows ? 700 : 400;
    const stagger = Math.min(0.05, 0.6 / this.#heads);
    const fan = ease(t, 0.4 + h * stagger, 1.2 + h * stagger);
    const { source } = layout;
    const rect = layout.query(h);
    if (fan > 0) {
      if (!tall) {
        const alpha = 0.7 * fan * (1 - ease(t, 1.4, 2.2));
        const [from, to] = [{ x: source.x + source.w, y: source.y + source.h / 2 }, { x: rect.x + rect.w / 2, y: rect.y - 4 }];
        const end = { x: mix(from.x, to.x, fan), y: mix(from.y, to.y, fan) };
        stage.line(arc(from, end, source.y - 18), follows ? colours.accent : colours.line2, follows ? 2 : 1, alpha);
      }
      const gone = tall ? 1 - ease(t, 1.7, 2.1) : 1;
      const at = mixRect(source, rect, fan);
      stage.picture(stage.strip(q[h]!, this.#peaks.query, tall, layout.group), at, fan * gone);
      stage.frame(at, follows ? colours.accent : colours.line2, follows ? 2 : 1, fan * gone);
      if (fan === 1 && gone > 0.5) {
        stage.spot(rect, (x, y) => {
          const i = stage.placeIn(rect, q[h]!.length, x, y);
          return `query of ${this.#me} in H${h}, number ${i + 1} of ${q[h]!.length}: ${decimal(q[h]![i]!, 4)}`;
        });
      }
    }
    const name = layout.head(h);
    const role = this.place.roles[h];
    if (layout.names || follows) stage.text(`H${h}`, name.x, name.y, { size: tall ? 11 : 12, weight, colour, align: name.align, alpha: tall ? ease(t, 0.8, 1.4) : fan });
    if (role && fan > 0) stage.rect({ x: tall ? name.x - 12 : name.x - 6, y: name.y + 3, w: 12, h: 2.5 }, role.colour, fan);
    stage.spot(name.box, `H${h}${role ? `: ${role.name}` : ""}${this.open ? "\nclick: play this head" : ""}`, this.open && (() => this.open!(h)));
    if (t > 1.7) this.#drawLook(stage, layout, t, h);
    if (t > 4.2 && this.looks.out) this.#drawAnswer(stage, layout, t, h, frames);
  }

  /** Bars of shares, in all heads at once, word by word. */
  #drawLook(stage: Stage, layout: Layout, t: number, h: number): void {
    const { colours, tall } = stage;
    const follows = h === this.place.index;
    const shares = this.looks.shares[h]!;
    const n = this.keys.length;
    const faded = mix(1, follows ? 0.8 : 0.4, ease(t, 4.3, 5));
    this.keys.forEach((key, j) => {
      const begin = 1.8 + (1.5 * j) / n;
      const up = ease(t, begin, begin + 0.5);
      if (up === 0 || key.masked) return;
      const bar = layout.bar(h, j, shares[j]! * up);
      stage.rect({ ...bar, h: Math.max(0.7, bar.h) }, key.parking ? colours.ink3 : follows ? colours.accent : stage.sequential(0.2 + 0.6 * shares[j]!), faded);
    });
    const zone = layout.zone(h);
    stage.rect({ x: zone.x, y: zone.y + zone.h - 1, w: zone.w, h: 1 }, colours.line2);
    const best = this.#tops[h]!;
    const key = this.keys[best]!;
    const top = layout.top(h);
    const size = tall || layout.twoLines ? 11 : 12;
    const style = { size, weight: follows ? 700 : 400, align: tall ? "left" : "center", alpha: ease(t, 3.2, 3.8) } as const;
    const colour = follows ? colours.accent : key.parking ? colours.ink3 : colours.ink;
    if (layout.labels) {
      const room = tall ? 120 : zone.w + 18;
      const figure = share(shares[best]!);
      if (layout.twoLines) {
        stage.text(stage.fitted(key.called, room, { size, weight: 700 }), top.x, top.y, { ...style, colour });
        stage.text(figure, top.x, top.y + 14 * stage.scale, { ...style, colour: follows ? colours.accent : colours.ink2 });
      } else {
        const word = stage.fitted(key.called, room - stage.measure(` ${figure}`, { size, weight: 700 }), { size, weight: 700 });
        stage.text(`${word} ${figure}`, top.x, top.y, { ...style, colour });
      }
    }
    stage.spot({ ...zone, y: zone.y - 3, h: zone.h + 4 }, (x) => {
      const j = Math.max(0, Math.min(n - 1, Math.floor(((x - zone.x) / zone.w) * n)));
      const { masked, name } = this.keys[j]!;
      return `H${h}: ${this.#me} → ${name}\n${masked ? "not visible" : `share of the look ${decimal(shares[j]!, 4)}`}`;
    });
  }

  /** Packed values, which melt into the head's output and sail to their place in the joined vector. */
  #drawAnswer(stage: Stage, layout: Layout, t: number, h: number, frames: (() => void)[]): void {
    const { colours, tall } = stage;
    const out = this.looks.out![h]!;
    const [v, shares, begins] = [this.looks.v![h]!, this.looks.shares[h]!, this.#cumulated[h]!];
    const follows = h === this.place.index;
    const filled = linear(t, 4.3, 5.2);
    const [melted, thin] = [ease(t, 5.4, 6.1), ease(t, 6.2, 6.9)];
    const leaves = 7 + h * Math.min(0.06, 0.7 / this.#heads);
    const joined = ease(t, leaves, leaves + 0.9);
    const whole = layout.whole(h);
    const picture = stage.strip(out, this.#peaks.value, tall, layout.group);
    if (melted < 1) {
      v.forEach((numbers, j) => {
        const p = ease(filled, begins[j]! * 0.7, begins[j]! * 0.7 + 0.3);
        if (p === 0 || !numbers) return;
        const part = layout.part(h, begins[j]!, shares[j]!);
        stage.picture(stage.strip(numbers, this.#peaks.value, tall, layout.group), tall ? { ...part, w: part.w * p } : { ...part, h: part.h * p });
      });
    }
    if (melted > 0 && thin === 0) stage.picture(picture, whole, melted);
    if (thin < 1) stage.frame(whole, follows ? colours.accent : colours.line2, follows ? 2 : 1, filled * (1 - thin));
    if (thin === 0) {
      if (filled < 1) return;
      stage.spot(whole, (x, y) => {
        const i = stage.placeIn(whole, out.length, x, y);
        const along = Math.max(0, Math.min(1, tall ? (y - whole.y) / whole.h : (x - whole.x) / whole.w));
        const j = Math.max(0, begins.findLastIndex((begin, k) => k < shares.length && begin <= along && shares[k]! > 0));
        return `H${h}: ${decimal(shares[j]!, 4)} × ${decimal(v[j]?.[i] ?? 0, 4)} of ${this.keys[j]!.name}\nall together, number ${i + 1}: ${decimal(out[i]!, 4)}`;
      });
      return;
    }
    const trace = tall ? 1 - ease(t, 9.2, 9.6) : 1; // it stays where it was made; on a tall stage, till bars need the room
    if (joined > 0) {
      stage.picture(picture, layout.output(h), mix(1, 0.6, joined) * trace);
      stage.frame(layout.output(h), colours.line2, 1, joined * trace);
    }
    const at = mixRect(mixRect(whole, layout.output(h), thin), layout.slot(h), joined);
    stage.picture(joined === 1 ? stage.strip(out, this.#peaks.value, tall, layout.joinedGroup) : picture, at);
    // Frames are drawn when all strips lie there: the next one would cover the edge between the two.
    const sending = t > 9 && t < 14 && this.#landed(t) === h;
    if (follows || sending) frames.push(() => stage.frame(at, colours.accent, 2, thin));
    else if (joined < 1) stage.frame(at, colours.line2, 1, thin);
    const shown = joined === 1 ? layout.slot(h) : layout.output(h);
    if (joined === 0 || joined === 1) {
      stage.spot(shown, (x, y) => {
        const i = stage.placeIn(shown, out.length, x, y);
        return `answer of H${h}, number ${i + 1} of ${out.length}: ${decimal(out[i]!, 4)}\nplace ${h * out.length + i + 1} of ${this.#heads * out.length}`;
      });
    }
  }

  /** Brackets over the heads that share keys and values. */
  #drawGroups(stage: Stage, layout: Layout, t: number): void {
    const groups = this.header.num_kv_heads;
    if (groups >= this.#heads) return;
    const { colours, tall, scale } = stage;
    const size = this.#heads / groups;
    const alpha = ease(t, 1.7, 2.4);
    for (let g = 0; g < groups; g++) {
      const [first, last] = [layout.zone(g * size), layout.zone((g + 1) * size - 1)];
      const heads = `H${g * size} ${size === 2 ? "and" : "to"} H${(g + 1) * size - 1}`;
      const words = size > 1 ? `k v shared by ${heads}` : `k v of H${g}`;
      if (tall) {
        const x = marginOf(stage) - 7;
        const [top, bottom] = [first.y - 1, last.y + last.h - 1];
        stage.line([{ x: x + 3, y: top }, { x, y: top }, { x, y: bottom }, { x: x + 3, y: bottom }], colours.line2, 1, alpha);
        stage.spot({ x: x - 5, y: top, w: 9, h: bottom - top }, words);
        continue;
      }
      if (first.y !== last.y) continue; // a group of two rows
      const y = first.y - 7 * scale;
      stage.line([{ x: first.x, y: y + 4 }, { x: first.x, y }, { x: last.x + last.w, y }, { x: last.x + last.w, y: y + 4 }], colours.line2, 1, alpha);
      const width = last.x + last.w - first.x;
      stage.spot({ x: first.x, y: y - 3, w: width, h: 8 }, words);
      if (this.#heads > IN_A_ROW) continue;
      const form = [words, heads, "k v"].find((each) => stage.measure(each, { size: 11 }) < width);
      if (form) stage.text(form, first.x + width / 2, y - 4, { size: 11, colour: colours.ink3, align: "center", alpha });
    }
  }

  /** A strip becomes a sheet by way of the projection, and sheets add up. */
  #drawMix(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const adds = this.looks.adds!;
    const n = this.#heads;
    const { joined, sum } = layout;
    const f = this.looks.out![0]!.length;
    const [opened, m] = [ease(t, 9, 9.5), adds[0]!.length];
    if (!tall) {
      const [left, right] = [joined.x + joined.w + 8, sum.x - 8];
      const middle = (left + right) / 2;
      // Wider on the side where there are more numbers; a hairline tells the two sides apart.
      stage.ribbon({ x: left, y: joined.y, w: 0, h: joined.h }, { x: right, y: sum.y + 8, w: 0, h: sum.h - 16 }, colours.paper2, 0.8 * opened, false);
      // Above and below, as of the blocks: sheets pass between.
      stage.text("Wᴼ", middle, joined.y - 9, { size: 14, weight: 620, align: "center", alpha: opened });
      const shape = `${n * f} × ${m}`;
      if (stage.measure(shape, { size: 11 }) < right - left) stage.text(shape, middle, joined.y + joined.h + 17 * scale, { size: 11, colour: colours.ink3, align: "center", alpha: opened });
    }
    const landed = this.#landed(t);
    if (t > 9.5) {
      stage.picture(stage.block(this.#sums[landed]!, this.#parts, this.#peaks.stream), sum, ease(t, 9.5, 9.9));
      stage.frame(sum, t < 14 ? colours.line2 : colours.accent, t < 14 ? 1 : 2, ease(t, 9.5, 9.9));
      this.#blockSpot(stage, sum, this.#sums[landed]!, (i) => this.#addends(i, landed));
    }
    // Sheets come out of the joined vector's edge, and cover none of its numbers.
    stage.clip({ x: joined.x + joined.w + 1, y: 0, w: stage.width, h: stage.height }, () => {
      for (let h = 0; h < n; h++) {
        const begin = MIXED + h * this.#step - 0.55;
        const p = ease(t, begin, begin + 0.62);
        if (p === 0 || p === 1) continue;
        const at = mixRect(layout.slot(h), sum, p);
        stage.picture(stage.block(adds[h]!, this.#parts, this.#peaks.stream), at, mix(0.95, 0.55, p));
        const follows = h === this.place.index;
        stage.frame(at, follows ? colours.accent : colours.ink3, follows ? 2 : 1, 1 - 0.5 * p);
      }
    });
    this.#title(stage, sum, SUM, ease(t, 9.5, 10), colours.ink);
    if (!tall) {
      const heads = `${n} ${n === 1 ? "head" : "heads"}`;
      const counts = t < 13.7 ? [`${landed} of ${n}`] : this.#biasWrote === null ? [heads] : [`${heads} + bias`, heads];
      const count = counts.find((form) => stage.measure(form, { size: 11, weight: 700 }) <= sum.w + 30) ?? counts.at(-1)!;
      stage.text(stage.fitted(count, sum.w + 30, { size: 11, weight: 700 }), sum.x, sum.y + sum.h + 17 * scale, { size: 11, colour: colours.ink3, alpha: ease(t, 9.5, 10) });
    }
    this.#drawWrote(stage, layout, t);
  }

  /** A number of the sum, and what it is made of. */
  #addends(i: number, landed: number): string {
    const { adds, outputBias } = this.looks;
    const terms = adds!.slice(0, landed).map((sheet, h) => `H${h} ${decimal(sheet[i]!, 3)}`);
    terms.push(`bias ${decimal(outputBias![i]!, 3)}`);
    const lines = Array.from({ length: Math.ceil(terms.length / 4) }, (_, row) => terms.slice(4 * row, 4 * row + 4).join("  "));
    return `number ${i + 1} of ${outputBias!.length}: ${decimal(this.#sums[landed]![i]!, 4)} =\n${lines.join("\n")}`;
  }

  /** Bars: how much of the sum, along itself, is whose: every head's part, and that of the projection's bias. */
  #drawWrote(stage: Stage, layout: Layout, t: number): void {
    const wrote = this.looks.wrote;
    if (!wrote) return;
    const { colours, scale } = stage;
    const n = this.#heads;
    const bias = this.#biasWrote;
    const parts = bias === null ? [...wrote] : [...wrote, bias]; // the bias last, in the place of one more head
    const nameOf = (h: number) => (h < n ? `H${h}` : "bias");
    const most = Math.max(...parts, 1e-9);
    const spot = (rect: Rect, h: number) => stage.spot(rect, [
      `${nameOf(h)}: ${decimal(parts[h]!, 4)} of what ${this.place.layer} adds to ${this.#me}`,
      ...(parts[h]! < 0 ? ["below 0: it works against the sum of all"] : []),
      ...(h < n ? [] : ["a vector of the output projection, the same at every word"]),
      "(its part along the sum; all heads and the bias are 1)",
    ].join("\n"));
    const up = (h: number) => ease(t, MIXED + h * this.#step, MIXED + h * this.#step + 0.3);
    // Bars begin at a common 0; a part below it lies at its left, in as much room as the lowest one needs.
    const below = Math.max(0, ...parts.map((part) => -part));
    const bar = (h: number, x: number, y: number, room: number, thick: number) => {
      const colour = parts[h]! < 0 ? stage.signed(-0.35, 1) : h === this.place.index ? colours.accent : h < n ? stage.sequential(0.3) : colours.ink3;
      const [zero, unit] = [x + (room * below) / (most + below), room / (most + below)];
      const width = Math.max(1, Math.abs(parts[h]!) * unit * up(h));
      stage.rect({ x: parts[h]! < 0 ? zero - width : zero, y: y - thick / 2, w: width, h: thick }, colour, up(h));
      return parts[h]! < 0 ? zero : zero + width;
    };
    if (!layout.list) {
      const zone = (h: number) => layout.whole(h);
      stage.text("wrote", zone(0).x, Math.max(10, zone(0).y - 4), { size: 11, weight: 620, alpha: ease(t, MIXED, 10) });
      for (let h = 0; h < n; h++) {
        const { x, y, w, h: height } = zone(h);
        const end = bar(h, x, y + height / 2, w - 36, Math.min(8, height * 0.6));
        if (layout.labels) stage.text(share(wrote[h]!), end + 5, y + height / 2 + 4, { size: 11, weight: h === this.place.index ? 700 : 400, alpha: up(h) });
        spot(zone(h), h);
      }
      return;
    }
    const { list } = layout;
    const alpha = ease(t, MIXED, 10.2);
    const names = 34 * scale;
    const room = list.w - names - 48 * scale;
    const fits = Math.max(2, Math.floor(list.h / ((scale > 1 ? 13.5 : 11.5) * scale)));
    const all = [...parts.keys()];
    const rows = all.length <= fits ? all : all.sort((a, b) => Number(b === this.place.index) - Number(a === this.place.index) || parts[b]! - parts[a]!).slice(0, fits).sort((a, b) => a - b);
    const pitch = Math.min(list.h / rows.length, 26 * scale);
    const title = ["who wrote how much", "who wrote", "wrote"].find((form) => stage.measure(form, { weight: 620 }) <= list.w - names) ?? "wrote";
    stage.text(title, list.x + names, list.y - 3, { weight: 620, alpha });
    rows.forEach((h, row) => {
      const follows = h === this.place.index;
      const y = list.y + pitch * (row + 0.5) + 3;
      const style = { size: 11, weight: follows ? 700 : 400 };
      stage.text(nameOf(h), list.x + names - 8, y + 4 * scale, { ...style, align: "right", colour: follows ? colours.accent : colours.ink2, alpha });
      const end = bar(h, list.x + names, y, room, pitch * 0.6);
      stage.text(share(parts[h]!), end + 6, y + 4 * scale, { ...style, alpha: up(h) });
      spot({ x: list.x, y: y - pitch / 2, w: list.w, h: pitch }, h);
    });
  }

  /** Sum, stream before (and feed-forward) slide together. */
  #drawSum(stage: Stage, layout: Layout, t: number): void {
    const { colours, tall, scale } = stage;
    const { beside } = this.looks;
    const [before, after, sum] = [this.looks.before!, this.#after!, this.#sums.at(-1)!];
    const block = (values: Float32Array) => stage.block(values, this.#parts, this.#peaks.stream);
    const arrived = ease(t, 13.4, 14);
    const added = ease(t, 14.4, 15.4);
    const m = before.length;
    const under = (words: string[], rect: Rect, alpha: number) => {
      const text = words.find((form) => stage.measure(form, { size: 11 }) <= rect.w + 30);
      if (!tall && text) stage.text(text, rect.x, rect.y + rect.h + 17 * scale, { size: 11, colour: colours.ink3, alpha });
    };
    const at = mixRect(tall ? layout.before : layout.source, layout.before, arrived);
    stage.picture(block(before), at, arrived);
    stage.frame(at, colours.line2, 1, arrived);
    this.#title(stage, layout.before, this.#beforeForms, arrived, colours.ink);
    under([`${m}`], layout.before, arrived);
    this.#blockSpot(stage, layout.before, before, (i) => `${this.#me} before, number ${i + 1} of ${m}: ${decimal(before[i]!, 4)}`);
    if (beside) {
      stage.picture(block(beside), layout.beside, arrived);
      stage.frame(layout.beside, colours.line2, 1, arrived);
      this.#title(stage, layout.beside, ["+ feed-forward", "+ ff"], arrived, colours.ink);
      this.#blockSpot(stage, layout.beside, beside, (i) => `what the feed-forward adds, number ${i + 1} of ${m}: ${decimal(beside[i]!, 4)}`);
    }
    if (added === 0) return;
    if (added < 1) {
      stage.picture(block(sum), mixRect(layout.sum, layout.after, added), 0.2 + 0.7 * (1 - added));
      if (beside) stage.picture(block(beside), mixRect(layout.beside, layout.after, added), 0.6);
      stage.picture(block(before), mixRect(layout.before, layout.after, added), 0.8);
    } else {
      stage.picture(block(after), layout.after);
      stage.frame(layout.after, colours.accent, 2);
      this.#blockSpot(stage, layout.after, after, (i) => {
        const also = beside ? ` + ${decimal(beside[i]!, 4)}` : "";
        return `number ${i + 1} of ${m}\n${decimal(before[i]!, 4)} + ${decimal(sum[i]!, 4)}${also} = ${decimal(after[i]!, 4)}`;
      });
    }
    this.#title(stage, layout.after, this.#afterForms, added, colours.accent);
    under(this.header.norm === "post" ? [`${m}, then a layer norm`, "then a layer norm", "then a norm"] : [`${m}`], layout.after, added);
  }

  // ------------------------------------------------------------------ places
  #columns(stage: Stage): Layout {
    const { width: W, height: H, scale: b } = stage;
    const n = this.#heads;
    const f = this.looks.out?.[0]?.length ?? this.looks.q[0]!.length;
    const keys = this.keys.length;
    const rows = Math.ceil(n / IN_A_ROW);
    const inRow = Math.ceil(n / rows);
    const [roomy, small] = [H >= 640, H < 500];
    const gutter = (W < 1000 ? 84 : 104) * b;
    const cell = (W - gutter - 20) / inRow;
    const inner = cell - Math.min(22, cell * 0.22);
    const twoLines = rows === 1 && cell < 98 * b;
    const grouped = this.header.num_kv_heads < n && rows === 1;
    // Down the page: for each row of heads a query, bars, a word, packed values; below them the blocks.
    const top = 34 * b;
    const fixed = (roomy ? 366 : small ? 232 : 276) + (b - 1) * 240 + (twoLines ? 14 : 0) + (grouped ? 14 : 0);
    const { strip, group } = stripLength(rows === 1 ? (H - fixed) / 2 : (H * 0.56) / rows - 70 * b, f);
    const rowGap = 26 * b;
    const queryH = rows === 1 ? (roomy ? 84 : small ? 36 : 60) : Math.max(10, 24 / rows);
    const barH = rows === 1 ? (roomy ? 84 * b : small ? 36 : 50) : Math.max(14, 64 / rows);
    const wordH = rows === 1 ? (twoLines ? 31 : 17) * b : 4;
    const barDy = queryH + (grouped ? 30 : 18) * b * (rows === 1 ? 1 : 0.5);
    const mosaicDy = barDy + barH + wordH + (rows === 1 ? 13 * b : 4);
    const rowH = mosaicDy + strip + rowGap;
    const row = (h: number) => top + Math.floor(h / inRow) * rowH;
    const x = (h: number) => gutter + cell * (h % inRow);
    const blocksY = top + rows * rowH - rowGap + (roomy ? 52 * b : 36);
    const room = Math.max(48, H - blocksY - 26 * b);
    const joined = stripLength(rows === 1 ? Math.min(room, strip) : Math.min(room, 128 * b), f);
    const blockH = Math.min(joined.strip, room);
    // Across: joined vector, projection, sum, stream before (and feed-forward), stream after, who wrote how much.
    const blocks = this.looks.beside ? 4 : 3;
    const [projection, gap, listW] = [W < 1000 ? 64 : 118 * b, W < 1000 ? 30 : 46 * b, W < 1000 ? 118 : 210 * b];
    const blockW = Math.min(160 * b, W * 0.115, (W - gutter - 28 - projection - (blocks - 1) * gap - 50 * b - listW) / (1.35 + blocks));
    const joinedRect = { x: gutter, y: blocksY, w: blockW * 1.35, h: blockH };
    const sum = { x: joinedRect.x + joinedRect.w + projection, y: blocksY, w: blockW, h: blockH };
    const after = (k: number) => ({ ...sum, x: sum.x + k * (blockW + gap) });
    const last = after(blocks - 1);
    const listX = last.x + blockW + 50 * b;
    const queryW = Math.min(14, inner * 0.4);
    const outputW = Math.min(18, inner * 0.5);
    return {
      gutter, group, twoLines, joinedGroup: joined.group, names: cell >= 26 * b, labels: rows === 1,
      source: { x: MARGIN, y: top, w: gutter - 18 - MARGIN, h: rows === 1 ? queryH : 48 },
      head: (h) => ({ x: x(h) + inner / 2, y: row(h) - 8, align: "center", box: { x: x(h) + inner / 2 - Math.min(18, inner / 2), y: row(h) - 20 * b, w: Math.min(36, inner), h: 17 * b } }),
      query: (h) => ({ x: x(h) + inner / 2 - queryW / 2, y: row(h), w: queryW, h: queryH }),
      zone: (h) => ({ x: x(h), y: row(h) + barDy, w: inner, h: barH + 1 }),
      bar: (h, j, weight) => ({ x: x(h) + (j * inner) / keys, y: row(h) + barDy + barH * (1 - weight), w: Math.max(0.8, inner / keys - 1), h: barH * weight }),
      top: (h) => ({ x: x(h) + inner / 2, y: row(h) + barDy + barH + 17 * b }),
      whole: (h) => ({ x: x(h), y: row(h) + mosaicDy, w: inner, h: strip }),
      part: (h, begin, weight) => ({ x: x(h) + begin * inner, y: row(h) + mosaicDy, w: weight * inner, h: strip }),
      output: (h) => ({ x: x(h) + inner / 2 - outputW / 2, y: row(h) + mosaicDy, w: outputW, h: strip }),
      joined: joinedRect,
      slot: (h) => ({ ...joinedRect, x: joinedRect.x + (h * joinedRect.w) / n, w: joinedRect.w / n }),
      sum, before: after(1), beside: after(2), after: last,
      list: { x: listX, y: blocksY - 6, w: Math.max(90, W - 24 - listX), h: Math.max(blockH + 12, Math.min(H - blocksY - 2, 16 * b * (n + 1))) },
      // Beside several rows the second is named: the stream's block stands at the first.
      lanes: rows === 1
        ? this.#lanes({ query: top + queryH + 15 * b, look: row(0) + barDy + barH / 2 - (small ? 2 : 5), answer: row(0) + mosaicDy + strip / 2 - 13 }, true, b > 1)
        : this.#lanes({ query: row(inRow) + queryH / 2 + 3, look: row(inRow) + barDy + barH / 2 + 6, answer: row(inRow) + mosaicDy + strip / 2 + 4 }, rowH > 66 * b),
    };
  }

  /** Names of the lanes, and the shapes of all tokens: what each lane of the diagram holds. */
  #lanes(y: { query: number; look: number; answer: number }, fits: boolean, large = false): Layout["lanes"] {
    const { place, looks } = this;
    const shapes = this.#heads <= IN_A_ROW;
    const row = (width: number) => (shapes ? [...(place.numQueries > 1 && !large ? ["one row of"] : []), `${place.numQueries} × ${width}`] : []);
    const lanes = [
      { title: "queries", below: [], y: y.query, from: 0.4 },
      { title: "looks", below: row(place.numKeys), y: y.look, from: 1.7 },
    ];
    if (looks.out) lanes.push({ title: "answers", below: row(looks.out[0]!.length), y: y.answer, from: 4.2 });
    return fits ? lanes : [];
  }

  #rows(stage: Stage): Layout {
    const { width: W, height: H } = stage;
    const n = this.#heads;
    const keys = this.keys.length;
    const f = this.looks.out?.[0]?.length ?? this.looks.q[0]!.length;
    const wide = W > 560;
    const pitch = Math.max(7, Math.min(wide ? 40 : 32, (H - 132) / n));
    const { strip, group } = stripLength(wide ? 192 : 96, f);
    const grouped = this.header.num_kv_heads < n ? 8 : 0;
    const margin = marginOf(stage);
    const [top, left] = [16, margin + 26 + grouped];
    const bars = wide ? 200 : 92;
    const row = (h: number) => top + pitch * (h + 0.5);
    const right = W - margin - strip;
    const count = this.looks.beside ? 5 : 4;
    const blocksY = top + pitch * n + 26;
    const blockH = Math.max(30, Math.min(wide ? 150 : 90, H - blocksY - 8));
    const blockW = Math.min(wide ? 150 : 78, (W - 2 * margin - (count - 1) * 10) / count);
    const gap = (W - 2 * margin - count * blockW) / (count - 1);
    const block = (k: number) => ({ x: margin + k * (blockW + gap), y: blocksY, w: blockW, h: blockH });
    const joined = block(0);
    const thin = Math.min(8, pitch * 0.5);
    return {
      gutter: left, group, joinedGroup: group, twoLines: false, names: pitch >= 11, labels: pitch >= 11,
      source: { x: left, y: top + Math.min(pitch * 5, H * 0.3), w: bars, h: 48 },
      head: (h) => ({ x: left - 6, y: row(h) + 4, align: "right", box: { x: left - 34, y: row(h) - pitch / 2, w: 30, h: pitch } }),
      query: (h) => ({ x: left, y: row(h) - thin / 2, w: bars, h: thin }),
      zone: (h) => ({ x: left, y: row(h) - pitch * 0.44, w: bars, h: pitch * 0.8 + 1 }),
      bar: (h, j, weight) => ({ x: left + (j * bars) / keys, y: row(h) + pitch * 0.36 - pitch * 0.8 * weight, w: Math.max(0.8, bars / keys - 1), h: pitch * 0.8 * weight }),
      top: (h) => ({ x: left + bars + 10, y: row(h) + 4 }),
      whole: (h) => ({ x: right, y: row(h) - pitch * 0.36, w: strip, h: pitch * 0.72 }),
      part: (h, begin, weight) => ({ x: right, y: row(h) - pitch * 0.36 + begin * pitch * 0.72, w: strip, h: weight * pitch * 0.72 }),
      output: (h) => ({ x: right, y: row(h) - thin / 2, w: strip, h: thin }),
      joined,
      slot: (h) => ({ ...joined, y: joined.y + (h * joined.h) / n, h: joined.h / n }),
      sum: block(1), before: block(2), beside: block(3), after: block(count - 1), list: null, lanes: [],
    };
  }
}

const SUM = ["what the layer adds", "the layer adds", "sum"];

/** A way from one point to another that leaves upwards: by way of a height. */
function arc(from: { x: number; y: number }, to: { x: number; y: number }, height: number): { x: number; y: number }[] {
  return Array.from({ length: 17 }, (_, i) => {
    const p = i / 16;
    const u = 1 - p;
    const [a, c] = [{ x: mix(from.x, to.x, 0.3), y: height }, { x: mix(from.x, to.x, 0.7), y: height }];
    return {
      x: u * u * u * from.x + 3 * u * u * p * a.x + 3 * u * p * p * c.x + p * p * p * to.x,
      y: u * u * u * from.y + 3 * u * u * p * a.y + 3 * u * p * p * c.y + p * p * p * to.y,
    };
  });
}
