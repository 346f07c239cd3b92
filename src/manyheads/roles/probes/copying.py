"""Copying, by weights alone: does a head raise the logit of the very token that it looks at?

The full OV circuit of a head takes a token to logits: `W_E W_V W_O W_U`, tokens x tokens. Where its eigenvalues are
positive, tokens raise themselves (and each other): copying. The score of Elhage et al. is

    sum of the eigenvalues / sum of their absolute values        1: copies, 0: neither, -1: lowers what it looks at

and no matrix of the vocabulary's size is made: the same eigenvalues (but for zeros) are those of
`W_V (W_E W_U) W_O`, as wide as a head. The mean over tokens is taken off the unembedding, since the softmax does not
see it.

Norms on the way are folded in. A LayerNorm is `gain * (x - mean) / sd`, an RMSNorm `gain * x / rms`: both are linear up
to a positive factor of each row. So the gain (and the subtraction of the mean) is folded into the matrices on either
side; the factor and the bias are left out. Which norm stands where is observed in one tiny forward pass, by whose
output is whose input; what it does is observed by giving it numbers, whatever it calls its weights (Gemma stores
gain - 1).

Chance: the vocabulary of the unembedding shuffled, so that no token meets itself. Each factor keeps its spectrum, only
who is whom is lost. The sum over shuffled tokens tends to a normal matrix of known covariance (Hoeffding 1951), which
is drawn at the width of a head; its score is symmetric about 0. `z` is the score in standard deviations of that.

It is about weights, not about texts: a head that copies may never look. The token is taken as embedded, as if nothing
stood between: what the feed-forward below makes of it (in GPT-2 much) is not seen. Biases are left out.
Cost: vocabulary * m * m once, m * m * m a layer, and `draws` + 1 times the eigenvalues of each head.
Source: Elhage et al. 2021, "Detecting copying behavior". Oracle: eigenvalues of the whole matrix.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's methods have no types here.

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from numpy import ndarray
from torch import Tensor, nn

from manyheads.base import Json, brief, plain, plural
from manyheads.circuits.writes import Products, eigenvalue_score
from manyheads.errors import ModelError, StatisticError
from manyheads.heads import Head, HeadLike
from manyheads.machine import is_split
from manyheads.models import LoadedModel, device_of, run
from manyheads.models.weights import Projections, holders_of, is_norm, output_projection
from manyheads.recording import head_place
from manyheads.results import Plotted, Shown
from manyheads.spec import CROSS

PROBE_TOKENS = 4
PROBE_ROWS = 64
PROBE_SIZE = 30.0  # so large that no epsilon counts
SHIFT = 7.0  # added to every number of a row: a norm that subtracts the mean does not see it
SAME = 1 - 1e-4  # cosine: the same numbers, to the rounding of half types
FITS = 1e-2  # of the output: how far a norm may be from gain times the normalised input


class HeadCopying(NamedTuple):
    head: Head
    score: float
    spread: float
    z: float


@dataclass(frozen=True, eq=False)
class CopyingScores(Shown, Plotted):
    """Every head's copying score, -1 to 1, and the standard deviation of chance, whose mean is 0; `z` is the quotient.

    `notes` says what was folded in.
    """

    heads: tuple[Head, ...]
    score: Float64[ndarray, "head"]
    spread: Float64[ndarray, "head"]
    notes: Mapping[str, str]

    @property
    def z(self) -> Float64[ndarray, "head"]:
        return self.score / self.spread

    def __getitem__(self, head: HeadLike) -> HeadCopying:
        """Errors: HeadError for a head that is not there."""
        index = head_place(head, self.heads)
        return HeadCopying(self.heads[index], *(float(column[index]) for column in (self.score, self.spread, self.z)))

    def to_dict(self) -> Json:
        """Plain data for JSON: each head's score, spread and z, and the notes."""
        rows = [self[head]._asdict() for head in self.heads]
        return {"heads": [plain({**row, "head": str(row["head"])}) for row in rows], "notes": plain(self.notes)}

    def __repr__(self) -> str:
        names = ", ".join(f"{row.head} {row.score:.2f}" for row in self.top(3))
        return brief(f"CopyingScores({plural(len(self.heads), 'head')}; furthest above chance: {names})")

    def top(self, count: int = 5) -> list[HeadCopying]:
        """The heads furthest above chance, first the furthest."""
        return [self[self.heads[index]] for index in np.argsort(-self.z)[:count]]


