"""A loaded model says how it is loaded again: so it is pickled, in 230 bytes, and is the same in a fresh process.

What no arguments of `load` make (a model in hand, one that was changed since) is pickled whole.
"""

import copy
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import manyheads as mh
from manyheads.errors import ModelError
from tests.models.tiny import tiny_bert, tiny_llama, tiny_tokenizer
from tests.refusals import refuses

SMALL = 1_000  # bytes of a loading without a tokenizer in hand
TEXT = "the old cat sat on the table"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkpoint with its tokenizer, named by a path that means nothing elsewhere."""
    tiny_bert(seed=3, num_hidden_layers=1).save_pretrained(tmp_path / "bert")
    tiny_tokenizer().save_pretrained(tmp_path / "bert")
    monkeypatch.chdir(tmp_path)
    return "bert"


def is_small(lm):
    return len(pickle.dumps(lm)) < SMALL


FRESH = """
import pickle, sys
import manyheads as mh
for path in sys.argv[1:]:
    lm = pickle.load(open(path, "rb"))
    table = mh.measure(lm, "the old cat sat on the table", ["entropy"])
    print(lm.name, lm.weights_hash, lm.loading is None, table["entropy"].tolist())
"""


def test_model_is_the_same_in_a_fresh_process_elsewhere_by_its_loading_or_whole(folder, tmp_path):
    by_folder = mh.load(folder, dtype="float64")
    in_hand = mh.load(tiny_llama(2, seed=5), tokenizer=tiny_tokenizer(special_tokens=False), name="mine")
    with_reader = mh.load(folder, tokenizer=tiny_tokenizer(special_tokens=False))
    models = [by_folder, in_hand, with_reader]
    for number, lm in enumerate(models):
        (tmp_path / f"{number}.pickle").write_bytes(pickle.dumps(lm))
    (tmp_path / "elsewhere").mkdir()
    paths = [str(tmp_path / f"{number}.pickle") for number in range(3)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(mh.__path__[0]), *sys.path])}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # how many there are decides the last bit
    done = subprocess.run(
        [sys.executable, "-c", FRESH, *paths], cwd=tmp_path / "elsewhere", env=environment, capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for line, lm in zip(done.stdout.splitlines(), models, strict=True):
        entropy = mh.measure(lm, TEXT, ["entropy"])["entropy"].tolist()
        assert line == f"{lm.name} {lm.weights_hash} {lm is in_hand} {entropy}"
    assert [is_small(lm) for lm in models] == [True, False, False]
    assert len(pickle.dumps(with_reader)) < sum(weight.nbytes for weight in with_reader.model.parameters())


def test_loading_names_the_arguments_the_whole_path_and_the_weights(folder, tmp_path):
    lm = mh.load(folder, dtype="float64", attn_implementation="eager", tokenizer=False)
    loading = lm.loading
    assert (loading.what, loading.dtype, loading.attn_implementation) == (str(tmp_path / "bert"), "float64", "eager")
    assert loading.tokenizer is False and loading.weights == lm.weights_hash
    again = loading()
    assert again.dtype is torch.float64 and again.tokenizer is None and again.loading == loading
    assert mh.load("minilm").loading.what == "minilm"
    assert mh.load(tiny_bert(), tokenizer=False).loading is None


def test_model_that_was_used_in_every_way_is_still_as_it_was_loaded(folder):
    lm = mh.load(folder, attn_implementation="eager")
    mh.record(lm, TEXT)
    mh.measure(lm, [TEXT, "a dog"], "all")
    mh.importance(lm, [TEXT, "a dog"])
    with mh.applied(lm, mh.Plan([mh.Ablate("L0H1")])):
        lm.model(input_ids=torch.tensor([[5, 6, 7]]))
    lm.model(input_ids=torch.tensor([[5, 6, 7]]), output_attentions=True)
    lm.tokenizer(TEXT, truncation=True, max_length=4)
    assert is_small(lm)


def set_in_place(lm):
    with torch.no_grad():
        next(lm.model.parameters())[0] += 1


def take_a_step(lm):
    lm.model(input_ids=torch.tensor([[5, 6, 7]]))[0].sum().backward()
    torch.optim.SGD(lm.model.parameters(), 0.1).step()


CHANGES = {
    "set in place": set_in_place,
    "a step of training": take_a_step,
    "another dtype": lambda lm: lm.model.double(),
    "new data": lambda lm: setattr(weight := next(lm.model.parameters()), "data", weight.data.clone()),
    "a state dict": lambda lm: lm.model.load_state_dict(lm.model.state_dict()),
    "a hook": lambda lm: lm.model.embeddings.register_forward_hook(nothing),
    "another module": lambda lm: setattr(lm.model, "pooler", None),
    "attention": lambda lm: lm.model.set_attn_implementation("eager"),
    "config": lambda lm: setattr(lm.model.config, "layer_norm_eps", 0.1),
    "a new token": lambda lm: lm.tokenizer.add_tokens(["zebra"]),
    "a template": lambda lm: setattr(lm.tokenizer, "chat_template", "{{ messages }}"),
}


def nothing(*_):
    return None


@pytest.mark.parametrize("change", CHANGES)
def test_model_that_was_changed_since_is_pickled_whole_and_says_so(change, folder, caplog):
    lm = mh.load(folder)
    CHANGES[change](lm)
    assert lm.loading is None
    with caplog.at_level("WARNING", logger="manyheads"):
        again = pickle.loads(pickle.dumps(lm))
    assert "bert was changed since it was loaded, so all of it is pickled" in caplog.text
    fresh = LoadedAnew(again)
    assert fresh == LoadedAnew(lm) and again.loading is None


class LoadedAnew:
    """What is compared of two models."""

    def __init__(self, lm):
        lm.__dict__.pop("weights_hash", None)
        config = lm.model.config
        hooks = [len(part._forward_hooks) for part in lm.model.modules()]
        self.facts = [lm.weights_hash, config.layer_norm_eps, config._attn_implementation, hooks]
        self.facts += [len(lm.tokenizer), lm.tokenizer.chat_template]

    def __eq__(self, other):
        return self.facts == other.facts


def test_weights_that_are_not_those_that_were_pickled_are_refused_where_they_are_loaded(folder, tmp_path):
    lm = mh.load(folder)
    assert lm.weights_hash  # taken before: what is compared is of now
    next(lm.model.parameters()).data[0, 0] += 1  # past torch's count
    message = r"bert has other weights than the model .* pickled whole as mh\.load\(lm\.model, tokenizer="
    refuses(ModelError, message, pickle.loads, pickle.dumps(lm))
    data = pickle.dumps(mh.load(folder))
    pickle.loads(data)
    tiny_bert(seed=4, num_hidden_layers=1).save_pretrained(tmp_path / "bert")
    refuses(ModelError, message, pickle.loads, data)


def test_copy_is_the_model_as_it_is_and_no_other_model_takes_its_loading(folder):
    lm = mh.load(folder)
    shallow, deep = copy.copy(lm), copy.deepcopy(lm)
    assert shallow.model is lm.model and is_small(shallow)
    assert deep.model is not lm.model and deep.loading is None and deep.weights_hash == lm.weights_hash
    next(deep.model.parameters()).data.zero_()
    assert next(lm.model.parameters()).any()
    for other in (replace(lm, tokenizer=None), replace(lm, model=tiny_bert()), mh.load(lm.model, tokenizer=False)):
        assert other.loading is None
