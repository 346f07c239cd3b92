"""Pairs of texts, clean and corrupted, that a model reads token by token alike, and what it answers on each.

Patching takes numbers of one run into another: position 7 of the one must be position 7 of the other. So both texts of
a pair have the same number of tokens, and a batch holds pairs of one length, without padding. A metric is one number a
text: of the answer's logit, at the place where the answer belongs. That is the row after which a decoder would write
on, or the mask of a masked language model.

An answer given as a word is the token with which it continues the text, leading space and all; `read_answers` says
which token that is. Words of several tokens are refused unless their first one is asked for.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from manyheads.base import few, one_of
from manyheads.edits import OR_OWN, Metric, MetricLike, choose_metric, exact, logits_of, require_loaded
from manyheads.errors import StatisticError, TextError
from manyheads.inputs import Batch, Inputs, InputsLike, Piece, Reading, fault_in, read
from manyheads.models import LoadedModel
from manyheads.texts import Document

METRICS = ("logit_diff", "logit", "prob", "loss", "kl")
UNITS = {"logit_diff": "logits", "logit": "logits", "prob": "", "loss": "nats", "kl": "nats"}
AROUND = 4  # tokens either side of the first difference, in an error
WIDE_LETTERS = "\u2e80"  # from here on, scripts without spaces between words

Answer = str | int
AnswersLike = Answer | Sequence[Answer | Sequence[Answer]]
"""An answer for all texts, (right, wrong) for all, or a list with either for each."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Aligned pairs in batches. `rows`: where each text's answer is read, -1 the last row; None where that is unknown.

    A batch holds pairs of one length: their clean and their corrupted texts, in the same order, without padding.
    `clean` and `corrupted` are the tokenised texts, () of ready inputs. `lengths`: tokens of each text.
    """

    batches: tuple[tuple[Batch, Batch], ...]
    lengths: tuple[int, ...]
    rows: Int[Tensor, "text"] | None
    clean: tuple[Piece, ...] = ()
    corrupted: tuple[Piece, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_texts(self) -> int:
        return len(self.lengths)

    @property
    def positions(self) -> tuple[str, ...]:
        """A name for each position: the tokens of the only pair (where the two differ, both), else its number."""
        if len(self.clean) != 1:
            return tuple(map(str, range(self.lengths[0])))
        piece_pairs = zip(self.clean[0].pieces, self.corrupted[0].pieces, strict=True)
        return tuple(piece if piece == changed else f"{piece}/{changed}" for piece, changed in piece_pairs)

    def chosen(self, texts: Sequence[int], lm: LoadedModel, num_tokens: int) -> Pairs:
        """Some of the pairs. Of texts only: ready inputs come in batches that are not taken apart."""
        clean, corrupted = ([side[text] for text in texts] for side in (self.clean, self.corrupted))
        return _paired(lm, clean, corrupted, dict(self.notes), num_tokens)


def read_pairs(
    lm: LoadedModel,
    clean: InputsLike | Mapping[str, Tensor],
    corrupted: InputsLike | Mapping[str, Tensor],
    num_tokens: int,
) -> Pairs:
    """Both texts of each pair, tokenised and compared with each other; `num_tokens` of a batch.

    `clean` and `corrupted`: a text each, or a list of texts each; of an encoder-decoder a text may be a (source,
    target). Or ready inputs, a mapping or a list of mappings each, every mapping a batch without padding.
    Errors: TextError for texts that do not align token by token, or are too long; ModelError without a tokenizer.
    """
    require_loaded(lm)
    one_text = (str, Document, Mapping, tuple) if lm.writes_apart else (str, Document, Mapping)  # a tuple: a pair
    sides: list[Inputs] = []
    for side in (clean, corrupted):
        items = [side] if isinstance(side, one_text) else side
        if not isinstance(items, Inputs) and not (isinstance(items, Sequence) and len(items)):
            raise TextError("clean and corrupted are a text each, or a list of at least one text each.")
        is_ready = isinstance(items, Sequence) and any(isinstance(item, Mapping) for item in items)
        inputs = Inputs.of(Inputs(ready=items) if is_ready else items)  # type: ignore[arg-type]  # looked at as they are read
        sides.append(replace(inputs, long="whole", labels=None))
    if sides[0].count != sides[1].count:
        raise TextError(f"{sides[0].count} clean texts and {sides[1].count} corrupted ones: give one for each.")
    if any(side.has_media for side in sides):
        raise TextError("patching reads texts or ready tensors, and no pictures or sounds: give those.")
    if any(side.ready is not None for side in sides):
        return _ready(lm, *sides)
    pieces = []
    for name, side in zip(("clean", "corrupted"), sides, strict=True):
        try:
            pieces.append(read(lm, side).pieces)
        except TextError as error:
            raise TextError(f"{name}: {error}") from error
    for text, (clean_piece, corrupted_piece) in enumerate(zip(pieces[0], pieces[1], strict=True)):
        _require_aligned(clean_piece, corrupted_piece, f"pair {text}" if len(pieces[0]) > 1 else "the pair")
    return _paired(lm, pieces[0], pieces[1], {}, num_tokens)


def _require_aligned(clean: Piece, corrupted: Piece, name: str) -> None:
    """Errors: TextError where the numbers of tokens differ, with the tokens around the first difference."""
    sides = [(clean, corrupted)]
    if clean.target is not None and corrupted.target is not None:
        sides.append((clean.target, corrupted.target))
    for clean_side, corrupted_side in sides:
        if len(clean_side.ids) != len(corrupted_side.ids):
            first = next(
                (i for i, (a, b) in enumerate(zip(clean_side.ids, corrupted_side.ids, strict=False)) if a != b), None
            )
            first = min(len(clean_side.ids), len(corrupted_side.ids)) if first is None else first
            around = slice(max(0, first - AROUND), first + AROUND + 1)
            raise TextError(
                f"{name}: the clean text has {len(clean_side.ids)} tokens and the corrupted one "
                f"{len(corrupted_side.ids)}, and patching takes each position's numbers from the same position. They "
                f"first differ at token {first}: clean {' '.join(map(repr, clean_side.pieces[around]))}, corrupted "
                f"{' '.join(map(repr, corrupted_side.pieces[around]))}. Choose words with the same number of tokens."
            )
    if all(clean_side.ids == corrupted_side.ids for clean_side, corrupted_side in sides):
        raise TextError(f"{name}: the clean and the corrupted text have the same tokens, so nothing can be patched.")


def _paired(
    lm: LoadedModel, clean: Sequence[Piece], corrupted: Sequence[Piece], notes: dict[str, str], num_tokens: int
) -> Pairs:
    groups: dict[tuple[int, int], list[int]] = {}
    for text, piece in enumerate(clean):
        length, target = len(piece.ids), 0 if piece.target is None else len(piece.target.ids)
        groups.setdefault((length, target), []).append(text)
    listed: list[tuple[Batch, Batch]] = []
    readings = [Reading(lm, tuple(side)) for side in (clean, corrupted)]
    # Texts of one first difference beside each other: what comes before it is run once for all of them.
    firsts = [
        next((place for place, (token, changed) in enumerate(zip(*ids, strict=True)) if token != changed), len(ids[0]))
        for ids in ((piece.ids, changed.ids) for piece, changed in zip(clean, corrupted, strict=True))
    ]
    for (length, target), texts in groups.items():
        texts.sort(key=firsts.__getitem__)
        size = max(1, num_tokens // max(length, target, 1))
        for begin in range(0, len(texts), size):
            part = texts[begin : begin + size]
            listed.append((readings[0].batch(part), readings[1].batch(part)))
    rows: Tensor | None = None
    if (kind := lm.predicts) == "mask":
        rows = _mask_rows(lm, *([piece.ids for piece in side] for side in (clean, corrupted)))
    elif kind == "next":
        # The end mark that some tokenizers write is no part of what is continued.
        lasts = [max((i for i, special in enumerate(piece.special) if not special), default=-1) for piece in clean]
        ends = [lm.writes_apart or last == len(piece.ids) - 1 for last, piece in zip(lasts, clean, strict=True)]
        rows = torch.tensor([-1 if end else last for last, end in zip(lasts, ends, strict=True)], device="cpu")
    return Pairs(
        tuple(listed),
        tuple(len(piece.ids) for piece in clean),
        rows,
        tuple(clean),
        tuple(corrupted),
        notes,
    )


def _ready(lm: LoadedModel, clean: Inputs, corrupted: Inputs) -> Pairs:
    """Ready inputs, each mapping a batch. Errors: TextError for padding, or other shapes on either side."""
    if clean.ready is None or corrupted.ready is None:
        raise TextError("ready inputs are mappings of names to tensors, each a batch: one of these is not.")
    sides = [read(lm, side).ready for side in (clean, corrupted)]
    lengths: list[int] = []
    for clean_batch, corrupted_batch in zip(*sides, strict=True):
        shapes = [
            {name: tuple(x.shape) for name, x in batch.inputs.items()} for batch in (clean_batch, corrupted_batch)
        ]
        if shapes[0] != shapes[1]:
            raise TextError(f"clean inputs {shapes[0]} and corrupted ones {shapes[1]}: their shapes must be equal.")
        for batch in (clean_batch, corrupted_batch):
            if any("mask" in name and x.ndim == 2 and not bool(x.all()) for name, x in batch.inputs.items()):
                raise TextError("inputs to patch must have no padding: give texts of one length in a batch.")
        first = next(iter(clean_batch.inputs.values()))
        lengths += [first.shape[1] if first.ndim > 1 else 1] * len(clean_batch.places)
    rows: Tensor | None = torch.full((len(lengths),), -1, device="cpu")
    if lm.predicts != "next":
        ids = ([row for batch in side for row in batch.inputs["input_ids"].tolist()] for side in sides)
        has_ids = all("input_ids" in batch.inputs for side in sides for batch in side)
        rows = _mask_rows(lm, *ids) if has_ids else None
    return Pairs(tuple(zip(*sides, strict=True)), tuple(lengths), rows)


def _mask_rows(lm: LoadedModel, clean: Sequence[Sequence[int]], corrupted: Sequence[Sequence[int]]) -> Tensor | None:
    """The mask's place in each text; None where it is not one, and the same on both sides."""
    mask = getattr(lm.tokenizer, "mask_token_id", None)
    rows: list[int] = []
    for pair in zip(clean, corrupted, strict=True):
        places = [[i for i, token in enumerate(ids) if token == mask] for ids in pair]
        if len(places[0]) != 1 or places[0] != places[1]:
            return None
        rows += places[0]
    return torch.tensor(rows, device="cpu")


