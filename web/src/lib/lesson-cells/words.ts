// Numbers and texts written as the library's Python writes them, to the letter. A tie goes to the even digit, as in Python, where
// toFixed and toPrecision round it up.

/** Python's `f"{value:.{places}f}"`. */
export function fixed(value: number, places: number): string {
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  const rounded = Math.abs(value).toFixed(places);
  const exact = Math.abs(value).toFixed(Math.min(100, places + 30));
  const end = exact.indexOf(".") + 1 + places;
  const cut = exact.slice(0, places ? end : end - 1);
  return sign + (/^50*$/.test(exact.slice(end)) && isEven(cut) ? cut : rounded);
}

/** Python's `f"{value:.{figures}g}"`. */
export function general(value: number, figures = 6): string {
  if (value === 0) return Object.is(value, -0) ? "-0" : "0";
  const size = Math.abs(value);
  const [exact = ""] = size.toExponential(Math.min(100, figures + 29)).split("e");
  let [digits = "", exponent = ""] = size.toExponential(figures - 1).split("e");
  const cut = figures === 1 ? exact.slice(0, 1) : exact.slice(0, figures + 1);
  if (/^\.?50*$/.test(exact.slice(cut.length)) && isEven(cut)) digits = cut;
  const power = Number(exponent);
  const sign = value < 0 ? "-" : "";
  const shortened = (text: string) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (power >= -4 && power < figures) return sign + shortened(fixed(size, figures - 1 - power));
  return `${sign}${shortened(digits)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}

/** With thousands parted by commas: Python's `f"{value:,}"`, of a whole number or of one that is written already. */
export function grouped(value: number | string): string {
  const [, whole = "", rest = ""] = /^(-?\d+)(.*)$/.exec(String(value)) ?? [];
  return whole.replace(/\B(?=(\d{3})+$)/g, ",") + rest;
}

/** Python's `repr` of a text. */
export function quote(text: string): string {
  const mark = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = Array.from(text, (character) => {
    if (character === "\\" || character === mark) return `\\${character}`;
    if (!/[\p{C}\p{Z}]/u.test(character) || character === " ") return character;
    const named = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
    const code = character.codePointAt(0)!.toString(16);
    return named ?? (code.length <= 2 ? `\\x${code.padStart(2, "0")}` : code.length <= 4 ? `\\u${code.padStart(4, "0")}` : `\\U${code.padStart(8, "0")}`);
  });
  return mark + escaped.join("") + mark;
}

/** The first characters of a text, counted as Python counts them. */
export function beginning(text: string, most: number): string {
  return Array.from(text).slice(0, most).join("");
}

/** A shape as Python writes a tuple. */
export function tuple(shape: readonly number[]): string {
  return `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
}

const SINGULAR = /(?<![\p{L}\p{N}_.,/-])1 ((?:more |other |query |KV |key\/value |random |wide |small )?)(heads|texts|tokens|keys|marks|layers|words|cases|rows|columns|questions|labels|tests|times|cells|GPUs|products|sets)(?![\p{L}\p{N}_])/gu;

/** The words with the singular behind a 1. */
export function singular(words: string): string {
  return words.replace(SINGULAR, (_, kind: string, noun: string) => `1 ${kind}${noun === "times" ? "time" : noun.slice(0, -1)}`);
}

/** A token of a text in a sentence: 'cat'. What is only numbered stays as it is: token 2. */
export function quoted(token: string): string {
  return /^[a-z]+ ?\d+$/.test(token) ? token : `'${token}'`;
}

/** Labels with numbers: token 0, token 1; d0, d1. */
export function numbered(word: string, count: number): string[] {
  return Array.from({ length: count }, (_, i) => (word.length > 1 ? `${word} ${i}` : `${word}${i}`));
}

/** The largest prefix in which a count is at least 1, and its factor. */
export function scaled(most: number): [string, number] {
  const units: [string, number][] = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6]];
  return units.find(([, factor]) => most >= factor) ?? ["", 1];
}

/** A count as 8.59 GFLOP. */
export function inFlops(count: number): string {
  const [prefix, factor] = scaled(count);
  return `${general(count / factor, 3)} ${prefix}FLOP`;
}

function isEven(digits: string): boolean {
  return /[02468]$/.test(digits);
}
