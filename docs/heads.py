"""The heads that the documentation's first page shows: docs/heads.json, and recordings of models trained here.

    python docs/heads.py FOLDER    FOLDER holds the trainings `induction` and `passkey`; what is missing is trained
    python docs/heads.py           those of smollm2 alone: three minutes; the others stay as they are

Each head has a claim with its chance level, what is lost without it, and the command that found it. What a head was
chosen for is measured where it was not chosen: on other texts, other names, another needle.
docs/website.py publishes the recordings as a site (`manyheads publish`), and puts a card for each head on the page;
docs/pictures.py draws those of smollm2 for the gallery.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hooks import ANIMAL, CARDS, RECORDINGS, TEXT_OF
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import manyheads as mh
from manyheads.corpora import page_texts, reading_of
from manyheads.interventions import Importance
from manyheads.lab.training import carry_out
from manyheads.roles import PageLabels, label_page
from manyheads.roles.probes import retrieval_scores

TEXTS = 60
FEW_TEXTS = 24  # of a model with so many heads that each is left out by itself
# Heads with a label: the recording, the head, and the row that is open
LABELLED: tuple[tuple[str, str, int], ...] = (
    ("smollm2-gift", "L16H0", 13),
    ("smollm2-gift", "L11H6", 13),
    ("smollm2-names", "L5H6", 18),
    ("smollm2-names", "L17H5", 18),
    ("smollm2-names", "L18H6", 18),
    ("smollm2-gift", "L18H8", 13),
    ("smollm2-marks", "L1H1", 8),
    ("minilm-cats", "L2H9", 7),
    ("minilm-animal", "L0H2", 8),
    ("minilm-animal", "L1H8", 4),
    ("minilm-animal", "L4H5", 8),
    ("minilm-animal", "L5H7", 8),
    ("tiny-code-area", "L2H1", 20),
    ("tiny-code-area", "L3H5", 20),
    ("tiny-code-area", "L1H1", 20),
)


@dataclass(frozen=True)
class Card:
    """One head: `recording` is a file of the live site, `pin` the token whose row is open there. `text`: what
    `manyheads head` is to read so that it shows the same, "" where that is its own example."""

    model: str
    recording: str
    head: str
    pin: int
    title: str
    claim: str
    effect: str
    command: str
    text: str = ""


def labelled(recording: str, head: str, pin: int) -> Card:
    """A head with the label that `manyheads look` gives it."""
    model, _ = TEXT_OF[recording]
    role = next(role for role in labels_of(model).roles if str(role.head) == head)
    words, evidence = role.evidence.words, role.evidence
    share = "" if evidence.low != evidence.low else f" ({evidence.low:.0%} to {min(evidence.high, 1.0):.0%})"
    command = "manyheads look --all" + (f" --model {model}" if model != "smollm2" else "")
    claim = words.replace(",", f"{share},", 1)
    return Card(model, recording, head, pin, role.name, claim, effect_words(model, head), command)


@cache
def labels_of(model: str) -> PageLabels:
    return label_page(loaded(model))


@cache
def loaded(model: str) -> Any:
    return mh.load(model)


@cache
def worth_of(model: str) -> Importance:
    return mh.importance(loaded(model), list(reading_of(model).texts())[:TEXTS])


def effect_words(model: str, head: str) -> str:
    """What is lost on bundled texts with the head's output zeroed, and where that stands among all heads."""
    if model == "smollm2":
        lm = loaded(model)
        alone = mh.effect(lm, mh.Ablate(head), reading_of(lm).spread(FEW_TEXTS), controls=0)
        return f"{alone.change:+.2g} ({alone.low:.2g} to {alone.high:.2g}) nats a token of ordinary texts"
    worth = worth_of(model)
    index = [str(other) for other in worth.heads].index(head)
    low, high = (float(side[index]) for side in worth.interval)
    rank = len(worth.heads) - [str(other) for other in worth.ranking()].index(head)
    unit = {"loss": "nats a token", "cosine": "of the sentence's direction (1 - cosine)"}[worth.metric]
    interval = f"{worth.values[index]:+.2g} ({low:.2g} to {high:.2g})"
    return f"{interval} {unit}, {rank} of {len(worth.heads)} by what is lost"


def asked() -> Card:
    """The head that "it" asks: a weight of one sentence, and no role."""
    best = mh.record(loaded("minilm"), ANIMAL).heads_linking("it", "animal")[0]
    head = str(best.head)
    claim = f"{best.weight:.0%} of what “it” reads is “animal”; {best.chance:.0%} by chance"
    command = f'manyheads look "{ANIMAL}" --model minilm --from it --to animal'
    return Card("minilm", "minilm-animal", head, 10, "who is “it”?", claim, effect_words("minilm", head), command)


