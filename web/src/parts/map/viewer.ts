// OpenSeadragon as a picture of numbers: tiles come from a feed, are painted by us into canvases that we keep hold of, and
// are painted again in place when colours change, without a request.
//
// The picture is padded to a multiple of the coarsest cell, so that every level's cells lie exactly on level 0's; the
// padding is clipped away. OpenSeadragon counts levels from the coarsest, we from the cells.
import OpenSeadragon from "openseadragon";
import type { Feed, TileValues } from "../../lib/feed";
import { isAbort } from "../../lib/source";
import { TILE, cellsAt } from "../../lib/tiles";
import { fit, type Frame } from "../../lib/viewport";
import type { Zoom } from "../../lib/view.svelte";

interface Painter {
  /** Paints a tile's values as RGBA. */
  paint(tile: TileValues, level: number, column: number, row: number): Uint8ClampedArray<ArrayBuffer>;
}

interface Events {
  onframe(frame: Frame): void;
  ontile(level: number, tile: TileValues): void;
  onclick(x: number, y: number): void;
  onproblem(error: unknown): void;
}

interface Painted {
  context: CanvasRenderingContext2D;
  level: number;
  column: number;
  row: number;
}

const MAX_CELL = 64; // pixels of a cell at the nearest
const KEPT = 160; // painted tiles

export class MapViewer {
  #osd: OpenSeadragon.Viewer;
  #feed: Feed | null = null;
  #painted = new Map<string, Painted>();
  #home = true;
  #run = 0;

