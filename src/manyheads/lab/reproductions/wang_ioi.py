"""`wang-ioi`: who was given something? The heads by which a pretrained model names the other person, and their circuit.

Heads are chosen on one half of the sentences and measured on the other. A role is where a head looks and what it
carries: by attribution for those that write to the answer, by path patching for those that speak to them.
Source: Wang et al. 2022, Interpretability in the wild, sections 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from manyheads.circuits import Attribution, logit_attribution, measure_circuit, patch, path_effects
from manyheads.edits import applied
from manyheads.heads import Head
from manyheads.inputs import record
from manyheads.lab.reproductions import prose
from manyheads.lab.reproductions.prose import others_like
from manyheads.lab.reproductions.reproduction import Claim, Reproduction, Result, Row, Task, less
from manyheads.lab.training.charts import DOTS, Chart, Points, PointsPanel
from manyheads.lab.training.runs import Progress
from manyheads.models import LoadedModel
from manyheads.plan import Ablate, Plan

NAMES = (
    "Mary", "John", "Tom", "Anna", "Paul", "Sarah", "David", "Emma", "James", "Alice", "Peter", "Kate", "Mark", "Lisa",
    "Henry", "Rachel", "Simon", "Laura", "George", "Jane", "Michael", "Susan", "Robert", "Helen", "Jack", "Lucy",
    "Daniel", "Grace", "Adam", "Julia", "Martin", "Claire", "Frank", "Diana", "Richard", "Ruth", "Andrew", "Rose",
    "Charles", "Linda", "Steven", "Karen", "Brian", "Nancy", "Kevin", "Maria", "Eric", "Amy", "Jason", "Rebecca",
)  # fmt: skip
TEMPLATES = (
    "Then, {a} and {b} went to the {place}. {subject} gave a {thing} to",
    "When {a} and {b} got a {thing} at the {place}, {subject} decided to give it to",
    "After {a} and {b} went to the {place}, {subject} gave a {thing} to",
    "While {a} and {b} were working at the {place}, {subject} gave a {thing} to",
    "Then, {a} and {b} had a long argument, and afterwards {subject} said to",
    "Afterwards, {a} and {b} went to the {place}. {subject} gave a {thing} to",
)
"""Six of the paper's fifteen."""
PLACES = ("store", "garden", "restaurant", "school", "hospital", "office", "house", "station")
THINGS = ("ring", "kiss", "bone", "basketball", "computer", "necklace", "drink", "snack")

LOOK = 0.25  # the mean weight from which a head looks at a place
LEAST = 0.01  # of the answer's lead, or of the gap: what a head of a role carries at least
CANDIDATES = 6  # heads that look there most, of which paths are measured


class Role(NamedTuple):
    """Heads whose row at `row` looks at `key`; `count`: as many as the paper has, at most."""

    row: str
    key: str
    count: int

    @property
    def words(self) -> str:
        return f"{self.row} to {self.key}"


ROLES = {
    "name mover": Role("end", "IO", 3),
    "negative name mover": Role("end", "IO", 2),
    "S-inhibition": Role("end", "S2", 4),
    "induction": Role("S2", "S1+1", 4),
    "duplicate token": Role("S2", "S1", 3),
    "previous token": Role("S1+1", "S1", 2),
}
DIRECT = "direct"  # the heads that add most to the answer, wherever they look
PATHS = {
    "S-inhibition": (DIRECT, "q"),
    "induction": ("S-inhibition", "v"),
    "duplicate token": ("S-inhibition", "v"),
    "previous token": ("induction", "k"),
}
"""To the first head of which role, and by what, a role speaks."""


@dataclass(frozen=True)
class Sizes:
    sentences: int = 200
    chosen_by_path: int = 16
    patched: int = 24  # of the sentences that measure: patches, paths and circuits
    random_sets: int = 10


TRIAL = Sizes(sentences=24, chosen_by_path=4, patched=6, random_sets=2)


class Sentence(NamedTuple):
    """`corrupted`: the same with three other names. The answer is `indirect`, and not `subject`."""

    text: str
    corrupted: str
    indirect: str
    subject: str


