"""Are heads named right, where it is known what they do? Designed heads among random ones; models of random weights.

`python -m benchmarks.known_answers [--seeds N]` builds models by `mh.design`: each pattern three times, in random
places, among random heads, with noise of growing strength on the designed ones; for each seed, one model looks back and
one both ways. `mh.find_roles` reads the bundled page's prose through them. Recall: of the heads made for a role, the
share that got its name. Precision: of the heads that got the name, the share that was made for it. Then 50 models of
minilm's shape with random weights read the same: whatever content their heads are said to seek is false.

Seeds are drawn at run time and printed. Tables go to stderr, numbers to stdout.
Cost: some six minutes of one core.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import manyheads as mh
from manyheads.corpora import page_texts
from manyheads.lab import design

NOISES = (0.0, 0.25, 0.5, 0.7, 1.0, 2.0)  # lengths of the noise in each matrix, the matrix itself being 1
SEEDS, RANDOM_MODELS = 3, 50
NUM_LAYERS, NUM_HEADS, COPIES = 3, 14, 3
SHARPNESS = (8.0, 12.0)  # nats, of designed heads
RANDOM_SHARPNESS = (3.0, 6.0)  # nats, of random ones: softer would be broad, truly
SPREADS = (0.05, 0.3)  # of random models' weights: from nearly even attention to single keys
LINES = 4  # of the page make a text: some 150 tokens, of which sinks are looked for in the first 192
PAIR = ("previous token", "induction")  # the second reads what the first, in an earlier layer, wrote
NO_CONTENT = ("unlabelled", "broad", "local", "self", "previous token", "next token", "offset", "sink")


def texts() -> list[str]:
    """Every other stretch of the page: half of it says enough, in half the time."""
    lines = page_texts()
    return [" ".join(lines[at : at + LINES]) for at in range(0, len(lines), 2 * LINES)]


def patterns(causal: bool, draw: random.Random) -> list[Any]:
    """Each pattern once, as sharp as drawn. A separator ends a text here, so that only who looks ahead sees one."""
    made = design

    def sharp() -> float:
        return draw.uniform(*SHARPNESS)

    far = draw.randint(2, 8) * (-1 if causal else draw.choice((-1, 1)))
    both = [made.previous(sharp()), made.offset(far, sharp()), made.offset(0, sharp()), made.first(sharp())]
    both += [made.same_token(sharp()), made.punctuation(sharp()), made.uniform()]
    alone = [made.induction(sharp())] if causal else [made.next(sharp()), made.separator(sharpness=sharp())]
    return both + alone


def layers(causal: bool, draw: random.Random) -> list[list[Any]]:
    """Heads in random places; an induction head comes after a previous-token head, so it is drawn until it does."""
    heads = [each for _ in range(COPIES) for each in patterns(causal, draw)]
    heads += [design.random(draw.uniform(*RANDOM_SHARPNESS)) for _ in range(NUM_LAYERS * NUM_HEADS - len(heads))]
    while True:
        draw.shuffle(heads)
        out = [heads[at : at + NUM_HEADS] for at in range(0, len(heads), NUM_HEADS)]
        layer = {role: [n for n, each in enumerate(out) for head in each if head.role == role] for role in PAIR}
        if all(min(layer["previous token"]) < number for number in layer["induction"]):
            return out


def named(role: str) -> str:
    """One name for all sinks, which are called after their tokens, and for all offsets."""
    return next((short for short in ("sink", "offset") if role.startswith(short)), role)


def known_answers(seeds: Sequence[int], read: list[str]) -> list[dict[str, Any]]:
    """A line a noise level: for each role how many heads were made for it, named so, and both; and what went wrong."""
    out = []
    for noise in NOISES:
        answers = Counter(
            each for seed in seeds for causal in (False, True) for each in asked(seed, causal, noise, read)
        )
        pairs: Counter[tuple[str, str]] = Counter()
        for (_, role, name), count in answers.items():
            pairs[role, name] += count
        line = {"what": "known answers", "noise": noise, "roles": scores(pairs), "recall_by_layer": by_layer(answers)}
        out.append({**line, "wrong": wrong(pairs)})
        show(out[-1])
    return out


def asked(seed: int, causal: bool, noise: float, read: list[str]) -> Iterator[tuple[int, str, str]]:
    """Of every head of one model: its layer, what it was made for, and what it is called."""
    design = layers(causal, random.Random(seed + causal))
    lm = design.build(design, causal=causal, noise=noise, seed=seed)
    if noise:  # scores of hundreds, which float32 blurs: the guard would refuse
        lm.model.double()
    made = [head.role for layer in design for head in layer]
    for role, found in zip(made, mh.find_roles(lm, read), strict=True):
        astray = role.startswith("offset") and found.name.startswith("offset") and found.name != role
        yield found.head.layer, named(role), "another offset" if astray else named(found.name)


def by_layer(answers: Counter[tuple[int, str, str]]) -> dict[str, float]:
    """Recall of all roles together: noise in what heads write adds up with the layers."""
    made, right = Counter(), Counter()
    for (layer, role, name), count in answers.items():
        made[layer] += count * (role != "unlabelled")
        right[layer] += count * (role == name != "unlabelled")
    return {f"L{layer}": right[layer] / made[layer] for layer in sorted(made)}


def scores(pairs: Counter[tuple[str, str]]) -> dict[str, dict[str, float | int | None]]:
    found = {}
    for role in sorted({role for role, _ in pairs} - {"unlabelled"}):
        made = sum(count for (was, _), count in pairs.items() if was == role)
        called = sum(count for (_, name), count in pairs.items() if name == role)
        right = pairs[role, role]
        found[role] = {
            "made": made,
            "named": called,
            "right": right,
            "recall": right / made,
            "precision": right / called if called else None,
        }
    return found


def wrong(pairs: Counter[tuple[str, str]]) -> dict[str, int]:
    """What was made for something and called something else, and random heads that got a role."""
    return {f"{role} -> {name}": count for (role, name), count in sorted(pairs.items()) if role != name}


def random_models(seed: int, read: list[str], count: int) -> dict[str, Any]:
    """What content heads of random weights are said to seek, in models of minilm's shape."""
    lm, draw = mh.load("minilm"), random.Random(seed)
    labels: Counter[str] = Counter()
    for _ in range(count):
        spread = SPREADS[0] * (SPREADS[1] / SPREADS[0]) ** draw.random()
        labels.update(each.name for each in mh.find_roles(with_random_weights(lm, spread, draw), read))
    false = {name: number for name, number in labels.items() if not name.startswith(NO_CONTENT)}
    heads = sum(labels.values())
    share = sum(false.values()) / heads
    return {"what": "random weights", "models": count, "heads": heads, "labels": labels, "false": false, "share": share}


