"""What the page draws of a size is what `mh.size` says, at every context and of every variant.

Oracles: `mh.size` asked again for each; for the cache the published formula, 2 * layers * heads * width * tokens.
"""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import expect

import manyheads as mh
from manyheads import units
from manyheads.errors import ManyHeadsError, ModelError, ShapeError
from manyheads.sizing import MACHINES, PRESETS, SEVERAL, layer_in_words
from manyheads.sizing.architecture import by_part
from manyheads.studio.schema.sizes import SizeAsk, SizeReport
from manyheads.studio.views import sizes
from tests.refusals import refuses

GIB = 2**30
EVERY_KIND = (
    "phi-4-mini", "mixtral-8x7b", "gpt-oss-20b", "gpt2", "bert-base", "vit-base", "transformer", "rul-backbone",
)  # fmt: skip


def nobody(name):
    raise AssertionError("no model was asked for")


def run(config_of=nobody, **asked):
    return sizes.run(SizeAsk(**asked), config_of)


@pytest.mark.parametrize("name", EVERY_KIND)
def test_a_preset_costs_what_size_says(name):
    found, want = run(preset=name, batch=3), mh.size(name, batch=3)
    assert (found.num_parameters, found.weight_bytes) == (want.num_parameters, want.weight_bytes)
    assert found.parts == dict(want.parameters) and sum(found.parts.values()) == found.num_parameters
    assert found.cache_bytes == (want.cache.steady if want.cache else None)
    assert [layer.parts for layer in found.layers] == [dict(layer) for layer in want.layers]
    for layer in found.layers:
        assert layer.attention + layer.feed_forward + layer.other == sum(layer.parts.values())
    assert {k: v for k, v in found.document.items() if k not in ("manyheads", "written")} == want.to_dict()
    assert SizeReport.model_validate_json(found.model_dump_json()) == found
    assert [(line.name, line.num_bytes) for line in found.lines] == [
        (each.name or "as it is", each.cache.steady) for each in want.variants
    ]


@pytest.mark.parametrize("name", ["mistral-7b", "gemma-2-9b", "deepseek-v3", "transformer", "gpt2"])
def test_every_point_of_every_line_is_what_size_says_at_that_context(name):
    found = run(preset=name, batch=2, cache_dtype="fp8")
    assert [line.own for line in found.lines].count(True) == 1
    for context in [point.context for point in found.lines[0].points][::4]:
        variants = mh.size(name, context, batch=2, cache_dtype="fp8").variants
        want = {each.name: each.cache.steady for each in variants}
        got = {line.name: next(p.num_bytes for p in line.points if p.context == context) for line in found.lines}
        assert got == want, context


def test_the_well_known_figures_of_llama_2_70b_are_here():
    found = run(preset="Llama 2 70B", context=4096)
    assert {line.name: line.num_bytes / GIB for line in found.lines} == {"MHA": 80.0, "GQA-8": 10.0, "MQA": 1.25}
    for line, heads in zip(found.lines, (64, 8, 1), strict=True):
        for point in line.points:
            assert point.num_bytes == 2 * 80 * heads * 128 * point.context * 8 * 2
    assert found.layers[0].kind == "GQA-8" and round(found.layers[0].feed_forward / 1e6, 1) == 704.6


def test_lines_go_in_powers_of_two_as_far_as_anybody_asks():
    contexts = [point.context for point in run(preset="small").lines[0].points]
    assert contexts == [2**power for power in range(18)]
    assert [p.context for p in run(preset="small", context=5_000).lines[0].points][12:15] == [4096, 5000, 8192]
    assert run(preset="small", context=3 * 10**6).lines[0].points[-1].context == 3 * 10**6
    assert run(preset="phi-4-mini").lines[0].points[-1].context == 131_072
    gpt2 = run(preset="gpt2")
    assert gpt2.lines[0].points[-1].context == 1_024, "there are no positions for more"
    assert any("Drawn to 1,024 tokens" in note for note in gpt2.notes)
    assert run(preset="vit-base").lines == [] and run(preset="bert-base").cache_bytes is None


