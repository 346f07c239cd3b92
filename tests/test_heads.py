"""One spelling of a head, one grammar for sets of heads; whatever cannot be read says what would have been."""

import re
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import HeadError
from manyheads.heads import Head, HeadSet, component_name, parse_heads, written
from tests.refusals import refuses

ONE = {"": (7, 7, 7, 7, 7)}
SEVERAL = {"encoder": (3, 3), "decoder": (5, 5, 5), "cross": (5, 5, 5)}
BESIDE = {"": (2, 2, 2), "cross": (4, 4)}  # as of a decoder with cross-attention
UNEVEN = {"": (4, 0, 6, 2)}  # pruned, and layer 1 has no attention


def names(heads):
    return [str(head) for head in heads]


# ---- one head


@pytest.mark.parametrize(("text", "head"), [
    ("L3H7", Head("", 3, 7)), ("L0H0", Head("", 0, 0)), ("L12H103", Head("", 12, 103)),
    ("encoder:L0H1", Head("encoder", 0, 1)), ("vision.blocks_2:L0H1", Head("vision.blocks_2", 0, 1)),
])  # fmt: skip
def test_a_head_and_its_name_are_one_to_one(text, head):
    assert Head.parse(text) == head
    assert str(head) == text


def test_a_head_in_lower_case_is_the_same_head_wherever_it_is_read_and_written_in_capitals():
    assert Head.parse("l3h7") == Head("", 3, 7) and str(Head.parse("encoder:l0h1")) == "encoder:L0H1"
    assert parse_heads("l3h0-2, l*h1, L4", ONE) == parse_heads("L3H0-2, L*H1, L4", ONE)
    assert written("l3h0-2, Cross:l1") == "L3H0-2, Cross:L1", "a plan of them is the same plan; a stack keeps its case"
    refuses(HeadError, "no stack 'Encoder'", parse_heads, "Encoder:l0h1", SEVERAL)  # a stack is a name


def test_heads_sort_by_stack_layer_and_index_as_numbers_are_frozen_and_hash_by_value():
    heads = [Head("cross", 0, 0), Head("", 10, 11), Head("", 10, 2), Head("encoder", 0, 0), Head("", 2, 10)]
    assert names(sorted(heads)) == ["L2H10", "L10H2", "L10H11", "cross:L0H0", "encoder:L0H0"]
    with pytest.raises(FrozenInstanceError):
        Head("", 1, 2).layer = 3  # type: ignore[misc]
    assert {Head("", 1, 2)} == {Head("", 1, 2)}


def test_one_head_is_also_a_pair_of_its_layer_and_index_and_itself():
    pairs = ((3, 7), (np.int64(3), np.int64(7)), Head("", 3, 7))
    assert {Head.parse(pair) for pair in pairs} == {Head.parse("L3H7")}
    assert [component_name(what) for what in ((3, 7), "l3h7", "embeddings")] == ["L3H7", "L3H7", "embeddings"]
    for what in (7, [3, 7], (3, 7, 1), (3.0, 7), None):
        refuses(HeadError, r"does not name one head\. Write it like 'L3H7' or \(3, 7\)", Head.parse, what)
    refuses(HeadError, r"\(-1, 7\): -1: layers and heads count from 0", Head.parse, (-1, 7))


@pytest.mark.parametrize("text", ["L3", "L3H0-1", "L*H7", "L3H*", "L3H7, L4H0", "", "head"])
def test_parse_takes_exactly_one_head(text):
    refuses(HeadError, r"does not name one head\. Write it like 'L3H7' or 'encoder:L0H1'", Head.parse, text)


def test_parse_guesses_what_was_meant_and_a_stack_must_have_a_name_that_it_can_read():
    refuses(HeadError, r"'3\.7' does not name one head.*did you mean 'L3H7'\?", Head.parse, "3.7")
    refuses(HeadError, "self.stack='a:b' is not a name for a stack", Head, "a:b", 0, 0)


@pytest.mark.parametrize(("layer", "index"), [(-1, 0), (0, -1)])
def test_layers_and_heads_never_count_from_the_end(layer, index):
    refuses(HeadError, f"self.layer={layer}, self.index={index}: layers and heads count from 0", Head, "", layer, index)


# ---- the grammar

