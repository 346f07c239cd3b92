// The state of the view as one reactive object that is kept in the URL's fragment, so that it survives a reload, can be
// shared, and can be left with the browser's back button.
//
// The fragment is `#/ROOM/HEAD?key=value...`. A change of room, head or recording adds a step to the history; a change of
// zoom or of a setting replaces the current step. The fragment is never sent to a server.
//
// A short text stands in the fragment as `text=`, a longer one deflated as `z=`: both open on any machine that has the
// model. A text that stays too long leaves the recording's id alone, `rec=`, which this server knows while it runs.
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
  /** The word that the atlas asks about, and the word it should find: the first token of each. */
  fromWord: number | null;
  toWord: number | null;
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
  /** A long text, packed. */
  packed: string | null;
  /** What of the address could not be read, in words. */
  unread: string[];
}

/** The view of an empty address. */
export const START: ViewState = {
  room: "atlas", model: null, text: null, file: null, recording: null, part: 0, head: null, zoom: null, pin: null,
  fromWord: null, toWord: null, packed: null, unread: [], how: "mean", colour: "role", sort: "layer", filter: "", otherHead: null, otherRecording: null, params: {},
};
const STEPS: (keyof ViewState)[] = ["room", "head", "model", "text", "file", "recording", "otherHead", "otherRecording", "fromWord", "toWord"];
const NAMES = { other: "otherHead", "other-rec": "otherRecording", rec: "recording", z: "packed" } as const;
const NUMBERS = { part: "part", pin: "pin", from: "fromWord", to: "toWord" } as const;
export const BY_WORD = "word"; // the value of `sort` for the order by the weight to the second word
export const MAX_TEXT = 2_000; // characters of a text inside a room's own parameter
const HEAD = /^([A-Za-z_][A-Za-z0-9_.]*:)?L\d+H\d+$/; // "L3H7", "encoder:L3H7"
const PLAIN = 400; // characters of a text that stands in the address as it is
const MAX_PACKED = 6_000; // characters of a packed text: some 9,000 of English
const SETTLE = 250; // ms between writes: browsers refuse more than about a hundred changes of address in 30 s