def copying_scores(lm: LoadedModel, *, draws: int = 20, seed: int = 0) -> CopyingScores:
    """How much each head of a causal language model copies, by its weights. No text is read.

    `draws` is how often chance is drawn for each head (the deviation of 20 is good to a sixth).
    Errors: ModelError for a model without causal self-attention, without an unembedding of its embedding's width, or
    whose value and output matrices are not found; StatisticError for fewer than 2 draws.
    """
    if draws < 2:
        raise StatisticError(f"{draws=}: chance needs at least 2 draws to have a spread.")
    if is_split(lm.model):
        raise ModelError(
            f"the weights of {lm.name} are divided among processes (tensor parallelism or FSDP), and copying_scores "
            f"multiplies them: load it in one process."
        )
    sites = [site for site in lm.spec.sites if site.causal and site.stack != CROSS]
    if not sites:
        raise ModelError(
            f"{lm.name} ({type(lm.model).__name__}) has no causal self-attention: copying is about models that write "
            f"one token after another."
        )
    first_module, last_module = (
        getattr(lm.model, name, lambda: None)() for name in ("get_input_embeddings", "get_output_embeddings")
    )
    embedding, unembedding = (getattr(module, "weight", None) for module in (first_module, last_module))
    if embedding is None or unembedding is None or last_module is None:
        raise ModelError(
            f"{lm.name} ({type(lm.model).__name__}) has no unembedding: copying asks which logits a head raises. Load "
            f"the model with its language-model head."
        )
    if embedding.shape[1] != unembedding.shape[1]:
        raise ModelError(
            f"{lm.name} embeds a token in {embedding.shape[1]} numbers and reads its logit from "
            f"{unembedding.shape[1]}: no head leads from one to the other by its own matrices."
        )
    # Either may be padded past the last token.
    size = min(len(embedding), len(unembedding))
    embedding, unembedding = embedding.detach()[:size].cpu(), unembedding.detach()[:size].cpu()
    parts: list[Projections] = []
    for site in sites:
        # `projections_of` refuses what cannot be cut; here nothing is.
        module = lm.model.get_submodule(site.module.split("#")[0])
        holders = holders_of(module, site)
        output = output_projection(lm.model, site.module, site.num_heads * site.v_dim)
        if not holders or output is None:
            raise ModelError(
                f"{site}, module {site.module!r} ({type(module).__name__}) of {lm.name} keeps no value and output "
                f"matrices by head that are known here: its heads' OV circuits cannot be read off."
            )
        parts.append(Projections(site, module, holders, *output, {}))
    writers = [next(holder.module for holder in part.holders if "v" in holder.parts) for part in parts]
    wiring = wiring_of(lm, [last_module, *(part.output for part in parts), *writers])
    last = fold_of(wiring.norm_before(last_module), unembedding.shape[1])
    products = Products.of(embedding, unembedding)
    generator = torch.Generator().manual_seed(seed)
    scores: list[Tensor] = []
    spreads: list[Tensor] = []
    folded: list[str] = []
    for part, writer in zip(parts, writers, strict=True):
        values, outputs, norms = _matrices(part, writer, wiring, embedding.shape[1])
        read = outputs if last is None else last.after(outputs)
        scores.append(eigenvalue_score(values @ products.met @ read.transpose(1, 2)))
        chance = products.shuffled(values, read, draws, generator)
        spreads.append(eigenvalue_score(chance).square().mean(0).sqrt())
        folded.append(norms)
    heads = tuple(head for site in sites for head in site.heads)
    layers = [
        f"the norm {norms} attention in {count} layers" if norms else f"none in {count} layers"
        for norms, count in Counter(folded).items()
    ]
    story = "; ".join([*layers, "no norm before the unembedding" if last is None else "the last norm"])
    notes = {"model": lm.name, "folded": story, "chance": f"{draws} shuffled vocabularies"}
    return CopyingScores(heads, torch.cat(scores).numpy(), torch.cat(spreads).numpy(), notes)