SAME_SET = [  # every way of asking in a row asks for the same heads
    (
        ["L3H6"],
        "L3H6",
        "l3h6",
        "L3h6",
        ["l3H6"],
        Head("", 3, 6),
        {3: [6]},
        {3: (6,)},
        {np.int64(3): np.array([6])},
        "L3H6-6",
        (3, 6),
        [(3, 6)],
        (np.int64(3), np.int64(6)),
        np.argwhere(np.arange(35).reshape(5, 7) == 27),
        torch.tensor([[3, 6]]),
    ),
    ([f"L3H{h}" for h in range(7)], "L3", "L3H*", "L3H0-6", {3: range(7)}, "L3H3, L3", "L3H4-6,L3H0-3"),
    (["L3H1", "L3H2", "L3H3"], "L3H1-3", ["L3H3", "L3H1-2"], {3: {1, 2, 3}}, (Head("", 3, h) for h in (3, 2, 1))),
    ([f"L{layer}H6" for layer in range(5)], "L*H6", "L0-4H6", {layer: [6] for layer in range(5)}),
    (
        ["L1H2", "L2H2"],
        "L1-2H2",
        " L2H2 ,  L1H2 ",
        "L1H2 L2H2",
        " l2h2\tL1H2\n",
        [(2, 2), (1, 2)],
        {(1, 2), "L2H2"},
        ("L2H2", Head("", 1, 2)),
        {"L1H2", "L2H2"},
    ),
    ([f"L{layer}H{h}" for layer in range(5) for h in range(7)], "L*", "L*H*", "L0-4", "L0-4H0-6", "L0 L1-3, L4"),
    ([], [], {}, (), {3: []}),
]


@pytest.mark.parametrize(("expected", "asked"), [(row[0], asked) for row in SAME_SET for asked in row[1:]])
def test_every_way_of_asking_gives_the_heads_in_the_models_order(expected, asked):
    assert names(parse_heads(asked, ONE)) == expected


@pytest.mark.parametrize(("asked", "expected"), [
    ("encoder:L0H1", ["encoder:L0H1"]),
    ("encoder:l0h1", ["encoder:L0H1"]),
    ("cross:L2H3-4", ["cross:L2H3", "cross:L2H4"]),
    ("cross:L*H4, encoder:L1", [f"encoder:L1H{i}" for i in range(3)] + [f"cross:L{i}H4" for i in range(3)]),
    ([Head("decoder", 1, 1)], ["decoder:L1H1"]),
])  # fmt: skip
def test_a_model_of_several_stacks_is_asked_by_stack(asked, expected):
    assert names(parse_heads(asked, SEVERAL)) == expected


def test_an_only_stack_need_not_be_named_and_one_without_a_name_is_meant_where_none_is_said():
    assert parse_heads("L1H2", {"encoder": (3, 3)}) == {Head("encoder", 1, 2)}
    assert parse_heads({1: [2]}, {"encoder": (3, 3)}) == {Head("encoder", 1, 2)}
    assert names(parse_heads("L2H1, cross:L0H3", BESIDE)) == ["L2H1", "cross:L0H3"]
    assert names(parse_heads("L*H1", BESIDE)) == ["L0H1", "L1H1", "L2H1"]
    assert parse_heads([Head("", 1, 0)], BESIDE) == {Head("", 1, 0)}
    heads = HeadSet.all(BESIDE)
    assert parse_heads(str(heads), BESIDE) == heads and str(heads) == "L0, L1, L2, cross:L0, cross:L1"


def test_every_error_about_a_stack_advises_what_the_grammar_reads():
    for shape in (SEVERAL, BESIDE, {"cross": (2,), "": (2,)}):
        for asked in ("L0H1", {0: [1]}, "nowhere:L0H1"):
            try:
                parse_heads(asked, shape)
            except HeadError as error:
                advised = re.findall(r"'([^']*L0H1)'", str(error))[-1]
                assert parse_heads(advised, shape), str(error)


def test_a_star_over_layers_takes_the_layers_that_have_such_a_head():
    assert names(parse_heads("L*H3", UNEVEN)) == ["L0H3", "L2H3"]
    assert names(parse_heads("L*H1-3", UNEVEN)) == ["L0H1", "L0H2", "L0H3", "L2H1", "L2H2", "L2H3", "L3H1"]


# ---- what cannot be read, and what to write instead

