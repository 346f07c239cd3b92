"""`HeadWatch` for transformers' Trainer, and for TRL's, which are Trainers: a watch as one entry of `callbacks`."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn
from transformers import (
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback, TrackioCallback, WandbCallback

from manyheads.watching.loggers import Logger, log_pictures
from manyheads.watching.training_steps import WatchCallback


class HeadWatch(WatchCallback, TrainerCallback):
    """Watches every head while a Trainer trains: `Trainer(..., callbacks=[mh.HeadWatch(every=50, out="heads")])`.

    Numbers over all heads and over each layer's go to whatever the Trainer reports to (W&B, TensorBoard, trackio ...)
    and into `trainer.state.log_history`, at each watched step; not to the terminal, which they would fill. Each head's
    go to `out`, those of `log_heads` also to the reporters, and `pictures` to TensorBoard, W&B and trackio. `every`,
    `statistics`, `rows`, `out`, `log_heads`, `pictures`, `on_alert`, `limits`, `unseen`: as in `watch`; an alert that
    is to stop the training ends it after that step, as `should_training_stop` does (`stopped_by` says why). `layers`:
    whether layers are logged as well. `qk_clip`: the largest logit allowed, held by `QKClip` after each step (its
    `alpha` is 0.5).

    `.watch` is the open watch. After an error in the training, `close()` (the next training also does this).
    """

    _trainer: Trainer | None = None  # whose reporters get the numbers

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: nn.Module | None = None,
        **_: object,
    ) -> None:
        assert model is not None, "a Trainer trains a model"
        # The Trainer that is calling: it hands callbacks its model, but neither itself nor its reporters.
        frame = sys._getframe(1)
        while frame is not None and not isinstance(frame.f_locals.get("self"), Trainer):
            frame = frame.f_back
        self._trainer = None if frame is None else frame.f_locals["self"]
        # A Trainer that compiles, or shards, calls a model around its own: the passes are that one's.
        wrapped = None if self._trainer is None else self._trainer.model_wrapped
        self.open(model if wrapped is None else wrapped, state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if numbers := self.step():
            state.log_history.append({**numbers, "epoch": state.epoch, "step": state.global_step})
            # Not by `on_log`, which comes to callbacks given by the user after those that report. Nor to the callbacks
            # that print: hundreds of numbers would fill the terminal.
            handler = None if self._trainer is None else self._trainer.callback_handler
            for callback in () if handler is None else handler.callbacks:
                if callback is not self and not isinstance(callback, PrinterCallback | ProgressCallback):
                    callback.on_log(args, state, control, logs=dict(numbers), **kwargs)
                if self.options.pictures and state.is_world_process_zero:
                    self._log_pictures(callback, state.global_step)
        if self.stopped_by is not None:
            control.should_training_stop = True

    def _log_pictures(self, callback: TrainerCallback, step: int) -> None:
        """Hand the step's pictures to one of the callbacks that report."""
        watched = None if self.watch is None else self.watch.last
        logger: object = None
        if isinstance(callback, TensorBoardCallback):
            logger = callback.tb_writer
        elif isinstance(callback, WandbCallback | TrackioCallback):
            logger = sys.modules.get("wandb" if isinstance(callback, WandbCallback) else "trackio")
        if watched is not None and isinstance(logger, Logger):
            # Their callbacks log steps under this name, and let W&B and trackio count their own.
            log_pictures(logger, watched, step, counter="train/global_step")

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.close()
