"""Readers of files that say something of heads: sums, splits, other projects' lists, a training's history, its site."""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import save

import manyheads as mh
from manyheads.circuits.pairs import metric_of, read_pairs
from manyheads.cli.circuits import given_pairs
from manyheads.compat import read_vllm_hook
from manyheads.corpora import as_corpus
from manyheads.errors import HeadError, ManyHeadsError
from manyheads.heads import Head
from manyheads.lab.reproductions import wu_scores
from manyheads.lab.reproductions.reproduction import Task
from manyheads.lab.training.session import BEGUN, open_folder
from manyheads.long_context.split_layer import split_layers
from manyheads.studio import StudioSession, Workspace
from manyheads.studio.outside.site import MARK, require_publishable
from manyheads.studio.server.serve import guarded
from manyheads.studio.state.workspace import ModelPlace
from manyheads.studio.views.training import Histories
from manyheads.watching import HeadHistory, open_history
from tests.measurement.corpus_runs import some_texts, tiny_lm
from tests.models.tiny import tiny_bert, tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.robustness.file_targets import HUGE_HEADER, base, signed, split
from tests.robustness.target import DEEP, DEEP_JSON, Read, Target

LISTS_MB = 640.0  # JSON of 16 MB, the largest list of heads that is read, is up to 25 times as large in memory

# ---------------------------------------------------------------------------------------------------- sums of HeadSums


@cache
def sums() -> list[bytes]:
    """One shard of two, and a whole list of texts."""
    out = []
    for texts in (as_corpus(some_texts(6)).shard(1, 2), some_texts(3)):
        path = base() / "part.sums"
        mh.HeadSums(tiny_lm(), ["entropy", "max_logit"]).update(texts).save(path)
        out.append(path.read_bytes())
    return out


def read_sums(data: bytes, folder: Path) -> None:
    (folder / "a.sums").write_bytes(data)
    found = mh.HeadSums.open(folder / "a.sums")
    assert isinstance(found.missing, tuple) and str(found)
    found.table().to_pandas()


def sums_words() -> list[bytes]:
    """What a file says beside its numbers."""
    return [split(sums()[0])[0]["__metadata__"]["about"].encode()]


def read_sums_words(data: bytes, folder: Path) -> None:
    """Signed, as by somebody who means harm."""
    header, tensors = split(sums()[0])
    header["__metadata__"]["about"] = data.decode("utf-8", "replace")
    read_sums(signed(json.dumps(header).encode(), tensors), folder)


def many_shards() -> bytes:
    return sums_words()[0].replace(b"1 of 2", b"1 of 999999999999")


def no_reading() -> bytes:
    return sums_words()[0].replace(b'"reading"', b'"readings"')


# ---------------------------------------------------------------------------------------------- splits, lists of heads


@cache
def of_lists() -> Any:
    return mh.load(tiny_llama(2), tokenizer=False)


@cache
def head_split() -> mh.HeadSplit:
    """Of 3 layers of 6 query heads on 2 key/value heads."""
    lm, scores = of_lists(), {0: (0.5, 0.25), 1: (0.125, 0.75), 2: (0.875, 0.0)}
    kept = {layer: tuple(score >= 0.5 for score in values) for layer, values in scores.items()}
    layers = split_layers(lm, "", kept, scores, {})
    evidence = {"loss": {"whole": 1.5, "split": 1.6}, "curve": [[0.5, 1.6], [1.0, 1.5]]}
    return mh.HeadSplit(lm.name, lm.weights_hash, "", layers, 4, 64, "effect", "nats", "group", evidence, {"a": "b"})


def splits() -> list[bytes]:
    return [json.dumps(head_split().to_dict()).encode()]


def read_split(data: bytes, folder: Path) -> None:
    (folder / "a.json").write_bytes(data)
    found = mh.HeadSplit.open(folder / "a.json")
    assert mh.HeadSplit.from_dict(found.to_dict()) == found and str(found) and 0 <= found.keep <= 1
    assert len(found.retrieval) + len(found.streaming) == sum(found.shape[found.stack])
    assert found.cache_bytes(10**6, element_bytes=0.5) <= found.cache_bytes(10**6, element_bytes=0.5, whole=True)
    found.with_keep(0.5).to_pandas()
    with suppress(HeadError):
        found.ablation()
    found.require_model(of_lists())


