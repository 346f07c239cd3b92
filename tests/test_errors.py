"""Every kind of error is one of ours and one that Python users already catch; and nonsense gets one, in words.

What is not a tensor, no plan, no design at all is tried in a process of its own, without the tests' type checks, which
would speak up before the errors do. The areas share that process: Python and torch take seconds to start.
"""

import inspect
import json
import subprocess
import sys

import pytest

from manyheads import errors
from manyheads.errors import ManyHeadsError

BUILT_IN = {
    "AlertError": RuntimeError, "EngineError": RuntimeError,
    "FileAccessError": OSError, "GuardError": RuntimeError, "HeadError": ValueError, "LostProcessError": RuntimeError,
    "ManyHeadsError": Exception, "ModelError": RuntimeError, "PatternError": ValueError, "PlanError": ValueError,
    "RecordingError": ValueError, "ShapeError": ValueError, "StatisticError": ValueError, "TextError": ValueError,
    "WindowError": MemoryError,
}  # fmt: skip


def test_the_table_of_this_test_and_all_and_the_module_name_the_same_classes():
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert set(BUILT_IN) == set(errors.__all__) == defined


@pytest.mark.parametrize(("name", "built_in"), BUILT_IN.items())
def test_an_error_is_caught_as_ours_and_as_the_built_in_one(name, built_in):
    kind = getattr(errors, name)
    for caught_as in (ManyHeadsError, built_in):
        with pytest.raises(caught_as, match=r"^asked for 3, got 5\. Use 3\.$"):
            raise kind("asked for 3, got 5. Use 3.")


@pytest.mark.parametrize("name", BUILT_IN)
def test_an_error_says_what_it_is_for(name):
    assert getattr(errors, name).__doc__.strip().endswith(".")


# ------------------------------------------------------------------------------------------ wrong types, in words

RUNNER = """
import json, sys
import manyheads as mh
from manyheads.lab import design

lm, out = mh.load("minilm"), {}
for area, script in json.load(sys.stdin).items():
    space = {"lm": lm}
    exec(script, space)
    out[area] = {}
    for name, case in space["cases"].items():
        try:
            out[area][name] = f"value: {case()}"
        except Exception as error:
            out[area][name] = f"{type(error).__name__}: {error}"
print(json.dumps(out))
"""

LAYERS = """
import torch
import manyheads as mh
from manyheads.nn.positions import Rope
from manyheads.recording.exact_map.requests import Received, Strongest
from manyheads.statistics.statistic import PerText, Statistic

x = torch.randn(2, 5, 12)
layer = mh.MultiHeadAttention(12, 3, batch_first=True).eval()
turned = mh.MultiHeadAttention(12, 3, batch_first=True, rope=Rope(max_positions=4)).eval()
q, k, v = torch.randn(3, 1, 3, 5, 4).unbind(0)
rec = mh.record(lm, "a cat sat")


def mine(name="mine", needs=lambda tokens: (), finish=lambda facts: facts.over_rows(facts.rows[:, None].double())):
    return Statistic(name, "share", (0.0, 1.0), "me", "mine", needs, finish)


def shared():
    cache = mh.KVCache()
    with torch.no_grad():
        layer(x, cache=cache)
        mh.MultiHeadAttention(12, 3, batch_first=True)(x, cache=cache)


def measured(*statistics):
    return mh.measure(lm, "a cat sat", list(statistics))


cases = {
    "a list": lambda: layer([1, 2]),
    "an array": lambda: layer(x.numpy()),
    "a padding mask": lambda: layer(x, key_padding_mask="x"),
    "an attention mask": lambda: layer(x, attn_mask=[[0]]),
    "a cache": lambda: layer(x, cache=3),
    "heads in words": lambda: layer(x, weight_heads="L0H1"),
    "heads that are booleans": lambda: layer(x, weight_heads=[True]),
    "a cache of two layers": shared,
    "a cache of half a place": lambda: mh.KVCache.static(2.5),
    "NaN in a mask": lambda: layer(x, attn_mask=torch.full((5, 5), torch.nan)),
    "infinity in a mask": lambda: layer(x, key_padding_mask=torch.full((2, 5), torch.inf)),
    "positions below 0": lambda: turned(x[:, :2], positions=torch.tensor([[-1, 0], [0, 1]])),
    "whole numbers for weights": lambda: mh.MultiHeadAttention(12, 4, dtype=torch.int64),
    "attend: numbers": lambda: mh.attend(1, 2, 3),
    "attend: two dtypes": lambda: mh.attend(q, k.double(), v),
    "attend: booleans": lambda: mh.attend(q, k, v, mask=torch.ones(5, 5, dtype=torch.bool)),
    "a dtype that is a number": lambda: mh.load("minilm", dtype=5),
    "record a name": lambda: mh.record("minilm", "x"),
    "record nothing": lambda: mh.record(lm, None),
    "measure a number": lambda: mh.measure(lm, 3),
    "a pattern without a name": lambda: mh.find_roles(lm, ["a cat sat"], patterns={3: len}),
    "tap a number": lambda: mh.tap(3).__enter__(),
    "stream by a file's name": lambda: mh.streaming(lm, "split.json").__enter__(),
    "watch a name": lambda: mh.watch("gpt2"),
    "watch every half step": lambda: mh.watch(lm.model, every=2.5),
    "clip at words": lambda: mh.QKClip(lm.model, tau="100"),
    "an optimizer in words": lambda: mh.QKClip(lm.model, optimizer="adamw"),
    "weights of a head in words": lambda: rec.layers[0].weights(head="x"),
    "a statistic's name taken": lambda: measured("entropy", mine("entropy")),
    "a statistic's name taken first": lambda: measured(mine("entropy"), "entropy"),
    "finish gives nothing": lambda: measured(mine(finish=lambda facts: None)),
    "finish gives NaN": lambda: measured(mine(finish=lambda facts: PerText(*(2 * [torch.full((1, 12), torch.nan)])))),
    "finish reads what was not asked": lambda: measured(mine(finish=lambda facts: facts[Strongest()])),
    "needs a bare request": lambda: measured(mine(needs=lambda tokens: Received())),
    "needs junk": lambda: measured(mine(needs=lambda tokens: (3,))),
    # A plain pair is as good as a PerText.
    "a pair": lambda: measured(
        mine(finish=lambda facts: (torch.ones(1, 12).double(), torch.ones(1, 12).double() * 4))
    )["L0H3", "mine"],
}
"""