# -------------------------------------------------------------------------------------------------- answers and metrics


@dataclass(frozen=True, eq=False)
class Answers:
    """The tokens whose logits are read: `right[text]`, and `wrong[text]` where the metric compares two."""

    right: Int[Tensor, "text"]
    wrong: Int[Tensor, "text"] | None
    because: str


def read_answers(lm: LoadedModel, pairs: Pairs, metric: str, answers: AnswersLike | None, first_token: bool) -> Answers:
    """The answers' tokens, and in words which they are. Errors: TextError."""
    wants_two = metric == "logit_diff"
    example = 'answers=("Mary", "John"), right and wrong' if wants_two else 'answers="Mary"'
    count = pairs.num_texts
    single = isinstance(answers, Answer | tuple) or (
        wants_two and isinstance(answers, list) and len(answers) == 2 and all(isinstance(x, Answer) for x in answers)
    )
    listed = [answers] * count if single else list(answers) if isinstance(answers, Sequence) else []
    if len(listed) != count:
        raise TextError(f"metric {metric!r} reads answers, one for all or one for each of {count} texts: {example}.")
    tokens: list[list[int]] = []
    words: dict[str, None] = {}
    known: dict[tuple[Any, ...], tuple[int, str]] = {}
    for text, answer in enumerate(listed):
        options: tuple[Any, ...] = tuple(answer) if isinstance(answer, tuple | list) else (answer,)
        if not wants_two:
            options = options[:1]
        if len(options) != 1 + wants_two or not all(isinstance(x, Answer) and not isinstance(x, bool) for x in options):
            raise TextError(f"the answers of text {text} are {answer!r}: give {example}, as words or token numbers.")
        row: list[int] = []
        for option in options:
            key = (option, pairs.clean[text].text if isinstance(option, str) and pairs.clean else "")
            if key not in known:
                known[key] = _token_of(lm, pairs, text, option, first_token)
            row.append(known[key][0])
            words.setdefault(known[key][1])
        if len(set(row)) < len(row):
            raise TextError(
                f"both answers of text {text}, {answer!r}, begin with the same token: nothing tells them apart."
            )
        tokens.append(row)
    columns = torch.tensor(tokens, device="cpu")
    return Answers(columns[:, 0], columns[:, 1] if wants_two else None, few(words))


