// Made from the library's table of roles by `make web`, and held to it by a test. The groups of
// roles are in the order of legends and rankings; `name` is what the server calls `family` in a role. The last entry
// stands for a head without a role.

export const ROLE_GROUP_TABLE = [
  { name: "previous", letter: "P", colour: "#0072b2", words: "reads the token before" },
  { name: "next", letter: "N", colour: "#56b4e9", words: "reads the token after" },
  { name: "self", letter: "S", colour: "#04564a", words: "reads the token itself" },
  { name: "local", letter: "L", colour: "#009e73", words: "reads its neighbours, or a fixed step away" },
  { name: "sink", letter: "R", colour: "#6f6f6f", words: "parks on the first token or a mark" },
  { name: "duplicate", letter: "D", colour: "#d55e00", words: "reads the same token elsewhere" },
  { name: "induction", letter: "I", colour: "#cc79a7", words: "reads what followed an earlier copy" },
  { name: "punctuation", letter: "U", colour: "#e69f00", words: "reads punctuation" },
  { name: "content", letter: "C", colour: "#7f3113", words: "reads tokens for what they are: rare ones, numbers, names" },
  { name: "broad", letter: "B", colour: "#8c510a", words: "reads everything a little" },
  { name: "unlabelled", letter: "", colour: "#c9c4b8", words: "not enough evidence for a role" },
] as const;