def test_other_key_value_heads_are_those_of_the_same_model_and_layers_that_differ_are_told_apart():
    found, want = run(preset="llama-2-70b", num_kv_heads=4), mh.size("llama-2-70b", num_kv_heads=4)
    assert found.cache_bytes == want.cache.steady and found.num_parameters == want.num_parameters
    assert [line.name for line in found.lines if line.own] == ["GQA-4"]
    kinds = {layer.kind for layer in run(preset="gemma-2-9b").layers}
    assert kinds == {"GQA-8, window 4,096", "GQA-8"}
    assert {layer.kind for layer in run(preset="mixtral-8x7b").layers} == {"GQA-8, 8 experts"}
    assert {layer.kind for layer in run(preset="transformer").layers} == {"encoder, MHA", "decoder, MHA"}


def test_a_description_in_words_and_a_model_of_the_workspace_are_sized():
    words = {"num_layers": 3, "embed_dim": 48, "num_heads": 6, "ffn_dim": 68, "gated": True, "vocab_size": 97}
    found, want = run(words=words, num_kv_heads=2), mh.size({**words, "num_kv_heads": 2})
    assert found.num_parameters == want.num_parameters and found.cache_bytes == want.cache.steady
    asked = []
    config = {"model_type": "gpt2", "n_layer": 3, "n_head": 4, "n_embd": 36, "n_positions": 96, "vocab_size": 97}
    model = run(lambda name: asked.append(name) or config, model="mine", dtype="fp32")
    assert model.num_parameters == mh.size(config).num_parameters and asked == ["mine"]


# ------------------------------------------------------------------------------------------------------------- presets


def test_presets_are_all_there_and_those_in_words_describe_the_same_model():
    found = {each.name: each for each in sizes.presets()}
    assert list(found) == list(PRESETS)
    in_words = {name for name, each in found.items() if each.words is not None}
    assert in_words >= {"llama-2-70b", "llama-3-8b", "mistral-7b", "mixtral-8x7b", "gpt2", "gpt3-175b", "small", "xl"}
    assert not in_words & {"bert-base", "gemma-2-9b", "deepseek-v3", "vit-base", "transformer"}
    for name in in_words:
        words, want = found[name].words, mh.size(name, context=512)
        made = mh.size(words, context=512)
        assert (
            dict(made.parameters) == dict(want.parameters)
            and made.architecture.attention == want.architecture.attention
        )
        assert (made.cache and made.cache.steady) == (want.cache and want.cache.steady)
        assert dict(by_part(made.architecture.outside)) == dict(by_part(want.architecture.outside))
        assert None not in words.values()
    assert run(words=found["gpt2"].words).num_parameters == mh.size("gpt2").num_parameters
    assert found["llama-2-70b"].words["ffn_dim"] == 28672 and found["llama-2-70b"].words["gated"]
    assert found["gpt2"].words["ffn_dim"] == 3072 and not found["gpt2"].words["gated"]


# ------------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(("asked", "kind", "words"), [
    ({}, ShapeError, "nothing was given to size: give exactly one of preset=, model= or words="),
    ({"preset": "gpt2", "model": "m"}, ShapeError, "preset and model was given to size"),
    ({"preset": "gpt2", "words": {}}, ShapeError, "preset and words was given to size"),
    ({"words": {}}, ShapeError, "a description needs num_layers, embed_dim, num_heads"),
    ({"preset": "lama"}, ModelError, "there is no preset 'lama'.*Did you mean"),
    ({"preset": "/etc/passwd"}, ModelError, "there is no preset '/etc/passwd'"),
    ({"preset": "llama-2-70b", "num_kv_heads": 5}, ShapeError, "not a multiple"),
    ({"preset": "gpt2", "context": 5000}, ShapeError, "gpt2 has positions for 1,024 tokens and no more"),
    ({"preset": "gpt2", "dtype": "fp17"}, ModelError, "dtype='fp17' is not a dtype"),
    ({"words": {"num_layers": 513, "embed_dim": 8, "num_heads": 2}}, ShapeError, "num_layers is above 512"),
    ({"words": {"num_layers": 10**9, "embed_dim": 8, "num_heads": 2}}, ShapeError, "num_layers is above 512"),
    ({"words": {"num_layers": 1, "embed_dim": 10**40, "num_heads": 2}}, ShapeError, "embed_dim is above 10,000,000"),
    ({"words": {"num_layers": 1, "embed_dim": 7, "num_heads": 2}}, ShapeError, "give head_dim"),
    ({"words": {"num_layers": 1, "embed_dim": 8, "num_heads": 2, "wings": 2}}, ShapeError, "has no wings"),
    ({"words": {"num_layers": 1, "embed_dim": 8, "num_heads": 2, "name": "x" * 300}}, ShapeError, "a text of more"),
    ({"words": {"num_layers": "many", "embed_dim": 8, "num_heads": 2}}, ShapeError, "num_layers='many'"),
    ({"words": {"model_type": "gpt2"}}, ShapeError, "a description needs num_layers"),
])  # fmt: skip
def test_what_cannot_be_sized_is_told(asked, kind, words):
    refuses(kind, words, run, **asked)