def of_names() -> list[Card]:
    """Heads of smollm2 that say who is given something, chosen on half of the examples and measured on the other half.

    In each half the one who gets it is named first in two texts, and second in two. The row is the last one, "to".
    """
    lm, pairs = loaded("smollm2"), reading_of("smollm2").pairs
    chosen = mh.patch(lm, *_sides(pairs[0::4] + pairs[1::4]), direction="noise", controls=0)
    others, best = pairs[2::4] + pairs[3::4], [str(head) for head in chosen.ranking()[:20]]
    measured = mh.patch(lm, *_sides(others), direction="noise", heads=best, controls=0)
    recordings = [mh.record(lm, pair["clean"]) for pair in others]
    logits = {side: mh.logit_attribution(lm, [pair["clean"] for pair in others], [pair[side] for pair in others])
              for side in ("right", "wrong")}  # fmt: skip

    def card(head: str, title: str, side: str, name: str) -> Card:
        """`side`: whose name the head looks at; of several places, at the last."""
        weights = []
        for rec, pair in zip(recordings, others, strict=True):
            tokens = [piece.lstrip("Ġ") for piece in rec.layers[0].tokens.pieces[0]]
            key = len(tokens) - 1 - tokens[::-1].index(pair[side].strip())
            weights.append(float(rec.cells(head, [(len(tokens) - 1, key)])[0]))
        adds = {side: round(float(of.values[of.components.index(head)]), 1) + 0 for side, of in logits.items()}
        claim = (
            f"{sum(weights) / len(weights):.0%} of what the last word reads is {name}, {1 / 14:.0%} by chance; adds "
            f"{adds['right']:+.1f} to the logit of who gets it, {adds['wrong']:+.1f} to that of who gives"
        )
        loss = f"{abs(measured[head]):.0%} {'less' if measured[head] > 0 else 'more'}"
        effect = f"the two answers are told apart {loss}, on names that it was not chosen on"
        return Card("smollm2", "smollm2-gift", head, 13, title, claim, effect, "manyheads patch --direction noise")

    for head in best:
        print(head, f"{chosen[head]:+.3f} where it was chosen, {measured[head]:+.3f} on the others")
    return [
        card("L20H0", "S-inhibition: finds who gives", "wrong", "who gives"),
        card("L23H3", "keeps who gives from being named", "wrong", "who gives"),
        card("L23H0", "name mover: finds who gets it", "right", "who gets it"),
        card("L24H4", "negative name mover", "right", "who gets it"),
    ]


def _sides(pairs: Any) -> tuple[list[str], list[str], str, list[tuple[str, str]]]:
    """Clean texts, corrupted ones, the metric and the answers, as `patch` takes them."""
    clean, corrupted = ([pair[side] for pair in pairs] for side in ("clean", "corrupted"))
    return clean, corrupted, "logit_diff", [(pair["right"], pair["wrong"]) for pair in pairs]


def of_needle() -> Card:
    """The head of smollm2 that most often looks at what it writes next, far back: chosen by one needle, measured by
    another."""
    lm = loaded("smollm2")

    def asked_for(needle: str, question: str) -> Any:
        return retrieval_scores(lm, page_texts(), needle, question, lengths=(256, 1024), depths=(0.1, 0.5))

    chosen = asked_for(
        " The best thing to do in Lisbon is to eat a custard tart in the sun.",
        " What is the best thing to do in Lisbon? The best thing to do in Lisbon is",
    )
    other = asked_for(
        " The pass key is 71492. Remember it. 71492 is the pass key.", " What is the pass key? The pass key is"
    )
    head = str(chosen.scores.top(1)[0].head)
    score = next(score for score in other.scores.top(270) if str(score.head) == head)
    claim = (
        f"looks at the very token that is written next {score.score:.0%} of the time, up to 1,000 tokens back, "
        f"{score.chance:.1%} by chance ({other.num_counted} of {len(other.trials)} answers)"
    )
    command = "manyheads roles --probes --ask retrieval"
    return Card("smollm2", "smollm2-needle", head, 30, "long reach", claim, effect_words("smollm2", head), command)


def of_smollm2() -> list[Card]:
    """Twelve heads of the bundled language model."""
    return [
        *(labelled(*row) for row in LABELLED if TEXT_OF[row[0]][0] == "smollm2"),
        *of_names(),
        of_needle(),
    ]


