"""What plans take from a corpus: mean outputs of heads, and outputs on other texts to put in their place.

Computed once, in one reading of the corpus under the tap, for the layers that plans name, and kept as small tensors:
a mean is one vector a head (or one a position and head), a resampled text one vector a token and head. They travel
beside the plan's JSON, with a digest of the corpus and of the model that they were computed with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from manyheads.errors import PlanError
from manyheads.models.taps.call import AttentionCall
from manyheads.models.inputs.texts import CallTexts
from manyheads.models.inputs.texts import texts_of_call
from manyheads.models.loading.load import LoadedModel
from manyheads.models.recorder import watch
from manyheads.models.describe import run
from manyheads.models.inputs.texts import batches
from manyheads.models.inputs.texts import model_inputs
from manyheads.models.inputs.texts import read_texts
from manyheads.models.inputs.texts import tokens_of
from manyheads.plan import Ablate, Plan
from manyheads.spec import Site

__all__ = ["Computed", "compute"]

RESAMPLE_TEXTS = 32  # texts of a corpus that resampling draws from: the first ones
Layers = frozenset[tuple[str, int]] | None  # (stack, layer) of those that count; None: all


@dataclass(frozen=True, eq=False)
class Computed:
    """Tensors by name: "mean:L3" [h, f], "position:L3" [n, h, f], "texts:L3" [t, n, h, f], "texts:L3:lengths" [t].

    `corpus` is a digest of the texts, `model` one of the weights; both "" where nothing was computed. `file`: where
    the tensors were read from, "" for those that were computed just now.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    corpus: str = ""
    model: str = ""
    num_texts: int = 0
    num_tokens: int = 0
    file: str = ""

    def means(self, step: Ablate, site: Site, heads: list[int], places: Int[Tensor, "s q"]) -> Float[Tensor, "s n q f"]:
        """The mean outputs of heads, the same for every row, or each row's own by its position.

        Positions that no text of the corpus reached take the mean over all.
        """
        mean = self._tensor(f"mean:{site}", site.num_heads, site.v_dim)[heads]
        if not step.per_position:
            return mean[None, :, None].expand(len(places), -1, places.shape[1], -1)
        table = self._tensor(f"position:{site}", None, site.num_heads, site.v_dim)[:, heads]
        known = table[places.cpu().clamp_max(len(table) - 1)].transpose(1, 2)
        reached = (places.cpu() < len(table))[:, None, :, None]
        return torch.where(reached, known, mean[None, :, None])

    def elsewhere(
        self, step: Ablate, site: Site, heads: list[int], places: Int[Tensor, "s q"]
    ) -> Float[Tensor, "s n q f"]:
        """The outputs of heads on another text at the same position; a shorter text is read again from its start.

        One text serves a whole batch: a change must not hang on which texts are read together.
        """
        name, drawn = f"{source_name(step)}:{site}", 0
        table = self._tensor(name, None, None, site.num_heads, site.v_dim)
        lengths = self._tensor(f"{name}:lengths", len(table))
        if step.text is None:
            drawn = int(torch.randint(len(table), (1,), generator=torch.Generator().manual_seed(step.seed)))
        if lengths[drawn] < 1:
            raise PlanError(f"text {drawn} of {name!r} has no token to put in place of another: use another seed=.")
        where = places.cpu() % lengths[drawn]
        return table[drawn][where][:, :, heads].transpose(1, 2)

    def _tensor(self, name: str, *shape: int | None) -> Tensor:
        """One of the tensors, of the shape that the model's layer asks for; None: any length."""
        if name not in self.tensors:
            raise PlanError(
                f"this plan needs {name!r}, which was not computed: give applied() a corpus= of texts, or the plan's "
                f"file with what was computed beside it."
            )
        found = self.tensors[name]
        if found.ndim != len(shape) or any(
            want not in (None, got) for want, got in zip(shape, found.shape, strict=True)
        ):
            wanted = ", ".join("any" if want is None else str(want) for want in shape)
            raise PlanError(
                f"{self.file or 'what was computed'} is not for this model: {name!r} has the shape "
                f"{list(found.shape)}, and should have [{wanted}]. Compute it anew, corpus=."
            )
        return found


def source_name(step: Ablate) -> str:
    """What the tensors of a resampling are called: those of the corpus, or of a text of the step's own."""
    return "texts" if step.text is None else f"text {hashlib.blake2b(step.text.encode(), digest_size=6).hexdigest()}"


def compute(lm: Any, plans: Sequence[Plan], corpus: Any, layers: Layers = None) -> Computed:
    """All that the plans need, of some layers.

    Errors: PlanError where a corpus is needed and there is none; TextError, ModelError, GuardError.
    """
    steps = [step for plan in plans for step in plan.steps if isinstance(step, Ablate)]
    wanting = [step for step in steps if step.needs_corpus]
    if wanting and corpus is None:
        raise PlanError(
            f"{wanting[0].kind!r} ablation of {wanting[0].heads} needs texts to compute what stands in its place: give "
            f"corpus=[...], texts like those that you will read."
        )
    tensors: dict[str, Tensor] = {}
    texts = [step.text for step in steps if step.text is not None]
    own = {source_name(step): step.text for step in steps if step.text is not None}
    if own and isinstance(lm, nn.Module):
        raise PlanError(
            f"a {type(lm).__name__} reads no text: leave text= out and give corpus=, a list of its inputs, or load the "
            f"model with its tokenizer, as mh.load(model, tokenizer=...)."
        )
    for name, text in own.items():
        tensors |= _Texts(name, layers).read(lm, [text]).tensors()
    count = tokens = 0
    if wanting:
        corpus = _listed(corpus)
        texts += corpus
        if any(step.kind == "mean" for step in wanting):
            means = _Means(layers, any(step.per_position for step in wanting))
            count, tokens = _read(lm, corpus, means.add)
            tensors |= means.tensors()
        if any(step.kind == "resample" for step in wanting):
            tensors |= _Texts("texts", layers).read(lm, corpus[:RESAMPLE_TEXTS]).tensors()
    if not tensors:
        return Computed()
    return Computed(tensors, _digest(texts), model_digest(lm), count, tokens)


