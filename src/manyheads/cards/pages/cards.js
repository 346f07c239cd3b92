// Maps of a card, drawn in the studio's ramp; the search of the first page; commands that are copied. Without it, a card
// is read all the same: its sentence, its tables, each map's strongest link in words.
"use strict";

// The stops of web/src/lib/draw/colour.ts (OKLab), to which a test holds them.
const LIGHT = [[0.985, 0.0, 0.004], [0.9, -0.012, -0.022], [0.72, -0.03, -0.06], [0.5, -0.012, -0.1], [0.31, 0.01, -0.085], [0.17, 0.008, -0.03]];
const DARK = [[0.185, -0.002, -0.012], [0.3, 0.0, -0.055], [0.46, -0.015, -0.09], [0.66, -0.035, -0.075], [0.84, -0.025, -0.02], [0.975, 0.0, 0.025]];
const dark = matchMedia("(prefers-color-scheme: dark)");

function colour(share) {
  const stops = dark.matches ? DARK : LIGHT;
  const place = Math.sqrt(Math.min(1, share)) * (stops.length - 1); // the root shows small weights beside large ones
  const low = Math.min(Math.floor(place), stops.length - 2);
  const [L, a, b] = stops[low].map((value, c) => value + (stops[low + 1][c] - value) * (place - low));
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const rgb = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((c) => Math.max(0, Math.min(1, c)));
  const luminance = 0.2126 * rgb[0] + 0.7152 * rgb[1] + 0.0722 * rgb[2];
  const bytes = rgb.map((v) => Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055)));
  return { bytes, css: `rgb(${bytes.join(" ")})`, ink: luminance <= 0.179 ? "#fff" : "#000" };
}

for (const figure of document.querySelectorAll(".map")) {
  const weights = JSON.parse(figure.dataset.weights);
  const canvas = figure.querySelector("canvas");
  const tokens = [...figure.querySelectorAll(".tokens span")];
  const range = figure.querySelector("input");
  const said = figure.querySelector(".said");
  const names = tokens.map((token) => token.textContent);
  const size = weights.length;

  function paint() {
    const context = canvas.getContext("2d");
    const image = context.createImageData(size, size);
    weights.forEach((row, query) => {
      for (let key = 0; key < size; key++) {
        const { bytes } = colour((row[key] ?? 0) / 1000);
        image.data.set([...bytes, 255], (query * size + key) * 4);
      }
    });
    context.putImageData(image, 0, 0);
  }

  function look(query, key) {
    const row = weights[query];
    const best = key ?? row.indexOf(Math.max(...row));
    tokens.forEach((token, place) => {
      const share = (row[place] ?? 0) / 1000;
      const shade = colour(share);
      token.style.backgroundColor = share > 0.01 ? shade.css : "";
      token.style.color = share > 0.01 ? shade.ink : "";
      token.classList.toggle("looks", place === query);
    });
    range.value = query;
    range.setAttribute("aria-valuetext", names[query]);
    said.textContent = `“${names[query]}” looks at “${names[best]}” with ${((row[best] ?? 0) / 10).toFixed(1)}%`;
  }

  const first = Number(figure.dataset.query);
  paint();
  look(first);
  figure.querySelector(".row").hidden = false;
  range.addEventListener("input", () => look(Number(range.value)));
  tokens.forEach((token, place) => token.addEventListener("click", () => look(place)));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (at, length) => Math.max(0, Math.min(size - 1, Math.floor((at / length) * size)));
    look(place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width));
  });
  canvas.addEventListener("pointerleave", () => look(Number(range.value)));
  dark.addEventListener("change", () => { paint(); look(Number(range.value)); });
}

for (const button of document.querySelectorAll(".copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

const form = document.querySelector(".search");
if (form) {
  form.hidden = false;
  const entries = [...document.querySelectorAll(".heads li")];
  const lists = [...document.querySelectorAll(".heads")].map((list) => [list, [...list.children]]);
  const cells = new Map([...document.querySelectorAll(".cell")].map((cell) => [cell.dataset.head, cell]));
  const text = new Map(entries.map((entry) => [entry, `${entry.textContent} ${entry.dataset.words}`.toLowerCase()]));
  const count = document.querySelector(".count");

  function search() {
    const words = form.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const effect = form.effect.value;
    let visible = 0;
    for (const entry of entries) {
      const shown = words.every((word) => text.get(entry).includes(word)) && (!effect || entry.dataset.effect === effect);
      entry.hidden = !shown;
      cells.get(entry.id)?.classList.toggle("out", !shown);
      visible += shown;
    }
    count.textContent = words.length || effect ? `${visible} of ${entries.length} heads` : `${entries.length} heads`;
  }

  function order() {
    for (const [list, children] of lists) {
      const sorted = form.order.value ? [...children].sort((a, b) => Number(b.dataset.loss) - Number(a.dataset.loss)) : children;
      list.append(...sorted);
    }
  }

  form.addEventListener("input", () => { order(); search(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  search();
}
