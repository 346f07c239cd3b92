"""What cannot be designed or built is refused in words that say what would do."""

import json
import subprocess
import sys

import pytest
import torch

import manyheads as mh
from manyheads import design
from manyheads.errors import ModelError, PlanError, ShapeError
from manyheads.interventions import HeadDesign
from tests.models.tiny import VOCAB_SIZE, tiny_tokenizer

WORDS_ALONE = {"tokenizer": tiny_tokenizer(special_tokens=False)}


def built(layers, causal=False, **options):
    return design.build(layers, causal=causal, **{"tokenizer": tiny_tokenizer(), "max_positions": 64, **options})


# What is asked for, and the words it is refused in.
PLANS = {
    "looks ahead": (
        lambda: built([[design.first(), design.next()]], causal=True),
        r"L0H1 looks ahead \(next token\), which a causal model forbids: build with causal=False",
    ),
    "induction both ways": (
        lambda: built([[design.previous()], [design.induction()]]),
        r"L1H0 is an induction head, and .* both ways .* always follows a copy: build with causal=True",
    ),
    "induction alone": (
        lambda: built([[design.first()], [design.induction()]], causal=True),
        r"L1H0 is an induction head and has no previous-token head in an earlier layer .*: put previous\(\) there",
    ),
    "the pair in one layer": (
        lambda: built([[design.previous(), design.induction()]], causal=True),
        r"L0H1 is an induction head and has no previous-token head in an earlier layer",
    ),
    "a pair too blurred": (
        lambda: built([[design.previous(4)], [design.induction()]], causal=True),
        r"L1H0 .* may go astray by 54% .*\(at most 20% will do\): make previous\(\) below it sharper",
    ),
    "too far": (
        lambda: built([[design.offset(-64)]]),
        r"L0H0 looks -64 tokens away, and texts have 64 at most",
    ),
    "no separator": (
        lambda: built([[design.separator()]], **WORDS_ALONE),
        r"neither a separator nor an end token: name one, as separator\('\.'\)",
    ),
    "no such token": (
        lambda: built([[design.token_class(["catdog"])]]),
        r"'catdog' is no token of the tokenizer, which reads it as \['\[CLS\]', '\[UNK\]', '\[SEP\]'\]: give one of",
    ),
    "no such id": (
        lambda: built([[design.token_class([VOCAB_SIZE])]]),
        rf"{VOCAB_SIZE} is no token: the tokenizer's ids are 0 to {VOCAB_SIZE - 1}",
    ),
    "a class of nobody": (
        lambda: built([[design.token_class(lambda text: False)]]),
        r"no token of the tokenizer is in the class .*: try another",
    ),
    "an empty class": (lambda: design.token_class([]), r"members is empty: give at least one token"),
    "dull": (lambda: design.previous(0), r"sharpness=0 is no gap between scores: give nats, above 0, up to 30"),
    "too sharp": (lambda: design.first(31.0), r"sharpness=31\.0 is no gap between scores"),
    "no strength": (
        lambda: built([[None]], noise=-1.0),
        r"noise=-1\.0 is no strength: give 0 for none, 1 for as much noise as weights",
    ),
    "an empty layer": (
        lambda: built([[design.first()], []]),
        r"give a list of layers, each a list of at least one head",
    ),
    "a kind of one's own": (
        lambda: built([[HeadDesign("mine", 3.0, "mine")]]),
        r"L0H0 is of kind 'mine': make designs by the functions of mh\.design",
    ),
}
OTHERS = {
    "one place": (
        lambda: built([[None]], max_positions=1),
        ShapeError,
        r"max_positions=1 is no number of tokens that a text may have: give 2 or more",
    ),
    "a long text": (
        lambda: built([[None]]).model(torch.zeros(1, 65, dtype=torch.long)),
        ShapeError,
        r"a text of 65 tokens is too long for 64 places: build with a larger max_positions",
    ),
    "writing": (
        lambda: mh.record(built([[None]], causal=True), "the cat", generate=2),
        ModelError,
        r"designed heads has no generate\(\): record a finished text",
    ),
}


@pytest.mark.parametrize(("call", "words"), PLANS.values(), ids=PLANS)
def test_heads_that_contradict_the_model_are_refused_by_name(call, words):
    with pytest.raises(PlanError, match=words):
        call()


@pytest.mark.parametrize(("call", "kind", "words"), OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


WRONG_TYPES = """
import json
from manyheads import design
cases = {
    "sharpness": lambda: design.previous("x"), "offset": lambda: design.offset(1.5),
    "a text for a class": lambda: design.token_class("cat"), "members": lambda: design.token_class([1.5]),
    "separator": lambda: design.separator(3), "layers": lambda: design.build(3), "head": lambda: design.build([["x"]]),
    "one layer": lambda: design.build([design.first()]), "noise": lambda: design.build([[None]], noise="x"),
    "seed": lambda: design.build([[None]], seed=1.5), "positions": lambda: design.build([[None]], max_positions=9.5),
}
out = {}
for name, case in cases.items():
    try:
        case()
    except Exception as error:
        out[name] = f"{type(error).__name__}: {error}"
print(json.dumps(out))
"""


def test_what_is_no_design_at_all_is_an_error_in_words():
    """In a process of its own, without the tests' type checks, which would speak up first."""
    done = subprocess.run([sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True)
    said = json.loads(done.stdout)
    wanted = {
        "sharpness": "PlanError: sharpness='x' is no gap",
        "offset": "PlanError: 1.5 is no number of tokens",
        "a text for a class": "PlanError: members='cat' is no class of tokens: give a list",
        "members": "PlanError: 1.5 is neither a token nor an id",
        "separator": "PlanError: 3 is no token",
        "layers": "PlanError: layers=3: give a list of layers",
        "head": "PlanError: L0H0 is 'x': give a design, as design.previous(), or None",
        "one layer": "PlanError: layers=[HeadDesign(",
        "noise": "PlanError: noise='x' is no strength",
        "seed": "PlanError: seed=1.5 is no seed",
        "positions": "ShapeError: max_positions=9.5 is no number",
    }
    assert {name: said[name][: len(start)] for name, start in wanted.items()} == wanted
