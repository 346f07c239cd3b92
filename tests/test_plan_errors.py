"""What is no plan, as steps or as JSON, is told in one line that says what would be."""

import pytest

from manyheads import Plan
from manyheads.errors import HeadError, PlanError

BAD_STEPS = [
    ({"step": "mute", "heads": "L1"}, PlanError, "step='mute' is not known: use one of ablate, scale"),
    ({"heads": "L1"}, PlanError, r'^step 1 of 1: "step" is missing in .*L1.*one of ablate, scale'),
    ({"step": ["ablate"], "heads": "L1"}, PlanError, r"step=\['ablate'\] is not known"),
    (
        {"step": "ablate", "heads": "L1", "loud": 1},
        PlanError,
        "loud means nothing to step 'ablate', which takes heads, kind",
    ),
    ({"step": "ablate", 3: 1, "x": 2}, PlanError, "3, x means nothing to step 'ablate'"),
    (
        {"step": "ablate", "heads": "L1", "kind": "mute"},
        PlanError,
        "kind='mute' is no way to ablate: use one of 'zero'",
    ),
    ({"step": "ablate"}, PlanError, "step 'ablate' is not complete: it takes heads"),
    ({"step": "scale", "heads": "L1"}, PlanError, "step 'scale' is not complete"),
    ({"step": "copy", "heads": "L1"}, PlanError, "step 'copy' is not complete"),
    ({"step": "ablate", "heads": []}, PlanError, r"heads=\[\] names no heads"),
    ({"step": "ablate", "heads": {}}, PlanError, "names no heads"),
    ({"step": "ablate", "heads": ""}, HeadError, "'' names no heads"),
    ({"step": "ablate", "heads": "head 3"}, HeadError, "'head 3' names no heads"),
    ({"step": "ablate", "heads": [["L1"]]}, HeadError, r"\['L1'\] in .* is no head"),
    ({"step": "scale", "heads": "L1", "factor": float("nan")}, PlanError, "factor=nan is no number to multiply by"),
    ({"step": "scale", "heads": "L1", "factor": float("inf")}, PlanError, "factor=inf is no number"),
    ({"step": "scale", "heads": "L1", "factor": 10**400}, PlanError, "factor=1000000.* is no number to multiply by"),
    ({"step": "scale", "heads": "L1", "factor": True}, PlanError, "factor=True of Scale is a bool"),
    ({"step": "ablate", "heads": "L1", "text": "a cat"}, PlanError, "text='a cat' with kind='zero'"),
    ({"step": "ablate", "heads": "L1", "kind": "resample", "text": " "}, PlanError, "text=' ' with kind='resample'"),
    ({"step": "ablate", "heads": "L1", "per_position": True}, PlanError, "per_position= is for kind='mean'"),
    ({"step": "ablate", "heads": "L1", "kind": "resample", "seed": -1}, PlanError, "seed=-1 is out of range"),
    ({"step": "ablate", "heads": "L1", "kind": "resample", "seed": 10**30}, PlanError, "is out of range"),
    ({"step": "skip_output_projection", "layer": "L1H2"}, PlanError, "layer='L1H2' is no layer"),
    ({"step": "skip_output_projection", "layer": "L1H2, L3"}, PlanError, "layer='L1H2, L3' is no layer"),
    ({"step": "skip_output_projection", "layer": -1}, HeadError, "'L-1' names no heads"),
    ({"step": "skip_output_projection", "layer": True}, PlanError, "layer=True is no layer"),
    ("ablate L1", PlanError, "'ablate L1' is no step"),
    (None, PlanError, "None is no step"),
]


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
        ('{"steps": [{"step": "scale", "heads": "L1", "factor": ' + "1" * 5000 + "}]}", "a plan is JSON|is no number"),
        ("3", r'a plan is \{"steps": \[\.\.\.\]\}, not 3'),
        ("[]", "a plan is"),
        ('{"steps": "L1"}', "a plan is"),
        ("{}", r"a plan is .*not \{\}"),
        ('{"format": 2, "steps": []}', "this plan has format 2, and 1 is the newest known: upgrade"),
        ('{"format": true, "steps": []}', "this plan has format True"),
        ('{"steps": [{"step": "scale", "heads": "L1", "factor": NaN}]}', "factor=nan"),
        ('{"steps": [' + '{"a": ' * 500 + "1" + "}" * 500 + "]}", '"step" is missing'),
    ],
    ids=[
        "empty",
        "python",
        "deep",
        "long number",
        "number",
        "list",
        "text",
        "object",
        "newer",
        "bool",
        "nan",
        "nested",
    ],
)
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
    with pytest.raises((HeadError, PlanError), match="is no head|lists in lists"):
        Plan.from_dict({"steps": [{"step": "ablate", "heads": heads}]})
