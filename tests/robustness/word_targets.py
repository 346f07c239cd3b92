"""Readers of words: plans, heads, descriptions, configs, lessons, and what is kept on the user's machine."""

from __future__ import annotations

import gzip
import io
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

import manyheads as mh
from manyheads.corpora import open_corpus
from manyheads.errors import ModelError
from manyheads.heads import Head, in_layer, parse_heads, written
from manyheads.lab.lessons import Progress, shelf
from manyheads.lab.lessons.lesson import read_lesson
from manyheads.lab.room import CellAsk
from manyheads.lab.room import views as learning
from manyheads.lab.room.schema import CheckAsk
from manyheads.roles import HeadRole, PageLabels
from manyheads.roles.labels import Evidence
from manyheads.roles.page_labels import _remember, remembered
from manyheads.sizing import size
from manyheads.sizing.architecture.config import read_config
from manyheads.spec import ModelSpec
from manyheads.texts import Sinks
from tests.models.tiny import tiny_llama
from tests.robustness.target import DEEP_JSON, DIGITS, Read, Target

SHAPES = ({"": (12,) * 6}, {"encoder": (6, 6), "cross": (0, 4)}, {"": (4, 2), "b": (0,)}, {})


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


# --------------------------------------------------------------------------------------------------- plans and heads


def plans() -> list[bytes]:
    every = [
        mh.Plan([mh.Ablate("L3H7", kind="mean", per_position=True), mh.Scale("L0H1, L2", 0.5), mh.Average("L2")]),
        mh.Plan([mh.Copy("L*", source="L*H0"), mh.Ablate("encoder:L0-2H1-3", kind="resample", text="a cat", seed=7)]),
        mh.Plan([mh.SkipOutputProjection(2), mh.Ablate("L1H2-3", kind="streaming", sink=4, recent=64)]),
    ]
    return [plan.to_json().encode() for plan in every]


def read_plan(data: bytes, folder: Path) -> None:
    plan = mh.Plan.from_json(text(data))
    assert mh.Plan.from_json(plan.to_json()) == plan and isinstance(str(plan), str)
    for step in plan.steps:
        parse_heads(step.heads, SHAPES[0])


def read_heads(data: bytes, folder: Path) -> None:
    """Each part of the grammar's own, so that what one refuses does not hide what another does."""
    asked, refusals = text(data), []
    readers: list[Callable[[], object]] = [lambda: Head.parse(asked), lambda: written(asked)]
    readers += [lambda shape=shape: parse_heads(asked, shape) for shape in SHAPES]
    readers += [lambda: in_layer(asked, "", 1, 4)]
    for read in readers:
        try:
            read()
        except mh.errors.HeadError as error:
            refusals.append(error)
    if len(refusals) == len(readers):
        raise refusals[0]


# ------------------------------------------------------------------------------------------- descriptions and configs


def specs() -> list[bytes]:
    lm = mh.load(tiny_llama(2), tokenizer=False)
    return [lm.spec.to_json().encode()]


def read_spec(data: bytes, folder: Path) -> None:
    spec = ModelSpec.from_json(text(data))
    assert ModelSpec.from_json(spec.to_json()) == spec
    mh.size(spec)


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
              "intermediate_size": 68, "vocab_size": 101, "max_position_embeddings": 80},
    "gemma2": {"hidden_size": 44, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
               "head_dim": 10, "intermediate_size": 52, "vocab_size": 101, "sliding_window": 7,
               "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "gpt2": {"n_embd": 36, "n_layer": 3, "n_head": 4, "n_positions": 96, "vocab_size": 101, "n_inner": None},
    "bert": {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5, "intermediate_size": 56,
             "vocab_size": 101, "max_position_embeddings": 64, "type_vocab_size": 2, "architectures": ["BertModel"]},
    "t5": {"d_model": 24, "d_kv": 6, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 101},
    "vit": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 36,
            "image_size": 32, "patch_size": 8, "num_channels": 3},
    "mixtral": {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
                "intermediate_size": 68, "vocab_size": 101, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 101,
                    "intermediate_size": 68, "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8,
                    "qk_rope_head_dim": 4, "v_head_dim": 8, "first_k_dense_replace": 1, "moe_intermediate_size": 20,
                    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
}  # fmt: skip


