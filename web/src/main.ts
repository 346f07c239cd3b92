// The page's entry point: mounts itself in an element with the id `manyheads-studio`; the default export is an anywidget
// module.
import { mount, unmount } from "svelte";
import App from "./App.svelte";
import "./app.css";
import type { Home } from "./lib/state/studio";
import type { WidgetModel } from "./lib/api/notebook-source";

function show(target: HTMLElement, home: Home): () => void {
  const app = mount(App, { target, props: { home } });
  return () => void unmount(app);
}

const root = document.getElementById("manyheads-studio");
if (root) show(root, {});

// The Size room's arithmetic, so that a test can hold every number of it to the library's.
export { described, PRESETS, sized } from "./rooms/size/arithmetic";
export { placed, undivided } from "./rooms/size/devices";

export default {
  render({ model, el }: { model: WidgetModel; el: HTMLElement }): () => void {
    el.dataset["lmSuppressShortcuts"] = "true"; // JupyterLab ignores its own keys while the page has the focus
    el.style.setProperty("--studio-height", `${Number(model.get("height")) || 640}px`); // a fixed height: a notebook's cell grows to fit its content
    return show(el, { model });
  },
};
