"""Readers of binary files: recordings, checkpoints, pictures and sounds."""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
import wave
from contextlib import suppress
from functools import cache
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import manyheads as mh
from manyheads.edits import open_plan
from manyheads.inputs.media import picture_of, sounds_of
from manyheads.interventions.save import save as saving
from manyheads.lab.training.checkpoints import read_state
from manyheads.measurement.corpus_run import store
from manyheads.models import quietly
from manyheads.plan import Ablate, Plan
from manyheads.recording.file.safetensors_io import metadata_sum
from manyheads.spec import Site
from tests.measurement.corpus_runs import some_texts, tiny_lm
from tests.models.tiny import save_tiny, tiny_bert, tiny_gpt2, tiny_tokenizer
from tests.robustness.target import DEEP_JSON, Read, Target

HUGE_HEADER = struct.pack("<Q", 2**40) + b"{}"
LONG_HEADER = struct.pack("<Q", 99_000_000) + b"{" + b" " * 1000


@cache
def base() -> Path:
    """Where whole examples are made, once a process."""
    held = tempfile.TemporaryDirectory(prefix="manyheads-examples-")
    base.held = held  # type: ignore[attr-defined]  # removed with the process
    return Path(held.name)


def split(data: bytes) -> tuple[Any, bytes]:
    """A safetensors file's header, and the bytes of its tensors."""
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def signed(header: bytes, tensors: bytes) -> bytes:
    """A file of a header that may have been changed, its metadata signed as ours are: as somebody means harm would."""
    try:
        found = json.loads(header)
        metadata = found["__metadata__"]
        metadata.pop("crc32_metadata", None)
        metadata["crc32_metadata"] = metadata_sum(metadata)
        header = json.dumps(found).encode()
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        pass
    return struct.pack("<Q", len(header)) + header + tensors


# ---------------------------------------------------------------------------------------------------------- recordings


def recordings() -> list[bytes]:
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = mh.MultiHeadAttention(24, 6, num_kv_heads=3, batch_first=True).eval()
        bare = mh.record_call(layer, torch.randn(2, 5, 24))
    made = {"texts": mh.record(lm, ["the cat sat on the mat", "a dog", "the cat " * 40]), "bare": bare}
    out = []
    for name, recording in made.items():
        recording.save(base() / f"{name}.heads")
        out.append((base() / f"{name}.heads").read_bytes())
    return out


def read_recording(data: bytes, folder: Path) -> None:
    (folder / "a.heads").write_bytes(data)
    opened = mh.open_recording(folder / "a.heads")
    for layers in opened.stacks.values():
        for layer in layers:
            assert layer.q.shape[1] == layer.site.num_heads and layer.lse.shape == layer.q.shape[:3]
            layer.weights(head=0, text=0)


def padded(longest: int, texts: int) -> bytes:
    """One long text and many of one token: packed it is small, with its padding it is not."""
    from manyheads.recording.file.format import FORMAT, FORMAT_VERSION
    from manyheads.recording.file.safetensors_io import Part, write_tensors

    lengths = torch.ones(texts, dtype=torch.int64)
    lengths[0] = longest
    rows = int(lengths.sum())
    site = {"stack": "", "layer": 0, "module": "a", "num_heads": 2, "num_kv_heads": 1, "qk_dim": 3, "v_dim": 4}
    shapes = {"tokens.0.lengths": lengths, "tokens.0.offsets": torch.zeros(rows, 2, dtype=torch.int32)}
    shapes |= {"layer.0.q": torch.zeros(rows, 2, 3), "layer.0.k": torch.zeros(rows, 1, 3)}
    shapes |= {"layer.0.lse": torch.zeros(rows, 2), "mask.0.start": torch.zeros(rows, dtype=torch.int32)}
    shapes |= {"mask.0.stop": torch.ones(rows, dtype=torch.int32)}
    sinks = {"first": False, "ids": [], "names": [], "because": ""}
    layer = {"site": {**site, "causal": False}, "tokens": 0, "mask": 0, "bias": None, "scale": 1.0, "softcap": None}
    about = {"tokens": [{"sinks": sinks, "rarity_because": ""}], "masks": [longest]}
    about["stacks"] = {"": [{**layer, "because": "a test"}]}
    metadata = {
        "recording": json.dumps(about), "provenance": "{}", "format": FORMAT, "format_version": str(FORMAT_VERSION),
    }  # fmt: skip
    path = base() / "padded.heads"
    write_tensors(path, {n: Part(x.dtype, tuple(x.shape), lambda x=x: x) for n, x in shapes.items()}, metadata)
    return path.read_bytes()


