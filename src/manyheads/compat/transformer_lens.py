"""`detect_head` of TransformerLens (`transformer_lens.head_detector`, 4.3), from our records: its own numbers.

A detection pattern D says which cells of a map A a kind of head fills; a score says how much of A is there: "mul" is
sum(A * D) / sum(A), "abs" is 1 - sum |A - D| / T, rounded. The cells of the named kinds are those where a row's label
equals a key's, so both scores follow from two reductions of the pass: the weight on D, and the weight that counts at
all. No map is written; for a pattern in a tensor, the map's rows are read a block at a time.

`lazy_cache` shows a recording as the cache of `run_with_cache`, for code that reads maps from it: a map is computed
when it is read.

Their quirks, preserved: rows without a target count too, so scores depend on the text, and a perfect head has less than
1; BOS is prepended for most models (`lens_ids`), and a score over few tokens depends on that token; a list of texts is
the mean of their scores; heads that are not requested are -1. Changed: wrong input raises our errors, where theirs
asserts. Source: their published code, checked on 4.3.
"""

# device: what is read of a layer is moved to the host first

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from manyheads.attention import Mask
from manyheads.base import one_of
from manyheads.errors import ModelError, RecordingError, ShapeError, StatisticError, TextError
from manyheads.heads import HeadsLike, parse_heads
from manyheads.inputs import record_call
from manyheads.models import LoadedModel, device_of
from manyheads.models.loading import Tokenizer
from manyheads.recording import LayerRecord, Recording, one_text, prepare
from manyheads.recording.exact_map import Labels, Match
from manyheads.texts import Tokens

ERROR_MEASURES = ("mul", "abs")
ABS_DECIMALS = 3  # "abs" is rounded so, before it is taken from 1
NOT_REQUESTED = -1.0
BLOCK_CELLS = 1 << 20  # weights held at once where a map is read by blocks of rows: 4 MB in float32
FALLBACK_BOS = "<|endoftext|>"
NO_BOS = frozenset({
    "audioflamingo3", "bloom", "Dream", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "glm", "glm4", "glm4_moe",
    "glm4_moe_lite", "glm4v", "glm_moe_dsa", "glmasr", "gpt_neox", "granite", "granitemoe", "granitemoehybrid", "llada",
    "minimax_m2", "mpt", "musicflamingo", "phi", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_audio", "qwen2_moe", "qwen3",
    "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe",
    "recurrent_gemma", "seed_oss", "smollm3", "starcoder2",
})  # fmt: skip
"""Families (`config.model_type`) to which 4.3 adds none by default. Earlier versions did to some (Pythia)."""
log = logging.getLogger("manyheads")


def detect_head(
    lm_or_recording: LoadedModel | Recording,
    texts: str | Sequence[str] | None = None,
    detection_pattern: str | Tensor = "previous_token_head",
    *,
    heads: HeadsLike | Sequence[tuple[int, int]] | None = None,
    exclude_bos: bool = False,
    exclude_current_token: bool = False,
    error_measure: str = "mul",
    prepend_bos: bool | None = None,
) -> Float[Tensor, "layers heads"]:
    """How well each head fits a detection pattern: float32, as TransformerLens 4.3 gives it.

    - `lm_or_recording`: a loaded model, or a recording, which is read as it was recorded.
    - `texts`: what the model reads; None with a recording.
    - `detection_pattern`: "previous_token_head", "duplicate_token_head", "induction_head" or a lower-triangular tensor
      as long as each text, its BOS included.
    - `heads`: (layer, head) pairs, {layer: [heads]}, or the grammar of `manyheads.heads`; the others are -1, and rows
      of layers without attention NaN.
    - `exclude_bos`: leave out the first key, whatever it is.
    - `exclude_current_token`: leave out the diagonal.
    - `error_measure`: "mul" is 0 to 1 (NaN where nothing is left to count), "abs" -1 to 1.
    - `prepend_bos`: whether a BOS is read first; None is their default for the model's family.

    Cost: a forward pass a text, and one pass over the tiles of each map.
    Errors: StatisticError for an unknown name or measure, and for "abs" where rows look ahead; ShapeError for a pattern
    that does not fit; TextError unless texts are longer than 1 token and shorter than the model's positions; HeadError,
    ModelError, RecordingError.
    """
    question = Question.of(detection_pattern, error_measure, exclude_bos, exclude_current_token)
    if isinstance(lm_or_recording, Recording):
        if texts is not None:
            raise RecordingError("a recording holds its own texts: give it alone, or give a loaded model and texts.")
        if prepend_bos is not None:
            raise RecordingError("prepend_bos= is for texts: a recording has the tokens that it was recorded with.")
        recordings: Iterable[Recording] = [lm_or_recording]
    else:
        recordings = recorded_one_by_one(lm_or_recording, texts, prepend_bos)
    scores, counts = [], []
    for recording in recordings:
        layers = recording.layers
        tokens = layers[-1].tokens
        if tokens.ids is None:
            raise RecordingError("this recording knows no tokens, only positions: record texts through a model.")
        for text, length in enumerate(tokens.lengths.tolist()):
            _require_length(length)
            rows = {layer.site.layer: question.score(layer, text) for layer in layers}
            counts = [len(rows.get(number, ())) for number in range(1 + max(rows))]
            # A row for each layer by the model's own number: NaN where a layer has no attention, -1 past the heads of a
            # pruned one.
            table = torch.full((len(counts), max(counts)), torch.nan)
            for number, row in rows.items():
                table[number] = torch.nn.functional.pad(row, (0, max(counts) - len(row)), value=NOT_REQUESTED)
            scores.append(table)
    if not scores:
        raise TextError("no text was given: give at least one.")
    mean = torch.stack(scores).mean(0)
    if heads is None:
        return mean
    out = torch.full_like(mean, NOT_REQUESTED)
    out[[number for number, count in enumerate(counts) if not count]] = torch.nan
    for head in parse_heads(heads, {"": counts}):
        out[head.layer, head.index] = mean[head.layer, head.index]
    return out


