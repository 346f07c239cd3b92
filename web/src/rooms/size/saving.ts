// The Size room's charts as one picture that stands alone: SVG with its colours and letters in it.
import { pageColours } from "../../lib/colour";
import { xml } from "../../lib/export";

const GAP = 32;
const HEAD = 56; // for the title and the sentence

interface Words {
  title: string;
  sentence: string;
  /** A heading over each chart, and what its colours mean. */
  headings: readonly { title: string; key: readonly { colour: string; words: string }[] }[];
}

/** All charts beneath `root` side by side, with what they say above. */
export function picturesSvg(root: HTMLElement, words: Words, dark: boolean): string {
  const { paper, ink, ink2: faint } = pageColours(dark);
  const charts = [...root.querySelectorAll<SVGSVGElement>("svg.plot")];
  let x = GAP;
  let height = 0;
  const drawn = charts.map((chart, at) => {
    const width = Number(chart.getAttribute("width")) || chart.clientWidth;
    const tall = Number(chart.getAttribute("height")) || chart.clientHeight;
    const copy = chart.cloneNode(true) as SVGSVGElement;
    for (const [name, value] of Object.entries({ x, y: HEAD + 28, width, height: tall, color: faint, fill: "currentColor", overflow: "visible" })) {
      copy.setAttribute(name, String(value));
    }
    const { title, key } = words.headings[at] ?? { title: "", key: [] };
    const meant = key.map((each) => `<tspan dx="10" fill="${each.colour}">■</tspan><tspan dx="3" font-weight="400" font-size="11">${xml(each.words)}</tspan>`);
    const heading = `<text x="${x}" y="${HEAD + 16}" font-size="13" font-weight="600" fill="${ink}">${xml(title)}${meant.join("")}</text>`;
    x += width + GAP;
    height = Math.max(height, tall);
    return heading + new XMLSerializer().serializeToString(copy);
  });
  x = Math.max(x, GAP + 7 * Math.max(words.title.length, words.sentence.length));
  const all = HEAD + 28 + height + GAP / 2;
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${x}" height="${all}" viewBox="0 0 ${x} ${all}" font-family="system-ui, sans-serif" font-size="11">` +
    `<rect width="100%" height="100%" fill="${paper}"/>` +
    `<text x="${GAP}" y="28" font-size="17" font-weight="600" fill="${ink}">${xml(words.title)}</text>` +
    `<text x="${GAP}" y="48" font-size="12" fill="${faint}">${xml(words.sentence)}</text>${drawn.join("")}</svg>`
  );
}
