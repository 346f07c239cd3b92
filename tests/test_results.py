"""Everything that is returned can be pickled, and used in a fresh process as here, with the same numbers.

A result is also frozen, plain data by `to_dict`, and one short line by `repr`. Which classes these are, the return
annotations of the faces' functions say, and those of the methods of what they return: a new result class without a case
fails. One fresh process reads them all.
"""

from __future__ import annotations

import builtins
import copy
import dataclasses
import importlib
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from xml.etree import ElementTree

import joblib
import numpy as np
import pyarrow as pa
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from torch import nn

import manyheads as mh
from manyheads import (
    attention,
    cards,
    circuits,
    corpora,
    edits,
    figures,
    inputs,
    interventions,
    measurement,
    models,
    recording,
    roles,
    sizing,
    statistics,
    texts,
    watching,
)
from manyheads import nn as mnn
from manyheads.attention import max_logits
from manyheads.circuits.says import stream_shares
from manyheads.interventions.effects.removal_curve import removal_curve
from manyheads.lab import lessons, practice, reproductions, training
from manyheads.lab.lessons.answers import Verdict
from manyheads.lab.reproductions import reproduction, reproduction_of
from manyheads.lab.training.presets.preset import Findings
from manyheads.recording import media
from manyheads.roles import compare, probes
from manyheads.statistics import defined
from manyheads.texts.tokens import Grid, ImageSpan
from tests.models.tiny import tiny_llama
from tests.refusals import refuses


def quieter(output):
    return 0.5 * output


FACES = (
    "", "circuits", "corpora", "interventions", "long_context", "models", "nn", "recording", "roles", "sizing",
    "statistics", "watching",
)  # fmt: skip
LIVE = {
    "Tap": "hooks on a model, while a block lasts", "Applied": "hooks on a model, while a block lasts",
    "Streaming": "hooks on a model, while a block lasts", "Watch": "hooks on a model that trains",
    "QKClip": "hooks on a model that trains", "WatchCallback": "hooks on a model that trains",
    "HeadWatch": "hooks on a model that trains", "Prepared": "a plan made ready for one model",
    "Editor": "what edits one call", "Metric": "a function of a model's outputs", "StreamingCache": "of one generation",
    "Batch": "of one pass", "Side": "of one pass", "Ran": "has a tap", "Aligner": "of one call", "Pass": "of one batch",
    "Layer": "of one batch", "Inputs": "a description of what is read",
    "Reduced": "of one batch", "Mixed": "of one call", "View": "of one call", "Rule": "of one call",
    "PerText": "of one batch",
    "Reading": "texts as one model reads them", "LargestScores": "of one call", "FeedForward": "a layer: `state_dict`",
    "SwiGLU": "a layer: `state_dict`", "OwnTexts": "texts to be read", "Tokenizer": "transformers' own",
    "BatchSums": "of one batch", "NotFused": "stands where there is no weight",
}  # fmt: skip
"""Classes that a function returns and that are not results, each with what it lives by."""

NO_RESULTS = (
    "attention",
    "base",
    "edits",
    "figures",
    "inputs",
    "lab.commands",
    "lab.design",
    "lab.room",
    "machine",
    "models",
    "nn",
    "studio",
)
"""Packages whose functions return what others take (tensors, layers, models, designs, batches), or files and pages."""

TAKEN = {
    "Attended": "tensors that a model goes on with", "LoadedModel": "a model", "Corpus": "texts to be read",
    "HeadSums": "a sum that grows: its table is the result", "Statistic": "what `measure` is asked for",
    "Architecture": "what `size` is asked about", "AlertRule": "what `alerts` is asked for", "Head": "a name",
    "Tokens": "what a model reads", "Table": "a part of a lesson's page", "Fact": "a part of a lesson's page",
    "Right": "a part of a lesson's page", "Parameter": "a part of a lesson's page", "Values": "inputs of a cell",
    "RulNet": "a model", "Document": "a text to be read", "LayerRecord": "a part of a recording: its file",
    "Region": "a part of a map that is drawn", "Weights": "a part of an `Architecture`",
    "PilImage": "Pillow's own",
}  # fmt: skip
"""Classes that a function of the other packages returns and that are not results either, each with what it is."""

COLD = "The cat sat on the mat, and it was cold."
TEXTS = ["The cat sat on the mat, and it was warm.", "A dog ran. The dog was tired, because it ran.", "One two three."]


# ---------------------------------------------------------------------------------------------- which classes there are

REFERENCE = " ".join(page.read_text(encoding="utf-8") for page in (Path(__file__).parents[1] / "docs").rglob("*.md"))


def is_told(function):
    """Whether the pages name a function: others of a face are there for our own packages."""
    return bool(re.search(rf"\b{function.__name__}\b", REFERENCE))


def classes_in(function):
    """The classes of manyheads that a function's return annotation names."""
    function = inspect.unwrap(function)
    annotation = getattr(function, "__annotations__", {}).get("return", "")
    named = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    space = getattr(function, "__globals__", {})
    for name in re.findall(r"[A-Za-z_]\w*", named):
        kind = space.get(name)
        if inspect.isclass(kind) and kind.__module__.startswith("manyheads") and not issubclass(kind, Exception):
            yield kind