def with_random_weights(lm: Any, spread: float, draw: random.Random) -> Any:
    model = type(lm.model)(lm.model.config).eval()
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return mh.load(model, tokenizer=lm.tokenizer)


def show(line: dict[str, Any]) -> None:
    """A noise level as a table."""
    print(f"\nnoise {line['noise']:g}", file=sys.stderr)
    print(f"{'role':<18}{'made':>6}{'named':>7}{'right':>7}{'recall':>9}{'precision':>11}", file=sys.stderr)
    for role, each in line["roles"].items():
        precision = "-" if each["precision"] is None else f"{each['precision']:.3f}"
        counts = f"{each['made']:>6}{each['named']:>7}{each['right']:>7}"
        print(f"{role:<18}{counts}{each['recall']:>9.3f}{precision:>11}", file=sys.stderr)
    print(
        "recall by layer: " + ", ".join(f"{at} {share:.3f}" for at, share in line["recall_by_layer"].items()),
        file=sys.stderr,
    )
    print(f"wrong: {line['wrong']}", file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many placements of designed heads")
    parser.add_argument("--models", type=int, default=RANDOM_MODELS, help="how many models of random weights")
    given = parser.parse_args(argv)
    seeds, other = [secrets.randbits(31) for _ in range(given.seeds)], secrets.randbits(31)
    print(f"seeds {seeds}, of random weights {other}", file=sys.stderr)
    torch.set_num_threads(1)
    read = texts()
    levels = known_answers(seeds, read)
    clean = list(levels[0]["roles"].values())
    least = {name: min(each[name] or 0.0 for each in clean) for name in ("recall", "precision")}
    chance = random_models(other, read, given.models)
    print(f"\nrandom weights: {chance}", file=sys.stderr)
    for line in (*levels, chance, {"what": "without noise", **least, "seeds": seeds, "seed": other}):
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