PLANS = """
import torch
import manyheads as mh
from manyheads import Ablate, Copy, Plan, Scale, SkipOutputProjection
from manyheads.lab import design

plan, mean = Plan(Ablate("L1H1")), Ablate("L1", kind="mean")
texts = ["a cat sat", "a dog ran home"]
writes = design.build([[None]], causal=True)


def applied(lm, plan, **options):
    with mh.applied(lm, plan, **options):
        lm.model(torch.tensor([[101, 7, 102]]))


cases = {
    "kind": lambda: Ablate("L1", kind=["mean"]),
    "heads that are a number": lambda: Ablate(3),
    "no heads": lambda: Ablate(None),
    "factor": lambda: Scale("L1", "2"),
    "text": lambda: Ablate("L1", kind="resample", text=3),
    "per_position": lambda: Ablate("L1", kind="mean", per_position="no"),
    "seed": lambda: Ablate("L1", kind="resample", seed=0.5),
    "layer": lambda: SkipOutputProjection(1.5),
    "source": lambda: Copy("L1", source=0),
    "steps in words": lambda: Plan("L3H7"),
    "steps that are a number": lambda: Plan(3),
    "a step in words": lambda: Plan([Ablate("L1"), "L2"]),
    "no json": lambda: Plan.from_json(None),
    "a plan that is a number": lambda: applied(lm, 3),
    "a plan that is a list of words": lambda: applied(lm, ["L1H1"]),
    "a plan that would be a file": lambda: applied(lm, "L1H1"),
    "applied to a name": lambda: applied("minilm", plan),
    "a corpus that is a number": lambda: applied(lm, mean, corpus=3),
    "a corpus of numbers": lambda: applied(lm, mean, corpus=[3]),
    "effect on a name": lambda: mh.effect("minilm", plan, texts),
    "effect on a module": lambda: mh.effect(lm.model, plan, texts),
    "effect of words": lambda: mh.effect(lm, "L1H1", texts),
    "texts that are a number": lambda: mh.effect(lm, plan, 3),
    "texts of numbers": lambda: mh.effect(lm, plan, [3]),
    "texts that are none": lambda: mh.effect(lm, plan, None),
    "a metric that is a number": lambda: mh.effect(lm, plan, texts, metric=3),
    "a metric that is a list": lambda: mh.effect(lm, plan, texts, metric=["loss"]),
    "labels that are a number": lambda: mh.effect(lm, plan, mh.Inputs(texts, labels=3)),
    "controls in words": lambda: mh.effect(lm, plan, texts, controls="many"),
    "a seed in words": lambda: mh.effect(lm, plan, texts, seed="x"),
    "importance of a name": lambda: mh.importance("minilm", texts),
    "an estimator that is a list": lambda: mh.importance(lm, texts, ["ablation"]),
    "reduce that is a number": lambda: mh.importance(lm, texts, "gradient", reduce=3),
    "a kind that is a number": lambda: mh.importance(lm, texts, kind=3),
    "a corpus of importance": lambda: mh.importance(lm, texts, kind="mean", corpus=3.5),
    "a metric that gives words": lambda: mh.importance(lm, texts, metric=lambda outputs, inputs: "x"),
    "a count in words": lambda: mh.importance(lm, texts, "gradient").lowest("x"),
    "a batch in words": lambda: mh.importance(lm, texts, num_tokens="x"),
    "patch a name": lambda: mh.patch("minilm", *texts),
    "a part in a list": lambda: mh.patch(lm, "a cat", "a dog", what=["q"]),
    "a clean number": lambda: mh.patch(lm, 3, "a dog"),
    "clean numbers": lambda: mh.patch(lm, [3], ["a dog"]),
    "answers that are a number and a half": lambda: mh.patch(writes, "a cat", "a dog", answers=1.5),
    "an answer that is true": lambda: mh.patch(writes, "a cat", "a dog", answers=(True, 3)),
    "positions that are a number": lambda: mh.patch(writes, "a cat", "a dog", answers=(4, 3), positions=3),
    "a position in words": lambda: mh.patch(writes, "a cat", "a dog", answers=(4, 3), positions=["x"]),
    "a batch of patches in words": lambda: mh.patch(lm, "a cat", "a dog", num_tokens="x"),
    "a seed of patches in words": lambda: mh.patch(lm, "a cat", "a dog", seed="x"),
    "controls of patches in words": lambda: mh.patch(lm, "a cat", "a dog", controls="x"),
    "heads to patch by number": lambda: mh.patch(writes, "a cat", "a dog", answers=(4, 3), heads=3.5),
    "a share in words": lambda: mh.find_circuit(lm, "a cat", "a dog", keep="all"),
    "sets in words": lambda: mh.find_circuit(lm, "a cat", "a dog", random_sets="x"),
}
"""