BAD = [
    ("", ONE, r"^'' names no heads\. Write 'L3H7', 'L3', 'L3H0-5', 'L\*H7', 'encoder:L0H1', or several"),
    ("L3,", ONE, r"^'' in 'L3,' names no heads"),
    ("junk", ONE, r"^'junk' names no heads.*commas\.$"),
    ("l3 h6", ONE, r"'l3 h6' names no heads.*did you mean 'L3H6'\?"),
    ("L1, 3.6", ONE, r"'3\.6' in 'L1, 3\.6' names no heads.*did you mean 'L3H6'\?"),
    ("3,6", ONE, r"'3' in '3,6' names no heads.*did you mean 'L3H6'\?"),
    ("(3, 6)", ONE, r"'\(3' in '\(3, 6\)' names no heads.*did you mean 'L3H6'\?"),
    ("L03H06", ONE, r"did you mean 'L3H6'\?"),
    ("encoder: 0.1", SEVERAL, r"did you mean 'encoder:L0H1'\?"),
    (["L1", 3], ONE, r"3 in \['L1', 3\] is not a head\. A list holds texts such as 'L3H7', or pairs \(3, 7\)"),
    ([3, 6], ONE, r"3 in \[3, 6\] is not a head.*did you mean 'L3H6'\?"),
    ((3, 6, 1), ONE, r"3 in \[3, 6, 1\] is not a head"),
    ((3, 6.0), ONE, r"3 in \[3, 6\.0\] is not a head"),
    ((3, 7), ONE, r"'L3H7': there is no head 7 in L3: heads are 0 to 6\. Nearest: 'L3H6'\."),
    ([(3, -1)], ONE, r"\(3, -1\): -1: layers and heads count from 0, never from the end\."),
    ((0, 1), SEVERAL, r"'L0H1' does not say which stack"),
    ("L3H6 L4Hx", ONE, r"'L3H6 L4Hx' names no heads"),
    ("L9H0", ONE, r"'L9H0': there is no layer 9: layers are 0 to 4\. Nearest: 'L4H0'\."),
    ("L3-9H0", ONE, r"'L3-9H0': there is no layer 9: layers are 0 to 4\. Nearest: 'L3-4H0'\."),
    ("L9H99", ONE, r"'L9H99': there is no layer 9: layers are 0 to 4\. Nearest: 'L4H6'\."),
    ("L9H5", UNEVEN, r"'L9H5': there is no layer 9 that attends: .* are L0, L2, L3\. Nearest: 'L3H1'\."),
    ("L2-9H2-5", UNEVEN, r"'L2-9H2-5': there is no layer 9 that attends: .* L0, L2, L3\. Nearest: 'L2-3H1'\."),
    ("L9H99", {"": (4, 6, 0)}, r"'L9H99': there is no layer 9 that attends: .* are L0, L1\. Nearest: 'L1H5'\."),
    ("L0-9", UNEVEN, r"'L0-9': there is no layer 9 that attends: .* are L0, L2, L3\. Nearest: 'L0-3'\."),
    ("L3H7", ONE, r"'L3H7': there is no head 7 in L3: heads are 0 to 6\. Nearest: 'L3H6'\."),
    ("L3H5-9", ONE, r"there is no head 9 in L3: heads are 0 to 6\. Nearest: 'L3H5-6'\."),
    ("L*H7", ONE, r"'L\*H7': there is no head 7: heads are 0 to 6\. Nearest: 'L\*H6'\."),
    ("L3H5-2", ONE, r"'L3H5-2': heads 5 to 2 run backwards\. Write 'L3H2-5'\."),
    ("L4-1", ONE, r"'L4-1': layers 4 to 1 run backwards\. Write 'L1-4'\."),
    ("L3H9-5", ONE, r"'L3H9-5': heads 9 to 5 run backwards\. Write 'L3H5-6'\."),
    ("L2H4, L3H4", UNEVEN, r"'L3H4': there is no head 4 in L3: heads are 0 to 1\."),
    (
        "L1H0",
        UNEVEN,
        r"'L1H0': L1 has no attention, or none .*; the layers that attend are L0, L2, L3\. Nearest: 'L0H0'\.",
    ),
    (
        "L1",
        UNEVEN,
        r"'L1': L1 has no attention, or none .*; the layers that attend are L0, L2, L3\. Nearest: 'L0'\.",
    ),
    (
        "L0-1H2",
        {"": (0, 0, 3)},
        r"L0, L1 have no attention, or none that can be seen; the layers that attend are L2\. Nearest: 'L2H2'\.",
    ),
    ("L0", {"": (0, 0)}, r"'L0': L0 has no attention, or none that can be seen; none of its layers attends\.$"),
    ("L0-1H*", {"": (0, 1)}, r"'L0-1H\*': L0 has no attention, .* that attend are L1\. Nearest: 'L1H\*'\.$"),
    ("L5", {"": (0, 0)}, r"'L5': there is no layer 5 that attends: none of its layers attends\.$"),
    ("L5-2H1", {"": (0, 0)}, r"'L5-2H1': layers 5 to 2 run backwards\.$"),
    ("L*H7", {"": (0, 0)}, r"'L\*H7': there are no attention heads there; this model has one stack \(2 layers\)\.$"),
    ("foo:L1", {"": (0, 0)}, r"'foo:L1': no stack 'foo'; this model has one stack \(2 layers\)\.$"),
    ("L1", {"a": (0, 0), "b": (3,)}, r"'L1' does not say which stack; this model has the stacks .*\(1 layers\)\.$"),
    ("L*", {"": (0, 0)}, r"'L\*': there are no attention heads there; this model has one stack \(2 layers\)\."),
    ("L0", {}, r"'L0': this model has no attention heads to choose from\."),
    ("L0H1", SEVERAL, r"'L0H1' does not say which stack; .*'encoder' \(2 layers\).*\. Write 'encoder:L0H1'\."),
    (Head("", 0, 1), SEVERAL, r"'L0H1' does not say which stack"),
    ("L9H9", SEVERAL, r"'L9H9' does not say which stack; .*\. Write 'encoder:L1H2'\."),
    ("cros:L9H9", SEVERAL, r"no stack 'cros'; .*\. Nearest: 'cross:L2H4'\."),
    ("cros:L0", SEVERAL, r"no stack 'cros'; this model has the stacks 'encoder'.*\. Nearest: 'cross:L0'\."),
    ("cross:L3H0", SEVERAL, r"there is no layer 3: layers are 0 to 2\. Nearest: 'cross:L2H0'\."),
    ("encoder:L0H1", ONE, r"no stack 'encoder'; this model has one stack \(5 layers\)\. Nearest: 'L0H1'\."),
    ({0: [1]}, SEVERAL, r"\{0: \[1\]\} does not say which stack; .*Write texts that do: \['encoder:L0H1'\]\."),
    ({0: [1]}, BESIDE, r"\{0: \[1\]\} does not say which stack; .*Write texts that do: \['L0H1'\]\."),
    ("encoder:L0H1", BESIDE, r"no stack 'encoder'; .*one without a name \(3 layers\), 'cross' \(2 layers\)"),
    ("L3", BESIDE, r"'L3': there is no layer 3: layers are 0 to 2\. Nearest: 'L2'\."),
    ("cross:L1H4", BESIDE, r"there is no head 4 in cross:L1: heads are 0 to 3\. Nearest: 'cross:L1H3'\."),
    (":L0H1", BESIDE, r"':L0H1' names no heads.*did you mean 'L0H1'\?"),
    ({3: 6}, ONE, r"\{3: 6\} needs a list of heads: write \{3: \[6\]\}\."),
    ({3: "6"}, ONE, r"\{3: '6'\} needs a list of heads"),
    ({3: ["6"]}, ONE, r"\{3: \['6'\]\}: '6' is a str; use whole numbers, as in \{3: \[7\], 4: \[0, 1\]\}\."),
    ({3.0: [6]}, ONE, r"3\.0 is a float; use whole numbers"),
    ({-1: [0]}, ONE, r"\{-1: \[0\]\}: -1: layers and heads count from 0, never from the end\."),
    ({3: [7]}, ONE, r"'L3H7': there is no head 7 in L3"),
    ({9: []}, ONE, r"'L9': there is no layer 9: layers are 0 to 4"),
]


