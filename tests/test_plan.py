"""Plans are values: equal, hashable, JSON in and out; what cannot be one is told in a line.

Values of another type than they should have are told too (`test_errors`): here the tests' own type checks
would speak up first.
"""

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

import manyheads as mh
from manyheads.cli import interventions as command
from manyheads.errors import HeadError, PlanError
from manyheads.heads import Head, HeadSet, in_layer, parse_heads, written
from manyheads.interventions.effects.effect import random_plans
from manyheads.models import LoadedModel
from manyheads.plan import (
    KINDS,
    KINDS_OF_STEP,
    Ablate,
    Average,
    Copy,
    Edit,
    HeadStep,
    Plan,
    Scale,
    SkipOutputProjection,
    SkipPositions,
    Step,
    describe,
)
from manyheads.studio.schema.base import PlanStep
from manyheads.studio.state.recordings import plan_of
from manyheads.studio.views.effect_words import step_words
from tests.models.eager import draw
from tests.models.tiny import tiny_gpt2, tiny_tokenizer
from tests.refusals import refuses

SHAPE = {"": (6, 6, 0, 5), "cross": (4, 4)}
PLAN = Plan([Ablate("L3H7", kind="mean"), Scale("L0H1", 0.5), Average("L2"), Copy("L1", source="L1H0")])


# ---------------------------------------------------------------------------------------------------------- strategies

number = st.integers(0, 12)
span = st.one_of(number.map(str), st.tuples(number, number).map(lambda p: f"{min(p)}-{max(p)}"), st.just("*"))
stack = st.sampled_from(["", "", "cross:", "encoder:"])
part = st.builds(
    lambda where, layers, heads: f"{where}L{layers}" + (f"H{heads}" if heads else ""),
    stack, span, st.one_of(st.none(), span),
)  # fmt: skip
heads_text = st.lists(part, min_size=1, max_size=4).map(", ".join)
a_head = st.builds(Head, st.sampled_from(["", "cross"]), number, number)
some_heads = st.one_of(
    heads_text,
    a_head,
    st.lists(st.one_of(part, a_head), min_size=1, max_size=3),
    st.dictionaries(number, st.lists(number, min_size=1, max_size=3), min_size=1, max_size=3),
)
factor = st.one_of(st.floats(-1e6, 1e6), st.integers(-9, 9))
words = st.text(min_size=1).filter(lambda text: text.strip())
step = st.one_of(
    st.builds(Ablate, some_heads, st.sampled_from(["zero", "first"])),
    st.builds(Ablate, some_heads, st.just("mean"), st.booleans()),
    st.builds(Ablate, some_heads, st.just("streaming"), sink=st.integers(0, 10**9), recent=st.integers(1, 10**9)),
    st.builds(
        Ablate, some_heads, st.just("resample"), text=st.one_of(st.none(), words), seed=st.integers(0, 2**32 - 1)
    ),
    st.builds(Scale, some_heads, factor),
    st.builds(Average, some_heads),
    st.builds(Copy, some_heads, some_heads, st.one_of(st.floats(0, 1), st.integers(0, 1))),
    st.builds(SkipPositions),
    st.builds(
        SkipOutputProjection, st.one_of(number, st.builds(lambda where, layers: f"{where}L{layers}", stack, span))
    ),
)
plans = st.lists(step, max_size=4).map(Plan)


# -------------------------------------------------------------------------------------------------------------- values


