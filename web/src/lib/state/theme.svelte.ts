// Light or dark: as the notebook or the system is, unless the reader chose. The choice is kept in the browser's storage.
import { MediaQuery } from "svelte/reactivity";
import { browserStore, save } from "./storage";

type ThemeChoice = "system" | "light" | "dark";

const KEY = "manyheads-theme";

export class Theme {
  choice = $state<ThemeChoice>(storedChoice());
  #system = new MediaQuery("(prefers-color-scheme: dark)");
  #notebook = notebookIsDark();

  dark = $derived(this.choice === "system" ? (this.#notebook ?? this.#system.current) : this.choice === "dark");

  choose(choice: ThemeChoice): void {
    this.choice = choice;
    save(browserStore(), KEY, choice);
  }
}

/** Whether the notebook around the page is dark, as JupyterLab, VS Code and Colab mark it; null outside a notebook. */
function notebookIsDark(): boolean | null {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  const mark = jpThemeLight ?? vscodeThemeKind ?? document.documentElement.getAttribute("theme");
  return mark ? /^(false|.*dark.*|vscode-high-contrast)$/.test(mark) : null;
}

function storedChoice(): ThemeChoice {
  const choice = browserStore()?.getItem(KEY);
  return choice === "light" || choice === "dark" ? choice : "system";
}
