"""`manyheads head`: where the words look is the record's own weights, and every head that is not there is refused."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from PIL import Image

import manyheads as mh
from manyheads.cli.head.command import block_map, find_links
from manyheads.corpora import OWN_TEXT
from manyheads.figures import save_picture
from manyheads.figures.picture import overlaid
from manyheads.recording.media import grid_of
from manyheads.texts import Sinks
from manyheads.texts.tokens import Grid
from tests.cli.conftest import TEXT, assert_refused
from tests.models.tiny import save_tiny, tiny_llama, tiny_tokenizer
from tests.models.tiny_media import (
    SIDE,
    saved,
    saved_llava,
    some_picture,
    square,
    tiny_deit,
    tiny_siglip,
    tiny_swin,
    tiny_vit,
    wide,
    windowed,
)
from tests.models.tiny_media import spectra as spectra_of
from tests.models.tiny_media import tiny_whisper as whisper_of


def section(lines, title):
    """The lines under a title, up to the next empty one."""
    begin = next(at for at, line in enumerate(lines) if line.startswith(title)) + 1
    return lines[begin : lines.index("", begin)] if "" in lines[begin:] else lines[begin:]


def test_a_language_model_of_any_name_is_shown_a_text_that_breaks_off(run, tmp_path, short_pages):
    """It is known once it is loaded; what is typed next is of the same text, and of one's own."""
    folder = str(save_tiny(tiny_llama(), tmp_path / "llama", tiny_tokenizer()))
    ran = run("head", "L1H2", "--model", folder)
    assert ran.code == 0 and "tokens, an example text" in ran.out
    assert 'manyheads head L1H2 "any text"' in ran.out
    document = json.loads(run("look", "--model", folder, "--json").out)
    assert document["text"]["text"] == "When Mary and John went to the store, John gave a drink to"
    assert json.loads(run("look", "--json").out)["text"]["text"] == OWN_TEXT
    own = run("head", "L1H2", "a b c", "--model", folder)
    assert own.code == 0 and "an example" not in own.out and "any text" not in own.out


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