def functions_of(kind):
    for name, member in inspect.getmembers_static(kind):
        if not name.startswith("_"):
            member = (
                getattr(member, "__func__", None) or getattr(member, "fget", None) or getattr(member, "func", member)
            )
            if inspect.isfunction(member) and member.__module__.startswith("manyheads"):
                yield member


def result_classes():
    found, new = {}, []
    for face in FACES:
        module = importlib.import_module(f"manyheads.{face}".rstrip("."))
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value) and value.__module__.startswith("manyheads") and is_told(value):
                new += classes_in(value)
            elif inspect.isclass(value) and not issubclass(value, builtins.Exception) and not face:
                new.append(value)
    while new:
        kind = new.pop()
        if (kind.__qualname__, kind.__module__) not in found and kind.__name__ not in LIVE:
            found[kind.__qualname__, kind.__module__] = kind
            new += [returned for function in functions_of(kind) for returned in classes_in(function)]
    return found


def listed_results():
    """The classes that the faces' functions return: what somebody holds who asked for something."""
    root, found = Path(mh.__file__).parent, {}
    for stub in sorted(root.rglob("__init__.pyi")):
        face = ".".join(stub.parent.relative_to(root).parts)
        if face not in NO_RESULTS:
            module = importlib.import_module(f"manyheads.{face}".rstrip("."))
            functions = [value for name in module.__all__ if inspect.isfunction(value := getattr(module, name))]
            # A tuple with names is a row of a result, and has no form of its own.
            found |= {
                f"{kind.__module__.removeprefix('manyheads.')}.{kind.__qualname__}": kind
                for function in functions
                if function.__module__.startswith("manyheads") and is_told(function)
                for kind in classes_in(function)
                if not issubclass(kind, tuple) and kind.__name__ not in LIVE | TAKEN
            }
    return dict(sorted(found.items()))


# ------------------------------------------------------------------------------------------------- a result in numbers


def numbers(value, depth=0):
    """All that a value holds as plain data: two that are alike have the same."""
    assert depth < 30, type(value)
    if isinstance(value, torch.Tensor):
        value = value.detach()
        return (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
    if isinstance(value, nn.Module):
        return {name: numbers(x, depth + 1) for name, x in value.state_dict().items()}
    if isinstance(value, statistics.Statistic):  # of a HeadSums it is what a file says of it
        return value.description
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: numbers(x, depth + 1) for name, x in held.items() if not callable(x) and not name.startswith("_")}
    if isinstance(value, Mapping):
        return {repr(key): numbers(x, depth + 1) for key, x in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, tuple | list) or type(value).__name__ == "LazyLayers":
        return [numbers(x, depth + 1) for x in value if not callable(x)]
    if isinstance(value, mh.HeadSums):
        return numbers(value.table(), depth + 1)
    if isinstance(value, mh.KVCache):
        return [value.length, *(numbers(x) for x in value.held())]
    plain = str | int | float | bool | None | np.ndarray | np.generic | os.PathLike | slice | torch.dtype | torch.device
    return value if isinstance(value, plain) else type(value).__name__


