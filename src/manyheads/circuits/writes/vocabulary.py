"""What stands for a token in the stream that heads read, and how what they write becomes tokens.

The source decides what a table says. `"token"`: the token's embedding and the first block's feed-forward on it, which
is in effect what later layers see of a token. `"embedding"`: the embedding alone, as it enters the first block.
`"prediction"`: the direction of the stream that raises the token's logit; late heads read what earlier ones wrote
towards the output. The first two are computed by the model's own modules: every token of the vocabulary is read as a
text of its own, position embeddings and the first block's attention give zeros, and nothing after that block is run.
(A token that is read alone by the whole model would become a sink, being the first of its text.)

`Readout` is the way from the last block to the logits, as far as it is linear: the last norm's gain and centring, a
projection, the unembedding. A model without an unembedding, or with a step between that bends, is read out by its
embedding table, and says so.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from manyheads.circuits.residual import norm_form
from manyheads.edits import Branches
from manyheads.errors import ModelError
from manyheads.models import LoadedModel, device_of, probe_inputs, run
from manyheads.models.weights import is_norm
from manyheads.spec import Site

Source = Literal["token", "embedding", "prediction"]
"""What stands for a token where a head reads it."""
SOURCES: dict[Source, str] = {
    "token": "the token's embedding and the first block's feed-forward on it",
    "embedding": "the token's embedding",
    "prediction": "the direction that raises the token's logit",
}
TEXTS_AT_ONCE = 4_096  # tokens of the vocabulary, each a text of its own
SAME = 1 - 1e-4  # cosine: the same numbers but for a factor, to the rounding of half types
MOST_STEPS = 4  # between the last block and the logits
SAME_PLACE = 1e-4  # of a row's length: how far the same token may lie from itself at another position


class Step(NamedTuple):
    """A norm's gain by dimension, after taking off the mean if `centres`; or a matrix [out, in]."""

    weight: Tensor
    centres: bool = False


