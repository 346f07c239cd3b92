"""A watch in the loops that people train with: transformers' Trainer, Lightning, adapters, several processes."""

import copy
import json
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.integrations import TensorBoardCallback

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError, StatisticError
from manyheads.watching import open_history
from tests.models.eager import draw
from tests.models.tiny import VOCAB_SIZE, tiny_gpt2, tiny_llama

NAMES = ["max_logit", "entropy", "first_mass"]


def rows(fresh, count, length=9):
    ids = torch.randint(5, VOCAB_SIZE, (count, length), generator=fresh)
    return [{"input_ids": row, "labels": row} for row in ids]


# ------------------------------------------------------------------------------------------------ transformers' Trainer


class Reporter(TrainerCallback):
    """What W&B's, TensorBoard's or trackio's callback gets to log."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **_):
        self.logs.append((state.global_step, dict(logs)))


def fitted(model, data, folder, *callbacks, **options):
    arguments = {
        "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 5, "report_to": "none",
    }  # fmt: skip
    arguments |= {"logging_steps": 1000, "save_strategy": "no", "use_cpu": True, "disable_tqdm": True, "seed": 7}
    trainer = Trainer(
        model, TrainingArguments(str(folder), **{**arguments, **options}), train_dataset=data, callbacks=list(callbacks)
    )
    trainer.train()
    return trainer


def test_a_trainer_logs_all_heads_and_each_layer_and_the_file_has_each_head(fresh, tmp_path):
    seed, data = draw(fresh), rows(fresh, 20)
    plain = fitted(tiny_llama(seed=seed), data, tmp_path)
    watcher, reporter = mh.HeadWatch(every=2, statistics=NAMES, out=tmp_path / "heads.parquet"), Reporter()
    # The reporter stands before the watch, as those of transformers do.
    trainer = fitted(tiny_llama(seed=seed), data, tmp_path, reporter, watcher)
    for one, other in zip(plain.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(one, other)
    logged = [(step, logs) for step, logs in reporter.logs if "heads/max_logit.max" in logs]
    assert [step for step, _ in logged] == [1, 2, 4]
    assert {"heads/L2/entropy.min", "heads/sink_heads"} <= set(logged[0][1])
    in_state = [entry for entry in trainer.state.log_history if "heads/max_logit.max" in entry]
    assert [entry["step"] for entry in in_state] == [1, 2, 4]
    frame = pd.read_parquet(tmp_path / "heads.parquet")
    assert len(frame) == 3 * 18 and set(NAMES) <= set(frame.columns)
    assert frame[frame.step == 4].max_logit.max() == pytest.approx(logged[-1][1]["heads/max_logit.max"])
    assert watcher.watch is None and not trainer.model._forward_hooks
    # Another training would write over the steps of this one.
    with pytest.raises(FileAccessError, match=r"holds the steps 1 to 4 of an earlier training: give another path"):
        fitted(tiny_llama(seed=seed), data, tmp_path, mh.HeadWatch(out=tmp_path / "heads.parquet"))


class Board(TensorBoardCallback):
    """transformers' callback for TensorBoard, with a writer that keeps what it gets."""

    def __init__(self):  # which else needs TensorBoard
        self.images, self.tb_writer = (
            [],
            SimpleNamespace(
                add_scalar=lambda *_: None,
                add_histogram=lambda *_: None,
                add_image=lambda tag, image, step, dataformats: self.images.append((tag, step)),
            ),
        )

    def on_train_begin(self, args, state, control, **_): ...

    def on_log(self, args, state, control, logs=None, **_): ...

    def on_train_end(self, args, state, control, **_): ...