def test_the_map_of_a_previous_token_head_is_the_line_below_the_diagonal(run):
    rows = [line[18:] for line in section(run("head", "L0H2", TEXT).lines, "Map")[3:]]
    for at in range(1, len(rows)):
        assert [at_ // 2 for at_, cell in enumerate(rows[at]) if cell == "█"] == [at - 1, at - 1]


def test_what_a_causal_model_cannot_see_is_blank(run, gpt2_folder):
    text = "the cat sat on the mat"
    rows = [line[18:] for line in section(run("head", "L1H2", text, "--model", gpt2_folder).lines, "Map")[2:]]
    assert [len(row) for row in rows] == [2, 4, 6, 8, 10, 12]


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


def test_its_numbers_are_those_of_measure(run, minilm):
    found = json.loads(run("head", "L1H8", TEXT, "--json").out)
    table = mh.measure(minilm, TEXT, ["entropy", "next_mass", "distance"])
    for name in table.names:
        assert found["text"][name] == pytest.approx(table["L1H8", name], abs=1e-6)


@pytest.mark.parametrize("options", [(), ("--json",), ("--plot", "head.png", "--leave-out-sinks")])
def test_a_text_is_read_once(options, run, passes):
    run("head", "L1H8", TEXT)  # labels are remembered from here on
    passes.clear()
    ran = run("head", "L1H8", TEXT, *options)
    assert ran.code == 0 and passes == [(1, 14)], ran.err


def test_several_heads_are_shown_one_after_another_and_the_text_is_read_once(run, passes):
    alone = [run("head", name, TEXT, "--json") for name in ("L0H2", "L5H11")]
    passes.clear()
    both = run("head", "L0H2", "L5H11", TEXT, "--json")
    assert len(passes) == 1
    documents = json.loads(both.out)["heads"]
    for document, one in zip(documents, (json.loads(ran.out) for ran in alone), strict=True):
        assert {key: document[key] for key in ("head", "text", "looks", "strongest")} == {
            key: one[key] for key in ("head", "text", "looks", "strongest")
        }
    page = run("head", "L0H2", "L5H11", TEXT)
    assert [line.split()[0] for line in page.lines if line.startswith(("L0H2", "L5H11"))] == ["L0H2", "L5H11"]
    assert_refused(run("head", "L0H2", "L9H0", TEXT), "L9H0: minilm has layers 0-5 and heads 0-11.")
    message = "--plot is about one head, and L0H2, L5H11 are 2: give one of them."
    assert_refused(run("head", "L0H2", "L5H11", TEXT, "--plot", "map.png"), message)


def test_top_says_how_many_keys_are_shown(run):
    wide = section(run("head", "L0H0", TEXT, "--top", "1").lines, "Where each token looks")
    assert all(line.count("%") == 1 for line in wide[1:])


@pytest.mark.slow
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


def test_plot_draws_the_map(run, tmp_path):
    ran = run("head", "L3H11", TEXT, "--plot", "map.svg")
    assert ran.code == 0 and "map.svg, the map of L3H11 on this text" in ran.out
    assert "<svg" in (tmp_path / "map.svg").read_text()


@pytest.mark.slow
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


def test_sinks_are_grey_and_links_have_the_colour_of_the_role(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    ran = run("head", "L2H9", TEXT)
    assert "grey: [CLS], the sink, gets" in ran.out
    # #767676, and the hue of duplicate tokens; rich keeps a style as it was first written, maybe in 256 colours.
    for colours in (r"38;2;118;118;118m|38;5;243m", r"38;2;215;95;0m|38;5;166m"):
        assert re.search(f"({colours})(▓▓|██)", ran.out), ran.out


ANIMAL = "The animal didn't cross the street because it was too tired."


def test_say_prints_the_sentence_and_both_bars_of_each_word(run):
    ran = run("head", "L3H1", ANIMAL, "--say", "it")
    lines = ran.out.splitlines()
    assert ran.code == 0 and lines[0].startswith("L3H1")
    assert lines[1] == '"it" asked and "animal" answered: 68 % of the look, 91 % of what this head says.'
    animal = next(line.split() for line in lines if line.startswith('  "animal"'))
    assert animal[1:3] == ["67.7", "%"] and animal[4:6] == ["91.0", "%"] and len(animal[3]) < len(animal[6])
    parked = next(line.split() for line in lines if line.startswith("  [CLS]"))
    assert parked[1:3] == ["10.2", "%"] and parked[-2:] == ["0.0", "%"]
    added = " ".join(lines[lines.index("", 4) :])
    assert "It adds a vector of length" in added and "of what layer 3 adds there." in added


def test_say_in_json_is_the_librarys(run, minilm):
    from manyheads.circuits import head_output, layer_output

    document = json.loads(run("head", "L3H1", ANIMAL, "--say", "because", "--json").out)["says"]
    rec = mh.record(minilm, ANIMAL, keep=("q", "k", "v", "lse"))
    output = head_output(rec, "L3H1", "because", minilm)
    assert document["sentence"] == output.sentence and document["word"] == '"because"'
    assert document["wrote"] == pytest.approx(float(layer_output(rec, 3, "because", minilm).wrote[1]), abs=1e-6)
    np.testing.assert_allclose(document["out"], output.out, atol=1e-5)
    np.testing.assert_allclose(document["adds"], output.adds, atol=1e-5)
    assert [row["look"] for row in document["tokens"]] == pytest.approx(output.weights.tolist(), abs=1e-6)
    assert "says" not in json.loads(run("head", "L3H1", ANIMAL, "--json").out)


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        (ANIMAL, "dog", "no word 'dog' in this text"),
        ("it saw it", "it", "'it' is in this text 2 times. Say which: 'it#1'"),
    ],
)
def test_say_refuses_a_word_that_is_not_there_or_there_twice(run, text, word, said):
    assert_refused(run("head", "L3H1", text, "--say", word), said)


def test_say_is_about_a_text(run, cat):
    assert_refused(run("head", "L3H1", "--image", str(cat), "--say", "it"), "--say it names a word of a text")


@pytest.mark.parametrize(("head", "said"), [
    ("L9H2", "L9H2: minilm has layers 0-5 and heads 0-11."),
    ("L0H12", "L0H12: minilm has layers 0-5 and heads 0-11."),
    ("7", "'7' does not name one head. Write it like 'L3H7'"),
    ("L0", "'L0' does not name one head"),
    ("decoder:L0H1", "minilm has layers 0-5"),
])  # fmt: skip
def test_a_head_that_is_not_there_is_refused(run, head, said):
    assert_refused(run("head", head, TEXT), said)


