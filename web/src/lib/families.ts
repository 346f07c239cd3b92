// Families of roles: a hue, a letter and plain words each. Hues are Okabe and Ito's eight and kin, as in our figures; the same in light
// and dark, since a frame of two pixels needs to be known again, and a letter always stands beside it.

interface Family {
  name: string;
  letter: string;
  colour: string;
  /** The colour of its letter on that colour. */
  ink: string;
  /** What such a head does, for a legend. */
  words: string;
}

const FAMILIES: Family[] = [
  family("previous", "P", "#0072b2", "#fff", "reads the token before"),
  family("next", "N", "#56b4e9", "#111", "reads the token after"),
  family("self", "S", "#999933", "#111", "reads the token itself"),
  family("local", "L", "#009e73", "#111", "reads its neighbours, or a fixed step away"),
  family("sink", "R", "#8a6d5b", "#fff", "rests: most goes to a token that holds no news"),
  family("punctuation", "U", "#e69f00", "#111", "reads punctuation"),
  family("duplicate", "D", "#d55e00", "#111", "reads the same token elsewhere"),
  family("induction", "I", "#cc79a7", "#111", "reads what followed an earlier copy"),
  family("content", "C", "#f0e442", "#111", "reads tokens for what they are: rare ones, numbers, names"),
  family("broad", "B", "#aa3377", "#fff", "reads everything a little"),
];
const UNLABELLED = family("unlabelled", "", "#8c9096", "#111", "no role: the evidence is not enough for a label");
const KNOWN = new Map([...FAMILIES, UNLABELLED].map((f) => [f.name, f]));

function family(name: string, letter: string, colour: string, ink: string, words: string): Family {
  return { name, letter, colour, ink, words };
}

export const families: readonly Family[] = [...FAMILIES, UNLABELLED];

export function familyOf(name: string | null | undefined): Family {
  return KNOWN.get(name ?? "") ?? UNLABELLED;
}
