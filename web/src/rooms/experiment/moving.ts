// Whose maps a plan can have moved. A head that is silenced looks where it looked: what it reads was there before it. Only
// the layers behind it read something else, and heads that were handed other weights look elsewhere themselves.
import { allHeads, headsNamed, type LayerShape } from "./heads";
import { headsOf, type Step } from "./steps";

interface Moving {
  /** Every head, those whose maps can have moved first. */
  heads: string[];
  /** Heads whose maps cannot have moved. */
  still: ReadonlySet<string>;
}

export function moving(plan: readonly Step[], layers: readonly LayerShape[]): Moving {
  const every = allHeads(layers);
  const changed = new Set<string>();
  const handed = new Set<string>(); // with the weights of others
  for (const step of plan) {
    for (const head of headsNamed(headsOf(step), layers) ?? []) {
      changed.add(head);
      if (step.step === "copy" || step.step === "average") handed.add(head);
    }
  }
  // Of one stack it is known what comes after what; of several only the whole plan is.
  const alone = new Set(layers.map((layer) => layer.stack)).size === 1;
  const inOrder = [...layers].sort((a, b) => a.layer - b.layer);
  const first = inOrder.find((layer) => allHeads([layer]).some((head) => changed.has(head)));
  const before = alone && first ? allHeads(layers.filter((layer) => layer.layer <= first.layer)) : [];
  const still = new Set(before.filter((head) => !handed.has(head)));
  const rest = every.filter((head) => !handed.has(head) && !still.has(head));
  return { heads: [...every.filter((head) => handed.has(head)), ...rest, ...every.filter((head) => still.has(head))], still };
}