DESIGNS = """
from manyheads.lab import design
cases = {
    "sharpness": lambda: design.previous("x"), "offset": lambda: design.offset(1.5),
    "a text for a class": lambda: design.token_class("cat"), "members": lambda: design.token_class([1.5]),
    "separator": lambda: design.separator(3), "layers": lambda: design.build(3), "head": lambda: design.build([["x"]]),
    "one layer": lambda: design.build([design.first()]), "noise": lambda: design.build([[None]], noise="x"),
    "seed": lambda: design.build([[None]], seed=1.5), "positions": lambda: design.build([[None]], max_positions=9.5),
}
"""

WORDS = {
    "layers": {
        "a list": ("ShapeError", "query is a list: give a tensor"),
        "an array": ("ShapeError", "query is a ndarray: give a tensor, as torch.as_tensor(query) makes one."),
        "a padding mask": ("ShapeError", "key_padding_mask is a str: give a tensor of booleans, 0 and 1, or floats."),
        "an attention mask": ("ShapeError", "attn_mask is a list: give a tensor"),
        "a cache": ("ShapeError", "cache is a int: give an mh.KVCache, or None."),
        "heads in words": ("ShapeError", "weight_heads has ['L', '0', 'H', '1'], but this layer has heads 0 to 2"),
        "heads that are booleans": ("ShapeError", "weight_heads has [True], but this layer has heads 0 to 2"),
        "a cache of two layers": ("ShapeError", "this cache holds another layer's keys and values: give each layer"),
        "a cache of half a place": ("ShapeError", "KVCache.static(2.5): give how many positions it holds, 1 or more."),
        "NaN in a mask": ("ShapeError", "attn_mask holds NaN or +inf, which would make whole rows NaN"),
        "infinity in a mask": ("ShapeError", "key_padding_mask holds NaN or +inf"),
        "positions below 0": ("ShapeError", "positions has -1: they count from 0. Shift them."),
        "a dtype that is a number": ("ModelError", "dtype=5 is not a dtype for weights. Use one of float64, "),
        "whole numbers for weights": ("ShapeError", "dtype=torch.int64 is not a dtype for weights"),
        "attend: numbers": ("ShapeError", "q is a int: attend wants tensors (text, head, position, width)"),
        "attend: two dtypes": (
            "ShapeError",
            "q is torch.float32 on cpu, k is torch.float64 on cpu, v is torch.float32",
        ),
        "attend: booleans": (
            "ShapeError",
            "mask is a Tensor: give a Mask of manyheads.attention.masks, as Mask.causal",
        ),
        "record a name": ("ModelError", "'minilm' is a str, not a loaded model: load it first, as mh.load('minilm')."),
        "record nothing": ("TextError", "texts is a NoneType: give a text, or a list of texts."),
        "measure a number": ("TextError", "texts is a int: give a text, or a list of texts."),
        "a pattern without a name": (
            "StatisticError",
            "patterns={3: <built-in function len>}: give a name and a function",
        ),
        "tap a number": ("ModelError", "give a torch module, not a int: of a loaded model"),
        "stream by a file's name": (
            "ModelError",
            "'split.json' is not a HeadSplit: mh.HeadSplit.open(path) reads one.",
        ),
        "watch a name": ("ModelError", "watch a torch module, not a str"),
        "watch every half step": ("PlanError", "every=2.5: give a whole number, 1 or more."),
        "clip at words": ("PlanError", "tau='100' is not a limit for a score: give a number above 0"),
        "an optimizer in words": ("PlanError", "optimizer='adamw' is not an optimizer: give the one that trains this"),
        "weights of a head in words": ("ShapeError", "head='x' is not in layer 0: it has heads 0 to 11."),
        "a statistic's name taken": ("StatisticError", "two statistics are called 'entropy'"),
        "a statistic's name taken first": ("StatisticError", "two statistics are called 'entropy'"),
        "finish gives nothing": ("StatisticError", "finish of 'mine' gave a NoneType: give PerText(num, den)"),
        "finish gives NaN": ("StatisticError", "finish of 'mine' gave NaN or infinity"),
        "finish reads what was not asked": (
            "StatisticError",
            "finish of 'mine' reads Strongest(), which its needs did not ask for",
        ),
        "needs a bare request": ("StatisticError", "needs of 'mine' gave Received(): give a tuple of requests"),
        "needs junk": ("StatisticError", "needs of 'mine' gave (3,): give a tuple of requests"),
        "a pair": ("value", "0.25"),
    },
    "plans": {
        "kind": ("PlanError", "kind=['mean'] is not a way to ablate: use one of zero"),
        "heads that are a number": ("HeadError", "3 names no heads. Write 'L3H7'"),
        "no heads": ("HeadError", "None names no heads."),
        "factor": ("PlanError", "factor='2' of Scale is a str: give a number."),
        "text": ("PlanError", "text=3 with kind='resample': give a text of words"),
        "per_position": ("PlanError", "per_position='no' is a str: True or False."),
        "seed": ("PlanError", "seed=0.5 of Ablate is a float: give a number."),
        "layer": ("PlanError", "layer=1.5 is not a layer: write a number, or a layer as in 'L3'"),
        "source": ("HeadError", "0 names no heads."),
        "steps in words": ("PlanError", "a plan is a list of steps, not a str: Plan([Ablate('L3H7')])."),
        "steps that are a number": ("PlanError", "a plan is a list of steps, not a int"),
        "a step in words": ("PlanError", "'L2' is not a step of a plan: use Ablate, Scale"),
        "no json": ("PlanError", "a plan is JSON, and this is not"),
        "a plan that is a number": ("PlanError", "3 is not a plan: give a Plan, as Plan([Ablate('L3H7')])"),
        "a plan that is a list of words": ("PlanError", "['L1H1'] is not a plan"),
        "a plan that would be a file": (
            "PlanError",
            "'L1H1' names heads, but not what to do with them: write Plan([Abl",
        ),
        "applied to a name": ("ModelError", "a str is not a loaded model: load it first, as mh.load('minilm')."),
        "a corpus that is a number": ("PlanError", "corpus= is a int: give a list of texts"),
        "a corpus of numbers": ("TextError", "text 0 is an int: give strings."),
        "effect on a name": ("ModelError", "a str is not a loaded model"),
        "effect on a module": ("ModelError", "a BertModel is not a loaded model: load it first, as mh.load(model"),
        "effect of words": ("PlanError", "a plan is a list of steps, not a str"),
        "texts that are a number": ("TextError", "texts is an int: give a text, or a list of texts."),
        "texts of numbers": ("TextError", "text 0 is an int: give strings."),
        "texts that are none": ("TextError", "texts is a NoneType"),
        "a metric that is a number": ("StatisticError", "metric=3 is unknown: use one of loss, kl"),
        "a metric that is a list": ("StatisticError", "metric=['loss'] is unknown"),
        "labels that are a number": ("StatisticError", "needs a classifier, and BertModel is none"),
        "controls in words": ("StatisticError", "controls='many': give 0 or more"),
        "a seed in words": ("StatisticError", "seed='x': give a whole number"),
        "importance of a name": ("ModelError", "a str is not a loaded model"),
        "an estimator that is a list": (
            "StatisticError",
            "estimator=['ablation'] is unknown: use one of auto, ablation",
        ),
        "reduce that is a number": ("StatisticError", "reduce=3 is not a way to sum a gradient"),
        "a kind that is a number": ("PlanError", "kind=3 is not a way to ablate"),
        "a corpus of importance": ("PlanError", "corpus= is a float: give a list of texts"),
        "a metric that gives words": ("StatisticError", "the metric gave a str: give one number for each text"),
        "a count in words": ("StatisticError", "'x' heads of 72 were asked for"),
        "a batch in words": ("StatisticError", "num_tokens='x': give a whole number"),
        "patch a name": ("ModelError", "a str is not a loaded model"),
        "a part in a list": ("StatisticError", "what=['q'] is unknown: use one of out, q"),
        "a clean number": ("TextError", "clean and corrupted are a text each, or a list"),
        "clean numbers": ("TextError", "clean: text 0 is an int: give strings."),
        "answers that are a number and a half": ("TextError", "reads answers, one for all or one for each"),
        "an answer that is true": ("TextError", "the answers of text 0 are (True, 3): give answers="),
        "positions that are a number": ("StatisticError", "positions=3: use 'all', 'each', or a list of numbers"),
        "a position in words": ("StatisticError", "'x' is not a whole number"),
        "a batch of patches in words": ("StatisticError", "num_tokens='x': give a whole number"),
        "a seed of patches in words": ("StatisticError", "seed='x': give a whole number"),
        "controls of patches in words": ("StatisticError", "controls='x': give 0 or more random heads"),
        "heads to patch by number": ("HeadError", "3.5 names no heads"),
        "a share in words": ("StatisticError", "keep='all' is not a share of the metric"),
        "sets in words": ("StatisticError", "random_sets='x': give 0 or more"),
    },
    "designs": {
        "sharpness": ("PlanError", "PlanError: sharpness='x' is not a gap"),
        "offset": ("PlanError", "PlanError: 1.5 is not a number of tokens"),
        "a text for a class": ("PlanError", "PlanError: members='cat' is not a class of tokens: give a list"),
        "members": ("PlanError", "PlanError: 1.5 is neither a token nor an id"),
        "separator": ("PlanError", "PlanError: 3 is not a token"),
        "layers": ("PlanError", "PlanError: layers=3: give a list of layers"),
        "head": ("PlanError", "PlanError: L0H0 is 'x': give a design, as design.previous(), or None"),
        "one layer": ("PlanError", "PlanError: layers=[HeadDesign("),
        "noise": ("PlanError", "PlanError: noise='x' is not a strength"),
        "seed": ("PlanError", "PlanError: seed=1.5 is not a seed"),
        "positions": ("ShapeError", "ShapeError: max_positions=9.5 is not a number"),
    },
}


@pytest.mark.slow
def test_wrong_types_are_errors_in_words():
    scripts = json.dumps({"layers": LAYERS, "plans": PLANS, "designs": DESIGNS})
    done = subprocess.run([sys.executable, "-c", RUNNER], input=scripts, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert {area: set(cases) for area, cases in said.items()} == {area: set(cases) for area, cases in WORDS.items()}
    wrong = {
        (area, case): said[area][case]
        for area, cases in WORDS.items()
        for case, (kind, words) in cases.items()
        if not said[area][case].startswith(f"{kind}: ") or words not in said[area][case]
    }
    assert not wrong