def _token_of(lm: LoadedModel, pairs: Pairs, text: int, answer: Answer, first_token: bool) -> tuple[int, str]:
    """An answer's token and how it is written. Errors: TextError."""
    if isinstance(answer, int):
        size = lm.spec.vocab_size
        if answer < 0 or (size is not None and answer >= size):
            raise TextError(f"the answer {answer} is not a token of {lm.name}, whose vocabulary has {size or 0:,}.")
        return answer, f"token {answer}" if lm.tokenizer is None else _named(lm, answer)
    if not pairs.clean:
        raise TextError(f"the answer {answer!r} is a word, and the inputs are ready tensors: give token numbers.")
    if fault := fault_in(answer):
        raise TextError(f"the answer {answer!r} {fault}")
    ids = _continuing(lm, pairs.clean[text], answer)
    if not ids:
        raise TextError(f"the answer {answer!r} has no token of its own here: give a word.")
    if len(ids) > 1 and not first_token:
        names = " ".join(_named(lm, token) for token in ids)
        raise TextError(
            f"the answer {answer!r} is {len(ids)} tokens here ({names}), and a logit belongs to one: choose a word of "
            f"one token, or read only its first, first_token=True."
        )
    if ids[0] == getattr(lm.tokenizer, "unk_token_id", None):
        raise TextError(f"the answer {answer!r} is not a word of {lm.name}'s vocabulary: choose another.")
    also = f", the first of {len(ids)} tokens of {answer!r}" if len(ids) > 1 else ""
    return ids[0], f"{_named(lm, ids[0])}{also}"


