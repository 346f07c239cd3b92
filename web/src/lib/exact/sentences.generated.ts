// Made from manyheads.circuits.says.outputs by `make web` (a test holds it): what a head says, in words.

export const SENTENCES = {
  "blind": "{me} sees nothing here.",
  "nobody": "{me} found little to ask for: {look} of its look goes to nobody.",
  "parked": "{me} found little to ask for: {look} of its look parks on {top}, which {says} {heard} of the answer.",
  "parked, silent": "{me} found little to ask for: {look} of its look parks on {top}; this head says next to nothing.",
  "parked, unheard": "{me} found little to ask for: {look} of its look parks on {top}.",
  "silent": "{me} looks most at {top} ({look}), and this head says next to nothing here.",
  "everyone": "{me} listens to everyone a little.",
  "everyone, unheard": "{me} looks at everyone a little.",
  "itself": "{me} answers itself: {look} of the look, {heard} of what this head says.",
  "answered": "{me} asked and {top} answered: {look} of the look, {heard} of what this head says.",
  "another": "{me} looks most at {top} ({look}) and hears most of {loudest} ({heard}).",
  "unheard": "{me} looks most at {top}: {look} of the look.",
  "layer": "{looks} became one vector; the head that found {top} wrote {wrote} of it.",
  "layer, parked": "{looks} became one vector; {head} wrote {wrote} of it, more than any other.",
  "pass": "Layer {layer} moved {me} most: {share} of what it became. There {head} looks at {top}.",
  "pass, next": "After {me} comes {next}, the model says ({chance}). Layer {layer} moved it most: {share}.",
  "layer, unheard": "{looks} at the same text; {head} looks most firmly: {look} of its look is on {top}."
} as const;
export const FIGURES = {
  "loudest": "loudest: {loudest}, {heard} of what this head says",
  "parked": "{top} takes {look} of the look and says {heard} of the answer",
  "next": "next: {top}, {look} of the look, {heard} of the answer",
  "look": "next: {top}, {look} of the look",
  "alone": "{heads}: no single head speaks alone",
  "most": "{heads}: one head speaks for most"
} as const;
export const COUNTS = [
  "no",
  "one",
  "two",
  "three",
  "four",
  "five",
  "six",
  "seven",
  "eight",
  "nine",
  "ten",
  "eleven",
  "twelve"
] as const;
export const SILENT = 0.15;
export const PARKED = 0.5;
export const SPREAD = 2.0;
export const FOUND = 0.25;
export const NOTED = 0.01;
export const LEAST_KEYS = 3;
export const LEAST_SHARE = 0.02;
