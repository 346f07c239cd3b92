"""What vLLM-Hook's worker writes is read as q and k of every head.

The files are written here by torch and safetensors alone, as its worker does (commit 631b0f9), from the q and k of a
model whose eager maps are the oracle.
"""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import manyheads as mh
from manyheads.compat import read_vllm_hook
from manyheads.errors import FileAccessError, RecordingError
from tests.models.eager import eager_maps
from tests.models.tiny import tiny_llama
from tests.refusals import refuses

LENGTHS = [9, 6]


@pytest.fixture(scope="module")
def run():
    """A model, its ids, its q and k `[text, position, heads * d]` by layer, and its config as the worker has it."""
    model = tiny_llama()
    ids = torch.randint(5, 40, (2, max(LENGTHS)), generator=torch.Generator().manual_seed(3))
    rec = mh.record_call(model, input_ids=ids)
    flat = [tuple(x.transpose(1, 2).flatten(2) for x in (layer.q, layer.k)) for layer in rec.layers]
    c = model.config
    config = {
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "hidden_size": c.hidden_size,
        "head_dim": c.hidden_size // c.num_attention_heads,
        "attention_multiplier": (c.hidden_size // c.num_attention_heads) ** -0.5,
    }
    return model, ids, flat, config


def write(folder, run, ranks=1, mode="all_tokens", kind="safetensors", **changes):
    _, _, flat, config = run
    for rank in range(ranks):
        to = folder / f"tp_rank_{rank}"
        to.mkdir(parents=True)
        cache, tensors, order = {}, {}, []
        for number, parts in enumerate(flat):
            q, k = (part.chunk(ranks, -1)[rank] for part in parts)
            name = f"model.layers.{number}.self_attn.attn"
            keys = [k[text, :length].clone() for text, length in enumerate(LENGTHS)]
            queries = [q[text, :length].clone() for text, length in enumerate(LENGTHS)]
            queries = queries if mode == "all_tokens" else [query[-1] for query in queries]
            cache[name] = {"q": queries, "k_all": keys, "layer_num": number}
            place = name.replace(".", "__")
            pad = torch.nn.utils.rnn.pad_sequence
            tensors[f"{place}__q"] = pad(queries, batch_first=True) if mode == "all_tokens" else torch.stack(queries)
            tensors[f"{place}__k"] = pad(keys, batch_first=True)
            order.append({"key_q": f"{place}__q", "key_k": f"{place}__k", "module_name": name, "layer_num": number})
        about = {"config": config, "layer_order": order, "batch_size": 2, "hookq_mode": mode, "tp_rank": rank}
        if kind == "pt":
            torch.save({"config": config, "qk_cache": cache}, to / "qk.pt")
        else:
            save_file(tensors, to / "qk.safetensors")
            (to / "qk.json").write_text(json.dumps(about | {"seq_lens": LENGTHS} | changes))
    return folder


@pytest.mark.parametrize("ranks", [1, 2])
def test_maps_of_a_saved_run_are_the_models(run, tmp_path, ranks):
    model, ids, _, _ = run
    recording = read_vllm_hook(write(tmp_path / "run", run, ranks=ranks))
    for text, length in enumerate(LENGTHS):
        maps = eager_maps(model, input_ids=ids[text : text + 1, :length])
        for layer, want in zip(recording.layers, maps, strict=True):
            assert layer.site.module == f"model.layers.{layer.site.layer}.self_attn.attn"
            assert np.abs(layer.weights(text=text).numpy() - want[0].numpy()).max() < 1e-5


def test_of_last_tokens_the_last_rows_are_read(run, tmp_path):
    model, ids, _, _ = run
    recording = read_vllm_hook(write(tmp_path / "run", run, mode="last_token"))
    for text, length in enumerate(LENGTHS):
        want = eager_maps(model, input_ids=ids[text : text + 1, :length])[1][0, :, -1]
        got = recording.layers[1].weights(text=text)[:, 0]
        assert np.abs(got[:, :length].numpy() - want.numpy()).max() < 1e-5
        assert not got[:, length:].any()


def test_a_width_that_the_worker_got_wrong_is_corrected(run, tmp_path):
    _, _, flat, config = run
    heads = config["num_attention_heads"]
    wrong = config | {
        "hidden_size": 2 * config["hidden_size"]
    }  # as of a model whose heads are half as wide as that says
    guess = (wrong["hidden_size"] // heads) ** -0.5
    folder = write(tmp_path / "run", run, config=wrong | {"attention_multiplier": guess})
    head_dim = flat[0][0].shape[-1] // heads
    assert read_vllm_hook(folder).layers[0].rule.scale == head_dim**-0.5
    own = write(tmp_path / "own", run, config=wrong | {"attention_multiplier": 0.3})
    assert read_vllm_hook(own).layers[0].rule.scale == 0.3
    assert read_vllm_hook(own, scale=0.2).layers[0].rule.scale == 0.2


def test_windows_are_said(run, tmp_path):
    recording = read_vllm_hook(write(tmp_path / "run", run), window={1: 3})
    maps = [layer.weights(text=0) for layer in recording.layers]
    assert maps[0][:, -1, 0].all() and not maps[1][:, -1, :-3].any() and maps[1][:, -1, -3:].all()


def test_what_is_no_run_is_refused(run, tmp_path):
    with pytest.raises(FileAccessError, match="is not a folder: give the run's, which has tp_rank_0 in it"):
        read_vllm_hook(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordingError, match="should have tp_rank_0, tp_rank_1, ... and has nothing"):
        read_vllm_hook(tmp_path / "empty")
    folder = write(tmp_path / "half", run, ranks=2)
    (folder / "tp_rank_0").rename(tmp_path / "aside")
    refuses(RecordingError, "and has tp_rank_1: give the run's folder", read_vllm_hook, folder)
    with pytest.raises(RecordingError, match="went on generating: save a run of prompts alone"):
        read_vllm_hook(write(tmp_path / "on", run, seq_lens=[9, 6, 1, 1]))
    for damage in ("{", "[]", '{"config": {}, "layer_order": []}', "[" * 100_000):
        folder = write(tmp_path / f"damaged{len(damage)}", run)
        (folder / "tp_rank_0" / "qk.json").write_text(damage)
        refuses(RecordingError, "is not what vLLM-Hook writes, or is damaged", read_vllm_hook, folder)
    folder = write(tmp_path / "pickle", run, kind="pt")
    with pytest.raises(RecordingError, match="is a pickle, which may run anything .* VLLM_HOOK_USE_SAFETENSORS=1"):
        read_vllm_hook(folder)
    (folder / "tp_rank_0" / "qk.pt").unlink()
    refuses(FileAccessError, "lacks qk.json: it is not a rank's folder from a run", read_vllm_hook, folder)
