// Effects of heads on an answer: tokens side by side, the grid as a picture and as a table, moves over it, pinned heads. Pure
// functions.
import type { CsvRow } from "../../lib/api/csv";
import type { CircuitRun, HeadEffects, HeadPaths, PairReading, Token } from "../../lib/api/types";
import { cssOf, inkOn, pageColours, ramp, stepBoth } from "../../lib/draw/colour";
import { xml } from "../../lib/draw/export";
import { sharedBy } from "../../lib/draw/format";
import { placeOf, rowsOf } from "../experiment/heads";

/** One place of two texts: the token of each, and whether they are the same there. "after": behind the first difference of two
    texts of unlike length, where places do not belong together. */
export interface Column {
  position: number;
  clean: Token | null;
  corrupted: Token | null;
  state: "same" | "differs" | "after";
}

export function columnsOf({ clean, corrupted, differs, aligned }: Pick<PairReading, "clean" | "corrupted" | "differs" | "aligned">): Column[] {
  const unlike = new Set(differs);
  const first = differs[0] ?? Infinity;
  return Array.from({ length: Math.max(clean.tokens.length, corrupted.tokens.length) }, (_, position) => ({
    position,
    clean: clean.tokens[position] ?? null,
    corrupted: corrupted.tokens[position] ?? null,
    state: unlike.has(position) ? "differs" : !aligned && position > first ? "after" : "same",
  }));
}

/** A token of an answer with its leading blanks visible: "␣mode". */
export function answerLabel(text: string): string {
  return text.replace(/^ +/, (blanks) => "␣".repeat(blanks.length)).replace(/\n/g, "↵").replace(/\t/g, "⇥");
}

/** A share of the answer: "+0.34", "−0.02", "0.00". */
export function effectText(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "none";
  const text = value.toFixed(2);
  return Number(text) === 0 ? "0.00" : value > 0 ? `+${text}` : text.replace("-", "−");
}

const MOST_ACROSS = 8; // cells of a row on a phone: a number of four letters fits

/** Cells in a row on a phone: all of a layer, or of a wide one as many in each row: 14 heads as 7 and 7, not as 6, 6 and 2. */
export function evenColumns(numHeads: number): number {
  return numHeads <= MOST_ACROSS + 1 ? numHeads : Math.ceil(numHeads / Math.ceil(numHeads / MOST_ACROSS));
}

/** The largest effect of either sign: the end of the colours' scale. */
export function peakOf(effects: readonly (number | null)[]): number {
  return Math.max(1e-9, ...effects.map((value) => Math.abs(value ?? 0) || 0));
}

/** From the smallest to the largest control; null without controls. */
export function bandOf(control: readonly number[]): [number, number] | null {
  return control.length ? [Math.min(...control), Math.max(...control)] : null;
}

/** Where a value lies between two ends, in percent. */
export function percentAt(value: number, [low, high]: readonly [number, number]): number {
  return high > low ? (100 * (Math.min(high, Math.max(low, value)) - low)) / (high - low) : 50;
}

/** The heads in the order of their effects, the largest of either sign first. */
export function ranked({ heads, effects }: Pick<HeadEffects, "heads" | "effects">): string[] {
  const size = new Map(heads.map((head, i) => [head, Math.abs(effects[i] ?? 0) || 0]));
  return [...heads].sort((a, b) => size.get(b)! - size.get(a)!);
}

type Rows = ReturnType<typeof rowsOf>;

/** The heads, but the first of a layer, with which a group that shares one key/value head begins. */
export function groupStartsOf(rows: Rows, groups: readonly number[]): Set<string> {
  const sharing = rows.filter(({ heads }) => new Set(heads.map(({ index }) => groups[index])).size < heads.length);
  return new Set(sharing.flatMap(({ heads }) => heads.flatMap(({ name, index }, i) => (i && groups[index] !== groups[heads[i - 1]!.index] ? [name] : []))));
}

/** How many query heads share one key/value head, in words; "" where each has its own or layers differ. */
export function sharingWords(rows: Rows, groups: readonly number[]): string {
  const counts = new Set(rows.map(({ heads }) => heads.length / Math.max(1, new Set(heads.map(({ index }) => groups[index])).size)));
  const [count = 1] = counts;
  return counts.size === 1 && count > 1 ? sharedBy(count) : "";
}

/** The head that a key leads to over rows of layers; null for a key that leads nowhere. */
export function moved(heads: readonly string[], from: string, key: string): string | null {
  const rows = rowsOf(heads).map((row) => row.heads.map(({ name }) => name));
  const row = rows.findIndex((names) => names.includes(from));
  const column = rows[row]?.indexOf(from) ?? -1;
  if (column < 0) return null;
  const above = (names: string[] | undefined) => names?.[Math.min(column, names.length - 1)] ?? null;
  switch (key) {
    case "ArrowUp": return above(rows[row - 1]);
    case "ArrowDown": return above(rows[row + 1]);
    case "ArrowLeft": return rows[row]![column - 1] ?? rows[row - 1]?.at(-1) ?? null;
    case "ArrowRight": return rows[row]![column + 1] ?? rows[row + 1]?.[0] ?? null;
    case "Home": return heads[0] ?? null;
    case "End": return heads.at(-1) ?? null;
    default: return null;
  }
}

