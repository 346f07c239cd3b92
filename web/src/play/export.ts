// Saving a scene: a moment of it as a PNG, its stills side by side as one SVG whose text stays text, all of it as a GIF.
import { saveFile, savePng, saveSvg, xml } from "../lib/draw/export";
import { GifWriter } from "./gif";
import { stills, type Scene } from "./scene";
import { marginOf, ribbonPath, Stage, type Picture, type Point, type Rect, type TextStyle } from "./stage";

// CSS pixels above the stage, for headline and figures: a line of each, of which a tall stage has not the width.
const HEAD = 74;
const TALL_HEAD = 112;
const GAP = 24;
const COLUMNS = 2;
const FRAME = 8; // hundredths of a second: what every viewer of GIFs keeps to
const REST = 300; // ... for which the last moment stands

/** A moment with its headline, as the page shows it. */
export async function saveMoment(scene: Scene, stage: Stage, t: number, name: string): Promise<void> {
  await savePng(photographer(stage, 2)(scene, t), name);
}

/** The scene as it plays, from its first moment to its last. `onprogress` hears the share that is written. */
export async function saveGif(scene: Scene, stage: Stage, name: string, onprogress?: (share: number) => void): Promise<void> {
  saveFile(await gifOf(scene, stage, onprogress), "image/gif", name);
}

export async function gifOf(scene: Scene, stage: Stage, onprogress?: (share: number) => void): Promise<Uint8Array<ArrayBuffer>> {
  const take = photographer(stage, 1);
  const pixels = (t: number) => {
    const canvas = take(scene, t);
    return canvas.getContext("2d")!.getImageData(0, 0, canvas.width, canvas.height).data;
  };
  const { width, height } = take(scene, 0);
  const gif = new GifWriter(width, height, stills(scene).map(pixels));
  for (let t = 0; t < scene.end; t += FRAME / 100) {
    gif.add(pixels(t), FRAME);
    onprogress?.(t / scene.end);
    await new Promise((resolve) => setTimeout(resolve)); // the page stays awake
  }
  gif.add(pixels(scene.end), REST);
  return gif.end();
}

/** Draws a moment with its headline on a canvas of its own, always the same one. */
function photographer(stage: Stage, density: number): (scene: Scene, t: number) => HTMLCanvasElement {
  const [copy, whole] = [new Stage(document.createElement("canvas"), stage.canvas), new Stage(document.createElement("canvas"), stage.canvas)];
  copy.fit(stage.width, stage.height, stage.dark, stage.scale, density);
  const head = headOf(stage);
  whole.fit(stage.width, stage.height + head, stage.dark, 1, density);
  return (scene, t) => {
    copy.clear();
    scene.draw(copy, t);
    whole.clear();
    whole.rect({ x: 0, y: 0, w: whole.width, h: whole.height }, whole.colours.paper);
    writeHead(whole, scene, t);
    whole.picture(copy.canvas, { x: 0, y: head, w: stage.width, h: stage.height });
    return whole.canvas;
  };
}

/** Every still with its headline, two in a row. */
export function saveStills(scene: Scene, stage: Stage, name: string): void {
  saveSvg(stillsSvg(scene, stage), name);
}

export function stillsSvg(scene: Scene, stage: Stage): string {
  const moments = stills(scene);
  const [width, height] = [stage.width, stage.height + headOf(stage)];
  const columns = Math.min(COLUMNS, moments.length);
  const rows = Math.ceil(moments.length / columns);
  const drawn = moments.map((t, i) => {
    const svg = new SvgStage(document.createElement("canvas"), stage.canvas);
    svg.fit(stage.width, stage.height, stage.dark, stage.scale, 1);
    writeHead(svg, scene, t);
    svg.elements.push(`<g transform="translate(0 ${headOf(stage)})">`);
    scene.draw(svg, t);
    svg.elements.push("</g>");
    const [x, y] = [(i % columns) * (width + GAP), Math.floor(i / columns) * (height + GAP)];
    return `<svg x="${x}" y="${y}" width="${width}" height="${height}">${svg.elements.join("")}</svg>`;
  });
  const [w, h] = [columns * (width + GAP) - GAP, rows * (height + GAP) - GAP];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}"><title>${xml(scene.name)}</title>` +
    `<rect width="${w}" height="${h}" fill="${stage.colours.paper}"/>${drawn.join("")}</svg>`;
}

const headOf = (stage: Stage) => (stage.tall ? TALL_HEAD : HEAD);

