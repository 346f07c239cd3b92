// Choices that fill other boxes of a live cell: what is shown is then what is computed with.
import type { Parameter } from "../../lib/types";

/** What is needed of a `Parameter`. */
export type Filling = Pick<Parameter, "name" | "choices" | "fills">;
export type Values = Record<string, string | number>;

/** The values with one changed: a choice fills its boxes, and a change in a filled box goes over to the reader's own. */
export function withChange(parameters: readonly Filling[], values: Values, changed: Filling, value: string | number): Values {
  const next: Values = { ...values, [changed.name]: value, ...changed.fills[String(value)] };
  for (const { name, choices, fills } of parameters) {
    const filled = fills[String(next[name])];
    const own = choices.find((each) => !(each in fills));
    if (filled && own !== undefined && changed.name in filled && filled[changed.name] !== value) next[name] = own;
  }
  return next;
}

/** Where a slider begins, so that the value that a parameter has is one of its stops: 64 for 512 from 1 in steps of 64. */
export function firstStop({ low, step, value }: Pick<Parameter, "low" | "step" | "value">): number | undefined {
  if (low === null) return undefined;
  return step === null ? low : Number(value) - Math.floor((Number(value) - low) / step + 1e-9) * step;
}
