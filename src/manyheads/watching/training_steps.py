"""`watch`: every head's numbers while a model trains, in any loop.

    with mh.watch(model, every=50, statistics=["max_logit", "entropy", "first_mass"]) as seen:
        for batch in loader:
            loss = model(**batch).loss; loss.backward(); optimizer.step(); optimizer.zero_grad()
            seen.step()                           # after the optimizer's step
            if seen.fresh:
                log(seen.latest())                # {"heads/max_logit.max": 41.2, "heads/entropy.min": ...}

A logger that is given (`logger=`) gets these, single heads (`log_heads=`) and pictures (`pictures=True`) by itself.

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
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Bool
from safetensors.torch import save
from torch import Tensor, nn

from manyheads.attention import Mask
from manyheads.base import brief, no_access, plural, replacing, whole
from manyheads.errors import AlertError, FileAccessError, ModelError, PlanError, StatisticError
from manyheads.heads import HeadsLike, written
from manyheads.machine import own_rank
from manyheads.measurement import place_of
from manyheads.models import AttentionCall, text_config_of
from manyheads.models.taps import OWN_NOTES, log
from manyheads.recording.exact_map import Pass
from manyheads.spec import Site
from manyheads.watching.alert_rules import Action, AlertRule, HeadAlert, alerts, checked_actions, rules_with
from manyheads.watching.batch_texts import BatchTexts, CrossTexts, texts_of_batch
from manyheads.watching.head_numbers import MAXIMA, OF_A_STEP, Chosen, LayerNumbers, add_call
from manyheads.watching.history import HeadHistory, open_history
from manyheads.watching.loggers import Logger, check_logger, log_pictures, log_step
from manyheads.watching.qk_clip import Clip, QKClip, require_limit
from manyheads.watching.training_tap import UNSEEN, TrainingTap, Unseen
from manyheads.watching.watched_step import WatchedStep

DEFAULT = ("max_logit", "entropy", "first_mass")
_WATCHED: weakref.WeakSet[nn.Module] = weakref.WeakSet()


@dataclass(frozen=True)
class WatchOptions:
    """The options of `watch` that do not depend on the model, checked. Errors: PlanError, StatisticError, HeadError."""

    every: int = 50
    statistics: Sequence[str] = DEFAULT
    rows: int | None = None
    out: str | os.PathLike[str] | None = None
    log_heads: HeadsLike = ()
    pictures: bool = False
    on_alert: Action | Sequence[Action] | None = None
    limits: Mapping[str, float] | None = None
    unseen: Unseen = "raise"

    def __post_init__(self) -> None:
        if self.unseen not in UNSEEN:
            raise PlanError(f"unseen={self.unseen!r}: give 'raise' or 'warn'.")
        for name, number in (("every", self.every), ("rows", self.rows)):
            if number is not None:
                whole(name, number, 1, PlanError)
        written(self.log_heads)  # which of them the model has shows at its first step
        rules = self.rules
        for name in self.limits or ():
            if name not in {rule.name for rule in rules}:
                raise PlanError(f"limits= has {name!r}, whose statistic is not watched: name it in statistics=.")
        if "save" in self.actions and self.out is None:
            raise PlanError("on_alert='save' writes the batch beside the file of heads: give out=.")

    @cached_property
    def chosen(self) -> Chosen:
        """The statistics."""
        return Chosen.of(self.statistics, self.rows)

    @cached_property
    def rules(self) -> tuple[AlertRule, ...]:
        """The alerts that these statistics can raise."""
        return tuple(rule for rule in rules_with(self.limits or {}) if rule.statistic in self.chosen.names)

    @cached_property
    def actions(self) -> tuple[Action, ...]:
        """What is done at an alert."""
        return checked_actions(self.on_alert, self.rules)


class Watch:
    """What `watch` returns: call `step()` after each of the optimizer's steps, and `close()` at the end.

    `fresh`: whether the step that just ended was watched. `last`: its numbers by head (`WatchedStep`); of the last
    watched step, if it was not; None before any. `alerts`: which heads crossed a limit so far, once for each rule.
    `clip`: the `QKClip` that an alert began. `because` says how numbers are read. A closed watch is pickled with its
    numbers, and without its model; an open one is not.
    """

    def __init__(
        self, model: nn.Module, options: WatchOptions, step: int = 0, method: str = "", logger: Logger | None = None
    ) -> None:
        self.options, self.chosen, self.method, self.logger = options, options.chosen, method, logger
        if logger is not None:
            check_logger(logger)
        whole("step", step, 0, PlanError, "the number of steps that were done before, 0 or more")
        self.out = None if options.out is None else Path(options.out)
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
        if "clip" in options.actions:  # what cannot be clipped is said now, and not where it is needed
            QKClip(model, method=method).close()
        self.every, self.rows, self.done = options.every, options.rows, step
        self.fresh = False
        self.last: WatchedStep | None = None
        self.alerts: tuple[HeadAlert, ...] = ()
        self.clip: QKClip | None = None
        self.clipped: Clip | None = None  # by its last step
        self._recent: list[WatchedStep] = []  # as many as the slowest rule looks at
        self._inputs: list[tuple[Sequence[Any], Mapping[str, Any]]] = []  # of this step's passes, where they are saved
        self._losses: list[Tensor] = []  # of this step's passes
        self._adds_losses = False  # they are parts of the step's, not each the mean of its own tokens
        self._tap = TrainingTap(
            model, self._observe, lambda: self.wants(self.done + 1), self._begin_pass, method, self._end_pass,
            options.unseen,
        )  # fmt: skip
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

    def step(self, loss: float | Tensor | None = None) -> None:
        """One of the optimizer's steps is over. Under torch.distributed every process calls it.

        `loss`: the step's, where the model's passes do not return it. Errors: ModelError where processes saw unlike
        layers; HeadError for heads to be logged that there are not; AlertError where an alert is to stop the training,
        after the step has been written and logged.
        """
        if self._closed:
            raise ModelError("this watch is closed: make another one to go on, with step= the steps done before.")
        self.done += 1
        self.fresh = False
        self._tap.next_step()
        if self.clip is not None:
            self.clipped = self.clip.step()
        if not self.wants(self.done):
            return
        layers, self._layers = self._layers, {}
        inputs, self._inputs = self._inputs, []
        losses, self._losses = torch.stack(self._losses).cpu() if self._losses else torch.empty(0, device="cpu"), []
        if loss is not None:
            number = float(loss.detach() if isinstance(loss, Tensor) else loss)
            losses = torch.tensor([number], dtype=torch.float64, device="cpu")
        sites = self._all_sites()
        numbers = []
        for module, site in sites.items():  # with a place for each head of a layer, also for those of other processes
            all_heads, layer = LayerNumbers.empty(site.num_heads, len(self.chosen.names)), layers.get(module)
            if layer is not None:
                begin = self._first_heads[module]
                for part in ("num", "den", "top"):
                    getattr(all_heads, part)[begin : begin + len(layer.num)] = getattr(layer, part)
            numbers.append(all_heads)
        total = losses.double().sum() if self._adds_losses and len(losses) else losses.double().mean()
        summed, known_loss = self._over_processes(numbers, float(total))
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
        # A score that is no number is past every limit: so it raises an alert, where NaN would stand for a head unread.
        values[:, of_maximum] = np.where(counted, np.where(np.isnan(top), np.inf, top), np.nan)[:, of_maximum]
        how = sorted({reason for layer in layers.values() for reason in layer.because})
        because = "; ".join([self.because, *how])
        last = WatchedStep(self.done, tuple(sites.values()), self.chosen.names, values, counted, because, known_loss)
        if self.last is None:  # now the heads are known: a wrong name ends this before anything is written
            last.select(self.options.log_heads)
        self.last = last
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
            self._history.append(self.done, values, known_loss)
        if self.logger is not None and own_rank() == 0:
            log_step(self.logger, self.done, self.latest())
            if self.options.pictures:
                log_pictures(self.logger, self.last, self.done)
        self._act_on_alerts(inputs)

    def latest(self, layers: bool = True) -> dict[str, float]:
        """The last watched step's numbers for a logger (`WatchedStep.summary`), with those of `log_heads`; {} before
        there are any. Errors: HeadError."""
        return {} if self.last is None else self.last.summary(layers, self.options.log_heads)

    def _act_on_alerts(self, inputs: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]) -> None:
        """Keep the alerts that are new at this step, and do what was asked. `inputs`: of its passes."""
        assert self.last is not None
        rules, last = self.options.rules, self.last
        longest = max((rule.in_a_row for rule in rules), default=0)
        self._recent = [*self._recent, last][-longest:]
        if not longest:
            return
        steps, values = [one.step for one in self._recent], np.stack([one.values for one in self._recent])
        past = alerts(last.heads, last.names, steps, values, rules)
        known = {(alert.head, alert.rule.name) for alert in self.alerts}
        raised = [alert for alert in past if (alert.head, alert.rule.name) not in known]
        self.alerts += tuple(raised)
        actions = self.options.actions
        if not raised or not actions:
            return
        more = f", and {plural(len(raised) - 1, 'alert')} more" if len(raised) > 1 else ""
        done = [f"{raised[0]} ({raised[0].value:.3g}){more}"]
        if "save" in actions:
            done.append(f"the batch is in {self._save(inputs)}")
        limit = next((alert.rule.limit for alert in raised if alert.rule.name == "max_logit"), None)
        if "clip" in actions and limit is not None and self.clip is None:
            self.clip = QKClip(self.model, limit, method=self.method)
            done.append(f"scores are clipped at {limit:g} from the next step on")
        for action in actions:
            for alert in raised:
                if not isinstance(action, str):
                    action(alert)
        if "stop" in actions:
            raise AlertError(f"{'; '.join(done)}. The training was to stop there (on_alert='stop').")
        log.warning("%s", "; ".join(done))

    def _save(self, inputs: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]) -> Path:
        """Write the tensors of this step's inputs beside the file of heads. Errors: FileAccessError."""
        assert self.out is not None
        tensors: dict[str, Tensor] = {}
        for number, (args, kwargs) in enumerate(inputs):
            named = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
            # One level of what a loader hands over: a mapping, or a list, of tensors.
            for name, value in list(named.items()):
                parts = (
                    value.items()
                    if isinstance(value, Mapping)
                    else enumerate(value)
                    if isinstance(value, list | tuple)
                    else ()
                )
                named |= {f"{name}.{part}": tensor for part, tensor in parts}
            tensors |= {
                f"{number}.{name}": value.detach().cpu().clone().contiguous()
                for name, value in named.items()
                if isinstance(value, Tensor)
            }
        folder = self.out.with_name(f"{self.out.name}.alerts")
        rank = f"-rank-{own_rank()}" if _together() else ""
        path = folder / f"step-{self.done}{rank}.safetensors"
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise no_access("write", folder, error) from error
        with replacing(path) as temporary:
            Path(temporary).write_bytes(save(tensors, {"step": str(self.done)}))
        return path

    def close(self) -> None:
        """Stop watching. The model is as it was before."""
        if self._closed:
            return
        self._because, self._closed = self._tap.because, True
        self._tap.close()
        if self.clip is not None:
            self.clip.close()
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
        names = ("chosen", "every", "rows", "out", "done", "fresh", "last", "alerts", "_because", "_closed")
        state = {name: value for name, value in vars(self).items() if name in names}
        return {**state, "options": replace(self.options, on_alert=None)}  # whose functions may go into no pickle

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"every {plural(self.every, 'step')}"
        names = ", ".join(self.chosen.names)
        model = type(self.model).__name__ if hasattr(self, "model") else "read from a pickle"
        return brief(f"Watch({model}, {state}: {plural(self.done, 'step')} done; {names})")

    def _repr_html_(self) -> str:
        """A notebook's view: its line, and the heads of the step that was watched last."""
        return f"<p>{escape(repr(self))}</p>{self.last._repr_html_() if self.last is not None else ''}"

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------------ one forward pass

    def _begin_pass(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Another micro-batch: what is known of its texts, and nothing of the last one's."""
        if "save" in self.options.actions and (args or kwargs):
            self._inputs.append((args, kwargs))
        self._adds_losses = kwargs.get("num_items_in_batch") is not None
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

    def _end_pass(self, output: object) -> None:
        """Keep the loss that a pass returns: by that name, or the one number that it returns."""
        loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
        if isinstance(loss, tuple):
            numbers = [part for part in loss if isinstance(part, Tensor) and part.ndim == 0]
            loss = numbers[0] if len(numbers) == 1 else None
        if isinstance(loss, Tensor) and loss.numel() == 1 and loss.is_floating_point():
            self._losses.append(loss.detach().float().reshape(()))

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
                    f"the processes of this training saw different layers ({len(layouts)} kinds): a watch adds what "
                    f"each of them saw of the same model."
                )
            for fields in json.loads(layouts[0]) if layouts else ():  # a process without a batch learns them
                site = Site.from_dict(fields)
                self._whole_sites.setdefault(site.module, site)
            self._agreed = bool(layouts)
        return self._whole_sites

    def _over_processes(
        self, layers: Sequence[LayerNumbers], loss: float
    ) -> tuple[tuple[Tensor, Tensor, Tensor], float]:
        """Sums and maxima of all layers, one after another, over all processes: `[head, statistic]`; and the mean of
        the losses that processes know. One all-reduce."""
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
            known = num.new_tensor([0.0 if np.isnan(loss) else loss, float(not np.isnan(loss))])
            parts = (num, den, places, known)
            packed = torch.cat([part.flatten() for part in parts]).to(device)
            dist.all_reduce(packed)
            num, den, places, known = (
                part.view(like.shape)
                for part, like in zip(packed.cpu().split([part.numel() for part in parts]), parts, strict=True)
            )
            top[:, of_maximum] = places.amax(0)
            loss = float(known[0] / known[1])
        return (num, den, top), loss