def test_what_the_workspace_raises_passes_through():
    def missing(name):
        raise ModelError(f"no model {name}")

    refuses(ManyHeadsError, "no model mine", run, missing, model="mine")


# ------------------------------------------------------------------------------------------------ the page's arithmetic

SIZED = """async ([presets, uses]) => {
  const { PRESETS, sized } = await import("/studio.js");
  return presets.map((name) => {
    const { shape } = PRESETS.find((preset) => preset.name === name);
    return uses.map(([context, batch, dtype, kv]) => {
      if (shape.learned_positions) context = Math.min(context, shape.positions);
      if (shape.num_tokens) context = shape.num_tokens;
      if (kv && (shape.num_heads === null || shape.num_heads % kv)) return null;
      const { lines, fits, kinds, notes, ...report } = sized(shape, { context, batch, dtype }, kv);
      return { ...report, fits, kinds: kinds.map(({ kind, count, parts }) => [kind, count, parts]),
        lines: lines.map(({ points, ...line }) => ({ ...line, points: points.slice(-3) })) };
    });
  });
}"""
USES = [
    (4096, 8, "fp16", None), (1, 1, "bf16", None), (127, 3, "fp32", None), (128, 2, "fp8", None),
    (5000, 40, "int4", None), (200_000, 1, "fp16", None), (1_048_576, 512, "int8", None), (4097, 5, "bf16", 1),
    (1024, 7, "fp32", 2), (33_000, 1, "fp16", 4), (8192, 3, "int4", 16),
]  # fmt: skip


def assert_same_as_the_library(name, got, sizing):
    """One use of a preset in the page and in the library: to the last byte."""
    assert (got["num_parameters"], got["weight_bytes"]) == (sizing.num_parameters, sizing.weight_bytes), name
    assert got["num_active"] == sizing.num_active and got["parts"] == dict(sizing.parameters)
    assert got["cache_bytes"] == (sizing.cache.steady if sizing.cache else None)
    assert got["token_bytes"] == (sizing.cache.token if sizing.cache else 0)
    assert (got["past"] is not None) == any(" past the " in note for note in sizing.notes)
    kinds = Counter((layer_in_words(layer), *by_part(layer.weights).items()) for layer in sizing.architecture.layers)
    assert Counter({(kind, *parts.items()): count for kind, count, parts in got["kinds"]}) == kinds
    want = [(each.name or "as it is", each.own, each.num_parameters, each.cache.steady) for each in sizing.variants]
    assert [(x["name"], x["own"], x["num_parameters"], x["num_bytes"]) for x in got["lines"]] == want, name
    for fit, (machine, memory) in zip(got["fits"], {**MACHINES, **SEVERAL}.items(), strict=True):
        want = sizing.fits(memory)
        one = replace(sizing, ask=replace(sizing.ask, batch=1)).fits(memory)
        assert (fit["name"], fit["memory"], fit["free"]) == (machine, memory, want.overhead_bytes)
        assert (fit["missing"], fit["weightsFit"]) == (want.missing_bytes, want.weights_fit)
        lengths = (fit["longest"], fit["longestOfBatch"], fit["largest"])
        assert lengths == (one.longest_context, want.longest_context, want.largest_batch), (name, sizing.ask, machine)


