// The index of a published folder: search among its cards (the words are in the address: #q=cat), and links to copy.
// Without this script the index still lists and links everything.
const cards = [...document.querySelectorAll(".card")];
const search = document.querySelector(".search");
const box = search.querySelector("input");
const count = document.querySelector(".count");
const words = new Map(cards.map((card) => [card, card.textContent.toLowerCase()]));

function show() {
  const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const card of cards) {
    card.hidden = !wanted.every((word) => words.get(card).includes(word));
    shown += card.hidden ? 0 : 1;
  }
  count.textContent = wanted.length ? (shown ? `${shown} of ${cards.length}` : `none of ${cards.length} holds all of these words`) : "";
}

function read() {
  box.value = new URLSearchParams(location.hash.slice(1)).get("q") ?? "";
  show();
}

box.addEventListener("input", () => {
  history.replaceState(null, "", box.value ? `#${new URLSearchParams({ q: box.value })}` : location.pathname + location.search);
  show();
});
addEventListener("hashchange", read);
search.hidden = cards.length < 2;
read();

for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) continue; // over plain http a page may not write there: the links themselves are to be copied
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(new URL(button.dataset.link, location.href).href);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy link"), 2000);
  });
}
