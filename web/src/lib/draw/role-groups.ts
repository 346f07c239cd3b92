// Groups of roles: each has a hue, a letter and plain words. The hues are those of Okabe and Ito and kin, as in the
// library's figures, and are the same in light and dark: a frame of two pixels must be recognised in both. A letter always
// stands beside the hue, for readers who cannot tell hues apart.
import { readsBestInWhite, type Rgb } from "./colour";
import { ROLE_GROUP_TABLE } from "./roles.generated";

export interface RoleGroup {
  name: string;
  letter: string;
  colour: string;
  /** The colour of the letter on `colour`. */
  ink: string;
  /** What a head of the group does. */
  words: string;
  /** Name and words, for legends and tooltips: "broad: reads everything a little". */
  label: string;
}

/** A role's name as words: "sink the first token" is one that parks there. */
export function roleName(name: string): string {
  return name.replace(/^sink (?=.)/, "parks on ");
}

export const ROLE_GROUPS: readonly RoleGroup[] = ROLE_GROUP_TABLE.map((group) => {
  const rgb = [1, 3, 5].map((start) => Number.parseInt(group.colour.slice(start, start + 2), 16)) as Rgb;
  return { ...group, label: `${group.name}: ${group.words}`, ink: readsBestInWhite(rgb) ? "#fff" : "#111" };
});
const BY_NAME = new Map(ROLE_GROUPS.map((group) => [group.name, group]));
const UNLABELLED = ROLE_GROUPS.at(-1)!;

/** The group of that name; the last one, "unlabelled", for no name and for a name that the table does not have. */
export function roleGroup(name: string | null | undefined): RoleGroup {
  return BY_NAME.get(name ?? "") ?? UNLABELLED;
}
