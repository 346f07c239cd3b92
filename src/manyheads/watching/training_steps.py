"""`watch`: every head's numbers while a model trains, in any loop.

    with mh.watch(model, every=50, statistics=["max_logit", "entropy", "first_mass"]) as seen:
        for batch in loader:
            loss = model(**batch).loss; loss.backward(); optimizer.step(); optimizer.zero_grad()
            seen.step()                           # after the optimizer's step
            if seen.fresh:
                log(seen.latest())                # {"heads/max_logit.max": 41.2, "heads/entropy.min": ...}

A step is what lies between two calls of `step()`, however many micro-batches it has. The first step and each multiple
of `every` are watched; in the others nothing of ours runs. In a watched step each attention call of the training pass
is read as it is made (`training_tap`), and nothing of it is kept but a few numbers a head (`head_numbers`). At `step()`
the numbers of all processes are added, in one all-reduce, and are there until the next watched step.

Nothing is changed: losses and gradients are the same to the bit. An exception in the loop leaves the model as it was.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool, Float64
from numpy import ndarray
from torch import Tensor, nn

from manyheads.attention import Mask
from manyheads.base import Json, brief, plural, whole
from manyheads.errors import FileAccessError, ModelError, PlanError, StatisticError
from manyheads.heads import Head
from manyheads.machine import own_rank
from manyheads.measurement import place_of
from manyheads.models import AttentionCall, text_config_of
from manyheads.models.taps import OWN_NOTES, log
from manyheads.recording import PerHeadResult
from manyheads.recording.exact_map import Pass
from manyheads.spec import Site
from manyheads.watching.alert_rules import DEAD
from manyheads.watching.batch_texts import BatchTexts, CrossTexts, texts_of_batch
from manyheads.watching.head_numbers import MAXIMA, OF_A_STEP, Chosen, LayerNumbers, add_call
from manyheads.watching.history import HeadHistory, open_history
from manyheads.watching.qk_clip import QKClip, require_limit
from manyheads.watching.training_tap import UNSEEN, TrainingTap, Unseen

if TYPE_CHECKING:  # half a second to import: only who asks for a frame waits for it
    import pandas as pd

DEFAULT = ("max_logit", "entropy", "first_mass")
SINK = 0.3  # a head whose mean weight on the first token is more counts as a sink head (Gu et al. 2024)
SUMMARY = {"max_logit": ("max",), "entropy": ("mean", "min"), "output_share": ("min",)}
"""How a logger sees a statistic: over a layer's heads, and over all. Others have mean and max; maxima have max."""

