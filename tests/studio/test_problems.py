"""What does not fit is said in plain words: what it is, what came, what is taken."""

import json
import re

import pytest

from manyheads.studio import Desk, Workspace, answer, create_app
from manyheads.studio.problems import WRITTEN, misfit_of
from manyheads.studio.server.app import openapi_text

CHECK, CELL = "/api/lessons/masks/checks/x", "/api/lessons/masks/cells/x"
RUN, SIZE = "/api/experiments", "/api/sizes"
STEP = {"step": "ablate", "heads": "L1"}
ASK = {"model": "minilm", "text": "a cat", "plan": [STEP]}
PRUNE = {"model": "minilm", "heads": "L1"}
MANY = {f"a{at}": at for at in range(21)}


@pytest.fixture(scope="module")
def app():
    return create_app(Desk(Workspace()))


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (CHECK, {"answer": "x" * 1234}, "'answer' holds 1,234 characters, and takes at most 1,000."),
        (CHECK, {"answer": 3, "more": 1}, "'answer' is 3, and takes a text; 'more' is not known here."),
        (CHECK, {"answer": "3", "inputs": MANY}, "'inputs' holds 21 entries, and takes at most 20."),
        (CHECK, {"inputs": {}}, "'answer' is missing."),
        (CELL, {"parameters": {"a": "x" * 4001}}, "'parameters.a' holds 4,001 characters, and takes at most 4,000."),
        (CELL, None, "the request's body is missing."),
        (CELL, [1], "the request's body is [1], and takes an object."),
        (
            SIZE,
            {"words": 3, "context": -4},
            "'words' is 3, and takes an object; 'context' is -4, and takes at least 1.",
        ),
        (SIZE, {"batch": "a"}, "'batch' is 'a', and takes a whole number."),
        (RUN, {**ASK, "model": ""}, "'model' holds 0 characters, and takes at least 1."),
        (RUN, {**ASK, "plan": []}, "'plan' holds 0 entries, and takes at least 1."),
        (RUN, {**ASK, "plan": "all"}, "'plan' is 'all', and takes a list."),
        (RUN, {**ASK, "plan": [{"heads": "L1"}]}, "'plan.0' does not say its 'step'."),
        (RUN, {**ASK, "plan": [{"step": "x"}]}, "'plan.0' has the 'step' 'x', and takes one of 'ablate', "),
        (RUN, {**ASK, "plan": [3] * 9}, "'plan.4' is 3, and takes an object; and 4 more."),
        (RUN, {**ASK, "plan": [{**STEP, "kind": "odd"}]}, "kind' is 'odd', and takes 'zero', 'mean', "),
        (
            RUN,
            {**ASK, "plan": [{**STEP, "per_position": "maybe"}]},
            "per_position' is 'maybe', and takes true or false.",
        ),
        (RUN, {**ASK, "controls": 99}, "'controls' is 99, and takes at most 50."),
        (RUN, {**ASK, "seed": 2**32}, "'seed' is 4294967296, and takes less than 4,294,967,296."),
        ("/api/prunings", {**PRUNE, "name": "../x"}, "'name' is '../x', and takes letters, digits, "),
    ],
)
def test_a_body_that_does_not_fit_says_what_came_and_what_is_taken(app, path, body, words):
    said = answer(app, "POST", path, body)
    assert said.status == 400 and said.json()["words"].startswith("This does not fit: ")
    assert words in said.json()["words"]


def test_what_is_no_json_and_what_has_no_words_of_ours_are_said_too():
    broken = {"type": "json_invalid", "loc": ("body", 1), "msg": "x", "input": {}, "ctx": {"error": "Expecting value"}}
    odd = {"type": "uuid_version", "loc": ("body", "id"), "msg": "UUID version 4 expected", "input": "x"}
    status, problem = misfit_of([broken, odd])
    assert status == 400
    assert problem.words == (
        "This does not fit: the request's body is no JSON: Expecting value; 'id': UUID version 4 expected."
    )


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/api/lessons/<script>", "There is no lesson '<script>' here."),
        (f"/api/lessons/{'a' * 300}", f"There is no lesson '{'a' * 56}... here."),
        ("/api/recordings/zz/atlas", "There is no recording 'zz' here."),
    ],
)
def test_an_address_that_cannot_name_anything_is_not_here(app, path, words):
    said = answer(app, "GET", path)
    assert (said.status, said.json()["words"]) == (404, words)


def test_the_words_hold_for_every_pattern_that_the_server_asks_for():
    document = json.loads(openapi_text())
    asked = [
        each for methods in document["paths"].values() for of in methods.values() for each in of.get("parameters", [])
    ]
    named = {each["name"] for each in asked if each["in"] != "path" and "pattern" in each["schema"]}
    named |= {
        name
        for kind in document["components"]["schemas"].values()
        for name, each in kind.get("properties", {}).items()
        if re.search(r'"pattern"', json.dumps(each))
    }
    assert named == set(WRITTEN)
