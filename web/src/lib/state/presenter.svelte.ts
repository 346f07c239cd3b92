// Presenter mode: one thing on the screen, in type for the last row. It is kept out of the address: `?present`, before or behind
// the fragment's mark, opens in it.
import type { View } from "./view.svelte";

export class Presenter {
  on = $state(false);
  /** Whether the screen is blank. */
  blank = $state(false);
  /** What of a room is shown, chosen by a digit. */
  slide = $state(1);

  constructor(view: View) {
    if (!view.inAddress) return;
    this.on = new URLSearchParams(location.search).has("present") || "present" in view.params;
    if ("present" in view.params) view.set({ present: null });
  }

  turn(on: boolean): void {
    this.on = on;
    this.blank = false;
    this.slide = 1;
  }
}
