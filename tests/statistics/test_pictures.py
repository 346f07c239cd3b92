"""Statistics of pictures in a text equal NumPy's on the model's own eager maps; those of words leave pictures out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.ndimage import label

import manyheads as mh
from manyheads.errors import StatisticError
from manyheads.inputs.media.vision_language import pictures_in_text
from manyheads.measurement.of_a_recording import measure_recording
from manyheads.measurement.sinks import judge
from manyheads.recording import record_tensors
from manyheads.statistics.defined import pictures
from manyheads.statistics.table import OF_IMAGES, STATISTICS, choose
from manyheads.texts.tokens import ImageSpan
from tests.models.eager import implementation
from tests.models.tiny_media import some_picture

QUESTION, ANSWER = "the cat , the red cat !", "the dog said"
NAMES = ["image_mass", "image_mass.uniform", "border_mass", "border_mass.uniform", "spatial_entropy"]


def eager(lm, *, image, answer=None):
    """A recording, and the model's own eager maps of its inputs: all heads of all layers, `[heads, q, k]`."""
    inputs, softmax = pictures_in_text(lm, QUESTION, image, answer)[0].inputs, torch.nn.functional.softmax
    with implementation(lm.model, "eager"), pytest.MonkeyPatch.context() as patch, torch.no_grad():
        # In float64 as all the rest: transformers' own is in float32, and near a picture's mean a rounding decides.
        patch.setattr(torch.nn.functional, "softmax", lambda x, dim, dtype: softmax(x, dim))
        maps = lm.model(**inputs, output_attentions=True).attentions
    return mh.record(lm, mh.Inputs(QUESTION, image=image, answer=answer)), torch.cat(maps, 1)[0].numpy()


def wanted(rec, maps, rows):
    """The five statistics of every head, as the documentation says them."""
    n = maps.shape[-1]
    on_image, on_border = np.zeros(n, bool), np.zeros(n, bool)
    for image in rec.images:
        grid = np.ones((image.rows, image.columns), bool)
        on_image[image.begin : image.begin + grid.size] = True
        grid[1:-1, 1:-1] = False
        on_border[image.begin : image.begin + grid.size] = grid.ravel()
    seen = maps[0] > 0
    mass, border = maps[:, rows][..., on_image].sum(-1), maps[:, rows][..., on_border].sum(-1)
    even = np.array([seen[row, on_image].sum() / seen[row].sum() for row in rows])
    even_border = np.array([seen[row, on_border].sum() / seen[row].sum() for row in rows])
    entropies = np.zeros((len(maps), 0))
    for image in rec.images:
        for row in rows:
            if seen[row, image.span].all():
                cells = maps[:, row, image.span].reshape(-1, image.rows, image.columns)
                entropies = np.column_stack([entropies, [entropy_of(one) for one in cells]])
    ones = np.ones(len(maps))
    values = [mass.mean(1), even.mean() * ones, border.sum(1) / mass.sum(1), even_border.sum() / even.sum() * ones]
    return dict(zip(NAMES, [*values, entropies.mean(1)], strict=True))


def entropy_of(cells):
    labels, count = label(cells > cells.mean(), structure=np.ones((3, 3)))
    shares = np.array([(labels == number).sum() for number in range(1, count + 1)]) / (labels > 0).sum()
    return -(shares * np.log(shares)).sum()