@pytest.mark.parametrize(("asked", "shape", "message"), BAD)
def test_what_cannot_be_read_says_what_exists_and_the_nearest_form(asked, shape, message):
    refuses(HeadError, message, parse_heads, asked, shape)


def test_something_that_is_no_heads_at_all_is_refused():
    from manyheads.heads import parts_of  # the door's types are checked here, so the depths are asked

    refuses(HeadError, r"^3 names no heads\. Write 'L3H7'", list, parts_of(3))


@pytest.mark.parametrize("asked", [Head("", 10**9, 0), {10**9: [0]}], ids=str)
def test_what_the_grammar_could_not_read_back_is_not_written(asked):
    refuses(HeadError, "'L1000000000H0' names no heads", written, asked)


# ---- the set


def test_operators_keep_the_order_and_the_shape_and_take_in_no_heads_of_another_model():
    left, right = parse_heads("L3, L0H5", ONE), parse_heads("L3H0-1, L1H1", ONE)
    assert str(left | right) == "L0H5, L1H1, L3"
    assert str(left & right) == "L3H0-1"
    assert str(left - right) == "L0H5, L3H2-6"
    assert (left | right).shape == left.shape == (("", (7, 7, 7, 7, 7)),)
    assert left & right <= left
    assert not left <= right
    with pytest.raises(HeadError, match="'L3H7': there is no head 7 in L3"):
        _ = parse_heads("L3", ONE) | {Head("", 3, 7)}
    some = parse_heads("L*H3, L2", UNEVEN)
    assert some | some.complement() == HeadSet.all(UNEVEN)
    assert not some & some.complement()


