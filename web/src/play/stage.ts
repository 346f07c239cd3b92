// The canvas that scenes draw on: text, rectangles, ribbons and pictures in CSS pixels, in the page's colours. Scenes draw with
// these methods alone, so that a stage of another kind (export.ts) can draw the same scene as a vector picture.
import { cssOf, inkOn, paint, ramp, step, stepBoth } from "../lib/draw/colour";

export interface Rect {
  x: number;
  y: number;
  w: number;
  h: number;
}

export interface Point {
  x: number;
  y: number;
}

export interface Colours {
  paper: string;
  paper2: string;
  raised: string;
  ink: string;
  ink2: string;
  ink3: string;
  line: string;
  line2: string;
  accent: string;
  accentSoft: string;
  onAccent: string;
}

export interface TextStyle {
  /** CSS pixels before the presenter's scale; 12 where it is not given. */
  size?: number;
  /** In the presenter's mode, the smallest size before the scale; READABLE where it is not given. */
  least?: number;
  weight?: number;
  mono?: boolean;
  align?: "left" | "center" | "right";
  colour?: string;
  alpha?: number;
}

/** What a pointer reads at a rectangle, and what a click there does. */
export interface Spot {
  rect: Rect;
  words: (x: number, y: number) => string;
  act?: () => void;
}

/** A bitmap that is stretched unsmoothed. */
export type Picture = HTMLCanvasElement;

const READABLE = 12.5; // CSS pixels before the presenter's scale: 20 on a screen of 1440 x 900
const WIDE = 560; // CSS pixels of a tall stage from which on it has the margins of the headline above it

/** The margin at the sides of a tall stage, in CSS pixels. */
export function marginOf({ width }: { width: number }): number {
  return width > WIDE ? 32 : 12;
}

const TALL = 700; // CSS pixels of width under which a scene is turned by a quarter

export class Stage {
  width = 0;
  height = 0;
  /** Type in the presenter's mode is larger by this factor; 1 otherwise. */
  scale = 1;
  dark = false;
  colours: Colours = NO_COLOURS;
  /** Of this frame, the one on top last. */
  spots: Spot[] = [];
  readonly context: CanvasRenderingContext2D;
  #sans = "sans-serif";
  #mono = "monospace";
  #pixels = 1;
  #pictures = new WeakMap<ArrayLike<number>, Map<string, Picture>>();

  /** `page`: where colours and fonts are read, for a canvas that is in no page itself. */
  constructor(
    readonly canvas: HTMLCanvasElement,
    private readonly page: Element = canvas,
  ) {
    this.context = canvas.getContext("2d")!;
  }

  /** Whether the stage is too narrow for columns of words: rows then lie under each other. */
  get tall(): boolean {
    return this.width < TALL;
  }

