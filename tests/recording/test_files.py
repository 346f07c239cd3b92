"""A recording comes back from its file as it went in: bit for bit; and is read only as far as it is used.

What is done to damaged, foreign and newer files is in test_damaged_files.py.
"""

import errno
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from manyheads.attention import Mask, Rule, attend
from manyheads.errors import FileAccessError, HeadError, RecordingError
from manyheads.recording import LayerRecord, Recording, open_recording
from manyheads.recording.file import format as lazy
from manyheads.recording.file import safetensors_io as container
from manyheads.spec import Site
from manyheads.texts import Sinks, Tokens
from manyheads.units import gb
from tests.refusals import refuses

# ============================================================================================ recordings of random bits
# Recordings of random bits with everything a file may hold, and the comparison of two of them bit for bit.

H, G, D, F = 6, 3, 5, 4
LENGTHS = (7, 11, 2)


def random_bits(fresh, shape, dtype):
    """Every pattern of bits: numbers of all sizes, infinities, NaNs with payloads."""
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    info = torch.iinfo(integer)
    return torch.randint(info.min, info.max, shape, dtype=integer, generator=fresh).view(dtype)


def make_tokens(fresh, lengths=LENGTHS):
    """Tokens of which everything is said, padding filled as a recorder fills it."""
    lengths = torch.tensor(lengths, dtype=torch.long)
    shape = (len(lengths), int(lengths.max()) if len(lengths) else 0)
    real = torch.arange(shape[1])[None] < lengths[:, None]
    ids = torch.randint(0, 30_000, shape, generator=fresh)
    begin = torch.arange(shape[1]).expand(shape)
    pieces = tuple(tuple(f"##p{at}" for at in range(length)) for length in lengths.tolist())
    return Tokens(
        lengths, ids=ids.masked_fill(~real, -1), pieces=pieces,
        special=(torch.rand(shape, generator=fresh) < 0.3) & real,
        offsets=torch.stack([begin, begin + 1], -1) * real[..., None],
        texts=tuple("Ein Satz, «zitiert» 猫😀"[: length + 1] for length in lengths.tolist()),
        rarity=torch.rand(shape, generator=fresh) * real, rarity_because="rank in the vocabulary",
        sinks=Sinks(first=True, ids=(101, 7), names=("[CLS]", ","), because="0.8 of layer 3's mass"),
    )  # fmt: skip


def text_mask(lengths, causal=False):
    """Each text sees itself and no padding."""
    longest = int(lengths.max()) if len(lengths) else 0
    mask = Mask.causal(longest, longest) if causal else Mask.full(longest, longest)
    return mask.trimmed(torch.zeros_like(lengths), lengths)


def make_layer(fresh, tokens, index=0, *, dtype=torch.float32, mask=None, keep_v=True, rows=None, keys=None, **rule):
    """A layer of random bits; what the padding of lse holds is -inf, of the rest 0, as a recorder fills it."""
    lengths = tokens.lengths
    mask = text_mask(lengths) if mask is None else mask
    rows, keys = mask.num_queries if rows is None else rows, mask.num_keys if keys is None else keys
    site = Site(rule.pop("stack", ""), index, f"encoder.layer.{index}.attention.self", H, G, D, F, causal=False)
    q = random_bits(fresh, (len(lengths), H, rows, D), dtype)
    k, v = (random_bits(fresh, (len(lengths), G, keys, width), dtype) for width in (D, F))
    lse = random_bits(fresh, (len(lengths), H, rows), torch.float64 if dtype == torch.float64 else torch.float32)
    if rows == keys == tokens.longest:
        real = tokens.real[:, None]
        q, k, v = (torch.where(real[..., None], x, 0) for x in (q, k, v))
        lse = torch.where(real, lse, -torch.inf)
    made = Rule(rule.pop("scale", 0.1), **rule)
    return LayerRecord(site, q, k, v if keep_v else None, lse, mask, made, lengths, tokens, f"tiles: number {index}")


def make_recording(fresh, num_layers=3, lengths=LENGTHS, **options):
    tokens = make_tokens(fresh, lengths)
    mask = options.pop("mask", text_mask(tokens.lengths))
    layers = [make_layer(fresh, tokens, index, mask=mask, **options) for index in range(num_layers)]
    return Recording({"": layers}, tokens, {"model": "minilm", "guard_error": 3e-7, "dtype": "float32"})


