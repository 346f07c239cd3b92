"""One forward pass under the tap, and the loop over batches: every number about a text comes through here.

`watch` runs any forward pass, `observe` a loaded model's over one batch, `read_batches` a whole reading, batch after
batch. The layers' tensors live only while the observer has them: whoever wants something of a call keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor, nn

from manyheads.base import Progress, first_line
from manyheads.errors import ModelError
from manyheads.inputs.reading import Reading, batches, model_inputs, tokens_of
from manyheads.models import AttentionCall, device_of, run, tap
from manyheads.models.taps import Observer, Tap, no_way_in
from manyheads.texts import Tokens


class Watcher(Protocol):
    """Anything that observes the attention calls of one batch."""

    def observe(self, call: AttentionCall) -> None: ...


W = TypeVar("W", bound=Watcher)


class BatchRead(NamedTuple, Generic[W]):
    """One batch after its forward pass: which pieces of the reading it held, their tokens, its watcher and the tap."""

    indices: Sequence[int]
    tokens: Tokens
    watcher: W
    tap: Tap


def watch(model: nn.Module, name: str, forward: Callable[[], object], observer: Observer) -> Tap:
    """Run `forward` under a guarded tap. Errors: ModelError where the model made no call that could be seen."""
    with tap(model, on_call=observer) as state:
        try:
            forward()
        except RuntimeError as error:
            # torch's own words name an operation deep in the model, and not the input.
            if "on the same device" not in str(error):
                raise
            place = device_of(model)
            raise ModelError(
                f"{name} takes its inputs on {place}, and some are on another device ({first_line(error)}): move "
                f"them, as in ids.to({str(place)!r})."
            ) from error
    if not state.sites:
        raise ModelError(no_way_in(model, name, state.by_hand))
    return state


def observe(lm: Any, batch: Tokens | Mapping[str, Tensor], observer: Observer) -> Tap:
    """One forward pass of a loaded model over a batch of texts, or over ready inputs; each call goes to `observer`.

    Errors: ModelError where no call could be seen, or the model refuses its inputs; GuardError.
    """
    inputs = model_inputs(lm, batch) if isinstance(batch, Tokens) else dict(batch)
    return watch(lm.model, lm.name, lambda: run(lm.model, lm.name, inputs), observer)


def read_batches(
    lm: Any,
    reading: Reading,
    watcher: Callable[[Tokens], W],
    *,
    rarity: tuple[Tensor | None, str] = (None, ""),
    groups: Sequence[Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Iterator[BatchRead[W]]:
    """Run a loaded model over a whole reading, one batch after another, and yield each batch when it has been read.

    `watcher(tokens)` makes what observes the calls of a batch. `rarity`: a table of `rarity_table`. `groups`: the
    pieces of each batch, by default those of `batches`. `progress` is called when the caller is done with a batch.
    Cost: one forward pass over the reading. Errors: as `observe`.
    """
    done = 0
    for indices in batches(reading) if groups is None else groups:
        tokens = tokens_of(reading, indices, *rarity)
        observing = watcher(tokens)
        yield BatchRead(indices, tokens, observing, observe(lm, tokens, observing.observe))
        done += int(tokens.lengths.sum())
        if progress is not None:
            progress(done, reading.num_tokens)