def recording_headers() -> list[bytes]:
    return [json.dumps(split(each)[0]).encode() for each in recordings()]


def read_signed(data: bytes, folder: Path) -> None:
    """A header, the whole example's tensors behind it."""
    tensors = _tensors()
    read_recording(signed(data, tensors[b"tokens.0.pieces" not in data]), folder)


@cache
def _tensors() -> tuple[bytes, bytes]:
    first, second = recordings()
    return split(first)[1], split(second)[1]


# ---------------------------------------------------------------------------------------------------------- checkpoints


@cache
def checkpoint() -> Path:
    return save_tiny(tiny_bert(), base() / "checkpoint", tiny_tokenizer())


@cache
def pruned() -> Path:
    """In the compact form."""
    folder = base() / "pruned"
    folder.mkdir(exist_ok=True)
    lm = mh.load(tiny_gpt2(seed=7), tokenizer=False)
    with quietly():
        saving.draft_compact(mh.prune_heads(lm, "L0H1, L1H0, L1H2"), folder, None, "for this test")
    return folder


@cache
def unsigned() -> Path:
    """As they were before there were checksums: a checksum would refuse every damage of the weights alike."""
    folder = Path(shutil.copytree(pruned(), base() / "unsigned"))
    mark = json.loads((folder / "manyheads.json").read_text())
    del mark["weights_sha256"]
    (folder / "manyheads.json").write_text(json.dumps(mark))
    return folder


def file_of(make: Any, name: str, tokenizer: Any = False) -> tuple[Any, Read]:
    """The examples of one file of a checkpoint, and a reader that loads the folder with another in its place."""

    def examples() -> list[bytes]:
        return [(make() / name).read_bytes()]

    def read(data: bytes, folder: Path) -> None:
        place = folder / "model"
        if not place.exists():
            shutil.copytree(make(), place)
        (place / name).write_bytes(data)
        lm = mh.load(place, tokenizer=tokenizer)
        assert sum(each.num_heads for each in lm.spec.sites)

    return examples, read


def config_bomb(**fields: Any) -> Any:
    return lambda: json.dumps({**json.loads((checkpoint() / "config.json").read_text()), **fields}).encode()


def training_checkpoints() -> list[bytes]:
    facts = {"version": 1, "run": "small", "step": 5, "settings": {"rate": 0.02}}
    tensors = {"model.weight": torch.zeros(3, 2), "optimizer.weight.step": torch.zeros(()),
               "random.cpu": torch.get_rng_state(), "history.step": torch.arange(5.0)}  # fmt: skip
    return [save(tensors, {"manyheads.training": json.dumps(facts)})]


def read_training(data: bytes, folder: Path) -> None:
    (folder / "c.safetensors").write_bytes(data)
    saved = read_state(folder / "c.safetensors")
    assert saved.step >= 0 and saved.part("model") is not None and saved.history is not None


# -------------------------------------------------------------------------------------------------- pictures and sounds


def pictures() -> list[bytes]:
    from PIL import Image

    out = []
    for kind in ("PNG", "JPEG", "GIF"):
        stream = BytesIO()
        Image.linear_gradient("L").resize((13, 7)).save(stream, kind)
        out.append(stream.getvalue())
    return out