@given(plans)
def test_any_plan_is_the_same_after_json(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan and hash(again) == hash(plan) and str(again) == str(plan)
    assert Plan.from_dict(plan.to_dict()) == plan and again.to_json() == plan.to_json()


@given(plans, plans)
def test_plans_are_equal_where_their_json_is(one, other):
    same = json.loads(one.to_json()) == json.loads(other.to_json())
    assert (one == other) == same and (len({one, other}) == 1) == same


def test_plans_are_frozen():
    with pytest.raises(FrozenInstanceError):
        PLAN.steps = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        PLAN.steps[0].heads = "L0"  # type: ignore[misc]


def test_the_json_says_what_is_unusual_and_nothing_else():
    assert PLAN.to_dict() == {
        "format": 2,
        "steps": [
            {"step": "ablate", "heads": "L3H7", "kind": "mean"},
            {"step": "scale", "heads": "L0H1", "factor": 0.5},
            {"step": "average", "heads": "L2"},
            {"step": "copy", "heads": "L1", "source": "L1H0"},
        ],
    }
    assert str(PLAN) == "ablate L3H7 (mean); scale L0H1 by 0.5; average L2; use the map of L1H0 for every head of L1"
    assert str(Plan([])) == "nothing" and str(Plan(SkipOutputProjection(3))) == "skip the output projection of L3"
    assert str(Plan(SkipPositions())) == "skip the positions"
    assert Plan.from_json('{"steps": [{"step": "skip_positions"}]}') == Plan(SkipPositions())
    assert "per position" in str(Plan(Ablate("L1", kind="mean", per_position=True)))


@pytest.mark.parametrize(
    "heads",
    [
        "L3H7,L5", ["L3H7", "L5"], ("L3H7", "L5"), (each for each in ["L3H7", "L5"]), [Head("", 3, 7), "L5"],
        parse_heads("L3H7, L5", {"": (8,) * 6}),
    ],
    ids=["text", "list", "tuple", "generator", "heads", "head set"],
)  # fmt: skip
def test_heads_are_named_in_any_way_and_kept_as_one_text(heads):
    assert (
        Ablate(heads) == Ablate("L3H7, L5")
        and Ablate(heads if isinstance(heads, str) else "L3H7, L5").heads == "L3H7, L5"
    )


def test_mappings_and_single_heads_are_texts_too():
    assert Ablate({3: [7], 4: [0, 1]}) == Ablate("L3H7, L4H0, L4H1")
    assert Ablate(Head("cross", 1, 2)).heads == "cross:L1H2"
    assert SkipOutputProjection(3) == SkipOutputProjection("L3")
    assert SkipOutputProjection("encoder:L*").heads == "encoder:L*"


def test_only_what_is_computed_from_texts_needs_a_corpus():
    needs = [Ablate("L1", kind="mean"), Ablate("L1", kind="resample")]
    needs_not = [Ablate("L1"), Ablate("L1", kind="first"), Ablate("L1", kind="resample", text="a cat"), *PLAN.steps[1:]]
    assert all(Plan(each).needs_corpus for each in needs) and not Plan(needs_not).needs_corpus
    assert Plan([*needs_not, needs[1]]).needs_corpus


# ---------------------------------------------------------------------------------------------- heads, read in two ways

layers_of = st.lists(st.integers(0, 5), min_size=1, max_size=4)
shapes = st.one_of(
    layers_of.map(lambda counts: {"": counts}),
    layers_of.map(lambda counts: {"encoder": counts}),
    st.tuples(layers_of, layers_of).map(lambda two: dict(zip(("", "cross"), two, strict=True))),
    st.tuples(layers_of, layers_of).map(lambda two: dict(zip(("encoder", "decoder"), two, strict=True))),
)


def outcome(what, shape):
    try:
        return parse_heads(what, shape)
    except HeadError as error:
        return type(error)


@given(some_heads, shapes)
def test_what_is_written_means_the_same_heads(heads, shape):
    if isinstance(heads, dict) and len(shape) > 1:
        return  # a mapping does not say which stack
    assert outcome(written(heads), shape) == outcome(heads, shape)
    assert written(written(heads)) == written(heads)


@given(st.one_of(st.text(), st.lists(st.text(), min_size=1)))
def test_what_one_cannot_read_the_other_cannot(what):
    def fails(read):
        try:
            read()
        except HeadError:
            return True
        return False

    huge = {"": (10**3,)}
    assert fails(lambda: written(what)) <= fails(lambda: parse_heads(what, huge))


@given(heads_text, shapes)
def test_a_layer_by_itself_finds_the_heads_that_the_whole_model_does(text, shape):
    """Of a model with one stack; of several, where every part names its own."""
    parts = text.split(", ")
    if len(shape) > 1:
        parts = [each if ":" in each else f"{next(iter(shape)) or 'cross'}:{each}" for each in parts]
    try:
        want = parse_heads(parts, shape).by_layer()
    except HeadError:
        return
    for stack_name, counts in shape.items():
        for layer, count in enumerate(counts):
            found = in_layer(", ".join(parts), stack_name, layer, count)
            union = tuple(sorted({head for heads in found.values() for head in heads}))
            assert union == want.get((stack_name, layer), ())


@given(part, st.integers(0, 6), st.integers(1, 6))
def test_a_head_beyond_a_layer_is_refused_as_the_whole_model_refuses_it(text, layer, count):
    """A model of one stack, whose layers below this one have as many heads."""
    name = text.partition(":")[0] if ":" in text else ""
    try:
        got = in_layer(text, name, layer, count)
    except HeadError as error:
        with pytest.raises(HeadError) as told:
            parse_heads(text, {name: [count] * 13})
        assert "there is no head" in str(error) and "there is no head" in str(told.value)
        return
    assert all(index < count for heads in got.values() for index in heads)


def test_empty_sets_are_written_as_nothing_and_every_kind_is_one_to_ablate_with():
    none = HeadSet.all(SHAPE) - HeadSet.all(SHAPE)
    assert written(none) == written([]) == written({}) == ""
    refuses(PlanError, "names no heads: a step that touches none changes nothing", Ablate, none)
    refuses(PlanError, "source=.* names no heads", Copy, "L1", source=[])
    for share in (-0.1, 1.01, float("nan")):
        refuses(PlanError, f"share={share} is not a share of the source's weights", Copy, "L1", "L1H0", share)
    refuses(PlanError, "share='half' of Copy is a str: give a number", Copy, "L1", "L1H0", "half")
    assert [Ablate("L1", kind=kind).kind for kind in KINDS] == ["zero", "mean", "resample", "first", "streaming"]


# ---- what is no plan, as steps or as JSON, is told in one line that says what would be

BAD_STEPS = [
    ({"step": "mute", "heads": "L1"}, PlanError, "step='mute' is not known: use one of ablate, scale"),
    ({"heads": "L1"}, PlanError, r'^step 1 of 1: "step" is missing in .*L1.*one of ablate, scale'),
    ({"step": ["ablate"], "heads": "L1"}, PlanError, r"step=\['ablate'\] is not known"),
    ({"step": "ablate", "heads": "L1", "loud": 1}, PlanError,
     "loud means nothing to step 'ablate', which takes heads, kind"),
    ({"step": "ablate", 3: 1, "x": 2}, PlanError, "3, x means nothing to step 'ablate'"),
    ({"step": "ablate", "heads": "L1", "kind": "mute"}, PlanError,
     "kind='mute' is not a way to ablate: use one of zero"),
    ({"step": "ablate"}, PlanError, "step 'ablate' is not complete: it takes heads"),
    ({"step": "scale", "heads": "L1"}, PlanError, "step 'scale' is not complete"),
    ({"step": "copy", "heads": "L1"}, PlanError, "step 'copy' is not complete"),
    ({"step": "ablate", "heads": []}, PlanError, r"heads=\[\] names no heads"),
    ({"step": "ablate", "heads": {}}, PlanError, "names no heads"),
    ({"step": "ablate", "heads": ""}, HeadError, "'' names no heads"),
    ({"step": "ablate", "heads": "head 3"}, HeadError, "'head 3' names no heads"),
    ({"step": "ablate", "heads": [["L1"]]}, HeadError, r"\['L1'\] in .* is not a head"),
    ({"step": "scale", "heads": "L1", "factor": float("nan")}, PlanError, "factor=nan is not a number to multiply by"),
    ({"step": "scale", "heads": "L1", "factor": float("inf")}, PlanError, "factor=inf is not a number"),
    ({"step": "scale", "heads": "L1", "factor": 10**400}, PlanError, "factor=1000000.* is not a number to multiply by"),
    ({"step": "scale", "heads": "L1", "factor": True}, PlanError, "factor=True of Scale is a bool"),
    ({"step": "ablate", "heads": "L1", "text": "a cat"}, PlanError, "text='a cat' with kind='zero'"),
    ({"step": "ablate", "heads": "L1", "kind": "resample", "text": " "}, PlanError, "text=' ' with kind='resample'"),
    ({"step": "ablate", "heads": "L1", "sink": 4}, PlanError,
     "sink=4 is for kind='streaming', not for 'zero': leave it"),
    ({"step": "ablate", "heads": "L1", "kind": "first", "recent": 4}, PlanError, "recent=4 is for kind='streaming'"),
    ({"step": "ablate", "heads": "L1", "kind": "streaming", "sink": -1}, PlanError,
     "sink=-1 is not a number of keys to keep: give a whole number, 0 or more"),
    ({"step": "ablate", "heads": "L1", "kind": "streaming", "recent": 0}, PlanError,
     "recent=0 is not .* number, 1 or more"),
    ({"step": "ablate", "heads": "L1", "kind": "streaming", "sink": True}, PlanError, "sink=True of Ablate is a bool"),
    ({"step": "ablate", "heads": "L1", "per_position": True}, PlanError, "per_position= is for kind='mean'"),
    ({"step": "ablate", "heads": "L1", "kind": "resample", "seed": -1}, PlanError, "seed=-1 is out of range"),
    ({"step": "ablate", "heads": "L1", "kind": "resample", "seed": 10**30}, PlanError, "is out of range"),
    ({"step": "skip_output_projection", "layer": "L1H2"}, PlanError, "layer='L1H2' is not a layer"),
    ({"step": "skip_output_projection", "layer": "L1H2, L3"}, PlanError, "layer='L1H2, L3' is not a layer"),
    ({"step": "skip_output_projection", "layer": -1}, HeadError, "'L-1' names no heads"),
    ({"step": "skip_output_projection", "layer": True}, PlanError, "layer=True is not a layer"),
    ("ablate L1", PlanError, "'ablate L1' is not a step"),
    (None, PlanError, "None is not a step"),
]  # fmt: skip


@pytest.mark.parametrize(("entry", "kind", "words"), BAD_STEPS, ids=[str(entry)[:60] for entry, *_ in BAD_STEPS])
def test_a_step_that_cannot_be_is_told_in_a_line(entry, kind, words):
    with pytest.raises(kind, match=words) as told:
        Plan.from_dict({"steps": [entry]})
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "a plan is JSON, and this is not"),
        ("{'steps': []}", "a plan is JSON"),
        ("[" * 100_000, "a plan is a list of steps, and this is nested too deep to be one"),
        ('{"steps": [{"step": "scale", "heads": "L1", "factor": ' + "1" * 5000 + "}]}", "a plan is JSON|not a number"),
        ("3", r'a plan is \{"steps": \[\.\.\.\]\}, not 3'),
        ("[]", "a plan is"),
        ('{"steps": "L1"}', "a plan is"),
        ("{}", r"a plan is .*not \{\}"),
        ('{"format": 3, "steps": []}', "this plan has format 3, and 2 is the newest known: upgrade"),
        ('{"format": true, "steps": []}', "this plan has format True"),
        ('{"steps": [{"step": "scale", "heads": "L1", "factor": NaN}]}', "factor=nan"),
        ('{"steps": [' + '{"a": ' * 500 + "1" + "}" * 500 + "]}", '"step" is missing'),
    ],
    ids=[
        "empty", "python", "deep", "long number", "number", "list", "text", "object", "newer", "bool", "nan", "nested",
    ],
)  # fmt: skip
def test_json_that_is_no_plan_is_told_in_a_line(text, words):
    with pytest.raises(PlanError, match=words) as told:
        Plan.from_json(text)
    assert len(str(told.value)) < 400 and "\n" not in str(told.value)


