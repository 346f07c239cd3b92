"""`manyheads head ... --image`: what is shown of a head is its recorded row, drawn where its patches are."""

import json

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from PIL import Image

import manyheads as mh
from manyheads.figures import save_picture
from manyheads.figures.picture import overlaid
from manyheads.recording.media import Grid, grid_of

from ..models.tiny_media import saved, some_picture, square, tiny_deit, tiny_siglip, tiny_swin, tiny_vit, wide, windowed
from ..models.tiny_media import spectra as spectra_of
from ..models.tiny_media import tiny_whisper as whisper_of
from ..models.tiny_vision_language import SIDE, saved_llava
from .conftest import assert_refused

SHADES = "·░▒▓█"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models by name, saved with their processors."""
    root = tmp_path_factory.mktemp("pictures")
    made = {
        "vit": (tiny_vit(), wide()),
        "deit": (tiny_deit(), wide()),
        "siglip": (tiny_siglip(), square()),
        "swin": (tiny_swin(), windowed()),
        "whisper": (whisper_of(), spectra_of()),
    }
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
    rec = mh.record(mh.load(folder), image=image)
    return grid_of(rec), rec.stacks[""][layer].weights(head=head, queries=slice(position, position + 1))[0]


@pytest.mark.turns(4)
def test_json_is_the_class_tokens_row_of_the_record(run, folders, cat):
    found = json.loads(run("head", "L1H2", "--model", folders["deit"], "--image", cat, "--json").out)
    grid, row = row_of(folders["deit"], cat, 1, 2, 0)
    assert found["looks_from"] == "[CLS]" and found["patch"] is None and found["head"] == "L1H2"
    torch.testing.assert_close(torch.tensor(found["weights"]), grid.laid_out(row))
    assert found["others"] == pytest.approx({"[CLS]": float(row[0]), "[DIST]": float(row[1])})
    assert (found["grid"]["rows"], found["grid"]["columns"], found["grid"]["prefix"]) == (3, 5, ["[CLS]", "[DIST]"])
    best = int(grid.laid_out(row).argmax())
    assert (found["strongest"][0]["row"], found["strongest"][0]["column"]) == divmod(best, 5)


@pytest.mark.turns(4)
def test_a_patch_that_was_asked_for_looks(run, folders, cat):
    found = json.loads(run("head", "L0H1", "--model", folders["vit"], "--image", cat, "--patch", "2,3", "--json").out)
    grid, row = row_of(folders["vit"], cat, 0, 1, 1 + 2 * 5 + 3)
    assert found["looks_from"] == "patch 2,3" and found["patch"] == [2, 3]
    torch.testing.assert_close(torch.tensor(found["weights"]), grid.laid_out(row))


@pytest.mark.turns(4)
def test_without_a_class_token_it_is_the_mean_over_patches(run, folders, cat):
    found = json.loads(run("head", "L1H0", "--model", folders["siglip"], "--image", cat, "--json").out)
    rec = mh.record(mh.load(folders["siglip"]), image=cat)
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


@pytest.mark.turns(4)
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


@pytest.mark.turns(5)
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


@pytest.mark.turns(5)
def test_a_token_of_the_answer_looks_at_the_picture(run, llava, cat, tmp_path):
    asked = ("head", "L1H2", "--model", llava, "--image", cat, "what is it ?")
    rec = mh.record(mh.load(llava), "what is it ?", image=cat, answer="a red cat")
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
    assert_refused(run(*asked[:-1], "what is it ? <image>"), "no token stands behind the picture, so none looks at it")
    assert_refused(run(*asked[:-1]), "reads pictures among the tokens of a text: give it a text too")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.turns(4)
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
        (("--patch", "0,0", "a text"), "--patch 0,0 is a place in a picture: give the picture too, --image"),
        (("--image", cat), "minilm (BertModel) reads text, not pictures"),
        ((*vit, "a text"), "vit (ViTModel) reads pictures, not text"),
        (("--model", folders["whisper"], "--image", cat), "reads sounds, not pictures"),
        ((*vit, "--image", cat, "--plot", "seen.txt"), "seen.txt: cannot tell what to write"),
    ]:
        plot = () if "--plot" in arguments else ("--plot", "seen.png")
        assert_refused(run("head", "L1H2", *arguments, *plot), said)
    for head, said in (("L7H0", "vit has layers 0-1 and heads 0-2"), ("L0H3", "vit has layers 0-1 and heads 0-2")):
        assert_refused(run("head", head, *vit, "--image", cat), said)
    swin = ("--model", folders["swin"], "--image", cat, "--plot", "seen.png")
    assert_refused(run("head", "L3H2", *swin), "no grid of patches: its layers attend within windows")
    siglip = ("--model", folders["siglip"], "--image", cat)
    assert_refused(run("head", "cross:L0H0", *siglip), "cross:L0H0 is cross-attention: its rows are no patches")
    assert_refused(run("head", "L2H0", *siglip), "siglip has layers 0-1 and heads 0-2")
    assert sorted(path.name for path in tmp_path.iterdir()) == before
