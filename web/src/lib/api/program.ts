// Parts of the page that are no part of its first script, and are loaded when they are first needed: exact.js (maps), play.js (scenes),
// cells.js (the cells of lessons). The studio's server and a published folder have each beside studio.js, a single file holds it
// packed, a notebook's kernel hands it out. Each leaves itself under a name and says so: no export of an inline script can be reached.
import type { Source } from "./source";

const NAMES = { exact: "manyheadsExact", play: "manyheadsPlay", cells: "manyheadsCells" } as const;
const DOES = { exact: "computes maps", play: "plays scenes", cells: "computes the cells of lessons" } as const;
type Name = keyof typeof NAMES;
const programs: Partial<Record<Name, Promise<unknown>>> = {};

/** The program, loaded once. Throws an Error whose words say why it cannot be. `source`: where the page's answers come from, if that
    may be a notebook. */
export function pageProgram<Program>(name: Name, source?: Source): Promise<Program> {
  const program = (programs[name] ??= load(name, source));
  program.catch(() => delete programs[name]); // the next call tries again
  return program as Promise<Program>;
}

/** By a script element: the policies of all these pages allow that. */
async function load(name: Name, source?: Source): Promise<unknown> {
  const known = () => (globalThis as Record<string, unknown>)[NAMES[name]];
  if (known()) return known();
  const packed = document.getElementById(`manyheads-${name}`) as (HTMLElement & { unpacked?: () => Promise<string> }) | null;
  const script = document.createElement("script");
  script.type = "module";
  if (packed?.unpacked) script.textContent = await packed.unpacked();
  else if (source?.home === "notebook") script.textContent = new TextDecoder().decode((await source.get(`/${name}.js`)).orThrow().bytes);
  else script.src = `${name}.js`;
  await new Promise<void>((resolve, reject) => {
    addEventListener(`manyheads-${name}`, () => resolve(), { once: true });
    script.onerror = () => reject(new Error(`${name}.js, the part of this page that ${DOES[name]}, cannot be fetched`));
    document.head.append(script);
  });
  return known();
}
