"""`passkey`: a decoder that fetches keys from far away, so that it is known which heads need the whole context.

A text is words and passkeys. Each word follows from the one two before it, four times of five, which a head learns that
reads near tokens alone. A passkey is three tokens, `key p7 p3 p21`; all stand in the text's first part, and its last
part asks for them in another order, `ask p7 p3 p21`: whoever reads `ask p7` far from the pair can only guess what
follows. In between lie so many words that no chain of the model's layers reaches from an answer to its passkey, if all
heads stream, each with the text's first `SINK` and a row's last `RECENT` tokens. So somebody must look far.

Who, is known beforehand: a few key/value heads of the last layer are drawn by seed, and in most texts of the training
all others stream. What is fetched in every text is then fetched by these, and the others learn to need nothing that is
far away. (Left to themselves, most heads take a part in it, other ones by each seed, and no answer is clear.) The model
that comes out has no windows: all of its heads may look anywhere.

Which of the drawn ones do the work is found by streaming (`mh.Ablate(kind="streaming")`) the query heads of one
key/value head at a time, since they share one cache, and reading off what the answers cost. Then those that are needed
keep everything and all others stream; and as many others keep everything in their place. Training begins with short
texts of little but passkeys: matching is learned there, at less cost.

What comes out is also written as a stock Llama checkpoint (`model/`), with texts that no step saw (`texts.jsonl`).
Source: after Xiao et al. 2024, DuoAttention (passkeys, retrieval and streaming heads); Olsson et al. 2022 (matching).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor, nn

from manyheads.base import replacing
from manyheads.edits import applied
from manyheads.heads import Head, parse_heads
from manyheads.lab.training.charts import Chart, Points, PointsPanel
from manyheads.lab.training.decoder import Decoder, DecoderConfig, save_llama, to_llama
from manyheads.lab.training.presets.preset import (
    WATCHED,
    AllTrained,
    Findings,
    MakeRun,
    Preset,
    Scaled,
    Setup,
    Training,
    by_seed,
    call_columns,
)
from manyheads.lab.training.presets.python_source import BEGIN, BEGIN_ID, END, as_transformers
from manyheads.lab.training.runs import HELD_OUT_STEP, Run, Settings, generator_of, spreads_of
from manyheads.long_context import Needle, split_heads
from manyheads.models import device_of, load
from manyheads.models.loading import Tokenizer as Reader  # the library tokenizers has one of that name
from manyheads.plan import Ablate, Plan
from manyheads.statistics.defined import distant_mass

NAME = "passkey"
SINK, RECENT = 4, 32
WHY_FLOAT32 = "two minutes a training"
MARKERS = ("key", "ask")
FIRST_ID = 2  # of the markers, behind the tokens that begin and end a text
PASSKEY = 4  # tokens, and those of a question with its answer: a marker, a first part, two that follow
BACK, STEP, FOLLOWS = 2, 7, 0.8  # a word is the one BACK before it plus STEP, so often
STREAMS = 0.75  # of the texts of a training: in these, only the heads that were drawn see everything
GUESSED = 0.1  # what can only be guessed weighs so much in the loss: unlearned, its nats would move with anything
NEEDED = 0.02  # of what answers cost if all stream: a head that costs more where it alone streams is needed
SERVES = 0.95  # of the questions that are answered with everything: a split that answers as many or more serves
SHORT_ROOM = PASSKEY + 1  # places move about, so that no distance can be learned by heart
TEXTS = "texts.jsonl"
POSITIONS = 512  # of the model
DRAWS = 20  # other splits of the same size
KEPT = ("all", "needed", "others", "none")
"""Which key/value heads keep everything, beside `random`: as many others as are needed."""


@dataclass(frozen=True)
class Passkeys:
    """`rows` texts of `pairs` passkeys. A batch follows from seed and step.

    Each passkey lies in `pair_room` tokens, at a random place, and each question in `question_room`; `gap` words lie
    between. `parts`: how many tokens there are to make passkeys of; no text has one of them in two passkeys.
    """

    pairs: int
    pair_room: int
    gap: int
    question_room: int
    rows: int
    seed: int
    parts: int = 48
    words: int = 24

    @property
    def tokens(self) -> list[str]:
        """The vocabulary, by id."""
        numbered = {"p": self.parts, "w": self.words}
        return [BEGIN, END, *MARKERS, *(f"{kind}{index}" for kind, count in numbered.items() for index in range(count))]

    @property
    def length(self) -> int:
        return SINK + self.pairs * (self.pair_room + self.question_room) + self.gap

    def batch(self, step: int) -> dict[str, Tensor]:
        """`ids`; `answers`, the places of the tokens that are asked for, two a question; `sources`, where these stand
        in the passkeys; `is_word`, whether a place holds a word; `streams`, whether heads stream that were not drawn
        to look far, if the text is trained on."""
        generator = generator_of(self.seed, step)
        rows, pairs = self.rows, self.pairs

        def below(count: int, *shape: int) -> Tensor:
            return torch.randint(count, shape, generator=generator)

        first_part = FIRST_ID + len(MARKERS)
        first_word = first_part + self.parts
        # A random order of all parts, of which a text takes the first: what follows one of them is never in doubt.
        parts = torch.rand(rows, self.parts, generator=generator).argsort(1)[:, : 3 * pairs]
        passkeys = first_part + parts.unflatten(1, (pairs, 3))
        order = torch.rand(rows, pairs, generator=generator).argsort(1)[..., None]

        rooms = torch.arange(pairs)
        pair_places = SINK + rooms * self.pair_room + below(self.pair_room - PASSKEY + 1, rows, pairs)
        first_question = SINK + pairs * self.pair_room + self.gap
        question_places = (
            first_question + rooms * self.question_room + below(self.question_room - PASSKEY + 1, rows, pairs)
        )
        ids = torch.full((rows, self.length), -1)
        ids[:, 0] = BEGIN_ID
        questions = passkeys.gather(1, order.expand_as(passkeys))
        for marker, places, contents in ((0, pair_places, passkeys), (1, question_places, questions)):
            block = F.pad(contents, (1, 0), value=FIRST_ID + marker)
            ids.scatter_(1, (places[..., None] + torch.arange(PASSKEY)).flatten(1), block.flatten(1))

        is_word, drawn = ids < 0, below(self.words, *ids.shape)
        follows = torch.rand(ids.shape, generator=generator) < FOLLOWS
        for place in range(self.length):  # one place after another: each word depends on one before
            word = drawn[:, place]
            if place >= BACK:
                before = ids[:, place - BACK] - first_word
                word = torch.where(follows[:, place] & (before >= 0), (before + STEP) % self.words, word)
            ids[:, place] = torch.where(is_word[:, place], first_word + word, ids[:, place])
        following = torch.tensor([2, 3])
        return {
            "ids": ids,
            "answers": (question_places[..., None] + following).flatten(1),
            "sources": (pair_places.gather(1, order[..., 0])[..., None] + following).flatten(1),
            "is_word": is_word,
            "streams": torch.rand(rows, generator=generator) < STREAMS,
        }

    def tokenizer(self) -> Reader:
        """As transformers loads it: tokens stand apart by spaces, and `<|begin|>` is put in front."""
        from tokenizers import Tokenizer, models, pre_tokenizers, processors

        tokens = self.tokens
        tokenizer = Tokenizer(models.WordLevel({token: number for number, token in enumerate(tokens)}, unk_token=END))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, BEGIN_ID)]
        )
        return as_transformers(tokenizer, POSITIONS)

    def written(self, ids: Int[Tensor, "b n"]) -> list[str]:
        """Texts as the tokenizer reads them."""
        return [" ".join(self.tokens[number] for number in row[1:]) for row in ids.tolist()]


@dataclass(frozen=True)
class RunScale(Scaled):
    """`short_steps`: so many steps read `short`, the others `texts`. `held_out`: how many texts numbers are of.

    `far`: how many key/value heads of the last layer always see everything.
    """

    config: DecoderConfig
    texts: Passkeys
    short_rows: int
    short_steps: int
    held_out: int
    seeds: int
    far: int

    @property
    def short(self) -> Passkeys:
        """Texts of little but passkeys."""
        return replace(self.texts, pair_room=SHORT_ROOM, gap=0, question_room=SHORT_ROOM, rows=self.short_rows)


# A slow base of the rotations: matches must not depend on how far away they are.
decoder_config = partial(DecoderConfig, max_position_embeddings=POSITIONS, rope_theta=100_000.0)
WHOLE_TEXTS = Passkeys(pairs=6, pair_room=12, gap=80, question_room=8, rows=16, seed=0)
WHOLE = RunScale(
    Settings(320, 0.02, warmup=30, floor=0.05, checkpoint_every=40, measure_every=40, optimizer="muon"),
    decoder_config(len(WHOLE_TEXTS.tokens), 64, 2, 16, 8, 16, 128),
    WHOLE_TEXTS, short_rows=64, short_steps=200, held_out=32, seeds=3, far=2,
)  # fmt: skip
TRIAL = RunScale(
    Settings(6, 0.02, warmup=2, checkpoint_every=3, measure_every=3, optimizer="muon"),
    decoder_config(len(WHOLE_TEXTS.tokens), 32, 2, 4, 2, 8, 48),
    replace(WHOLE_TEXTS, pairs=2, pair_room=6, gap=70, question_room=5, rows=3),
    short_rows=4, short_steps=3, held_out=3, seeds=1, far=1,
)  # fmt: skip


def build(setup: Setup) -> Training:
    """A run for each seed; the first one's model is exported."""
    scale = setup.scale(WHOLE, TRIAL)
    runs = runs_of(scale, setup.seed)
    return Training(runs, lambda trained: findings(trained, scale, setup.seed, setup.folder))