class LazyCache(Mapping[str, Tensor]):
    """The maps of a recording under the names of TransformerLens' cache, each computed when it is read, never kept.

    `cache["blocks.3.attn.hook_pattern"]`, or their shorthand `cache["pattern", 3]`: `[text, head, query, key]`, float32
    (float64 of a float64 model), 0 where a query may not look and on padding. Nothing else is in it: q and k of a
    recording are after rotation and norms, which TransformerLens has under other names by architecture.
    Errors: RecordingError (a KeyError too) for another name; WindowError for maps above 1 GB.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._layers = {f"blocks.{layer.site.layer}.attn.hook_pattern": layer for layer in recording.layers}

    def __getitem__(self, name: str | tuple[str, int]) -> Tensor:
        key = f"blocks.{name[1]}.attn.hook_{name[0]}" if isinstance(name, tuple) and len(name) == 2 else name
        if key not in self._layers:
            raise MissingActivation(
                f"{name!r} is not in this cache, which holds {next(iter(self._layers))!r} to "
                f"{list(self._layers)[-1]!r}: read other activations with TransformerLens itself."
            )
        layer = self._layers[str(key)]
        longest = max(layer.lengths.tolist())
        maps = [layer.weights(text=text) for text in range(len(layer.lengths))]
        return torch.stack([
            torch.nn.functional.pad(x, (0, longest - x.shape[2], 0, longest - x.shape[1])) for x in maps
        ])  # fmt: skip

    def __contains__(self, name: object) -> bool:
        return name in self._layers

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __repr__(self) -> str:
        return f"LazyCache({', '.join(self._layers)})"


class MissingActivation(RecordingError, KeyError):
    """A name that a `LazyCache` does not hold. A KeyError, as a mapping's users expect."""

    def __str__(self) -> str:  # a KeyError's own shows the repr
        return str(self.args[0])


def lazy_cache(recording: Recording) -> LazyCache:
    """A recording as TransformerLens' cache: `["blocks.3.attn.hook_pattern"]` is computed when it is read.

    Errors: RecordingError where the recording has several stacks of layers, or is none.
    """
    if not isinstance(recording, Recording):
        raise RecordingError(
            f"lazy_cache takes a recording, as mh.record(lm, text) makes one, and this is a {type(recording).__name__}."
        )
    return LazyCache(recording)


def pattern_of(name: str, ids: Int[Tensor, "n"]) -> Float[Tensor, "n n"]:
    """The detection pattern of a named kind of head as a tensor: 1 where its weight should be, else 0."""
    kind = _kind(name)
    of_rows, of_keys = kind.labels(ids)
    matches = (of_rows[:, None] == of_keys[None]) & (of_rows >= 0)[:, None]
    return matches.tril(-1 if kind.elsewhere else 0).float()


@dataclass(frozen=True)
class Kind:
    """A kind of head: its cells are those up to the diagonal where the row's label equals the key's.

    `labels` gives each row's and each key's. `elsewhere`: the diagonal is left out, though its labels are equal.
    """

    labels: Callable[[Int[Tensor, "n"]], tuple[Int[Tensor, "n"], Int[Tensor, "n"]]]
    elsewhere: bool = False