export function parseFragment(fragment: string): ViewState {
  const [path = "", search = ""] = split(fragment.replace(/^#\/?/, ""), "?");
  const [room = "", head = ""] = path.split("/");
  const state: ViewState = { ...START, params: {}, unread: [] };
  if ((ROOMS as readonly string[]).includes(room)) state.room = room as Room;
  else if (room) state.unread.push(`There is no room “${decode(room)}”: this is the Atlas.`);
  const unread = (key: string, value: string, want: string) => state.unread.push(`${key}=${value} in the address is not ${want}, so it was left out.`);
  if (head && (state.room === "head" || HEAD.test(decode(head)))) state.head = decode(head);
  else if (head && state.room === "learn") state.params["lesson"] = decode(head); // #/learn/one-head is #/learn?lesson=one-head
  else if (head && state.room === room) state.unread.push(`“${decode(head)}” in the address is not a head (they are written as L3H7), so it was left out.`);
  for (const [key, value] of new URLSearchParams(search)) {
    if (key === "model" || key === "text" || key === "file" || key === "colour" || key === "sort" || key === "filter") {
      state[key] = value;
    } else if (key in NAMES) {
      state[NAMES[key as keyof typeof NAMES]] = value;
    } else if (key === "how") {
      if (value === "max" || value === "mean") state.how = value;
      else unread(key, value, "mean or max");
    } else if (key in NUMBERS) {
      if (/^\d{1,9}$/.test(value)) state[NUMBERS[key as keyof typeof NUMBERS]] = Number(value);
      else unread(key, value, "a number from 0");
    } else if (key === "at") {
      const [x, y, scale] = value.split(",").map(Number);
      if (Number.isFinite(x) && Number.isFinite(y) && scale! > 0) state.zoom = { x: x!, y: y!, scale: scale! };
      else unread(key, value, "a place and a scale");
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
  if (state.text !== null && state.text.length <= PLAIN) query.set("text", state.text);
  else put("z", state.packed);
  put("file", state.file);
  put("rec", state.recording);
  if (state.part) query.set("part", String(state.part));
  if (state.pin !== null) query.set("pin", String(state.pin));
  if (state.fromWord !== null) query.set("from", String(state.fromWord));
  if (state.toWord !== null) query.set("to", String(state.toWord));
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

/** A text, deflated, in letters of which an address keeps all as they are. */
export async function packText(text: string): Promise<string> {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join("")).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** The text of `packText`; throws for anything else. */
export async function unpackText(packed: string): Promise<string> {
  const bytes = Uint8Array.from(atob(packed.replace(/-/g, "+").replace(/_/g, "/")), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new TextDecoder("utf-8", { fatal: true }).decode(await new Response(stream).arrayBuffer());
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
  fromWord = $state<number | null>(null);
  toWord = $state<number | null>(null);
  packed: string | null = null;
  unread = $state.raw<string[]>([]);
  how = $state<How>("mean");
  colour = $state("role");
  sort = $state("layer");
  filter = $state("");
  otherHead = $state<string | null>(null);
  otherRecording = $state<string | null>(null);
  params = $state.raw<Record<string, string>>({});
  /** Counts arrivals by address (load, back, forward, a pasted link): rooms then read their parameters again. */
  arrivals = $state(0);

  /** The scene that a click opened, which begins to play; one that an address names stands still. Not in the address. */
  started = $state<string | null>(null);

  /** Resolves once a packed text is unpacked: `text` is known from then on. */
  arrived: Promise<void> = Promise.resolve();

  #timer: ReturnType<typeof setTimeout> | undefined;
  #arrive = () => {
    if (!this.inAddress) return;
    clearTimeout(this.#timer);
    this.#read();
    this.started = null;
    this.arrivals += 1;
  };

  #read(): void {
    Object.assign(this, parseFragment(location.hash));
    const { packed } = this;
    if (packed === null) return;
    this.arrived = unpackText(packed).then(
      (text) => void (this.packed === packed && (this.text = text)),
      () => {
        // A change of address is heard twice (hashchange and popstate), and said once.
        if (this.packed === packed) this.unread = ["The address was cut off: its text cannot be read, and this is another one."];
        this.packed = null;
      },
    );
  }

  /** `inAddress`: whether the view is kept in the page's address; not in a notebook, whose address is its own. */
  constructor(readonly inAddress: boolean) {
    if (!inAddress) return;
    this.#read();
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
    if ("text" in change && change.text !== this.text) this.packed = null;
    Object.assign(this, change);
    if (newStep) this.#write(true);
    else this.#schedule();
  }

  /** Changes the view and the address of the current step. */
  replace(change: Partial<ViewState>): void {
    Object.assign(this, change);
    this.#write(false);
  }

  /** Puts a long text into the address, packed; names the recording there if even that is too long. */
  async name(recording: string): Promise<void> {
    const { text } = this;
    if (!this.inAddress || text === null || text.length <= PLAIN || this.packed !== null) return;
    const packed = await packText(text);
    if (this.text !== text) return;
    if (packed.length <= MAX_PACKED) this.packed = packed;
    else this.recording = recording;
    this.#schedule();
  }

  /** Says what of the address cannot be used, and takes it out. */
  leaveOut(words: string, change: Partial<ViewState> = {}): void {
    if (!this.unread.includes(words)) this.unread = [...this.unread, words];
    Object.assign(this, change);
    this.#schedule(); // not at once: an arrival is heard twice, and the second time would find nothing to say
  }

  /** A room's parameter, or "". */
  param(name: string): string {
    return this.params[name] ?? "";
  }

  /** Whether attention sinks are left out of maps and rows: `sinks=out`. Rooms share it. */
  get sinksOut(): boolean {
    return this.param("sinks") === "out";
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
