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

from manyheads.watching.training_steps import WatchCallback


class HeadWatch(WatchCallback, TrainerCallback):
    """Watches every head while a Trainer trains: `Trainer(..., callbacks=[mh.HeadWatch(every=50, out="heads")])`.

    Numbers over all heads and over each layer's go to whatever the Trainer reports to (W&B, TensorBoard, trackio ...)
    and into `trainer.state.log_history`, at each watched step; not to the terminal, which they would fill. Each head's
    go to `out`. `every`, `statistics`, `rows`, `out`, `unseen`: as in `watch`. `layers`: whether layers are logged,
    too. `qk_clip`: the largest logit allowed, held by `QKClip` after each step (its `alpha` is 0.5).

    `.watch` is the open watch. After an error in the training, `close()` (the next training does it, too).
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

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        self.close()