def _named(lm: LoadedModel, token: int) -> str:
    return f"{lm.required_tokenizer.decode([token])!r} ({token})"


def _continuing(lm: LoadedModel, piece: Piece, answer: str) -> list[int]:
    """The tokens that an answer adds where it belongs: after the text, or in the mask's place. Errors: TextError."""
    tokenizer, mask = lm.required_tokenizer, getattr(lm.tokenizer, "mask_token", None)
    fault = f"the answer {answer!r} changes how the text beside it is cut into tokens, so it has none of its own"
    if lm.predicts == "mask":
        text_ids = list(piece.ids)
        mask_id = getattr(tokenizer, "mask_token_id", None)
        assert isinstance(mask_id, int), "a model that fills masks in has one"
        place = text_ids.index(mask_id)
        ids = list(tokenizer(piece.text.replace(str(mask), answer, 1), verbose=False)["input_ids"])
        num_behind = len(text_ids) - place - 1
        if ids[:place] != text_ids[:place] or ids[len(ids) - num_behind :] != text_ids[place + 1 :]:
            raise TextError(f"{fault}: give its token's number.")
        return ids[place : len(ids) - num_behind]
    side = "text" if piece.target is None else "text_target"
    text = (piece.target or piece).text
    # As a word after a word; behind anything else as written, so that `self.` may be continued by `name`.
    spaced = text[-1:].isalnum() and answer[:1].isalnum() and max(text[-1:], answer[:1]) < WIDE_LETTERS
    options = {"add_special_tokens": False, "verbose": False}
    before, after = (
        list(tokenizer(**{side: words}, **options)["input_ids"]) for words in (text, f"{text}{' ' * spaced}{answer}")
    )
    if after[: len(before)] != before:
        raise TextError(f"{fault}: leave out a space at the text's end, or give the answer's token number.")
    return after[len(before) :]