@pytest.mark.parametrize("share", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_the_page_sizes_as_the_library_does(new_page, studio, share):
    """Every preset at contexts, batches, dtypes and key/value heads (here each at some of them, in turn)."""
    page = new_page(forgive=("404",))  # the browser looks for an icon of a picture
    page.goto(f"{studio.address}/favicon.svg")  # an address of the studio's, without the page itself
    answers = page.evaluate(SIZED, [list(PRESETS), USES])
    compared = Counter()
    for index, (name, of_uses) in enumerate(zip(PRESETS, answers, strict=True)):
        for use, got in list(zip(USES, of_uses, strict=True))[index % share :: share]:
            _, batch, dtype, kv = use
            if got is not None:
                context = got["use"]["context"]
                assert_same_as_the_library(name, got, mh.size(name, context, batch, dtype, num_kv_heads=kv))
                compared[kv] += 1
                for line in got["lines"][:1]:  # the last points of the first line that is drawn
                    for point in line["points"][-2:]:
                        variants = mh.size(name, point["context"], batch, dtype, num_kv_heads=kv).variants
                        assert point["num_bytes"] == {each.name: each.cache.steady for each in variants}[line["name"]]
    assert compared[None] >= 7 * len(PRESETS) // share and min(compared[kv] for kv in (1, 2, 4, 16)) >= 20 // share


def test_the_page_has_the_librarys_table_of_sizes():
    path = Path(__file__).parents[2] / "web/src/rooms/size/sizes.generated.json"
    assert path.read_text(encoding="utf-8") == sizes.page_table(), "run `make web`"


DESCRIBED = """async (all) => {
  const { described, sized } = await import("/studio.js");
  const numbers = all.map((words) => sized(described(words), { context: 3000, batch: 4, dtype: "bf16" }));
  return numbers.map((all) => ({ ...all, kinds: all.kinds.map(({ kind, count, parts }) => [kind, count, parts]) }));
}"""


def test_the_page_sizes_a_description_as_the_library_does(new_page, studio):
    base = {"num_layers": 3, "embed_dim": 96, "num_heads": 6, "vocab_size": 97, "ffn_dim": 56}
    changes = [
        {}, {"num_kv_heads": 2, "head_dim": 10}, {"num_kv_heads": 1, "gated": True}, {"ffn_dim": 0, "norm": "none"},
        {"window": 7, "norm": "layer", "tied": True}, {"num_experts": 5, "experts_per_token": 2, "ffn_bias": True},
        {"qkv_bias": True, "o_bias": True, "ffn_bias": True, "gated": True}, {"learned_positions": 4000},
        {"causal": False, "num_kv_heads": 3},
    ]  # fmt: skip
    page = new_page(forgive=("404",))
    page.goto(f"{studio.address}/favicon.svg")
    everything = [{**base, **change} for change in changes]
    for words, got in zip(everything, page.evaluate(DESCRIBED, everything), strict=True):
        assert_same_as_the_library(words, got, mh.size(words, context=3000, batch=4, dtype="bf16"))


PLACED = """async (asked) => {
  const { PRESETS, described, placed, undivided } = await import("/studio.js");
  return asked.map(([name, words, context, batch, dtype, kv, count, memory, stages]) => {
    const shape = words ? described(words) : PRESETS.find((preset) => preset.name === name).shape;
    if (!shape.served) return null;
    const devices = { count, memory, stages };
    const limit = shape.learned_positions ? shape.positions : null;
    return undivided(shape.served, devices, kv) ?? placed(shape.served, { context, batch, dtype }, kv, limit, devices);
  });
}"""
DEVICES = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 1), (8, 8), (16, 1), (16, 4), (32, 32), (64, 8)]
WITH_GPUS = [
    {"num_kv_heads": 2, "head_dim": 10, "ffn_bias": True}, {"num_kv_heads": 1, "gated": True, "tied": True},
    {"window": 700, "norm": "layer"}, {"num_experts": 5, "experts_per_token": 2, "ffn_bias": True, "o_bias": True},
    {"learned_positions": 6000, "qkv_bias": True, "ffn_dim": 0, "norm": "none"},
]  # fmt: skip


