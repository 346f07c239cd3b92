// Scene 6: a head is born. The checkpoints of a stored training in turn: the head's map at the left, at the right losses and scores up
// to the step. A point of a curve is a place to jump to.
import type { CellResult, Panel } from "../lib/api/types";
import type { Chapter, Scene, Table, Words } from "./scene";
import type { Rect, Stage } from "./stage";
import { ease, linear, mix } from "./time";

const FIRST = 0.4; // seconds until the second checkpoint begins to come
const EACH = 0.5; // seconds of each
const REST = 1; // seconds that the last one is shown
const NAMES = ["Nothing", "Something", "Born"];

/** What a lesson's cell gives of a training: maps that are its moments, curves over it, and a sentence for each moment. */
export type Training = Pick<CellResult, "shown" | "chart" | "frames" | "headlines" | "marked" | "born">;

export interface TrainingScene extends Scene {
  /** The index of the moment whose numbers are said at t. */
  momentAt(t: number): number;
}

/** Plays a training. `jump`: a click on a curve goes to the second of that step. */
export function birth(training: Training, jump?: (t: number) => void): TrainingScene {
  return new Birth(training, jump);
}

interface Layout {
  map: Rect;
  cell: number;
  charts: Rect[];
}

class Birth implements TrainingScene {
  readonly id = "birth";
  readonly name = "Birth of a head";
  readonly chapters: readonly Chapter[];
  readonly end: number;
  readonly #maps: Float32Array[];
  readonly #tokens: readonly string[];
  /** The step at the right end of the curves. */
  readonly #last: number;

  constructor(
    readonly training: Training,
    readonly jump?: (t: number) => void,
  ) {
    const { shown, frames, headlines } = training;
    this.#maps = shown.map(({ values }) => Float32Array.from(values.flat(), (value) => value ?? NaN));
    this.#tokens = shown[0]?.row_labels ?? [];
    this.#last = frames.at(-1) ?? 1;
    this.end = this.secondOf(frames.length - 1) + REST;
    // A chapter is a run of moments of which the same is said.
    const said = frames.map((_, i) => (headlines[i] ?? "").replace(/\d+/g, ""));
    const begins = said.flatMap((words, i) => (i === 0 || words !== said[i - 1] ? [i] : []));
    this.chapters = begins.map((i, n) => ({ name: NAMES[n] ?? `Step ${frames[i]}`, at: i === 0 ? 0 : this.secondOf(i) - EACH / 2 }));
  }

  /** The second at which a checkpoint is all there. */
  secondOf(index: number): number {
    return FIRST + EACH * index;
  }