def metric_of(
    lm: LoadedModel, pairs: Pairs, metric: MetricLike, answers: AnswersLike | None, first_token: bool
) -> tuple[Metric, Pairs, dict[str, str]]:
    """The metric, the pairs as it wants them read, and notes.

    Errors: StatisticError for a metric that this model cannot give; TextError for answers.
    """
    if callable(metric):
        if answers is not None:
            raise TextError("answers= is for named metrics: a function of your own reads what it needs by itself.")
        return choose_metric(lm, metric)[0], pairs, {"metric": "a function of your own"}
    one_of("metric", metric, METRICS, StatisticError, more=OR_OWN)
    kind = lm.predicts
    if not kind:
        raise StatisticError(
            f"metric {metric!r} reads logits over a vocabulary, and {type(lm.model).__name__} has none: load a "
            f"language model (causal or masked), or give a function (outputs, inputs)."
        )
    if pairs.rows is None:
        raise StatisticError(
            f"metric {metric!r} of a masked language model is read at its mask: write one "
            f"{getattr(lm.tokenizer, 'mask_token', None) or 'mask token'} in each text, at the same place in both."
        )
    if metric == "kl" and answers is not None:
        raise TextError("metric 'kl' compares all of a prediction with the clean run's: leave answers= out.")
    tokens_read = None if metric == "kl" else read_answers(lm, pairs, metric, answers, first_token)
    rows = pairs.rows
    where = "at the mask" if kind == "mask" else "after the last token"
    notes = {"metric": f"{metric} {where}"} | ({} if tokens_read is None else {"answers": tokens_read.because})
    last = kind == "next" and bool((rows == -1).all())
    if last and "logits_to_keep" in inspect.signature(lm.model.forward).parameters:
        # A vocabulary is wider than the model: of all rows' logits one is read.
        options = {"logits_to_keep": 1}
        pairs = replace(
            pairs,
            batches=tuple(
                (replace(clean, options=options), replace(corrupted, options=options))
                for clean, corrupted in pairs.batches
            ),
        )

    def answer_logits(outputs: object, batch: Batch) -> Tensor:
        logits = logits_of(outputs, metric, 3)
        row = rows[list(batch.places)].to(logits.device)
        return exact(logits[torch.arange(len(row), device=logits.device), row])

    def log_probabilities(outputs: object, batch: Batch) -> Tensor:
        return answer_logits(outputs, batch).log_softmax(-1)

    def divergence(outputs: object, batch: Batch) -> Tensor:
        assert batch.reference is not None, "the clean run is read first"
        logs = log_probabilities(outputs, batch)
        return torch.nn.functional.kl_div(logs, batch.reference, reduction="none", log_target=True).sum(-1)

    def read(outputs: object, batch: Batch) -> Tensor:
        logits, places = answer_logits(outputs, batch), list(batch.places)
        assert tokens_read is not None
        logits = logits.log_softmax(-1) if metric in ("prob", "loss") else logits
        right, wrong = (
            None if column is None else column[places, None] for column in (tokens_read.right, tokens_read.wrong)
        )
        if logits.shape[1] == len(tokens):  # those of these alone
            listed = torch.tensor(tokens, device="cpu")
            right, wrong = (None if column is None else torch.searchsorted(listed, column) for column in (right, wrong))
        assert right is not None, "each metric has a right answer"
        value = logits.gather(1, right.to(logits.device))[:, 0]
        if wrong is not None:
            return value - logits.gather(1, wrong.to(logits.device))[:, 0]
        return {"prob": torch.exp, "loss": torch.neg}.get(metric, lambda x: x)(value)

    def difference(before: Tensor, after: Tensor) -> Tensor:
        return after.double() - before.double()

    tokens: tuple[int, ...] = ()
    if last and tokens_read is not None and metric in ("logit_diff", "logit"):  # others need the whole vocabulary's
        columns = (tokens_read.right, *(() if tokens_read.wrong is None else (tokens_read.wrong,)))
        tokens = tuple(sorted({token for column in columns for token in column.tolist()}))
    made = Metric(metric, UNITS[metric], notes["metric"], read, difference, last_row=last, tokens=tokens)
    return replace(made, read=divergence, refer=log_probabilities) if metric == "kl" else made, pairs, notes


def unrelated(lm: LoadedModel, batch: Batch, count: int, generator: torch.Generator) -> Batch | None:
    """`count` texts of tokens drawn at random, as long as those of a batch, special tokens in their places.

    None for inputs that are not tokens.
    """
    inputs: dict[str, Tensor] = {}
    special = torch.tensor(
        sorted(set(getattr(lm.tokenizer, "all_special_ids", None) or ())), dtype=torch.long, device="cpu"
    )
    if "input_ids" not in batch.inputs or lm.spec.vocab_size is None:
        return None
    plain = torch.ones(lm.spec.vocab_size, dtype=torch.bool, device="cpu")
    plain[special[special < len(plain)]] = False
    words = plain.nonzero()[:, 0]
    for name, x in batch.inputs.items():
        inputs[name] = x[:1].repeat_interleave(count, 0)
        if name.endswith("input_ids"):
            drawn = words[torch.randint(len(words), inputs[name].shape, generator=generator)].to(x.device)
            is_fixed = torch.isin(inputs[name], special.to(x.device))
            if name.startswith("decoder_"):
                is_fixed[:, 0] = True  # the start token
            inputs[name] = torch.where(is_fixed, inputs[name], drawn)
    return Batch(inputs, batch.places[:1] * count, options=batch.options)