/** Headline and figures. Each is set in the largest of its sizes in which it fits its lines. */
function writeHead(stage: Stage, scene: Scene, t: number): void {
  const { headline, figures } = scene.words(t);
  const margin = marginOf(stage);
  const room = stage.width - 2 * margin;
  const write = (words: string, [size, least]: [number, number], most: number, y: number, style: TextStyle) => {
    let lines = wrapped(stage, words, room, { ...style, size });
    for (; size > least && lines.length > most; lines = wrapped(stage, words, room, { ...style, size })) size -= 0.5;
    lines.forEach((line, i) => stage.text(line, margin, y + 1.3 * size * i, { ...style, size }));
  };
  const figure = { mono: true, colour: stage.colours.ink2 };
  if (stage.tall) {
    write(headline, [16, 11], 3, 24, { weight: 620 });
    write(figures, [11, 8], 2, 88, figure);
  } else {
    write(headline, [22, 9], 1, 36, { weight: 620 });
    write(figures, [13, 7], 1, 59, figure);
  }
}

/** A text in lines of at most `room` pixels; a number keeps its "%". */
function wrapped(stage: Stage, words: string, room: number, style: TextStyle): string[] {
  const lines: string[] = [];
  for (const word of words.split(/ (?!%)/)) {
    const longer = lines.length ? `${lines.at(-1)} ${word}` : word;
    if (lines.length && stage.measure(longer, style) <= room) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

const number = (value: number) => String(+value.toFixed(2));

/** A stage that writes SVG elements instead of pixels. */
class SvgStage extends Stage {
  readonly elements: string[] = [];
  #clips = 0;
  static #drawn = 0;

  override clear(): void {
    this.spots = [];
    this.elements.length = 0;
  }

  override text(words: string, x: number, y: number, style: TextStyle = {}): void {
    const { alpha = 1, align = "left", colour = this.colours.ink, weight = 400 } = style;
    if (alpha <= 0.01 || !words) return;
    const [, size, family] = /([\d.]+)px (.*)$/.exec(this.font(style))!;
    const anchor = { left: "start", center: "middle", right: "end" }[align];
    this.elements.push(`<text x="${number(x)}" y="${number(y)}" font-family="${xml(family!)}" font-size="${size}" font-weight="${weight}" text-anchor="${anchor}" fill="${colour}"${opacity(alpha)}>${xml(words)}</text>`);
  }

  override rect(rect: Rect, colour: string, alpha = 1, radius = 0): void {
    if (alpha <= 0.003 || rect.w <= 0 || rect.h <= 0) return;
    this.elements.push(`<rect ${box(rect)}${radius ? ` rx="${radius}"` : ""} fill="${colour}"${opacity(alpha)}/>`);
  }

  override frame({ x, y, w, h }: Rect, colour: string, width = 1, alpha = 1, dashed = false): void {
    if (alpha <= 0.01) return;
    this.elements.push(`<rect ${box({ x: x - 0.5, y: y - 0.5, w: w + 1, h: h + 1 })} fill="none" stroke="${colour}" stroke-width="${width}"${dash(dashed)}${opacity(alpha)}/>`);
  }

  override line(points: readonly Point[], colour: string, width = 1, alpha = 1, dashed = false): void {
    if (alpha <= 0.01 || points.length < 2) return;
    const path = points.map(({ x, y }) => `${number(x)} ${number(y)}`).join("L");
    this.elements.push(`<path d="M${path}" fill="none" stroke="${colour}" stroke-width="${width}" stroke-linejoin="round"${dash(dashed)}${opacity(alpha)}/>`);
  }

  override dot({ x, y }: Point, radius: number, colour: string, alpha = 1): void {
    if (alpha <= 0.01) return;
    this.elements.push(`<circle cx="${number(x)}" cy="${number(y)}" r="${radius}" fill="${colour}"${opacity(alpha)}/>`);
  }

  override ribbon(a: Rect, b: Rect, colour: string, alpha = 1, down = this.tall): void {
    if (alpha <= 0.003) return;
    const path = ribbonPath(a, b, down).map(([command, ...numbers]) => command + numbers.map(number).join(" ")).join("");
    this.elements.push(`<path d="${path}Z" fill="${colour}"${opacity(alpha)}/>`);
  }

  override picture(picture: Picture, rect: Rect, alpha = 1): void {
    if (alpha <= 0.003 || rect.w < 0.2 || rect.h < 0.2) return;
    this.elements.push(`<image ${box(rect)} preserveAspectRatio="none" image-rendering="pixelated" href="${picture.toDataURL()}"${opacity(alpha)}/>`);
  }

  override clip(rect: Rect, draw: () => void): void {
    const id = `clip-${(SvgStage.#drawn += 1)}-${(this.#clips += 1)}`;
    this.elements.push(`<clipPath id="${id}"><rect ${box(rect)}/></clipPath><g clip-path="url(#${id})">`);
    draw();
    this.elements.push("</g>");
  }
}

const box = ({ x, y, w, h }: Rect) => `x="${number(x)}" y="${number(y)}" width="${number(Math.max(0, w))}" height="${number(Math.max(0, h))}"`;
const opacity = (alpha: number) => (alpha < 1 ? ` opacity="${number(alpha)}"` : "");
const dash = (dashed: boolean) => (dashed ? ' stroke-dasharray="3 4"' : "");