def sentences(names: Sequence[str], count: int, seed: int) -> list[Sentence]:
    """Templates take turns; in every other turn the giver is named first."""
    generator, out = np.random.Generator(np.random.PCG64(seed)), []
    for number in range(count):
        template = TEMPLATES[number % len(TEMPLATES)]
        indirect, subject, *others = generator.choice(names, 5, replace=False).tolist()
        first, second = (subject, indirect) if number // len(TEMPLATES) % 2 else (indirect, subject)
        words = {"place": str(generator.choice(PLACES)), "thing": str(generator.choice(THINGS))}
        text = template.format(a=first, b=second, subject=subject, **words)
        corrupted = template.format(a=others[0], b=others[1], subject=others[2], **words)
        out.append(Sentence(text, corrupted, indirect, subject))
    return out


def places_of(ids: Sequence[int], indirect: int, subject: int) -> dict[str, int]:
    """Where the names stand among a sentence's tokens, the token after the first subject, and the last."""
    first = ids.index(subject)
    return {
        "IO": ids.index(indirect), "S1": first, "S1+1": first + 1, "S2": ids.index(subject, first + 1),
        "end": len(ids) - 1,
    }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Half:
    """Sentences that choose heads, or others that measure them."""

    lm: LoadedModel
    items: Sequence[Sentence]

    def first(self, count: int) -> Half:
        return Half(self.lm, self.items[:count])

    @property
    def clean(self) -> list[str]:
        return [item.text for item in self.items]

    @property
    def corrupted(self) -> list[str]:
        return [item.corrupted for item in self.items]

    @property
    def answers(self) -> list[tuple[int, int]]:
        return [(token_of(self.lm, item.indirect), token_of(self.lm, item.subject)) for item in self.items]

    @cached_property
    def attribution(self) -> Attribution:
        return logit_attribution(self.lm, self.clean, self.answers, keys=False)

    def without(self, heads: Sequence[Head]) -> Attribution:
        """The attribution with these heads at their mean over the corrupted sentences."""
        with applied(self.lm, Plan([Ablate(list(heads), kind="mean")] if heads else []), self.corrupted):
            return logit_attribution(self.lm, self.clean, self.answers, keys=False)

    @cached_property
    def weights(self) -> dict[str, dict[Head, float]]:
        """Each head's mean weight where each role looks."""
        recording = record(self.lm, self.clean)
        cells: list[tuple[list[int], list[int]]] = []
        for item, (indirect, subject) in zip(self.items, self.answers, strict=True):
            places = places_of(self.lm.required_tokenizer(item.text)["input_ids"], indirect, subject)
            cells.append(([places[role.row] for role in ROLES.values()], [places[role.key] for role in ROLES.values()]))
        means: dict[str, dict[Head, float]] = {role: {} for role in ROLES}
        for layer in recording.layers:
            seen = [layer.weights_at(rows, keys, text).numpy() for text, (rows, keys) in enumerate(cells)]
            for head, values in zip(layer.site.heads, np.mean(seen, axis=0).tolist(), strict=True):
                for role, value in zip(ROLES, values, strict=True):
                    means[role][head] = value
        return means

    def paths(self, senders: Sequence[Sequence[Head]], receiver: Head, channel: Any) -> list[float]:
        """What each group tells the receiver, as the share of the gap that is lost with corrupted outputs there."""
        if not senders:
            return []
        effects = path_effects(
            self.lm, self.clean, self.corrupted, receiver, [list(heads) for heads in senders], (channel,),
            answers=self.answers, direction="noise", progress=False,
        )  # fmt: skip
        return [effect.value for effect in effects]


def token_of(lm: LoadedModel, name: str) -> int:
    (token,) = lm.required_tokenizer(f" {name}", add_special_tokens=False)["input_ids"]
    return token


def lookers(weights: Mapping[Head, float], before: int | None = None) -> list[Head]:
    """Heads with a mean weight above LOOK, the highest first; those of layers below `before`."""
    heads = [head for head in weights if weights[head] > LOOK and (before is None or head.layer < before)]
    return sorted(heads, key=lambda head: -weights[head])


def strongest(values: Mapping[Head, float], count: int) -> list[Head]:
    """The heads with the highest values, those of at least LEAST."""
    return sorted((head for head in values if values[head] >= LEAST), key=lambda head: -values[head])[:count]


