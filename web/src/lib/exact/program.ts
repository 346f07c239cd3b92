// The entry of exact.js. A page that needs it adds a script element, inline in a single file: no export of that can be reached, so
// the program leaves itself under a name and says so.
import type { ExactProgram } from "../api/exact";
import { Factors } from "./factors";
import { readHeads } from "./heads-file";
import { said } from "./said";

const program: ExactProgram = { factorsOf: Factors.ofSnapshot.bind(Factors), readHeads, said };
Object.assign(globalThis, { manyheadsExact: program });
globalThis.dispatchEvent?.(new Event("manyheads-exact"));
