"""The heads that the documentation's first page shows: docs/heads.json, and recordings of models trained here.

    python docs/heads.py FOLDER    FOLDER holds the trainings `induction` and `passkey`; what is missing is trained

Each head has a claim with its chance level, what is lost without it among all heads, and the command that found it.
docs/hooks.py publishes the recordings as a site (`manyheads publish`), and puts a card for each head on the page.
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
from manyheads.corpora import reading_of
from manyheads.interventions import Importance
from manyheads.lab.training import carry_out
from manyheads.roles import PageLabels, label_page

TEXTS = 60


@dataclass(frozen=True)
class Card:
    """One head: `recording` is a file of the live site, `pin` the token whose row is open there."""

    model: str
    recording: str
    head: str
    pin: int
    title: str
    claim: str
    effect: str
    command: str


def labelled(recording: str, head: str, pin: int) -> Card:
    """A head with the label that `manyheads look` gives it."""
    model, _ = TEXT_OF[recording]
    role = next(role for role in labels_of(model).roles if str(role.head) == head)
    words, evidence = role.evidence.words, role.evidence
    share = "" if evidence.low != evidence.low else f" ({evidence.low:.0%} to {min(evidence.high, 1.0):.0%})"
    command = "manyheads look --all" + (f" --model {model}" if model != "minilm" else "")
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
    command = f'manyheads look "{ANIMAL}" --from it --to animal'
    return Card("minilm", "minilm-animal", head, 10, "who is “it”?", claim, effect_words("minilm", head), command)


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


def main(folder: Path) -> None:
    RECORDINGS.mkdir(exist_ok=True)
    cards = [
        asked(),
        labelled("minilm-cats", "L2H9", 7),
        labelled("minilm-animal", "L0H2", 8),
        labelled("minilm-animal", "L1H8", 4),
        labelled("minilm-animal", "L4H5", 8),
        labelled("minilm-animal", "L5H7", 8),
        labelled("tiny-code-area", "L2H1", 20),
        labelled("tiny-code-area", "L3H5", 20),
        labelled("tiny-code-area", "L1H1", 20),
        *of_induction(folder),
        of_passkey(folder),
    ]
    CARDS.write_text(
        json.dumps([asdict(card) for card in cards], indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