def test_a_cross_head_is_refused_with_what_shows_it_and_look_says_what_the_decoder_reads(run, t5_folder):
    ran = run("head", "cross:L1H0", "the cat sat", "--model", t5_folder)
    assert_refused(ran, "cross:L1H0 is cross-attention", "manyheads look --html", "stacks['cross']")
    looked = run("look", "the cat sat", "--model", t5_folder)
    assert looked.code == 0 and any(line.startswith("decoder ") for line in looked.lines), looked.out


# ========================================================================================== a head's row over a picture
# `manyheads head ... --image`: what is shown of a head is its recorded row, drawn where its patches are.

SHADES = "·░▒▓█"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models by name, saved with their processors."""
    root = tmp_path_factory.mktemp("pictures")
    made = {
        "vit": (tiny_vit(), wide()), "deit": (tiny_deit(), wide()), "siglip": (tiny_siglip(), square()),
        "swin": (tiny_swin(), windowed()), "whisper": (whisper_of(), spectra_of()),
    }  # fmt: skip
    return {name: saved(root / name, *each) for name, each in made.items()}


@pytest.fixture
def cat(tmp_path):
    """The same picture for every commit."""
    Image.fromarray(some_picture(torch.Generator().manual_seed(7))).save(tmp_path / "cat.png")
    return "cat.png"


def drawn(lines):
    """The cells of the map on the page, two columns each."""
    begin = next(at for at, line in enumerate(lines) if line.startswith("Map")) + 3
    return [line[6:] for line in lines[begin : lines.index("", begin)]]


def row_of(folder, image, layer, head, position):
    rec = mh.record(mh.load(folder), mh.Inputs(image=image))
    return grid_of(rec), rec.stacks[""][layer].weights(head=head, queries=slice(position, position + 1))[0]


def test_json_is_the_class_tokens_row_of_the_record(run, folders, cat):
    found = json.loads(run("head", "L1H2", "--model", folders["deit"], "--image", cat, "--json").out)
    grid, row = row_of(folders["deit"], cat, 1, 2, 0)
    assert found["looks_from"] == "[CLS]" and found["patch"] is None and found["head"] == "L1H2"
    torch.testing.assert_close(torch.tensor(found["weights"]), grid.laid_out(row))
    assert found["others"] == pytest.approx({"[CLS]": float(row[0]), "[DIST]": float(row[1])})
    assert (found["grid"]["rows"], found["grid"]["columns"], found["grid"]["prefix"]) == (3, 5, ["[CLS]", "[DIST]"])
    best = int(grid.laid_out(row).argmax())
    assert (found["strongest"][0]["row"], found["strongest"][0]["column"]) == divmod(best, 5)


def test_a_patch_that_was_asked_for_looks(run, folders, cat):
    found = json.loads(run("head", "L0H1", "--model", folders["vit"], "--image", cat, "--patch", "2,3", "--json").out)
    grid, row = row_of(folders["vit"], cat, 0, 1, 1 + 2 * 5 + 3)
    assert found["looks_from"] == "patch 2,3" and found["patch"] == [2, 3]
    torch.testing.assert_close(torch.tensor(found["weights"]), grid.laid_out(row))


def test_without_a_class_token_it_is_the_mean_over_patches(run, folders, cat):
    found = json.loads(run("head", "L1H0", "--model", folders["siglip"], "--image", cat, "--json").out)
    rec = mh.record(mh.load(folders["siglip"]), mh.Inputs(image=cat))
    want = rec.stacks[""][1].weights(head=0).mean(0).reshape(5, 5)
    assert found["looks_from"] == "the mean over all patches"
    torch.testing.assert_close(torch.tensor(found["weights"]), want)


def test_the_page_shades_the_strongest_patch_fully_and_marks_the_one_that_looks(run, folders, cat, tmp_path):
    (tmp_path / "vit").symlink_to(folders["vit"])
    asked = ("head", "L1H2", "--model", "vit", "--image", cat, "--patch", "0,4")
    ran, found = run(*asked), json.loads(run(*asked, "--json").out)
    weights, cells = np.array(found["weights"]), drawn(ran.lines)
    assert ran.code == 0 and max(map(len, ran.lines)) <= 100
    assert ran.lines[0] == "L1H2  in vit"
    assert "cat.png, read as 40 x 24 pixels in 3 x 5 patches; other tokens: [CLS]" in ran.out
    assert len(cells) == 3 and cells[0][8] == "@"
    for row in range(3):
        for column in range(5):
            want = sum(weights[row, column] >= step * weights.max() for step in (0.1, 0.35, 0.6, 0.85))
            assert cells[row].ljust(10)[2 * column + 1] == SHADES[want]
    best = found["strongest"][0]
    assert f"{best['row']},{best['column']} {best['weight']:.1%}" in ran.out
    assert f"--patch {best['row']},{best['column']}" in ran.out and "--patch 0,4 --plot seen.png" in ran.out
    total = weights.sum()
    assert f"{total:.1%} on patches, {1 - total:.1%} on [CLS]" in ran.out


def test_plot_draws_the_picture_and_the_weights(run, folders, cat, tmp_path):
    ran = run("head", "L1H2", "--model", folders["vit"], "--image", cat, "--plot", "seen.png", "--patch", "1,1")
    assert ran.code == 0 and "seen.png, the picture with the weights on it" in ran.out
    assert imread(tmp_path / "seen.png").shape[1] > 2 * 40 * 10
    plain = (tmp_path / "seen.png").read_bytes()
    run("head", "L1H2", "--model", folders["vit"], "--image", cat, "--plot", "seen.png", "--patch", "1,1")
    assert (tmp_path / "seen.png").read_bytes() == plain
    run("head", "L0H2", "--model", folders["vit"], "--image", cat, "--plot", "other.png", "--patch", "1,1")
    assert (tmp_path / "other.png").read_bytes() != plain


def test_ink_lies_on_the_pixels_of_the_patch_and_grows_with_its_weight(fresh):
    picture = some_picture(fresh, 24, 40)
    grid = Grid(3, 5, (24, 40), (8, 8), (8, 8))
    places = {(row, column): grid.pixels(row, column) for row in range(3) for column in range(5)}
    bare = overlaid(picture, np.zeros((3, 5)), places)
    darkness = []
    for share in (0.05, 0.2, 0.5, 1.0):
        shares = np.zeros((3, 5))
        shares[1, 3] = share
        inked = overlaid(picture, shares, places)
        other = np.ones((24, 40), dtype=bool)
        other[8:16, 24:32] = False
        assert np.array_equal(inked[other], bare[other])
        darkness.append(int(inked[8:16, 24:32].sum()))
    assert darkness == sorted(darkness, reverse=True) and darkness[0] < int(bare[8:16, 24:32].sum())
    assert len(np.unique(bare)) > 10  # the picture can still be seen where nobody looks


def test_a_large_picture_is_drawn_by_every_few_pixels(tmp_path):
    grid = Grid(2, 3, (1600, 2400), (800, 800), (800, 800))
    places = {(row, column): grid.pixels(row, column) for row in range(2) for column in range(3)}
    picture = np.zeros((1600, 2400, 3), np.uint8)
    save_picture(picture, np.eye(2, 3), places, tmp_path / "a.png", title="a", framed=(1, 2), others={"reg1": 0.5})
    assert imread(tmp_path / "a.png").shape[1] < 2 * 1040 + 300


# ------------------------------------------------------------------------------------------------ a text with a picture


@pytest.fixture(scope="module")
def llava(tmp_path_factory):
    return saved_llava(tmp_path_factory.mktemp("llava") / "llava")


def test_a_token_of_the_answer_looks_at_the_picture(run, llava, cat, tmp_path):
    asked = ("head", "L1H2", "--model", llava, "--image", cat, "what is it ?")
    rec = mh.record(mh.load(llava), mh.Inputs("what is it ?", image=cat, answer="a red cat"))
    answered = (*asked, "--answer", "a red cat")
    for token, place in ((None, rec.answer.stop - 1), (0, rec.answer.start)):
        chosen = () if token is None else ("--token", str(token))
        found = json.loads(run(*answered, *chosen, "--json").out)
        row = rec.layers[1].weights(head=2, queries=slice(place, place + 1))[0]
        weights = row[rec.images[0].span].reshape(5, 5)
        torch.testing.assert_close(torch.tensor(found["weights"], dtype=row.dtype), weights)
        assert found["others"] == pytest.approx({"the rest of the text": float(1 - weights.sum())})
        assert (found["token"], found["tokens"]) == (place, ["a", "red", "cat"])
    ran = run(*answered, "--plot", "seen.png")
    assert ran.code == 0 and "looks     'cat', token 2 of the answer: " in ran.out
    assert "--answer 'a red cat'" in ran.out and "--token 0" in ran.out and max(map(len, ran.lines)) <= 100
    assert "--plot" not in ran.out  # it was just done
    assert imread(tmp_path / "seen.png").shape[1] > 2 * SIDE * 10
    behind = json.loads(run(*asked, "--json").out)
    assert behind["tokens"] == ["what", "is", "it", "?"] and behind["looks_from"].startswith("'?', token 3 of the text")
    written = json.loads(run(*asked, "--generate", "3", "--json").out)
    assert len(written["tokens"]) == 3 and written["token"] == 25 + 4 + 2
    before = sorted(path.name for path in tmp_path.iterdir())
    refused = run(*answered, "--token", "3", "--plot", "other.png")
    assert_refused(refused, "--token 3: the answer has 3 that look at the picture, counted from 0")
    assert_refused(run(*asked[:-1], "what is it ? <image>"), "no token comes after the picture, so none looks at it")
    assert_refused(run(*asked[:-1]), "reads pictures among the tokens of a text: give it a text too")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


# ------------------------------------------------------------------------------------------------------------ refusals


def test_what_cannot_be_is_one_line_and_nothing_is_written(run, folders, cat, tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    before = sorted(path.name for path in tmp_path.iterdir())
    vit = ("--model", folders["vit"])
    for arguments, said in [
        ((*vit, "--image", "none.png"), "there is no picture none.png"),
        ((*vit, "--image", "notes.png"), "notes.png is not a picture that can be read"),
        ((*vit, "--image", "."), "it is a folder"),
        ((*vit, "--image", cat, "--patch", "3,0"), "there is no patch 3,0: the picture has 3 rows and 5 columns"),
        ((*vit, "--image", cat, "--patch", "here"), "--patch here: give a row and a column, both counted from 0"),
        ((*vit, "--image", cat, "a text"), "vit (ViTModel) reads pictures alone: give exactly one"),
        ((*vit, "--image", cat, "a text", "--patch", "0,0"), "--patch 0,0 and a text were given: a token of the text"),
        ((*vit, "--image", cat, "--token", "1"), "--token is about a text with a picture: give both"),
        (("a text", "--answer", "a cat"), "--answer is about a text with a picture: give both"),
        (("--patch", "0,0", "a text"), "--patch 0,0 is a place in a picture: also give the picture, --image"),
        (("--image", cat), "minilm (BertModel) reads text, not pictures"),
        ((*vit, "a text"), "vit (ViTModel) reads pictures, not text"),
        (("--model", folders["whisper"], "--image", cat), "reads sounds, not pictures"),
        ((*vit, "--image", cat, "--plot", "seen.txt"), "seen.txt: cannot tell from that ending what to write"),
    ]:
        plot = () if "--plot" in arguments else ("--plot", "seen.png")
        assert_refused(run("head", "L1H2", *arguments, *plot), said)
    for head, said in (("L7H0", "vit has layers 0-1 and heads 0-2"), ("L0H3", "vit has layers 0-1 and heads 0-2")):
        assert_refused(run("head", head, *vit, "--image", cat), said)
    swin = ("--model", folders["swin"], "--image", cat, "--plot", "seen.png")
    assert_refused(run("head", "L3H2", *swin), "no grid of patches: its layers attend within windows")
    siglip = ("--model", folders["siglip"], "--image", cat)
    assert_refused(run("head", "cross:L0H0", *siglip), "cross:L0H0 is cross-attention: its rows are not patches")
    assert_refused(run("head", "L2H0", *siglip), "siglip has layers 0-1 and heads 0-2")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