@dataclass(frozen=True, eq=False)
class Readout:
    """From the stream to logits, less their mean over the vocabulary, but for the last norm's scale.

    `steps`, in the order of the run; `table`: the unembedding's rows, or those of the embedding where `by_embedding`
    says why there is no other.
    """

    table: Float[Tensor, "v n"]
    steps: tuple[Step, ...]
    by_embedding: str = ""

    def before_table(self, x: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows n"]:
        """What the table's rows are multiplied by, less what it gives to every token alike: the steps alone."""
        for step in self.steps:
            if step.weight.ndim == 2:
                x = x @ step.weight.to(x).T
            else:
                x = (x - x.mean(-1, keepdim=True) if step.centres else x) * step.weight.to(x)
        return x

    def logits(self, x: Float[Tensor, "*rows m"]) -> Float[Tensor, "*rows v"]:
        """What rows of the stream add to every logit, less the mean. Cost: O(rows * v * n)."""
        logits = self.before_table(x) @ self.table.to(x.dtype).T
        return logits - logits.mean(-1, keepdim=True)

    def directions(self) -> Float[Tensor, "v m"]:
        """Each token's direction in the stream: the gradient of its logit, the last norm's scale left out."""
        rows = self.table.float() if self.table.dtype != torch.float64 else self.table
        for step in reversed(self.steps):
            if step.weight.ndim == 2:
                rows = rows @ step.weight.to(rows)
            else:
                rows = rows * step.weight.to(rows)
                rows = rows - rows.mean(-1, keepdim=True) if step.centres else rows
        return rows


def blocks_of(lm: LoadedModel, stack: str) -> tuple[str, ...]:
    """The paths of a stack's blocks, in order. Errors: ModelError, as `Branches.of`."""
    branches = Branches.of(lm.model, lm.spec)
    path = next(site.module.partition("#")[0] for site in lm.spec.sites if site.stack == stack)
    match = re.match(r"(.*?\.\d+)(\.|$)", f".{path}")
    assert match is not None, "Branches.of refuses a layer in no numbered block"
    owner = match[1].removeprefix(".").rpartition(".")[0]
    return tuple(block for block in branches.blocks if block.rpartition(".")[0] == owner)


def vocabulary_size(lm: LoadedModel) -> int:
    """How many tokens have an embedding and, where there is one, an unembedding: either may be padded."""
    tables = [getattr(lm.model, f"get_{way}_embeddings", lambda: None)() for way in ("input", "output")]
    weights = [getattr(table, "weight", None) for table in tables]
    sizes = [len(weight) for weight in weights if isinstance(weight, Tensor)]
    if not sizes:
        raise ModelError(f"{lm.name} ({type(lm.model).__name__}) has no embedding table, so no token has a vector.")
    return min(sizes)


def readout_of(lm: LoadedModel, stack: str) -> Readout:
    """The way from a stack's last block to the logits, told from one small forward pass. Errors: ModelError."""
    model, size = lm.model, vocabulary_size(lm)
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        return _by_embedding(lm, size, "the model has no unembedding")
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def watch(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if args and isinstance(args[0], Tensor) and isinstance(first, Tensor):
            # Copied: models write into their residual stream in place.
            seen[module] = args[0].detach().clone(), first.detach().clone()

    last = model.get_submodule(blocks_of(lm, stack)[-1])
    paths = {module: path for path, module in model.named_modules()}
    watched = [module for module in paths if is_norm(module) or isinstance(module, nn.Linear)]
    with ExitStack() as hooks, torch.no_grad():
        for module in {*watched, last, head}:
            hooks.callback(module.register_forward_hook(watch).remove)
        run(model, lm.name, probe_inputs(model), head=True)
    if head not in seen or last not in seen:
        return _by_embedding(lm, size, "its unembedding is not called as a module on the last block's stream")
    stream, read = seen[last][1], seen[head][0]
    steps: list[Step] = []
    for _ in range(MOST_STEPS):
        if _same(read, stream):
            return Readout(head.weight.detach()[:size].cpu(), tuple(reversed(steps)))
        # The same numbers, where there are such, before the same direction: T5 scales what its unembedding reads.
        giver = next((m for m in watched if m in seen and torch.equal(seen[m][1], read)), None)
        giver = giver or next((m for m in watched if m in seen and _same(seen[m][1], read)), None)
        if giver is None:
            break
        before, after = seen[giver]
        if is_norm(giver):
            form = norm_form(giver, before, after, paths[giver])
            steps.append(Step(form.gain.cpu(), form.centres))
        else:
            steps.append(Step(giver.weight.detach().cpu()))  # type: ignore[union-attr]
        read = before
    return _by_embedding(lm, size, "between its last block and its unembedding stands a step that is not linear")


def _by_embedding(lm: LoadedModel, size: int, reason: str) -> Readout:
    words = getattr(lm.model, "get_input_embeddings", lambda: None)()
    assert words is not None, "vocabulary_size has its table"
    table = words.weight.detach()[:size].cpu()
    width = lm.spec.embed_dim
    if width and table.shape[1] != width:
        raise ModelError(
            f"{lm.name}: {reason}, and its embedding table is {table.shape[1]} wide where the stream is {width}: what "
            f"its heads write cannot be read as tokens."
        )
    return Readout(table, (), reason)


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors hold the same numbers but for one factor."""
    if first.shape != second.shape:
        return False
    first, second = first.double().flatten(), second.double().flatten()
    return bool(first @ second > SAME * first.norm() * second.norm())


# ------------------------------------------------------------------------------------------------------------- sources


class _Enough(Exception):
    """The first block has been reached, or passed: nothing after it is run."""


def token_vectors(
    lm: LoadedModel, site: Site, source: Source, readout: Readout, tokens: Sequence[int] | None = None
) -> Float[Tensor, "v m"]:
    """What stands for tokens (None: for each of the vocabulary) in the stream of that layer's stack, on the host.

    Cost: of "token", the first block on every token of the vocabulary (some seconds for 49,152 tokens of 576 numbers
    each); of "embedding" the embeddings alone. Errors: ModelError where a position cannot be taken out of them, or
    where the first block does not attend.
    """
    size = vocabulary_size(lm)
    if source == "prediction":
        return readout.directions() if tokens is None else readout.directions()[list(tokens)]
    first = blocks_of(lm, site.stack)[0]
    attends = any(other.module.startswith(f"{first}.") for other in lm.spec.sites)
    if source == "token" and not attends:
        raise ModelError(
            f"{lm.name}: its first block, {first}, does not attend, and what else it does to a token needs the tokens "
            f'before: ask source="embedding".'
        )
    device, parts = device_of(lm.model), list[Tensor]()
    same = torch.tensor([[1, 2, 1, 2]], device=device) % size
    with _first_block(lm, first, past=False) as read:
        twice = read(same, site)[0]
    if float((twice[0] - twice[2]).norm()) > SAME_PLACE * float(twice[0].norm()):
        raise ModelError(
            f"{lm.name} adds positions to its embeddings by a step that is not known here, so no vector stands for a "
            f"token wherever it is."
        )
    with _first_block(lm, first, past=source == "token") as read:
        ids = torch.arange(size, device="cpu") if tokens is None else torch.tensor(list(tokens), device="cpu")
        for part in ids.to(device).split(TEXTS_AT_ONCE):
            parts.append(read(part[:, None], site)[:, 0].cpu())
    return torch.cat(parts)


@contextmanager
def _first_block(lm: LoadedModel, path: str, *, past: bool) -> Generator[Callable[[Tensor, Site], Tensor]]:
    """Gives a function from ids to the stream at the first block, before it or past it; attention gives zeros there."""
    model, stream = lm.model, list[Tensor]()

    def zeros(module: nn.Module, args: object, output: Tensor) -> Tensor:
        return torch.zeros_like(output)

    def before(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        stream.append(args[0] if args else kwargs["hidden_states"])
        raise _Enough

    def after(module: nn.Module, args: object, output: Tensor | Sequence[Tensor]) -> None:
        stream.append(output if isinstance(output, Tensor) else output[0])
        raise _Enough

    def read(ids: Tensor, site: Site) -> Tensor:
        inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if site.stack == "decoder":
            # What the encoder gives is not read: cross-attention as well, gives zeros.
            encoded = torch.zeros(len(ids), 1, lm.spec.embed_dim or 1, device=ids.device, dtype=lm.dtype)
            inputs |= {"decoder_input_ids": ids, "encoder_outputs": (encoded,)}
            inputs["attention_mask"] = torch.ones_like(ids[:, :1])
        stream.clear()
        try:
            run(model, lm.name, inputs)
        except _Enough:
            return stream[0].detach()
        raise ModelError(f"{lm.name}: its first block was not reached, so no token has a vector.")

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            is_table = isinstance(module, nn.Embedding) or "Embedding" in type(module).__name__
            is_leaf = not any(True for _ in module.children())
            if is_table and is_leaf and ("pos" in name.lower() or name.endswith("wpe")):
                hooks.callback(module.register_forward_hook(zeros).remove)
        for name, module in Branches.of(model, lm.spec).outputs.items():
            if name.startswith(f"{path}."):
                hooks.callback(module.register_forward_hook(zeros).remove)
        block = model.get_submodule(path)
        hook = block.register_forward_hook(after) if past else None
        hook = hook or block.register_forward_pre_hook(before, with_kwargs=True)
        hooks.callback(hook.remove)
        yield read