  constructor(
    private readonly element: HTMLElement,
    private readonly painter: Painter,
    private readonly events: Events,
    still: boolean,
  ) {
    const osd = (this.#osd = withoutStyle(() =>
      OpenSeadragon({
        element,
        drawer: "canvas",
        showNavigationControl: false,
        showNavigator: false,
        imageSmoothingEnabled: false,
        blendTime: 0,
        immediateRender: true,
        animationTime: still ? 0 : 0.15,
        springStiffness: 12,
        minPixelRatio: 1, // the level whose cells are just above one pixel: what the words beside the map say
        maxZoomPixelRatio: MAX_CELL,
        minZoomImageRatio: 0.4,
        visibilityRatio: 0.25,
        maxImageCacheCount: KEPT,
        imageLoaderLimit: 6,
        zoomPerScroll: 1.25,
        autoResize: true,
        preserveImageSizeOnResize: true,
        gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: false },
        gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: false },
      }),
    ));
    osd.canvas.tabIndex = -1; // the map's own element takes the keys
    osd.addHandler("canvas-key", (event) => (event.preventDefaultAction = true));
    osd.addHandler("update-viewport", () => this.#say());
    osd.addHandler("resize", () => requestAnimationFrame(() => (this.#home ? this.home(true) : this.#say())));
    for (const moved of ["canvas-drag", "canvas-scroll", "canvas-pinch"] as const) osd.addHandler(moved, () => (this.#home = false));
    osd.addHandler("canvas-click", (event) => {
      if (event.quick) this.events.onclick(event.position.x, event.position.y);
    });
  }

  /** Shows a feed, where one already looks (`zoom`), or whole. */
  show(feed: Feed, zoom: Zoom | null): void {
    const run = ++this.#run;
    this.#feed = feed;
    this.#painted.clear();
    this.#osd.addTiledImage({
      tileSource: this.#source(feed) as unknown as OpenSeadragon.TileSource,
      index: 0,
      replace: this.#osd.world.getItemCount() > 0, // a first one that is still on its way cannot be replaced
      success: (event) => {
        const image = (event as unknown as { item: OpenSeadragon.TiledImage }).item;
        if (run !== this.#run) return this.#osd.world.removeItem(image); // another was asked for meanwhile
        const finest = 2 ** feed.minLevel;
        image.setClip(new OpenSeadragon.Rect(0, 0, feed.numKeys / finest, feed.numQueries / finest));
        if (zoom) this.moveTo(zoom, true);
        else this.home(true);
      },
    });
  }

  /** Paints all tiles again with the painter's present colours. */
  repaint(): void {
    for (const painted of this.#painted.values()) this.#paint(painted);
    this.#osd.forceRedraw();
  }

  /** Asks again for what could not be fetched: OpenSeadragon never tries a tile twice, so the picture is put in anew. */
  retry(zoom: Zoom | null): void {
    if (this.#feed) this.show(this.#feed, zoom);
  }

  home(immediately = false): void {
    const feed = this.#feed;
    if (!feed || !this.#osd.world.getItemCount()) return;
    // At the rulers' corner, so that labels stand beside what they name.
    const { clientWidth: width, clientHeight: height } = this.element;
    const scale = fit(width - 2, height - 2, feed.numQueries, feed.numKeys);
    this.moveTo({ x: (width / 2 - 1) / scale, y: (height / 2 - 1) / scale, scale }, immediately);
    this.#home = true;
  }

  get atHome(): boolean {
    return this.#home;
  }

  moveTo(zoom: Zoom, immediately = false): void {
    const feed = this.#feed;
    if (!feed || !this.#osd.world.getItemCount()) return;
    const padded = side(feed.numKeys, feed.maxLevel);
    const { clientWidth: width, clientHeight: height } = this.element;
    const [w, h] = [width / zoom.scale / padded, height / zoom.scale / padded];
    this.#home = false;
    this.#osd.viewport.fitBounds(new OpenSeadragon.Rect(zoom.x / padded - w / 2, zoom.y / padded - h / 2, w, h), immediately);
  }

  /** Nearer or farther by a factor, round a pixel or the middle. */
  zoomBy(factor: number): void {
    this.#home = false;
    this.#osd.viewport.zoomBy(factor);
    this.#osd.viewport.applyConstraints();
  }

  /** A tile was replaced by a better one. */
  refresh(level: number, column: number, row: number): void {
    const painted = this.#painted.get(name(level, column, row));
    if (!painted) return;
    this.#paint(painted);
    this.#osd.forceRedraw();
  }

  /** The map as it stands on screen, for a picture of it. */
  picture(): HTMLCanvasElement | null {
    return this.element.querySelector("canvas");
  }

  destroy(): void {
    this.#run += 1;
    this.#feed = null; // tiles that are still under way are for nobody
    this.#osd.destroy();
    this.#painted.clear();
  }

  #say(): void {
    const feed = this.#feed;
    if (!feed || !this.#osd.world.getItemCount()) return;
    const padded = side(feed.numKeys, feed.maxLevel);
    const { viewport } = this.#osd;
    const corner = viewport.pixelFromPoint(new OpenSeadragon.Point(0, 0), true);
    const other = viewport.pixelFromPoint(new OpenSeadragon.Point(1, 0), true);
    this.events.onframe({ left: corner.x, top: corner.y, scale: (other.x - corner.x) / padded });
  }

  #source(feed: Feed): object {
    const { minLevel, maxLevel } = feed;
    return {
      width: side(feed.numKeys, maxLevel) / 2 ** minLevel,
      height: side(feed.numQueries, maxLevel) / 2 ** minLevel,
      tileSize: TILE,
      minLevel: 0,
      maxLevel: maxLevel - minLevel,
      getTileUrl: (level: number, column: number, row: number) => `${maxLevel - level}/${column}/${row}?${feed.key}`,
      hasTransparency: () => true,
      downloadTileStart: (job: OpenSeadragon.ImageJob) => void this.#download(feed, job),
      downloadTileAbort: (job: OpenSeadragon.ImageJob) => (job as Aborted).stop?.abort(),
    };
  }

  async #download(feed: Feed, job: OpenSeadragon.ImageJob): Promise<void> {
    const [level, column, row] = (job.src as string).split("?")[0]!.split("/").map(Number) as [number, number, number];
    const canvas = document.createElement("canvas");
    // Past the map's end there is padding alone: nothing to ask for.
    const beyond = row * TILE >= cellsAt(feed.numQueries, level) || column * TILE >= cellsAt(feed.numKeys, level);
    canvas.width = canvas.height = TILE;
    const context = canvas.getContext("2d")!;
    if (beyond) return job.finish(context, null, "context2d");
    const stop = ((job as Aborted).stop = new AbortController());
    try {
      const tile = await feed.tile(level, column, row, stop.signal);
      if (!this.#feed) return clearTimeout((job as Aborted).jobId); // the viewer is gone, and whom to tell with it
      if (feed !== this.#feed) return job.finish(context, null, "context2d"); // another map is shown: nobody looks
      // OpenSeadragon stretches a tile's picture over its part of the map, so the last ones are as small as that part.
      canvas.width = Math.min(TILE, side(feed.numKeys, feed.maxLevel) / 2 ** level - column * TILE);
      canvas.height = Math.min(TILE, side(feed.numQueries, feed.maxLevel) / 2 ** level - row * TILE);
      const painted = { context, level, column, row };
      this.#painted.set(name(level, column, row), painted);
      this.#forget();
      this.events.ontile(level, tile);
      this.#paint(painted);
      job.finish(context, null, "context2d");
    } catch (error) {
      if (!this.#feed) return clearTimeout((job as Aborted).jobId);
      if (isAbort(error) || feed !== this.#feed) return job.finish(context, null, "context2d");
      this.events.onproblem(error);
      job.fail(String(error), null);
    }
  }

  #paint({ context, level, column, row }: Painted): void {
    const tile = this.#feed?.peek(level, column, row);
    if (!tile || !tile.rows || !tile.columns) return;
    context.putImageData(new ImageData(this.painter.paint(tile, level, column, row), tile.columns, tile.rows), 0, 0);
  }

  #forget(): void {
    // OpenSeadragon drops the oldest of its own; ours follow a little later.
    if (this.#painted.size > 2 * KEPT) this.#painted.delete(this.#painted.keys().next().value!);
  }
}

type Aborted = OpenSeadragon.ImageJob & { stop?: AbortController; jobId?: number };

function name(level: number, column: number, row: number): string {
  return `${level}/${column}/${row}`;
}

/** A side of the map, padded to whole cells of the coarsest level. */
function side(n: number, maxLevel: number): number {
  return cellsAt(n, maxLevel) * 2 ** maxLevel;
}

/** OpenSeadragon adds a <style> for touch screens, which the page's policy forbids: it is shown one that says nothing. */
function withoutStyle<T>(make: () => T): T {
  const style = document.createElementNS("urn:none", "style"); // found by a selector, read by nobody
  style.setAttribute("data-openseadragon-mobile-css", "");
  document.head.append(style);
  try {
    return make();
  } finally {
    style.remove();
  }
}