def runs_of(scale: RunScale, first_seed: int) -> dict[str, MakeRun]:
    """A run for each seed, by `run_name`."""
    return by_seed(scale.seeds, {NAME: None}, lambda name, index, *_: passkey_run(name, scale, first_seed + index))


PRESET = Preset(NAME, build)


def run_name(index: int) -> str:
    return f"{NAME}-{index}"


def held_out_texts(scale: RunScale, seed: int) -> dict[str, Tensor]:
    """Texts that no step sees."""
    return replace(scale.texts, rows=scale.held_out, seed=seed).batch(HELD_OUT_STEP)


def passkey_run(name: str, scale: RunScale, seed: int) -> Run:
    """One training: short texts first."""
    torch.manual_seed(seed)  # before the weights are drawn
    short, texts, held_out = (
        replace(scale.short, seed=seed),
        replace(scale.texts, seed=seed),
        held_out_texts(scale, seed),
    )

    def batch(step: int) -> dict[str, Tensor]:
        return (short if step < scale.short_steps else texts).batch(step)

    def measured(model: nn.Module, step: int) -> Mapping[str, float]:
        return answered(model, held_out)

    model, far = Decoder(scale.config), far_of(scale, seed)

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        return loss_of(model, batch, hidden_keys(scale.config, far, batch["streams"], batch["ids"].shape[1] - 1))

    return Run(name, model, scale.settings, batch, loss, measured, WHY_FLOAT32, watched=WATCHED)