_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True, eq=False)
class WatchedStep(PerHeadResult):
    """The numbers of one watched step: `values[head, statistic]`, NaN where there is none, or where a run diverges.

    Means are over all tokens that the step trained on, maxima over all its rows. `counted`: where there was a case of
    the statistic. `because`: how they were read.
    """

    step: int
    sites: tuple[Site, ...]
    names: tuple[str, ...]
    values: Float64[ndarray, "head statistic"]
    counted: Bool[ndarray, "head statistic"]
    because: str

    missing = "in this model: it has {first} to {last}."

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        return tuple(head for site in self.sites for head in site.heads)

    @overload
    def __getitem__(self, key: str) -> Float64[ndarray, "head"]: ...
    @overload
    def __getitem__(self, key: tuple[str | Head, str]) -> float: ...
    def __getitem__(self, key: str | tuple[str | Head, str]) -> Float64[ndarray, "head"] | float:
        """`step["entropy"]` is a column; `step["L0H2", "entropy"]` one number. Errors: HeadError, StatisticError."""
        head, name = (None, key) if isinstance(key, str) else key
        if name not in self.names:
            raise StatisticError(f"this watch has no {name!r}, only {', '.join(self.names)}: name it in statistics=.")
        column = self.values[:, self.names.index(name)]
        return column.copy() if head is None else float(column[self.head_place(head)])

    def to_dict(self) -> Json:
        """Plain data for JSON: a row for each head, None where it has no number."""
        return {"step": self.step, "heads": self.rows(), "because": self.because}

    def summary(self, layers: bool = True) -> dict[str, float]:
        """Numbers for a logger: each statistic over all heads, and over each layer's; never one for each head."""
        out: dict[str, float] = {}
        places: dict[str, slice] = {"": slice(None)}
        begin = 0
        for site in self.sites:
            places[f"{site}/"] = slice(begin, begin + site.num_heads)
            begin += site.num_heads
        sizes = np.array([site.num_heads for site in self.sites])
        even = 1 / np.repeat(sizes, sizes)  # each head's even share of its layer's output
        for place, heads in places.items() if layers else [("", slice(None))]:
            for index, name in enumerate(self.names):
                counted = self.counted[heads, index]
                column = self.values[heads, index][counted]
                if not len(column):  # as an offset has no meaning in cross-attention
                    continue
                for kind in SUMMARY.get(name, ("max",) if name in MAXIMA else ("mean", "max")):
                    out[f"heads/{place}{name}.{kind}"] = float(getattr(column, kind)())
                # A head without a number is neither under a limit nor over it: as a mean, a share is then NaN.
                known = not np.isnan(column).any()
                if name == "first_mass":
                    out[f"heads/{place}sink_heads"] = float((column > SINK).mean()) if known else np.nan
                if name == "output_share":
                    dead = column < DEAD * even[heads][counted]
                    out[f"heads/{place}dead_heads"] = float(dead.mean()) if known else np.nan
        return out

    def to_pandas(self) -> pd.DataFrame:
        """Columns head, stack, layer, index, then the statistics."""
        import pandas as pd  # half a second: not for who never asks for a frame

        return pd.concat(
            [pd.DataFrame(self.head_columns()), pd.DataFrame(self.values, columns=list(self.names))], axis=1
        )

    def __repr__(self) -> str:
        return f"WatchedStep({self.step:,}: {len(self.heads)} heads x {len(self.names)} statistics)"