def test_sets_are_equal_print_alike_and_count_however_they_were_asked():
    one, other = parse_heads("L1H2-3", ONE), parse_heads({1: [3, 2, 2]}, ONE)
    assert (one, hash(one), str(one)) == (other, hash(other), str(other))
    heads = parse_heads("cross:L0H3, cross:L0H1, encoder:L1H2", SEVERAL)
    assert heads.by_layer() == {("encoder", 1): (2,), ("cross", 0): (1, 3)}
    assert len(HeadSet.all(SEVERAL)) == 2 * 3 + 3 * 5 + 3 * 5
    assert Head("cross", 2, 4) in HeadSet.all(SEVERAL)
    assert Head("cross", 2, 5) not in HeadSet.all(SEVERAL)
    assert str(parse_heads("L1, L2H0-2, L2H5", ONE)) == "L1, L2H0-2, L2H5"


# ---- for every head and every model

stacks = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,8}", fullmatch=True)
layer_counts = st.lists(st.integers(0, 13), min_size=1, max_size=11)
shapes = st.one_of(
    st.builds(lambda counts: {"": counts}, layer_counts),
    st.dictionaries(st.one_of(st.just(""), stacks), layer_counts, min_size=1, max_size=3),
)


@given(st.builds(Head, st.one_of(st.just(""), stacks), st.integers(0, 10**6), st.integers(0, 10**6)))
def test_any_heads_name_reads_back_as_the_head(head):
    assert Head.parse(str(head)) == head


@given(st.data())
def test_any_sets_text_reads_back_as_the_set(data):
    shape = data.draw(shapes)
    every = list(HeadSet.all(shape))
    chosen = data.draw(st.sets(st.sampled_from(every))) if every else set()
    heads = parse_heads(chosen, shape)
    assert heads == chosen
    assert parse_heads(list(heads), shape) == heads
    if heads:
        assert parse_heads(str(heads), shape) == heads


numbers = st.integers(0, 15).map(str)
spans = st.one_of(st.just("*"), numbers, st.builds("{}-{}".format, numbers, numbers))
parts = st.builds("{}L{}{}".format, st.sampled_from(["", "a:"]), spans, st.one_of(st.just(""), spans.map("H{}".format)))


@given(parts, shapes)
def test_the_form_that_an_error_advises_is_one_that_the_model_has(text, shape):
    try:
        parse_heads(text, shape)
    except HeadError as error:
        if advised := re.search(r"(?:Nearest:|Write) '([^']*)'\.$", str(error)):
            assert parse_heads(advised[1], shape)


@given(st.text(alphabet="LH0123456789*-:, abe", max_size=12), shapes)
def test_any_text_is_heads_of_the_model_or_a_head_error(text, shape):
    try:
        heads = parse_heads(text, shape)
    except HeadError:
        return
    assert heads
    assert heads <= HeadSet.all(shape)