def _matrices(part: Projections, writer: nn.Module, wiring: Wiring, width: int) -> tuple[Tensor, Tensor, str]:
    """Values and output of each query head, `[h, f, m]`, with the norms around folded in; and which those were."""
    values, output = part.read("v")[0].double().cpu(), part.read_output().detach().double().cpu()
    if values.shape[-1] != width or output.shape[-1] != width:
        raise ModelError(
            f"{part.site} reads {values.shape[-1]} numbers and writes {output.shape[-1]}, but a token is embedded in "
            f"{width}: the steps between are not a product of the head's matrices, so copying cannot be read from them."
        )
    # A value head serves several query heads, each of which writes it by an output of its own.
    values = values.repeat_interleave(part.site.num_heads // part.site.num_kv_heads, 0)
    before = fold_of(wiring.norm_before(writer), values.shape[-1])
    after = fold_of(wiring.norm_after(part.output), output.shape[-1])
    norms = " and ".join(words for words, fold in (("before", before), ("after", after)) if fold is not None)
    values = values if before is None else before.before(values)
    return values, output if after is None else after.after(output), norms


@dataclass(frozen=True, eq=False)
class Fold:
    """What a norm does to directions: an optional taking away of the mean, then a gain for each number."""

    gain: Float64[Tensor, "m"]
    centres: bool

    def before(self, matrix: Float64[Tensor, "... m"]) -> Float64[Tensor, "... m"]:
        """`matrix @ norm(x)` as a matrix that acts on x."""
        scaled = matrix * self.gain
        return scaled - scaled.mean(-1, keepdim=True) if self.centres else scaled

    def after(self, rows: Float64[Tensor, "... m"]) -> Float64[Tensor, "... m"]:
        """Rows that are written through the norm, as they come out."""
        return (rows - rows.mean(-1, keepdim=True) if self.centres else rows) * self.gain


@dataclass(eq=False)
class Wiring:
    """The inputs and outputs of norms and other modules in one pass: whose output is whose input."""

    inputs: dict[nn.Module, Tensor] = field(default_factory=dict[nn.Module, Tensor])
    outputs: dict[nn.Module, Tensor] = field(default_factory=dict[nn.Module, Tensor])

    def norm_before(self, module: nn.Module) -> nn.Module | None:
        """The norm whose output `module` reads, as it is or scaled."""
        return next((norm for norm in self._norms() if _same(self.outputs[norm], self.inputs.get(module))), None)

    def norm_after(self, module: nn.Module) -> nn.Module | None:
        """The norm that reads what `module` writes, and nothing else."""
        return next((norm for norm in self._norms() if _same(self.inputs[norm], self.outputs.get(module))), None)

    def _norms(self) -> list[nn.Module]:
        return [module for module in self.outputs if is_norm(module)]


def _same(first: Tensor, second: Tensor | None) -> bool:
    """Whether two tensors hold the same numbers but for one factor (as where T5 scales before its unembedding)."""
    if second is None or first.shape != second.shape:
        return False
    first, second = first.double().flatten(), second.double().flatten()
    return bool(first @ second > SAME * first.norm() * second.norm())


def wiring_of(lm: LoadedModel, modules: list[nn.Module]) -> Wiring:
    """One forward pass over four tokens, with the norms and these modules watched."""
    wiring = Wiring()
    ids = torch.arange(1, PROBE_TOKENS + 1, device=device_of(lm.model))[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if getattr(lm.model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids

    def watch(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if args and isinstance(args[0], Tensor) and isinstance(output, Tensor):
            # Copied: models write into their residual stream in place. To the host: layers may be on several devices.
            wiring.inputs[module], wiring.outputs[module] = (x.detach().to("cpu", copy=True) for x in (args[0], output))

    watched = {*filter(is_norm, lm.model.modules()), *modules}
    hooks = [module.register_forward_hook(watch) for module in watched]
    try:
        run(lm.model, lm.name, inputs, head=True)
    finally:
        for hook in hooks:
            hook.remove()
    return wiring


def fold_of(norm: nn.Module | None, width: int) -> Fold | None:
    """What a norm does to directions; None where there is none, or what it does is not a norm of this kind."""
    if norm is None:
        return None
    weight = next(iter(norm.parameters()), torch.empty(0, device="cpu"))
    generator = torch.Generator().manual_seed(0)
    x = PROBE_SIZE * torch.randn(PROBE_ROWS, width, generator=generator)
    with torch.no_grad():
        plain, mirrored, moved = (norm(rows.to(weight)).double().cpu() for rows in (x, -x, x + SHIFT))
    # A bias is even, the norm of a direction odd: of their half difference the bias falls out.
    odd, x = (plain - mirrored) / 2, x.double()
    centres = bool((plain - moved).norm() < FITS * plain.norm())
    x = x - x.mean(-1, keepdim=True) if centres else x
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    gain = (odd * x).sum(0) / (x * x).sum(0)
    fits = (odd - gain * x).norm() <= FITS * odd.norm()
    return Fold(gain, centres) if bool(fits) and bool(torch.isfinite(gain).all()) else None
