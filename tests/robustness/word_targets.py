"""Readers of words: plans, heads, descriptions, configs, lessons, and what is kept on the user's machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import ValidationError

import manyheads as mh
from manyheads.errors import ModelError
from manyheads.heads import Head, in_layer, parse_heads, written
from manyheads.lessons import Progress, shelf
from manyheads.lessons.lesson import read_lesson
from manyheads.recording import Sinks
from manyheads.roles import HeadRole, PageLabels
from manyheads.roles.labels import Evidence, _remember, remembered
from manyheads.sizing import size
from manyheads.sizing.families.config import read_config
from manyheads.spec import ModelSpec
from manyheads.studio import CellAsk
from manyheads.studio.schema.lessons import CheckAsk
from manyheads.studio.views import lessons as learning
from tests.models.tiny import tiny_llama
from tests.robustness.mutations import DEEP_JSON, DIGITS
from tests.robustness.target import Target

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
        except mh.HeadError as error:
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
    size(spec)


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
    """It is what was kept, or measured anew."""
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
