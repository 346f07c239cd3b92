// One mounted studio: a notebook may hold several, so nothing here is global. Components get theirs from `useStudio()`.
import { getContext, setContext } from "svelte";
import { Client } from "../api/client";
import { Connection } from "../api/connection.svelte";
import { FileSource, SiteSource } from "../api/file-source";
import { NotebookSource, type WidgetModel } from "../api/notebook-source";
import { ServerSource, type Source } from "../api/source";
import { ROOMS, type Room } from "../api/types";
import type { TileValues } from "../map/feed";
import { LruCache } from "../map/tiles";
import { Escapes } from "./escape.svelte";
import { Presenter } from "./presenter.svelte";
import { Session } from "./session.svelte";
import { Theme } from "./theme.svelte";
import { View } from "./view.svelte";

/** What the page is mounted with: in a notebook, the widget's model. */
export interface Home {
  model?: WidgetModel;
}

interface Studio {
  source: Source;
  client: Client;
  connection: Connection;
  view: View;
  session: Session;
  theme: Theme;
  presenter: Presenter;
  /** What Escape leaves. */
  escapes: Escapes;
  /** Tiles of all maps: 256 tiles of 256 KiB, 64 MiB. */
  tiles: LruCache<TileValues>;
  /** The page's outermost element. */
  root: HTMLElement | null;
  /** A handler for the keys of the whole page. It ignores keys that are typed into a field and keys with Ctrl, Alt or Meta;
      in a notebook, which has keys of its own, also those that are pressed outside the page. */
  onKeys(handler: (event: KeyboardEvent) => void): (event: KeyboardEvent) => void;
  destroy(): void;
}

const KEY = Symbol("studio");

export function makeStudio(home: Home = {}): Studio {
  const connection = new Connection();
  const source = makeSource(home, connection);
  const client = new Client(source);
  const view = new View(source.home !== "notebook");
  if (source.home === "notebook") view.params = { card: "0" }; // a notebook's cell is narrow: the map comes first
  const session = new Session(client, view, connection);
  const theme = new Theme();
  const destroy = () => {
    session.close();
    source.destroy?.();
    view.destroy();
  };
  const studio: Studio = {
    source, client, connection, view, session, theme, presenter: new Presenter(view), escapes: new Escapes(), tiles: new LruCache<TileValues>(256), root: null, destroy,
    onKeys: (handler) => (event) => {
      const target = event.target instanceof Element ? event.target : null;
      const outside = source.home === "notebook" && !studio.root?.contains(target);
      const inField = target?.closest("input, textarea, select, dialog");
      if (!outside && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) handler(event);
    },
  };
  return studio;
}

/** A notebook's kernel if there is a widget, the page's own snapshot or the folder that it names, else the server. */
function makeSource(home: Home, connection: Connection): Source {
  if (home.model) return new NotebookSource(home.model, connection);
  const { site, rooms } = document.getElementById("manyheads-studio")?.dataset ?? {};
  if (site) return new SiteSource(site, roomsIn(rooms));
  const snapshot = document.getElementById("manyheads-snapshot") as (HTMLElement & { bytes: ArrayBuffer }) | null;
  if (!snapshot) return new ServerSource(connection);
  return new FileSource(snapshot.bytes, roomsIn(snapshot.dataset["rooms"])); // a single file's own script unpacks them
}

/** The rooms of a page without a server: whoever wrote it names them. */
function roomsIn(names = ""): Room[] {
  return ROOMS.filter((room) => names.split(" ").includes(room));
}

export function provideStudio(studio: Studio): void {
  setContext(KEY, studio);
}

export function useStudio(): Studio {
  return getContext<Studio>(KEY);
}
