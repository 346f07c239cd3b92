// Typesets the lessons' formulas: lab/lessons/formulas.json, from the plain text that a page and the terminal have (`Q K^T`) to
// TeX, becomes lab/lessons/formulas.mathml.json, from the plain text to MathML, by KaTeX. Browsers draw MathML themselves, so no
// formula costs JavaScript, on the server's page, in a notebook or in one file. `npm run formulas`.
import { readFileSync, writeFileSync } from "node:fs";
import katex from "katex";

const place = (name) => new URL(`../../src/manyheads/lab/lessons/${name}`, import.meta.url);

export function typeset() {
  const formulas = JSON.parse(readFileSync(place("formulas.json"), "utf8"));
  const mathml = ([plain, tex]) => {
    const html = katex.renderToString(tex, { output: "mathml", throwOnError: true });
    // what KaTeX puts around it: a <span>, and the TeX again, which a page does not show
    const math = html.match(/<math.*<\/math>/s)[0].replace(/<annotation.*?<\/annotation>/s, "").replace(/<\/?semantics>/g, "");
    // letters of a name one by one would each be set as a variable: KaTeX's <mi>h</mi><mi>e</mi> is the word "he"
    return [plain, math.replace(/(?:<mi mathvariant="normal">[a-z]<\/mi>){2,}/g, (letters) => `<mtext>${letters.replace(/<[^>]+>/g, "")}</mtext>`)];
  };
  return `${JSON.stringify(Object.fromEntries(Object.entries(formulas).map(mathml)), null, 1)}\n`;
}

if (process.argv[1] === new URL(import.meta.url).pathname) writeFileSync(place("formulas.mathml.json"), typeset());