class Watch:
    """What `watch` returns: call `step()` after each of the optimizer's steps, and `close()` at the end.

    `fresh`: whether the step that just ended was watched. `last`: its numbers by head (`WatchedStep`); of the last
    watched step, if it was not; None before any. `because` says how numbers are read. A closed watch is pickled with
    its numbers, and without its model; an open one is not.
    """

    def __init__(
        self,
        model: nn.Module,
        every: int,
        statistics: Sequence[str],
        rows: int | None,
        step: int,
        out: str | os.PathLike[str] | None,
        method: str,
        unseen: Unseen = "raise",
    ) -> None:
        self.chosen = check_options(every, statistics, rows, unseen)
        whole("step", step, 0, PlanError, "the number of steps that were done before, 0 or more")
        self.out = None if out is None else Path(out)
        # Before anybody has trained for it; an empty folder is what a killed training may have left.
        # In every process, so that none goes on alone.
        if self.out is not None and step == 0 and self.out.exists():
            empty = self.out.is_dir() and not any(self.out.iterdir())
            written_steps = np.empty(0, dtype=np.int64) if empty else open_history(self.out).steps
            if len(written_steps):
                raise FileAccessError(
                    f"{self.out} holds the steps {written_steps[0]:,} to {written_steps[-1]:,} of an earlier training: "
                    f"give another path, delete it, or go on with it (step= of a watch: the steps done before; a "
                    f"Trainer: resume from its checkpoint)."
                )
        self.every, self.rows, self.done = every, rows, step
        self.fresh = False
        self.last: WatchedStep | None = None
        self._tap = TrainingTap(
            model, self._observe, lambda: self.wants(self.done + 1), self._begin_pass, method, unseen
        )
        self.model = self._tap.model
        for watched in list(_WATCHED):
            if self.model in {*watched.modules()} or watched in {*self.model.modules()}:
                self._tap.close()
                part = "" if watched is self.model else f", as a part of the same {type(watched).__name__}"
                raise ModelError(
                    f"this {type(self.model).__name__} is watched already{part}: close that watch first, or name its "
                    f"statistics together in one."
                )
        _WATCHED.add(self.model)
        self._history: HeadHistory | None = None
        self._layers: dict[str, LayerNumbers] = {}
        self._sites: dict[str, Site] = {}  # by module, as this process saw them
        self._whole_sites: dict[str, Site] = {}
        self._first_heads: dict[str, int] = {}  # which of all heads of a layer this process' first one is
        self._agreed = self._closed = False
        self._begin_pass((), {})
        self._chunked = bool(getattr(text_config_of(self.model), "attention_chunk_size", None))

    @property
    def because(self) -> str:
        return self._because if self._closed else self._tap.because

    def wants(self, step: int) -> bool:
        """Whether step number `step` (from 1) is watched."""
        return step == 1 or step % self.every == 0

    def step(self) -> None:
        """One of the optimizer's steps is over. Under torch.distributed every process calls it.

        Errors: ModelError where processes saw unlike layers.
        """
        if self._closed:
            raise ModelError("this watch is closed: make another one to go on, with step= the steps done before.")
        self.done += 1
        self.fresh = False
        self._tap.next_step()
        if not self.wants(self.done):
            return
        layers, self._layers = self._layers, {}
        sites = self._all_sites()
        numbers = []
        for module, site in sites.items():  # with a place for each head of a layer, also for those of other processes
            all_heads, layer = LayerNumbers.empty(site.num_heads, len(self.chosen.names)), layers.get(module)
            if layer is not None:
                begin = self._first_heads[module]
                for part in ("num", "den", "top"):
                    getattr(all_heads, part)[begin : begin + len(layer.num)] = getattr(layer, part)
            numbers.append(all_heads)
        summed = self._over_processes(numbers)
        if not bool((summed[1] > 0).any() or (summed[2] != -torch.inf).any()):
            if self._tap.is_blind:  # which was said
                return
            log.warning(
                "step %s was to be watched, and no forward pass with gradients was seen: call step() after each step "
                "of the optimizer, and train the very model that is watched",
                self.done,
            )
            return
        num, den, top = (part.numpy() for part in summed)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.where(den > 0, num / den, np.nan)
        of_maximum = [name in MAXIMA for name in self.chosen.names]
        counted = np.where(of_maximum, top != -np.inf, den > 0)
        values[:, of_maximum] = np.where(counted, top, np.nan)[:, of_maximum]
        how = sorted({reason for layer in layers.values() for reason in layer.because})
        because = "; ".join([self.because, *how])
        self.last = WatchedStep(self.done, tuple(sites.values()), self.chosen.names, values, counted, because)
        self.fresh = True
        if self.out is not None and own_rank() == 0:
            if self._history is None:  # not before: now the heads are known
                meaning = MAXIMA | OF_A_STEP | {statistic.name: statistic.meaning for statistic in self.chosen.of_table}
                facts = {
                    "model": type(self.model).__name__,
                    "sites": [asdict(site) for site in self.last.sites],
                    "meaning": {name: meaning[name] for name in self.last.names},
                    "every": self.every,
                    "rows": self.rows,
                    "because": because,
                }
                self._history = HeadHistory(self.out, self.last.heads, self.last.names, facts)
            self._history.append(self.done, values)

    def latest(self, layers: bool = True) -> dict[str, float]:
        """The last watched step's numbers for a logger (`WatchedStep.summary`); {} before there are any."""
        return {} if self.last is None else self.last.summary(layers)

    def close(self) -> None:
        """Stop watching. The model is as it was before."""
        if self._closed:
            return
        self._because, self._closed = self._tap.because, True
        self._tap.close()
        _WATCHED.discard(self.model)
        if self._history is not None:
            self._history.close()
            self._history = None

    def __getstate__(self) -> dict[str, Any]:
        """Errors: ModelError for an open watch."""
        if not self._closed:
            raise ModelError(
                "this watch is open, and its hooks on a model go into no pickle: close it first, or pickle its numbers "
                "so far, .last."
            )
        names = ("chosen", "every", "rows", "out", "done", "fresh", "last", "_because", "_closed")
        return {name: value for name, value in vars(self).items() if name in names}

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"every {plural(self.every, 'step')}"
        names = ", ".join(self.chosen.names)
        model = type(self.model).__name__ if hasattr(self, "model") else "read from a pickle"
        return brief(f"Watch({model}, {state}: {plural(self.done, 'step')} done; {names})")

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ one forward pass

    def _begin_pass(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Another micro-batch: what is known of its texts, and nothing of the last one's."""
        self._texts: dict[bool, list[tuple[Mask, int, BatchTexts | None]]] = {}
        self._crosses: dict[tuple[int, int, int], CrossTexts] = {}
        self._passes: dict[object, Pass] = {}
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        self._real = mask.cpu() > 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None
        self._written = self._real  # of the text that is written, which in an encoder-decoder is another one
        if getattr(getattr(self.model, "config", None), "is_encoder_decoder", False):
            mask, labels = kwargs.get("decoder_attention_mask"), kwargs.get("labels")
            self._written = mask.cpu() > 0 if isinstance(mask, Tensor) and mask.ndim == 2 else None
            if self._written is None and isinstance(labels, Tensor) and labels.ndim == 2:
                # Nobody gives a decoder a mask in training: what follows a text's last label is padding.
                self._written = (labels.cpu() != -100).flip(1).cummax(1).values.flip(1)
        self._begins: Bool[Tensor, "b q"] | None = None
        if isinstance(positions, Tensor) and positions.ndim == 2 and positions.shape[1]:
            steps = positions.cpu().diff(dim=1, prepend=positions[:, :1].cpu())
            self._begins = (steps != 1) | (torch.arange(steps.shape[1], device="cpu")[None] == 0)
            if self._real is not None:  # positions of padding say nothing
                self._begins &= self._real

    def _observe(self, call: AttentionCall) -> None:
        self._sites.setdefault(call.site.module, call.site)
        if call.site.module not in self._layers:
            self._layers[call.site.module] = LayerNumbers.empty(call.site.num_heads, len(self.chosen.names))
            for note in OWN_NOTES:
                if call.because.endswith(note):
                    self._layers[call.site.module].because.add(f"attention {note}")
        texts = self._texts_of(call)
        if texts is not None:
            add_call(self._layers[call.site.module], call, texts, self.chosen, self.rows, self._passes)

    def _texts_of(self, call: AttentionCall) -> BatchTexts | CrossTexts | None:
        """The texts of a call; layers whose masks say the same share them, and so the plan of a pass over them."""
        mask, num_rows = call.mask, len(call.q)
        if call.crosses:
            sizes = (num_rows, mask.num_queries, mask.num_keys)
            if sizes not in self._crosses:
                rows, keys = (
                    real if real is not None and tuple(real.shape) == (num_rows, size)
                    else torch.ones(num_rows, size, dtype=torch.bool, device="cpu")
                    for real, size in zip((self._written, self._real), sizes[1:], strict=True)
                )  # fmt: skip
                self._crosses[sizes] = CrossTexts(rows, keys)
            return self._crosses[sizes] if bool(self._crosses[sizes].rows.any()) else None
        written = call.site.stack == "decoder"
        known_texts = self._texts.setdefault(written, [])
        for known, size, texts in known_texts:
            is_same = known is mask or (
                known.dense is None is mask.dense
                and known.start.shape == mask.start.shape
                and torch.equal(known.start, mask.start)
                and torch.equal(known.stop, mask.stop)
            )
            if is_same and size == num_rows:
                return texts
        shape = (num_rows, mask.num_queries)
        real = self._written if written else self._real
        real = real if real is not None and tuple(real.shape) == shape else None
        begins = self._begins
        if begins is not None and (begins.shape[1] != shape[1] or begins.shape[0] not in (1, num_rows)):
            begins = None
        if begins is None and self._chunked:
            begins = (torch.arange(shape[1], device="cpu") == 0)[None]
        texts = texts_of_batch(mask, num_rows, real, begins)
        known_texts.append((mask, num_rows, texts))
        return texts

    # ------------------------------------------------------------------------------------------------ several processes

    def _all_sites(self) -> dict[str, Site]:
        """The sites by module, each with all its heads, in all processes the same. Errors: ModelError."""
        if self._agreed:
            return self._whole_sites
        for module, site in self._sites.items():
            if module in self._whole_sites:
                continue
            # Of a model whose heads are divided among processes (tensor parallelism), each has some of a layer's.
            begin, total = place_of(self.model, site) if _together() else (0, site.num_heads)
            if total != site.num_heads and "output_share" in self.chosen.names:
                raise StatisticError(
                    "output_share compares a layer's heads, which are divided among processes here: leave it out."
                )
            groups = site.num_kv_heads * total // site.num_heads
            self._whole_sites[module] = replace(site, num_heads=total, num_kv_heads=groups)
            self._first_heads[module] = begin
        if _together():
            everyone: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everyone, json.dumps([asdict(site) for site in self._whole_sites.values()]))
            layouts = sorted({layout for layout in everyone if layout != "[]"})
            if len(layouts) > 1:
                raise ModelError(
                    f"the processes of this training saw unlike layers ({len(layouts)} kinds): a watch adds what each "
                    f"of them saw of the same model."
                )
            for fields in json.loads(layouts[0]) if layouts else ():  # a process without a batch learns them
                site = Site.from_dict(fields)
                self._whole_sites.setdefault(site.module, site)
            self._agreed = bool(layouts)
        return self._whole_sites

    def _over_processes(self, layers: Sequence[LayerNumbers]) -> tuple[Tensor, Tensor, Tensor]:
        """Sums and maxima of all layers, one after another, over all processes: `[head, statistic]`; one all-reduce."""
        size = len(self.chosen.names)
        num, den, top = (
            torch.cat(
                [getattr(layer, part) for layer in layers] or [torch.zeros(0, size, dtype=torch.float64, device="cpu")]
            )
            for part in ("num", "den", "top")
        )
        if _together() and len(num):
            # Sums add and maxima do not. So each process lays its maxima in a place of its own among zeros: one sum
            # carries both, and NaN of one process reaches all, which a MAX may drop.
            device = torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend() else "cpu"
            of_maximum = [name in MAXIMA for name in self.chosen.names]
            places = num.new_zeros(dist.get_world_size(), len(num), sum(of_maximum))
            places[dist.get_rank()] = top[:, of_maximum]
            packed = torch.cat([num.flatten(), den.flatten(), places.flatten()]).to(device)
            dist.all_reduce(packed)
            num, den, places = (
                part.view(like.shape)
                for part, like in zip(
                    packed.cpu().split([num.numel(), den.numel(), places.numel()]), (num, den, places), strict=True
                )
            )
            top[:, of_maximum] = places.amax(0)
        return num, den, top


