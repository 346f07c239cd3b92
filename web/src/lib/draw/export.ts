// Saving what is on screen as files, and pictures as texts and canvases that can be saved.
import { csvOf, type CsvRow } from "../api/csv";

/** Saves a file through a link that is clicked and removed: that works on the server's page, in a notebook and in a file. */
export function saveFile(content: BlobPart, kind: string, name: string): void {
  const url = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name.replace(/[^\w.+-]+/g, "-");
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export async function savePng(canvas: HTMLCanvasElement, name: string): Promise<void> {
  const blob = await new Promise<Blob | null>((resolve) => canvas.toBlob(resolve, "image/png"));
  if (blob) saveFile(blob, blob.type, name);
}

export function saveSvg(svg: string, name: string): void {
  saveFile(svg, "image/svg+xml", name);
}

export function saveCsv(rows: readonly CsvRow[], name: string): void {
  saveFile(csvOf(rows, "\r\n"), "text/csv", name);
}

/** Text for XML: escaped, with U+FFFD in place of characters that XML does not allow. */
export function xml(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);
}

const STYLES = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor", "dominant-baseline",
];

/** An SVG of the page as a text of its own: what stylesheets gave its elements is written into each as attributes. */
export function standalone(svg: SVGSVGElement, paper: string): string {
  const copy = svg.cloneNode(true) as SVGSVGElement;
  const copies = copy.querySelectorAll<SVGElement>("*");
  svg.querySelectorAll<SVGElement>("*").forEach((element, i) => {
    const css = getComputedStyle(element);
    for (const style of STYLES) {
      const value = css.getPropertyValue(style);
      if (value) copies[i]!.setAttribute(style, value);
    }
    copies[i]!.removeAttribute("class");
  });
  const { x, y, width, height } = svg.viewBox.baseVal;
  const background = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ x, y, width, height, fill: paper })) background.setAttribute(name, String(value));
  copy.prepend(background);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", String(width));
  copy.setAttribute("height", String(height));
  copy.removeAttribute("class");
  return new XMLSerializer().serializeToString(copy);
}

/** An SVG text drawn on a canvas, at twice its size unless `scale` differs. */
export async function rasterise(svg: string, scale = 2): Promise<HTMLCanvasElement> {
  const url = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = document.createElement("canvas");
    canvas.width = image.naturalWidth * scale;
    canvas.height = image.naturalHeight * scale;
    const context = canvas.getContext("2d")!;
    context.imageSmoothingEnabled = false;
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas;
  } finally {
    URL.revokeObjectURL(url);
  }
}