def test_a_trainer_logs_single_heads_and_pictures_keeps_its_loss_and_stops_at_an_alert(fresh, tmp_path):
    out, board, reporter = tmp_path / "heads.parquet", Board(), Reporter()
    options = {"statistics": ["max_logit"], "log_heads": "L1H4", "pictures": True, "layers": False}
    watcher = mh.HeadWatch(every=1, out=out, on_alert="stop", limits={"max_logit": -1e9}, **options)
    trainer = fitted(tiny_llama(seed=draw(fresh)), rows(fresh, 20), tmp_path, board, reporter, watcher, logging_steps=1)
    assert trainer.state.global_step == 1 and "max logit went over -1e+09 at step 1" in str(watcher.stopped_by)
    assert watcher.watch is None and board.images == [("heads/max_logit.grid", 1)]
    (numbers,) = [logs for _, logs in reporter.logs if "heads/max_logit.max" in logs]
    curves = open_history(out)
    assert numbers["heads/L1H4/max_logit"] == curves.of("L1H4")[0, 0] and len(numbers) == 2
    (loss,) = [logs["loss"] for _, logs in reporter.logs if "loss" in logs]
    assert curves.loss.tolist() == [pytest.approx(loss, abs=1e-4)]  # of both micro-batches, as the Trainer has it


@pytest.mark.slow
def test_a_trainer_keeps_logits_in_bounds(fresh, tmp_path):
    model, data = tiny_llama(seed=draw(fresh)), rows(fresh, 20)
    with mh.watch(model, every=1, statistics=["max_logit"]) as seen:
        model(torch.stack([row["input_ids"] for row in data]))
        seen.step()
    tau = float(np.median(seen.last["max_logit"]))
    assert tau > 0
    watcher = mh.HeadWatch(every=1, statistics=["max_logit"], qk_clip=tau)
    fitted(model, data, tmp_path, watcher, learning_rate=1e-9)
    with mh.watch(model, statistics=["max_logit"]) as seen:
        model(torch.stack([row["input_ids"] for row in data]))
        seen.step()
    first_layer = seen.last["max_logit"][:6]  # later ones read what the clip of this one changed
    assert first_layer.max() <= tau * 1.001


# ------------------------------------------------------------------------------------------------------------ Lightning

# What Lightning itself warns of: deprecations of torch's, a loader's one process, a net in evaluation mode.
quiet = pytest.mark.filterwarnings("ignore")
peft_warns = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft 0.21


class Failure(Exception):
    pass