def many_heads() -> bytes:
    document = head_split().to_dict()
    layer = document["layers"][0] | {"num_heads": 2 * 10**9}
    return json.dumps({**document, "layers": [layer]}).encode()


@cache
def exported(format: str) -> dict[str, bytes]:
    """The files of an export by name, the list itself first."""
    place = base() / {"duo": "duo", "lukv": "list.npy"}.get(format, "list.json")
    files = head_split().export(format, place)
    out = {file.name: file.read_bytes() for file in files}
    for file in files:
        file.unlink()
    return out


FILES = ("headkv", "lukv", "minference", "vllm-hook", "llama.cpp")


def lists() -> list[bytes]:
    return [next(iter(exported(format).values())) for format in FILES] + [b"0:0,3;2:1\n"]


def read_list(data: bytes, folder: Path) -> None:
    """Whatever it is: its format is told from its bytes."""
    (folder / "list.json").write_bytes(data)
    try:
        found = mh.read_heads(folder / "list.json", of_lists())
    except HeadError:
        found = mh.read_heads(folder / "list.json", of_lists(), keep=0.5)
    assert sum(len(layer.kept) for layer in found.layers) == 6


def beside(format: str, name: str, meant: str) -> tuple[Any, Read]:
    """One file of an export that has several, and a reader of all of them."""

    def read(data: bytes, folder: Path) -> None:
        place = folder / meant
        for file, content in exported(format).items():
            to = place / file if format == "duo" else folder / file
            to.parent.mkdir(exist_ok=True)
            to.write_bytes(data if file == name else content)
        assert len(mh.read_heads(place, of_lists()).layers) == 3

    return lambda: [exported(format)[name]], read


def gates_alone(data: bytes, folder: Path) -> None:
    """The digest would refuse every damage alike."""
    config = json.loads(exported("duo")["config.json"])
    del config["manyheads"]
    (folder / "duo").mkdir(exist_ok=True)
    (folder / "duo" / "config.json").write_text(json.dumps(config))
    (folder / "duo" / "full_attention_heads.tsv").write_bytes(data)
    mh.read_heads(folder / "duo", of_lists(), keep=0.5)


def read_scores(data: bytes, folder: Path) -> None:
    (folder / "Yi-6B-200K.json").write_bytes(data)
    result = wu_scores.run(Task(folder, 0, file=folder / "Yi-6B-200K.json"))
    json.dumps([row.to_dict() for row in result.rows], allow_nan=False)


# ------------------------------------------------------------------------------------------------ a watched training

HEADS = [Head("", 0, 0), Head("", 0, 1), Head("cross", 1, 0)]


def facts() -> dict[str, Any]:
    return {"run": "a", "model": "tiny", "kind": "causal", "every": 10, "sites": [], "because": ["seen"], "meaning": {}}


@cache
def histories() -> list[bytes]:
    path = base() / "heads.parquet"
    with HeadHistory(path, HEADS, ["max_logit", "entropy"], facts()) as writer:
        for step in (0, 10, 20):
            writer.append(step, np.add.outer(np.arange(3.0), [0.5 + step, 0.25]))
    return [(path / "part-000000.parquet").read_bytes()]


def read_history(data: bytes, folder: Path) -> None:
    """As the room Training does, and then as the training that goes on."""
    place = folder / "heads.parquet"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "part-000000.parquet").write_bytes(data)
    room = Histories(Workspace(histories={"a": place}))
    for statistic in room.state(Workspace.history_id("a")).statistics:
        room.drawn(Workspace.history_id("a"), statistic.name)
    with HeadHistory(place, HEADS, ["max_logit", "entropy"], facts()) as writer:
        writer.append(30, np.zeros((3, 2)))
    assert open_history(place).steps[-1] == 30


def history_facts() -> list[bytes]:
    return [pq.read_schema(io.BytesIO(histories()[0])).metadata[b"manyheads"]]


def read_history_facts(data: bytes, folder: Path) -> None:
    table = pq.read_table(io.BytesIO(histories()[0]))
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({b"manyheads": data}), out)
    read_history(out.getvalue(), folder)


