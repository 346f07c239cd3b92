// Light or dark: as the notebook or the system has it, unless this person chose. The choice is kept where the browser lets us.
import { MediaQuery } from "svelte/reactivity";
import { browserStore, keep } from "./storage";

type ThemeChoice = "system" | "light" | "dark";

const KEY = "manyheads-theme";

export class Theme {
  choice = $state<ThemeChoice>(read());
  #system = new MediaQuery("(prefers-color-scheme: dark)");
  #host = ofHost();

  dark = $derived(this.choice === "system" ? (this.#host ?? this.#system.current) : this.choice === "dark");

  choose(choice: ThemeChoice): void {
    this.choice = choice;
    keep(browserStore(), KEY, choice);
  }
}

/** Whether a notebook that this page is in is dark, as JupyterLab, VS Code and Colab say it; null where nobody does. */
function ofHost(): boolean | null {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  const said = jpThemeLight ?? vscodeThemeKind ?? document.documentElement.getAttribute("theme");
  return said ? /^(false|.*dark.*|vscode-high-contrast)$/.test(said) : null;
}

function read(): ThemeChoice {
  const kept = browserStore()?.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : "system";
}