def assert_same_bits(got, want, what=""):
    assert (got is None) == (want is None), what
    if want is not None:
        assert (got.dtype, got.shape) == (want.dtype, want.shape), what
        assert torch.equal(got.reshape(-1).view(torch.uint8), want.contiguous().reshape(-1).view(torch.uint8)), what


def assert_same_tokens(got, want):
    for name in ("lengths", "ids", "special", "offsets", "rarity"):
        assert_same_bits(getattr(got, name), getattr(want, name), name)
    for name in ("pieces", "texts", "rarity_because", "sinks"):
        assert getattr(got, name) == getattr(want, name), name


def assert_same_layer(got, want):
    for name in ("q", "k", "v", "lse", "lengths"):
        assert_same_bits(getattr(got, name), getattr(want, name), name)
    for name in ("start", "stop", "dense"):
        assert_same_bits(getattr(got.mask, name), getattr(want.mask, name), f"mask.{name}")
    for name in ("sinks", "bias"):
        assert_same_bits(getattr(got.rule, name), getattr(want.rule, name), name)
    numbers = [(one.rule.scale, one.rule.softcap, one.mask.num_keys) for one in (got, want)]
    assert numbers[0] == numbers[1]
    assert (got.site, got.because) == (want.site, want.because)
    assert_same_tokens(got.tokens, want.tokens)


def assert_same_recording(got, want):
    assert list(got.stacks) == list(want.stacks)
    for stack, layers in want.stacks.items():
        assert len(got.stacks[stack]) == len(layers)
        for got_layer, want_layer in zip(got.stacks[stack], layers, strict=True):
            assert_same_layer(got_layer, want_layer)
    assert_same_tokens(got.tokens, want.tokens)
    assert got.provenance == want.provenance


# ========================================================================================================== bit for bit

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "format.md"


def assert_round_trip(recording, path):
    recording.save(path)
    assert_same_recording(open_recording(path), recording)


# ------------------------------------------------------------------------------------------------------- the round trip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep_v", [True, False], ids=["with v", "without v"])
def test_every_dtype_comes_back_bit_for_bit(fresh, path, dtype, keep_v):
    assert_round_trip(make_recording(fresh, dtype=dtype, keep_v=keep_v), path)


def test_scale_softcap_sinks_and_bias_come_back(fresh, path):
    bias = random_bits(fresh, (1, H, 11, 11), torch.bfloat16)
    assert_round_trip(
        make_recording(fresh, scale=1 / 3, softcap=30.0, sinks=random_bits(fresh, (H,), torch.float32), bias=bias),
        path,
    )


@pytest.mark.parametrize("shape", [(3, H), (3, 1), (1, H), (1, 1)], ids=str)
def test_dense_masks_come_back_with_and_without_axes_of_texts_and_heads(fresh, path, shape):
    visible = torch.rand(*shape, 11, 11, generator=fresh) < 0.5
    if shape[0] == 3:
        real = torch.arange(11) < torch.tensor(LENGTHS)[:, None]
        visible &= real[:, None, :, None] & real[:, None, None, :]
    mask = Mask.from_dense(visible)
    assert mask.dense is not None
    assert_round_trip(make_recording(fresh, mask=mask), path)


def test_a_causal_mask_that_all_texts_share_stays_shared_and_padding_that_a_mask_can_see_is_kept(fresh, path):
    recording = make_recording(fresh, lengths=(9, 9), mask=Mask.causal(9, 9, window=4))
    assert_round_trip(recording, path)
    assert open_recording(path).layers[0].mask.start.shape == (1, 9)
    # A causal mask without padding lets padding rows see: such a layer is stored whole, so that nothing is lost.
    tokens = make_tokens(fresh)
    layer = make_layer(fresh, tokens, mask=Mask.causal(11, 11))
    layer = replace(layer, q=random_bits(fresh, (3, H, 11, D), torch.float32))
    assert_round_trip(Recording({"": [layer]}, tokens), path)