def watch(
    model: nn.Module,
    *,
    every: int = 50,
    statistics: Sequence[str] = DEFAULT,
    rows: int | None = None,
    out: str | os.PathLike[str] | None = None,
    step: int = 0,
    method: str = "",
    unseen: Unseen = "raise",
) -> Watch:
    """Watch every head of a model while it trains. Use it in a `with` block, and call `.step()` after each step.

    - `model`: any model whose attention can be seen (transformers', this library's layers, `nn.MultiheadAttention`,
      whatever calls `scaled_dot_product_attention` or has a softmax between two products), in training mode or not,
      inside DistributedDataParallel, sharded by `fully_shard`, with adapters, under autocast; one that is compiled is
      read by a probe (`.because`).
    - `every`: watch the first step and each multiple of it.
    - `statistics`: `max_logit`, `max_logit_uncapped`, `max_logit_unscaled`, `q_norm`, `k_norm`, `output_share`, and
      those of the table that ask for no words (`entropy`, `first_mass`, `heaviest_key`, `missing_mass` ...).
    - `rows`: read so many rows of each text, evenly spread, in place of all; a max logit is then a lower bound.
    - `out`: where each head's numbers are kept, as Parquet (`open_history`, `manyheads watch`); the first process
      writes.
    - `step`: how many steps were done before, of a training that goes on.
    - `method`: the method whose calls are the training passes, of a module that is not called itself.
    - `unseen`: where no layer's attention can be read, or what was read is not what a layer computed: "raise" an error,
      or "warn" once and go on without it; layers keep their numbers.

    Weights are those before dropout. Means are over the tokens that the step trained on; padding is left out, and texts
    that are packed are texts of their own.
    Cost: see docs/howto/watch-training.md. Errors: PlanError, StatisticError, ModelError, GuardError.
    """
    return Watch(model, every, statistics, rows, step, out, method, unseen)