/** The pinned heads of an address, as far as the model has them, in the model's order. */
export function pinsIn(text: string, heads: readonly string[]): string[] {
  const named = new Set(text.split(",").map((name) => name.trim()));
  return heads.filter((head) => named.has(head));
}

/** A row a head: its place, its effect, and whether it is larger than every control's. */
export function effectRows({ heads, effects, beyond }: HeadEffects): CsvRow[] {
  const larger = new Set(beyond);
  const rows = heads.map((head, i): CsvRow => {
    const place = placeOf(head);
    return [head, place?.stack ?? "", place?.layer ?? null, place?.index ?? null, effects[i] ?? null, larger.has(head) ? 1 : 0];
  });
  return [["head", "stack", "layer", "index", "effect", "beyond_controls"], ...rows];
}

export function pathRows({ head, paths }: HeadPaths): CsvRow[] {
  return [["sender", "receiver", "channel", "effect"], ...paths.map((path): CsvRow => [path.sender, head, path.channel, path.effect])];
}

/** The set run alone, then random sets: what each keeps, and what is left without it. */
export function runRows(run: CircuitRun): CsvRow[] {
  return [
    ["set", "keeps", "left_without"],
    [run.heads.join(" "), run.kept, run.left],
    ...run.random_kept.map((kept, i): CsvRow => [`random ${i + 1}`, kept, run.random_left[i] ?? null]),
  ];
}

const SANS = "system-ui, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

/** The grid as an SVG that stands alone: a row a layer, a square a head; the verdict above, the scale and the controls below. */
export function gridSvg(result: HeadEffects, pinned: readonly string[], dark: boolean): string {
  const [cell, height, left, top, apart] = [46, 30, 56, 64, 8];
  const rows = rowsOf(result.heads);
  const starts = groupStartsOf(rows, result.kv_groups);
  const sharing = sharingWords(rows, result.kv_groups);
  /** Pixels of a row's columns; groups of heads stand apart. */
  const placesIn = (heads: Rows[number]["heads"]) => heads.map((_, x) => left + x * cell + apart * heads.slice(0, x + 1).filter(({ name }) => starts.has(name)).length);
  const colours = ramp(dark, "diverging");
  const { paper, ink, ink2, accent } = pageColours(dark);
  const peak = peakOf(result.effects);
  const beyond = new Set(result.beyond);
  const most = Math.max(1, ...rows.map((row) => row.heads.length));
  const widest = placesIn(rows.find(({ heads }) => heads.length === most)?.heads ?? []);
  const [width, depth] = [Math.max((widest.at(-1) ?? left) + cell + 16, 460), top + rows.length * height + 64];
  const cells = rows.flatMap((row, y) => [
    `<text x="${left - 8}" y="${top + y * height + height / 2 + 4}" text-anchor="end" fill="${ink2}">${xml(row.name)}</text>`,
    ...row.heads.map(({ name, index }, i) => {
      const x = placesIn(row.heads)[i]!;
      const place = stepBoth(result.effects[index] ?? 0, peak, "linear");
      const line = pinned.includes(name) ? ` stroke="${accent}" stroke-width="2.5"` : beyond.has(name) ? ` stroke="${ink}" stroke-width="1.5"` : "";
      const at = `x="${x + 1}" y="${top + y * height + 1}"`;
      return `<rect ${at} width="${cell - 2}" height="${height - 2}" rx="3" fill="${cssOf(colours, place)}"${line}><title>${xml(name)}: ${effectText(result.effects[index])}</title></rect>` +
        `<text x="${x + 0.5 * cell}" y="${top + (y + 0.5) * height + 4}" text-anchor="middle" fill="${inkOn(colours, place)}">${effectText(result.effects[index])}</text>`;
    }),
  ]);
  const heads = widest.map((place, x) => `<text x="${place + 0.5 * cell}" y="${top - 6}" text-anchor="middle" fill="${ink2}">H${x}</text>`);
  const band = bandOf(result.control);
  const foot = [
    `shares of the answer: ${effectText(-peak)} to ${effectText(peak)}, 0 is paper${sharing ? `; ${sharing}` : ""}`,
    `${band ? `controls ${effectText(band[0])} to ${effectText(band[1])}; framed: beyond all of them` : "no controls"}. ${result.model}, ${result.what}, ${result.direction}`,
  ];
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${depth}" viewBox="0 0 ${width} ${depth}" font-family="${SANS}" font-size="11">
<title>${xml(result.verdict)}</title>
<rect width="${width}" height="${depth}" fill="${paper}"/>
<text x="12" y="26" fill="${ink}" font-size="15" font-weight="600">${xml(result.verdict)}</text>
${heads.join("\n")}
${cells.join("\n")}
${foot.map((words, i) => `<text x="12" y="${depth - 34 + 18 * i}" fill="${ink2}">${xml(words)}</text>`).join("\n")}
</svg>
`;
}
