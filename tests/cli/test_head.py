"""`manyheads head`: where the words look is the record's own weights, and every head that is not there is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.cli.head.command import block_map, find_links
from manyheads.recording import Sinks

from .conftest import assert_refused

TEXT = "Ada gave Grace the key, and Grace kept the key."


def section(lines, title):
    """The lines under a title, up to the next empty one."""
    begin = next(at for at, line in enumerate(lines) if line.startswith(title)) + 1
    return lines[begin : lines.index("", begin)] if "" in lines[begin:] else lines[begin:]


@pytest.mark.turns(4)
def test_the_page_says_the_role_and_where_each_token_looks(run):
    ran = run("head", "L0H2", TEXT)
    assert ran.code == 0 and max(map(len, ran.lines)) <= 100
    assert ran.lines[0] == "L0H2  previous token  in minilm"
    assert "of its attention on the token before" in ran.lines[1] and "95% interval" in ran.out
    looks = section(ran.lines, "Where each token looks")
    assert len(looks) == 1 + 14
    assert looks[3].split()[:5] == ["2", "gave", "1", "Ada", "100.0%"]
    assert len(section(ran.lines, "Map")) == 3 + 14
    numbers = section(ran.lines, "Its numbers")
    assert any(line.startswith("entropy (nats)") for line in numbers)
    points = {match.end() for line in numbers for match in re.finditer(r"\d\.(?=\d)", line[:52])}
    assert len(points) == 2, "in either column the decimal points stand below each other"


@pytest.mark.turns(4)
def test_the_map_of_a_previous_token_head_is_the_line_below_the_diagonal(run):
    rows = [line[18:] for line in section(run("head", "L0H2", TEXT).lines, "Map")[3:]]
    for at in range(1, len(rows)):
        assert [at_ // 2 for at_, cell in enumerate(rows[at]) if cell == "█"] == [at - 1, at - 1]


@pytest.mark.turns(4)
def test_what_a_causal_model_cannot_see_is_blank(run, gpt2_folder):
    text = "the cat sat on the mat"
    rows = [line[18:] for line in section(run("head", "L1H2", text, "--model", gpt2_folder).lines, "Map")[2:]]
    assert [len(row) for row in rows] == [2, 4, 6, 8, 10, 12]


@pytest.mark.turns(4)
def test_links_are_the_record_s_weights(run, minilm):
    document = json.loads(run("head", "L2H9", TEXT, "--json", "--top", "4").out)
    weights = mh.record(minilm, TEXT).layers[2].weights(head=9)
    values, keys = weights.topk(4)
    for row, looks in enumerate(document["looks"]):
        assert [each["key"] for each in looks] == keys[row].tolist()
        assert [each["weight"] for each in looks] == pytest.approx(values[row].tolist(), abs=1e-6)
    weights[:, 0] = 0  # [CLS], the sink
    best = weights.max(-1)
    strongest = max(range(len(weights)), key=lambda row: best.values[row])
    assert document["strongest"][0]["query"] == strongest
    assert document["strongest"][0]["key"] == int(best.indices[strongest])
    assert (document["head"], document["role"]) == ("L2H9", "duplicate token")
    assert document["tokens"][:3] == ["[CLS]", "Ada", "gave"]


def test_links_do_not_hang_on_how_many_rows_are_held(minilm, monkeypatch):
    layer = mh.record(minilm, TEXT).layers[3]
    whole = find_links(layer, 4, 3)
    monkeypatch.setattr("manyheads.cli.head.command.ROWS", 5)
    parts = find_links(layer, 4, 3)
    for one, other in zip(whole.looks, parts.looks, strict=True):
        assert [link.key for link in one] == [link.key for link in other]
        torch.testing.assert_close(torch.tensor([x.weight for x in one]), torch.tensor([x.weight for x in other]))


@pytest.mark.turns(4)
def test_its_numbers_are_those_of_measure(run, minilm):
    found = json.loads(run("head", "L1H8", TEXT, "--json").out)
    table = mh.measure(minilm, TEXT, ["entropy", "next_mass", "distance"])
    for name in table.names:
        assert found["text"][name] == pytest.approx(table["L1H8", name], abs=1e-6)


@pytest.mark.turns(4)
def test_top_says_how_many_keys_are_shown(run):
    wide = section(run("head", "L0H0", TEXT, "--top", "1").lines, "Where each token looks")
    assert all(line.count("%") == 1 for line in wide[1:])


@pytest.mark.turns(5)
def test_a_long_text_shows_one_window_in_blocks_and_says_so(run, tmp_path):
    (tmp_path / "long.txt").write_text("the cat sat on the mat, and it ran; " * 120)
    ran = run("head", "L0H2", "--file", "long.txt")
    said = " ".join(ran.out.split())
    assert ran.code == 0 and "1 of 3: the text is longer than the model's positions" in said
    assert "a cell is the mean of about 16 x 16 weights" in said and "of 512" in said
    assert len(section(ran.lines, "Map")) == 3 + 32 and len(section(ran.lines, "Where each token looks")) == 1 + 20
    assert "manyheads head L0H2 --file long.txt --window 2" in ran.out
    last = json.loads(run("head", "L0H2", "--file", "long.txt", "--window", "3", "--json").out)
    assert last["window"] == {"shown": 3, "of": 3} and len(last["tokens"]) < 512
    assert_refused(run("head", "L0H2", "--file", "long.txt", "--window", "4"), "--window 4: the text has 3 windows.")


@pytest.mark.turns(4)
def test_plot_draws_the_map(run, tmp_path):
    ran = run("head", "L3H11", TEXT, "--plot", "map.svg")
    assert ran.code == 0 and "map.svg, the map of L3H11 on this text" in ran.out
    assert "<svg" in (tmp_path / "map.svg").read_text()


@pytest.mark.turns(4)
def test_sinks_are_left_out_and_nothing_else_changes(run, minilm):
    plain = json.loads(run("head", "L2H9", TEXT, "--json", "--top", "3").out)
    left = json.loads(run("head", "l2h9", *TEXT.split(), "--json", "--top", "3", "--leave-out-sinks").out)
    weights = mh.record(minilm, TEXT).layers[2].weights(head=9)
    assert (plain["sinks_left_out"], left["sinks_left_out"]) == (False, True)
    assert left["sink_shares"] == plain["sink_shares"] == pytest.approx(weights[:, 0].tolist(), abs=1e-6)
    others = weights[:, 1:].topk(3)
    for row, looks in enumerate(left["looks"]):
        assert [link["key"] for link in looks] == (others.indices[row] + 1).tolist()
        assert [link["weight"] for link in looks] == pytest.approx(others.values[row].tolist(), abs=1e-6)
    page = run("head", "L2H9", TEXT, "--leave-out-sinks")
    share = f"{float(weights[:, 0].mean()):.0%}"
    assert f"╱╱ [CLS], the sink, is left out with {share} of this head's attention" in page.out
    assert "the other weights are not scaled up" in " ".join(page.out.split())
    rows = [line[18:] for line in section(page.lines, "Map")[4:]]
    assert len(rows) == 14 and all(row.startswith("╱╱") and row.count("╱") == 2 for row in rows)
    assert f"[CLS], the sink, gets {share} of this head's attention" in run("head", "L2H9", TEXT).out


@pytest.mark.parametrize("leave_out", [False, True])
@pytest.mark.parametrize("blocks", [5, 14])
@pytest.mark.sampled(2)
def test_the_blocks_of_the_map_are_plain_means(minilm, monkeypatch, blocks, leave_out):
    monkeypatch.setattr("manyheads.cli.head.command.ROWS", 5)
    layer = mh.record(minilm, TEXT).layers[2]
    layer = replace(layer, tokens=layer.tokens.with_sinks(Sinks(first=True, names=("[CLS]",))))
    weights = layer.weights(head=9).double().numpy()
    small = block_map(layer, 9, blocks, leave_out)
    block = np.arange(14) * blocks // 14
    for row in range(blocks):
        for column in range(blocks):
            keys = [key for key in np.flatnonzero(block == column) if key > 0 or not leave_out]
            cells = weights[np.flatnonzero(block == row)][:, keys]
            assert bool(small.hatched[row, column]) == (blocks == 14 and column == 0)
            if cells.size:
                assert float(small.weights[row, column]) == pytest.approx(cells.mean())
            else:
                assert np.isnan(float(small.weights[row, column]))
            assert not small.of_sinks[row, column] or column == 0


def test_what_a_causal_model_cannot_see_is_no_sink_either(run, gpt2_folder):
    line = ["head", "L1H2", "the cat sat on the mat", "--model", gpt2_folder, "--leave-out-sinks"]
    assert "this model has no sink: nothing is left out" in run(*line).out


@pytest.mark.turns(4)
def test_sinks_are_grey_and_links_have_the_colour_of_the_role(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    ran = run("head", "L2H9", TEXT)
    assert "grey: [CLS], the sink, gets" in ran.out
    # #767676, and the hue of duplicate tokens; rich keeps a style as it was first written, maybe in 256 colours.
    for colours in (r"38;2;118;118;118m|38;5;243m", r"38;2;215;95;0m|38;5;166m"):
        assert re.search(f"({colours})(▓▓|██)", ran.out), ran.out


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("L9H2", "L9H2: minilm has layers 0-5 and heads 0-11."),
        ("L0H12", "L0H12: minilm has layers 0-5 and heads 0-11."),
        ("7", "'7' does not name one head. Write it like 'L3H7'"),
        ("L0", "'L0' does not name one head"),
        ("decoder:L0H1", "minilm has layers 0-5"),
    ],
)
def test_a_head_that_is_not_there_is_refused(run, head, said):
    assert_refused(run("head", head, TEXT), said)


@pytest.mark.turns(4)
def test_a_cross_head_is_refused_with_what_shows_it_and_look_says_what_the_decoder_reads(run, t5_folder):
    ran = run("head", "cross:L1H0", "the cat sat", "--model", t5_folder)
    assert_refused(ran, "cross:L1H0 is cross-attention", "manyheads look --html", "stacks['cross']")
    looked = run("look", "the cat sat", "--model", t5_folder)
    assert looked.code == 0 and any(line.startswith("decoder ") for line in looked.lines), looked.out