  /** Takes size, colours and fonts of the page. Pictures are made anew where the theme changes. */
  fit(width: number, height: number, dark: boolean, scale = 1, pixels = globalThis.devicePixelRatio || 1): void {
    if (dark !== this.dark) this.#pictures = new WeakMap();
    const style = getComputedStyle(this.page);
    const read = (name: string) => style.getPropertyValue(`--${name}`).trim();
    this.colours = {
      paper: read("paper"), paper2: read("paper-2"), raised: read("raised"), ink: read("ink"), ink2: read("ink-2"), ink3: read("ink-3"),
      line: read("line"), line2: read("line-2"), accent: read("accent"), accentSoft: read("accent-soft"), onAccent: read("on-accent"),
    };
    this.#sans = read("sans") || this.#sans;
    this.#mono = read("mono") || this.#mono;
    Object.assign(this, { width, height, dark, scale });
    this.#pixels = Math.min(3, pixels);
    const [across, down] = [Math.round(width * this.#pixels), Math.round(height * this.#pixels)];
    if (this.canvas.width !== across) this.canvas.width = across;
    if (this.canvas.height !== down) this.canvas.height = down;
  }

  /** An empty stage; what it showed before leaves no trace. */
  clear(): void {
    this.spots = [];
    this.context.setTransform(this.#pixels, 0, 0, this.#pixels, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.globalAlpha = 1;
    this.context.clearRect(0, 0, this.width, this.height);
  }

  // ------------------------------------------------------------------ colours
  /** The colour of a share from 0 to 1, on the square-root scale of maps. */
  sequential(share: number): string {
    return cssOf(ramp(this.dark), step(share, 1, "root"));
  }

  /** Black or white, whichever reads better on the colour of a share. */
  inkOn(share: number): string {
    return inkOn(ramp(this.dark), step(share, 1, "root"));
  }

  /** The colour of a number from -peak to peak, on the square-root scale. */
  signed(value: number, peak: number): string {
    return cssOf(ramp(this.dark, "diverging"), stepBoth(value, peak, "root"));
  }

  // ------------------------------------------------------------------ drawing
  font({ size = 12, least = READABLE, weight = 400, mono = false }: TextStyle): string {
    const pixels = (this.scale > 1 ? Math.max(size, least) : size) * this.scale;
    return `${weight} ${Math.round(pixels * 2) / 2}px ${mono ? this.#mono : this.#sans}`;
  }

  /** The size at which a text of this size is drawn, in CSS pixels before the presenter's scale. */
  sized(size: number): number {
    return this.scale > 1 ? Math.max(size, READABLE) : size;
  }

  /** The width of a text in CSS pixels. */
  measure(words: string, style: TextStyle = {}): number {
    this.context.font = this.font(style);
    return this.context.measureText(words).width;
  }

  /** A text, cut to its room with "…". */
  fitted(words: string, room: number, style: TextStyle = {}): string {
    let text = words;
    while (text.length > 2 && this.measure(text, style) > room) text = `${text.slice(0, -2)}…`;
    return text;
  }

  /** A line of text whose baseline is at y. */
  text(words: string, x: number, y: number, style: TextStyle = {}): void {
    const { context } = this;
    const alpha = style.alpha ?? 1;
    if (alpha <= 0.01 || !words) return;
    context.globalAlpha = alpha;
    context.font = this.font(style);
    context.textAlign = style.align ?? "left";
    context.fillStyle = style.colour ?? this.colours.ink;
    context.fillText(words, x, y);
    context.globalAlpha = 1;
  }

  rect({ x, y, w, h }: Rect, colour: string, alpha = 1, radius = 0): void {
    if (alpha <= 0.003) return;
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    if (radius) {
      context.beginPath();
      context.roundRect(x, y, w, h, radius);
      context.fill();
    } else context.fillRect(x, y, w, h);
    context.globalAlpha = 1;
  }

  /** A frame around a rectangle, half a pixel outside it; dashed where something is still to come. */
  frame({ x, y, w, h }: Rect, colour: string, width = 1, alpha = 1, dashed = false): void {
    if (alpha <= 0.01) return;
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = width;
    if (dashed) context.setLineDash([3, 4]);
    context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
    if (dashed) context.setLineDash([]);
    context.globalAlpha = 1;
  }

  /** A line through points. */
  line(points: readonly Point[], colour: string, width = 1, alpha = 1, dashed = false): void {
    if (alpha <= 0.01 || points.length < 2) return;
    const { context } = this;
    context.globalAlpha = alpha;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.lineJoin = "round";
    if (dashed) context.setLineDash([3, 4]);
    context.beginPath();
    context.moveTo(points[0]!.x, points[0]!.y);
    for (let i = 1; i < points.length; i++) context.lineTo(points[i]!.x, points[i]!.y);
    context.stroke();
    if (dashed) context.setLineDash([]);
    context.globalAlpha = 1;
  }

  dot({ x, y }: Point, radius: number, colour: string, alpha = 1): void {
    if (alpha <= 0.01) return;
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
    context.globalAlpha = 1;
  }

  /** A band with curved sides, from the right edge of `a` to the left edge of `b`; `down`: from the bottom edge to the top edge. */
  ribbon(a: Rect, b: Rect, colour: string, alpha = 1, down = this.tall): void {
    if (alpha <= 0.003) return;
    const { context } = this;
    context.globalAlpha = alpha;
    context.fillStyle = colour;
    context.beginPath();
    for (const [command, ...numbers] of ribbonPath(a, b, down)) {
      if (command === "M") context.moveTo(numbers[0]!, numbers[1]!);
      else if (command === "L") context.lineTo(numbers[0]!, numbers[1]!);
      else context.bezierCurveTo(numbers[0]!, numbers[1]!, numbers[2]!, numbers[3]!, numbers[4]!, numbers[5]!);
    }
    context.fill();
    context.globalAlpha = 1;
  }

  /** Slanted lines over a rectangle: what cannot be seen. */
  hatch(rect: Rect, colour: string, alpha = 1, gap = 6): void {
    this.clip(rect, () => {
      for (let x = rect.x - rect.h; x < rect.x + rect.w; x += gap) {
        this.line([{ x, y: rect.y + rect.h }, { x: x + rect.h, y: rect.y }], colour, 1, alpha);
      }
    });
  }

  picture(picture: Picture, { x, y, w, h }: Rect, alpha = 1): void {
    if (alpha <= 0.003 || w < 0.2 || h < 0.2) return;
    this.context.globalAlpha = alpha;
    this.context.drawImage(picture, x, y, w, h);
    this.context.globalAlpha = 1;
  }

  /** What `draw` draws, inside the rectangle alone. */
  clip({ x, y, w, h }: Rect, draw: () => void): void {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, w, h);
    this.context.clip();
    draw();
    this.context.restore();
  }

  // ------------------------------------------------------------------ numbers as pictures
  /** One number a cell, row by row, from -peak to peak; NaN is a key that cannot be seen. Made once for an array and a peak. */
  grid(values: Float32Array, rows: number, columns: number, peak: number, signed = true): Picture {
    return this.#once(values, `${rows}.${columns}.${peak}.${signed}`, () => {
      const cells = new Float32Array(rows * columns).fill(NaN);
      cells.set(values.subarray(0, cells.length));
      return picture(paint(cells, peak, ramp(this.dark, signed ? "diverging" : "sequential"), "root", signed), columns);
    });
  }

