"""Retrieval: does a head look at a fact far back in a long text while the model writes it down?

A sentence (the needle) is put into a long text at some depth, a question about it follows, and the model answers, one
token after another, greedily. A head scores where the key that it looks at most, while a token is written, lies in the
needle *and* is that very token: each time 1 / (tokens of the needle). A trial counts only where the answer repeats the
needle: more than half of its words (ROUGE-1 recall). The score is the mean over the trials that counted, of all lengths
and depths.

Two variants: "code", as Wu et al.'s program counts, adds each time, so that a token written twice counts twice (a score
may exceed 1); "paper" counts each place of the needle once. Chance (`uniform`): a head that may look at any visible key
alike. Differences to their program: the needle is the whole answer (what leads to it in the text is
`lead`), it is put in at a token and not at a full stop, words are not stemmed, and the answer ends with the model's own
end token or after `generate` tokens, not at a line end.

The top key of a row needs its scores alone, no map and no softmax: the tap hands over q and k of each step.
Cost: one generation a trial. Source: Wu et al. 2024, "Retrieval head mechanistically explains long-context factuality".
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int
from numpy import ndarray
from torch import Tensor

from manyheads.attention import grouped_scores
from manyheads.base import Json, brief, one_of, plain, plural
from manyheads.errors import ModelError, StatisticError, TextError
from manyheads.heads import Head
from manyheads.inputs import generate, require_writer, watched
from manyheads.machine import require_all_heads
from manyheads.models import AttentionCall, LoadedModel
from manyheads.results import Plotted, Shown
from manyheads.roles.probes.repeats import HeadScores, added_around
from manyheads.spec import Site
from manyheads.statistics import Sums
from manyheads.texts import data_seed

MIN_RECALL = 0.5
"""The share of the needle's words that an answer must exceed to count, as in Wu et al."""

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
SPARE_TOKENS = 8  # more than the needle has, that the answer may take
Variant = Literal["code", "paper"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
GREEDY = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None, "repetition_penalty": 1.0}


@dataclass(frozen=True, eq=False)
class Trial:
    """One needle in one text: what the model wrote, how much of the needle is in it, and each head's score."""

    length: int
    depth: float
    response: str
    recall: float
    counted: bool
    num_steps: int
    score: Float64[ndarray, "head"]
    chance: Float64[ndarray, "head"]

    def __repr__(self) -> str:
        counts = "counted" if self.counted else "not counted"
        return brief(f"Trial({self.length:,} tokens at depth {self.depth:g}: recall {self.recall:.2f}, {counts})")


@dataclass(frozen=True, eq=False)
class RetrievalScores(Shown, Plotted):
    """Every head's score, chance and interval over the trials that counted, and all trials. NaN where none did."""

    scores: HeadScores
    trials: tuple[Trial, ...]
    variant: str
    words: str

    @property
    def num_counted(self) -> int:
        return sum(trial.counted for trial in self.trials)

    def to_dict(self) -> Json:
        """Plain data for JSON: the scores over the trials that counted, and every trial."""
        return {
            "variant": self.variant,
            "words": self.words,
            **self.scores.to_dict(),
            "trials": [plain(vars(trial)) for trial in self.trials],
        }

    def __repr__(self) -> str:
        trials = f"{self.num_counted} of {plural(len(self.trials), 'trial')} counted"
        return brief(f"RetrievalScores({len(self.scores)} heads, {trials}; {self.scores.highest})")