def rows_of_a_history(step: Any, head: Any) -> bytes:
    count = len(step)
    columns = {"step": step, "stack": pa.array([""] * 1).take(pa.array(np.zeros(count, np.int32)))}
    columns |= {"layer": np.zeros(count, np.int64), "head": head, "entropy": np.full(count, 0.5)}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def many_rows() -> bytes:
    """Some kB, which say the same of 8 million rows: a GB where all of them are numbers."""
    return rows_of_a_history(np.zeros(8_000_000, np.int64), np.zeros(8_000_000, np.int64))


def a_diagonal() -> bytes:
    """Every row another step and another head: 20,000 rows, and 400 million numbers where all are there."""
    return rows_of_a_history(np.arange(20_000), np.arange(20_000))


# --------------------------------------------------------------------------------- vLLM-Hook, folders of ours, pairs


@cache
def hooked() -> dict[str, bytes]:
    """One rank's two files, of two layers of 4 heads on 2 and two texts."""
    tensors, order = {}, []
    for layer in range(2):
        names = {f"key_{part}": f"l{layer}__{part}" for part in "qk"}
        generator = torch.Generator().manual_seed(layer)
        tensors |= {names[f"key_{x}"]: torch.randn(2, 5, n * 3, generator=generator) for x, n in (("q", 4), ("k", 2))}
        order.append({**names, "module_name": f"layers.{layer}", "layer_num": layer})
    config = {"num_attention_heads": 4, "hidden_size": 12, "attention_multiplier": 3**-0.5}
    about = {"config": config, "layer_order": order, "seq_lens": [5, 3]}
    return {"qk.json": json.dumps(about).encode(), "qk.safetensors": save(tensors)}


def narrow() -> bytes:
    """A model narrower than it has heads."""
    return hooked()["qk.json"].replace(b'"hidden_size": 12', b'"hidden_size": 3')


def hook_file(name: str) -> tuple[Any, Read]:
    def read(data: bytes, folder: Path) -> None:
        place = folder / "tp_rank_0"
        place.mkdir(exist_ok=True)
        for file, content in (hooked() | {name: data}).items():
            (place / file).write_bytes(content)
        for layer in read_vllm_hook(folder).layers:
            layer.weights(head=0, text=0)

    return lambda: [hooked()[name]], read


def marks() -> list[bytes]:
    site = {"format": "manyheads-site", "format_version": "1", "title": "a", "workspace": {"files": [{"name": "cat"}]}}
    return [json.dumps(site).encode()]


def read_mark(data: bytes, folder: Path) -> None:
    """A folder that is to be replaced by a new site says of what it is, or nothing."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / MARK).write_bytes(data)
    assert isinstance(require_publishable(folder / "site", (), ["a cat"]), str)


OPTIONS = {"reproduction": "wu-scores", "seeds": 3, "quick": False, "file": None}


def read_begun(data: bytes, folder: Path) -> None:
    """A folder of a training or a reproduction is gone on with, or is another's."""
    (folder / BEGUN).write_bytes(data)
    open_folder(folder, OPTIONS)


@cache
def of_pairs() -> Any:
    return mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))


def pairs() -> list[bytes]:
    rows = [("the cat sat", "the dog sat"), ("a dog ran", "a cat ran")]
    return [b"\n".join(json.dumps({"clean": clean, "corrupted": corrupted, "right": "cat", "wrong": "dog"}).encode()
                       for clean, corrupted in rows)]  # fmt: skip


def read_pairs_file(data: bytes, folder: Path) -> None:
    (folder / "pairs.jsonl").write_bytes(data)
    clean, corrupted, answers = given_pairs(None, None, None, None, folder / "pairs.jsonl", "logit_diff")
    found = read_pairs(of_pairs(), clean.given, corrupted.given, 100)
    metric_of(of_pairs(), found, "logit_diff", answers, False)


