"""Nonsense for plans, texts, metrics and corpora: an error in words, as users meet it.

In a process of its own, without the tests' type checks, which would speak up before the errors do.
"""

import json
import subprocess
import sys

SCRIPT = """
import json
import torch
import manyheads as mh
from manyheads import Ablate, Copy, Plan, Scale, SkipOutputProjection

lm = mh.load("minilm")
plan, mean = Plan(Ablate("L1H1")), Ablate("L1", kind="mean")
texts = ["a cat sat", "a dog ran home"]


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
    "labels that are a number": lambda: mh.effect(lm, plan, texts, labels=3),
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
}
out = {}
for name, case in cases.items():
    try:
        case()
        out[name] = ["nothing", ""]
    except Exception as error:
        out[name] = [type(error).__name__, str(error)]
print(json.dumps(out))
"""

WORDS = {
    "kind": ("PlanError", "kind=['mean'] is no way to ablate: use one of 'zero'"),
    "heads that are a number": ("HeadError", "3 names no heads. Write 'L3H7'"),
    "no heads": ("HeadError", "None names no heads."),
    "factor": ("PlanError", "factor='2' of Scale is a str: give a number."),
    "text": ("PlanError", "text=3 with kind='resample': give a text of words"),
    "per_position": ("PlanError", "per_position='no' is a str: True or False."),
    "seed": ("PlanError", "seed=0.5 of Ablate is a float: give a number."),
    "layer": ("PlanError", "layer=1.5 is no layer: write a number, or a layer as in 'L3'"),
    "source": ("HeadError", "0 names no heads."),
    "steps in words": ("PlanError", "a plan is a list of steps, not a str: Plan([Ablate('L3H7')])."),
    "steps that are a number": ("PlanError", "a plan is a list of steps, not a int"),
    "a step in words": ("PlanError", "'L2' is no step of a plan: use Ablate, Scale"),
    "no json": ("PlanError", "a plan is JSON, and this is not"),
    "a plan that is a number": ("PlanError", "3 is no plan: give a Plan, as Plan([Ablate('L3H7')])"),
    "a plan that is a list of words": ("PlanError", "['L1H1'] is no plan"),
    "a plan that would be a file": ("FileAccessError", "cannot read L1H1: there is no such file"),
    "applied to a name": ("ModelError", "a str is not a loaded model: load it first, as mh.load('minilm')."),
    "a corpus that is a number": ("PlanError", "corpus= is a int: give a list of texts"),
    "a corpus of numbers": ("TextError", "text 0 is an int: give strings."),
    "effect on a name": ("ModelError", "a str is not a loaded model"),
    "effect on a module": ("ModelError", "a BertModel is not a loaded model: load it first, as mh.load(model"),
    "effect of words": ("PlanError", "a plan is a list of steps, not a str"),
    "texts that are a number": ("TextError", "texts is an int: give a text, or a list of texts."),
    "texts of numbers": ("TextError", "text 0 is an int: give strings."),
    "texts that are none": ("TextError", "texts is a NoneType"),
    "a metric that is a number": ("StatisticError", "metric=3 is unknown: use loss, kl"),
    "a metric that is a list": ("StatisticError", "metric=['loss'] is unknown"),
    "labels that are a number": ("StatisticError", "needs a classifier, and BertModel is none"),
    "controls in words": ("StatisticError", "controls='many': give 0 or more"),
    "a seed in words": ("StatisticError", "seed='x': give a whole number"),
    "importance of a name": ("ModelError", "a str is not a loaded model"),
    "an estimator that is a list": ("StatisticError", "estimator=['ablation'] is unknown: use one of ablation"),
    "reduce that is a number": ("StatisticError", "reduce=3 is no way to sum a gradient"),
    "a kind that is a number": ("PlanError", "kind=3 is no way to ablate"),
    "a corpus of importance": ("PlanError", "corpus= is a float: give a list of texts"),
    "a metric that gives words": ("StatisticError", "the metric gave a str: give one number for each text"),
    "a count in words": ("StatisticError", "'x' heads of 72 were asked for"),
    "a batch in words": ("StatisticError", "num_tokens='x': give a whole number"),
}


def test_it_is_said_in_words():
    """One test, not one for each case: they share a process, which every worker would start anew."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said.keys() == WORDS.keys()
    wrong = {
        case: said[case] for case, (kind, words) in WORDS.items() if said[case][0] != kind or words not in said[case][1]
    }
    assert not wrong
