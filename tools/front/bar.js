// The bar on top of every part: which of its links is open, and, from the disk, where the live pages are. A browser fetches
// nothing beside a page that was opened as a file, so each recording also is a single file there, in disk/.
"use strict";

(() => {
  const bar = document.querySelector(".site-bar");
  const [home, ...links] = bar.querySelectorAll("a");
  const root = new URL(".", home.href).href;
  const live = `${root}atlas/studio.html`;

  /** The single file that shows what an address of the live page does. */
  function onDisk(address) {
    const [room, query = ""] = new URL(address).hash.split("?");
    const parameters = new URLSearchParams(query);
    const file = parameters.get("file") ?? bar.dataset.first;
    parameters.delete("file");
    return `${root}disk/${file}.html${room}${parameters.size ? `?${parameters}` : ""}`;
  }

  if (location.protocol === "file:") {
    if (location.href.startsWith(live)) location.replace(onDisk(location.href));
    for (const link of document.links) if (link.href.startsWith(live)) link.href = onDisk(link.href);
  }

  /** The studio's page has two entries of the bar: its lessons are one. */
  function mark() {
    const learns = location.hash.startsWith("#/learn");
    for (const link of links) {
      const shown = link.textContent === (learns ? "Learn" : "Atlas");
      link.toggleAttribute("aria-current", shown);
      if (shown) link.setAttribute("aria-current", "true");
    }
  }
  if (document.getElementById("manyheads-studio")) {
    addEventListener("hashchange", mark);
    mark();
  }
})();
