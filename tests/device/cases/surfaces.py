"""What people see: zooms, words, figures, files, pictures, sounds, the studio's API, other tools' numbers."""

import numpy as np
import pytest
import torch

import manyheads as mh
from manyheads.compat import transformer_lens
from manyheads.corpora import open_corpus
from manyheads.figures import save_grid, save_head
from manyheads.measurement import pooled_maps
from manyheads.measurement.of_a_recording import measure_recording
from manyheads.recording.exact_map.zoom import read_region
from manyheads.recording.layer import small_maps
from manyheads.spec import CROSS
from manyheads.statistics import alignment
from manyheads.studio import Workspace
from tests.device.conftest import TEXTS, assert_same, each, on_device
from tests.models.tiny_media import PICTURES, RATE, saved, some_picture, some_sound, spectra, tiny_whisper
from tests.studio.serving import studio_of


@pytest.fixture(params=each(["llama", "gemma2", "t5"], "t5"))
def recorded(request, both):
    return tuple(mh.record(lm, TEXTS) for lm in both(request.param)[::-1])


def layers_of(recording):
    return [layer for stack in recording.stacks.values() for layer in stack]


def test_windows_words_and_tiles(recorded):
    """Of one layer of each stack: the others run the same lines."""
    for got, want in zip(*([stack[-1] for stack in rec.stacks.values()] for rec in recorded), strict=True):
        rows, keys = torch.tensor([3, 0, 5]), torch.tensor([1, 0, 4])
        assert_same(got.weights_at(rows, keys), want.weights_at(rows, keys))
        assert_same(got.weights_at(*on_device([rows, keys])), want.weights_at(rows, keys))
        assert_same(got.received(), want.received())
        features = torch.randn(want.num_keys(1), 3)
        assert_same(got.project(on_device(features), 1), want.project(features, 1))
        for size in (4, 100):
            assert_same(small_maps(got, size, 1), small_maps(want, size, 1))
        assert_same(small_maps(got, 3, 0, rows_a_block=2), small_maps(want, 3, 0, rows_a_block=2))
        assert_same([*got.tiles(size=7)], [*want.tiles(size=7)])
        if not want.crosses:
            for how in ("mean", "first", "max"):
                assert_same(got.word_weights(how=how).weights, want.word_weights(how=how).weights)
        sides = (slice(0, want.num_queries(0)), slice(0, want.num_keys(0)))
        for levels in (range(0, 3), range(1, 2)):
            assert_same(*(read_region(layer, 1, *sides, levels) for layer in (got, want)))
        if want.site.stack == CROSS:
            assert_same(alignment(got), alignment(want))


@pytest.mark.slow
def test_statistics_of_a_recording(both):
    got, want = (measure_recording(mh.record(lm, TEXTS), "all") for lm in both("llama")[::-1])
    for name in want.names:
        assert_same(got.column(name), want.column(name), name, 5e-5)


@pytest.mark.slow
def test_figures(both, tmp_path):
    host, device = both("llama")
    rec = mh.record(device, TEXTS[0])
    save_head(rec.layers[0].weights(head=1), None, tmp_path / "head.png", title="one head")
    got, want = (pooled_maps(lm, TEXTS) for lm in (device, host))
    assert_same(got.maps, want.maps)
    save_grid(got, None, tmp_path / "grid.png", title="all heads")


@pytest.mark.slow
def test_a_corpus_in_files(both, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS * 3), encoding="utf-8")
    got, want = (mh.measure(lm, open_corpus(tmp_path / "texts.txt")) for lm in both("llama")[::-1])
    for name in want.names:
        assert_same(got.column(name), want.column(name), name, 5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "swin"])
def test_pictures(name, fresh, tmp_path):
    model, processor = PICTURES[name]
    folder, picture = saved(tmp_path / name, model(), processor()), some_picture(fresh)
    got, want = (mh.record(mh.load(folder, device=device), mh.Inputs(image=picture)) for device in ("cuda", "cpu"))
    for one, other in zip(layers_of(got), layers_of(want), strict=True):
        assert_same(one.weights(), other.weights(), share=1e-4)
    assert vars(got.grid) == vars(want.grid) if name == "vit" else True
    got, want = (mh.measure(mh.load(folder, device=device), mh.Inputs(image=picture)) for device in ("cuda", "cpu"))
    assert_same(got.column("entropy"), want.column("entropy"), share=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("generate", [None, 3])
def test_sounds(generate, fresh, tmp_path):
    folder, sound = saved(tmp_path / "whisper", tiny_whisper(), spectra()), some_sound(fresh, 1.3)
    got, want = (
        mh.record(mh.load(folder, device=device), mh.Inputs(audio=sound, sampling_rate=RATE), generate=generate)
        for device in ("cuda", "cpu")
    )
    for one, other in zip(layers_of(got), layers_of(want), strict=True):
        assert_same(one.weights(), other.weights(), share=1e-4)


@pytest.mark.slow
def test_numbers_of_other_tools(both):
    host, device = both("gpt2")
    for head in ("previous_token_head", "induction_head"):
        got, want = (transformer_lens.detect_head(lm, TEXTS[0], head) for lm in (device, host))
        assert_same(got, want)


@pytest.mark.slow
def test_the_studio(both, tmp_path):
    answers = []
    for lm in both("llama")[::-1]:
        workspace = Workspace.of(folder=tmp_path)
        workspace.add_model(lm)
        with studio_of(workspace) as studio:
            recording = studio.open(TEXTS[0], lm.name)["id"]
            base = f"/api/recordings/{recording}"
            atlas = studio.get(f"{base}/atlas").json
            card = studio.get(f"{base}/heads/L1H2").json
            assert atlas["heads"] and card["values"]
            tiles = [
                studio.get(f"{base}/tiles/L1H2/{level}/0/0?how={how}").arrays()[1]["values"]
                for level, how in ((0, "mean"), (1, "mean"), (2, "max"))
            ]
            row = studio.get(f"{base}/rows/L1H2/7").arrays()[1]["weights"]
            thumbnails = studio.get(f"{base}/thumbnails?size=4").arrays()[1]["maps"].astype(float)
            window = studio.get(f"{base}/window/L1H2?format=csv&queries=3:5&keys=2:9")
            table = studio.get(f"{base}/table?format=csv&text=0")
            assert (window.status, table.status) == (200, 200), (window.body, table.body)
            values = [[value for value in head["values"] if value is not None] for head in atlas["heads"]]
            answers.append((np.array(values), tiles, row, thumbnails / 255))
    (got_values, *got), (want_values, *want) = answers
    assert_same(got_values, want_values, share=5e-5)
    assert_same(got[:2], want[:2], share=5e-5)
    assert_same(got[2], want[2], share=1 / 200)  # rounded to 255 steps


@pytest.mark.slow  # what the jobs call, `importance` and `effect`, is tried by the cases of heads
def test_the_studios_jobs(both, tmp_path):
    _, device = both("llama")
    workspace = Workspace.of(folder=tmp_path)
    workspace.add_model(device)
    with studio_of(workspace) as studio:
        base = f"/api/recordings/{studio.open(TEXTS[0], device.name)['id']}"
        jobs = [studio.job(f"{base}/{path}") for path in ("importance", "heads/L1H2/worth")]
        steps = mh.Plan([mh.Ablate("L1H2")]).to_dict()["steps"]
        asked = {"model": device.name, "text": TEXTS[0], "plan": steps, "controls": 1}
        for job in [*jobs, studio.job("/api/experiments", asked)]:
            assert job["state"] == "done", job["problem"]