def test_padding_that_no_row_sees_is_left_out(fresh, path):
    """Garbage there does not come back, and takes no room: the file is as long as the tokens."""
    recording = make_recording(fresh, 1, lengths=(200, 3, 5), keep_v=False)
    garbage = torch.where(recording.tokens.real[:, None, :, None], recording.layers[0].q, torch.nan)
    Recording({"": [replace(recording.layers[0], q=garbage)]}, recording.tokens, recording.provenance).save(path)
    assert_same_recording(open_recording(path), recording)
    with safe_open(path, "pt") as file:
        assert file.get_slice("layer.0.q").get_shape() == [208, H, D]


def test_cross_attention_comes_back_whole_beside_packed_stacks(fresh, path):
    source, target = make_tokens(fresh, (7, 11, 2)), make_tokens(fresh, (4, 3, 8))
    stacks = {
        "encoder": [make_layer(fresh, source, at, stack="encoder") for at in range(2)],
        "decoder": [make_layer(fresh, target, 0, stack="decoder", mask=text_mask(target.lengths, causal=True))],
        "cross": [make_layer(fresh, target, 0, stack="cross", mask=Mask.full(8, 11))],
    }
    recording = Recording(stacks, target, {"model": "t5"})
    assert_round_trip(recording, path)
    opened = open_recording(path)
    assert opened.stacks["encoder"][1].tokens is opened.stacks["encoder"][0].tokens
    assert opened.stacks["cross"][0].tokens is opened.tokens
    with safe_open(path, "pt") as file:
        assert file.get_slice("encoder.layer.1.k").get_shape() == [20, G, D]
        assert file.get_slice("cross.layer.0.k").get_shape() == [3, G, 11, D]


def test_keys_are_not_cut_to_the_lengths_of_queries_and_bare_positions_come_back(fresh, path):
    # Both are padded to 8 here, but the first text has 4 queries and 8 keys.
    target, source = make_tokens(fresh, (4, 8)), torch.tensor([8, 5])
    stop = torch.where(target.real, source[:, None], 0)
    mask = Mask(torch.zeros_like(stop), stop, 8)
    layer = make_layer(fresh, target, mask=mask)
    layer = replace(layer, k=random_bits(fresh, (2, G, 8, D), torch.float32))
    assert_round_trip(Recording({"": [layer]}, target), path)
    tokens = Tokens.unnamed((7, 11, 2))
    layer = replace(make_layer(fresh, tokens, mask=Mask.full(11, 11)), lengths=torch.tensor([7, 11, 1]))
    assert_round_trip(Recording({"": [layer]}, tokens), path)


@pytest.mark.parametrize("lengths", [(), (0,), (0, 3), (1,), (5,)], ids=str)
def test_no_texts_empty_texts_and_one_text_come_back(fresh, path, lengths):
    assert_round_trip(make_recording(fresh, lengths=lengths), path)


def test_a_recording_without_layers_comes_back_and_any_text_half_a_surrogate_pair_too(fresh, path):
    assert_round_trip(make_recording(fresh, num_layers=0), path)
    assert_round_trip(Recording({}, make_tokens(fresh)), path)
    tokens = replace(make_tokens(fresh, (1, 1)), texts=("\ud83d\ude00\x00\r\n", "\udfff"), pieces=(("\ud800",), ("",)))
    assert_round_trip(Recording({}, tokens), path)


@st.composite
def recordings(draw):
    fresh = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    tokens = draw(st.sampled_from([make_tokens(fresh, lengths), Tokens.unnamed(lengths)]))
    if draw(st.booleans()):
        tokens = replace(tokens, texts=tuple(draw(st.text(st.characters())) for _ in lengths))
    stacks = {}
    for stack in draw(st.sets(st.sampled_from(["", "encoder", "cross", "mask", "layer.0"]))):
        options = {"dtype": draw(st.sampled_from(DTYPES)), "keep_v": draw(st.booleans()), "stack": stack}
        longest = tokens.longest
        masks = (
            text_mask(tokens.lengths), text_mask(tokens.lengths, causal=True), Mask.full(longest, longest),
            Mask.full(longest + 1, longest), Mask.causal(longest, longest + 3),
            Mask.from_dense(torch.rand(len(lengths), H, longest, longest, generator=fresh) < 0.5),
        )  # fmt: skip
        mask = draw(st.sampled_from(masks))
        if draw(st.booleans()):
            shape = (draw(st.sampled_from((1, len(lengths)))), draw(st.sampled_from((1, H))))
            options["bias"] = random_bits(fresh, (*shape, mask.num_queries, mask.num_keys), torch.float32)
        options["scale"] = draw(st.floats(allow_nan=False))
        stacks[stack] = [make_layer(fresh, tokens, at, mask=mask, **options) for at in range(draw(st.integers(0, 2)))]
    return Recording(stacks, tokens, draw(st.dictionaries(st.text(), st.text() | st.integers() | st.none())))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recording=recordings())
