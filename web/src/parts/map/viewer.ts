// OpenSeadragon as a viewer of numbers: tiles come from a feed and are painted into canvases that this file keeps, so that
// they can be painted again in place when colours change, without a request.
//
// The picture is padded to a multiple of the coarsest cell, so that the cells of every level lie exactly on those of level
// 0; the padding is clipped away. OpenSeadragon counts levels from the coarsest, this project from single cells.
import OpenSeadragon from "openseadragon";
import { isAbort } from "../../lib/api/source";
import { TILE } from "../../lib/api/types";
import type { Feed, TileValues } from "../../lib/map/feed";
import { cellsAt } from "../../lib/map/tiles";
import { fit, type Frame, type Zoom } from "../../lib/map/viewport";

interface Painter {
  /** Paints a tile's values as RGBA. */
  paint(tile: TileValues, level: number, column: number, row: number): Uint8ClampedArray<ArrayBuffer>;
}

interface Events {
  onframe(frame: Frame): void;
  ontile(level: number, tile: TileValues, column: number): void;
  onclick(x: number, y: number): void;
  onproblem(error: unknown): void;
}

interface PaintedTile {
  context: CanvasRenderingContext2D;
  level: number;
  column: number;
  row: number;
}

const MAX_CELL = 64; // pixels of a cell at the largest zoom
const CACHED = 160; // painted tiles

export class MapViewer {
  #osd: OpenSeadragon.Viewer;
  #feed: Feed | null = null;
  #painted = new Map<string, PaintedTile>();
  #home = true;
  #run = 0;