HEAD_FILE_TARGETS = (
    Target("sums", sums, read_sums, {"header": HUGE_HEADER}),
    Target("sums words", sums_words, read_sums_words,
           {"shards": many_shards, "no reading": no_reading, "deep": DEEP_JSON}),
    Target("split", splits, read_split, {"heads": many_heads, "deep": DEEP_JSON}),
    Target("head list", lists, read_list, {"lists": lambda: b"[" + b"{}," * (5 << 20) + b"{}]", "deep": DEEP_JSON},
           megabytes=LISTS_MB),
    Target("duo gates", lambda: [exported("duo")["full_attention_heads.tsv"]], gates_alone,
           {"gates": lambda: b"1\n" * (15 << 20)}),
    Target("duo config", *beside("duo", "config.json", "duo"), {"deep": DEEP_JSON}),
    Target("list's model", *beside("headkv", "list.json.manyheads.json", "list.json"), {"deep": DEEP_JSON}),
    Target("retrieval scores", lambda: [b'{"0-0": [0.5, 0.25], "0-1": [0, 1], "12-31": [0.125]}'], read_scores,
           {"deep": DEEP_JSON}),
    Target("history", histories, read_history, {"rows": many_rows, "diagonal": a_diagonal}),
    Target("history facts", history_facts, read_history_facts, {"deep": DEEP_JSON}),
    Target("vllm-hook json", *hook_file("qk.json"), {"narrow": narrow, "deep": DEEP_JSON}),
    Target("vllm-hook tensors", *hook_file("qk.safetensors"), {"header": HUGE_HEADER}),
    Target("site", marks, read_mark, {"deep": DEEP_JSON}),
    Target("run.json", lambda: [json.dumps(OPTIONS).encode()], read_begun, {"deep": DEEP_JSON}),
    Target("pairs", pairs, read_pairs_file, {"deep": DEEP_JSON}),
)  # fmt: skip


# ============================================================================================================= requests
# The studio's server as a reader: raw requests, through its guard, to its answer and to the end of what they began.

PLAN = [{"step": "ablate", "heads": "L0H1", "kind": "mean"}]
WORDS = {"num_layers": 3, "embed_dim": 48, "num_heads": 6, "ffn_dim": 68, "vocab_size": 101}
GETS = (
    "/", "/studio.js", "/api/workspace", "/api/presets", "/api/lessons", "/api/lessons/counting?seed=3",
    "/api/recordings/REC?text=0", "/api/recordings/REC/atlas", "/api/recordings/REC/heads/L0H1",
    "/api/recordings/REC/thumbnails?size=4&how=max", "/api/recordings/REC/tiles/L0H1/0/0/0?rows=all",
    "/api/recordings/REC/rows/L0H1/2", "/api/recordings/REC/table?format=json",
    "/api/recordings/REC/window/L0H1?queries=1:3&keys=:4", "/api/jobs/0011223344556677?wait=0.01",
    "/api/histories", "/api/histories/HIST", "/api/histories/HIST/curves/entropy", "/api/histories/HIST/heads/L0H1",
)  # fmt: skip
PAIR = {"model": "gpt", "clean": "the cat sat", "corrupted": "the dog sat", "right": "cat", "wrong": "dog"}
POSTS: dict[str, Any] = {
    "/api/recordings": {"model": "tiny", "text": "a cat", "plan": PLAN},
    "/api/experiments": {"model": "tiny", "text": "the cat sat", "plan": PLAN, "controls": 1, "metric": "auto"},
    "/api/prunings": {"model": "tiny", "heads": "L0H0", "name": "small"},
    "/api/sizes": {"words": WORDS, "context": 64, "batch": 2, "dtype": "fp16"},
    "/api/lessons/counting/checks/x": {"answer": "3", "inputs": {"heads": 4}},
    "/api/recordings/REC/heads/L0H1/worth?kind=zero": {},
    "/api/recordings/REC/importance": {},
    "/api/circuits/pairs": PAIR,
    "/api/circuits/effects": {**PAIR, "what": "v", "controls": 1},
    "/api/circuits/writing": {**PAIR, "head": "L1H2"},
    "/api/circuits/paths": {**PAIR, "head": "L1H2", "direction": "noise"},
    "/api/circuits/alone": {**PAIR, "heads": "L0H1, L2H3"},
}


