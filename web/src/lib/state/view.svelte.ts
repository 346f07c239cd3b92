// The state of the view as one reactive object that is kept in the URL's fragment, so that it survives a reload, can be
// shared, and can be left with the browser's back button.
//
// The fragment is `#/ROOM/HEAD?key=value...`. A change of room, head or recording adds a step to the history; a change of
// zoom or of a setting replaces the current step. The fragment is never sent to a server.
import { ROOMS, type How, type Room } from "../api/types";
import type { Zoom } from "../map/viewport";

export { ROOMS, type Room };

interface ViewState {
  room: Room;
  model: string | null;
  text: string | null;
  file: string | null;
  /** The recording's id, where model and text do not determine it (an edited model, or a very long text). */
  recording: string | null;
  /** The index of one of the recording's texts or windows. */
  part: number;
  head: string | null;
  zoom: Zoom | null;
  /** The pinned query row. */
  pin: number | null;
  how: How;
  /** "role", or the name of the statistic that colours the atlas. */
  colour: string;
  sort: string;
  filter: string;
  /** The second head and recording of Compare. */
  otherHead: string | null;
  otherRecording: string | null;
  /** Parameters of single rooms. */
  params: Record<string, string>;
}

const START: ViewState = {
  room: "atlas", model: null, text: null, file: null, recording: null, part: 0, head: null, zoom: null, pin: null,
  how: "mean", colour: "role", sort: "layer", filter: "", otherHead: null, otherRecording: null, params: {},
};
const STEPS: (keyof ViewState)[] = ["room", "head", "model", "text", "file", "recording", "otherHead", "otherRecording"];
const NAMES = { other: "otherHead", "other-rec": "otherRecording", rec: "recording" } as const;
export const MAX_TEXT = 20_000; // characters kept in the address: beyond, it holds the recording's id alone
const SETTLE = 250; // ms between writes: browsers refuse more than about a hundred changes of address in 30 s

export function parseFragment(fragment: string): ViewState {
  const [path = "", search = ""] = split(fragment.replace(/^#\/?/, ""), "?");
  const [room = "", head = ""] = path.split("/");
  const state: ViewState = { ...START, params: {} };
  if ((ROOMS as readonly string[]).includes(room)) state.room = room as Room;
  if (head) state.head = decode(head);
  for (const [key, value] of new URLSearchParams(search)) {
    if (key === "model" || key === "text" || key === "file" || key === "colour" || key === "sort" || key === "filter") {
      state[key] = value;
    } else if (key in NAMES) {
      state[NAMES[key as keyof typeof NAMES]] = value;
    } else if (key === "how") state.how = value === "max" ? "max" : "mean";
    else if (key === "part" || key === "pin") {
      const number = Number.parseInt(value, 10);
      if (number >= 0) state[key] = number;
    } else if (key === "at") {
      const [x, y, scale] = value.split(",").map(Number);
      if (Number.isFinite(x) && Number.isFinite(y) && scale! > 0) state.zoom = { x: x!, y: y!, scale: scale! };
    } else state.params[key] = value;
  }
  return state;
}

export function formatFragment(state: ViewState): string {
  const query = new URLSearchParams();
  const put = (key: string, value: string | null, initial: string | null = null) => {
    if (value !== null && value !== "" && value !== initial) query.set(key, value);
  };
  put("model", state.model);
  if (state.text !== null && state.text.length <= MAX_TEXT) query.set("text", state.text);
  put("file", state.file);
  put("rec", state.recording);
  if (state.part) query.set("part", String(state.part));
  if (state.pin !== null) query.set("pin", String(state.pin));
  if (state.zoom) query.set("at", [state.zoom.x, state.zoom.y, state.zoom.scale].map((v) => +v.toPrecision(6)).join(","));
  put("how", state.how, START.how);
  put("colour", state.colour, START.colour);
  put("sort", state.sort, START.sort);
  put("filter", state.filter);
  put("other", state.otherHead);
  put("other-rec", state.otherRecording);
  for (const [key, value] of Object.entries(state.params)) put(key, value);
  const search = query.toString();
  return `#/${state.room}${state.head ? `/${encodeURIComponent(state.head)}` : ""}${search ? `?${search}` : ""}`;
}

function split(text: string, mark: string): [string, string] {
  const index = text.indexOf(mark);
  return index < 0 ? [text, ""] : [text.slice(0, index), text.slice(index + 1)];
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export class View implements ViewState {
  room = $state<Room>(START.room);
  model = $state<string | null>(null);
  text = $state<string | null>(null);
  file = $state<string | null>(null);
  recording = $state<string | null>(null);
  part = $state(0);
  head = $state<string | null>(null);
  zoom = $state.raw<Zoom | null>(null);
  pin = $state<number | null>(null);
  how = $state<How>("mean");
  colour = $state("role");
  sort = $state("layer");
  filter = $state("");
  otherHead = $state<string | null>(null);
  otherRecording = $state<string | null>(null);
  params = $state.raw<Record<string, string>>({});
  /** Counts arrivals by address (load, back, forward, a pasted link): rooms then read their parameters again. */
  arrivals = $state(0);

  #timer: ReturnType<typeof setTimeout> | undefined;
  #arrive = () => {
    if (!this.inAddress) return;
    clearTimeout(this.#timer);
    Object.assign(this, parseFragment(location.hash));
    this.arrivals += 1;
  };

  /** `inAddress`: whether the view is kept in the page's address; not in a notebook, whose address is its own. */
  constructor(readonly inAddress: boolean) {
    if (!inAddress) return;
    Object.assign(this, parseFragment(location.hash));
    addEventListener("hashchange", this.#arrive);
    addEventListener("popstate", this.#arrive);
  }

  destroy(): void {
    clearTimeout(this.#timer);
    removeEventListener("hashchange", this.#arrive);
    removeEventListener("popstate", this.#arrive);
  }

  /** Changes the view. Zoom and pinned row stay unless `change` names them, so that heads can be compared one by one. */
  go(change: Partial<ViewState>): void {
    const newStep = STEPS.some((key) => key in change && change[key] !== this[key]);
    if (newStep) this.#write(false); // a delayed write still belongs to the step that ends
    Object.assign(this, change);
    if (newStep) this.#write(true);
    else this.#schedule();
  }

  /** Names the recording in the address if its text is too long for one: a reload then finds it while the server has it. */
  name(recording: string): void {
    if (this.text === null || this.text.length <= MAX_TEXT) return;
    this.recording = recording;
    this.#schedule();
  }

  /** A room's parameter, or "". */
  param(name: string): string {
    return this.params[name] ?? "";
  }

  /** Sets parameters of a room; null and "" remove one. */
  set(change: Record<string, string | number | boolean | null>): void {
    const params = { ...this.params };
    for (const [key, value] of Object.entries(change)) {
      if (value === null || value === "") delete params[key];
      else params[key] = String(value);
    }
    this.params = params;
    this.#schedule();
  }

  /** The fragment of this view with some fields changed. */
  address(change: Partial<ViewState> = {}): string {
    return formatFragment({ ...this.#state(), ...change });
  }

  #state(): ViewState {
    const state: ViewState = { ...START };
    for (const key of Object.keys(START) as (keyof ViewState)[]) Object.assign(state, { [key]: this[key] });
    return state;
  }

  #schedule(): void {
    if (!this.inAddress) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#write(false), SETTLE);
  }

  #write(push: boolean): void {
    if (!this.inAddress) return;
    clearTimeout(this.#timer);
    const fragment = formatFragment(this.#state());
    if (fragment === location.hash) return;
    history[push ? "pushState" : "replaceState"](null, "", fragment);
  }
}