  /** The place among the checkpoints at t: 3.5 is half-way from the fourth to the fifth. */
  #place(t: number): number {
    return Math.max(0, Math.min(this.training.frames.length - 1, (t - FIRST) / EACH));
  }

  momentAt(t: number): number {
    return Math.round(this.#place(t));
  }

  words(t: number): Words {
    const { headlines, chart, frames } = this.training;
    const index = this.momentAt(t);
    const shares = chart.filter(({ top }) => top !== null);
    const figures = [...shares, ...chart.filter(({ top }) => top === null)].map((panel) => {
      const curves = panel.top === null ? panel.curves : panel.curves.filter(({ bold }) => bold);
      const values = curves.map((curve) => `${curve.name} ${inWords(panel, valueAt(curve, frames[index]!))}`).join(", ");
      // "layer 1: weight on the token before" is "L1H1 98 % on the token before".
      const on = panel.top === null ? null : / (on .+)$/.exec(panel.title)?.[1];
      return on ? `${values} ${on}` : `${panel.title}: ${values}`;
    });
    return { headline: headlines[index] ?? "", figures: figures.join(" · ") };
  }

  table(): Table {
    const { chart, frames } = this.training;
    return {
      caption: "Checkpoints of the training",
      head: ["step", ...chart.flatMap(({ title, curves }) => curves.map(({ name }) => `${title}: ${name}`))],
      rows: frames.map((step) => [`${step}`, ...chart.flatMap(({ curves }) => curves.map((curve) => valueAt(curve, step).toFixed(4)))]),
    };
  }

  // ------------------------------------------------------------------ drawing
  draw(stage: Stage, t: number): void {
    const layout = this.#layoutOn(stage);
    this.#drawMap(stage, layout, t);
    this.#drawCurves(stage, layout, t);
  }

  #layoutOn({ width, height, tall, scale }: Stage): Layout {
    const count = this.training.chart.length;
    const letters = 26 * scale;
    const n = Math.max(1, this.#tokens.length);
    if (tall) {
      const side = Math.min(width - letters - 24, height * 0.5 - letters);
      const map = { x: (width - side + letters) / 2, y: letters, w: side, h: side };
      const [top, bottom] = [map.y + side + 12, height - 22];
      const each = (bottom - top) / count;
      const charts = Array.from({ length: count }, (_, i) => ({ x: 48, y: top + i * each + 18, w: width - 48 - 74, h: each - 26 }));
      return { map, cell: side / n, charts };
    }
    const side = Math.min(height - letters - 16, width * 0.44);
    const map = { x: 24 + letters, y: letters, w: side, h: side };
    const left = map.x + side + 84 * scale;
    const [top, bottom] = [8, height - 34 * scale];
    const each = (bottom - top) / count;
    const charts = Array.from({ length: count }, (_, i) => ({ x: left, y: top + i * each + 22 * scale, w: width - left - 100 * scale, h: each - 36 * scale }));
    return { map, cell: side / n, charts };
  }

  /** The map of the checkpoint, the next one fading in; the cells that the finding is about, once they stand out. */
  #drawMap(stage: Stage, { map, cell }: Layout, t: number): void {
    const { colours, scale } = stage;
    const { frames, marked, born } = this.training;
    const n = this.#tokens.length;
    const place = this.#place(t);
    const low = Math.min(Math.floor(place), Math.max(0, frames.length - 2));
    const picture = (index: number, alpha: number) => this.#maps[index] && stage.picture(stage.grid(this.#maps[index], n, n, 1, false), map, alpha);
    picture(low, 1);
    picture(low + 1, ease(place - low, 0.25, 0.75));
    stage.frame(map, colours.line2);
    const size = Math.max(8, Math.min(12, 0.78 * cell));
    const every = cell >= 11 * scale ? 1 : 2;
    this.#tokens.forEach((token, i) => {
      if (i % every) return;
      stage.text(token, map.x - 6, map.y + cell * (i + 0.5) + 0.36 * size, { size, mono: true, align: "right", colour: colours.ink2 });
      stage.text(token, map.x + cell * (i + 0.5), map.y - 7, { size, mono: true, align: "center", colour: colours.ink2 });
    });
    if (born !== null) {
      const from = this.#secondOfStep(born);
      const alpha = 0.85 * ease(t, from - 0.2, from + 0.8);
      for (const [row, column] of marked) stage.frame({ x: map.x + cell * column + 1, y: map.y + cell * row + 1, w: cell - 2, h: cell - 2 }, colours.accent, 1.5, alpha);
    }
    const index = this.momentAt(t);
    stage.spot(map, (x, y) => {
      const at = (offset: number) => Math.max(0, Math.min(n - 1, Math.floor(offset / cell)));
      const [row, column] = [at(y - map.y), at(x - map.x)];
      const value = this.#maps[index]?.[row * n + column] ?? NaN;
      const where = `row ${row + 1}, ${this.#tokens[row]}, at column ${column + 1}, ${this.#tokens[column]}`;
      return Number.isNaN(value) ? `${where}\nlater than the token that looks: not visible` : `${where}: ${value.toFixed(3)}\nstep ${frames[index]}`;
    });
  }

  /** When the training is at a step. */
  #secondOfStep(step: number): number {
    const { frames } = this.training;
    const after = frames.findIndex((frame) => frame >= step);
    if (after <= 0) return this.secondOf(after === 0 ? 0 : frames.length - 1);
    return this.secondOf(after - 1 + linear(step, frames[after - 1]!, frames[after]!));
  }

  #drawCurves(stage: Stage, { charts }: Layout, t: number): void {
    const { colours, scale } = stage;
    const { frames, chart, born } = this.training;
    const place = this.#place(t);
    const low = Math.min(Math.floor(place), Math.max(0, frames.length - 2));
    const step = mix(frames[low]!, frames[low + 1] ?? frames[low]!, place - low);
    chart.forEach((panel, i) => {
      const rect = charts[i]!;
      const top = topOf(panel);
      const xOf = (at: number) => rect.x + (rect.w * at) / this.#last;
      const yOf = (value: number) => rect.y + rect.h * (1 - value / top);
      // A long title begins at the edge of a narrow stage, and is set smaller where its room is too little.
      const room = stage.tall ? stage.width - 24 : stage.width - rect.x - 12;
      const fits = [12, 11, 10, 9].find((size) => stage.measure(panel.title, { size, weight: 620 }) <= room) ?? 9;
      stage.text(panel.title, stage.tall ? 12 : rect.x, rect.y - 8 * scale, { size: fits, weight: 620 });
      stage.line([{ x: rect.x, y: rect.y + rect.h }, { x: rect.x + rect.w, y: rect.y + rect.h }], colours.line2);
      stage.text(panel.top === null ? `${+top.toPrecision(2)}` : "100 %", rect.x - 6, rect.y + 9, { size: 10, align: "right", colour: colours.ink3 });
      if (rect.h > 26) stage.text("0", rect.x - 6, rect.y + rect.h, { size: 10, align: "right", colour: colours.ink3 });
      if (born !== null && step >= born) stage.line([{ x: xOf(born), y: rect.y }, { x: xOf(born), y: rect.y + rect.h }], colours.ink3, 1, ease(step, born, born + 40), true);
      const ends = panel.curves.map((curve) => {
        const colour = curve.bold ? colours.accent : colours.ink3;
        const points = curve.x.flatMap((at, j) => (at <= step ? [{ x: xOf(at), y: yOf(curve.y[j]!) }] : []));
        const end = { x: xOf(step), y: yOf(valueAt(curve, step)) };
        stage.line([...points, end], colour, curve.bold ? 2 : 1.5);
        stage.dot(end, 3, colour);
        return { name: curve.name, colour, bold: curve.bold, x: end.x, y: end.y };
      });
      // Names that would lie on each other are moved apart, within the chart.
      const gap = 13 * scale;
      ends.sort((a, b) => a.y - b.y).forEach((end, j) => (end.y = Math.max(end.y, (ends[j - 1]?.y ?? -Infinity) + gap)));
      const over = Math.max(0, (ends.at(-1)?.y ?? 0) - (rect.y + rect.h - 7));
      ends.forEach(({ name, colour, bold, x, y }) => stage.text(name, x + 7, Math.max(rect.y + 4, y - over) + 4, { size: 11, weight: bold ? 640 : 400, colour }));
      frames.forEach((frame, j) => {
        const [left, right] = [xOf(mix(frames[j - 1] ?? frame, frame, 0.5)), xOf(mix(frame, frames[j + 1] ?? frame, 0.5))];
        const values = panel.curves.map((curve) => `${curve.name} ${inWords(panel, valueAt(curve, frame))}`);
        const act = this.jump && (() => this.jump!(this.secondOf(j)));
        stage.spot({ x: left, y: rect.y, w: right - left, h: rect.h }, [`step ${frame}${act ? ": click to go there" : ""}`, ...values].join("\n"), act);
      });
    });
    const base = charts.at(-1)!;
    const below = base.y + base.h + 14 * scale;
    const style = { size: 11, colour: colours.ink2 };
    stage.text("step 0", base.x, below, style);
    if (born !== null && step >= born) stage.text(`${born}`, base.x + (base.w * born) / this.#last, below, { ...style, align: "center", colour: colours.accent, weight: 640 });
    stage.text(`${this.#last}`, base.x + base.w, below, { ...style, align: "right" });
  }
}

type Curve = Panel["curves"][number];

/** A curve's value at a step; between two that were measured what lies between them. */
function valueAt({ x, y }: Curve, step: number): number {
  const after = x.findIndex((at) => at >= step);
  if (after < 0) return y.at(-1) ?? NaN;
  if (x[after] === step || after === 0) return y[after]!;
  return mix(y[after - 1]!, y[after]!, linear(step, x[after - 1]!, x[after]!));
}

function topOf({ top, curves }: Panel): number {
  return top ?? Math.max(...curves.flatMap(({ y }) => y));
}

/** A share in percent, a loss with two places. */
function inWords({ top }: Panel, value: number): string {
  return top === 1 ? `${Math.round(100 * value)} %` : value.toFixed(2);
}
