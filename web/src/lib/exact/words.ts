// Words of a text and tokens as people read them, by the rules of texts/words.py, which a test holds this to: words are runs
// without white space, each mark a word of its own; a token is of the word that its first character lies in. Places count
// characters as Python has them (code points).

export interface TextTokens {
  pieces: string[];
  special: boolean[];
  /** Characters of each token in `characters`, [begin, end]; null where they are not known. */
  offsets: [number, number][] | null;
  characters: string[];
}

interface Unit {
  begin: number;
  end: number;
  text: string;
  isWord: boolean;
}

const SUBWORD_MARKS = ["##", "▁", "Ġ", "Ċ", "</w>"];
const INNER_MARKS = "'\u2019-\u2010\u2011";
const SPACES: Record<string, string> = { " ": "␣", "\n": "↵", "\r": "↵", "\t": "⇥" };
const MOST_SPACES = 4;
const JOINER = "\u200d";
const isBlank = (char: string) => (/\s/.test(char) && char !== "\ufeff") || "\u0085\x1c\x1d\x1e\x1f".includes(char);
const isSpace = (char: string) => isBlank(char) || char === "\u200b";
const isMark = (char: string) => /[\p{P}\p{S}]/u.test(char);
const isDigit = (char = "") => /\p{Nd}/u.test(char);
const isFlagLetter = (char = "") => /[\u{1f1e6}-\u{1f1ff}]/u.test(char);

/** What stands at a token in the text as it was written. */
export function surfaceOf({ pieces, special, offsets, characters }: TextTokens, i: number): string {
  if (special[i]) return "";
  const [begin, end] = offsets?.[i] ?? [0, 0];
  if (offsets && characters.length && end > begin) return stripped(characters.slice(begin, end));
  let bare = pieces[i]!;
  for (const mark of SUBWORD_MARKS) if (bare.startsWith(mark)) bare = bare.slice(mark.length);
  return stripped([...(bare.endsWith("</w>") ? bare.slice(0, -4) : bare)]);
}

/** Each token as people read it, never empty. */
export function labelsOf({ pieces, special, offsets, characters }: TextTokens, allOrdinary: () => string[]): string[] {
  let spell: ((piece: string) => number[]) | null = null;
  return pieces.map((piece, i) => {
    let written = "";
    if (!special[i]) {
      if (offsets && characters.length) written = characters.slice(...offsets[i]!).join("");
      if (!written) written = shown((spell ??= spellingOf(allOrdinary()))(piece));
    }
    return readable([...written]) || piece;
  });
}

/** A text's words that have tokens, and its tokens of no word, in the order of their first tokens; empty where none is a word. */
export function unitsOf(tokens: TextTokens, allOrdinary: () => string[]): Unit[] {
  const { pieces, special } = tokens;
  let { offsets, characters } = tokens;
  const covers = (span: [number, number], i: number) => span[1] > span[0] && !special[i];
  const known = offsets && characters.length && (offsets.some(covers) || special.every(Boolean));
  if (!known || !offsets) [characters, offsets] = spelt(pieces, special, spellingOf(allOrdinary()));
  const owner = new Int32Array(characters.length).fill(-1);
  const spans = spansOf(characters);
  spans.forEach(([begin, end], word) => owner.fill(word, begin, end));
  const units = new Map<number | string, Unit>();
  offsets.forEach(([begin, end], i) => {
    let word = -1;
    for (let place = begin; place < Math.min(end, characters.length) && word < 0 && !special[i]; place++) {
      if (isSpace(characters[place]!)) continue;
      word = owner[place]!;
      break;
    }
    const unit = units.get(word < 0 ? `token ${i}` : word);
    if (unit) [unit.begin, unit.end] = [Math.min(unit.begin, i), Math.max(unit.end, i + 1)];
    else if (word < 0) units.set(`token ${i}`, { begin: i, end: i + 1, text: pieces[i]!, isWord: false });
    else units.set(word, { begin: i, end: i + 1, text: characters.slice(...spans[word]!).join(""), isWord: true });
  });
  const listed = [...units.values()];
  return listed.some((unit) => unit.isWord) ? listed : [];
}

function spansOf(text: string[]): [number, number][] {
  const spans: [number, number][] = [];
  for (let begin = 0; begin < text.length; ) {
    if (isSpace(text[begin]!)) {
      begin += 1;
      continue;
    }
    const end = isMark(text[begin]!) ? endOfMark(text, begin) : endOfRun(text, begin);
    spans.push([begin, end]);
    begin = end;
  }
  return spans;
}

function endOfRun(text: string[], begin: number): number {
  for (let end = begin + 1; end < text.length; end++) {
    const [before, char, after = ""] = [text[end - 1]!, text[end]!, text[end + 1]];
    if (isSpace(char)) return end;
    const inside = (INNER_MARKS.includes(char) && /[\p{L}\p{N}]/u.test(after)) || (".,".includes(char) && isDigit(before) && isDigit(after));
    if (isMark(char) && !inside) return end;
  }
  return text.length;
}

