"""`HeadWatch` for Lightning: `L.Trainer(callbacks=[manyheads.lightning.HeadWatch(every=50)])`. Extra: `lightning`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from manyheads import private_names
from manyheads.errors import ModelError
from manyheads.watching import Logger, WatchCallback, log_pictures

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    try:
        from lightning.pytorch import Callback, LightningModule, Trainer
    except ImportError:
        try:  # the same library under its older name
            from pytorch_lightning import Callback, LightningModule, Trainer
        except ImportError as error:
            raise ImportError('this needs Lightning: pip install "manyheads[lightning]"') from error


class HeadWatch(WatchCallback, Callback):
    """Watches every head while Lightning trains.

    Numbers over all heads, over each layer's and of `log_heads` go to every logger of the Trainer at each watched step,
    and into `trainer.callback_metrics`, which checkpoints and early stopping monitor; each head's go to `out`, and
    `pictures` to TensorBoard and W&B. `every`, `statistics`, `rows`, `out`, `log_heads`, `pictures`, `on_alert`,
    `limits`, `unseen`: as in `watch`; an alert that is to stop the training sets `trainer.should_stop` (`stopped_by`
    says why). `layers`: whether layers are logged as well. `qk_clip`: the largest logit allowed, held by `QKClip` after
    each step of the optimizer. `.watch` is the open watch.

    Passes are the calls of `training_step`. In a module with a compiled part, that part is watched, by a probe.
    Errors: as `watch`; ModelError where several parts are compiled, or the module itself.
    """

    _steps = 0  # the optimizer's, so far

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        compiled = [module for module in pl_module.modules() if private_names.is_compiled(module)]
        if private_names.is_compiled_as_whole(pl_module):
            raise ModelError(
                f"{type(pl_module).__name__} is compiled as a whole, and a probe would log each step twice: compile "
                f"the net in it, as self.net = torch.compile(net)."
            )
        if len(compiled) > 1:
            raise ModelError(
                f"{len(compiled)} parts of {type(pl_module).__name__} are compiled, and only one can be probed: "
                f"compile the whole net, or none of it."
            )
        # training_step logs, and a probe would run it once more: what is probed is the net in it.
        model: nn.Module = compiled[0] if compiled else pl_module
        method = "" if compiled else "training_step"
        self._steps = trainer.global_step
        self.open(model, self._steps, method)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: object) -> None:
        if self.watch is None or trainer.global_step == self._steps:  # gradients are still being accumulated
            return
        self._steps = trainer.global_step
        if numbers := self.step():
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)
                run = getattr(logger, "experiment", None) if self.options.pictures and trainer.is_global_zero else None
                if self.watch is not None and self.watch.last is not None and isinstance(run, Logger):
                    # Its W&B logger counts steps under this name.
                    log_pictures(run, self.watch.last, trainer.global_step, counter="trainer/global_step")
            # For what reads `trainer.callback_metrics`: ModelCheckpoint(monitor="heads/max_logit.max"), EarlyStopping.
            pl_module.log_dict(numbers, on_step=True, on_epoch=False, logger=False)
        if self.stopped_by is not None:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.close()
