import { describe, expect, it } from "vitest";
import css from "../../src/app.css?raw";
import { pageColours, paint, ramp, type Rgb, step, stepBoth } from "../../src/lib/draw/colour";

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
    const found = lights(ramp(false, "diverging").colours);
    for (const i of [10, 60, 100]) expect(Math.abs(found[i]! - found[255 - i]!)).toBeLessThan(0.09);
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
    const found = ramp(false);
    const bytes = paint(new Float32Array([NaN, 0, 1]), 1, found, "root");
    expect(Array.from(bytes.subarray(0, 4))).toEqual([...found.absent, 255]);
    expect(Array.from(bytes.subarray(4, 7))).toEqual(at(found.colours, 0));
    expect(Array.from(bytes.subarray(8, 11))).toEqual(at(found.colours, 255));
  });
});