@pytest.fixture(scope="module")
def lightning():
    """Lightning, a module around a net, and a short training; seconds to import, so not with this file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning as L

        import manyheads.lightning

    class Trained(L.LightningModule):
        def __init__(self, net, fails_at=None, rate=0.01):
            super().__init__()
            self.net, self.fails_at, self.rate, self.calls = net, fails_at, rate, 0

        def training_step(self, inputs, index):
            if index == self.fails_at:
                raise Failure
            self.calls += 1
            return self.net(input_ids=inputs, labels=inputs).loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.rate)

    class Logger(L.pytorch.loggers.logger.DummyLogger):
        def __init__(self):
            super().__init__()
            self.logged = []

        def log_metrics(self, metrics, step=None):
            self.logged.append((step, dict(metrics)))

    def fit(module, ids, *callbacks, steps=5, logger=False, **options):
        off = {f"enable_{what}": False for what in ("checkpointing", "progress_bar", "model_summary")} | options
        trainer = L.Trainer(
            max_steps=steps, accelerator="cpu", devices=1, logger=logger, callbacks=list(callbacks), **off
        )
        trainer.fit(module, torch.utils.data.DataLoader(ids, batch_size=2))
        return module

    return SimpleNamespace(L=L, HeadWatch=manyheads.lightning.HeadWatch, Trained=Trained, Logger=Logger, fit=fit)


def ids_of(fresh, count=24, length=9):
    return torch.randint(5, VOCAB_SIZE, (count, length), generator=fresh)


@quiet
@pytest.mark.slow  # Lightning takes seconds to import
def test_lightning_logs_watched_steps_of_the_same_training_compiled_or_not(fresh, tmp_path, lightning):
    seed, ids, out = draw(fresh), ids_of(fresh), tmp_path / "heads.parquet"
    plain = lightning.fit(lightning.Trained(tiny_llama(seed=seed)), ids, accumulate_grad_batches=2)
    logger, watcher = lightning.Logger(), lightning.HeadWatch(every=2, statistics=NAMES, out=out)
    module = lightning.Trained(tiny_llama(seed=seed))
    lightning.fit(module, ids, watcher, logger=logger, accumulate_grad_batches=2)
    for one, other in zip(plain.parameters(), module.parameters(), strict=True):
        assert torch.equal(one, other)
    logged = {step: logs for step, logs in logger.logged if "heads/max_logit.max" in logs}
    assert list(logged) == [1, 2, 4]  # steps of the optimizer, not batches
    curves = open_history(out)
    assert curves.steps.tolist() == [1, 2, 4]
    model = tiny_llama(seed=seed)
    with mh.watch(model, statistics=NAMES) as seen:  # the oracle: both micro-batches, in any loop
        for part in (ids[:2], ids[2:4]):
            model(part)
        seen.step()
    np.testing.assert_allclose(curves.values[0], seen.last.values, atol=1e-6)
    assert not {"training_step", "forward"} & set(vars(module)) and watcher.watch is None
    # Compiled, the net is probed: by itself, so that the module's own step runs once.
    compiled, probed = lightning.Trained(torch.compile(tiny_llama(seed=seed), backend="eager")), lightning.Logger()
    lightning.fit(compiled, ids, lightning.HeadWatch(every=2, statistics=NAMES), logger=probed)
    direct = lightning.Logger()
    lightning.fit(lightning.Trained(tiny_llama(seed=seed)), ids, lightning.HeadWatch(2, NAMES), logger=direct)
    assert compiled.calls == 5
    probed, direct = ([logs for _, logs in by.logged if "heads/max_logit.max" in logs] for by in (probed, direct))
    assert len(probed) == len(direct) == 3
    for one, other in zip(probed, direct, strict=True):
        assert {**one, "epoch": 0} == pytest.approx({**other, "epoch": 0}, rel=1e-3, abs=1e-3)


@quiet
@pytest.mark.slow  # Lightning takes seconds to import
def test_lightning_keeps_logits_in_bounds_and_an_error_leaves_the_module_as_it_was(fresh, lightning):
    model, ids = tiny_llama(seed=draw(fresh)), ids_of(fresh)
    module = lightning.Trained(model, fails_at=3, rate=0.0)
    watcher, maxima = lightning.HeadWatch(every=1, statistics=["max_logit"], qk_clip=2.0), []

    class Reader(lightning.L.Callback):
        def on_train_batch_end(self, *_):
            maxima.append(watcher.watch.last["max_logit"].max())

    with pytest.raises(Failure):
        lightning.fit(module, ids[:2].repeat(8, 1), watcher, Reader())
    assert len(maxima) == 3 and maxima[0] > 2
    with mh.watch(model, statistics=["max_logit"]) as seen:
        model(ids[:2])
        seen.step()
    assert seen.last["max_logit"][:6].max() <= 2 * (1 + 1e-5)  # later layers read what the last clip changed
    assert "training_step" not in vars(module) and not module._forward_hooks and not module._forward_pre_hooks
    assert watcher.watch is None and watcher.clip is None


@quiet
@pytest.mark.slow  # Lightning takes seconds to import
def test_lightnings_callback_metrics_have_the_heads_and_an_alert_stops_it(fresh, tmp_path, lightning):
    """What ModelCheckpoint and EarlyStopping monitor; and the loss that `training_step` returns."""
    ids, seen = ids_of(fresh), []

    class Reader(lightning.L.Callback):
        def on_train_batch_start(self, trainer, *_):  # after the batch before
            seen.append(dict(trainer.callback_metrics))

        def on_train_end(self, trainer, *_):
            seen.append(dict(trainer.callback_metrics))

    names = {"statistics": ["max_logit"], "log_heads": ["L2H3"], "out": tmp_path / "heads"}
    checkpoint = lightning.L.pytorch.callbacks.ModelCheckpoint(
        tmp_path, monitor="heads/L2H3/max_logit", mode="max", every_n_train_steps=1, save_top_k=1
    )
    watcher = lightning.HeadWatch(every=1, **names)
    lightning.fit(
        lightning.Trained(tiny_llama(seed=draw(fresh))),
        ids,
        watcher,
        Reader(),
        checkpoint,
        steps=3,
        enable_checkpointing=True,
    )
    curves = open_history(tmp_path / "heads")
    heads = curves.of("L2H3")[:, 0]
    for step, metrics in enumerate(seen[1:]):
        assert float(metrics["heads/L2H3/max_logit"]) == pytest.approx(heads[step], rel=1e-6)
        assert float(metrics["heads/max_logit.max"]) == pytest.approx(curves.values[step].max(), rel=1e-6)
    assert float(checkpoint.best_model_score) == pytest.approx(heads.max(), rel=1e-6)
    assert np.isfinite(curves.loss).all() and curves.loss.min() > 1  # nats of some thirty words
    stopping = lightning.HeadWatch(every=2, statistics=["max_logit"], on_alert="stop", limits={"max_logit": -1e9})
    module = lightning.Trained(tiny_llama(seed=draw(fresh)))
    lightning.fit(module, ids, stopping, steps=5)
    assert module.calls == 1 and stopping.stopped_by is not None and stopping.watch is None


@quiet
@pytest.mark.slow  # Lightning takes seconds to import
def test_a_lightning_module_compiled_as_a_whole_is_refused(fresh, lightning):
    module = torch.compile(lightning.Trained(tiny_llama(seed=draw(fresh))), backend="eager")
    with pytest.raises(ModelError, match=r"Trained is compiled as a whole.*: compile the net in it"):
        lightning.fit(module, ids_of(fresh), lightning.HeadWatch())


# ------------------------------------------------------------------------------------------------------------- adapters


@peft_warns
@pytest.mark.parametrize(
    ("make", "targets", "how"),
    [
        (tiny_llama, ["q_proj", "v_proj"], {}),
        (tiny_llama, ["q_proj", "o_proj"], {"use_dora": True}),
        (tiny_gpt2, ["c_attn", "attn.c_proj"], {"fan_in_fan_out": True}),
    ],
    ids=("q and v", "DoRA", "GPT-2"),
)
def test_numbers_are_those_of_the_model_with_its_adapters(make, targets, how, fresh):
    from peft import LoraConfig, get_peft_model

    seed, ids = draw(fresh), ids_of(fresh, 4)
    names = [*NAMES, "q_norm", "k_norm", "output_share"]

    def adapted(dropout):
        config = LoraConfig(r=2, lora_alpha=8, target_modules=targets, lora_dropout=dropout, **how)
        model = get_peft_model(make(seed=seed), config)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model.eval()

    def watched(model):
        with mh.watch(model, statistics=names) as seen:
            model(input_ids=ids)
            seen.step()
        return seen.last.values

    model = adapted(0.2)
    values, bare = watched(model), watched(make(seed=seed))
    merged = watched(copy.deepcopy(model).merge_and_unload())
    np.testing.assert_allclose(values, merged, rtol=1e-4, atol=2e-5)
    for name in ("max_logit", "output_share"):
        assert np.abs(values - bare)[:, names.index(name)].max() > 0.01, f"the adapter changes no {name}"
    # The adapter's own dropout: the training is the same with a watch, whatever is read of the adapter.
    losses = []
    for watching in (True, False):
        torch.manual_seed(seed)
        model.train()
        with mh.watch(model, statistics=names) if watching else nullcontext():
            losses.append(model(input_ids=ids, labels=ids).loss)
        assert all(module.training for module in model.modules())
    assert torch.equal(*losses)


# ---------------------------------------------------------------------------------------------------- several processes


def processes(rank: int, meet: Path, seed: int, out: Path) -> None:
    """Two processes, half of the texts each: DDP, FSDP2, and heads divided by tensor parallelism."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    fresh = torch.Generator().manual_seed(seed)
    whole, ids = tiny_llama(seed=seed), torch.randint(5, VOCAB_SIZE, (6, 11), generator=fresh)
    mine = {"input_ids": ids[:4] if rank == 0 else ids[4:]}
    mesh = init_device_mesh("cpu", (2,))
    results: dict[str, Any] = {}

    calls: list[Any] = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda *args, **kwargs: calls.append(args) or all_reduce(*args, **kwargs)

    def one_step(model: Any, watched: Any, inputs: dict[str, Any], **how: Any) -> Any:
        with mh.watch(watched, every=1, statistics=NAMES, **how) as seen:
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            calls.clear()
            seen.step()
            results.setdefault("all-reduces", []).append(len(calls))
        return seen.last

    ddp = DistributedDataParallel(copy.deepcopy(whole))
    results["ddp"] = one_step(ddp, ddp, mine, out=out / "heads.parquet").values.tolist()
    sharded = copy.deepcopy(whole)
    for layer in sharded.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    results["fsdp2"] = one_step(sharded, sharded, mine).values.tolist()
    # Of another number of key/value heads, since two processes share them.
    divided = tiny_llama(2, seed=seed, num_attention_heads=6)
    results["whole of tp"] = None
    plan = {
        **{f"model.layers.*.self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
        "model.layers.*.self_attn.o_proj": RowwiseParallel(),
    }
    alone = copy.deepcopy(divided)
    parallelize_module(divided, mesh, plan)
    last = one_step(divided, divided, {"input_ids": ids})
    results["tp"], results["tp heads"] = last.values.tolist(), [str(head) for head in last.heads]
    try:
        with mh.watch(divided, statistics=["output_share"]) as seen:
            divided(ids)
            seen.step()
    except StatisticError as error:
        results["tp refused"] = str(error)
    try:
        unlike = tiny_llama(seed=seed, num_hidden_layers=2 + rank)
        one_step(unlike, unlike, mine)
    except ModelError as error:
        results["unlike"] = str(error)
    dist.destroy_process_group()
    results["alone of tp"] = one_step(alone, alone, {"input_ids": ids}).values.tolist()
    (out / f"{rank}.json").write_text(json.dumps(results))


@pytest.mark.slow  # 20 seconds
def test_two_processes_together_say_what_one_says(fresh, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])  # spawned processes import this file by its name
    seed = draw(fresh)
    mp.spawn(processes, (tmp_path / "meet", seed, tmp_path), nprocs=2)
    model = tiny_llama(seed=seed)
    ids = torch.randint(5, VOCAB_SIZE, (6, 11), generator=torch.Generator().manual_seed(seed))
    with mh.watch(model, statistics=NAMES) as seen:
        model(ids)
        seen.step()
    for rank in (0, 1):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        for way in ("ddp", "fsdp2"):
            np.testing.assert_allclose(results[way], seen.last.values, atol=1e-6, err_msg=way)
        np.testing.assert_allclose(results["tp"], results["alone of tp"], atol=1e-5)
        assert len(results["tp heads"]) == 18
        assert results["all-reduces"] == [1, 1, 1, 0], "DDP, FSDP2, tensor parallelism; and alone, none"
        assert "output_share compares a layer's heads" in results["tp refused"]
        assert "saw unlike layers" in results["unlike"]
    curves = open_history(tmp_path / "heads.parquet")
    np.testing.assert_allclose(curves.values[0], seen.last.values, atol=1e-6)