def watch(
    model: nn.Module,
    *,
    every: int = 50,
    statistics: Sequence[str] = DEFAULT,
    rows: int | None = None,
    out: str | os.PathLike[str] | None = None,
    step: int = 0,
    method: str = "",
    logger: Logger | None = None,
    log_heads: HeadsLike = (),
    pictures: bool = False,
    on_alert: Action | Sequence[Action] | None = None,
    limits: Mapping[str, float] | None = None,
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
    - `logger`: TensorBoard's `SummaryWriter`, `wandb` or `trackio`: what `latest()` returns is logged by itself.
    - `log_heads`: heads that are also logged one by one, as `heads/L3H5/entropy`: ["L3H5"], "L3H0-5".
      A head that the model does not have is a HeadError at the first watched step.
    - `pictures`: whether a histogram of all heads and a grid of them, a row a layer, are logged for each statistic.
    - `on_alert`: what to do where a head first crosses a limit: "stop" (`step()` raises AlertError), "clip" (hold max
      logits by `QKClip` from then on), "save" (the step's batch, as safetensors in `OUT.alerts/`), a function of the
      `HeadAlert`, or a list of these.
    - `limits`: of alerts, in place of their own: {"max_logit": 50}. Alerts: `manyheads.watching.RULES`.
    - `unseen`: where no layer's attention can be read, or what was read is not what a layer computed: "raise" an error,
      or "warn" once and go on without it; layers keep their numbers.

    Weights are those before dropout. Means are over the tokens that the step trained on; padding is left out, and texts
    that are packed are texts of their own.
    Cost: see docs/howto/watch-training.md. Errors: PlanError, StatisticError, HeadError, ModelError, GuardError.
    """
    options = WatchOptions(every, statistics, rows, out, log_heads, pictures, on_alert, limits, unseen)
    return Watch(model, options, step, method, logger)


class WatchCallback:
    """What the callbacks of all trainers share: options, checked when they are given, and the life of a watch.

    - `every`: watch the first step and each multiple of it.
    - `statistics`: as in `watch`.
    - `rows`: read so many rows of each text; None: all.
    - `out`: where each head's numbers are kept.
    - `layers`: whether each layer is logged as well.
    - `qk_clip`: the largest logit allowed, held from the first step on.
    - `log_heads`: heads that are logged one by one as well.
    - `pictures`: whether histograms and grids are logged.
    - `on_alert`: what to do where a head crosses a limit, as in `watch`.
    - `limits`: of alerts, in place of their own.
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
        log_heads: HeadsLike = (),
        pictures: bool = False,
        on_alert: Action | Sequence[Action] | None = None,
        limits: Mapping[str, float] | None = None,
        unseen: Unseen = "raise",
    ) -> None:
        self.options = WatchOptions(every, statistics, rows, out, log_heads, pictures, on_alert, limits, unseen)
        if qk_clip is not None:
            require_limit(qk_clip)
            if "clip" in self.options.actions:
                raise PlanError("qk_clip= clips from the first step on: leave on_alert='clip' out, or qk_clip=.")
        self.layers, self.tau = layers, qk_clip
        self.watch: Watch | None = None
        self.clip: QKClip | None = None
        self.stopped_by: AlertError | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the options alone: a model that is copied while it is watched takes no watch with it either."""
        return {**vars(self), "watch": None, "clip": None}

    def open(self, model: nn.Module, step: int, method: str = "") -> None:
        """A training begins, after `step` steps. What an earlier one left open is closed."""
        self.close()
        self.stopped_by = None
        self.watch = Watch(model, self.options, step, method)
        try:
            self.clip = None if self.tau is None else QKClip(model, self.tau, method=method)
        except BaseException:
            self.close()
            raise
        log.info("heads are %s", self.watch.because)

    def step(self) -> dict[str, float]:
        """A step of the optimizer is over: the numbers to be logged, {} where it was not watched. `stopped_by` is then
        the alert that is to stop the training."""
        if self.watch is None:
            return {}
        clipped = None if self.clip is None else self.clip.step()
        try:
            self.watch.step()
        except AlertError as error:
            self.stopped_by = error
            log.warning("%s", error)
        if not self.watch.fresh:
            return {}
        clipped = clipped or self.watch.clipped
        counted = {} if clipped is None else {"heads/clipped": float(len(clipped.clipped))}
        return self.watch.latest(self.layers) | counted

    def close(self) -> None:
        """Stop watching. The model is as it was before."""
        for part in (self.watch, self.clip):
            if part is not None:
                part.close()
        self.watch = self.clip = None


def _together() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
