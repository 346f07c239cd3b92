// What a room keeps in the address: its parameters while it is open, and whether its drawer is open.
import { onDestroy } from "svelte";
import { MediaQuery } from "svelte/reactivity";
import { browserStore, save } from "./storage";
import type { Room, View } from "./view.svelte";

interface RoomMemory {
  params: Record<string, string>;
  arrivals: number;
}

const memories = new WeakMap<View, Map<Room, RoomMemory>>();

/** Keeps a room's parameters while another room is open, so that the address of the Atlas does not carry an experiment's
    plan. When the room's component starts, they are restored unless the address brings parameters of its own; when it is
    destroyed, they are stored and removed from the address. */
export function rememberRoom(view: View, room: Room, names: readonly string[]): void {
  const rooms = memories.get(view) ?? new Map<Room, RoomMemory>();
  memories.set(view, rooms);
  const memory = rooms.get(room);
  const inAddress = names.some((name) => view.param(name) !== "") || (memory !== undefined && memory.arrivals !== view.arrivals);
  if (memory && !inAddress) view.set(memory.params);
  onDestroy(() => {
    const params = Object.fromEntries(names.map((name) => [name, view.param(name)]).filter(([, value]) => value !== ""));
    rooms.set(room, { params: params as Record<string, string>, arrivals: view.arrivals });
    // In a microtask: while a component is destroyed, state reads as before the move, and writing that would undo the move.
    queueMicrotask(() => view.room !== room && view.set(Object.fromEntries(names.map((name) => [name, null]))));
  });
}

/** Whether a room's drawer is open. Until the reader opens or closes it, it is as `usual` says on a wide page, open by default,
    and closed on a narrow one, where it would cover the picture. The width is the one in the style of Drawer.svelte. */
export class DrawerState {
  #narrow = new MediaQuery("width < 1100px");

  constructor(
    private readonly view: View,
    private readonly name: string,
    private readonly usual: () => boolean = () => true,
  ) {}

  get #usual(): boolean {
    return !this.#narrow.current && this.usual();
  }

  get open(): boolean {
    const param = this.view.param(this.name);
    return param === "" ? this.#usual : param !== "0";
  }

  set open(open: boolean) {
    this.view.set({ [this.name]: open === this.#usual ? null : open ? 1 : 0 });
  }
}

const WORTH = 60; // tokens: shorter texts are read on the map's rulers
const OPEN = 150; // tokens from which the pane is open until the reader folds it
const WIDTH = "manyheads-pane"; // in the storage: percent of the room

/** Whether the pane is open, and how wide. */
export class PaneState {
  #narrow = new MediaQuery("width < 1100px");
  width = $state(Math.min(60, Math.max(15, Number(browserStore()?.getItem(WIDTH)) || 30)));

  constructor(
    private readonly view: View,
    private readonly numTokens: () => number,
  ) {}

  /** Whether the text is long enough to be read in a pane. */
  get worth(): boolean {
    return this.numTokens() > WORTH;
  }

  get #usual(): boolean {
    return !this.#narrow.current && this.view.inAddress && this.numTokens() > OPEN;
  }

  get open(): boolean {
    const param = this.view.param("pane");
    return param === "" ? this.#usual : param !== "0";
  }

  set open(open: boolean) {
    this.view.set({ pane: open === this.#usual ? null : open ? 1 : 0 });
  }

  widen(percent: number): void {
    this.width = Math.min(60, Math.max(15, percent));
    save(browserStore(), WIDTH, this.width.toFixed(1));
  }
}
