// Sentences of the library as the page sets them: with ’ in head’s and, where they are made to be read alone, “ ” for quotes.

/** Fields of answers that hold a sentence, or HTML with sentences. */
const SENTENCES = new Set([
  "words", "because", "verdict", "caveat", "caution", "note", "meaning", "title", "summary", "question", "right", "wrong", "solution", "hint", "next_question",
  "part_words", "per_token_words", "plan_words", "roles_because", "reason", "rule", "unavailable", "unreadable", "html", "about", "beside", "evidence", "place",
]);
/** Those whose quotes are words of a text, and never code. */
const SAID = new Set(["said", "figures", "linked", "headline"]);
/** Lists, or tables by name, of such sentences. */
const LISTS = new Set(["notes", "points", "warnings", "steps"]);
const MARKUP = /<pre[\s\S]*?<\/pre>|<code[\s\S]*?<\/code>|<[a-z/!][^>]*>/gi;

/** A text with ’ for an apostrophe: between letters, or after the s of several. Code and tags of HTML stay as they are. */
export function apostrophes(text: string): string {
  if (!text.includes("'")) return text;
  const plural = (text.match(/(?<![\p{L}\p{N}])'/gu) ?? []).length === 0; // else it may close a quote
  const set = (part: string) => {
    const inner = part.replace(/(\p{L}|\d)'(?=\p{L})/gu, "$1’");
    return plural ? inner.replace(/(?<=\p{L}s)'(?=\s)/gu, "’") : inner;
  };
  let [out, end] = ["", 0];
  for (const markup of text.matchAll(MARKUP)) {
    out += set(text.slice(end, markup.index)) + markup[0];
    end = markup.index + markup[0].length;
  }
  return out + set(text.slice(end));
}

/** A sentence of the library with the page's quotes. */
export function curled(words: string): string {
  return apostrophes(words.replace(/"([^"]*)"/g, "“$1”"));
}

/** An answer with its sentences set so, in place. */
export function spoken<T>(answer: T): T {
  if (Array.isArray(answer)) answer.forEach(spoken);
  else if (answer && typeof answer === "object" && !ArrayBuffer.isView(answer)) {
    const fields = answer as Record<string, unknown>;
    for (const [name, value] of Object.entries(fields)) {
      if (typeof value === "string") {
        if (SAID.has(name)) fields[name] = curled(value);
        else if (SENTENCES.has(name)) fields[name] = apostrophes(value);
      } else if (LISTS.has(name) && value && typeof value === "object") setAll(value as Record<string, unknown>);
      else spoken(value);
    }
  }
  return answer;
}

function setAll(list: Record<string, unknown>): void {
  for (const [key, value] of Object.entries(list)) {
    if (typeof value === "string") list[key] = apostrophes(value);
    else spoken(value);
  }
}
