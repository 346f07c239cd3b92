"""Pictures: weights are the model's own, every position is the patch that it is said to be.

Oracles: transformers' eager attentions on the processor's inputs; and the model itself, a part of whose input was
changed: only that part's position may follow.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import manyheads as mh
from manyheads.errors import ModelError, RecordingError
from manyheads.models.inputs import media
from manyheads.models.inputs.media import picture_of
from manyheads.models.inputs.positions import look
from manyheads.recording.media import grid_of
from tests.models.eager import SHARP, assert_near, draw, eager_maps, implementation
from tests.models.tinymedia import (
    PICTURES,
    some_picture,
    tiny_vit,
    wide,
)

GRIDDED = sorted(set(PICTURES) - {"swin"})
PREFIX = {
    "vit": ("[CLS]",),
    "deit": ("[CLS]", "[DIST]"),
    "dinov2": ("[CLS]", "reg1", "reg2", "reg3", "reg4"),
    "dinov3": ("[CLS]", "reg1", "reg2"),
    "clip": ("[CLS]",),
    "siglip": (),
    "yolos": ("[CLS]",),
}


def inputs_of(lm, pictures):
    return lm.processor(images=[picture_of(each) for each in pictures], return_tensors="pt")["pixel_values"]


@pytest.mark.thinned
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", GRIDDED)
def test_weights_are_the_models_own(name, attention, seeing, fresh):
    lm, pictures = seeing(name), [some_picture(fresh), some_picture(fresh, 47, 31)]
    with implementation(lm.model, attention):
        rec = mh.record(lm, image=pictures)
    maps = eager_maps(lm.model, pixel_values=inputs_of(lm, pictures))
    assert len(rec.stacks[""]) == len(maps) and max(float(one.max()) for one in maps) > SHARP
    for layer, own in zip(rec.stacks[""], maps, strict=True):
        for text in range(2):
            assert_near(layer.weights(text=text), own[text])
    assert not torch.equal(rec.stacks[""][0].weights(text=0), rec.stacks[""][0].weights(text=1))


@pytest.mark.parametrize("name", GRIDDED)
def test_tokens_around_the_grid_are_found_and_named(name, seeing, fresh):
    rec = mh.record(seeing(name), image=[some_picture(fresh)] * 2)
    grid = grid_of(rec)
    assert (grid.rows, grid.columns) == ((5, 5) if name in ("clip", "siglip") else (3, 5))
    assert grid.prefix == PREFIX[name]
    assert grid.suffix == (tuple(f"detection{i}" for i in range(1, 6)) if name == "yolos" else ())
    layer = rec.stacks[""][0]
    assert layer.tokens.pieces == (grid.names,) * 2 and layer.lengths.tolist() == [grid.num_positions] * 2
    assert layer.tokens.special[0].nonzero()[:, 0].tolist() == sorted(grid.others.values())


@pytest.mark.slow
def test_only_the_pixels_of_a_patch_change_its_position(seeing, fresh):
    """Every pixel that the grid gives a patch, and none besides: seen in the first layer's queries."""
    for name in GRIDDED:
        lm = seeing(name)
        grid = grid_of(mh.record(lm, image=some_picture(fresh)))
        pixels = inputs_of(lm, [some_picture(fresh)])
        before = look(lm.model, lm.name, {"pixel_values": pixels}).call.q
        for row, column in ((0, 0), (1, 3), (grid.rows - 1, grid.columns - 1)):
            down, across = grid.pixels(row, column)
            corners = ((down.start, across.start), (down.stop - 1, across.stop - 1), (down.start, across.stop - 1))
            for y, x in corners:
                changed = pixels.clone()
                changed[:, :, y, x] += 3
                off = (look(lm.model, lm.name, {"pixel_values": changed}).call.q - before).abs().amax((0, 1, 3))
                assert off.argmax() == grid.position(row, column), (name, row, column)
                off[grid.position(row, column)] = 0
                assert off.max() < 1e-4


def test_a_picture_of_another_shape_has_another_grid(seeing, fresh, tmp_path):
    lm = seeing("dinov2")
    processor = type(lm.processor)(size={"height": 48, "width": 16})
    tall = mh.load(lm.model, processor=processor)
    rec = mh.record(tall, image=some_picture(fresh))
    assert (grid_of(rec).rows, grid_of(rec).columns, grid_of(rec).picture) == (6, 2, (48, 16))
    with pytest.raises(ModelError, match=r"could not read its input: ValueError: Input image size \(48\*16\)"):
        mh.record(mh.load(seeing("vit").model, processor=processor), image=some_picture(fresh))


