// Drawing: colours, numbers and tokens as text, labels of rulers.
import { describe, expect, it } from "vitest";
import css from "../../src/app.css?raw";
import { csvOf } from "../../src/lib/api/csv";
import { pageColours, paint, ramp, step, stepBoth, type Rgb } from "../../src/lib/draw/colour";
import { xml } from "../../src/lib/draw/export";
import { alike, label, labelsOf, number, percent, short, signed, visible, weight } from "../../src/lib/draw/format";
import { rulerLabels } from "../../src/lib/draw/labels";

const at = (colours: Uint8ClampedArray, i: number) => Array.from(colours.subarray(i * 4, i * 4 + 3)) as Rgb;

/** OKLab lightness of an sRGB colour. */
function lightness(rgb: Rgb): number {
  const [r, g, b] = rgb.map((c) => (c <= 0.04045 * 255 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4)) as Rgb;
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return 0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s;
}

const lights = (colours: Uint8ClampedArray) => Array.from({ length: 256 }, (_, i) => lightness(at(colours, i)));

describe("a ramp", () => {
  it("goes one way: paper to ink in light, ink to light in dark", () => {
    const [light, dark] = [lights(ramp(false).colours), lights(ramp(true).colours)];
    for (let i = 1; i < 256; i++) {
      expect(light[i]!).toBeLessThan(light[i - 1]! + 0.004);
      expect(dark[i]!).toBeGreaterThan(dark[i - 1]! - 0.004);
    }
    expect(light[0]! - light[255]!).toBeGreaterThan(0.75);
    expect(dark[255]! - dark[0]!).toBeGreaterThan(0.75);
  });

  it("never uses the absent colour for nothing", () => {
    for (const dark of [false, true]) {
      const { colours, absent } = ramp(dark);
      const zero = at(colours, 0);
      expect(Math.max(...zero.map((c, i) => Math.abs(c - absent[i]!)))).toBeGreaterThan(18);
    }
  });

  it("for differences is even on both sides of nothing", () => {
    const lightnesses = lights(ramp(false, "diverging").colours);
    for (const i of [10, 60, 100]) expect(Math.abs(lightnesses[i]! - lightnesses[255 - i]!)).toBeLessThan(0.09);
    expect(stepBoth(0, 1, "root")).toBe(128);
    expect([stepBoth(-1, 1, "linear"), stepBoth(1, 1, "linear")]).toEqual([0, 255]);
  });
});

describe("the page's colours", () => {
  it("are those of its stylesheet", () => {
    const [light, dark] = css.split('[data-theme="dark"]') as [string, string];
    for (const [sheet, colours] of [[light, pageColours(false)], [dark, pageColours(true)]] as const) {
      for (const [name, colour] of Object.entries(colours)) expect(sheet).toContain(`--${name.replace("2", "-2").replace("3", "-3")}: ${colour};`);
    }
  });
});

describe("steps", () => {
  it("follow the value or its root", () => {
    expect([0, 0.25, 1, 2].map((v) => step(v, 1, "linear"))).toEqual([0, 64, 255, 255]);
    expect([0, 0.25, 1].map((v) => step(v, 1, "root"))).toEqual([0, 128, 255]);
    expect(step(0.3, 0, "root")).toBe(0);
  });
});

describe("paint", () => {
  it("tells absent from zero", () => {
    const colours = ramp(false);
    const bytes = paint(new Float32Array([NaN, 0, 1]), 1, colours, "root");
    expect(Array.from(bytes.subarray(0, 4))).toEqual([...colours.absent, 255]);
    expect(Array.from(bytes.subarray(4, 7))).toEqual(at(colours.colours, 0));
    expect(Array.from(bytes.subarray(8, 11))).toEqual(at(colours.colours, 255));
  });
});

const token = (piece: string, text = piece, special = false) => ({ piece, text, label: text || piece, special, sink: false, unknown: false });

describe("numbers", () => {
  it("are text, and say when there is none", () => {
    expect([weight(0.03125), weight(0), weight(1.2e-7), weight(NaN), weight(null)]).toEqual(["0.0313", "0", "0.00000012", "none", "none"]);
    expect([number(1.62e-5), signed(-1.62e-5), weight(9.96e-5), weight(1e-12), number(-1e-12)]).toEqual(["0.0000162", "−0.0000162", "0.0000996", "< 0.000000001", "> −0.000000001"]); // in sentences, no powers of ten
    expect([number(12345.6), number(37.4249), number(0.03121), number(null)]).toEqual(["12,346", "37.42", "0.03121", "none"]);
    expect([percent(0.384), percent(0.0004, 1), percent(0), percent(undefined)]).toEqual(["38 %", "< 0.1 %", "0 %", "none"]);
    // The library's own cases (tests/base/test_text.py).
    const cases: [number, number, string][] = [
      [0.677, 0, "68 %"], [0.677, 1, "67.7 %"], [1 / 16, 1, "6.3 %"], [0.125, 0, "13 %"], [-0.125, 0, "−13 %"], [1.3, 0, "130 %"],
      [0.004, 0, "< 1 %"], [0.005, 0, "1 %"], [1e-12, 0, "< 1 %"], [0, 0, "0 %"], [-0.004, 0, "0 %"], [0.0004, 1, "< 0.1 %"], [NaN, 0, "none"],
    ];
    for (const [share, digits, words] of cases) expect(percent(share, digits)).toBe(words);
    expect([signed(0.0123), signed(-0.5), signed(0)]).toEqual(["+0.0123", "−0.5", "0"]);
  });
});