def nested(depth, inner):
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize("heads", [nested(900, "L1"), nested(100_000, "L1")], ids=["900", "100000"])
def test_heads_however_deep_are_told(heads):
    with pytest.raises((HeadError, PlanError), match="is not a head|lists inside lists"):
        Plan.from_dict({"steps": [{"step": "ablate", "heads": heads}]})


# ------------------------------------------------------------------------------------- every place that a step needs

ROOT = Path(__file__).parents[1]


def turned(output):
    return output.roll(1, -1)


EXAMPLES: dict[str, tuple[Step, str]] = {  # by its name in JSON: a step, and what `ablate --kind` calls it
    "ablate": (Ablate("L0H1"), "zero"),
    "scale": (Scale("L0H1", 2.5), "scale"),
    "average": (Average("L0H0-1"), "average"),
    "copy": (Copy("L0H1", source="L0H0"), "copy"),
    "skip_output_projection": (SkipOutputProjection("L0"), "unmixed"),
    "skip_positions": (SkipPositions(), ""),  # by --plan alone: it names no heads
    "edit": (Edit("L0H1", turned), f"{__name__}:turned"),
}
OF_THE_PAGE = ("PlanStep", "web/")  # which runs no code that a request names


def missing_places(name: str, lm: LoadedModel) -> list[str]:
    """The places of CONTRIBUTING.md's list in which a kind of step is not there."""
    if name not in EXAMPLES:
        return ["EXAMPLES in tests/test_plan.py"]
    step, kind = EXAMPLES[name]
    plan = Plan(step)

    def acts() -> bool:
        with mh.applied(lm, plan) as now:
            lm.model(**lm.tokenizer("the cat sat on a mat", return_tensors="pt", return_token_type_ids=False))
        return not now.unchanged

    def command_line() -> bool:
        copied, factor = ("L0H0", None) if kind == "copy" else (None, 2.5 if kind == "scale" else None)
        heads = getattr(step, "heads", "")
        return not kind or command._plan(heads, kind, factor, copied, {"sink": None, "recent": None}, None) == plan

    def in_file(path: str, *words: str) -> Callable[[], bool]:
        text = (ROOT / path).read_text(encoding="utf-8")
        return lambda: all(word in text for word in words)

    cls = type(step).__name__
    in_json = TypeAdapter(list[PlanStep])
    places: dict[str, Callable[[], bool]] = {
        "Step and KINDS_OF_STEP (plan.py)": lambda: isinstance(step, Step) and type(step) is KINDS_OF_STEP[name],
        "describe (plan.py)": lambda: bool(describe(step)),
        "manyheads/__init__.py": lambda: cls in mh.__all__,
        "edits/edits.py": acts,
        "random_plans (interventions/effects/effect.py)": lambda: not isinstance(step, HeadStep) or (
            [type(other.steps[0]) for other in random_plans(plan, lm.spec, 1, seed=3)] == [type(step)]
        ),
        "ablate --kind (cli/interventions.py)": command_line,
        "PlanStep (studio/schema/base.py)": lambda: plan_of(in_json.validate_python(plan.to_dict()["steps"])) == plan,
        "step_words (studio/views/effect_words.py)": lambda: bool(step_words(step)),
        "web/src/lib/api/schema.d.ts (make web)": in_file("web/src/lib/api/schema.d.ts", f'step: "{name}";'),
        "web/src/rooms/experiment/steps.ts": in_file("web/src/rooms/experiment/steps.ts", f'case "{name}":'),
        "docs/concepts/plans-and-edits.md": in_file("docs/concepts/plans-and-edits.md", f"| `{cls}("),
        "docs/reference/interventions.md": in_file(
            "docs/reference/interventions.md", f"| `{cls}(", f"::: manyheads.{cls}\n"
        ),
    }  # fmt: skip

    def missing(is_there: Callable[[], bool]) -> bool:
        try:
            return not is_there()
        except Exception:  # a place that does not know the step fails in a way of its own
            return True

    asked = {place: x for place, x in places.items() if name != "edit" or not place.startswith(OF_THE_PAGE)}
    return [place for place, is_there in asked.items() if missing(is_there)]


@pytest.mark.parametrize("name", KINDS_OF_STEP)
def test_step_of_a_plan_is_in_every_place_that_needs_it(name, fresh):
    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    missing = missing_places(name, lm)
    assert not missing, f"step {name!r} is missing in {'; '.join(missing)}. See CONTRIBUTING.md, 'A step of a plan'."


def test_step_that_is_new_is_missed_where_nothing_knows_of_it(fresh, monkeypatch):
    @dataclass(frozen=True)
    class Louder(Scale):
        name: ClassVar[str] = "louder"

    lm = mh.load(tiny_gpt2(seed=draw(fresh)), tokenizer=tiny_tokenizer())
    assert missing_places("louder", lm) == ["EXAMPLES in tests/test_plan.py"]
    monkeypatch.setitem(EXAMPLES, "louder", (Louder("L0H1", 2.5), "louder"))
    missing = " ".join(missing_places("louder", lm))
    for place in (
        "plan.py",
        "__init__",
        "--kind",
        "base.py",
        "schema.d.ts",
        "steps.ts",
        "plans-and-edits",
        "reference/",
    ):
        assert place in missing, place