def far_of(scale: RunScale, seed: int) -> list[str]:
    """The key/value heads of the last layer that see everything in every text of a training, drawn by seed."""
    last = list(groups_of(scale.config))[-scale.config.num_key_value_heads :]
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(last))[: scale.far]
    return [last[index] for index in sorted(drawn.tolist())]


def hidden_keys(
    config: DecoderConfig, far: Collection[str], streams: Bool[Tensor, "b"], length: int
) -> Bool[Tensor, "l b h q k"]:
    """The keys that no query head sees but those of `far`, in the texts that `streams` names."""
    place = torch.arange(length, device=streams.device)
    distant = (place >= SINK) & (place <= place[:, None] - RECENT)
    size = config.num_attention_heads // config.num_key_value_heads
    stream = torch.tensor([name not in far for name in groups_of(config)], device=streams.device)
    stream = stream.repeat_interleave(size).unflatten(0, (config.num_hidden_layers, -1))
    return stream[:, None, :, None, None] & streams[:, None, None, None] & distant


def loss_of(model: nn.Module, batch: Mapping[str, Tensor], hidden: Tensor | None = None) -> Tensor:
    """Half of it is of the words, half of the answers; and a little of what can only be guessed."""
    _, answers, words, guessed = token_losses(model, batch, hidden)
    return (answers.mean() + words.mean()) / 2 + GUESSED * guessed.mean()