def retrieval_scores(
    lm: LoadedModel,
    contexts: str | Sequence[str],
    needle: str,
    question: str,
    *,
    lengths: Sequence[int],
    depths: Sequence[float] = DEPTHS,
    generate: int | None = None,
    variant: Variant = "code",
    min_recall: float = MIN_RECALL,
    lead: str = "",
) -> RetrievalScores:
    """How much each head of a causal language model retrieves.

    Each part is tokenised by itself: give the blanks and line ends that belong between them.

    - `lm`: a loaded model.
    - `contexts`: texts, which are joined and cut.
    - `needle`: the fact that goes into them.
    - `question`: follows the text; the model goes on with the answer.
    - `lengths`: of the texts, in tokens, without needle and question.
    - `depths`: where the needle goes in each: 0 the start, 1 the end.
    - `generate`: how many tokens an answer may have; None: 8 more than the needle has.
    - `variant`: how looks are counted: "code", or "paper" (each token of the needle once).
    - `min_recall`: the share of the needle's words (0 to 1) that an answer must exceed to count.
    - `lead`: stands right before the needle, and is not part of it: "\\nThe pass key is".

    Errors: ModelError for a model that is not a causal writer; TextError, StatisticError for what does not fit.
    """
    one_of("variant", variant, VARIANTS, StatisticError, "is not a way to count")
    if not lengths or min(lengths) < 1 or not depths or not 0 <= min(depths) <= max(depths) <= 1:
        raise StatisticError(
            f"{lengths=}, {depths=}: give lengths of 1 token or more, and depths from 0 (the start) to 1 (the end)."
        )
    require_writer(lm, 1 if generate is None else generate, {})
    require_all_heads(lm.model, lm.name, "retrieval_scores")
    if getattr(lm.model.config, "is_encoder_decoder", False):
        raise ModelError(
            f"{lm.name} ({type(lm.model).__name__}) reads in an encoder and writes in a decoder: retrieval heads "
            f"belong to models that read and write one text."
        )
    if lm.tokenizer is None:
        raise ModelError(f"{lm.name} has no tokenizer, so it cannot be asked anything: load it with tokenizer=.")
    parts = _Parts.of(lm, contexts, needle, question, lead)
    count = len(parts.needle) + SPARE_TOKENS if generate is None else generate
    parts.require(lm, lengths, count)
    trials: list[Trial] = []
    seeds: list[int] = []
    heads: tuple[Head, ...] = ()
    for length in lengths:
        for depth in depths:
            prompt, begin = parts.prompt(length, depth)
            watched = _Watched(prompt, begin, begin + len(parts.needle))
            written = watched.write(lm, count)
            response = lm.tokenizer.decode(written, skip_special_tokens=True)
            recall = rouge1_recall(needle, response)
            score, chance = watched.scores(written, once=variant == "paper")
            trials.append(Trial(length, depth, response, recall, recall > min_recall, len(written), score, chance))
            seeds.append(data_seed(prompt.numpy().tobytes()))
            heads = tuple(head for site in watched.sites.values() for head in site.heads)
    counted = [(trial, seed) for trial, seed in zip(trials, seeds, strict=True) if trial.counted]
    story = f"{len(counted)} of {len(trials)} trials counted"
    if len(counted) < len(trials):
        story += f"; the other answers had {min_recall:.0%} of the needle's words or fewer (ROUGE-1 recall, unstemmed)"
    story += f"; scored as Wu et al.'s {variant} has it"
    steps = np.full(len(heads), float(sum(trial.num_steps for trial, _ in counted)))
    value = low = high = np.full((len(heads), 2), np.nan)  # of the score and of chance
    if counted:
        # The mean over trials, with a Poisson-bootstrap interval over them.
        num = torch.tensor(np.stack([np.stack([trial.score, trial.chance], -1) for trial, _ in counted]), device="cpu")
        sums = Sums.of(num, torch.ones_like(num), tuple(seed for _, seed in counted), 0)
        value, (low, high) = sums.value()[..., 0], sums.interval()
    scores = HeadScores(heads, value[:, 0], low[:, 0], high[:, 0], {"uniform": value[:, 1]}, steps)
    return RetrievalScores(scores, tuple(trials), variant, story)


def rouge1_recall(reference: str, answer: str) -> float:
    """The share of the reference's words that the answer has, each as often as it has it. Words are runs of letters
    and digits, in lower case, unstemmed."""
    expected, written = (Counter(re.findall(r"\w+", text.lower())) for text in (reference, answer))
    return (expected & written).total() / max(expected.total(), 1)


class Step(NamedTuple):
    """One row of one layer while it writes: the key that each head looks at most, and which of the needle's it sees."""

    top: Int[Tensor, "h"]
    seen: Bool[Tensor, "n"]
    visible: int