def test_any_recording_comes_back(recording, path):
    assert_round_trip(recording, path)


# ------------------------------------------------------------------------------------------------------ what is written


def test_the_safetensors_library_reads_the_same_tensors_each_at_a_multiple_of_its_item_size(fresh, path):
    recording = make_recording(fresh, dtype=torch.bfloat16)
    recording.save(path)
    real = recording.tokens.real
    with safe_open(path, "pt") as file:
        for index, layer in enumerate(recording.layers):
            assert_same_bits(file.get_tensor(f"layer.{index}.q"), layer.q.transpose(1, 2)[real])
            assert_same_bits(file.get_tensor(f"layer.{index}.lse"), layer.lse.transpose(1, 2)[real])
        assert file.metadata()["format"] == "manyheads-recording"
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = json.loads(path.read_bytes()[8 : 8 + length])
    for name, entry in header.items():
        if name != "__metadata__":
            size = container.DTYPES[entry["dtype"]].itemsize
            assert (8 + length + entry["data_offsets"][0]) % size == 0, name


def test_equal_masks_and_biases_are_stored_once_and_are_one_object_again(fresh, path):
    recording = make_recording(fresh, 4, bias=torch.randn(1, H, 11, 11, generator=fresh))
    layers = list(recording.layers)
    layers[1] = replace(layers[1], mask=Mask(layers[0].mask.start.clone(), layers[0].mask.stop.clone(), 11))
    layers[2] = replace(layers[2], mask=text_mask(recording.tokens.lengths, causal=True))
    layers[3] = replace(layers[3], rule=replace(layers[3].rule, bias=layers[3].rule.bias + 1))
    replace(recording, stacks={"": layers}).save(path)
    with safe_open(path, "pt") as file:
        assert sorted(name for name in file.keys() if name.endswith(".stop")) == ["mask.0.stop", "mask.1.stop"]  # noqa: SIM118
        assert sorted(name for name in file.keys() if name.startswith("bias")) == ["bias.0", "bias.1"]  # noqa: SIM118
    first, equal, other, last = open_recording(path).layers
    assert first.mask is equal.mask is last.mask is not other.mask
    assert first.rule.bias is equal.rule.bias is other.rule.bias is not last.rule.bias


def test_masks_that_pack_alike_over_other_lengths_are_not_taken_for_equal(fresh, path):
    short, long = make_tokens(fresh, (2, 4)), make_tokens(fresh, (3, 3))
    causal = [make_layer(fresh, tokens, at, mask=text_mask(tokens.lengths)) for at, tokens in enumerate((short, long))]
    assert_round_trip(Recording({"": causal}, short), path)