def roles_in(half: Half, few: Half) -> dict[str, list[Head]]:
    """Each role's heads; DIRECT: those with the largest direct effect. Paths are measured on a few of the sentences."""
    lead = float(half.attribution.logit.mean())
    direct = {head: half.attribution[head] / lead for head in half.attribution.heads}
    roles = {DIRECT: strongest(direct, ROLES["name mover"].count)}
    for role, sign in (("name mover", 1), ("negative name mover", -1)):
        looking = {head: sign * direct[head] for head in lookers(half.weights[role])}
        roles[role] = strongest(looking, ROLES[role].count)
    for role, (receivers, channel) in PATHS.items():
        roles[role] = []
        if roles[receivers]:
            receiver = roles[receivers][0]
            candidates = lookers(half.weights[role], receiver.layer)[:CANDIDATES]
            values = few.paths([[head] for head in candidates], receiver, channel)
            roles[role] = strongest(dict(zip(candidates, values, strict=True)), ROLES[role].count)
    return roles


# ---------------------------------------------------------------------------------------------------------- one seed


def run(task: Task) -> Result:
    seeds = prose.by_seed(task, measured, TRIAL if task.quick else Sizes())
    return Result(rows_of(seeds), chart(seeds), notes_of(seeds))


def measured(lm: LoadedModel, sizes: Sizes, seed: int, tell: Progress | None = None) -> dict[str, Any]:
    """One seed: roles found on the one half, and what their heads do on the other."""
    steps = iter(range(1, 7))

    def done() -> None:
        if tell is not None:
            tell(next(steps), 6)

    items = sentences(NAMES, sizes.sentences, seed)
    choosing, other = (Half(lm, items[start : start + len(items) // 2]) for start in (0, len(items) // 2))
    few, pool = other.first(sizes.patched), list(lm.spec.heads)
    roles = roles_in(choosing, choosing.first(sizes.chosen_by_path))
    done()
    lead = other.attribution.logit
    out: dict[str, Any] = {
        "roles": {role: [str(head) for head in heads] for role, heads in roles.items()},
        "lead": float(lead.mean()), "right": float((lead > 0).mean()),
        "weight": {role: mean_of(other.weights[role], roles[role]) for role in ROLES},
        "direct_weight": mean_of(other.weights["name mover"], roles[DIRECT]),
        "direct": {role: direct_share(other.attribution, roles[role]) for role in (DIRECT, *list(ROLES)[:2])},
    }  # fmt: skip
    done()
    out["paths"], out["other_paths"] = {}, {}
    for role, (receivers, channel) in PATHS.items():
        values = [0.0, 0.0]
        if roles[role]:
            groups = [roles[role], others_like(roles[role], before(pool, roles[receivers][0]), seed)]
            values = few.paths(groups, roles[receivers][0], channel)
        out["paths"][role], out["other_paths"][role] = values
    done()
    members = sorted({head for heads in roles.values() for head in heads})
    others = others_like(members, pool, seed)
    patched = patch(
        lm, few.clean, few.corrupted, answers=few.answers, direction="noise", heads=[*members, *others], controls=0,
        progress=False,
    )  # fmt: skip
    out["patched"] = {str(head): patched[head] for head in members}
    out["members"], out["others"] = (
        float(np.mean([abs(patched[head]) for head in some])) for some in (members, others)
    )
    done()
    circuit = measure_circuit(
        lm, few.clean, few.corrupted, members, answers=few.answers, random_sets=sizes.random_sets, seed=seed
    )
    out["circuit"] = {
        "heads": len(members), "faithfulness": circuit.faithfulness, "random": float(np.mean(circuit.random)),
        "best_random": max(circuit.random), "without": circuit.without,
        "random_without": float(np.mean(circuit.random_without)),
        "needed": float(np.mean(circuit.costs >= LEAST)),
    }  # fmt: skip
    done()
    out["backup"] = backups(choosing, other, roles["name mover"], others_like(roles["name mover"], pool, seed))
    done()
    return out


def before(pool: Iterable[Head], receiver: Head) -> list[Head]:
    return [head for head in pool if head.layer < receiver.layer]


def mean_of(weights: Mapping[Head, float], heads: Sequence[Head]) -> float:
    """The heads' mean; 0 where there are none."""
    return float(np.mean([weights[head] for head in heads])) if heads else 0.0


def direct_share(attribution: Attribution, heads: Iterable[Head]) -> float:
    """What these heads add straight to the answer, as a share of its lead."""
    return sum(attribution[head] for head in heads) / float(attribution.logit.mean())


def backups(choosing: Half, other: Half, movers: Sequence[Head], others: Sequence[Head]) -> dict[str, Any]:
    """What is left of the lead without the name movers, and which heads that look at IO then add more to it.

    These heads are chosen on the one half, and their rise is of the other, as a share of the lead.
    """
    lead, heads = float(other.attribution.logit.mean()), choosing.attribution.heads
    gone, gone_other = choosing.without(movers), other.without(movers)
    share = float(choosing.attribution.logit.mean())
    rise = {head: (gone[head] - choosing.attribution[head]) / share for head in heads if head not in movers}
    looking = lookers(choosing.weights["name mover"])
    backup = strongest({head: rise[head] for head in looking if head in rise}, 8)
    return {
        "heads": [str(head) for head in backup],
        "kept": float(gone_other.logit.mean()) / lead,
        "kept_without_others": float(other.without(others).logit.mean()) / lead,
        "lost": direct_share(other.attribution, movers),
        "rise": sum(gone_other[head] - other.attribution[head] for head in backup) / lead,
        "all_heads": float(
            sum(gone_other[head] - other.attribution[head] for head in heads if head not in movers) / lead
        ),
    }


# ------------------------------------------------------------------------------------------------------ what it shows


def rows_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[Row, ...]:
    def values(*names: str) -> tuple[float, ...]:
        out = by_seed
        for name in names:
            out = [one[name] for one in out]
        return tuple(float(value) for value in out)  # type: ignore[arg-type]

    above, looks = Claim("above 0", low=0.0), Claim("above 0.25", low=LOOK)
    published = {"name mover": "0.59", "S-inhibition": "0.51"}
    weights = [
        Row(f"{role} heads: mean weight, {spec.words}", published.get(role, ""), values("weight", role), looks, ".2f")
        for role, spec in ROLES.items()
    ]
    paths = []
    for role, (receivers, channel) in PATHS.items():
        to = "the head with the largest direct effect" if receivers == DIRECT else f"the first {receivers} head"
        paths += [
            Row(f"{role} heads to the {WORDS[channel]} of {to}, share of the gap", "", values("paths", role), None,
                "+.1%"),
            Row("... over other heads of the same layers", "above 0",
                less(values("paths", role), values("other_paths", role)), above, "+.1%"),
        ]  # fmt: skip
    circuit = "circuit"
    return (
        Row("lead of the right name, logits", "3.56", values("lead"), Claim("above 0", low=0.0), ".2f"),
        Row("sentences with the right name ahead", "99.3 %", values("right"), Claim("over 95 %", low=0.95), ".1%"),
        Row("the three heads with the largest direct effect: share of the lead", "", values("direct", DIRECT), None,
            ".0%"),
        Row("... their mean weight, end to IO", "0.59: they are the name movers", values("direct_weight"), looks,
            ".2f"),
        *weights,
        Row("name movers: direct effect, share of the lead", "above 0", values("direct", "name mover"), above, "+.0%"),
        Row("negative name movers: direct effect, share of the lead", "below 0",
            values("direct", "negative name mover"), Claim("below 0", high=0.0), "+.0%"),
        *paths,
        Row("a head of a role, patched alone: mean size of the effect", "", values("members"), None, ".1%"),
        Row("... over other heads of the same layers", "", less(values("members"), values("others")), above, "+.1%"),
        Row("heads of the circuit, of 270", "26 of 144", values(circuit, "heads"), None, ".0f"),
        Row("faithfulness: what the circuit keeps alone", "87 %", values(circuit, "faithfulness"),
            Claim("over 80 %", low=0.8), ".0%"),
        Row("... over the best random circuit of this size", "", less(values(circuit, "faithfulness"),
            values(circuit, "best_random")), above, "+.0%"),
        Row("completeness: what is left without the circuit", "little", values(circuit, "without"),
            Claim("under 20 %", high=0.2), ".0%"),
        Row("... without a random one", "", values(circuit, "random_without"), None, ".0%"),
        Row("minimality: heads without which the circuit keeps 1 % less or worse", "all, in some set of heads",
            values(circuit, "needed"), Claim("over half", low=0.5), ".0%"),
        Row("lead kept without the name movers", "95 %", values("backup", "kept"), Claim("over 80 %", low=0.8), ".0%"),
        Row("... without other heads of the same layers", "", values("backup", "kept_without_others"), None, ".0%"),
        Row("what backup name movers add once they are gone, share of the lead", "above 0", values("backup", "rise"),
            above, "+.1%"),
        Row("... of what the name movers added", "", values("backup", "lost"), None, "+.0%"),
    )  # fmt: skip


WORDS = {"q": "queries", "k": "keys", "v": "values"}


def notes_of(by_seed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    parts = []
    for seed, one in enumerate(by_seed):
        roles = {**one["roles"], "backup name mover": one["backup"]["heads"]}
        named = "; ".join(f"{role}: {', '.join(heads) or 'none'}" for role, heads in roles.items())
        strong = sorted(one["patched"].items(), key=lambda item: -abs(item[1]))[:5]
        parts.append(
            f"Seed {seed}, {DIRECT} being those with the largest direct effect: {named}. Patched alone, the strongest: "
            + ", ".join(f"{head} {value:+.0%}" for head, value in strong) + "."
        )  # fmt: skip
    return tuple(parts)


def chart(by_seed: Sequence[Mapping[str, Any]]) -> Chart:
    """Where roles look, what they carry, and the circuit beside random ones."""

    def points(bold: bool, *pairs: tuple[str, Iterable[float]]) -> tuple[Points, ...]:
        return tuple(Points(label, tuple(values), bold) for label, values in pairs)

    looks = [
        (f"{LABELS[role]}\n{spec.words}", (one["weight"][role] for one in by_seed)) for role, spec in ROLES.items()
    ]
    paths = []
    for role, (_, channel) in PATHS.items():
        label = LABELS[role]
        paths += points(True, (f"{label}\nby {WORDS[channel]}", (one["paths"][role] for one in by_seed)))
        paths += points(False, ("others", (one["other_paths"][role] for one in by_seed)))
    circuit = [one["circuit"] for one in by_seed]
    shares = (
        *points(True, ("circuit\nalone", (one["faithfulness"] for one in circuit))),
        *points(False, ("best of\nrandom ones", (one["best_random"] for one in circuit))),
        *points(True, ("all but\nthe circuit", (one["without"] for one in circuit))),
        *points(False, ("all but a\nrandom one", (one["random_without"] for one in circuit))),
        *points(True, ("all but\nname movers", (one["backup"]["kept"] for one in by_seed))),
        *points(False, ("all but\nothers", (one["backup"]["kept_without_others"] for one in by_seed))),
    )
    return Chart(
        "Who was given something?",
        f"{prose.MODEL}; heads chosen on one half of the sentences, measured on the other",
        (
            PointsPanel("mean weight, by role", points(True, *looks), 0.0, 1.0),
            PointsPanel("share of the gap that goes along the path", tuple(paths)),
            PointsPanel("share of the answer's lead that is kept", shares),
        ),
        notes=(DOTS,),
    )


LABELS = {
    "name mover": "name mover", "negative name mover": "negative mover", "S-inhibition": "S-inhibition",
    "induction": "induction", "duplicate token": "duplicate", "previous token": "previous",
}  # fmt: skip

REPRODUCTION = Reproduction(
    "wang-ioi",
    "who was given something: roles of heads, and their circuit",
    "Wang et al. 2022, Interpretability in the Wild: a Circuit for Indirect Object Identification in GPT-2 small "
    "(ICLR 2023).",
    "In sentences such as 'When Mary and John went to the store, John gave a drink to', GPT-2 small is 3.56 logits in "
    "favour of Mary (99.3 % of sentences). 26 heads of seven roles do it: duplicate token, previous token and "
    "induction heads see that John (S) comes twice, S-inhibition heads tell the name movers, which copy Mary (IO). The "
    "circuit keeps 87 % of the lead; without the name movers backups do their work, and 95 % is left (sections 3, 4).",
    "200 sentences of six of the paper's templates; one half chooses, the other measures. A head has a role if its "
    f"mean weight on the role's place is above {LOOK:g} and it carries at least {LEAST:.0%}: of the lead, straight to "
    "the answer, for name movers (negative ones take it away); of the gap to sentences with three other names, along "
    "the path to the named head, for all others. There are at most as many in a role as in the paper. The circuit is "
    "all these heads and the three with the largest direct effect. It runs alone, all other heads with the outputs "
    "that they have with other names; then it alone has these. Patches, paths and circuits are of 24 sentences. "
    "Without: a head's output is its mean over sentences with other names.",
    (
        "smollm2 (135M, 30 layers of 9 heads, three of which share keys and values, gated feed-forward layers), not "
        "GPT-2 small (12 layers of 12 heads).",
        "All other heads hold the outputs of one sentence with other names; the paper has their mean over such "
        "sentences of the template, position by position, and counts heads at single positions.",
        "The paper's circuit was put together by hand, and its completeness is of sets of heads searched for: ours is "
        "of the whole circuit.",
        "Seeds are other sentences, not other models.",
    ),
    run,
)