@dataclass(eq=False)
class _Watched:
    """One answer being written: the last row of each call of each layer."""

    prompt: Int[Tensor, "p"]
    begin: int
    end: int
    sites: dict[str, Site] = field(default_factory=dict[str, Site])
    steps: dict[str, list[Step]] = field(default_factory=dict[str, list[Step]])
    rows: dict[str, int] = field(default_factory=dict[str, int])

    def write(self, lm: LoadedModel, count: int) -> list[int]:
        """The model's own tokens, up to its end token. The last one is read as well, a step that counts for nothing."""
        prompt = self.prompt.tolist()
        ran = watched(lm.model, lm.name, lambda: generate(lm, [prompt], count, GREEDY), self.observe)
        return ran.outputs.tokens.ids[0, len(prompt) :].tolist()

    def observe(self, call: AttentionCall) -> None:
        """The row that a token is written from is a call's last; keys that a sliding cache has shed are counted."""
        name, num_rows, num_keys = call.site.module, call.q.shape[2], call.k.shape[2]
        seen_so_far = self.rows[name] = (self.rows.get(name, 0) if num_rows < num_keys else 0) + num_rows
        shed = max(0, seen_so_far - num_keys)
        last = slice(num_rows - 1, num_rows)
        scores = grouped_scores(call.q[:, :, last].float(), call.k.float(), call.rule.scale)
        bias = None if call.rule.bias is None else call.rule.bias[:, :, last]
        scores = call.rule.finish_cells(scores, bias)
        visible = call.mask.visible(last, slice(0, num_keys))
        hidden = ~visible.to(scores.device)
        top = scores.masked_fill(hidden, -torch.inf)[0, :, 0].argmax(-1).cpu() + shed
        keys = torch.zeros(shed + num_keys, dtype=torch.bool, device="cpu")
        keys[shed:] = visible[0].any(0)[0]
        self.sites[name] = call.site
        self.steps.setdefault(name, []).append(Step(top, keys[self.begin : self.end], int(keys.sum())))

    def scores(self, written: Sequence[int], once: bool) -> tuple[Float64[ndarray, "head"], Float64[ndarray, "head"]]:
        """Each head's score, and what a look at any visible key alike would get on average."""
        needle = self.prompt[self.begin : self.end]
        size = len(needle)
        scores: list[Tensor] = []
        chances: list[Tensor] = []
        for name, site in self.sites.items():
            hits = torch.zeros(site.num_heads, size, dtype=torch.float64, device="cpu")
            even = torch.zeros(size, dtype=torch.float64, device="cpu")
            for step, token in zip(self.steps[name], written, strict=False):
                right = (torch.arange(size, device="cpu") == (step.top - self.begin)[:, None]) & (needle == token)
                share = (step.seen & (needle == token)).double() / max(step.visible, 1)
                hits = torch.maximum(hits, right.double()) if once else hits + right
                even = even + share * (1 - even) if once else even + share
            scores.append(hits.sum(-1) / size)
            chances.append((even.sum() / size).expand(site.num_heads))
        return torch.cat(scores).numpy(), torch.cat(chances).numpy()


class _Parts(NamedTuple):
    """A prompt's parts, as tokens."""

    start: list[int]
    context: list[int]
    needle: list[int]
    question: list[int]
    lead: list[int]

    @staticmethod
    def of(lm: LoadedModel, contexts: str | Sequence[str], needle: str, question: str, lead: str) -> _Parts:
        context = contexts if isinstance(contexts, str) else "\n".join(contexts)
        parts: list[list[int]] = []
        for name, text in (("contexts", context), ("needle", needle), ("question", question), ("lead", lead)):
            encoded = lm.required_tokenizer(text, add_special_tokens=False, verbose=False) if text else {}
            ids: list[int] = encoded["input_ids"] if text.strip() else []
            if not ids and (text or name != "lead"):
                raise TextError(f"{name} {text[:40]!r} has no token: give at least one word.")
            parts.append(list(ids))
        return _Parts(list(added_around(lm.required_tokenizer)[0]), *parts)

    def require(self, lm: LoadedModel, lengths: Sequence[int], count: int) -> None:
        """Errors: TextError where the context is too short, or the whole too long for the model."""
        longest = max(lengths)
        if longest > len(self.context):
            raise TextError(
                f"a length of {longest} tokens was asked for, but contexts has {len(self.context)}: give more text."
            )
        added = (self.start, self.lead, self.needle, self.question)
        num_tokens = longest + sum(map(len, added)) + count
        if lm.max_positions is not None and num_tokens > lm.max_positions:
            room = lm.max_positions - (num_tokens - longest)
            raise TextError(
                f"{longest} tokens with needle, question and {count} tokens to write are {num_tokens}, but {lm.name} "
                f"has {lm.max_positions} positions: ask for lengths up to {max(room, 0)}."
            )

    def prompt(self, length: int, depth: float) -> tuple[Int[Tensor, "p"], int]:
        """The ids, and where the needle begins in them."""
        position = round(depth * length)
        before = self.start + self.context[:position] + self.lead
        return torch.tensor([*before, *self.needle, *self.context[position:length], *self.question], device="cpu"), len(
            before
        )
