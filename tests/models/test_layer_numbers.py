"""A head's layer is the model's own layer: gaps where layers do not attend, in everything that names heads."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from torch import nn
from transformers.models.mllama.configuration_mllama import MllamaTextConfig
from transformers.models.mllama.modeling_mllama import MllamaTextModel

import manyheads as mh
from manyheads.compat import transformer_lens
from manyheads.edits.edits import Acts
from manyheads.errors import HeadError, ModelError, PlanError
from manyheads.long_context import FORMATS
from manyheads.measurement import measure_call
from manyheads.measurement.of_a_recording import measure_recording
from manyheads.models import tap
from manyheads.nn import MultiHeadAttention
from manyheads.recording import Recording
from manyheads.recording.file.format import FORMAT, FORMAT_VERSION, save_recording
from manyheads.recording.file.safetensors_io import TensorFile
from manyheads.spec import Layers, ModelSpec, Site, counted_layers
from manyheads.watching import open_history
from manyheads.watching.history import HeadHistory
from tests.models import eager
from tests.refusals import refuses

VOCABULARY = 101
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 56, "num_attention_heads": 6}
GROUPED = {**SIZES, "num_key_value_heads": 3}
IDS = {"input_ids": torch.arange(5, 18)[None]}
ATTENDING = [1, 3, 4]  # of the six layers of `lfm2`
PLACES = {"duo": "a folder", "lukv": "list.npy", **dict.fromkeys(FORMATS[3:], "list.json"), "headkv": "list.json"}


def lfm2(fresh, model_class=transformers.Lfm2ForCausalLM):
    """Convolutions in layers 0, 2 and 5."""
    kinds = ["full_attention" if number in ATTENDING else "conv" for number in range(6)]
    torch.manual_seed(int(torch.randint(1 << 30, (1,), generator=fresh)))
    config = transformers.Lfm2Config(**GROUPED, num_hidden_layers=6, layer_types=kinds, max_position_embeddings=256)
    return model_class(config).eval()


def loaded(fresh):
    return mh.load(lfm2(fresh), tokenizer=False)


def recorded(fresh):
    return mh.record_call(lfm2(fresh), **eager.padded(fresh, (13, 9), VOCABULARY))


def counted(recording):
    """The recording as an earlier manyheads made it, which counted the layers that attend."""
    layers = [replace(layer, site=replace(layer.site, layer=place)) for place, layer in enumerate(recording.layers)]
    return Recording({"": layers}, recording.tokens, recording.provenance)


# ------------------------------------------------------------------------------------------------------- whose numbers


def jamba():
    return transformers.JambaModel(
        transformers.JambaConfig(
            **GROUPED, num_hidden_layers=7, attn_layer_period=3, attn_layer_offset=1, num_experts=2, mamba_d_state=4,
            mamba_dt_rank=4, use_mamba_kernels=False, pad_token_id=0,
        )
    )  # fmt: skip


def qwen3_next():
    kinds = ["full_attention" if number in (1, 4) else "linear_attention" for number in range(6)]
    return transformers.Qwen3NextModel(
        transformers.Qwen3NextConfig(
            **GROUPED, head_dim=8, num_hidden_layers=6, layer_types=kinds, num_experts=2, num_experts_per_tok=1,
            moe_intermediate_size=20, shared_expert_intermediate_size=20, linear_num_key_heads=2,
            linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8,
        )
    )  # fmt: skip


def zamba2():
    kinds = ["hybrid" if number in (2, 4, 6) else "mamba" for number in range(7)]
    return transformers.Zamba2Model(
        transformers.Zamba2Config(
            **GROUPED, num_hidden_layers=7, layers_block_type=kinds, attention_head_dim=16, mamba_d_state=4,
            mamba_expand=2, mamba_ngroups=1, n_mamba_heads=6, mamba_headdim=16, chunk_size=8, num_mem_blocks=2,
            adapter_rank=4, use_mem_rope=True, pad_token_id=0,
        )
    )  # fmt: skip


def mllama():
    return MllamaTextModel(
        MllamaTextConfig(**GROUPED, num_hidden_layers=5, cross_attention_layers=[1, 3], pad_token_id=0)
    )


HYBRIDS = {
    "lfm2": (lambda: lfm2(torch.Generator(), transformers.Lfm2Model), ["L1", "L3", "L4"]),
    "jamba": (jamba, ["L1", "L4"]),
    "qwen3_next": (qwen3_next, ["L1", "L4"]),
    "zamba2": (zamba2, ["L2", "L4", "L6"]),
    "mllama": (mllama, ["L0", "cross:L1", "L2", "cross:L3", "L4"]),
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_layers_of_a_hybrid_have_the_index_that_their_own_modules_have(name, fresh):
    make, names = HYBRIDS[name]
    model = make().eval()
    more = {"cross_attention_states": torch.randn(1, 11, 48, generator=fresh)} if name == "mllama" else {}
    recording = mh.record_call(model, **IDS, **more)
    sites = [site for layers in recording.stacks.values() for site in layers.sites]
    for site in sites:
        index = getattr(model.get_submodule(site.module.partition("#")[0]), "layer_idx", None)
        assert site.layer == index or index in (None, -1), site  # -1: Zamba2's blocks, which layers share
    assert sorted(map(str, sites)) == sorted(names)
    assert recording.numbering == ""


COUNTED = {
    "swin": ("SwinModel", "SwinConfig", {"depths": [1, 3, 2], "num_heads": [1, 2, 4], "embed_dim": 12, "image_size": 32,
             "patch_size": 2, "window_size": 4, "num_channels": 3}, {"": 6}),
    "albert": ("AlbertModel", "AlbertConfig", {**SIZES, "num_hidden_layers": 4, "embedding_size": 16}, {"": 4}),
    "t5": ("T5Model", "T5Config", {"vocab_size": VOCABULARY, "d_model": 24, "d_kv": 6, "d_ff": 32, "num_layers": 2,
           "num_decoder_layers": 3, "num_heads": 4}, {"encoder": 2, "decoder": 3, "cross": 3}),
    "whisper": ("WhisperModel", "WhisperConfig", {"vocab_size": VOCABULARY, "d_model": 24, "encoder_layers": 2,
                "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_mel_bins": 8,
                "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": 12, "pad_token_id": 0,
                "decoder_start_token_id": 1, "bos_token_id": 1, "eos_token_id": 2},
                {"encoder": 2, "decoder": 3, "cross": 3}),
    "vit": ("ViTModel", "ViTConfig", {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 3,
            "num_attention_heads": 4, "image_size": 16, "patch_size": 4}, {"": 3}),
}  # fmt: skip


def test_layers_without_attention_weights_are_named_once(fresh, caplog):
    model, inputs = lfm2(fresh), eager.padded(fresh, (13, 9), VOCABULARY)
    rec = mh.record_call(model, **inputs)
    assert rec.provenance["without attention weights"] == "L0, L2, L5: conv"
    assert caplog.text.count("these layers form no attention weights, and are not recorded: L0, L2, L5: conv") == 1
    assert measure_call(model, **inputs).notes["without attention weights"] == "L0, L2, L5: conv"


@pytest.mark.parametrize("name", COUNTED)
def test_models_of_which_all_layers_attend_have_numbers_without_gaps(name):
    model_class, config_class, sizes, counts = COUNTED[name]
    model = getattr(transformers, model_class)(getattr(transformers, config_class)(**sizes)).eval()
    spec = mh.load(model, tokenizer=False).spec
    assert {stack: layers.numbers for stack, layers in spec.stacks.items()} == {
        stack: tuple(range(count)) for stack, count in counts.items()
    }
    assert counted_layers(spec.sites) == ""


# ------------------------------------------------------------------------------------------------------- plain modules


class ByHand(nn.Module):
    """A softmax along the queries, which nobody can read."""

    def forward(self, x):
        return torch.softmax(x @ x.mT, -2) @ x


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x):
        out = self.attention(x)
        return x + (out[0] if isinstance(out, tuple) else out)


class Numbered(nn.Module):
    """Blocks in a list; `order` says which of them run."""

    def __init__(self, blocks, order=None):
        super().__init__()
        self.h = nn.ModuleList(blocks)
        self.order = order or range(len(blocks))

    def forward(self, x):
        for number in self.order:
            x = self.h[number](x)
        return x


def attention():
    return MultiHeadAttention(18, 3).eval()


def names_of(model, x):
    with tap(model.eval()) as state, torch.no_grad():
        model(x)
    return [str(site) for site in state.sites.values()]


def test_layers_after_one_that_nobody_can_see_keep_their_numbers(fresh):
    model, x = (
        Numbered([Block(attention()), Block(ByHand()), Block(attention())]),
        torch.randn(2, 5, 18, generator=fresh),
    )
    recording = mh.record_call(model.eval(), x)
    assert recording.layers.numbers == (0, 2) and recording.layers[2].site.module == "h.2.attention"
    assert "h.1.attention" in recording.provenance["left out"]
    refuses(HeadError, "L1 has no attention, or none that was seen: the layers that are here are L0, L2",
            recording.layers.__getitem__, 1)  # fmt: skip


def test_a_number_that_is_taken_is_another_one_as_the_documentation_says(fresh):
    x = torch.randn(2, 5, 18, generator=fresh)
    twice = mh.record_call(Numbered([Block(attention()) for _ in range(3)], [0, 1, 1, 2]).eval(), x)
    assert {layer.site.layer: layer.site.module for layer in twice.layers} == {
        0: "h.0.attention", 1: "h.1.attention", 2: "h.1.attention#2", 3: "h.2.attention",
    }  # fmt: skip
    pair = lambda: Numbered([Block(attention()), Block(attention())])  # noqa: E731
    stages = mh.record_call(Numbered([Block(nn.Identity()), Block(pair()), Block(pair())]).eval(), x)
    assert [(layer.site.layer, layer.site.module) for layer in stages.layers] == [
        (1, "h.1.attention.h.0.attention"), (2, "h.1.attention.h.1.attention"),
        (3, "h.2.attention.h.0.attention"), (4, "h.2.attention.h.1.attention"),
    ]  # fmt: skip
    assert twice.numbering == stages.numbering == ""


def test_layers_that_are_called_backwards_are_sorted_by_number_in_the_spec_the_recording_and_its_file(fresh, tmp_path):
    model, x = (
        Numbered([Block(attention()) for _ in range(3)], [2, 1, 0]).eval(),
        torch.randn(2, 5, 18, generator=fresh),
    )
    recording = mh.record_call(model, x)
    with tap(model) as state, torch.no_grad():
        model(x)
    spec = ModelSpec("backwards", "Numbered", tuple(state.sites.values()), 18, None, None, 1, "float32")
    assert [site.layer for site in spec.sites] == [2, 1, 0]
    recording.save(tmp_path / "r.heads")
    # As an earlier manyheads wrote it: in the order of the calls.
    called = Layers([*recording.layers][::-1], lambda layer: layer.site, spec.sites)
    save_recording(tmp_path / "old.heads", {"": called}, recording.tokens, recording.provenance)
    header = TensorFile(tmp_path / "old.heads", kind=FORMAT, newest=FORMAT_VERSION).json("recording")
    assert [layer["site"]["layer"] for layer in header["stacks"][""]] == [2, 1, 0]
    for rec in (recording, mh.open_recording(tmp_path / "r.heads"), mh.open_recording(tmp_path / "old.heads")):
        assert rec.layers.numbers == spec.layers.numbers == (0, 1, 2)
        assert rec.layers[-1].site == spec.layers[-1] == rec.layers[2].site and rec.layers[-1].site.module[:3] == "h.2"
        assert [layer.site for layer in rec.layers[1:]] == [*spec.layers[1:]]
        for number in range(3):
            assert torch.equal(rec.layers[number].q, recording.layers[number].q)


def test_a_block_that_layers_share_has_the_number_of_the_layer_that_calls_it(fresh):
    shared, x = attention(), torch.randn(2, 5, 18, generator=fresh)
    blocks = [Block(shared if number in (2, 5) else nn.Linear(18, 18)) for number in range(7)]
    assert names_of(Numbered(blocks), x) == ["L2", "L5"]
    assert names_of(Numbered([Block(attention())], order=[0, 0, 0]), x) == ["L0", "L1", "L2"]  # one layer, again
    assert names_of(Numbered([Block(attention()) for _ in range(3)], order=[2, 0]), x) == ["L2", "L0"]


def test_a_place_in_a_chain_of_unlike_parts_is_no_layers_number(fresh):
    x = torch.randn(2, 5, 18, generator=fresh)
    encoder = Numbered([Block(attention()), Block(attention())])
    assert names_of(nn.Sequential(nn.Linear(18, 18), encoder, nn.Linear(18, 4)), x) == ["L0", "L1"]
    assert names_of(nn.Sequential(nn.Linear(18, 18), Block(attention())), x) == ["L0"]
    blocks = [Block(attention()), Block(nn.Linear(18, 18)), Block(attention())]
    assert names_of(nn.Sequential(*blocks), x) == ["L0", "L2"]


def test_a_layer_that_is_called_alone_has_its_number(fresh):
    model = Numbered([Block(attention()) for _ in range(3)]).eval()
    with tap(model) as state, torch.no_grad():
        model.h[1](torch.randn(2, 5, 18, generator=fresh))
    assert [str(site) for site in state.sites.values()] == ["L1"]


# --------------------------------------------------------------------------------------- everything that names a layer


def test_heads_of_layers_that_do_not_attend_are_refused_by_name(fresh):
    lm = loaded(fresh)
    assert lm.spec.shape == {"": (0, 6, 0, 6, 6)} and lm.spec.layers.numbers == (1, 3, 4)
    assert lm.spec.layers[3].module == "model.layers.3.self_attn"
    message = r"L2 has no attention, or none that can be seen; the layers that attend are L1, L3, L4\. Nearest: 'L1H0'"
    refuses(HeadError, message, lm.spec.select, "L2H0")
    refuses(HeadError, message, mh.applied(lm, mh.Ablate("L2H0")).__enter__)
    refuses(HeadError, "there is no layer 5 that attends", mh.prune_heads, lm, "L5H0")


def test_a_recording_and_its_file_have_the_models_numbers(fresh, tmp_path):
    recording = recorded(fresh)
    recording.save(tmp_path / "r.heads")
    for rec in (recording, mh.open_recording(tmp_path / "r.heads")):
        assert rec.layers.numbers == (1, 3, 4) and rec.numbering == ""
        assert [layer.site.layer for layer in rec.layers] == [layer.site.layer for layer in rec.layers[:]] == [1, 3, 4]
        assert rec.layers[3].site.module == "model.layers.3.self_attn" and rec.layers[-1] is rec.layers[4]
        assert torch.equal(rec.layers[3].q[0], recording.layers[3].q[0])
        assert rec.cells("L4H5", [(8, 2)]) == rec.layers[4].weights(5)[8, 2]
        for chosen, numbers in (
            (slice(1, 3), [1]), (slice(3, None), [3, 4]), (slice(0, 4), [1, 3]), (slice(2, 3), []),
            (slice(5, None), []), (slice(-2, None), [3, 4]), (slice(None, -1), [1, 3]), (slice(-9, 4, 2), [1]),
            (slice(None, None, 2), [1, 4]), (slice(None, None, -1), [4, 3, 1]), (slice(3, 1, -1), [3]),
            (slice(2, -9, -1), [1]),
        ):  # fmt: skip
            assert [layer.site.layer for layer in rec.layers[chosen]] == numbers, chosen
        refuses(HeadError, r"layers\[slice\('L1', None, None\)\]: the ends of a slice are numbers of layers, as in "
                r"layers\[1:3\]", rec.layers.__getitem__, slice("L1", None))  # fmt: skip
        for missing in (0, 2, 9):
            refuses(HeadError, rf"L{missing} has no attention.*: the layers that are here are L1, L3, L4",
                    rec.layers.__getitem__, missing)  # fmt: skip
        refuses(HeadError, "L0 has no attention", rec.cells, "L0H1", [(8, 2)])


def test_tables_have_the_models_numbers(fresh, tmp_path):
    table = measure_recording(recorded(fresh), ["entropy"])
    frame = table.to_pandas()
    assert frame["layer"].drop_duplicates().tolist() == ATTENDING and frame["head"].iloc[-1] == "L4H5"
    frame.to_parquet(tmp_path / "t.parquet")
    assert pd.read_parquet(tmp_path / "t.parquet").groupby("layer").size().to_dict() == dict.fromkeys(ATTENDING, 6)
    assert "layers" not in table.notes
    scores = transformer_lens.detect_head(recorded(fresh), detection_pattern="previous_token_head")
    assert scores.shape == (5, 6) and scores.isnan().all(-1).tolist() == [True, False, True, False, False]


@pytest.mark.parametrize("format", FORMATS)
def test_lists_of_heads_have_a_row_for_each_layer_of_the_model(format, fresh, tmp_path):
    lm, keeps = loaded(fresh), {1: (True, False, True), 3: (False, False, True), 4: (True, True, False)}
    split = split_of(lm, keeps, fresh)
    assert [len(layer.kept) for layer in split.layers] == [0, 3, 0, 3, 3, 0]
    place = tmp_path / PLACES[format]
    files = split.export(format, place)
    again = mh.read_heads(place, lm)
    assert again.retrieval == split.retrieval and "layers" not in again.notes
    assert [layer.kept for layer in again.layers] == [layer.kept for layer in split.layers]
    match format:
        case "duo":
            rows = np.loadtxt(place / "full_attention_heads.tsv")
            assert rows.shape == (6, 3) and not rows[[0, 2, 5]].any() and rows[3].argmax() == 2
        case "headkv":
            assert [*json.loads(place.read_text())] == [f"{layer}-{head}" for layer in range(6) for head in range(6)]
        case "lukv":
            freed = np.load(place).mean(0)
            assert freed.shape == (6, 3) and (freed[[0, 2, 5]] == 1).all() and freed[3].argmin() == 2
        case "minference":
            assert [len(layer) for layer in json.loads(place.read_text())] == [0, 6, 0, 6, 6, 0]
        case "vllm-hook":
            assert files[1].read_text() == "1:0,1,4,5;3:4,5;4:0,1,2,3\n"
        case "llama.cpp":
            document = json.loads(place.read_text())
            assert document["num_layers"] == 6
            assert {entry["layer"] for entry in document["token_alignment_heads"]} == set(ATTENDING)


def split_of(lm, keeps, fresh):
    from manyheads.long_context.split_layer import split_layers

    scores = {
        layer: [keep + 0.3 * float(torch.rand(1, generator=fresh)) for keep in kept] for layer, kept in keeps.items()
    }
    layers = split_layers(lm, "", keeps, scores, {})
    return mh.HeadSplit(lm.name, lm.weights_hash, "", layers, 4, 16, "effect", "nats", "group")


def test_a_list_that_names_a_layer_without_attention_is_refused(fresh, tmp_path):
    lm = loaded(fresh)
    (tmp_path / "own.txt").write_text("1:0,1,2")
    assert str(mh.read_heads(tmp_path / "own.txt", lm).retrieval) == "L1H0-3"  # layer 1 of the model, whole groups
    (tmp_path / "none.txt").write_text("2:0,1,2")
    message = "lists heads of layer 2, and L2 of .* has no attention, .*: the layers that attend are L1, L3, L4"
    refuses(ModelError, message, mh.read_heads, tmp_path / "none.txt", lm)


def test_a_split_streams_the_layers_that_it_names(fresh):
    lm = loaded(fresh)
    split = split_of(lm, {1: (True, True, True), 3: (False, True, True), 4: (True, True, True)}, fresh)
    with mh.streaming(lm, split) as block:
        assert block.places == {f"model.layers.{number}.self_attn": (number, number) for number in ATTENDING}
    assert str(split.streaming) == "L3H0-1"


def test_a_history_and_a_clip_have_the_models_numbers(fresh, tmp_path):
    model = lfm2(fresh).train()
    ids = torch.randint(VOCABULARY, (2, 11), generator=fresh)
    with mh.watch(model, every=1, out=tmp_path / "h") as watch:
        for _ in range(2):
            model(input_ids=ids, labels=ids).loss.backward()
            watch.step()
    curves = open_history(tmp_path / "h")
    assert list(dict.fromkeys(head.layer for head in curves.heads)) == ATTENDING and curves.numbering == ""
    # LFM2's own norms refuse a clip, and the refusal names the layer.
    refuses(ModelError, r"cannot clip L1, module 'model\.layers\.1\.self_attn'", mh.QKClip, model, tau=1.0)


# ---------------------------------------------------------------------- what an earlier manyheads wrote: counted layers

SAYS = r"layers are counted in the order of their first calls, not by the model's own numbers: L0 is model\.layers\.1"


def test_a_recording_of_counted_layers_opens_and_says_so(fresh, tmp_path):
    counted(recorded(fresh)).save(tmp_path / "old.heads")
    rec = mh.open_recording(tmp_path / "old.heads")
    assert rec.layers.numbers == (0, 1, 2) and rec.layers[1].site.module == "model.layers.3.self_attn"
    with pytest.raises(AssertionError, match=SAYS):
        raise AssertionError(f"{rec.numbering} {rec} {measure_recording(rec, ['entropy']).notes}")
    assert rec.numbering in str(rec) and "L0 is model.layers.1.self_attn" in rec._repr_html_()
    assert rec.to_dict()["numbering"] == rec.numbering
    assert measure_recording(rec, ["entropy"]).notes["layers"] == rec.numbering


def sites_of(*paths_and_layers):
    return [Site("", layer, path, 3, 3, 6, 6, True) for path, layer in paths_and_layers]


def test_only_layers_that_are_counted_are_called_so():
    shared = [("model.layers.6.shared.self_attn" + turn, number) for number, turn in enumerate(("", "#2", "#3"))]
    assert "L0 is model.layers.6.shared" in counted_layers(sites_of(*shared))
    for fine in (
        [("h.0.attn", 0), ("h.1.attn", 1)],
        [("layers.0.blocks.0", 0), ("layers.0.blocks.1", 1), ("layers.1.blocks.0", 2)],
        [("h.2.attn", 2), ("h.6.attn", 6)],
        [("net.1.layers.0.attn", 0), ("net.1.layers.1.attn", 1)],  # a part of a larger model
        [("1.attn", 0)],
        [("layer 3", 3), ("layer 7", 7)],
        [],
    ):
        assert counted_layers(sites_of(*fine)) == "", fine


def test_a_split_of_counted_layers_is_refused_where_it_is_used_and_renumbered_where_it_is_read(fresh, tmp_path):
    lm = loaded(fresh)
    split = split_of(lm, {1: (True, False, True), 3: (False, False, True), 4: (True, True, False)}, fresh)
    old = replace(split, layers=tuple(layer for layer in split.layers if layer.num_heads))
    old.save(tmp_path / "old.json")
    assert mh.HeadSplit.open(tmp_path / "old.json") == old
    message = r"by an earlier manyheads, which counted the layers that attend: its L0 to L2 are L1, L3, L4 of"
    refuses(ModelError, message, mh.streaming(lm, old).__enter__)
    read = mh.read_heads(tmp_path / "old.json", lm)
    assert read.layers == split.layers and "they are read as L1, L3, L4 of the model" in read.notes["layers"]
    short = replace(split, layers=split.layers[:5])  # a file that ends with the last layer that attends
    short.require_model(lm)


@pytest.mark.parametrize("format", FORMATS)
def test_a_list_of_counted_layers_is_renumbered_and_says_so(format, fresh, tmp_path):
    lm = loaded(fresh)
    split = split_of(lm, {1: (True, False, True), 3: (False, False, True), 4: (True, True, False)}, fresh)
    old = replace(split, layers=tuple(layer for layer in split.layers if layer.num_heads))
    place = tmp_path / PLACES[format]
    old.export(format, place)
    for path in tmp_path.rglob("*"):  # as the earlier one wrote it: it did not say which numbers these are
        if path.is_file() and path.suffix == ".json" and b'"layer_numbers"' in (data := path.read_bytes()):
            document = json.loads(data)
            document.get("manyheads", document).pop("layer_numbers")
            path.write_text(json.dumps(document))
    read = mh.read_heads(place, lm)
    assert read.retrieval == split.retrieval
    assert "they are read as L1, L3, L4 of the model" in read.notes["layers"]


def test_a_plan_of_counted_layers_is_refused_by_a_model_with_gaps_alone(fresh):
    old = mh.Plan.from_json('{"format": 1, "steps": [{"step": "ablate", "heads": "L0H1"}]}')
    new = mh.Plan(mh.Ablate("L0H1"))
    assert old.counted and old != new and mh.Plan.from_json(old.to_json()) == old
    assert not mh.Plan.from_json('{"steps": [{"step": "ablate", "heads": "L0H1"}]}').counted
    assert mh.Plan.from_json(new.to_json()) == new and new.to_dict()["format"] == 2
    message = r"by an earlier manyheads, which counted the layers that attend: its L0 to L2 are L1, L3, L4 of"
    refuses(PlanError, message, mh.applied(loaded(fresh), old).__enter__)

    def bare():
        model = lfm2(fresh)
        with mh.applied(model, old), torch.no_grad():
            model(**IDS)

    refuses(PlanError, r"which counted the layers that attend: its L0 is L1 of this module\. Write", bare)
    called = Numbered([Block(attention()) if number in (0, 1, 3, 4) else Block(nn.Identity()) for number in range(5)])

    def later():
        with mh.applied(called.eval(), old), torch.no_grad():
            called(torch.randn(2, 5, 18, generator=fresh))

    refuses(PlanError, r": its L2 is L3 of this module\. Write", later)
    plain, x = Numbered([Block(attention())]).eval(), torch.randn(2, 5, 18, generator=fresh)
    with mh.applied(plain, old), torch.no_grad():
        changed = plain(x)
    assert not torch.equal(changed, plain(x))


def test_a_plan_of_counted_layers_is_refused_for_the_stacks_that_it_names_alone(fresh):
    sites = [
        *(Site("", number, f"h.{number}", 3, 3, 6, 6, True) for number in range(4)),
        *(Site("cross", number, f"h.{number}.cross", 3, 3, 6, 6, False) for number in (1, 3)),
    ]
    spec = ModelSpec("flamingo", "Flamingo", tuple(sites), 18, VOCABULARY, 64, 1, "float32")
    for fine in ("L1H2", "L0-3"):
        Acts((mh.Plan(mh.Ablate(fine), counted=True),), spec)
    for step in (mh.Ablate("L1, cross:L1H0"), mh.Copy("cross:L1", source="cross:L1H0"), mh.Average("cross:L1")):
        refuses(PlanError, r"its cross:L0 to cross:L1 are cross:L1, cross:L3 of flamingo\. Write",
                Acts, (mh.Plan(step, counted=True),), spec)  # fmt: skip


def test_the_step_of_a_split_of_counted_layers_is_refused_by_a_model_with_gaps_alone(fresh):
    lm = loaded(fresh)
    split = split_of(lm, {1: (True, False, True), 3: (False, False, True), 4: (True, True, False)}, fresh)
    first = tuple(layer for layer in split.layers if layer.num_heads)
    # Its L1 alone streams: the model has a layer 1, too, and it is the first of them.
    kept = [replace(layer, kept=(place != 1,) * 3) for place, layer in enumerate(first)]
    old = mh.HeadSplit.from_dict(json.loads(json.dumps(replace(split, layers=tuple(kept)).to_dict())))
    step = old.ablation()
    assert str(step.heads) == "L1"
    message = r"which counted the layers that attend: its L0 to L2 are L1, L3, L4 of .*mh\.read_heads\(path, lm\)"
    several = mh.Plan([mh.Scale("L3H0", 2.0), step])
    for plan in (step, several, mh.Plan.from_json(several.to_json()), pickle.loads(pickle.dumps(step)), [step, step]):
        refuses(PlanError, message, mh.applied(lm, plan).__enter__)
    plain = mh.Plan([split.ablation()])
    assert not plain.counted and plain.to_dict()["format"] == 2
    with mh.applied(lm, split.ablation()), torch.no_grad():
        lm.model(**IDS)


def test_a_history_of_counted_layers_says_so(fresh, tmp_path):
    spec: ModelSpec = loaded(fresh).spec
    sites = [replace(site, layer=place) for place, site in enumerate(spec.sites)]
    heads = [head for site in sites for head in site.heads]
    facts = {"model": "lfm2", "sites": [asdict(site) for site in sites]}
    with HeadHistory(tmp_path / "h", heads, ["entropy"], facts) as history:
        history.append(3, torch.rand(len(heads), 1, generator=fresh).double().numpy())
    with pytest.raises(AssertionError, match=SAYS):
        raise AssertionError(open_history(tmp_path / "h").numbering)