KINDS = {
    # A row's label is its place, a key's is the place after it.
    "previous_token_head": Kind(
        lambda ids: (torch.arange(len(ids), device=ids.device), torch.arange(1, len(ids) + 1, device=ids.device))
    ),
    "duplicate_token_head": Kind(lambda ids: (ids, ids), elsewhere=True),
    # A key's label is the token before it, so a row's own place counts too, where a token stands twice in a row.
    "induction_head": Kind(lambda ids: (ids, torch.nn.functional.pad(ids[:-1], (1, 0), value=-1))),
}
HEAD_NAMES = tuple(KINDS)


def _kind(name: str) -> Kind:
    one_of("detection_pattern", name, KINDS, StatisticError, "is not a kind of head", ", or a tensor")
    return KINDS[name]


@dataclass(frozen=True, eq=False)
class Question:
    """A pattern, how to measure, and what is left out."""

    pattern: Kind | Tensor
    measure: str
    exclude_bos: bool
    exclude_current: bool

    @staticmethod
    def of(pattern: str | Tensor, measure: str, exclude_bos: bool, exclude_current: bool) -> Question:
        one_of("error_measure", measure, ERROR_MEASURES, StatisticError, "is not a measure")
        if isinstance(pattern, str):
            return Question(_kind(pattern), measure, exclude_bos, exclude_current)
        pattern = torch.as_tensor(pattern).cpu()
        if pattern.ndim != 2 or pattern.shape[0] != pattern.shape[1] or not pattern.equal(pattern.tril()):
            raise ShapeError(
                f"the detection pattern has shape {tuple(pattern.shape)}"
                f"{' and weight above its diagonal' if pattern.ndim == 2 else ''}: give a lower-triangular matrix, a "
                f"row and a column a token."
            )
        if measure == "mul" and not bool(((pattern == 0) | (pattern == 1)).all()):
            log.warning("the detection pattern holds other values than 0 and 1, which error_measure='mul' multiplies")
        return Question(pattern, measure, exclude_bos, exclude_current)

    def score(self, layer: LayerRecord, text: int) -> Float[Tensor, "h"]:
        """How well each head of a layer fits. Errors: StatisticError, ShapeError."""
        if self.measure == "abs":
            mask = one_text(layer, text).mask
            ahead = mask.stop > torch.arange(1, mask.num_queries + 1, device="cpu")
            if bool(ahead.any() if mask.dense is None else mask.dense.triu(1).any()):
                raise StatisticError(
                    f"{layer.site.module} looks ahead, and error_measure='abs' is for causal models, whose maps are "
                    f"lower-triangular: use 'mul'."
                )
        # sum(A * D), sum(A) and sum |A - D|, over the cells that are not left out
        length = layer.num_queries(text)
        if isinstance(self.pattern, Kind):
            on_pattern, all_that_counts = self.requests(self.pattern)
            plan = prepare(layer.tokens.text(text), (on_pattern, all_that_counts))
            reduced = plan.run(one_text(layer, text))
            hits, total = (reduced[request][0].double().sum(-1) for request in (on_pattern, all_that_counts))
            num_cells = plan.matches(on_pattern, Mask.causal(length, length)).sum()
            apart = total + num_cells - 2 * hits  # on a cell of D, |a - 1| is a + 1 - 2 a
        elif len(self.pattern) != length:
            raise ShapeError(
                f"the detection pattern is for {len(self.pattern)} tokens, but text {text} has {length} (with what was "
                f"prepended): give a row and a column a token."
            )
        else:
            hits, total, apart = torch.zeros(3, layer.site.num_heads, dtype=torch.float64)
            step = max(1, BLOCK_CELLS // (layer.site.num_heads * length))
            for start in range(0, length, step):
                rows = slice(start, min(start + step, length))
                weights, expected = layer.weights(None, rows, None, text).cpu().double(), self.pattern[rows].double()
                counts = torch.ones_like(expected)
                if self.exclude_bos:
                    counts[:, 0] = 0
                if self.exclude_current:
                    counts[torch.arange(len(counts)), torch.arange(rows.start, rows.stop)] = 0
                hits += (weights * expected * counts).sum((-2, -1))
                total += (weights * counts).sum((-2, -1))
                apart += ((weights - expected).abs() * counts).sum((-2, -1))
        if self.measure == "mul":
            return (hits / total).float()
        # Rounded as theirs, in Python and before it is taken from 1: equal figures must be equal to the last digit.
        return torch.tensor([1 - round(distance, ABS_DECIMALS) for distance in (apart / length).tolist()])

    def requests(self, kind: Kind) -> tuple[Match, Match]:
        """The weight on the pattern, and the weight that counts."""
        hits = Match(self._visible(kind.labels), earlier=True, elsewhere=kind.elsewhere or self.exclude_current)
        everything = self._visible(lambda ids: (torch.zeros_like(ids), torch.zeros_like(ids)))
        return hits, Match(everything, elsewhere=self.exclude_current)

    def _visible(self, labels: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Labels:
        """Labels of a batch of one text; the first key's is one that matches nothing, where it is left out."""

        def of(tokens: Tokens) -> tuple[Tensor, Tensor]:
            assert tokens.ids is not None
            of_rows, of_keys = labels(tokens.ids[0])
            if self.exclude_bos:
                # By place, not by token: their code leaves out the first column, whether a BOS stands there or not.
                of_keys = torch.nn.functional.pad(of_keys[1:], (1, 0), value=-1)
            return of_rows[None], of_keys[None]

        return of


def recorded_one_by_one(
    lm: LoadedModel, texts: str | Sequence[str] | None, prepend_bos: bool | None
) -> Iterator[Recording]:
    """Each text alone, as their code reads it: no padding can change a number. Errors: ModelError, TextError."""
    if not hasattr(lm, "model") or not hasattr(lm, "tokenizer"):
        remedy = f"load it first, as mh.load({lm!r})" if isinstance(lm, str) else "use mh.load(model, tokenizer=...)"
        raise ModelError(f"a {type(lm).__name__} is neither a loaded model nor a recording: {remedy}.")
    if lm.tokenizer is None:
        raise ModelError(f"{lm.name} has no tokenizer, so it cannot read text: load it with tokenizer=.")
    texts = [texts] if isinstance(texts, str) else list(texts or ())
    if not texts:
        raise TextError("no text was given: give a text, or a list of texts.")
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise TextError(f"text {index} is {text!r}: give strings, not empty.")
    device = device_of(lm.model)
    for text in texts:
        ids = lens_ids(lm, text, prepend_bos)
        _require_length(len(ids), lm.max_positions)  # before the model reads them
        batch = torch.tensor([ids], dtype=torch.long).to(device)
        yield record_call(lm.model, input_ids=batch, attention_mask=torch.ones_like(batch))


def _require_length(length: int, limit: int | None = None) -> None:
    """Errors: TextError for 1 token, which has no earlier key to look at, or as many as the model has positions."""
    if length < 2 or (limit is not None and length >= limit):
        most = "" if limit is None else f" and fewer than the model's {limit} positions"
        raise TextError(f"a text has {length} tokens: detect_head takes texts of more than 1{most}.")


def prepends_by_default(lm: LoadedModel) -> bool:
    """`cfg.default_prepend_bos` of TransformerLens 4.3 for this model."""
    return getattr(getattr(lm.model, "config", None), "model_type", "") not in NO_BOS


def lens_ids(lm: LoadedModel, text: str, prepend_bos: bool | None = None) -> list[int]:
    """What `model.to_tokens(text)` gives there. `prepend_bos=None` is their default for this model.

    A tokenizer that adds a token of its own in front (`<s>`, `[CLS]`) adds no second one, and loses it where none is
    wanted. One without adds its BOS, else its end token, else "<|endoftext|>", where that is one token. An end token
    that the tokenizer appends is cut off.
    """
    tokenizer = lm.required_tokenizer
    prepend = prepends_by_default(lm) if prepend_bos is None else prepend_bos
    probe = _encoded(tokenizer, "a")
    first, end = getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None)
    leading = {first, getattr(tokenizer, "cls_token_id", None)} - {None}
    leads = len(probe) > 1 and probe[0] in leading
    ends = len(probe) > 1 and end is not None and probe[-1] == end
    ids = _encoded(tokenizer, text)
    if prepend and not leads:
        if first is not None:
            ids = [first, *ids]
        else:
            bos = getattr(tokenizer, "eos_token", None) or FALLBACK_BOS
            atomic = len(_encoded(tokenizer, bos, add_special_tokens=False)) == 1
            ids = _encoded(tokenizer, bos + text) if atomic else ids
    # Only of a tokenizer that appends one, as the probe shows: elsewhere an end token is the text's own.
    while ends and len(ids) > 1 and ids[-1] == end:
        ids = ids[:-1]
    return ids[1:] if leads and not prepend else ids


def _encoded(tokenizer: Tokenizer, text: str, **how: bool) -> list[int]:
    return list(tokenizer(text, truncation=False, verbose=False, **how)["input_ids"])
