// One mounted studio: a notebook may hold several, so nothing here is global. Components reach theirs by `useStudio()`.
import { getContext, setContext } from "svelte";
import { Client } from "./client";
import { Connection } from "./connection.svelte";
import { makeSource, type Home } from "./make-source";
import { Session } from "./session.svelte";
import type { Source } from "./source";
import type { TileValues } from "./feed";
import { Kept } from "./tiles";
import { Theme } from "./theme.svelte";
import { View } from "./view.svelte";

interface Studio {
  source: Source;
  client: Client;
  connection: Connection;
  view: View;
  session: Session;
  theme: Theme;
  /** Tiles of any map, kept as long as they are looked at now and then: some 64 MB. */
  tiles: Kept<TileValues>;
  /** The element that all of this is in. */
  root: HTMLElement | null;
  /** Keys of the whole page: none that are typed into something, or with Ctrl; in a notebook, which has keys of its own,
      those alone that are pressed in here. */
  onKeys(handler: (event: KeyboardEvent) => void): (event: KeyboardEvent) => void;
  destroy(): void;
}

const KEY = Symbol("studio");

export function makeStudio(home: Home = {}): Studio {
  const connection = new Connection();
  const source = makeSource(home, connection);
  const client = new Client(source);
  const view = new View(source.home !== "notebook");
  if (source.home === "notebook") view.params = { card: "0" }; // a cell is narrow: the map first
  const session = new Session(client, view, connection);
  const theme = new Theme();
  const destroy = () => {
    session.close();
    source.destroy?.();
    view.destroy();
  };
  const studio: Studio = {
    source, client, connection, view, session, theme, tiles: new Kept<TileValues>(256), root: null, destroy,
    onKeys: (handler) => (event) => {
      const at = event.target instanceof Element ? event.target : null;
      const elsewhere = source.home === "notebook" && !studio.root?.contains(at);
      const typed = at?.closest("input, textarea, select, dialog");
      if (!elsewhere && !typed && !event.ctrlKey && !event.metaKey && !event.altKey) handler(event);
    },
  };
  return studio;
}

export function provideStudio(studio: Studio): void {
  setContext(KEY, studio);
}

export function useStudio(): Studio {
  return getContext<Studio>(KEY);
}