def test_windows_have_no_grid_and_weights_all_the_same(seeing, fresh):
    lm, picture = seeing("swin"), some_picture(fresh)
    rec = mh.record(lm, image=picture)
    with pytest.raises(RecordingError, match="no grid of patches: its layers attend within windows: .* 16 of 16 posi"):
        grid_of(rec)
    maps = eager_maps(lm.model, pixel_values=inputs_of(lm, [picture]))  # of the second layer of each stage, the shifted
    for layer, own in zip(rec.layers[1::2], maps, strict=True):
        assert len(own) == len(layer.lengths) > 1
        for text, one in enumerate(own):
            assert_near(layer.weights(text=text), one)


def test_a_later_layer_with_other_positions_takes_the_grid_away(seeing, fresh):
    rec = mh.record(seeing("vit"), image=some_picture(fresh))
    assert media.settled(rec) is rec
    layer = rec.layers[1]
    fewer = replace(layer, q=layer.q[:, :, :4], lse=layer.lse[:, :, :4])
    less = media.settled(type(rec)({"": [rec.layers[0], fewer]}, rec.tokens, rec.provenance))
    with pytest.raises(RecordingError, match=r"layers\.1\.attention has 4 positions, the first layer 16"):
        grid_of(less)


def test_patches_that_are_mixed_before_the_first_layer_are_no_grid(fresh):
    model = tiny_vit(draw(fresh))
    mixed = model.embeddings.register_forward_hook(lambda module, args, out: out + out.mean(1, keepdim=True))
    lm = mh.load(model, processor=wide())
    with pytest.raises(RecordingError, match="patches are mixed before the first layer, or are not in reading order"):
        grid_of(mh.record(lm, image=some_picture(fresh)))
    mixed.remove()
    flipped = model.embeddings.register_forward_hook(lambda module, args, out: out.flip(1))
    with pytest.raises(RecordingError, match="not in reading order"):
        grid_of(mh.record(lm, image=some_picture(fresh)))
    flipped.remove()
    assert grid_of(mh.record(lm, image=some_picture(fresh))).rows == 3


def test_a_look_leaves_the_model_as_it_was(seeing, fresh):
    lm = seeing("dinov2")
    before = {name: value.clone() for name, value in lm.model.state_dict().items()}
    mh.record(lm, image=some_picture(fresh))
    assert all(torch.equal(value, before[name]) for name, value in lm.model.state_dict().items())
    assert not any(module._forward_hooks for module in lm.model.modules())


def test_a_path_an_image_and_arrays_of_the_same_picture_give_the_same_recording(seeing, fresh, tmp_path):
    lm, array = seeing("vit"), some_picture(fresh)
    Image.fromarray(array).save(tmp_path / "a.png")
    ways = [str(tmp_path / "a.png"), tmp_path / "a.png", Image.fromarray(array), torch.from_numpy(array)]
    ways += [array / 255, (array / 255).astype(np.float32)]
    want = mh.record(lm, image=array)
    for way in ways:
        assert torch.equal(mh.record(lm, image=way).layers[1].q, want.layers[1].q)
    together = mh.record(lm, image=ways)
    assert len(together.tokens.lengths) == 6


def test_a_picture_is_turned_upright_as_the_camera_says(fresh, tmp_path):
    array = some_picture(fresh, 16, 24)
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.fromarray(array).save(tmp_path / "a.png", exif=exif)
    assert np.array_equal(np.asarray(picture_of(tmp_path / "a.png")), np.rot90(array, -1))


def test_the_picture_that_is_shown_is_what_the_model_reads(seeing, fresh):
    for name in ("vit", "clip"):
        lm, picture = seeing(name), some_picture(fresh)
        seen = media.shown(lm, picture)
        want = inputs_of(lm, [picture])[0]
        mean, std = (torch.tensor(getattr(lm.processor, each))[:, None, None] for each in ("image_mean", "image_std"))
        got = (torch.from_numpy(seen).permute(2, 0, 1) / 255 - mean) / std
        assert seen.dtype == np.uint8 and float((got - want).abs().max()) < 1 / 255 / float(std.min())


def test_saved_and_opened_it_knows_its_grid(seeing, fresh, tmp_path):
    rec = mh.record(seeing("deit"), image=some_picture(fresh))
    rec.save(tmp_path / "picture.heads")
    again = mh.open_recording(tmp_path / "picture.heads")
    assert grid_of(again) == grid_of(rec) and again.tokens.pieces == rec.tokens.pieces
    assert torch.equal(again.layers[1].weights(), rec.layers[1].weights())
