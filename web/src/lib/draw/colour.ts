// Colours of maps. Weights use one ramp of even lightness steps (OKLab): paper to ink on the light page, ink to light on the
// dark one. Differences use two such arms. The hues of roles are in role-groups.ts.

export type Contrast = "linear" | "root";
export type Rgb = [number, number, number];

const STEPS = 256;

// OKLab stops. Lightness is monotone, so that a map printed in grey can still be read; a slight hue makes steps easier to see.
const LIGHT: Rgb[] = [[0.985, 0.0, 0.004], [0.9, -0.012, -0.022], [0.72, -0.03, -0.06], [0.5, -0.012, -0.1], [0.31, 0.01, -0.085], [0.17, 0.008, -0.03]];
const DARK: Rgb[] = [[0.185, -0.002, -0.012], [0.3, 0.0, -0.055], [0.46, -0.015, -0.09], [0.66, -0.035, -0.075], [0.84, -0.025, -0.02], [0.975, 0.0, 0.025]];
// Negative values, zero, positive values.
const LIGHT_BOTH: Rgb[] = [[0.36, 0.02, -0.13], [0.62, -0.02, -0.11], [0.85, -0.015, -0.04], [0.985, 0, 0.004], [0.85, 0.05, 0.045], [0.65, 0.12, 0.085], [0.42, 0.11, 0.06]];
const DARK_BOTH: Rgb[] = [[0.86, -0.03, -0.08], [0.62, -0.02, -0.12], [0.36, 0.0, -0.07], [0.185, -0.002, -0.012], [0.36, 0.05, 0.03], [0.62, 0.12, 0.08], [0.88, 0.06, 0.06]];
/** The colour of the lines over a sink that is left out. */
const HATCH: Record<"light" | "dark", Rgb> = { light: [176, 170, 158], dark: [94, 90, 86] };
/** The colour of a key that is not visible to a query: no weight at all, which is not a weight of 0. */
const ABSENT: Record<"light" | "dark", Rgb> = { light: [228, 224, 215], dark: [46, 43, 41] };

export interface Ramp {
  /** 256 colours, four bytes each. */
  colours: Uint8ClampedArray;
  absent: Rgb;
  hatch: Rgb;
}

const ramps = new Map<string, Ramp>();

export function ramp(dark: boolean, kind: "sequential" | "diverging" = "sequential"): Ramp {
  const key = `${dark}-${kind}`;
  const cached = ramps.get(key);
  if (cached) return cached;
  const stops = kind === "sequential" ? (dark ? DARK : LIGHT) : dark ? DARK_BOTH : LIGHT_BOTH;
  const colours = new Uint8ClampedArray(STEPS * 4);
  for (let i = 0; i < STEPS; i++) {
    const place = (i / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    const mixed = stops[low]!.map((v, c) => v + (stops[low + 1]![c]! - v) * (place - low)) as Rgb;
    colours.set([...fromOklab(mixed), 255], i * 4);
  }
  const ramp = { colours, absent: ABSENT[dark ? "dark" : "light"], hatch: HATCH[dark ? "dark" : "light"] };
  ramps.set(key, ramp);
  return ramp;
}

/** The place on the ramp, 0 to 255, of a value from 0 to `peak`. The root shows small weights beside large ones. */
export function step(value: number, peak: number, contrast: Contrast): number {
  if (!(peak > 0) || !(value > 0)) return 0;
  const share = Math.min(1, value / peak);
  return Math.round((contrast === "root" ? Math.sqrt(share) : share) * (STEPS - 1));
}

/** The place on the diverging ramp, 0 to 255, of a value from -peak to peak; 0 is at the middle, 127.5. */
export function stepBoth(value: number, peak: number, contrast: Contrast): number {
  const half = (STEPS - 1) / 2;
  return Math.round(half + (Math.sign(value) * step(Math.abs(value), peak, contrast)) / 2);
}

export function cssOf(ramp: Ramp, place: number): string {
  return `rgb(${rgbAt(ramp, place).join(" ")})`;
}

function rgbAt(ramp: Ramp, place: number): Rgb {
  const i = Math.max(0, Math.min(STEPS - 1, Math.round(place))) * 4;
  return [ramp.colours[i]!, ramp.colours[i + 1]!, ramp.colours[i + 2]!];
}

/** Black or white, whichever has the greater contrast with the ramp's colour at a place. */
export function inkOn(ramp: Ramp, place: number): string {
  return readsBestInWhite(rgbAt(ramp, place)) ? "#ffffff" : "#000000";
}

/** Whether white has a greater contrast with a colour (bytes) than black. The better one has at least 4.5 to 1 on any colour. */
export function readsBestInWhite(colour: Rgb): boolean {
  const [r, g, b] = colour.map((byte) => linear(byte / 255)) as Rgb;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b <= 0.179; // relative luminance, WCAG 2.1
}

/** Paints values (NaN is absent) as RGBA bytes; `both`: values are differences, from -peak to peak. */
export function paint(
  values: Float32Array, peak: number, ramp: Ramp, contrast: Contrast, both = false,
): Uint8ClampedArray<ArrayBuffer> {
  const bytes = new Uint8ClampedArray(values.length * 4);
  const { colours, absent } = ramp;
  const placeOf = both ? stepBoth : step;
  for (let i = 0, o = 0; i < values.length; i++, o += 4) {
    const value = values[i]!;
    if (Number.isNaN(value)) {
      bytes[o] = absent[0];
      bytes[o + 1] = absent[1];
      bytes[o + 2] = absent[2];
    } else {
      const c = placeOf(value, peak, contrast) * 4;
      bytes[o] = colours[c]!;
      bytes[o + 1] = colours[c + 1]!;
      bytes[o + 2] = colours[c + 2]!;
    }
    bytes[o + 3] = 255;
  }
  return bytes;
}

function linear(c: number): number {
  return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
}

function fromOklab([L, a, b]: Rgb): Rgb {
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const rgb = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return rgb.map((c) => {
    const v = Math.max(0, Math.min(1, c));
    return Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));
  }) as Rgb;
}

/** The scale that the address names; the root by default. */
export function contrastOf(text: string): Contrast {
  return text === "linear" ? "linear" : "root";
}

export const CONTRASTS = [
  { value: "root", label: "Square root", title: "Small weights show beside large ones" },
  { value: "linear", label: "Linear", title: "Twice the weight is drawn twice as dark" },
] as const;

export function contrastWords(contrast: Contrast): string {
  return `${contrast === "root" ? "square-root" : "linear"} scale`;
}

/** Colours of the page for pictures that stand alone. A test holds them equal to those of app.css. */
export function pageColours(dark: boolean): { paper: string; ink: string; ink2: string; ink3: string; accent: string } {
  return dark
    ? { paper: "#15171b", ink: "#e9e7e1", ink2: "#b0b2b5", ink3: "#8f9297", accent: "#f09a72" }
    : { paper: "#fbfaf7", ink: "#1b1e24", ink2: "#50555f", ink3: "#6d727c", accent: "#a8401f" };
}
