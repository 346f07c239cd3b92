// Asking a word: the row of one word in every head, and the heads in the order of how much of it goes to a second word.
import { isAbort } from "../../lib/api/source";
import { float32 } from "../../lib/api/envelope";
import { wordsOf, type AtlasHead, type RecordingInfo, type WordInfo } from "../../lib/api/types";
import type { Client } from "../../lib/api/client";
import { inSentence, percent, turnOf, upper } from "../../lib/draw/format";
import type { Session } from "../../lib/state/session.svelte";
import { BY_WORD, type View } from "../../lib/state/view.svelte";

const MOST_CELLS = 1 << 22; // of all heads' rows together, as on the server

/** The rows of one word: `values(head)[i]` is the weight to word `first + i`. */
interface Rows {
  recording: string;
  part: number;
  word: number;
  first: number;
  numWords: number;
  heads: Map<string, number>;
  weights: Float32Array;
  even: Float32Array;
}

export class Question {
  rows = $state.raw<Rows | null>(null);
  error = $state.raw<unknown>(null);
  #session: Session;
  #view: View;

  #info = $derived.by(() => this.#session.info);
  words = $derived.by<WordInfo[]>(() => (this.#info ? wordsOf(this.#info) : []));
  /** Whether rows can be had: of a long text a saved page holds blocks of cells. */
  possible = $derived.by(() => this.#info !== null && this.#info.min_level === 0 && this.words.length > 1);
  /** The indices of the word that is asked and of the one that it should find; -1 for none. */
  from = $derived.by(() => this.#indexOf(this.#view.fromWord));
  to = $derived.by(() => (this.from < 0 ? -1 : this.#indexOf(this.#view.toWord)));
  /** The rows of the word that is asked, once they are here. */
  answer = $derived.by(() => {
    const { rows } = this;
    return rows && rows.word === this.from && rows.recording === this.#info?.id && rows.part === this.#info.text ? rows : null;
  });
  /** Whether each word holds a sink. */
  sinks = $derived.by(() => this.words.map(({ begin, end }) => this.#info!.tokens.slice(begin, end).some((token) => token.sink)));
  /** The largest weight of all rows (but to sinks, where these are left out): the value of full colour. */
  peak = $derived.by(() => {
    const { answer } = this;
    let peak = 0;
    answer?.weights.forEach((value, i) => {
      if (value > peak && !(this.#view.sinksOut && this.sinks[answer.first + (i % answer.numWords)])) peak = value;
    });
    return peak;
  });

  constructor(client: Client, session: Session, view: View) {
    this.#session = session;
    this.#view = view;
    $effect(() => {
      void session.epoch;
      const [info, word] = [session.info, this.from];
      this.error = null;
      if (!info || word < 0 || !this.possible) return;
      const stop = new AbortController();
      const most = Math.max(1, Math.floor(MOST_CELLS / Math.max(1, session.heads.size)));
      const first = Math.max(0, Math.min(word - (most >> 1), this.words.length - most));
      client.wordRow(info.id, this.words[word]!.begin, `${first}:${first + most}`, info.text, stop.signal).then(
        (envelope) => {
          const [weights, even] = [float32(envelope, "weights"), float32(envelope, "even")];
          const heads = new Map((envelope.header["heads"] as string[]).map((head, i) => [head, i]));
          this.rows = { recording: info.id, part: info.text, word, first, numWords: weights.shape[1]!, heads, weights: weights.data, even: even.data };
        },
        (problem: unknown) => !isAbort(problem) && (this.error = problem),
      );
      return () => stop.abort();
    });
  }

  #indexOf(token: number | null): number {
    return token === null ? -1 : this.words.findIndex(({ begin, end }) => begin <= token && token < end);
  }

  text(word: number): string {
    return this.words[word]?.text ?? "";
  }

  /** A word as a claim names it: “the”, or the second “the” where it occurs again. */
  name(word: number): string {
    return inSentence(this.text(word), turnOf(this.words.map(({ text }) => text), word));
  }

  /** A head's row, a weight a word of the answer; null for none. */
  row(head: string): Float32Array | null {
    const { answer } = this;
    const index = answer?.heads.get(head);
    return !answer || index === undefined ? null : answer.weights.subarray(index * answer.numWords, (index + 1) * answer.numWords);
  }

  /** A head's weight from the asked word to another; NaN where it does not see it. */
  weight(head: string, word = this.to): number {
    return this.answer && word >= 0 ? (this.row(head)?.[word - this.answer.first] ?? NaN) : NaN;
  }

  /** What a head that looks evenly at all it sees would give. */
  chance(head: string, word = this.to): number {
    const { answer } = this;
    if (!answer) return NaN;
    const index = answer.even.length > answer.numWords ? (answer.heads.get(head) ?? 0) : 0;
    return answer.even[index * answer.numWords + word - answer.first] ?? NaN;
  }

  /** The share of a head's row that goes to sinks. */
  sinkShare(head: string): number {
    const { answer } = this;
    const row = this.row(head);
    return answer && row ? row.reduce((sum, value, i) => sum + (this.sinks[answer.first + i] && value > 0 ? value : 0), 0) : NaN;
  }

  /** Heads by their weight to the second word, largest first; those that do not see it last. */
  ordered<H extends Pick<AtlasHead, "head">>(heads: readonly H[]): H[] {
    const rank = (head: H) => this.weight(head.head);
    const value = (weight: number) => (Number.isNaN(weight) ? -1 : weight);
    return [...heads].sort((a, b) => value(rank(b)) - value(rank(a)));
  }

  /** The head that tells most about the asked word: by its weight to the second one, or else to any word of letters that is no sink
      (the farther, the more it tells: a head that looks a word back does so at every word). */
  telling(heads: readonly Pick<AtlasHead, "head">[]): string | null {
    const { answer } = this;
    if (!answer) return null;
    const candidates = this.words.flatMap(({ text }, word) => (word !== this.from && !this.sinks[word] && /\p{L}/u.test(text) ? [word] : []));
    const told = (head: string) =>
      this.to >= 0 ? this.weight(head) : Math.max(0, ...candidates.map((word) => (this.weight(head, word) || 0) * Math.log2(Math.max(1, Math.abs(word - this.from)))));
    const ranked = heads.map(({ head }) => ({ head, value: told(head) })).filter(({ value }) => value > 0);
    return ranked.sort((a, b) => b.value - a.value)[0]?.head ?? null;
  }

  /** The scene of one word that is played from here: of the asked word in its telling head, else of `link`, the text's most telling one. */
  scene(heads: readonly Pick<AtlasHead, "head">[], link: { head: string; query: number } | null | undefined): { head: string; query: number; name: string } | null {
    const head = this.from < 0 ? link?.head : this.telling(heads);
    const word = this.from < 0 ? this.#indexOf(link?.query ?? null) : this.from;
    return head && word >= 0 ? { head, query: this.from < 0 ? link!.query : this.words[word]!.begin, name: this.name(word) } : null;
  }

  /** Why no head links the two words, where none can; "" otherwise. */
  get refusal(): string {
    if (!this.answer || this.to < 0 || Array.from(this.#session.heads.keys()).some((head) => !Number.isNaN(this.weight(head)))) return "";
    const [from, to] = [this.name(this.from), this.name(this.to)];
    const late = this.to > this.from && this.#info?.layers.every((layer) => layer.causal);
    return late ? `${upper(to)} comes after ${from}, and this model looks back only: no head can see it.` : `No head lets ${from} see ${to}.`;
  }

  /** Asks a word, or lets it go. With a word asked, a second one orders the heads. */
  pick(word: number): void {
    const begin = this.words[word]!.begin;
    if (this.from < 0) this.#view.go({ fromWord: begin, toWord: null, ...this.#session.naming });
    else if (word === this.from) this.clear();
    else if (word === this.to) this.clear(true);
    else this.#view.go({ toWord: begin, sort: BY_WORD });
  }

  /** Lets both words go, or the second alone. */
  clear(second = false): void {
    const sort = this.#view.sort === BY_WORD ? "layer" : this.#view.sort;
    this.#view.go({ toWord: null, sort, ...(second ? {} : { fromWord: null }) });
  }

  /** "L3H1 reads “animal” from “it”: 68 %". */
  claim(head: string): string {
    return `${head} looks from ${this.name(this.from)} to ${this.name(this.to)}: ${percent(this.weight(head))}`;
  }
}

/** The positions of two words in a recording, the last that asks and the first that it should find; null where one does not
    occur. */
export function placesOf(info: RecordingInfo, query: string, key: string): { fromWord: number; toWord: number } | null {
  const words = wordsOf(info);
  const [from, to] = [words.findLast(({ text }) => text === query), words.find(({ text }) => text === key)];
  return from && to ? { fromWord: from.begin, toWord: to.begin } : null;
}

/** Whether each word follows the one before it without a blank in the text: "tired" and "." do. */
export function joined(text: string, words: readonly string[]): boolean[] {
  const folded = text.toLowerCase(); // a model may read small letters alone
  let end = 0;
  return words.map((word) => {
    const begin = folded.indexOf(word.toLowerCase(), end);
    const touches = begin === end && end > 0;
    if (begin >= 0 && word) end = begin + word.length;
    return touches;
  });
}

/** The command that asks the same in a terminal; a long text is cut between words. */
export function lookCommand(asked: { text: string; model: string | null; from: string; to: string }, most: number): string {
  const quoted = (text: string) => (/^[\w.-]+$/.test(text) ? text : `"${text.replace(/(["\\$`])/g, "\\$1")}"`);
  const options = `${asked.model ? ` --model ${quoted(asked.model)}` : ""} --from ${quoted(asked.from)} --to ${quoted(asked.to)}`;
  const room = most - options.length - "manyheads look ".length - 3;
  const plain = asked.text.replace(/\s+/g, " ").trim();
  const cut = plain.length > room ? `${plain.slice(0, Math.max(1, room)).replace(/\s\S*$/, "")} …` : plain;
  return `manyheads look ${quoted(cut).replace(/^(?!")(.*)$/, '"$1"')}${options}`;
}