def assert_same(table, want, atol=1e-9):
    for name, values in want.items():
        np.testing.assert_allclose(table.column(name), values, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", ["qwen2.5", "llava", "paligemma"])
def test_every_number_is_numpys_on_the_models_own_maps(name, reading, fresh, monkeypatch, tmp_path):
    lm = reading(name)
    given = {"image": [some_picture(fresh, 64, 96), some_picture(fresh, 61, 40)], "answer": ANSWER}
    rec, maps = eager(lm, **given)
    assert [len(rec.images), rec.answer.stop - rec.answer.start] == [2, 3]
    want = wanted(rec, maps, list(range(*rec.answer.indices(maps.shape[1]))))
    monkeypatch.setattr(pictures, "MOST_CELLS", 60)  # a row at a time
    table = mh.measure(lm, mh.Inputs(QUESTION, **given), NAMES)
    assert_same(table, want)
    assert float(np.ptp(table.column("spatial_entropy"))) > 0.05 and float(np.ptp(table.column("image_mass"))) > 0.01
    rec.save(tmp_path / "a.heads")
    assert_same(measure_recording(mh.open_recording(tmp_path / "a.heads"), NAMES), want)


@pytest.mark.parametrize("name", ["qwen2", "llava"])
def test_without_an_answer_the_rows_are_the_text_behind_the_first_picture(name, reading, fresh):
    lm = reading(name)
    image = [some_picture(fresh), some_picture(fresh, 61, 40)]
    rec, maps = eager(lm, image=image)
    first, second = rec.images
    behind = [row for row in range(first.span.stop, maps.shape[1]) if not second.begin <= row < second.span.stop]
    assert_same(mh.measure(lm, mh.Inputs(QUESTION, image=image), NAMES), wanted(rec, maps, behind))


def test_words_are_counted_without_the_pictures_tokens(reading, fresh):
    lm = reading("qwen2.5")
    given = {"image": some_picture(fresh), "answer": ANSWER}
    rec, maps = eager(lm, **given)
    table = mh.measure(lm, mh.Inputs(QUESTION, **given), "all")
    assert set(table.names) == set(STATISTICS) | set(OF_IMAGES)
    ids, image = rec.tokens.ids[0].numpy(), rec.images[0].span
    marks = np.isin(ids, lm.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"]))
    assert marks.sum() == 2 and not marks[image].any()
    place = np.arange(len(ids))
    sees = place[:, None] >= place
    special = (maps * marks).sum(-1)[:, (sees & marks).any(-1)].mean(-1)
    np.testing.assert_allclose(table.column("special_mass"), special, atol=1e-9)
    word = ~marks & ~np.isin(place, place[image])
    same = (ids[:, None] == ids) & word & word[:, None] & (place[:, None] > place)
    duplicates = (maps * same).sum(-1)[:, same.any(-1)].mean(-1)
    assert same.any(-1).sum() == 3  # two more of "the", one of "cat"
    np.testing.assert_allclose(table.column("duplicate_mass"), duplicates, atol=1e-9)
    punctuation = np.isin(ids, lm.tokenizer.convert_tokens_to_ids([",", "!"]))
    marked = (maps * punctuation).sum(-1)[:, (sees & punctuation).any(-1)].mean(-1)
    np.testing.assert_allclose(table.column("punctuation_mass"), marked, atol=1e-9)
    assert table.notes["prompt"].startswith("image tokens put before") and "vision tower" in table.notes


def test_a_picture_is_no_sink_by_its_token_but_its_first_patch_may_be_by_its_place(reading, fresh):
    tokens = mh.record(reading("llava"), mh.Inputs(QUESTION, image=some_picture(fresh))).tokens
    length, size = tokens.longest, tokens.images[0][0].grid.num_patches
    even = torch.full((1, length), 1.0 / length)
    received = torch.zeros(1, length)
    received[0, 7] = 0.9
    assert judge(tokens, received, even).ids == () and not judge(tokens, received, even).first
    received[0, 0], received[0, size] = 0.5, 0.4
    sinks = judge(tokens, received, even)
    assert sinks.first and sinks.ids == (int(tokens.ids[0, size]),)


def test_known_maps_have_known_entropies():
    maps = torch.zeros(5, 3, 4, dtype=torch.float64)
    maps[0] = 1 / 12  # even: nothing is above the mean
    maps[1, 1, 2] = 1.0  # one piece
    maps[2, 0, 0], maps[2, 2, 3] = 0.5, 0.5  # two pieces of one cell
    maps[3, 0, 0], maps[3, 1, 1] = 0.5, 0.5  # one piece, by a corner
    maps[4, 0, 0], maps[4, 0, 2], maps[4, 0, 3], maps[4, 2, 0] = 0.2, 0.3, 0.3, 0.2  # pieces of 1, 2 and 1 cells
    got = pictures._entropy_of_pieces(maps)
    want = torch.tensor([np.nan, 0, np.log(2), 0, 1.5 * np.log(2)], dtype=torch.float64)
    torch.testing.assert_close(got, want, equal_nan=True)
    snake = torch.zeros(1, 7, 9, dtype=torch.float64)  # one piece that winds through the whole picture
    snake[0, ::2], snake[0, 1, -1], snake[0, 3, 0], snake[0, 5, -1] = 1.0, 1.0, 1.0, 1.0
    assert float(pictures._entropy_of_pieces(snake)) == 0.0


def test_without_pictures_they_are_refused_by_name_and_no_part_of_a_pattern(reading, fresh):
    lm = reading("llava")
    for request in ("image_mass", ["entropy", "spatial_entropy"]):
        with pytest.raises(StatisticError, match="is about the pictures in a text, and there are none: give mh.Inputs"):
            mh.measure(lm, QUESTION, request)
    assert not set(OF_IMAGES) & {statistic.name for statistic in choose("*_mass")}
    assert not set(OF_IMAGES) & {statistic.name for statistic in choose("all")}
    with_images = {statistic.name for statistic in choose("*_mass", images=True)}
    assert {"image_mass", "border_mass"} <= with_images
    default = mh.measure(lm, mh.Inputs(QUESTION, image=some_picture(fresh)))
    assert [name for name in OF_IMAGES if name in default.names] == ["image_mass", "border_mass", "spatial_entropy"]
    with pytest.raises(StatisticError, match="is about the pictures in a text, and there are none"):
        measure_recording(mh.record(lm, QUESTION), "border_mass")
    with pytest.raises(StatisticError, match="kinds= and sinks= are about a text's tokens"):
        mh.measure(lm, mh.Inputs(QUESTION, image=some_picture(fresh)), kinds=True)


def test_rows_that_see_a_part_of_a_picture_have_a_mass_and_no_entropy(fresh):
    h, n, d, window = 3, 23, 5, 11
    q, k = (2 * torch.randn(1, h, n, d, generator=fresh, dtype=torch.float64) for _ in range(2))
    place = torch.arange(n)
    seen = (place[:, None] >= place) & (place[:, None] - place < window)
    recording = record_tensors(q, k, mask=seen[None, None])
    image = ImageSpan(2, 2, 3, (16, 24))
    tokens = replace(recording.tokens, images=((image,),), answers=(n,))
    layers = [replace(layer, tokens=tokens) for layer in recording.layers]
    recording = replace(recording, tokens=tokens, stacks={"": layers})
    scores = torch.einsum("hqd,hkd->hqk", q[0], k[0]) / d**0.5
    maps = scores.masked_fill(~seen, -torch.inf).softmax(-1).numpy()
    rows = [row for row in range(image.span.stop, n) if seen[row, image.span].any()]
    assert rows[-1] == image.span.stop - 1 + window - 1 < n - 1
    assert_same(measure_recording(recording, NAMES), wanted(recording, maps, rows))