def _read(lm: Any, corpus: Sequence[Any], observer: Callable[[Site, list[Tensor]], None]) -> tuple[int, int]:
    """Show every call's real rows, `observer(site, [out [n, h, f] of each text])`; the number of texts and tokens."""

    def observe(call: AttentionCall, texts: CallTexts) -> None:
        tokens, aligner = texts.read_by(call)
        rows = aligner.roll(call.out.detach()).transpose(1, 2).float().cpu()
        parts = [row[:length] for row, length in zip(rows, tokens.lengths.tolist(), strict=True)]
        observer(call.site, parts)

    if isinstance(lm, nn.Module) or isinstance(corpus[0], Mapping):  # one call's arguments a text, or a batch of them
        model = lm if isinstance(lm, nn.Module) else lm.model
        for given in corpus:
            args, kwargs = _arguments(given)
            texts = texts_of_call(args, kwargs)

            def forward(args: Any = args, kwargs: Any = kwargs) -> None:
                with torch.no_grad():
                    model(*args, **kwargs)

            watch(model, type(model).__name__, forward, lambda call, t=texts: observe(call, t))
        return len(corpus), 0
    reading = read_texts(lm, corpus)
    for group in batches(reading):
        tokens = tokens_of(reading, group, None, "")
        texts, inputs = CallTexts.of(lm, tokens), model_inputs(lm, tokens)
        watch(
            lm.model,
            lm.name,
            lambda inputs=inputs: run(lm.model, lm.name, inputs),
            lambda call, t=texts: observe(call, t),
        )
    return len(corpus), reading.num_tokens


def _listed(corpus: Any) -> list[Any]:
    """The texts of a corpus. Errors: PlanError for what is no list of them."""
    listed = [corpus] if isinstance(corpus, str) else list(corpus) if isinstance(corpus, Sequence) else []
    if not listed:
        what = "empty" if isinstance(corpus, Sequence) else f"a {type(corpus).__name__}"
        raise PlanError(f"corpus= is {what}: give a list of texts (of a bare module, of its inputs), one at the least.")
    return listed


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, tuple) else ((given,), {})


@dataclass(eq=False)
class _Means:
    """Sums over rows, in float64: of each position, and so of all."""

    layers: Layers
    by_position: bool
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, site: Site, texts: Sequence[Tensor]) -> None:
        if self.layers is not None and (site.stack, site.layer) not in self.layers:
            return
        name = str(site)
        longest = max(len(text) for text in texts)
        if name not in self.sums or len(self.sums[name]) < longest:
            shape = (longest, *texts[0].shape[1:])
            old, counts = self.sums.get(name), self.counts.get(name)
            self.sums[name], self.counts[name] = torch.zeros(shape, dtype=torch.float64), torch.zeros(longest)
            if old is not None and counts is not None:
                self.sums[name][: len(old)], self.counts[name][: len(old)] = old, counts
        for text in texts:
            self.sums[name][: len(text)] += text
            self.counts[name][: len(text)] += 1

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for name, sums in self.sums.items():
            counts = self.counts[name]
            found[f"mean:{name}"] = (sums.sum(0) / counts.sum().clamp_min(1)).float()
            if self.by_position:
                found[f"position:{name}"] = (sums / counts[:, None, None].clamp_min(1)).float()
        return found


@dataclass(eq=False)
class _Texts:
    """The outputs on some texts, row by row."""

    name: str
    layers: Layers
    kept: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, site: Site, texts: Sequence[Tensor]) -> None:
        if self.layers is None or (site.stack, site.layer) in self.layers:
            self.kept.setdefault(str(site), []).extend(text.clone() for text in texts)

    def read(self, lm: Any, corpus: Sequence[Any]) -> _Texts:
        _read(lm, corpus, self.add)
        return self

    def tensors(self) -> dict[str, Tensor]:
        found = {}
        for site, texts in self.kept.items():
            found[f"{self.name}:{site}"] = nn.utils.rnn.pad_sequence(texts, batch_first=True)
            found[f"{self.name}:{site}:lengths"] = torch.tensor([len(text) for text in texts])
        return found


def _digest(texts: Sequence[Any]) -> str:
    """A digest of a corpus; inputs of a bare module go by their numbers."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        if isinstance(text, str):
            digest.update(json.dumps(text).encode())
        else:
            args, kwargs = _arguments(text)
            for value in (*args, *kwargs.values()):
                digest.update(value.detach().cpu().double().numpy().tobytes() if isinstance(value, Tensor) else b"")
    return digest.hexdigest()


def model_digest(lm: Any) -> str:
    return LoadedModel(lm, None, "", "").weights_hash if isinstance(lm, nn.Module) else lm.weights_hash