def read_picture(data: bytes, folder: Path) -> None:
    (folder / "a.png").write_bytes(data)
    assert picture_of(folder / "a.png").mode == "RGB"


def wide_picture() -> bytes:
    """A PNG of a few kB that says it is 100,000 x 100,000."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9999))) + chunk(b"IEND", b"")
    )


def sounds() -> list[bytes]:
    out = []
    for width, channels in ((2, 1), (1, 2), (3, 1), (4, 2)):
        stream = BytesIO()
        with wave.open(stream, "wb") as file:
            file.setnchannels(channels)
            file.setsampwidth(width)
            file.setframerate(16_000)
            file.writeframes(bytes(range(48)) * width * channels)
        out.append(stream.getvalue())
    return out


def read_sound(data: bytes, folder: Path) -> None:
    (folder / "a.wav").write_bytes(data)
    (samples,) = sounds_of(str(folder / "a.wav"), None, 16_000)
    assert abs(samples).max() <= 1.0


def long_sound() -> bytes:
    """A head that promises 4 GB."""
    data = bytearray(sounds()[0])
    data[4:8] = data[40:44] = struct.pack("<I", 2**32 - 9)
    return bytes(data)


CHECKPOINT_FILES = {
    "weights": file_of(checkpoint, "model.safetensors"),
    "model config": file_of(checkpoint, "config.json"),
    "tokenizer": file_of(checkpoint, "tokenizer.json", None),
    "pruned mark": file_of(pruned, "manyheads.json"),
    "pruned weights": file_of(unsigned, "pruned.safetensors"),
    "signed pruned weights": file_of(pruned, "pruned.safetensors"),
}
BOMBS: dict[str, dict[str, Any]] = {
    "model config": {
        "wide": config_bomb(hidden_size=400_000, num_attention_heads=5),
        "layers": config_bomb(num_hidden_layers=10**7),
        "words": config_bomb(vocab_size=2**40),
        "positions": config_bomb(max_position_embeddings=2**40),
        "deep": DEEP_JSON,
    },
    "pruned mark": {"deep": DEEP_JSON},
}
FILE_TARGETS = (
    Target("recording", recordings, read_recording, {
        "header": HUGE_HEADER, "long header": LONG_HEADER, "texts": lambda: padded(20_000, 4_900),
        "much padding": lambda: padded(2_000, 2_000)}, megabytes=1024),
    Target("recording header", recording_headers, read_signed, {}),
    Target("training checkpoint", training_checkpoints, read_training, {"header": HUGE_HEADER}),
    Target("picture", pictures, read_picture, {"wide": wide_picture}, megabytes=1024),
    Target("sound", sounds, read_sound, {"long": long_sound}),
    *(Target(name, make, read, BOMBS.get(name, {}), costly=True) for name, (make, read) in CHECKPOINT_FILES.items()),
)  # fmt: skip


# ================================================================================================================ plans
# Readers of plans' files and of the tensors beside them.

COMPUTED = {"file": "p.safetensors", "corpus": "c", "model": "m", "texts": 2, "tokens": 9}
# As saved before there were checksums, which would refuse every damage alike.
PLAN = {"format": 1, "steps": [{"step": "ablate", "heads": "L0", "kind": "mean"}], "computed": COMPUTED}


PLAN_BOMBS = {"deep": DEEP_JSON, "lists": b'{"steps": [], "computed": [' + b"[]," * 1_300_000 + b"[]]}"}  # all that fit


@cache
def plan_tensors() -> list[bytes]:
    """One file, the same every time. (safetensors puts metadata in an order of its own on every call.)"""
    tensors = {"mean:L0": torch.zeros(4, 9), "position:L0": torch.zeros(3, 4, 9), "texts:L0": torch.ones(2, 3, 4, 9)}
    return [save({**tensors, "texts:L0:lengths": torch.tensor([3, 1])}, {"corpus": "c", "model": "m"})]


def signed_plan() -> list[bytes]:
    return [json.dumps({**PLAN, "computed": {**COMPUTED, "sha256": sha256(plan_tensors()[0]).hexdigest()}}).encode()]


def read_plan_file(plan: bytes, tensors: bytes, folder: Path) -> None:
    (folder / "p.json").write_bytes(plan)
    (folder / "p.safetensors").write_bytes(tensors)
    opened = open_plan(folder / "p.json")
    site, places = Site("", 0, "a", 4, 2, 9, 9, True), torch.arange(5)[None]
    if opened.plans[0] == Plan.from_dict(PLAN) and opened.computed.tensors:  # what is opened is of use, or is refused
        for each in (Ablate("L0", kind="mean", per_position=True), Ablate("L0", kind="resample")):
            put = opened.computed.means if each.kind == "mean" else opened.computed.elsewhere
            assert put(each, site, [0, 3], places).isfinite().all()


PLAN_FILE_TARGETS = (
    Target("plan file", lambda: [json.dumps(PLAN).encode(), *signed_plan()],
           lambda data, folder: read_plan_file(data, plan_tensors()[0], folder), PLAN_BOMBS),
    Target("plan tensors", plan_tensors,
           lambda data, folder: read_plan_file(json.dumps(PLAN).encode(), data, folder), {"header": HUGE_HEADER}),
    Target("signed plan tensors", plan_tensors,
           lambda data, folder: read_plan_file(signed_plan()[0], data, folder), {"header": HUGE_HEADER}),
)  # fmt: skip


# =================================================================================================== runs over a corpus
# Readers of what a run over a corpus left in its folder: the run is gone on with, to its table.

TEXTS = some_texts(6)


class Stopped(BaseException):
    pass


@cache
def states() -> Path:
    """Three folders of a run: `half`, stopped before its end, `merged`, the same with its parts merged, and `whole`."""
    lm = tiny_lm()
    mh.measure(lm, TEXTS, ["entropy", "previous_mass"], resume=base() / "whole")
    for name, most in (("half", store.MOST_PARTS), ("merged", 0)):
        with pytest.MonkeyPatch.context() as patch, suppress(Stopped):
            patch.setattr(store, "MOST_PARTS", most)
            patch.setattr(store.RunFolder, "finish", _stop)
            mh.measure(lm, TEXTS, ["entropy", "previous_mass"], resume=base() / name)
    return base()


def _stop(*_: object) -> None:
    raise Stopped


def state_of(which: str, pattern: str, header: bool = False) -> tuple[Any, Read]:
    """The examples of one file of a run's folder (or its header), and a reader that goes on from it."""

    def name() -> Path:
        return next((states() / which).glob(pattern))

    def examples() -> list[bytes]:
        data = name().read_bytes()
        return [json.dumps(split(data)[0]).encode()] if header else [data]

    def read(data: bytes, folder: Path) -> None:
        place = folder / which
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(states() / which, place)
        (place / name().name).write_bytes(signed(data, split(name().read_bytes())[1]) if header else data)
        try:
            table = mh.measure(lm_of_states(), TEXTS, ["entropy", "previous_mass"], resume=place)
            assert table.sums.num_texts <= len(TEXTS) or header
        finally:
            shutil.rmtree(place)

    return examples, read


@cache
def lm_of_states() -> Any:
    return tiny_lm()


STATES = {
    "run": state_of("half", "run.safetensors"),
    "run header": state_of("half", "run.safetensors", header=True),
    "part": state_of("half", "part-*.safetensors"),
    "part header": state_of("half", "part-*.safetensors", header=True),
    "merged part": state_of("merged", "part-*-sum-of-*.safetensors"),
    "merged part header": state_of("merged", "part-*-sum-of-*.safetensors", header=True),
    "finished": state_of("whole", "finished.safetensors"),
    "finished header": state_of("whole", "finished.safetensors", header=True),
}
STATE_TARGETS = tuple(
    Target(name, make, read, {"header": HUGE_HEADER}, costly=True) for name, (make, read) in STATES.items()
)
