"""The pages for those who come from another tool: each row of their tables is run, and held to plain torch.

A row's code stands in its last cell; the test of the row runs that very code, on `tiny-code` unless it needs another
kind of model, and compares with the model's own eager maps, with hooks on transformers' modules (`by_hooks`) or with
the formula written out. A row without a test fails. Where TransformerLens' own numbers are promised,
tests/compat/transformer_lens.json has them.
"""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import manyheads
import manyheads as mh
import manyheads.circuits
import manyheads.roles.probes  # loaded, so that a row may name what is in it
from manyheads import compat
from manyheads.cli.main import main
from tests.circuits.by_hooks import LLAMA, ByHooks
from tests.circuits.test_patching import truth_of_path
from tests.docs.pages import ROOT
from tests.models.eager import assert_near, eager_maps
from tests.models.tiny import tiny_t5

LENS, VIZ = "from-transformerlens", "from-bertviz"
HEADS, GROUP, WIDTH = 8, 4, 32
TEXT = "def f(x): return f(x)"
CLEAN = "class A:\n    def __init__(self, name, size):\n        self.size ="
CORRUPTED = "class A:\n    def __init__(self, name, size):\n        self.name ="
ANSWERS = (" size", " name")
LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")
Check = Callable[[SimpleNamespace], None]
CHECKS: dict[tuple[str, str], Check] = {}


def row(page: str, left: str) -> Callable[[Check], Check]:
    """The check of the row of a page whose first cell is this."""

    def keep(check: Check) -> Check:
        assert (page, left) not in CHECKS
        CHECKS[page, left] = check
        return check

    return keep


def table(page: str) -> dict[str, list[str]]:
    """The code in the last cell of each row of the page's first table, by the first cell."""
    rows: dict[str, list[str]] = {}
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    head, _, below = text.partition("|---|---|\n")
    assert "| here |" in head.splitlines()[-1]
    for line in below.partition("\n\n")[0].splitlines():
        _, left, right, _ = line.split("|")
        rows[left.strip()] = re.findall("`([^`]+)`", LINK.sub(r"\1", right).replace("``", ""))
    return rows


ROWS = {(page, left): code for page in (LENS, VIZ) for left, code in table(page).items()}


def value(code: str, **names: object) -> object:
    """What a row's code gives, where these names are there."""
    return eval(code, {"mh": mh, "compat": compat, "manyheads": manyheads, **names})


def test_every_row_has_a_check_and_every_check_a_row():
    assert len(ROWS) > 25 and set(ROWS) == set(CHECKS)


DEAR = (  # seconds each: labels of a page; searches that have quick tests of their own elsewhere
    '`html_action="return"`',
    "a circuit, searched by hand",
    "induction score on repeated random tokens",
    '`model.all_composition_scores("K")`',
)


@pytest.mark.parametrize(
    ("page", "left"),
    [pytest.param(*cells, marks=[pytest.mark.slow] * (cells[1] in DEAR)) for cells in ROWS],
    ids=lambda part: part[:60],
)
def test_row_is_so(page, left, code_model, minilm, tmp_path, monkeypatch, capsys, fresh):
    monkeypatch.chdir(tmp_path)
    names = SimpleNamespace(code=ROWS[page, left], left=left, minilm=minilm, capsys=capsys, fresh=fresh)
    CHECKS[page, left](SimpleNamespace(**vars(names), **vars(code_model)))


@pytest.fixture(scope="module")
def code_model():
    """tiny-code, a text, a pair of texts, and the oracle."""
    lm = mh.load("tiny-code")
    ids = {name: lm.tokenizer(text, return_tensors="pt")["input_ids"] for name, text in
           (("text", TEXT), ("clean", CLEAN), ("corrupted", CORRUPTED))}  # fmt: skip
    inputs = {name: {"input_ids": rows} for name, rows in ids.items()}
    right, wrong = (lm.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ANSWERS)
    oracle = ByHooks(
        lm.model, LLAMA, HEADS, HEADS // GROUP, WIDTH, lambda out: out.logits[:, -1, right] - out.logits[:, -1, wrong]
    )
    return SimpleNamespace(
        lm=lm, inputs=inputs, oracle=oracle, right=right, wrong=wrong, maps=eager_maps(lm.model, **inputs["text"]),
        levels={name: float(oracle.run(inputs[name])) for name in ("clean", "corrupted")},
        pair={"lm": lm, "clean": CLEAN, "corrupted": CORRUPTED, "answers": ANSWERS},
    )  # fmt: skip