def test_the_page_on_the_format_names_everything_that_a_file_holds(fresh, path):
    page = FORMAT_PAGE.read_text(encoding="utf-8")
    tokens = make_tokens(fresh)
    dense = Mask.from_dense(torch.rand(3, 1, 11, 11, generator=fresh) < 0.5)
    rule = {"sinks": torch.randn(H, generator=fresh), "bias": torch.randn(1, H, 11, 11, generator=fresh)}
    layer = make_layer(fresh, tokens, mask=dense, stack="cross", **rule)
    Recording({"cross": [replace(layer, lengths=torch.tensor([7, 11, 1]))]}, tokens).save(path)
    with safe_open(path, "pt") as file:
        names = {re.sub(r"\d+", "N", name).removeprefix("cross.") for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    described = json.loads(metadata["recording"])
    said = [*metadata, *described, *described["tokens"][0], *described["stacks"]["cross"][0]]
    for name in (*names, *said, *described["tokens"][0]["sinks"]):
        assert f"`{name}`" in page, name
    assert f'"{metadata["format"]}"' in page and f"version {metadata['format_version']}" in page


def test_the_code_on_that_page_gives_the_weights(fresh, path, monkeypatch):
    tokens = make_tokens(fresh)
    q, k = torch.randn(3, 8, 11, D, generator=fresh), torch.randn(3, 4, 11, D, generator=fresh)
    mask, site = text_mask(tokens.lengths), Site("", 3, "m", 8, 4, D, D, causal=False)
    lse = attend(q, k, k, mask=mask, scale=0.7).lse
    layer = LayerRecord(site, q, k, None, lse, mask, Rule(0.7), tokens.lengths, tokens)
    Recording({"": [layer] * 4}, tokens).save(path)
    code, *_ = re.findall(r"```python\n(.*?)```", FORMAT_PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(path.parent)
    exec(code, found := {})
    torch.testing.assert_close(found["weights"], layer.weights(head=7))


def test_what_is_kept_on_the_way_of_a_gradient_is_saved_too(fresh, path):
    recording = make_recording(fresh, 1)
    layer = replace(recording.layers[0], q=recording.layers[0].q.requires_grad_())
    replace(recording, stacks={"": [layer]}).save(path)
    assert_same_recording(open_recording(path), recording)


# ------------------------------------------------------------------------------------------------- what cannot be saved


def test_opening_reads_the_tokens_a_layer_reads_itself_and_the_one_used_last_is_kept(fresh, path, reads):
    recording = make_recording(fresh, 5)
    recording.save(path)
    opened = open_recording(str(path))
    assert all(name.startswith("tokens.0.") for name in reads)
    reads.clear()
    assert (repr(opened), opened.num_bytes) == (repr(recording), recording.num_bytes)
    assert opened.layers[1:][2:] is not None and len(opened.layers) == 5
    assert reads == []
    assert_same_layer(opened.layers[3], recording.layers[3])
    assert sorted(reads) == sorted([*(f"layer.3.{x}" for x in ("q", "k", "v", "lse")), "mask.0.start", "mask.0.stop"])
    make_recording(fresh).save(path)
    layers = open_recording(path).layers
    assert layers[2].q.shape == layers[2].q.shape
    reads.clear()
    assert layers[2].site.layer == 2
    assert reads == []


def test_a_layer_is_read_once_while_it_is_held_and_dropped_when_others_follow(fresh, path, reads):
    make_recording(fresh, lazy.KEPT_LAYERS + 2).save(path)
    layers = open_recording(path).layers
    held, dropped = layers[0], weakref.ref(layers[1])
    for layer in layers[2:]:
        assert layer.q is not None
    del layer
    gc.collect()
    assert dropped() is None
    reads.clear()
    assert layers[0] is held and layers[-len(layers)] is held and layers[::2][0] is held
    assert reads == []
    assert layers[1].site.layer == 1 and len(reads) == 4  # its mask is still that of the others


def test_layers_are_a_sequence_like_any_other(fresh, path):
    make_recording(fresh, 4).save(path)
    layers = open_recording(path).layers
    assert [layer.site.layer for layer in layers] == [0, 1, 2, 3]
    assert [layer.site.layer for layer in layers[-1:0:-2]] == [3, 1]
    assert layers[-1].site.layer == 3
    assert [layer.site.layer for layer in reversed(layers)] == [3, 2, 1, 0]
    with pytest.raises(HeadError, match=r"there is no L4 in this stack: its layers are L0 to L3\."):
        layers[4]


def test_threads_read_the_same_layers(fresh, path):
    recording = make_recording(fresh, 8)
    recording.save(path)
    layers = open_recording(path).layers
    order = torch.randperm(80, generator=fresh).tolist()
    with ThreadPoolExecutor(8) as pool:
        for at, layer in zip(order, pool.map(lambda at: layers[at % 8], order), strict=True):
            assert_same_layer(layer, recording.layers[at % 8])


def test_the_file_is_closed_when_nobody_can_read_from_it_any_more(fresh, path):
    make_recording(fresh).save(path)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else pytest.skip("needs /proc")
    opened = open_recording(path)
    layers = opened.layers
    del opened
    assert layers[0].q is not None
    del layers
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


# ============================================================================================ saved whole or not at all
# A recording is saved whole or not at all, and one line says why not.

# -------------------------------------------------------------------------------------------------- whole or not at all


def test_a_recording_can_be_saved_over_the_file_it_is_read_from(fresh, path):
    recording = make_recording(fresh, 4)
    recording.save(path)
    opened = open_recording(path)
    assert opened.layers[1].q is not None
    opened.save(str(path))
    assert_same_recording(opened, recording)
    assert_same_recording(open_recording(path), recording)


@pytest.mark.parametrize("older", [True, False], ids=["over an older file", "again"])
def test_a_disk_without_room_is_said_before_anything_is_written_and_the_size_is_known_to_the_byte(
    fresh, path, monkeypatch, older, caplog
):
    recording = make_recording(fresh)
    if older:
        make_recording(fresh, 2).save(path)
    before, size = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}, recording.file_bytes
    monkeypatch.setattr(container, "_write", lambda *_: pytest.fail("something was written"))
    room = SimpleNamespace(total=2 * size, free=size - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    message = (
        rf"^cannot write {re.escape(str(path))}: it takes [\d.]+ kB, and with [\d.]+ kB left the disk is full\. Free"
    )
    refuses(FileAccessError, message, recording.save, path)
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before
    monkeypatch.undo()
    room.free = size
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room)
    recording.save(path)
    assert path.stat().st_size == size == open_recording(path).file_bytes and not caplog.messages
    room.free = room.total = 0  # a file system that tells nothing
    monkeypatch.setattr(lazy, "LARGE_FILE", size)
    recording.save(path)
    assert caplog.messages == [f"writing {path}: {gb(size)}"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), RuntimeError("out of memory"), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("older", [True, False], ids=["over an older file", "again"])
def test_an_interrupted_save_leaves_the_folder_as_it_was(fresh, path, monkeypatch, fault, older):
    recording = make_recording(fresh)
    if older:
        recording.save(path)
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    bytes_of, seen = container.bytes_of, []

    def fail_late(tensor):
        seen.append(len(list(path.parent.iterdir())) > len(before))
        if len(seen) == 9:
            raise fault
        return bytes_of(tensor)

    monkeypatch.setattr(container, "bytes_of", fail_late)
    with pytest.raises(type(fault)):
        make_recording(fresh).save(path)
    assert any(seen), "nothing was being written when it was interrupted"
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.slow
def test_ctrl_c_while_saving_leaves_nothing_behind(tmp_path):
    script = """
import signal, sys, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from manyheads.attention import Mask, Rule
from manyheads.recording import LayerRecord, Recording
from manyheads.texts import Tokens
from manyheads.spec import Site
n = 20_000
of = Tokens.unnamed([n])
q, lse = torch.zeros(1, 8, n, 16), torch.zeros(1, 8, n)
mask = Mask.causal(n, n)
sites = [Site("", at, "m", 8, 8, 16, 16, True) for at in range(100)]
layers = [LayerRecord(site, q, q, None, lse, mask, Rule(1.0), of.lengths, of) for site in sites]
print("saving", flush=True)
Recording({"": layers}, of).save(sys.argv[1])
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "cat.heads")], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"saving\n"
    while not any(entry.stat().st_size > 1_000_000 for entry in tmp_path.iterdir()):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []


NO_ROOM = {
    errno.ENOSPC: "the disk is full. Free some space", errno.EDQUOT: "your share of the disk is used up",
    errno.EFBIG: "files there cannot be that large", errno.EACCES: "you have no permission to. Have it changed",
    errno.EPERM: "you have no permission to", errno.EROFS: "it is on a read-only file system. Use another folder",
    errno.EIO: os.strerror(errno.EIO),
}  # fmt: skip


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", NO_ROOM, ids=errno.errorcode.get)
def test_a_disk_that_refuses_is_said_with_what_to_do(fresh, path, monkeypatch, number, call):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(FileAccessError, match=rf"^cannot write {re.escape(str(path))}: {NO_ROOM[number]}.*\.$"):
        make_recording(fresh).save(path)
    assert list(path.parent.iterdir()) == []


def test_paths_that_cannot_be_written_are_refused_each_in_its_words(fresh, tmp_path, monkeypatch):
    recording, file = make_recording(fresh), tmp_path / "file"
    file.write_text("mine")
    refused = {
        tmp_path / "no" / "cat.heads": "its folder does not exist. Make it first",
        file / "cat.heads": "a part of its path is a file, not a folder",
        tmp_path: "it is a folder. Name a file in it",
        Path(os.devnull): "it is a device or a pipe, not a file",
        tmp_path / ("x" * 300): "its name is too long",
        "nul\0l": "embedded null",
    }
    for path, words in refused.items():
        refuses(FileAccessError, rf"^cannot write .*: {words}", recording.save, path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # a superuser may write anything
    refuses(FileAccessError, "you have no permission to", recording.save, file)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"] and file.read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_stays_a_link(fresh, path):
    link = path.with_name("link.heads")
    link.symlink_to(path)
    make_recording(fresh).save(link)
    assert link.is_symlink() and not path.is_symlink() and len(open_recording(path).layers) == 3


def test_a_new_file_has_the_permissions_that_new_files_have(fresh, path):
    other = path.with_name("other")
    other.touch()
    make_recording(fresh).save(path)
    assert path.stat().st_mode == other.stat().st_mode


# ------------------------------------------------------------------------------------------------- what cannot be saved


def test_provenance_must_be_plain_data(fresh, path):
    recording = replace(make_recording(fresh), provenance={"dtype": torch.float32})
    refuses(RecordingError, r"cannot be saved: its provenance must be JSON: .*dtype", recording.save, path)
    assert not path.exists()


MISFITS = {
    "q is for": (lambda layer: replace(layer, site=replace(layer.site, qk_dim=D + 1)), r"layer\.0\.q has shape"),
    "groups": (lambda layer: replace(layer, site=replace(layer.site, num_kv_heads=2)), r"layer\.0\.k has shape"),
    "mask keys": (lambda layer: replace(layer, mask=Mask.full(11, 12)), r"mask is for 12 keys"),
    "mask rows": (lambda layer: replace(layer, mask=Mask.full(12, 11)), r"mask\.0\.start has shape \(1, 12\)"),
    "runs": (lambda layer: replace(layer, mask=Mask(layer.mask.start - 1, layer.mask.stop, 11)), "runs that are not 0"),
    "lengths": (lambda layer: replace(layer, lengths=torch.tensor([7, 11])), r"layer\.0\.q has shape"),
    "negative": (lambda layer: replace(layer, lengths=torch.tensor([7, 11, -1])), "holds -1"),
    "pieces": (
        lambda layer: replace(layer, tokens=replace(layer.tokens, pieces=(("a",),) * 3)),
        "pieces has 1 for text 0",
    ),
    "texts": (
        lambda layer: replace(layer, tokens=replace(layer.tokens, texts=("a",))),
        "texts is for 1 texts, but .* 3",
    ),
    "float8": (
        lambda layer: replace(layer, q=layer.q.to(torch.float8_e5m2)),
        "holds torch.float8_e5m2, which is none of",
    ),
    "sinks": (lambda layer: replace(layer, rule=Rule(0.1, sinks=torch.zeros(H + 1))), r"layer\.0\.sinks has shape"),
    "bias": (lambda layer: replace(layer, rule=Rule(0.1, bias=torch.zeros(1, 1, 11, 12))), r"bias\.0 has shape"),
}


@pytest.mark.parametrize("change, words", MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_together_is_refused_before_anything_is_written(fresh, path, change, words, reads):
    recording = make_recording(fresh, 1)
    with pytest.raises(RecordingError, match=rf"^this recording cannot be saved, .* does not fit together: .*{words}"):
        replace(recording, stacks={"": [change(recording.layers[0])]}).save(path)
    assert not path.exists()


def test_a_description_too_long_for_any_header_is_refused(fresh, path, monkeypatch):
    monkeypatch.setattr(container, "HEADER_BYTES", 5_000)
    recording = replace(make_recording(fresh), provenance={"notes": "x" * 5_000})
    refuses(RecordingError, "put less into its provenance", recording.save, path)