@cache
def desk() -> StudioSession:
    """A studio of two tiny models and a training's history, that may write nothing."""
    made = StudioSession(Workspace())
    predicts = mh.load(tiny_gpt2(), tokenizer=tiny_tokenizer(special_tokens=False))
    made.workspace.models["gpt"] = ModelPlace("gpt", predicts, "gpt")
    (base() / "part.parquet").write_bytes(histories()[0])
    made.workspace.histories["part.parquet"] = base() / "part.parquet"
    lm = mh.load(tiny_bert(), tokenizer=tiny_tokenizer())
    made.workspace.models["tiny"] = ModelPlace("tiny", lm, "tiny")
    made.recordings.add(mh.record(lm, "the cat sat on the mat"), "a cat")
    return made


def requests() -> list[bytes]:
    """A request line, header lines, an empty line, a body."""
    name = next(iter(desk().recordings.opened))
    history = Workspace.history_id("part.parquet")
    gets = [path.replace("REC", name).replace("HIST", history) for path in GETS]
    out = [f"GET {path}\nhost: 127.0.0.1\naccept-encoding: gzip\n\n".encode() for path in gets]
    head = "\nhost: localhost:8765\norigin: http://localhost:8765\ncontent-type: application/json\n\n"
    out += [f"POST {path.replace('REC', name)}{head}{json.dumps(body)}".encode() for path, body in POSTS.items()]
    return out


def bodies() -> list[bytes]:
    """Of one request, what is JSON: {path: body}."""
    name = next(iter(desk().recordings.opened))
    return [json.dumps({path.replace("REC", name): body}).encode() for path, body in POSTS.items()]


def read_body(data: bytes, folder: Path) -> None:
    """Damage of the JSON alone, so that more of it gets past the parser."""
    try:
        found = json.loads(data)
        ((path, body),) = found.items()
        sent = json.dumps(body).encode("utf-8", "surrogatepass")
    except (ValueError, AttributeError, RecursionError, TypeError):
        path, sent = "/api/sizes", data
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    asked(b"POST", path.encode("utf-8", "surrogatepass"), headers, sent)


def read_request(data: bytes, folder: Path) -> None:
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, path = first.partition(b" ")
    headers = [tuple(part.strip() for part in line.partition(b":")[::2]) for line in lines]
    asked(method, path, [(key.lower(), value) for key, value in headers], body)


def asked(method: bytes, path: bytes, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """Raises ManyHeadsError for a refusal, as any other reader does, and AssertionError for a fault of ours."""
    where, _, query = path.partition(b"?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method.decode("latin-1"),
        "scheme": "http", "path": unquote(where.decode("latin-1")), "raw_path": where, "query_string": query,
        "root_path": "", "headers": headers, "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    status, answer = asyncio.run(_asked(scope, body))
    assert status < 500 or status == 503, (status, answer[:500])
    job = json.loads(answer) if status == 202 else {}
    until = time.monotonic() + 10
    while job and job["state"] == "running" and time.monotonic() < until:
        job = asyncio.run(desk().jobs.wait(job["id"], 1.0)).model_dump()
    if job:
        assert job["state"] != "running" and (job["problem"] or {}).get("kind") != "Fault", job
    if status >= 400:
        raise ManyHeadsError(json.loads(answer)["words"])


async def _asked(scope: dict[str, Any], body: bytes) -> tuple[int, bytes]:
    status, parts, given = [500], [], []

    async def receive() -> dict[str, Any]:
        if given:
            await asyncio.sleep(3600)
        given.append(True)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            status[0] = message["status"]
        parts.append(message.get("body", b""))

    await guarded(desk())(scope, receive, send)
    return status[0], b"".join(parts)


def post(path: str, body: bytes) -> bytes:
    return f"POST {path}\nhost: localhost\ncontent-type: application/json\n\n".encode() + body


REQUEST_TARGETS = (
    Target("request", requests, read_request, {
        "deep": post("/api/sizes", b"[" * 30 * DEEP),
        "long number": post("/api/sizes", b'{"context": ' + b"9" * 5000 + b"}"),
        "large": post("/api/sizes", b'{"model": "' + b"a" * 4_000_000 + b'"}'),
        "lists": post("/api/sizes", b"[" + b"[]," * 999_000 + b"1]"),
        "layers": post("/api/sizes", json.dumps({"words": {**WORDS, "num_layers": 10**9}}).encode()),
        "context": post("/api/sizes", json.dumps({"words": WORDS, "context": 10**30}).encode()),
    }, costly=True),
    Target("body", bodies, read_body, {}, costly=True),
)  # fmt: skip