  constructor(
    private readonly element: HTMLElement,
    private readonly painter: Painter,
    private readonly events: Events,
    reducedMotion: boolean,
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
        animationTime: reducedMotion ? 0 : 0.15,
        springStiffness: 12,
        minPixelRatio: 1, // the level whose cells are just above one pixel, as `levelFor` computes it for the words beside the map
        maxZoomPixelRatio: MAX_CELL,
        minZoomImageRatio: 0.4,
        visibilityRatio: 0.25,
        maxImageCacheCount: CACHED,
        imageLoaderLimit: 6,
        zoomPerScroll: 1.25,
        autoResize: true,
        preserveImageSizeOnResize: true,
        gestureSettingsMouse: { clickToZoom: false, dblClickToZoom: false },
        gestureSettingsTouch: { clickToZoom: false, dblClickToZoom: false },
      }),
    ));
    osd.canvas.tabIndex = -1; // the element around the map handles keys
    osd.addHandler("canvas-key", (event) => (event.preventDefaultAction = true));
    osd.addHandler("update-viewport", () => this.#reportFrame());
    osd.addHandler("resize", () => requestAnimationFrame(() => (this.#home ? this.home(true) : this.#reportFrame())));
    for (const gesture of ["canvas-drag", "canvas-scroll", "canvas-pinch"] as const) osd.addHandler(gesture, () => (this.#home = false));
    osd.addHandler("canvas-click", (event) => {
      if (event.quick) this.events.onclick(event.position.x, event.position.y);
    });
  }

  /** Shows a feed at `zoom`, or the whole map. */
  show(feed: Feed, zoom: Zoom | null): void {
    const run = ++this.#run;
    this.#feed = feed;
    this.#painted.clear();
    this.#osd.addTiledImage({
      tileSource: this.#source(feed) as unknown as OpenSeadragon.TileSource,
      index: 0,
      replace: this.#osd.world.getItemCount() > 0, // a first image that is still loading cannot be replaced
      success: (event) => {
        const image = (event as unknown as { item: OpenSeadragon.TiledImage }).item;
        if (run !== this.#run) return this.#osd.world.removeItem(image); // another feed was shown in the meantime
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

  /** Fetches failed tiles again: OpenSeadragon never tries a tile twice, so the picture is added anew. */
  retry(zoom: Zoom | null): void {
    if (this.#feed) this.show(this.#feed, zoom);
  }

  home(immediately = false): void {
    const feed = this.#feed;
    if (!feed || !this.#osd.world.getItemCount()) return;
    // In the corner of the rulers, so that labels stand beside the cells that they name.
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

  /** Zooms by a factor about the middle of the screen. */
  zoomBy(factor: number): void {
    this.#home = false;
    this.#osd.viewport.zoomBy(factor);
    this.#osd.viewport.applyConstraints();
  }

  /** Paints a tile again after the feed has a better one. */
  refresh(level: number, column: number, row: number): void {
    const painted = this.#painted.get(name(level, column, row));
    if (!painted) return;
    this.#paint(painted);
    this.#osd.forceRedraw();
  }

  /** The map as it is on screen, for an export. */
  picture(): HTMLCanvasElement | null {
    return this.element.querySelector("canvas");
  }

  destroy(): void {
    this.#run += 1;
    this.#feed = null; // `#download` then drops tiles that arrive late
    this.#osd.destroy();
    this.#painted.clear();
  }

  #reportFrame(): void {
    const feed = this.#feed;
    if (!feed || !this.#osd.world.getItemCount()) return;
    const padded = side(feed.numKeys, feed.maxLevel);
    const { viewport } = this.#osd;
    const corner = viewport.pixelFromPoint(new OpenSeadragon.Point(0, 0), true);
    const end = viewport.pixelFromPoint(new OpenSeadragon.Point(1, 0), true);
    this.events.onframe({ left: corner.x, top: corner.y, scale: (end.x - corner.x) / padded });
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
      downloadTileAbort: (job: OpenSeadragon.ImageJob) => (job as TileJob).stop?.abort(),
    };
  }

  async #download(feed: Feed, job: OpenSeadragon.ImageJob): Promise<void> {
    const [level, column, row] = (job.src as string).split("?")[0]!.split("/").map(Number) as [number, number, number];
    const canvas = document.createElement("canvas");
    // Beyond the map's end there is only padding: nothing to fetch.
    const beyond = row * TILE >= cellsAt(feed.numQueries, level) || column * TILE >= cellsAt(feed.numKeys, level);
    canvas.width = canvas.height = TILE;
    const context = canvas.getContext("2d")!;
    if (beyond) return job.finish(context, null, "context2d");
    const stop = ((job as TileJob).stop = new AbortController());
    try {
      const tile = await feed.tile(level, column, row, stop.signal);
      if (!this.#feed) return clearTimeout((job as TileJob).jobId); // the viewer is destroyed: neither finish nor fail may be called, but the job's timeout must go
      if (feed !== this.#feed) return job.finish(context, null, "context2d"); // another map is on screen: an empty tile will do
      // OpenSeadragon stretches a tile's canvas over its part of the map, so the last tiles must be as small as that part.
      canvas.width = Math.min(TILE, side(feed.numKeys, feed.maxLevel) / 2 ** level - column * TILE);
      canvas.height = Math.min(TILE, side(feed.numQueries, feed.maxLevel) / 2 ** level - row * TILE);
      const painted = { context, level, column, row };
      this.#painted.set(name(level, column, row), painted);
      // OpenSeadragon drops its oldest tiles; ours follow a little later.
      if (this.#painted.size > 2 * CACHED) this.#painted.delete(this.#painted.keys().next().value!);
      this.events.ontile(level, tile, column);
      this.#paint(painted);
      job.finish(context, null, "context2d");
    } catch (error) {
      if (!this.#feed) return clearTimeout((job as TileJob).jobId);
      if (isAbort(error) || feed !== this.#feed) return job.finish(context, null, "context2d");
      this.events.onproblem(error);
      job.fail(String(error), null);
    }
  }

  #paint({ context, level, column, row }: PaintedTile): void {
    const tile = this.#feed?.peek(level, column, row);
    if (!tile || !tile.rows || !tile.columns) return;
    context.putImageData(new ImageData(this.painter.paint(tile, level, column, row), tile.columns, tile.rows), 0, 0);
  }
}

/** A job with the fields that OpenSeadragon's types do not declare. */
type TileJob = OpenSeadragon.ImageJob & { stop?: AbortController; jobId?: number };

function name(level: number, column: number, row: number): string {
  return `${level}/${column}/${row}`;
}

/** A side of the map in cells of level 0, padded to a multiple of the coarsest cell. */
function side(n: number, maxLevel: number): number {
  return cellsAt(n, maxLevel) * 2 ** maxLevel;
}

/** Calls `make` while a dummy stylesheet stands in the page. OpenSeadragon adds a <style> for touch screens unless one with
    this attribute exists, and the page's content policy forbids it. */
function withoutStyle<T>(make: () => T): T {
  const style = document.createElementNS("urn:none", "style"); // of another namespace: a selector finds it, the browser ignores it
  style.setAttribute("data-openseadragon-mobile-css", "");
  document.head.append(style);
  try {
    return make();
  } finally {
    style.remove();
  }
}