def of_induction(folder: Path) -> list[Card]:
    """The two heads of the circuit that `manyheads train induction` grows, on twelve words, repeated."""
    outcome = carry_out("induction", folder / "induction")
    numbers, command = outcome.findings.numbers, "manyheads train induction"
    words = ("sun moon star rain snow wind fire tree leaf bird fish stone " * 3).split()
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    vocabulary |= {f"word{number}": number for number in range(len(vocabulary), 64)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="word63"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    lm = mh.load(
        outcome.trained["induction"].model,
        name="induction",
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer),
    )
    rec = mh.record(lm, " ".join(words))
    rec.save(RECORDINGS / "induction.heads")
    previous, induction, gone = numbers["previous_token_head"], numbers["induction_head"], numbers["ablated"]
    row, cost = 30, numbers["loss_repeated_tokens"]

    def card(head: str, title: str, claim: str) -> Card:
        without = gone[head]
        effect = (
            f"a repeated word costs {without['loss_repeated_tokens']:.2f} nats in place of {cost:.2f} (a guess: 4.16), "
            f"and induction falls to {without['best_induction']:.2f}"
        )
        return Card("induction", "induction", head, row, title, claim, effect, command)

    by_chance = f"{1 / (row + 1):.0%} by chance in the row shown"
    return [
        card(
            previous,
            "previous token, half of a circuit",
            f"{numbers['previous_mass']:.0%} of its attention on the token before; {by_chance}",
        ),
        card(
            induction,
            "induction, the other half",
            f"{numbers['induction']:.0%} on what followed an earlier copy; {by_chance}",
        ),
    ]


def of_passkey(folder: Path) -> Card:
    """The one key/value head that a model of passkeys needs with its whole context (`manyheads train passkey`)."""
    if not (folder / "passkey" / "report.json").is_file():
        carry_out("passkey", folder / "passkey")
    report = json.loads((folder / "passkey" / "report.json").read_text(encoding="utf-8"))
    seed = report["found"]["by_seed"][0]
    (group,) = seed["needed"]
    lm = mh.load(folder / "passkey" / "model")
    text = json.loads((folder / "passkey" / "texts.jsonl").read_text(encoding="utf-8").splitlines()[0])["text"]
    rec = mh.record(lm, text)
    rec.save(RECORDINGS / "passkey.heads")
    words = text.split()
    ask = len(words) - 1 - words[::-1].index("ask")
    head = group.split("-")[0]
    pin = ask + 2  # `<|begin|>` stands before the words; the row is the name's, whose next token is the answer
    source = next(at for at, word in enumerate(words) if word == "key" and words[at + 1] == words[ask + 1]) + 3
    layer, index = (int(part) for part in head.removeprefix("L").split("H"))
    weights = [float(rec.cells(f"L{layer}H{index + other}", [(pin, source)])) for other in range(2)]
    share, whole = max(weights), seed["splits"]["all"]["recall"]
    head = f"L{layer}H{index + weights.index(share)}"
    claim = f"{share:.0%} of what the question reads is its answer, {pin - source} tokens back"
    claim += f"; {1 / (pin + 1):.1%} by chance"
    effect = (
        f"if it streams, {seed['groups'][group]['recall']:.0%} of 192 questions are answered in place of {whole:.0%}"
    )
    effect += (
        f"; 15 other heads one by one: {min(g['recall'] for n, g in seed['groups'].items() if n != group):.0%} at least"
    )
    return Card(
        "passkey",
        "passkey",
        head,
        pin,
        f"retrieval, {pin - source} tokens back",
        claim,
        effect,
        "manyheads train passkey",
    )


def main(folder: Path | None) -> None:
    RECORDINGS.mkdir(exist_ok=True)
    if folder is None:
        known = [Card(**row) for row in json.loads(CARDS.read_text(encoding="utf-8"))]
        others = [card for card in known if card.model != "smollm2"]
    else:
        others = of_the_others(folder)
    rows = [asdict(card) for card in (*of_smollm2(), *others)]
    for row in rows:
        model, text = TEXT_OF.get(row["recording"], ("", ""))
        row["text"] = "" if text == reading_of(model).sentence else text
    CARDS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def of_the_others(folder: Path) -> list[Card]:
    """Twelve heads of minilm, of tiny-code, and of two models that were trained here."""
    return [
        asked(),
        *(labelled(*row) for row in LABELLED if TEXT_OF[row[0]][0] != "smollm2"),
        *of_induction(folder),
        of_passkey(folder),
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