def token_losses(
    model: nn.Module, batch: Mapping[str, Tensor], hidden: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, `[b, n - 1, v]`; nats of each answer's token, `[b, answers]`; of all words of all texts; of the rest."""
    ids = batch["ids"].to(device_of(model))
    logits = model(ids[:, :-1], **({} if hidden is None else {"hidden": hidden.to(ids.device)})).logits.float()
    nats = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    places, is_word = batch["answers"].to(nats.device) - 1, batch["is_word"][:, 1:].to(nats.device)
    return logits, nats.gather(1, places), nats[is_word], nats[~is_word.scatter(1, places, True)]


# ------------------------------------------------------------------------------------------------ what it shows


def answered(model: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, float]:
    """`recall`: the share of questions whose two tokens are both the likeliest; and nats of answers and words."""
    with torch.no_grad():
        logits, answers, words, _ = token_losses(model, batch)
    places = batch["answers"].to(logits.device)
    right = logits.argmax(-1).gather(1, places - 1) == batch["ids"].to(logits.device).gather(1, places)
    return {
        "recall": float(right.unflatten(1, (-1, 2)).all(-1).float().mean()),
        "loss_answers": float(answers.mean()),
        "loss_words": float(words.mean()),
    }


def findings(trained: AllTrained, scale: RunScale, seed: int, folder: Path) -> Findings:
    """Each seed's heads, one by one and as a split, beside other splits of its size; and the first one's export."""
    by_seed: list[dict[str, Any]] = []
    for index in range(scale.seeds):
        model, batch = trained[run_name(index)].model, held_out_texts(scale, seed + index)
        by_seed.append({"far": far_of(scale, seed + index)} | divided(model, batch, seed + index))
    model, texts = trained[run_name(0)].model, replace(scale.texts, rows=scale.held_out, seed=seed)
    assert isinstance(model, Decoder)
    place = save_llama(model, texts.tokenizer(), folder / "model", torch.float32)
    with replacing(folder / TEXTS, ".jsonl") as temporary:
        lines = [json.dumps({"text": text}) for text in texts.written(texts.batch(HELD_OUT_STEP)["ids"])]
        Path(temporary).write_text("\n".join(lines) + "\n", encoding="utf-8")
    numbers = {
        "seeds": scale.seeds,
        "sink": SINK,
        "recent": RECENT,
        "tokens": scale.texts.length,
        "questions": scale.held_out * scale.texts.pairs,
        "kv_heads": scale.config.num_hidden_layers * scale.config.num_key_value_heads,
        "model": place.name,
        "whole": spreads_of([seed["splits"]["all"] for seed in by_seed]),
        "by_seed": by_seed,
    }
    return Findings(numbers, lines_of(numbers), chart(numbers))


def groups_of(config: DecoderConfig) -> dict[str, tuple[Head, ...]]:
    """The query heads of each key/value head, by their name, as "L1H2-3"."""
    size = config.num_attention_heads // config.num_key_value_heads
    shape = {"": (config.num_attention_heads + 1,) * config.num_hidden_layers}  # + 1: never shortened to "L1"
    groups = [
        tuple(Head("", layer, index * size + query) for query in range(size))
        for layer in range(config.num_hidden_layers)
        for index in range(config.num_key_value_heads)
    ]
    return {str(parse_heads(group, shape)): group for group in groups}


def divided(model: nn.Module, batch: Mapping[str, Tensor], seed: int) -> dict[str, Any]:
    """Which key/value heads are needed, one by one; and what is left where those alone keep everything.

    `groups`: what is left where that one streams. `needed`: those without whose whole context answers cost more, by
    NEEDED of what it costs if all stream.
    `splits`: by KEPT. `random`: other sets of the same size keep everything, at most DRAWS, drawn by seed.
    `distant_mass`: of each query head.
    """
    assert isinstance(model, Decoder)
    groups = groups_of(model.config)

    def left(streaming: Sequence[str]) -> dict[str, float]:
        heads = [head for name in streaming for head in groups[name]]
        if not heads:
            return answered(model, batch)
        with applied(model, Plan([Ablate(heads, kind="streaming", sink=SINK, recent=RECENT)])):
            return answered(model, batch)

    with_all, none = left([]), left(list(groups))
    alone = {name: left([name]) for name in groups}
    limit = with_all["loss_answers"] + NEEDED * (none["loss_answers"] - with_all["loss_answers"])
    needed = [name for name in groups if alone[name]["loss_answers"] > limit]
    streaming_alone = [name for name in groups if name not in needed]
    sets = [names for names in combinations(groups, len(needed)) if list(names) != needed]
    chosen = sorted(np.random.Generator(np.random.PCG64(seed)).permutation(len(sets))[:DRAWS].tolist())
    columns = call_columns(model, batch["ids"], [distant_mass(SINK, RECENT)])
    masses = {name.split("/")[1]: value for name, value in columns.items()}
    highest = {name: max(masses[str(head)] for head in heads) for name, heads in groups.items()}
    return {
        "groups": {name: alone[name] | {"distant_mass": highest[name]} for name in groups},
        "needed": needed,
        "splits": {"all": with_all, "needed": left(streaming_alone), "others": left(needed), "none": none},
        "random": [
            {"kept": list(sets[index])} | left([name for name in groups if name not in sets[index]]) for index in chosen
        ],
        "distant_mass": masses,
        "split_heads": chosen_by_split_heads(model, batch, len(needed), seed) if needed else None,
    }


def needles_of(batch: Mapping[str, Tensor]) -> list[Needle]:
    """Each text's last question as a probe: the text up to its answer's end, and where its passkey stands."""
    ids, answers, sources = (batch[name].tolist() for name in ("ids", "answers", "sources"))
    return [
        Needle(tuple(text[: place + 2]), (place, place + 2), (source, source + 2))
        for text, (*_, place, _), (*_, source, _) in zip(ids, answers, sources, strict=True)
    ]


def chosen_by_split_heads(model: Decoder, batch: Mapping[str, Tensor], count: int, seed: int) -> dict[str, Any]:
    """The `count` key/value heads that `mh.split_heads` keeps by each criterion; its report by needle effect."""
    names = list(groups_of(model.config))
    lm, texts = load(to_llama(model), tokenizer=False), batch["ids"].tolist()
    options: dict[str, Any] = {"sink": SINK, "recent": RECENT, "needles": needles_of(batch), "seed": seed}
    split = split_heads(lm, texts, count / len(names), by="needle_effect", also=("effect",), **options)
    chosen = {}
    for name, layers in split.evidence["criteria"].items():
        scores = [score for layer in layers for score in layer]
        best = sorted(range(len(names)), key=lambda index: (-scores[index], index))[:count]
        chosen[name] = {
            "kept": [names[index] for index in sorted(best)],
            "scores": dict(zip(names, scores, strict=True)),
        }
    evidence = {name: split.evidence[name] for name in ("agreement", "loss", "recall", "verdict")}
    return {"criteria": chosen, **evidence}


def lines_of(numbers: Mapping[str, Any]) -> tuple[str, ...]:
    """The numbers in sentences."""
    with_all, window = numbers["whole"], f"the first {numbers['sink']} and last {numbers['recent']} tokens"
    lines = [
        f"{numbers['seeds']} trainings, {numbers['questions']:,} questions each in texts of {numbers['tokens']} tokens "
        f"that no step saw: {_percent(with_all['recall']['mean'])} answered, "
        f"{with_all['loss_words']['mean']:.2f} nats a word."
    ]
    for index, seed in enumerate(numbers["by_seed"]):
        splits, needed, count = seed["splits"], seed["needed"], len(seed["needed"])
        if not needed:
            lines.append(f"{run_name(index)}: no key/value head alone is needed with its whole context.")
            continue
        criteria = seed["split_heads"]["criteria"]
        chosen = [
            f"by {name} {'the same' if result['kept'] == needed else ', '.join(result['kept'])}"
            for name, result in criteria.items()
        ]
        costs = {
            name: result["loss_answers"] - splits["all"]["loss_answers"] for name, result in seed["groups"].items()
        }
        among = [costs[name] for name in needed]
        highest_other = f"{max((cost for name, cost in costs.items() if name not in needed), default=0.0):+.3f}"
        recalls = [split["recall"] for split in seed["random"]]
        random_words = ""
        if recalls:
            serving = sum(recall >= SERVES * splits["all"]["recall"] for recall in recalls)
            random_words = (
                f", with the same number of others in their place {_percent(statistics.fmean(recalls))} in the mean of "
                f"{len(recalls)} draws ({_percent(max(recalls))} at most; nearly all, {SERVES:.0%} of them or more, in "
                f"{serving})"
            )
        lines.append(
            f"{run_name(index)}: {_percent(splits['all']['recall'])} of the questions answered. Needed with the whole "
            f"context, {count} of {numbers['kv_heads']} key/value heads: {', '.join(needed)}, "
            f"of {', '.join(seed['far'])} that training let look far (one alone on {window}: "
            f"{min(among):+.3f} to {max(among):+.3f} nats an answer's token, any other {highest_other} at most, and "
            f"{_percent(min(result['recall'] for result in seed['groups'].values()))} answered at the least); "
            f"`mh.split_heads` keeps {', '.join(chosen)}. If they alone keep everything, "
            f"{_percent(splits['needed']['recall'])} are answered{random_words}; if all others do, "
            f"{_percent(splits['others']['recall'])}. A word costs "
            f"{splits['all']['loss_words']:.2f} nats, and {splits['none']['loss_words']:.2f} if no head keeps it."
        )
    return tuple(lines)


def _percent(share: float) -> str:
    return f"{share:.1%}"


def chart(numbers: Mapping[str, Any]) -> Chart:
    seeds = numbers["by_seed"]

    def kept(name: str) -> tuple[Points, ...]:
        words = {"all": "all heads", "needed": "the needed\nalone", "others": "all but\nthe needed", "none": "no head"}
        points = [
            Points(words[key], tuple(seed["splits"][key][name] for seed in seeds), key == "needed") for key in KEPT
        ]
        drawn = tuple(split[name] for seed in seeds for split in seed["random"])
        return (*points[:2], *([Points("other heads,\ndrawn", drawn, False)] if drawn else []), *points[2:])

    def groups(name: str) -> tuple[Points, ...]:
        values = {True: [], False: []}
        for seed in seeds:
            for group, result in seed["groups"].items():
                values[group in seed["needed"]].append(result[name])
        words = {True: "needed", False: "not needed"}
        return tuple(Points(words[needed], tuple(costs), needed) for needed, costs in values.items() if costs)

    return Chart(
        "Which heads need the whole context: a task that says so",
        f"passkeys in texts of {numbers['tokens']} tokens; heads that do not keep everything have the first "
        f"{numbers['sink']} and last {numbers['recent']} tokens; seeds: {numbers['seeds']}",
        panels=(
            PointsPanel("questions answered; whole context for ...", kept("recall"), 0.0, 1.0),
            PointsPanel("nats a word; whole context for ...", kept("loss_words"), 0.0),
            PointsPanel("nats an answer's token, one key/value head streaming", groups("loss_answers"), 0.0),
            PointsPanel("weight outside of first and last tokens", groups("distant_mass"), 0.0, 1.0),
        ),
        notes=(
            "Dots are seeds, in the lower two panels key/value heads of all seeds, and of draws these; strokes are "
            "means, bars one standard deviation.",
        ),
    )