function endOfMark(text: string[], begin: number): number {
  let end = begin + 1;
  if (isFlagLetter(text[begin]) && isFlagLetter(text[end])) end += 1;
  for (; end < text.length; end++) {
    const char = text[end]!;
    const joined = text[end - 1] === JOINER && /\p{S}/u.test(char);
    if (!joined && !(/[\p{M}\u{1f3fb}-\u{1f3ff}]/u.test(char) || (/\p{Cf}/u.test(char) && !isSpace(char)))) break;
  }
  return end;
}

// ---------------------------------------------------------------------------------- texts as the marks of pieces spell them

const UTF8 = new TextEncoder();
const PRINTABLE = (byte: number) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
/** GPT-2's letters for bytes: printable ones stand for themselves, the others for 256 and up, in order. */
const BYTE_OF = new Map<string, number>();
for (let byte = 0, next = 256; byte < 256; byte++) BYTE_OF.set(String.fromCodePoint(PRINTABLE(byte) ? byte : next++), byte);

const SPELLINGS: [(pieces: string[]) => boolean, (piece: string) => Iterable<number>][] = [
  [(pieces) => pieces.some((piece) => piece.startsWith("▁")), (piece) => {
    const byte = /^<0x([0-9A-Fa-f]{2})>$/.exec(piece)?.[1];
    return byte ? [parseInt(byte, 16)] : UTF8.encode(piece.replaceAll("▁", " "));
  }],
  [(pieces) => pieces.some((piece) => /[ĠĊ]/.test(piece)), (piece) => {
    const bytes = [...piece].map((char) => BYTE_OF.get(char));
    return bytes.every((byte) => byte !== undefined) ? (bytes as number[]) : UTF8.encode(piece);
  }],
  [(pieces) => pieces.some((piece) => piece.endsWith("</w>")), (piece) => UTF8.encode(piece.replaceAll("</w>", " "))],
  [(pieces) => pieces.some((piece) => /^##./su.test(piece)), (piece) => UTF8.encode(/^##./su.test(piece) ? piece.slice(2) : ` ${piece}`)],
  [(pieces) => pieces.length > 0 && pieces.every((piece) => [...piece].length === 1), (piece) => {
    const code = piece.codePointAt(0)!;
    return code < 256 ? [code] : UTF8.encode(piece);
  }],
  [() => true, (piece) => UTF8.encode(` ${piece}`)],
];

function spellingOf(ordinary: string[]): (piece: string) => number[] {
  const [, spell] = SPELLINGS.find(([hasMark]) => hasMark(ordinary))!;
  return (piece) => [...spell(piece)];
}

/** The characters that bytes spell, a stray byte as itself, each with the bytes that it takes. */
function* decoded(bytes: number[]): Generator<{ char: string; size: number; stray: boolean }> {
  for (let i = 0; i < bytes.length; ) {
    const size = [4, 3, 2, 1].find((n) => {
      const char = new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(bytes.slice(i, i + n)));
      return i + n <= bytes.length && [...char].length === 1 && char !== "\ufffd";
    });
    const taken = bytes.slice(i, i + (size ?? 1));
    yield { char: new TextDecoder("utf-8", { ignoreBOM: true }).decode(new Uint8Array(taken)), size: size ?? 1, stray: size === undefined };
    i += size ?? 1;
  }
}

function shown(bytes: number[]): string {
  let [out, place] = ["", 0];
  for (const { char, size, stray } of decoded(bytes)) {
    out += stray ? `\\x${bytes[place]!.toString(16).padStart(2, "0")}` : char;
    place += size;
  }
  return out;
}

function spelt(pieces: string[], special: boolean[], spell: (piece: string) => number[]): [string[], [number, number][]] {
  const parts = pieces.map((piece, i) => (special[i] ? [32] : spell(piece)));
  const [characters, owners]: [string[], number[]] = [[], []];
  for (const { char, size } of decoded(parts.flat())) {
    for (let i = 0; i < size; i++) owners.push(characters.length);
    characters.push(char);
  }
  let index = 0;
  const spans = parts.map((part, i): [number, number] => {
    const begin = owners[index] ?? characters.length;
    index += part.length;
    return [begin, part.length && !special[i] ? owners[index - 1]! + 1 : begin];
  });
  return [characters, spans];
}

function readable(characters: string[]): string {
  const words = stripped(characters);
  if (words) return words;
  let out = "";
  for (const run of characters.map((char) => SPACES[char] ?? "␣").join("").matchAll(/(.)\1*/gu)) {
    out += run[0].length <= MOST_SPACES ? run[0] : `${run[1]}×${run[0].length}`;
  }
  return out;
}

function stripped(characters: string[]): string {
  let [begin, end] = [0, characters.length];
  while (begin < end && isBlank(characters[begin]!)) begin += 1;
  while (end > begin && isBlank(characters[end - 1]!)) end -= 1;
  return characters.slice(begin, end).join("");
}