def configs() -> list[bytes]:
    return [json.dumps({"model_type": family, **fields}).encode() for family, fields in CONFIGS.items()]


def read_config_file(data: bytes, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    found = size(read_config(folder))
    assert found.num_parameters >= 0 and str(found)
    json.dumps(found.to_dict())


def config_bomb(**fields: Any) -> bytes:
    return json.dumps({"model_type": "llama", **CONFIGS["llama"], **fields}).encode()


# ------------------------------------------------------------------------------------------------------------- lessons


def no_models(name: str) -> object:
    raise ModelError("no models here: only what lessons read is tried.")


def answers() -> list[bytes]:
    """An ask of every check, with an answer that is seldom right, and one of every cell."""
    out: list[dict[str, Any]] = []
    for lesson in shelf.lessons().values():
        for check in lesson.checks.values():
            given = (*check.choices, "1,050.5 GiB")[0]
            ask = {"answer": given, "inputs": dict(shelf.inputs_of(check, {})), "cell": {}}
            out.append({"lesson": lesson.slug, "check": check.name, "ask": ask})
        for cell in lesson.cells.values():
            values = {each.name: each.value for each in shelf.parameters_of(cell)}
            out.append({"lesson": lesson.slug, "cell": cell.name, "ask": {"parameters": values}})
    return [json.dumps(each).encode() for each in out]


def read_answer(data: bytes, folder: Path) -> None:
    """As the studio's server takes it: what pydantic refuses never gets further."""
    asked = as_object(data)
    lesson, ask = str(asked.get("lesson")), asked.get("ask")
    with suppress(ValidationError):
        if "cell" in asked:
            values = CellAsk.model_validate(ask)
            learning.run_cell(lesson, str(asked["cell"]), values, progress=lambda *_: None, load=no_models)
        else:
            learning.check(lesson, str(asked.get("check")), CheckAsk.model_validate(ask), load=no_models)


def as_object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def lesson_pages() -> list[bytes]:
    return [shelf.PAGES[slug].read_bytes() for slug in list(shelf.lessons())[:3]]


def read_page(data: bytes, folder: Path) -> None:
    shelf.checked(read_lesson("fuzzed", data.decode("utf-8", "replace")))


def read_progress(data: bytes, folder: Path) -> None:
    (folder / "lessons.json").write_bytes(data)
    found = Progress(folder)
    done, points = found.of("one-head", {"a": 1, "sharper": 2})
    assert done >= 0 and points >= 0
    found.reach("one-head", "sharper", 2)
    assert Progress(folder).points["one-head"]["sharper"] >= 2 and not found.trouble


def labels() -> list[bytes]:
    """As `label_page` keeps them."""
    role = HeadRole(Head("", 3, 7), "previous token", Evidence("previous_mass", 0.5, 0.1, 0.4, 0.6, 90, None, "it is"))
    sinks = Sinks(first=True, ids=(3,), names=(".",), because="a test")
    found = PageLabels((role,), {"L3H7": {"entropy": 1.5}}, sinks, {"model": "tiny"}, 7, 90, "measured now")
    with TemporaryDirectory() as folder:
        _remember(found, Path(folder) / "page.json")
        return [(Path(folder) / "page.json").read_bytes()]


def read_remembered(data: bytes, folder: Path) -> None:
    """It is what was kept, or measured again."""
    (folder / "page.json").write_bytes(data)
    found = remembered(folder / "page.json")
    assert found is None or found.roles[0].evidence.score == 0.5


def points() -> list[bytes]:
    return [b'{"version": 1, "points": {"one-head": {"sharper": 2, "a": 1}}}']


LONG_FACTOR = b'{"steps": [{"step": "scale", "heads": "L0", "factor": ' + DIGITS + b"}]}"
LONG_ANSWER = b'{"lesson": "counting", "check": "head-parameters", "ask": {"answer": "' + DIGITS + b'"}}'
CONFIG_BOMBS = {
    "deep": DEEP_JSON,
    "layers": config_bomb(num_hidden_layers=10**9),
    "more layers": config_bomb(num_hidden_layers=10**30),
    "wide": config_bomb(hidden_size=10**400),
}
HEAD_BOMBS = {
    "long number": b"L" + DIGITS + b"H1",
    "long span": b"L0H0-" + DIGITS,
    "layers": b"L0-999999999999",
    "heads": b"L*H0-999999999",
}

WORD_TARGETS = (
    Target("plan", plans, read_plan, {"deep": DEEP_JSON, "long factor": LONG_FACTOR}),
    Target("heads", lambda: [b"L3H7", b"L3, L0H0-5, L*H7", b"encoder:L0H1", b"cross:L*"], read_heads, HEAD_BOMBS),
    Target("spec", specs, read_spec, {"deep": DEEP_JSON, "long number": b'{"name": ' + DIGITS + b"}"}),
    Target("config", configs, read_config_file, CONFIG_BOMBS),
    Target("answer", answers, read_answer, {"long number": LONG_ANSWER}),
    Target("lesson", lesson_pages, read_page, {}),
    Target("progress", points, read_progress, {"deep": DEEP_JSON}),
    Target("labels", labels, read_remembered, {"deep": DEEP_JSON}),
)


# ================================================================================================= texts to be measured
# Readers of texts to be measured: plain ones, JSON lines, treebanks, packed or not, and folders of them.

PARTED = b"\n--8<--\n"  # between the files of a folder
CORPUS_TEXTS = 500  # of a corpus read to its end: no example has so many

CONLLU = """# newdoc id = d1
# global.Entity = GRP-etype-infstat-minspan-centering-link-identity
# sent_id = d1-1
# text = The cat's mat isn't here.
1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\tEntity=(1-animal-new-2-cf1-coref
2-3\tcat's\t_\t_\t_\t_\t_\t_\t_\t_
2\tcat\tcat\tNOUN\tNN\tNumber=Sing\t4\tnmod:poss\t_\tEntity=1)
3\t's\t's\tPART\tPOS\t_\t2\tcase\t_\t_
4\tmat\tmat\tNOUN\tNN\t_\t7\tnsubj\t_\t_
5-6\tisn't\t_\t_\t_\t_\t_\t_\t_\t_
5\tis\tbe\tAUX\tVBZ\t_\t7\tcop\t_\t_
6\tn't\tnot\tPART\tRB\t_\t7\tadvmod\t_\t_
7\there\there\tADV\tRB\t_\t0\troot\t_\tSpaceAfter=No|Entity=(2-place-giv-1-cf2-ana)
8\t.\t.\tPUNCT\t.\t_\t7\tpunct\t_\t_
8.1\tgone\tgo\tVERB\tVBN\t_\t_\t_\t7:dep\t_

# sent_id = d1-2
1\tIt\tit\tPRON\tPRP\t_\t2\tnsubj\t_\tEntity=(1-animal-giv-1-cf1-ana)
2\tsat\tsit\tVERB\tVBD\t_\t0\troot\t_\t_

"""


def corpus_of(name: str, **options: Any) -> Read:
    """A reader of one file of a corpus, to its end."""

    def read(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        documents = list(islice(open_corpus(folder / name, **options).open(), CORPUS_TEXTS))
        for each in documents:
            assert each.text or each.problem, each
            for word in each.gold.words if each.gold else ():
                assert 0 <= word.begin < word.end <= len(each.text)

    return read


def read_folder(data: bytes, folder: Path) -> None:
    """Several files at once: parts of the data, each by another ending."""
    names = ("a.txt", "b/c.jsonl", "b/d.conllu", "e.txt.gz", "f.md", "g.unknown", "noending")
    shutil.rmtree(folder / "corpus", ignore_errors=True)
    (folder / "corpus" / "b").mkdir(parents=True)
    for name, part in zip(names, data.split(PARTED), strict=False):
        (folder / "corpus" / name).write_bytes(part)
    list(islice(open_corpus(folder / "corpus").open(), CORPUS_TEXTS))


def texts() -> list[bytes]:
    return [
        b"The cat sat.\n\nOn the  mat,\tand\r\nslept.\n",
        "\ufeffÜber שלום \U0001f600\n\n\n".encode(),
        b"one line, no end",
    ]


def json_lines() -> list[bytes]:
    return [
        b'{"text": "The cat sat.", "id": 3}\n{"text": "\\u00fcber"}\n\n{"other": [1, {"a": null}]}\n{"text": "  "}\n',
        b'["no object"]\n{"text": 3}\n{"text": "\\ud800"}\n',
    ]


def packed(examples: list[bytes]) -> list[bytes]:
    return [gzip.compress(each, mtime=0) for each in examples] + [gzip.compress(b"a\n", mtime=0) * 3]


@cache
def zeros(size: int, fill: bytes = b"a", end: bytes = b"") -> bytes:
    """A small gz file of `size` bytes without a line break."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as file:
        block = fill * (1 << 20)
        for _ in range(size // len(block)):
            file.write(block)
        file.write(end)
    return out.getvalue()


def folders() -> list[bytes]:
    return [PARTED.join((texts()[0], json_lines()[0], CONLLU.encode(), packed(texts())[0], b"# a"))]


RANGE = b"1-999999999\ta\t_\t_\t_\t_\t_\t_\t_\t_\n1\ta\ta\t_\t_\t_\t0\troot\t_\t_\n\n"
WORD = b"1\ta\ta\t_\t_\t_\t0\troot\t_\t_\n"
LINES = {"a line of 600 MB": lambda: zeros(600 << 20), "short lines": lambda: zeros(1 << 22, b"a\n")}
TEXTS = {**LINES, "a line of 127 MB": lambda: zeros(127 << 20, end=b"\n\nb\n")}
TREES = {"comments": lambda: zeros(1 << 21, b"# a\n"), "words": lambda: zeros(1 << 21, WORD)}
LISTS = {"a list of lists": lambda: gzip.compress(b"[" + b"[]," * (3 << 20) + b"[]]\n", 1)}
HELD_MB = 1024  # what stands between two empty lines is held, up to 128 MB of it, and read

CORPUS_TARGETS = (
    Target("conllu", lambda: [CONLLU.encode()], corpus_of("a.conllu"),
           {"a range": RANGE, "long number": DIGITS + WORD}),
    Target("passages", lambda: [CONLLU.encode() * 3], corpus_of("a.conllu", unit="passage"), {}),
    Target("jsonl", json_lines, corpus_of("a.jsonl"), {"deep": DEEP_JSON}),
    Target("text", texts, corpus_of("a.txt"), {}),
    Target("lines", texts, corpus_of("a.txt", lines=True), {}),
    Target("gz text", lambda: packed(texts()), corpus_of("a.txt.gz"), TEXTS, megabytes=HELD_MB),
    Target("gz lines", lambda: packed(texts()), corpus_of("a.txt.gz", lines=True), LINES, megabytes=HELD_MB),
    Target("gz conllu", lambda: packed([CONLLU.encode()]), corpus_of("a.conllu.gz"), TREES, megabytes=HELD_MB),
    Target("gz jsonl", lambda: packed(json_lines()), corpus_of("a.jsonl.gz"), LISTS, megabytes=HELD_MB),
    Target("folder", folders, read_folder, {}),
)  # fmt: skip