  /** A strip of numbers: down the page on a wide stage, along it on a tall one (`along` decides otherwise). `group`: each cell is the
      mean of so many numbers. */
  strip(values: Float32Array, peak: number, along = this.tall, group = 1): Picture {
    return this.#once(values, `strip.${along}.${group}.${peak}`, () => {
      const cells = group === 1 ? values : means(values, group);
      const bytes = paint(cells, peak, ramp(this.dark, "diverging"), "root", true);
      return picture(bytes, along ? cells.length : 1);
    });
  }

  /** A long vector in `parts` strips side by side (a column each on a wide stage, a row each on a tall one). */
  block(values: Float32Array, parts: number, peak: number, tall = this.tall): Picture {
    return this.#once(values, `block.${tall}.${parts}.${peak}`, () => {
      const length = Math.ceil(values.length / parts);
      const cells = new Float32Array(parts * length).fill(NaN);
      for (let i = 0; i < values.length; i++) {
        const [part, place] = [Math.floor(i / length), i % length];
        cells[tall ? part * length + place : place * parts + part] = values[i]!;
      }
      return picture(paint(cells, peak, ramp(this.dark, "diverging"), "root", true), tall ? length : parts);
    });
  }

  /** The number of `length` numbers that a point of a strip stands for. */
  placeIn(rect: Rect, length: number, x: number, y: number, along = this.tall): number {
    const share = along ? (x - rect.x) / rect.w : (y - rect.y) / rect.h;
    return Math.max(0, Math.min(length - 1, Math.floor(share * length)));
  }

  /** The number of `length` numbers that a point of a block stands for. */
  placeInBlock(rect: Rect, length: number, parts: number, x: number, y: number, tall = this.tall): number {
    const size = Math.ceil(length / parts);
    const part = this.placeIn(rect, parts, x, y, !tall);
    return Math.min(length - 1, part * size + this.placeIn(rect, size, x, y, tall));
  }

  // ------------------------------------------------------------------ pointing
  /** What a pointer reads at a rectangle, and what a click there does. */
  spot(rect: Rect, words: string | Spot["words"], act?: () => void): void {
    this.spots.push({ rect, words: typeof words === "string" ? () => words : words, act });
  }

  /** The spot on top at a point. */
  spotAt(x: number, y: number): Spot | undefined {
    return this.spots.findLast(({ rect }) => x >= rect.x - 1 && x <= rect.x + rect.w + 1 && y >= rect.y - 1 && y <= rect.y + rect.h + 1);
  }

  #once(values: ArrayLike<number>, key: string, make: () => Picture): Picture {
    let made = this.#pictures.get(values);
    if (!made) this.#pictures.set(values, (made = new Map()));
    let entry = made.get(key);
    if (!entry) made.set(key, (entry = make()));
    return entry;
  }
}

const NO_COLOURS: Colours = {
  paper: "", paper2: "", raised: "", ink: "", ink2: "", ink3: "", line: "", line2: "", accent: "", accentSoft: "", onAccent: "",
};

/** The path of a ribbon as commands: M x y, C and its six numbers, L x y. */
export function ribbonPath(a: Rect, b: Rect, down: boolean): ["M" | "L" | "C", ...number[]][] {
  if (down) {
    const [from, to] = [a.y + a.h, b.y];
    const middle = (from + to) / 2;
    return [
      ["M", a.x, from], ["C", a.x, middle, b.x, middle, b.x, to],
      ["L", b.x + b.w, to], ["C", b.x + b.w, middle, a.x + a.w, middle, a.x + a.w, from],
    ];
  }
  const [from, to] = [a.x + a.w, b.x];
  const middle = (from + to) / 2;
  return [
    ["M", from, a.y], ["C", middle, a.y, middle, b.y, to, b.y],
    ["L", to, b.y + b.h], ["C", middle, b.y + b.h, middle, a.y + a.h, from, a.y + a.h],
  ];
}

/** Means of `group` neighbours each. */
function means(values: Float32Array, group: number): Float32Array {
  return Float32Array.from({ length: Math.ceil(values.length / group) }, (_, cell) => {
    const part = values.subarray(cell * group, (cell + 1) * group);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}

function picture(bytes: Uint8ClampedArray<ArrayBuffer>, columns: number): Picture {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = bytes.length / 4 / columns;
  canvas.getContext("2d")!.putImageData(new ImageData(bytes, columns), 0, 0);
  return canvas;
}