def share(t, level) -> float:
    """A logit difference as a share of the gap."""
    return float((level - t.levels["corrupted"]) / (t.levels["clean"] - t.levels["corrupted"]))


def logits(t, name="text", edits=None):
    """The model's logits on one of the texts, the output projections' inputs changed."""
    oracle = ByHooks(t.lm.model, LLAMA, HEADS, HEADS // GROUP, WIDTH, lambda out: out.logits)
    return oracle.run(t.inputs[name], edits)


def edited(head_change, layer=3, head=5):
    """A hook on the output projection: what one head gives, changed."""

    def change(x):
        x = x.clone()
        heads = x.unflatten(-1, (HEADS, WIDTH))
        heads[:, :, head] = head_change(heads[:, :, head])
        return x

    return {LLAMA.output.format(layer): change}


def logits_under(t, context):
    with context, torch.no_grad():
        return t.lm.model(**t.inputs["text"]).logits


def rotated(t, layer=3):
    """q and k after rotation, of transformers' own projections and its own rotation: [b h n d], [b g n d]."""
    q, k = (t.oracle.seen(t.inputs["text"], layer, name).transpose(1, 2) for name in "qk")
    positions = torch.arange(q.shape[2])[None]
    with torch.no_grad():
        return apply_rotary_pos_emb(q, k, *t.lm.model.model.rotary_emb(q, positions))


# ------------------------------------------------------------------------------------------------------ TransformerLens


@row(LENS, "`HookedTransformer.from_pretrained(name)`")
def _(t):
    lm = value(t.code[0], name="tiny-code")
    stock = AutoModelForCausalLM.from_pretrained(Path(manyheads.__file__).parent / "bundled" / "tiny-code")
    with torch.no_grad():
        assert torch.equal(lm.model(**t.inputs["text"]).logits, stock(**t.inputs["text"]).logits)


def recorded(t, code="mh.record(lm, text)"):
    return value(code.removeprefix("rec = "), lm=t.lm, text=TEXT)


@row(LENS, "`logits, cache = model.run_with_cache(text)`")
def _(t):
    for layer, maps in zip(recorded(t, t.code[0]).layers, t.maps, strict=True):
        assert_near(layer.weights(), maps[0])


@row(LENS, '`cache["pattern", 3][0, 5]`')
def _(t):
    assert_near(value(t.code[0], rec=recorded(t)), t.maps[3][0, 5])


@row(LENS, 'code that reads `cache["blocks.3.attn.hook_pattern"]`, or `cache["pattern", 3]`')
def _(t):
    cache = value(t.code[0].removeprefix("cache = "), rec=recorded(t))
    for code in re.findall("`([^`]+)`", t.left):
        assert_near(value(code, cache=cache), t.maps[3])


@row(LENS, '`cache["attn_scores", 3]`')
def _(t):
    q, k = rotated(t)
    layer = recorded(t).layers[3]
    scores = value(t.code[0], layer=layer, q=layer.q[0, 5], k=layer.k[0, 5 // GROUP])
    torch.testing.assert_close(scores, q[0, 5] @ k[0, 5 // GROUP].T * WIDTH**-0.5, rtol=1e-4, atol=1e-4)


@row(LENS, '`cache["q", 3]`, `"k"`, `"v"`')
def _(t):
    (keep,) = (code for code in t.code if code.startswith("keep="))
    rec = recorded(t, f"mh.record(lm, text, {keep})")
    first = t.code[0].removesuffix(".q")
    values = t.oracle.seen(t.inputs["text"], 3, "v").transpose(1, 2)
    for name, tensor in zip("qkv", (*rotated(t), values), strict=True):
        assert f".{name}" in t.code or t.code[0].endswith(f".{name}")
        torch.testing.assert_close(value(f"{first}.{name}", rec=rec), tensor, rtol=1e-4, atol=1e-4)


@row(LENS, '`cache["z", 3]`')
def _(t):
    outs = {}
    context = value(f"{t.code[1]}(lm.model, on_call)", lm=t.lm, on_call=lambda call: outs.update(
        {call.site.layer: value(t.code[0], call=call).clone()}))  # fmt: skip
    logits_under(t, context)
    torch.testing.assert_close(outs[3], t.oracle.seen(t.inputs["text"], 3, "out").transpose(1, 2))


@row(LENS, '`run_with_hooks(fwd_hooks=[("blocks.3.attn.hook_z", f)])`')
def _(t):
    one, whole, *_ = t.code
    context = value(one, lm=t.lm, f=lambda output: output * 0.3)
    torch.testing.assert_close(logits_under(t, context), logits(t, edits=edited(lambda x: x * 0.3)), rtol=0, atol=1e-3)

    def f(call):
        return call.out * 0.3 if call.site.layer == 3 else None

    every = {LLAMA.output.format(3): lambda x: x * 0.3}
    torch.testing.assert_close(logits_under(t, value(whole, lm=t.lm, f=f)), logits(t, edits=every), rtol=0, atol=1e-3)


@row(LENS, "`hook_z[:, :, 5] = 0`, mean ablation")
def _(t):
    first, *others = t.code
    other = "def g(y): return g(y)"
    run = {"input_ids": t.lm.tokenizer(other, return_tensors="pt")["input_ids"]}
    theirs = t.oracle.seen(run, 3, "out")[:, :, 5]
    values = t.oracle.seen(t.inputs["text"], 3, "v")[:, :, 5 // GROUP]
    expected = {
        "zero": torch.zeros_like,
        "mean": lambda x: theirs.mean(1, keepdim=True).expand_as(x),
        "resample": lambda x: theirs,
        "first": lambda x: values[:, :1].expand_as(x),
    }
    kinds = ["zero", *(re.sub(r'kind=|"', "", code) for code in others)]
    assert kinds == list(expected)
    for kind in kinds:
        plan = mh.Plan([value(first.replace("zero", kind))])
        context = mh.applied(t.lm, plan, corpus=[other] if kind in ("mean", "resample") else None)
        want = logits(t, edits=edited(expected[kind]))
        torch.testing.assert_close(logits_under(t, context), want, rtol=0, atol=1e-3)
        assert not torch.allclose(want, logits(t), atol=1e-2)


def assert_patched(t, patching, what="out", heads=((3, 5), (0, 2)), where=slice(None), cell=()):
    for layer, head in heads:
        level = t.oracle.patched(t.inputs["corrupted"], t.inputs["clean"], layer, head, what, where)
        row = patching.per_text[0][patching.head_place(f"L{layer}H{head}")]
        assert row[cell] == pytest.approx(share(t, level), abs=1e-4)


def patched(t, code):
    return value(code.replace("...", "lm, clean, corrupted, answers=answers"), **t.pair)


@row(LENS, "`patching.get_act_patch_attn_head_out_all_pos`")
def _(t):
    patching = patched(t, t.code[0].replace('("Mary", "John")', "answers"))
    assert_patched(t, patching, heads=[(head.layer, head.index) for head in patching.ranking()[:2]] + [(1, 3)])
    assert abs(patching["L3H5"]) > 0.1 and len(patching.control) == 10


@row(LENS, "`..._head_q_all_pos`, `k`, `v`, `pattern`; `..._out_by_pos`")
def _(t):
    first, *others, by_position = t.code
    kinds = [first.removeprefix("what=").strip('"'), *(code.strip('"') for code in others)]
    assert kinds == ["q", "k", "v", "weights"]
    for what in kinds:
        options = f'what="{what}", heads="L3H5, L1H2", controls=0'
        assert_patched(t, patched(t, f"mh.patch(..., {options})"), what, ((3, 5), (1, 2)))
    got = patched(t, f'mh.patch(..., {by_position}, heads="L3H5", controls=0)')
    for place in (len(got.positions) - 1, len(got.positions) - 3):
        assert_patched(t, got, heads=((3, 5),), where=[place], cell=place)


@row(LENS, "attribution patching")
def _(t):
    got = patched(t, t.code[0])
    kept = []

    def keep(x):
        kept.append(x.detach().requires_grad_())
        return kept[-1]

    hook = t.lm.model.get_submodule(LLAMA.output.format(3)).register_forward_pre_hook(lambda _, args: (keep(args[0]),))
    t.oracle.read(t.lm.model(**t.inputs["corrupted"])).sum().backward()
    hook.remove()
    t.lm.model.zero_grad()
    theirs = t.oracle.seen(t.inputs["clean"], 3, "out")
    change = ((theirs - kept[0].unflatten(-1, (HEADS, WIDTH))) * kept[0].grad.unflatten(-1, (HEADS, WIDTH))).sum(
        (0, 1, 3)
    )
    gap = t.levels["clean"] - t.levels["corrupted"]
    for head in (5, 1):
        assert got[f"L3H{head}"] == pytest.approx(float(change[head].detach()) / gap, abs=1e-3)


@row(LENS, "path patching, written by hand with hooks")
def _(t):
    path = value(t.code[0].replace("answers=...", "answers=answers"), **t.pair)
    level = truth_of_path(t.oracle, t.inputs["corrupted"], t.inputs["clean"], (0, 1), (3, 5), "v")
    assert path.value == pytest.approx(share(t, level), abs=1e-4) and path.value > 0.05


@row(LENS, "a circuit, searched by hand")
def _(t):
    circuit = value(t.code[0].replace("answers=...", "answers=answers, random_sets=1"), **t.pair)
    inside = {(head.layer, head.index) for head in circuit.heads}

    def holding(layer):
        theirs = t.oracle.seen(t.inputs["corrupted"], layer, "out")

        def change(x):
            heads = x.clone().unflatten(-1, (HEADS, WIDTH))
            for head in range(HEADS):
                if (layer, head) not in inside:
                    heads[:, :, head] = theirs[:, :, head]
            return heads.flatten(-2)

        return change

    held = {LLAMA.output.format(layer): holding(layer) for layer in range(4)}
    assert 0 < len(inside) < 16
    assert circuit.faithfulness == pytest.approx(share(t, t.oracle.run(t.inputs["clean"], held)), abs=1e-3)


@row(LENS, "resample ablation")
def _(t):
    other = "def g(y): return g(y)"
    theirs = t.oracle.seen({"input_ids": t.lm.tokenizer(other, return_tensors="pt")["input_ids"]}, 3, "out")[:, :, 5]
    got = logits_under(t, mh.applied(t.lm, mh.Plan([value(t.code[0], other=other)])))
    torch.testing.assert_close(got, logits(t, edits=edited(lambda x: theirs)), rtol=0, atol=1e-3)


@row(LENS, '`detect_head(model, texts, "induction_head")`')
def _(t):
    scores = value(t.code[0], lm=t.lm, texts=TEXT)
    start = t.lm.tokenizer.bos_token_id
    ids = torch.tensor([[start, *t.lm.tokenizer(TEXT, add_special_tokens=False)["input_ids"]]])
    after = torch.zeros(ids.shape[1], ids.shape[1])
    for query in range(ids.shape[1]):
        for key in range(1, query + 1):
            after[query, key] = ids[0, key - 1] == ids[0, query]
    for layer, maps in enumerate(eager_maps(t.lm.model, input_ids=ids)):
        torch.testing.assert_close(scores[layer], (maps[0] * after).sum((1, 2)) / ids.shape[1], rtol=0, atol=1e-4)


@row(LENS, "induction score on repeated random tokens")
def _(t):
    probe = value(t.code[0], lm=t.lm)
    (best,) = probe.after.top(1)
    halves = torch.stack([torch.randperm(1600, generator=t.fresh)[:50] + 250 for _ in range(8)])
    ids = torch.cat([torch.full((8, 1), t.lm.tokenizer.bos_token_id), halves, halves], 1)
    maps = eager_maps(t.lm.model, input_ids=ids)[best.head.layer][:, best.head.index]
    mine = maps[:, torch.arange(51, 101), torch.arange(2, 52)].mean()
    assert best.score == pytest.approx(float(mine), abs=0.1) and mine > 0.2


@row(LENS, "`model.generate(...)`")
def _(t):
    plain, record = t.code
    ids = t.inputs["text"]["input_ids"]
    for _ in range(20):
        with torch.no_grad():
            ids = torch.cat([ids, t.lm.model(input_ids=ids).logits[:, -1:].argmax(-1)], 1)
    options = {"input_ids": t.inputs["text"]["input_ids"], "max_new_tokens": 20, "do_sample": False}
    with warnings.catch_warnings(action="ignore"):
        generated = value(plain.replace("...", "**options"), lm=t.lm, options=options)
    assert torch.equal(generated, ids[:, : generated.shape[1]]) and generated.shape[1] > len(t.inputs["text"]) + 5
    read = value(record, lm=t.lm, text=TEXT).tokens.ids[0]
    assert torch.equal(read, ids[0, : len(read)]) and len(read) >= generated.shape[1] - 1


@row(LENS, "`cache.stack_head_results`, `cache.logit_attrs`")
def _(t):
    text = "def f(a, b): return"
    got = value(t.code[0], lm=t.lm, text=text)
    run = {"input_ids": t.lm.tokenizer(text, return_tensors="pt")["input_ids"]}
    b, a = (t.lm.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (" b", " a"))
    streams = []
    norm = t.lm.model.model.norm
    hook = norm.register_forward_pre_hook(lambda _, args: streams.append(args[0]))
    with torch.no_grad():
        last = t.lm.model(**run).logits[0, -1]
    hook.remove()
    assert got.logit[0] == pytest.approx(float(last[b] - last[a]), abs=1e-3)
    assert got.total[0] == pytest.approx(got.logit[0], abs=1e-3)
    direction = (t.lm.model.lm_head.weight[b] - t.lm.model.lm_head.weight[a]) * norm.weight
    scale = streams[0][0, -1].square().mean().add(1e-5).sqrt()
    for layer, head in ((3, 5), (1, 2)):
        z = t.oracle.seen(run, layer, "out")[0, -1, head]
        columns = t.lm.model.get_submodule(LLAMA.output.format(layer)).weight[:, WIDTH * head : WIDTH * (head + 1)]
        assert got[f"L{layer}H{head}"] == pytest.approx(float((columns @ z @ direction / scale).detach()), abs=1e-3)


@row(LENS, '`model.all_composition_scores("K")`')
def _(t):
    scores = value(t.code[0], lm=t.lm)

    def products(layer, head):
        block = t.lm.model.model.layers[layer]
        gain = np.diag(block.input_layernorm.weight.detach().double().numpy())
        q, k, v, o = (getattr(block.self_attn, f"{name}_proj").weight.detach().double().numpy() for name in "qkvo")
        own, shared = (slice(WIDTH * i, WIDTH * i + WIDTH) for i in (head, head // GROUP))
        return o[:, own] @ v[shared] @ gain, (q[own] @ gain).T @ (k[shared] @ gain)

    for (layer, head), (later, reader) in (((0, 1), (3, 5)), ((1, 6), (2, 0))):
        wrote, read = products(layer, head)[0], products(later, reader)[1]
        expected = np.linalg.norm(read @ wrote) / np.linalg.norm(read) / np.linalg.norm(wrote)
        assert scores[HEADS * layer + head, HEADS * later + reader] == pytest.approx(expected, rel=1e-4)


@row(LENS, "`run_with_hooks` on `hook_resid_pre`, `hook_mlp_out`")
def _(t):
    module = t.lm.model.model.layers[3]
    for code, register in (
        (t.code[0], lambda: module.register_forward_pre_hook(lambda _, args: (args[0] * 0.7, *args[1:]))),
        (t.code[1], lambda: module.mlp.register_forward_hook(lambda _, args, out: out * 0.7)),
    ):
        got = logits_under(t, mh.applied(t.lm, mh.Plan([value(code, f=lambda output: output * 0.7)])))
        hook = register()
        want = logits(t)
        hook.remove()
        torch.testing.assert_close(got, want, rtol=0, atol=1e-3)
        assert not torch.allclose(want, logits(t), atol=1e-2)


@row(LENS, "`patching.get_act_patch_resid_pre`, `..._mlp_out`")
def _(t):
    stream, feed_forward = t.code
    module = t.lm.model.model.layers[2]
    for code, register in (
        (stream, lambda f: module.register_forward_pre_hook(lambda _, args: (f(args[0]), *args[1:]))),
        (
            f"mh.patch(..., {feed_forward}, positions='each')",
            lambda f: module.mlp.register_forward_hook(lambda _, args, out: f(out)),
        ),
    ):
        got = patched(t, code.removesuffix(")") + ", heads='L2', controls=0)")
        kept = []
        hook = register(lambda x, kept=kept: kept.append(x) or x)
        t.oracle.run(t.inputs["clean"])
        hook.remove()
        for place in (len(got.positions) - 1, len(got.positions) - 3):

            def put(x, place=place, kept=kept):
                x = x.clone()
                x[:, place] = kept[0][:, place]
                return x

            hook = register(put)
            level = t.oracle.run(t.inputs["corrupted"])
            hook.remove()
            assert got.by_position(got.chosen[0])[place] == pytest.approx(share(t, level), abs=1e-4)


@row(LENS, "a cache of the stream, logit lens, SVD")
def _(t):
    assert t.code == []  # no call of ours


# -------------------------------------------------------------------------------------------------------------- BertViz


@row(VIZ, "`model_view(attention, tokens)`")
def _(t):
    widget = value(t.code[0], rec=recorded(t))
    assert type(widget).__name__ == "StudioWidget" and len(widget.snapshot) > 1000
    widget.close()
    assert t.code[1:] == ['manyheads look "..." --open', "--html look.html"]  # the page: the row of html_action


@row(VIZ, "`head_view(attention, tokens)`")
def _(t):
    assert t.code == []  # a click: tests/studio/test_seeing_heads.py


@row(VIZ, "`neuron_view` (query and key, number by number)")
def _(t):
    rec = recorded(t)
    for code, tensor in zip((t.code[0], t.code[0].removesuffix(".q") + t.code[1]), rotated(t), strict=True):
        torch.testing.assert_close(value(code, rec=rec), tensor, rtol=1e-4, atol=1e-4)


@row(VIZ, "`AutoModel.from_pretrained(..., output_attentions=True)`")
def _(t):
    lm = value(t.code[0].replace("...", '"tiny-code"'))
    assert lm.model.config._attn_implementation == "sdpa" and not lm.model.config.output_attentions
    assert_near(recorded(t).layers[3].weights(), t.maps[3][0])


@row(VIZ, '`html_action="return"`')
def _(t):
    """One file, which loads nothing from elsewhere."""
    words = [TEXT if word == "..." else word for word in shlex.split(t.code[0])]
    assert words[0] == "manyheads" and main([*words[1:], "--model", "tiny-code"]) == 0
    t.capsys.readouterr()
    page = Path("look.html").read_text(encoding="utf-8")
    assert "manyheads-snapshot" in page and not re.search(r"<(script|link|img)[^>]+(src|href)=.?https?:", page)


@row(VIZ, "`include_layers`, `include_heads`")
def _(t):
    tried = (ROOT / "web" / "tests" / "rooms" / "atlas.test.ts").read_text(encoding="utf-8")
    assert len(t.code) == 3 and all(f'namesOf("{code}")' in tried for code in t.code)


@row(VIZ, "sentence pairs (`sentence_b_start`)")
def _(t):
    tokenizer, sides = t.minilm.tokenizer, {"a": "The cat sat.", "b": "It was tired, and it slept."}
    rec = value(t.code[0], lm=t.minilm, tokenizer=tokenizer, **sides)
    inputs = dict(tokenizer(*sides.values(), return_tensors="pt"))
    assert inputs["token_type_ids"].sum() > 3
    for layer, maps in zip(rec.layers, eager_maps(t.minilm.model, **inputs), strict=True):
        assert_near(layer.weights(), maps[0], atol=5e-5)


@row(VIZ, "`encoder_attention`, `cross_attention`")
def _(t):
    call, *stacks = t.code
    source, target = (torch.randint(3, 40, (1, size), generator=t.fresh) for size in (7, 5))
    model = tiny_t5()
    rec = value(call.removeprefix("rec = "), lm=SimpleNamespace(model=model), source=source, target=target)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(input_ids=source, labels=target, output_attentions=True)
    for code, maps in zip(stacks, (out.encoder_attentions, out.cross_attentions), strict=True):
        for layer, expected in zip(value(code, rec=rec), maps, strict=True):
            assert_near(layer.weights(), expected[0])
