// Files of what the head room shows: the map, the lines or the drawn layer as SVG and PNG, and the numbers in view.
import type { Client } from "../../lib/client";
import { saveFile, savePng, saveSvg } from "../../lib/export";
import { mapSvg, rasterise, standalone, type MapFigure } from "../../lib/figure";

export interface Shown {
  /** What of the page is on screen: a drawing, or a map to be drawn with its rulers. */
  svg: SVGSVGElement | null;
  map: MapFigure | null;
  paper: string;
  name: string;
}

function drawn({ svg, map, paper }: Shown): string {
  return svg ? standalone(svg, paper) : mapSvg(map!);
}

export function exportSvg(shown: Shown): void {
  saveSvg(drawn(shown), `${shown.name}.svg`);
}

export async function exportPng(shown: Shown): Promise<void> {
  await savePng(await rasterise(drawn(shown)), `${shown.name}.png`);
}

/** At most so many cells of the exact map: more is a file for a program, not for a page. */
const MOST = 512;

export async function exportWindow(
  client: Client, id: string, part: number, head: string, format: "csv" | "parquet", x: [number, number], y: [number, number],
): Promise<void> {
  const range = ([from, to]: [number, number]) => `${from}:${Math.min(to, from + MOST)}`;
  const answer = await client.window(id, head, format, range(y), range(x), part);
  saveFile(answer.bytes, answer.kind, `${head}-${range(y)}-${range(x)}.${format}`.replaceAll(":", "to"));
}