describe("numbers of one line", () => {
  it("have the same decimals, about three figures of the largest", () => {
    expect(alike([1.234, 0.5, null, -2])).toEqual(["1.23", "0.50", "none", "−2.00"]);
    expect(alike([0.0123, 0.4])).toEqual(["0.012", "0.400"]);
    expect(alike([1234.5, 2])).toEqual(["1,235", "2"]);
  });
});

describe("rows", () => {
  it("are quoted where they must be, and empty where there is nothing", () => {
    expect(csvOf([["a", 'b,"c"'], [1.5, null]])).toBe('a,"b,""c"""\n1.5,\n');
    expect(csvOf([["a\rb", -2]], "\r\n")).toBe('"a\rb",-2\r\n');
  });
});

describe("tokens", () => {
  it("show the label that the server made", () => {
    expect(visible({ ...token("Ċ", "\n"), label: "↵" })).toBe("↵");
    expect(visible(token("x", "a\u0000b\u2028"))).toBe("a\ufffdb\ufffd");
    expect(visible(token("[CLS]", "", true))).toBe("[CLS]");
    expect(visible(undefined)).toBe("");
  });

  it("that the model does not know show what was written, and the piece that it reads", () => {
    expect(visible({ ...token("[UNK]", "\u{1f600}"), unknown: true })).toBe("\u{1f600} [UNK]");
    expect(visible({ ...token("[UNK]", ""), unknown: true })).toBe("[UNK]");
    expect(label({ ...token("[UNK]", "x".repeat(40)), unknown: true }, 12)).toBe("xxxxx… [UNK]");
  });

  it("are cut between what people count as characters", () => {
    expect(short("👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 3)).toBe("👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦");
    expect(short("👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦👩‍👩‍👧‍👦", 3)).toBe("👩‍👩‍👧‍👦👩‍👩‍👧‍👦…");
    expect(label(token("x".repeat(4000)), 10)).toBe(`${"x".repeat(9)}…`);
  });

  it("of a list carry their turn in the text only where the list has the same word twice", () => {
    const text = ["When", "Mary", "and", "John", "went", ",", "John", "and"].map((word) => token(word, word));
    expect([...labelsOf(text, [1, 6, 3, 2])]).toEqual([[1, "Mary"], [6, "John, 2nd"], [3, "John, 1st"], [2, "and"]]);
    expect([...labelsOf(text, [3, 7]).values()]).toEqual(["John", "and"]);
  });

  it("are escaped in XML, where some characters cannot stand at all", () => {
    expect(xml("<script>&\"\u0001\ud800")).toBe("&lt;script&gt;&amp;&quot;\ufffd\ufffd");
  });
});

const tokens = ["[CLS]", "un", "##believ", "##able", "cats", "."].map((piece, i) => ({ piece, text: i ? piece.replace("##", "") : "", label: piece.replace("##", ""), special: !i, sink: !i, unknown: false }));
const words = [{ begin: 1, end: 4, text: "unbelievable" }, { begin: 4, end: 5, text: "cats" }, { begin: 5, end: 6, text: "." }];

describe("ruler labels", () => {
  it("name every token where there is room", () => {
    expect(rulerLabels(6, 0, 20, 200, 15, tokens, null).map((label) => label.text)).toEqual(["[CLS]", "un", "believ", "able", "cats", "."]);
  });

  it("name words at their first piece, with the stretch of all of them, and what belongs to no word", () => {
    const labels = rulerLabels(6, 0, 20, 200, 15, tokens, words);
    expect(labels.map((label) => [label.text, label.middle])).toEqual([["[CLS]", 10], ["unbelievable", 30], ["cats", 90], [".", 110]]);
    expect(labels.map((label) => label.stretch)).toEqual([null, [20, 80], null, null]);
  });

  it("are positions alone without tokens, and thinned where crowded", () => {
    expect(rulerLabels(100, 0, 2, 200, 15, null, null).map((label) => [label.position, label.text])[1]).toEqual([10, ""]);
  });
});
