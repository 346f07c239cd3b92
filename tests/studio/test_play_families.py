"""Scenes of models whose attention is not plain, played in a browser: biases on scores (T5; ALiBi, in
Falcon), capped scores (Gemma 2), learned sinks (gpt-oss), parallel branches (GPT-NeoX), 20 heads in a layer.

Every number of the stage is the library's, which other tests hold to the models' own modules; no text touches another.
"""

from urllib.parse import urlencode

import numpy as np
import pytest
import torch
import transformers as hf

import manyheads as mh
from manyheads.circuits.says import head_output, layer_output, stream_shares
from manyheads.studio import Workspace
from tests.models.tiny import (
    VOCAB_SIZE,
    save_tiny,
    tiny_gemma2,
    tiny_gpt_oss,
    tiny_llama,
    tiny_t5,
    tiny_tokenizer,
)
from tests.studio.serving import studio_of
from tests.studio.test_play import (
    ATOL,
    NUMBER,
    SIZES,
    collisions,
    number,
    numbers_of,
    read_all,
    ready,
    resize,
    stills_of,
)

TEXT = "the old cat sat on the table, and a dog saw the cat"
QUERY = 9


def made(cls, config):
    """A model of random weights, its scores sharp enough for maps that differ; biases too."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model = cls(config).eval()
        for weight in model.parameters():
            weight.normal_(std=0.2)
    return model


def falcon():
    sizes = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 5}
    rules = {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}
    ends = {"bos_token_id": None, "eos_token_id": None}
    return made(hf.FalconForCausalLM, hf.FalconConfig(vocab_size=VOCAB_SIZE, **sizes, **rules, **ends))


def neox():
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 60}
    other = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 80, "bos_token_id": None, "eos_token_id": None}
    return made(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**sizes, **other))


MAKERS = {
    "t5": (tiny_t5, "decoder:L1H2"),
    "falcon": (falcon, "L1H3"),
    "gemma2": (tiny_gemma2, "L1H2"),
    "gpt_oss": (tiny_gpt_oss, "L1H3"),
    "neox": (neox, "L1H4"),
    "twenty": (lambda: tiny_llama(5, num_attention_heads=20, hidden_size=160, num_hidden_layers=2), "L1H7"),
}
CHEAP = "gpt_oss"
families = pytest.mark.parametrize(
    "family", [name if name == CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in MAKERS]
)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """`odd("t5")`: its folder's studio (one for all), the loaded model and a recording of `TEXT` with values."""
    folder, known = tmp_path_factory.mktemp("families"), {}
    for name, (make, _) in MAKERS.items():
        save_tiny(make(), folder / name, tiny_tokenizer(special_tokens=False))
    with studio_of(Workspace.of([folder], folder=folder / "out")) as studio:

        def of(name):
            if name not in known:
                lm = mh.load(str(folder / name))
                known[name] = lm, mh.record(lm, TEXT, keep=("q", "k", "v", "lse"))
            return studio, *known[name]

        yield of


@pytest.fixture
def played(new_page, odd):
    def opened(family, scene):
        studio, *known = odd(family)
        page = new_page()
        page.set_viewport_size({"width": 1440, "height": 900})
        head = MAKERS[family][1]
        params = {"model": family, "text": TEXT, "play": scene, "pin": QUERY}
        page.goto(f"{studio.address}/#/head/{head}?{urlencode(params)}")
        ready(page)
        return page, head, *known

    return opened


def near(got, want):
    np.testing.assert_allclose(got, want, atol=ATOL)


def cells_of(page):
    rows = page.get_by_test_id("play-table").locator("tbody tr")
    return rows.evaluate_all("all => all.map((row) => [...row.cells].map((cell) => cell.textContent))")


@families
def test_one_words_numbers_are_the_librarys(family, played):
    page, head, lm, rec = played(family, "word")
    output = head_output(rec, head, QUERY, lm, keys=24)
    rows, seen = cells_of(page), np.isfinite(output.scores)
    assert [row[1] == "not visible" for row in rows[: len(seen)]] == (~seen).tolist()
    assert (rows[-1][0] == "nobody") == (output.missing > 1e-6) == (family == "gpt_oss")
    shown = [row for row in rows[: len(seen)] if row[1] != "not visible"]
    near([number(row[1]) for row in shown], output.scores[seen])
    near([number(row[2]) for row in shown], output.weights[seen])
    if output.missing:
        near([number(rows[-1][1]), number(rows[-1][2])], [output.sink, output.missing])
    if output.heard is not None:
        near([number(row[3]) for row in shown], output.heard[seen])
    read, m = read_all(page, 3.2, *stills_of(page)), len(output.adds)
    near(numbers_of(read, rf"output, number (\d+) of \d+: {NUMBER}", len(output.out)), output.out)
    index = head.rpartition("H")[2]
    near(numbers_of(read, rf"what head {index} adds, number (\d+) of {m}: {NUMBER}", m), output.adds)
    near(numbers_of(read, rf"number (\d+) of {m}\n[^=]*= {NUMBER}", m), output.before + output.adds)
    if output.bias is not None:
        assert any(f"(bias {output.bias[0]:.4f}".replace("-", "−") in words for words in read)
    said = page.get_by_test_id("play-headline").inner_text()
    assert said.replace("“", '"').replace("”", '"').replace("\u00a0", " ") == output.sentence


@families
@pytest.mark.slow
def test_a_layers_numbers_are_the_librarys(family, played):
    page, head, lm, rec = played(family, "layer")
    result = layer_output(rec, head.rpartition("H")[0], QUERY, lm, keys=24)
    rows, n, m = cells_of(page), len(result.heads), len(result.before)
    assert len(rows) == n + bool(result.bias_wrote)
    near([number(row[3]) for row in rows], [*result.wrote, *([result.bias_wrote] if result.bias_wrote else [])])
    read = read_all(page, *stills_of(page))
    for index in (0, n - 1):
        out = result.heads[index].out
        near(numbers_of(read, rf"answer of H{index}, number (\d+) of \d+: {NUMBER}", len(out)), out)
    added = result.adds.sum(0) + result.output_bias
    near(numbers_of(read, rf"number (\d+) of {m}: {NUMBER} =\n(?:.*\n)*.*H{n - 1}", m), added)
    near(numbers_of(read, rf"number (\d+) of {m}\n[^=]*= {NUMBER}", m), result.after)
    if family == "neox":
        near(numbers_of(read, rf"what the feed-forward adds, number (\d+) of {m}: {NUMBER}", m), result.beside)


@families
@pytest.mark.slow
def test_a_passs_numbers_are_the_librarys(family, played):
    page, _, lm, rec = played(family, "pass")
    shares = stream_shares(lm, rec.tokens, QUERY)
    layers = next(iter(rec.stacks.values()))
    rows = cells_of(page)
    assert [row[0] for row in rows] == [str(layer.site) for layer in layers]
    for row, layer in zip(rows, layers, strict=True):
        own = np.array([shares[head] for head in layer.site.heads])
        near([number(row[1]), number(row[4])], [own.sum(), own.max()])
        assert row[3] == str(layer.site.heads[own.argmax()])


@families
@pytest.mark.slow
@pytest.mark.parametrize("scene", ["word", "layer", "pass"])
def test_no_text_of_a_scene_touches_another_or_is_cut_off(family, scene, played):
    page, *_ = played(family, scene)
    for size in (SIZES[0], SIZES[3], SIZES[-1]):
        resize(page, size)
        wrong = collisions(page, f"{family} {scene} {size}")
        assert not wrong, "\n".join(wrong)