class WatchCallback:
    """What the callbacks of all trainers share: options, checked when they are given, and the life of a watch.

    The options are `watch`'s; `layers`: whether each layer is logged, too; `qk_clip`: the largest logit allowed.
    """

    def __init__(
        self,
        every: int = 50,
        statistics: Sequence[str] = DEFAULT,
        *,
        rows: int | None = None,
        out: str | os.PathLike[str] | None = None,
        layers: bool = True,
        qk_clip: float | None = None,
        unseen: Unseen = "raise",
    ) -> None:
        check_options(every, statistics, rows, unseen)
        if qk_clip is not None:
            require_limit(qk_clip)
        self.every, self.statistics, self.rows, self.out = every, statistics, rows, out
        self.layers, self.tau = layers, qk_clip
        self.unseen: Unseen = unseen
        self.watch: Watch | None = None
        self.clip: QKClip | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the options alone: a model that is copied while it is watched takes no watch with it either."""
        return {**vars(self), "watch": None, "clip": None}

    def open(self, model: nn.Module, step: int, method: str = "") -> None:
        """A training begins, after `step` steps. What an earlier one left open is closed."""
        self.close()
        self.watch = Watch(model, self.every, self.statistics, self.rows, step, self.out, method, self.unseen)
        try:
            self.clip = None if self.tau is None else QKClip(model, self.tau, method=method)
        except BaseException:
            self.close()
            raise
        log.info("heads are %s", self.watch.because)

    def step(self) -> dict[str, float]:
        """A step of the optimizer is over: the numbers to be logged, {} where it was not watched."""
        if self.watch is None:
            return {}
        clip = None if self.clip is None else self.clip.step()
        self.watch.step()
        if not self.watch.fresh:
            return {}
        clipped = {} if clip is None else {"heads/clipped": float(len(clip.clipped))}
        return self.watch.latest(self.layers) | clipped

    def close(self) -> None:
        """Stop watching. The model is as it was before."""
        for part in (self.watch, self.clip):
            if part is not None:
                part.close()
        self.watch = self.clip = None


def check_options(every: int, statistics: Sequence[str], rows: int | None, unseen: Unseen) -> Chosen:
    """The statistics that these options ask for. Errors: PlanError, StatisticError."""
    if unseen not in UNSEEN:
        raise PlanError(f"{unseen=}: give 'raise' or 'warn'.")
    for name, number in (("every", every), ("rows", rows)):
        if number is not None:
            whole(name, number, 1, PlanError)
    return Chosen.of(statistics, rows)


def _together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