@pytest.mark.parametrize("share", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_the_page_divides_over_gpus_as_the_library_does(new_page, studio, share):
    """Every preset and some descriptions, on GPUs of several numbers, sizes and stages (here each on some, in turn)."""
    described = [{"num_layers": 11, "embed_dim": 96, "num_heads": 8, "vocab_size": 97, "ffn_dim": 56, **change}
                 for change in WITH_GPUS]  # fmt: skip
    asked = [
        (name, words, min(context, mh.size(words or name).architecture.max_positions or context), batch, dtype, kv,
         count, memory * 10**9, stages)
        for name, words in [*((name, None) for name in PRESETS), *(("", words) for words in described)]
        for count, stages in DEVICES
        for context, batch, dtype, kv, memory in (
            (4096, 1, "fp16", None, 80), (5000, 7, "fp8", None, 24),
            (3000, 3, "int4", None, 141), (512, 2, "bf16", 4, 96),
        )
    ][::share]  # fmt: skip
    page = new_page(forgive=("404",))
    page.goto(f"{studio.address}/favicon.svg")
    compared: Counter[str] = Counter()
    for (name, words, context, batch, dtype, kv, count, memory, stages), got in zip(
        asked, page.evaluate(PLACED, asked), strict=True
    ):
        where = (name, words, context, batch, dtype, kv, count, memory, stages)
        if words and kv:
            continue  # the page changes the description itself
        try:
            sizing, one = (mh.size(words or name, context, texts, dtype, num_kv_heads=kv) for texts in (batch, 1))
        except ShapeError:  # latents have no key/value heads to choose, or they do not divide
            continue
        try:
            placements = [each.on(f"{count}x{memory // 10**9}GB", pipeline=stages) for each in (sizing, one)]
        except ManyHeadsError as error:
            assert got is None or isinstance(got, str), (where, error)
            compared["refused"] += 1
            continue
        want, alone = (placement.stages for placement in placements)
        assert isinstance(got, list) and len(got) == len(want), (where, got)
        for stage, of_one, found in zip(want, alone, got, strict=True):
            fit = stage.fit
            layers = [stage.first_layer, stage.first_layer + stage.num_layers - 1]
            assert (found["layers"], found["num_parameters"]) == (layers, stage.num_parameters), where
            assert found["weight_bytes"] == fit.weight_bytes and found["num_kv_heads"] == stage.num_kv_heads, where
            assert found["activation_bytes"] == pytest.approx(fit.activation_bytes, rel=1e-12), where
            assert found["cache_bytes"] == pytest.approx(fit.cache_bytes, rel=1e-12), where
            assert found["missing"] == pytest.approx(fit.missing_bytes, rel=1e-9, abs=1), where
            assert found["weightsFit"] == fit.weights_fit and found["largest"] == fit.largest_batch, where
            assert found["longest"] == of_one.fit.longest_context, where
            compared["stages"] += 1
    assert compared["stages"] > 2000 // share and compared["refused"] > 100 // share, compared


@pytest.mark.slow
def test_the_room_says_what_fits_and_what_is_past_the_positions(new_page, studio):
    page = new_page()
    page.goto(f"{studio.address}/#/size")
    finding = page.get_by_test_id("size-finding")
    expect(finding).to_have_text("8.03 B parameters, 16.1 GB in fp16, 128 KiB of cache a token: 4 GiB at 8 × 4k.")
    expect(page.get_by_test_id("size-fits-said")).to_contain_text("a 24 GB GPU holds them")
    page.get_by_test_id("size-presets").select_option("preset:llama-2-70b")
    expect(finding).to_have_text("68.98 B parameters, 138 GB in fp16, 320 KiB of cache a token: 10 GiB at 8 × 4k.")
    expect(page.get_by_test_id("size-fits-said")).to_contain_text("4 × 80 GB hold them")
    page.get_by_test_id("size-presets").select_option("preset:llama-3-8b")
    row = page.locator("[data-fit='24 GB GPU']")
    expect(row).to_contain_text("42,262*")
    expect(page.get_by_test_id("size-past")).to_have_count(0)
    context = page.get_by_test_id("size-number-context")
    context.fill("128k")
    context.press("Enter")
    expect(page.get_by_test_id("size-past")).to_have_text(
        "131,072 tokens are past the 8,192 positions that it is made for."
    )
    expect(row).to_contain_text("0")
    expect(page.get_by_test_id("size-bars").locator("rect:has(title)")).to_have_count(3)  # 32 equal layers, once
    short = mh.size("llama-3.1-405b", 131_072, 8).fits("24 GB")
    page.get_by_test_id("size-presets").select_option("preset:llama-3.1-405b")
    expect(row).to_contain_text(f"{units.gb(short.missing_bytes)} short")
    page.get_by_test_id("size-presets").select_option("preset:gpt2")
    expect(page.get_by_test_id("size-number-context")).to_have_value("1,024")  # there are no positions for more


@pytest.mark.slow
def test_the_largest_description_is_answered_at_once():
    most = {"num_layers": sizes.MAX_LAYERS, "embed_dim": 2**23, "num_heads": 2**10, "vocab_size": sizes.MAX_WORD}
    begun = time.perf_counter()
    found = run(words=most, context=100_000_000, batch=1_000_000)
    assert time.perf_counter() - begun < 10 and found.cache_bytes == found.lines[0].num_bytes > 1e18
