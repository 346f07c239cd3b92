// A part of the page's build: leaves out what OpenSeadragon brings for pictures on the web, since this page draws one kind of
// tile on a canvas. The library is one script in which every class has a section of its own with its name above it.
import type { Plugin } from "vite";

/** Titles of sections. ZoomifyTileSource, which has no title, stands in that of TmsTileSource. */
const UNUSED = [
  "Button", "ButtonGroup", "DisplayRect", "DziTileSource", "HTMLDrawer", "IIIFTileSource", "IIPTileSource", "ImageTileSource",
  "IrisTileSource", "LegacyTileSource", "Mat3", "Navigator", "OsmTileSource", "ReferenceStrip", "TileSourceCollection",
  "TmsTileSource", "WebGLDrawer",
];

const TITLE = /\n\/\*\*?\n \* OpenSeadragon - ([^\n]+)\n/;

/** The script without the sections that the page never uses. Throws an Error where one is missing: the library has changed. */
export function leanScript(script: string): string {
  const [before = "", ...rest] = script.split(TITLE);
  const missing = new Set(UNUSED);
  let lean = before;
  for (let index = 0; index < rest.length; index += 2) {
    if (missing.delete(rest[index]!)) continue;
    lean += `\n/*\n${rest[index + 1]}`;
  }
  if (missing.size) throw new Error(`openseadragon has no section ${[...missing].join(", ")}: mend UNUSED in dev/lean-openseadragon.ts.`);
  return lean;
}

export function leanOpenSeadragon(): Plugin {
  return {
    name: "lean-openseadragon",
    transform: { filter: { id: /openseadragon\.js$/ }, handler: (code) => ({ code: leanScript(code), map: null }) },
  };
}