def assert_same(got, want, where):
    assert type(got) is type(want), where
    if isinstance(want, dict):
        assert got.keys() == want.keys(), where
        for key in want:
            assert_same(got[key], want[key], f"{where}.{key}")
    elif isinstance(want, list):
        assert len(got) == len(want), where
        for index, pair in enumerate(zip(got, want, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    elif isinstance(want, np.ndarray | float | np.generic):
        np.testing.assert_array_equal(got, want, err_msg=where)
    else:
        assert got == want, where


def said(value):
    """What a result says of itself: its plain data, and its line."""
    return (value.to_dict(), repr(value)) if hasattr(type(value), "to_dict") else (None, repr(value))


def assert_plain(value, where):
    """It is of JSON's own types, and no subclass of them (np.float64 is a float)."""
    if type(value) is dict:
        for key, part in value.items():
            assert type(key) is str, where
            assert_plain(part, f"{where}.{key}")
    elif type(value) in (list, tuple):
        for index, part in enumerate(value):
            assert_plain(part, f"{where}[{index}]")
    else:
        assert value is None or type(value) in (bool, int, float, str), (where, type(value))


def used(value):
    """What is asked of a result beside what it holds."""
    with torch.no_grad():
        return numbers(USES[type(value).__name__](value)) if type(value).__name__ in USES else None


X = torch.linspace(-1, 1, 2 * 5 * 24).reshape(2, 5, 24)

USES = {
    "LoadedModel": lambda lm: [mh.measure(lm, TEXTS)["entropy"], lm.weights_hash, lm.tokenizer(TEXTS[0])["input_ids"]],
    "Recording": lambda rec: [[x.weights(0), x.received()] for layers in rec.stacks.values() for x in layers],
    "LayerRecord": lambda layer: [layer.weights(1), layer.word_weights(0).weights],
    "HeadTable": lambda table: [table[table.names[0]], table.interval(table.names[0]), table.to_pandas().to_dict()],
    "Roles": lambda found: [found.table.names, repr(found), [str(head) for head in found.heads]],
    "Statistic": lambda statistic: [statistic.meaning, statistic.bursty],
    "Comparison": lambda compared: [repr(compared), getattr(compared, "changed", None)],
    "HeadFamilies": repr,
    "Composition": lambda composed: composed.strongest(),
    "PrunedModel": lambda small: [small.model(torch.tensor([[5, 6, 7]])).logits, models.kept_in(small.model)],
    "Converted": lambda small: small.model(torch.tensor([[5, 6, 7]])).logits,
    "MultiHeadAttention": lambda layer: layer(X),
    "KVCache": lambda cache: layer_of_cache()(X[:, :1], cache=pickle.loads(pickle.dumps(cache))),
    "Corpus": lambda corpus: [(x.name, x.text) for x in corpus.open()],
    "HeadSums": lambda sums: sums.table().notes,
    "HeadSplit": lambda split: [split.to_dict(), str(split.retrieval)],
    "Sizing": lambda sizing: [sizing.to_dict(), repr(sizing)],
    "Plan": lambda plan: plan.to_json(),
    "ModelSpec": lambda spec: [spec.to_json(), str(spec.select("L1"))],
    "Mask": lambda mask: mask.counts(),
    "HeadCurves": lambda curves: curves.refresh().values,
}


def layer_of_cache():
    torch.manual_seed(3)
    return mh.MultiHeadAttention(24, 6, 3, batch_first=True, causal=True).eval()


# ------------------------------------------------------------------------------------------------------------- results


class World:
    """One of each result, by name."""

    def __init__(self, lm, make, fresh, folder, page_labels):
        self.bert, self.fresh, self.folder, self.page_labels = lm, fresh, folder, page_labels
        # To write one is 15 seconds of another process: it is plain data.
        self.saved = interventions.Saved("stock", folder / "small", None, "LlamaForCausalLM", "so", 1e-7, "cpu")
        self.llama = make("llama")
        self.t5 = make("t5")

    @cached_property
    def rec(self):
        return mh.record(self.bert, TEXTS)

    @cached_property
    def results(self):
        bert, llama, pair = self.bert, self.llama, {"answers": (4, 3)}
        self.rec.save(self.folder / "stored.heads")
        page = self.folder / "page.txt"
        page.write_text("\n\n".join(TEXTS))
        table = mh.measure(llama, TEXTS, "all", kinds=True)
        sums = mh.HeadSums(llama, "default")
        sums.update(TEXTS)
        found = mh.find_roles(llama, TEXTS)
        compared = mh.compare(llama, llama, TEXTS)
        families = mh.head_families(llama, TEXTS)
        batches = tuple(inputs.read(llama, TEXTS).batches())
        plans = [
            mh.Plan([mh.Ablate("L0H1")]),
            mh.Plan([mh.Scale("L1H1", 0.5), mh.Average("L1H2"), mh.Copy("L1H3", "L1H1")]),
        ]
        metric, _ = edits.choose_metric(llama, "loss")
        composed = mh.composition(llama)
        rows = [torch.randint(5, 40, (n,), generator=self.fresh).tolist() for n in (33, 29, 37, 31)]
        split = mh.split_heads(llama, rows, 0.5, sink=2, recent=8, random=0, needles=())
        q, k, v = torch.randn(3, 2, 3, 5, 4, generator=self.fresh).unbind(0)
        attended = mh.attend(q, k, v)
        layer, cache = layer_of_cache(), mh.KVCache()
        with torch.no_grad():
            layer(X, cache=cache)
        steps = []
        tuned = copy.deepcopy(llama.model).train()
        with mh.watch(tuned, every=1, out=self.folder / "heads") as seen:
            for _ in range(2):
                tuned(input_ids=torch.tensor([rows[0]]), labels=torch.tensor([rows[0]])).loss.backward()
                seen.step()
                steps.append(seen.last)
        crossed = mh.record_call(
            self.t5.model, input_ids=torch.tensor([rows[0]]), decoder_input_ids=torch.tensor([rows[1]])
        )
        effect = mh.effect(llama, mh.Ablate("L0H1"), TEXTS, controls=3)
        small, links, words = (
            mh.prune_heads(llama, {0: [0, 1]}),
            self.rec.heads_linking("cat", "mat"),
            texts.Words.of(self.rec.tokens),
        )
        sizing, repeats = mh.size(llama), probes.probe_repeats(llama, length=20, repeats=2)
        attribution = mh.logit_attribution(llama, "a cat", "a")
        explained = mh.why(llama, TEXTS[0], "L1H1"), mh.why(llama, TEXTS, "L1H2", where="first")
        heard = mh.record(bert, TEXTS[0], keep=("q", "k", "v", "lse"))
        treebank = next(document.gold for document in corpora.gold_corpus().open())
        steps_read = watching.open_history(self.folder / "heads")
        return [
            bert,
            bert.loading,
            llama,
            self.rec,
            mh.open_recording(self.folder / "stored.heads"),
            self.rec.layers[2],
            table,
            sums,
            found,
            compared,
            compared.changed,
            compared.relabelled,
            compared.largest("L1H1"),
            families,
            compare.head_diversity(llama, TEXTS),
            mh.statistics_of(q, k),
            mh.measure(llama, TEXTS),
            found.of_head("L0H1"),
            roles.family_of("entropy"),
            effect,
            interventions.verdict(effect),
            mh.importance(llama, TEXTS),
            plans,
            mh.SkipPositions(),
            mh.SkipOutputProjection("L1"),
            mh.Edit("L1H1", quieter),
            edits.Runner.of(llama, edits.plan_edits(llama, plans), metric).over(batches),
            interventions.lowest_heads(llama, TEXTS, 4),
            mh.patch(llama, "a cat", "a dog", **pair),
            (of_layers := mh.patch(llama, "a cat", "a dog", what="stream", controls=0, **pair)),
            of_layers.chosen[0],
            mh.find_circuit(llama, "a cat", "a dog", **pair),
            circuits.path_effects(llama, "a cat", "a dog", "L1H1", **pair),
            attribution,
            *explained,
            explained[0].pairs(1)[0],
            attribution.by_key("L1H1"),
            mh.writes(llama, "L1H1", TEXTS[0]),
            cards.card(mh.load(tiny_llama(), name="bare", tokenizer=False), "L1H2", remember=False),
            composed,
            composed.strongest(),
            split,
            split.dividable,
            small,
            interventions.costs_of(small),
            self.saved,
            models.kept_in(small.model),
            mh.convert_to_gqa(llama, 1),
            bert.spec,
            bert.spec.select("L1"),
            sizing,
            mh.size("llama-3-8b").on("2x80GB"),
            measurement.corpus_run.forecast(llama, TEXTS, ["entropy"]),
            sizing.served,
            sizing.served.weights,
            sizing.served.attention,
            sizing.cache,
            sizing.decoding,
            sizing.prefill,
            sizing.variants,
            sizing.fits("80GB"),
            attended,
            max_logits(q, k, attended.lse, bound=True),
            layer,
            cache,
            attention.Mask.causal(5, 5),
            mnn.Rope(),
            corpora.as_corpus(TEXTS),
            mh.open_corpus(page),
            mh.open_corpus(page).shard(0, 2),
            mh.open_corpus(page).files,
            corpora.own_corpora("minilm"),
            mh.measure(llama, corpora.as_corpus([*TEXTS, ""]), "default").failures,
            statistics.STATISTICS["entropy"],
            defined.class_mass("mine", lambda tokens: None, "m", source="me"),
            defined.survey_syntax([treebank], 1),
            probes.copying_scores(llama),
            probes.copying_scores(llama).top(1),
            compared["L1H1"],
            repeats,
            repeats.after["L0H1"],
            answers := probes.ask_probes(llama),
            next(probe for probe in answers.values() if probe.scores is not None),
            self.page_labels,
            compare.backup_heads(llama, TEXTS, "L0H1"),
            probes.retrieval_scores(llama, TEXTS, "a dog", "the", lengths=(24,), depths=(0.5,), generate=2),
            measurement.pooled_maps(llama, TEXTS),
            statistics.alignment(crossed.stacks["cross"][0]),
            links,
            recording.telling_link(self.rec.layers),
            circuits.head_output(heard, "L1H1", "mat", bert),
            circuits.layer_output(heard, 1, "mat", bert),
            stream_shares(llama, mh.record(llama, TEXTS[0]).tokens, 3),
            measurement.word_swap(mh.record(bert, TEXTS[0]), mh.record(bert, COLD), 11, 9, ["L1H1"]),
            self.rec.tokens,
            recording.spaced_words(words),
            self.rec.layers[0].word_weights(0),
            crossed,
            Grid(2, 3, (32, 48), (16, 16), (16, 16)),
            media.Frames(7, 0.02, 0.025, (0.11,)),
            ImageSpan(1, 2, 3, (32, 48)),
            steps,
            steps_read,
            watching.RULES,
            watching.alerts(steps_read.heads, ["max_logit"], [1, 2], np.full((2, len(steps_read.heads), 1), 1e6)),
            mh.Head.parse("L1H2"),
            removal_curve(llama, [*TEXTS, *TEXTS]),
            lessons.run_cell(lessons.lessons()["one-head"].cells["one-head"], {}, lessons.load),
            *self.of_the_lab(),
        ]

    def of_the_lab(self):
        """Trainings take seconds, and their models are a training's own: what they come to is plain data."""
        chart = training.Chart("How it went", "by step", ())
        (self.folder / "run").mkdir()
        (self.folder / "run" / "report.json").write_text("{}")
        row = reproduction.Row("collapsed runs", "3 of 3", (1.0, 0.5, 1.0), reproduction.Claim("over 0", low=0.0))
        report = {"preset": "induction", "quick": True, "runs": {"plain": {"loss": 1.5}}}
        made = reproduction_of("zhai-collapse")
        return [
            training.Outcome(self.folder / "run", Findings({}, ("The loss fell.",), chart), {}, report),
            reproductions.Reproduced(
                made, self.folder, reproduction.Result((row,), chart), {**made.to_dict(), "rows": [row.to_dict()]}
            ),
            Verdict.wrong("That is the width of one head."),
            practice.judge("softmax", lambda scores: scores, keep=False),
            code := practice.ProgressCode("Ada", 5, ("softmax",), 3, 4.5),
            practice.class_report([str(code), "Ben:0"]),
        ]


# ----------------------------------------------------------------------------------------------------------- the tests


def parts_of(value, seen):
    """A value and all that it holds, but for parts of modules and statistics: each class of manyheads once."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if type(value) in (list, tuple):
        for part in value:
            yield from parts_of(part, seen)
    elif type(value).__module__.startswith("manyheads") and type(value).__name__ != "LazyLayers":
        if type(value) not in seen:
            seen.add(type(value))
            yield value
        if not isinstance(value, nn.Module | statistics.Statistic):
            held = vars(value) if hasattr(value, "__dict__") else value._asdict() if hasattr(value, "_asdict") else {}
            yield from parts_of([x for name, x in held.items() if name[0] != "_" and not callable(x)], seen)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.fixture(scope="module")
def read(minilm, page_labels, folder):
    """Each result as it is here, and of it in a fresh process the class' name, numbers, uses, plain data and line."""
    from tests import seeds
    from tests.models.eager import tiny_lm

    fresh = torch.Generator().manual_seed(seeds.seed())
    world = World(minilm, lambda name: tiny_lm(name, fresh), fresh, folder, page_labels)
    parts, seen = [], set()
    for result in world.results:
        top = list(parts_of(result, seen))
        # A second one of a class is another case: a recording in a file, say.
        parts += top or [
            x for x in (result if isinstance(result, list | tuple) else [result]) if dataclasses.is_dataclass(x)
        ]
    (folder / "pickles").mkdir()
    for place, part in enumerate(parts):
        try:
            (folder / "pickles" / f"{place:03}").write_bytes(pickle.dumps(part))
        except Exception as error:
            raise AssertionError(f"{type(part).__name__} cannot be pickled: {error}") from error
    program = "import sys; from tests.test_results import read_all; read_all(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return [(part, pickle.loads((folder / "read" / f"{place:03}").read_bytes())) for place, part in enumerate(parts)]


def read_all(folder):
    """Of the fresh process: each pickle read, used, and written as numbers."""
    torch.set_num_threads(1)
    (Path(folder) / "read").mkdir()
    for path in sorted((Path(folder) / "pickles").iterdir()):
        value = pickle.loads(path.read_bytes())
        came = (type(value).__name__, numbers(value), used(value), said(value))
        (Path(folder) / "read" / path.name).write_bytes(pickle.dumps(came))


def test_every_class_that_is_returned_has_a_case(read):
    cases = {(type(part).__qualname__, type(part).__module__) for part, _ in read}
    assert not sorted(result_classes().keys() - cases)


def test_every_result_is_used_in_a_fresh_process_with_the_same_numbers(read):
    for part, (name, held, uses, _) in read:
        assert name == type(part).__name__
        assert_same(held, numbers(part), name)
        assert_same(uses, used(part), f"{name}, used")


RESULTS = listed_results()


@pytest.mark.parametrize("name", RESULTS)
def test_result_is_frozen_plain_data_and_one_short_line_and_the_same_after_a_pickle(read, name):
    kind = RESULTS[name]
    assert dataclasses.is_dataclass(kind) and kind.__dataclass_params__.frozen
    cases = [(part, of_it) for part, (*_, of_it) in read if type(part) is kind]
    assert cases
    for part, (data, line) in cases:
        mine = part.to_dict()
        assert_plain(mine, name)
        assert json.loads(json.dumps(mine, allow_nan=False)) == json.loads(json.dumps(data))
        assert line == repr(part) and line.startswith(f"{kind.__name__}(") and line.endswith(")")
        assert len(line) <= 100 and "\n" not in line, line


def cell(value):
    """A cell of a frame or of an Arrow table, as one value that can be compared: nothing is None, in each of them."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if type(value).__name__ == "NAType" or value != value else value


def test_every_table_is_read_through_arrow_row_by_row(read):
    tables = {type(part).__name__: part for part, _ in read if hasattr(part, "to_pandas")}
    assert tables.keys() >= {
        "HeadTable", "Roles", "Comparison", "HeadFamilies", "Importance", "Patching", "Circuit", "Attribution",
        "Composition", "HeadSplit", "HeadLinks", "WatchedStep", "HeadCurves", "BackupHeads", "Why", "WhyMeans",
        "Writes",
    }  # fmt: skip
    for name, part in tables.items():
        frame, table = part.to_pandas(), pa.table(part)
        assert table.column_names == [*frame.columns] and table.num_rows == len(frame), name
        assert not isinstance(part, Sequence), f"of the sequence {name} polars would make a frame of entries"
        assert len(frame) or name == "Circuit"  # of two alike texts no head carries anything
        for column in frame:
            want = [cell(value) for value in frame[column]]
            assert [cell(value) for value in table[column].to_pylist()] == want, (name, column)


@pytest.mark.slow
def test_every_table_is_read_by_polars_and_duckdb(read):
    """Where these are installed (they are in no list of ours), as a user hands a result over."""
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    for result in (part for part, _ in read if hasattr(part, "to_pandas")):
        frame = result.to_pandas()
        assert polars.DataFrame(result).shape == frame.shape
        assert duckdb.sql("SELECT count(*) FROM result").fetchall() == [(len(frame),)]


VIEWED = {"LayerRecord", "LoadedModel", "HeadRole", "WatchedStep", "HeadLinks", "Fit", "Placement"}


def test_every_result_and_layer_has_a_short_view_for_a_notebook(read):
    kinds = {*RESULTS.values()}
    shown = [part for part, _ in read if type(part) in kinds or type(part).__name__ in VIEWED]
    assert {type(part) for part in shown} >= kinds and {type(part).__name__ for part in shown} >= VIEWED
    views = {type(part).__qualname__: part._repr_html_() for part in shown}
    for name, view in views.items():
        root = ElementTree.fromstring(f"<div>{view}</div>")
        rows, text = root.findall(".//tbody/tr"), "".join(root.itertext())
        assert len(rows) <= 21 and len(view) < 40_000 and text.strip() and " object at 0x" not in text, name


def test_result_with_a_figure_returns_it_as_matplotlibs(read, tmp_path):
    drawn = {}
    for part, _ in read:
        name = type(part).__name__
        if hasattr(part, "plot") and name not in drawn:
            if name == "HeadSplit" and "curve" not in part.evidence:
                continue
            if name == "Probe" and part.scores is None:
                with pytest.raises(mh.errors.StatisticError, match="was not asked"):
                    part.plot()
                continue
            drawn[name] = part.plot(1) if name == "LayerRecord" else part.plot()
    assert drawn.keys() >= {
        "Attribution", "BackupHeads", "Circuit", "Comparison", "Composition", "CopyingScores", "Curve", "Effect",
        "HeadCurves", "HeadFamilies", "HeadLinks", "HeadTable", "Importance", "Probe", "RepeatProbe", "RetrievalScores",
        "LayerRecord", "Patching", "PooledMaps", "Recording", "Roles", "Sizing", "WatchedStep",
        "Why", "WhyMeans", "Writes",
    }  # fmt: skip
    for name, figure in drawn.items():
        assert isinstance(figure, Figure) and min(figure.get_size_inches()) > 1, name
    families = next(part for part, _ in read if type(part).__name__ == "HeadFamilies")
    figures.save_families(families, tmp_path / "families.png")
    assert families.plot()._repr_png_()[:8] == (tmp_path / "families.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_table_is_drawn_by_any_of_its_columns_and_a_column_without_numbers_is_refused(minilm, tmp_path):
    table = mh.measure(minilm, TEXTS, ["entropy", "sink_mass"])
    words = {text.get_text() for text in table.plot("sink_mass").findobj(Text)}
    largest = table["sink_mass"].max()
    assert {"sink mass", "L5", "H11", f"Darkest: {largest:.4g}. White: 0.", f"{largest:.2f}"} <= words
    table.plot().savefig(tmp_path / "grid.svg")
    assert "entropy" in (tmp_path / "grid.svg").read_text(encoding="utf-8")
    refuses(
        mh.errors.StatisticError,
        r"column='module' is not a column of numbers .* it has entropy, sink_mass",
        table.plot,
        "module",
    )
    roles = mh.find_roles(minilm, TEXTS)
    refuses(mh.errors.StatisticError, r"rows for 72 heads, and a grid has one number for each", roles.plot, "score")


def test_parts_of_results_that_have_plain_data_have_the_same_after_a_pickle(read):
    parts = [(part, data) for part, (*_, (data, _)) in read if data is not None]
    assert {"ModelSpec", "Plan", "HeadRole", "HeadComparison", "Fit"} <= {type(part).__name__ for part, _ in parts}
    for part, data in parts:
        mine = part.to_dict()
        assert_plain(mine, type(part).__name__)
        assert json.loads(json.dumps(mine, allow_nan=False)) == json.loads(json.dumps(data))


def test_package_whose_functions_return_no_results_and_class_that_is_none_are_there():
    root = Path(mh.__file__).parent
    assert all((root / package.replace(".", "/") / "__init__.pyi").exists() for package in NO_RESULTS)


def refused_mask(model):
    with pytest.raises(mh.errors.PlanError, match="head_mask= does nothing here"):
        model(input_ids=torch.tensor([[5, 6, 7]]), head_mask=torch.ones(3, 6))


IN_A_FRESH_PROCESS = """
import joblib, pickle, sys, torch
folder = sys.argv[1]
lm = pickle.load(open(folder + "/lm", "rb"))
models = [lm.model, torch.load(folder + "/model.pt", weights_only=False)]
models.append(joblib.load(folder + "/joblib"))
from manyheads.errors import PlanError
for model in models:
    hooks = []
    for part in model.modules():
        before, own = dict(part._forward_pre_hooks), []
        while before and (not own or own[-1].id <= max(before)):
            own.append(part.register_forward_pre_hook(lambda *_: None))
        assert len(part._forward_pre_hooks) == len(before) + len(own), "a hook took the place of another"
        hooks += own
    try:
        model(input_ids=torch.tensor([[5, 6, 7]]), head_mask=torch.ones(3, 6))
    except PlanError:
        print("refused", end=" ")
    for hook in hooks:
        hook.remove()
    print(round(float(model(input_ids=torch.tensor([[5, 6, 7]])).logits.double().sum()), 5))
"""


@pytest.mark.slow  # another process
def test_loaded_model_still_refuses_head_mask_in_a_fresh_process_whatever_hooks_come(loaded, tmp_path):
    lm = loaded("llama")
    (tmp_path / "lm").write_bytes(pickle.dumps(lm))
    torch.save(lm.model, tmp_path / "model.pt")
    joblib.dump(lm.model, tmp_path / "joblib")  # by a pickler of its own
    program = [sys.executable, "-c", IN_A_FRESH_PROCESS, str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    with torch.no_grad():
        want = round(float(lm.model(input_ids=torch.tensor([[5, 6, 7]])).logits.double().sum()), 5)
    assert [line.split() for line in done.stdout.splitlines()] == [["refused", f"{want}"]] * 3


def test_loaded_model_that_has_given_its_maps_can_be_pickled_and_gives_them_again(loaded):
    lm, ids = loaded("llama", attn_implementation="eager"), torch.tensor([[5, 6, 7, 2]])
    maps = lm.model(input_ids=ids, output_attentions=True).attentions
    read = pickle.loads(pickle.dumps(lm))
    for model in (read.model, lm.model):
        for before, after in zip(maps, model(input_ids=ids, output_attentions=True).attentions, strict=True):
            torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_copied_model_refuses_head_mask_and_its_hooks_are_its_own(loaded):
    lm = loaded("llama")
    deep, shallow = copy.deepcopy(lm), copy.copy(lm)
    assert shallow.model is lm.model and deep.model is not lm.model
    for model in (deep.model, shallow.model, copy.deepcopy(lm.model)):
        hooks = [model.register_forward_pre_hook(lambda *_: None) for _ in range(3)]
        refused_mask(model)
        for hook in hooks:
            hook.remove()
    deep.model._forward_pre_hooks.clear()
    refused_mask(lm.model)


def test_recording_in_a_file_is_pickled_as_its_path_and_another_file_there_is_refused(minilm, tmp_path, monkeypatch):
    mh.record(minilm, TEXTS).save(tmp_path / "one.heads")
    mh.record(minilm, TEXTS[:2]).save(tmp_path / "two.heads")
    monkeypatch.chdir(tmp_path)
    rec = mh.open_recording("one.heads")
    data, some = pickle.dumps(rec), pickle.dumps(rec.layers[1:3])
    assert len(data) < 1000
    monkeypatch.chdir(tmp_path.parent)
    assert_same(numbers(pickle.loads(data)), numbers(rec), "the recording")
    assert_same(numbers(pickle.loads(some)), numbers(list(rec.layers[1:3])), "its layers")
    assert_same(numbers(copy.deepcopy(rec)), numbers(rec), "its copy")
    os.replace(tmp_path / "two.heads", tmp_path / "one.heads")
    with pytest.raises(
        mh.errors.RecordingError, match="holds a recording other than the one that was pickled under this path"
    ):
        pickle.loads(data)
    (tmp_path / "one.heads").unlink()
    with pytest.raises(mh.errors.FileAccessError, match=r"cannot read .*one\.heads"):
        pickle.loads(data)


def test_recording_of_a_file_that_was_changed_comes_back_as_it_was_changed(fresh, tmp_path):
    tensors = [torch.randn(2, heads, 11, 6, generator=fresh) for heads in (4, 2)]
    given = recording.record_tensors([tensors[0]] * 3, [tensors[1]] * 3, lengths=[11, 7])
    layers = [*given.layers]
    (cross,) = recording.record_tensors([tensors[0] + 1], [tensors[1]], lengths=[11, 7]).layers
    cross = dataclasses.replace(cross, site=dataclasses.replace(cross.site, stack="cross"))
    recording.Recording({"": layers, "cross": [cross]}, given.tokens, given.provenance).save(tmp_path / "two.heads")
    rec = mh.open_recording(tmp_path / "two.heads")
    ids = torch.randint(99, (2, 11), generator=fresh)
    changed = {
        "one stack": dataclasses.replace(rec, stacks={"cross": rec.stacks["cross"]}),
        "other names": dataclasses.replace(rec, stacks={"a": rec.stacks[""], "cross": rec.stacks["cross"]}),
        "names changed over": dataclasses.replace(rec, stacks={"cross": rec.stacks[""], "": rec.stacks["cross"]}),
        "another order": dataclasses.replace(rec, stacks={"cross": rec.stacks["cross"], "": rec.stacks[""]}),
        "some layers": dataclasses.replace(rec, stacks={**rec.stacks, "": rec.stacks[""][1:]}),
        "tokens": dataclasses.replace(rec, tokens=dataclasses.replace(rec.tokens, ids=ids)),
    }
    for name, part in changed.items():
        for read in (pickle.loads(pickle.dumps(part)), copy.deepcopy(part), copy.copy(part)):
            assert [*read.stacks] == [*part.stacks], name
            assert_same(numbers(read), numbers(part), name)
            for stack, layers in part.stacks.items():
                assert read.stacks[stack].sites == layers.sites, name
                for got, want in zip(read.stacks[stack], layers, strict=True):
                    assert torch.equal(got.q, want.q), name
    assert torch.equal(pickle.loads(pickle.dumps(changed["tokens"])).tokens.ids, ids)
    for same in (rec, copy.copy(rec), copy.deepcopy(rec), dataclasses.replace(rec, provenance={"model": "another"})):
        data = pickle.dumps(same)
        assert len(data) < 1000 and pickle.loads(data).provenance == same.provenance


def test_corpus_that_changed_or_can_be_read_once_only_is_refused(tmp_path):
    path = tmp_path / "page.txt"
    path.write_text("\n\n".join(TEXTS))
    data = pickle.dumps(mh.open_corpus(path))
    path.write_text("Another page.")
    with pytest.raises(
        mh.errors.TextError,
        match=r"page\.txt has changed since this corpus was pickled: open "
        r"it again",
    ):
        pickle.loads(data)
    with pytest.raises(
        mh.errors.TextError, match="a stream of texts can be read once only, and not be pickled: give a list"
    ):
        pickle.dumps(corpora.as_corpus(iter(TEXTS)))


def test_statistic_of_the_table_measures_after_a_pickle_and_ones_own_says_that_it_does_not(minilm):
    mine = defined.class_mass(
        "mine", lambda tokens: torch.ones(tokens.num_texts, tokens.longest).bool(), "m", source="me"
    )
    table = mh.measure(minilm, TEXTS, ["entropy", "distant_mass_4_64", mine])
    again = pickle.loads(pickle.dumps(table))
    assert again.statistics[0] is statistics.STATISTICS["entropy"]
    for name in table.names[:2]:
        np.testing.assert_array_equal(
            mh.measure(minilm, TEXTS, [again.statistics[again.names.index(name)]])[name], table[name]
        )
    np.testing.assert_array_equal(again["mine"], table["mine"])
    with pytest.raises(
        mh.errors.StatisticError, match="'mine' was read from a file or a pickle, which says what it means"
    ):
        mh.measure(minilm, TEXTS, [again.statistics[2]])
    assert copy.deepcopy(table).statistics[2] is table.statistics[2]


def test_table_holds_no_model_and_takes_what_its_sums_take(minilm):
    table = mh.measure(minilm, TEXTS)
    sums = sum(part.nbytes for part in (table.sums.num, table.sums.den, table.sums.moments, table.sums.maxima))
    assert len(pickle.dumps(table)) < 1.05 * sums < 5e6


def test_table_is_an_array_of_heads_by_statistics_and_is_not_iterated(minilm):
    table = mh.measure(minilm, TEXTS)
    array = np.asarray(table)
    assert array.shape == (len(table), len(table.names)) == (72, 14)
    for column, name in enumerate(table.names):
        np.testing.assert_array_equal(array[:, column], table[name])
    array[:] = 0
    assert table["entropy"].any() and np.asarray(table, np.float32).dtype == np.float32
    assert "L0H0" in table and table.heads[-1] in table and " l5h11" in table
    assert table[(1, 2), "entropy"] == table["L1H2", "entropy"] and (1, 2) in table and (6, 0) not in table
    assert "L6H0" not in table and "cross:L0H0" not in table and 3 not in table
    with pytest.raises(mh.errors.HeadError, match=r"'entropy' does not name one head\. Write it like 'L3H7'"):
        _ = "entropy" in table
    for read in (list, lambda table: [*table]):
        with pytest.raises(mh.errors.HeadError, match=r"HeadTable is not iterated: .*\.heads"):
            read(table)


def test_results_that_are_no_lists_say_where_their_parts_are():
    for kind, names in (
        (recording.Recording, (".layers", ".stacks")), (sizing.Sizing, (".num_parameters", ".cache", ".layers")),
        (interventions.Effect, (".change", ".low", ".high", ".per_text")), (circuits.Composition, (".strongest()",)),
        (mh.HeadSplit, (".retrieval", ".streaming", ".layers")), (circuits.Attribution, (".components", ".values")),
        (interventions.Importance, (".heads",)),
    ):  # fmt: skip
        result = object.__new__(kind)
        fields = {field.name for field in dataclasses.fields(kind)} | {*dir(kind)}
        assert {name.strip(".()") for name in names} <= fields
        for read in (list, lambda result: "L0H0" in [*result], enumerate):
            with pytest.raises(mh.errors.HeadError, match=f"^{kind.__name__} is not iterated: its ") as refused:
                read(result)
            assert all(name in str(refused.value) for name in names)
        refuses(mh.errors.TextError, f"^texts is a {kind.__name__}: give a text", corpora.as_corpus, result)


def test_result_of_heads_is_hidden_in_no_array_of_one_object(minilm):
    importance = mh.importance(minilm, TEXTS, "gradient")
    refuses(mh.errors.HeadError, r"^Importance is not an array: to_pandas\(\) has its numbers", np.asarray, importance)
    roles = mh.find_roles(minilm, TEXTS)
    assert [*np.asarray(roles)] == [*roles]  # a sequence, as any other


def test_cache_goes_on_after_a_pickle_and_a_copy(fresh):
    layer = layer_of_cache()
    x = torch.randn(2, 9, 24, generator=fresh)
    with torch.no_grad():
        want, _ = layer(x)
        for carried in (lambda cache: pickle.loads(pickle.dumps(cache)), copy.deepcopy):
            cache = mh.KVCache()
            layer(x[:, :6], cache=cache)
            got, _ = layer(x[:, 6:], cache=carried(cache))
            torch.testing.assert_close(got, want[:, 6:], atol=1e-5, rtol=1e-5)
            assert cache.length == 6
        cross, text = mh.KVCache.cross(), torch.randn(2, 5, 24, generator=fresh)
        plain = mh.MultiHeadAttention(24, 6, batch_first=True).eval()
        want, _ = plain(x, text, cache=cross)
        torch.testing.assert_close(plain(x, text, cache=copy.deepcopy(cross))[0], want)
        torch.testing.assert_close(plain(x, cache=pickle.loads(pickle.dumps(cross)))[0], want)


def test_processor_without_films_is_pickled(reading):
    """Where torchvision is missing, a processor of pictures and text is of a class that is made for it."""
    lm = reading("qwen2.5")
    again = pickle.loads(pickle.dumps(lm.processor))
    assert type(again).__name__ == type(lm.processor).__name__
    assert again.tokenizer("a cat")["input_ids"] == lm.processor.tokenizer("a cat")["input_ids"]
