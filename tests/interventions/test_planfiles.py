"""A plan and what was computed for it: written whole or not at all, read back the same, and for its own model only."""

import errno
import json
import re
from pathlib import Path

import pytest
import torch

import manyheads as mh
from manyheads.errors import FileAccessError, HeadError, PlanError
from manyheads.interventions import open_plan
from manyheads.interventions.apply import computed as planfiles
from manyheads.plan import Ablate, Plan, Scale
from tests.interventions.surgeries import TEXTS, assert_matters, loaded
from tests.models.eager import draw, padded
from tests.models.tiny import VOCAB_SIZE

PLAN = Plan(
    [Ablate("L1H1", kind="mean", per_position=True), Ablate("L0H2", kind="resample", text=TEXTS[1]), Scale("L1H4", 2)]
)
CORPUS = list(TEXTS)


@pytest.fixture
def lm(fresh):
    return loaded("llama", draw(fresh))


@pytest.fixture
def inputs(fresh):
    return padded(fresh, (11, 7, 17), VOCAB_SIZE)


def output(lm, inputs, plan=None, corpus=None):
    with torch.no_grad():
        if plan is None:
            return lm.model(**inputs).logits
        with mh.applied(lm, plan, corpus=corpus):
            return lm.model(**inputs).logits


@pytest.fixture
def written(lm, tmp_path) -> Path:
    with mh.applied(lm, PLAN, corpus=CORPUS) as now:
        now.save(tmp_path / "plan.json")
        lm.model(input_ids=torch.tensor([[5, 6, 7]]))
    return tmp_path / "plan.json"


def test_a_saved_plan_does_the_same_with_no_corpus_at_hand(lm, inputs, written):
    want = output(lm, inputs, PLAN, CORPUS)
    assert torch.equal(output(lm, inputs, written), want)
    assert torch.equal(output(lm, inputs, str(written)), want)
    assert torch.equal(output(lm, inputs, open_plan(written)), want)
    assert_matters(want, output(lm, inputs))
    other = output(lm, inputs, written, CORPUS[:2])
    assert torch.equal(other, output(lm, inputs, PLAN, CORPUS[:2])), "a corpus at hand goes before what is stored"
    assert_matters(other, want)


def test_the_file_is_for_people_too(lm, written):
    document = json.loads(written.read_text())
    assert Plan.from_dict(document) == PLAN == open_plan(written).plans[0]
    assert document["computed"]["texts"] == len(CORPUS) and document["computed"]["model"] == lm.weights_hash
    assert document["computed"]["tokens"] == sum(len(text.split()) for text in CORPUS)
    assert sorted(path.name for path in written.parent.iterdir()) == ["plan.json", "plan.safetensors"]


def test_a_plan_that_a_person_wrote_is_opened_and_needs_no_tensors(lm, inputs, tmp_path):
    (tmp_path / "mine.json").write_text('{"steps": [{"step": "ablate", "heads": {"1": [1]}}]}')
    with pytest.raises(HeadError, match="'1' is a str; use whole numbers"):
        open_plan(tmp_path / "mine.json")
    (tmp_path / "mine.json").write_text('{"steps": [{"step": "ablate", "heads": ["L1H1", "L0"]}]}')
    assert torch.equal(output(lm, inputs, tmp_path / "mine.json"), output(lm, inputs, Ablate("L1H1, L0")))
    with mh.applied(lm, Ablate("L1H1")) as now:
        now.save(tmp_path / "zero.json")
        output(lm, inputs)
    assert not (tmp_path / "zero.safetensors").exists()


def test_another_model_is_refused(fresh, inputs, written):
    other = loaded("llama", draw(fresh) + 1)
    words = r"was computed with another model than LlamaForCausalLM.*: give corpus= to compute it anew"
    for model in (other, other.model):
        with pytest.raises(PlanError, match=words), mh.applied(model, written):
            raise AssertionError("inside")
    output(other, inputs, written, CORPUS)


def test_one_plan_a_file_and_its_ending(lm, tmp_path):
    with mh.applied(lm, [Ablate("L1H1"), Ablate("L1H2")]) as now:
        with pytest.raises(PlanError, match="2 plans do not go into one file: save them one by one"):
            now.save(tmp_path / "plan.json")
        output(lm, {"input_ids": torch.tensor([[5, 6], [7, 8]])})
    with mh.applied(lm, Ablate("L1H1")) as now:
        with pytest.raises(PlanError, match=r"end 'plan\.yaml' in \.json"):
            now.save(tmp_path / "plan.yaml")
        output(lm, {"input_ids": torch.tensor([[5, 6], [7, 8]])})


def test_tensors_that_are_missing_damaged_or_of_another_plan_are_told(lm, fresh, written, tmp_path):
    tensors = written.with_suffix(".safetensors")
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileAccessError, match=r"what was computed for .*plan\.json cannot be read from .*safetensors"):
        open_plan(written)
    tensors.unlink()
    with pytest.raises(FileAccessError, match=r"cannot be read from"):
        open_plan(written)
    for model, corpus, what in ((lm, CORPUS[1:], "corpus"), (loaded("llama", draw(fresh)), CORPUS, "model")):
        with mh.applied(model, PLAN, corpus=corpus) as now:
            now.save(tmp_path / "other.json")
            output(model, {"input_ids": torch.tensor([[5, 6]])})
        tensors.write_bytes((tmp_path / "other.safetensors").read_bytes())
        with pytest.raises(PlanError, match=rf"computed from another {what} than .*compute it anew"):
            open_plan(written)


def test_steps_that_were_added_by_hand_and_never_computed_are_told(lm, inputs, written):
    document = json.loads(written.read_text())
    document["steps"].append({"step": "ablate", "heads": "L2H0", "kind": "mean"})
    written.write_text(json.dumps(document))
    with pytest.raises(
        PlanError, match=r"this plan needs 'mean:L2', which was not computed: give applied\(\) a corpus="
    ):
        output(lm, inputs, written)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "a plan is JSON, and this is not"),
        ("[]", r'a plan is \{"steps": \[\.\.\.\]\}'),
        (
            '{"steps": [], "computed": 3}',
            "'computed' should hold file, corpus, model, texts, tokens: the file is damaged",
        ),
        ('{"steps": [], "computed": {"file": 3}}', "'computed' should hold"),
    ],
)
def test_a_damaged_plan_is_told(text, words, tmp_path):
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanError, match=words):
        open_plan(tmp_path / "plan.json")


def test_files_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PlanError, match="is no plan: it is not text"):
        open_plan(tmp_path / "plan.json")
    with pytest.raises(FileAccessError, match="no such file"):
        open_plan(tmp_path / "none.json")
    for name in ("a\0b.json", ""):
        with pytest.raises(FileAccessError, match="cannot read"):
            open_plan(name)


@pytest.mark.parametrize("fails", ["tensors", "plan"])
def test_a_full_disk_leaves_the_older_plan_and_its_tensors_as_they_were(fails, lm, written, monkeypatch):
    older = {path.name: path.read_bytes() for path in written.parent.iterdir()}
    name = "write_bytes" if fails == "tensors" else "write_text"

    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with mh.applied(lm, Ablate("L1H3", kind="mean"), corpus=CORPUS[:1]) as now:
        output(lm, {"input_ids": torch.tensor([[5, 6]])})
        monkeypatch.setattr(planfiles.Path, name, full)
        with pytest.raises(FileAccessError, match="the disk is full"):
            now.save(written)
        monkeypatch.undo()
        assert {path.name: path.read_bytes() for path in written.parent.iterdir()} == older
        now.save(written)
    assert open_plan(written).plans[0] == Plan(Ablate("L1H3", kind="mean"))


def test_what_is_wrong_with_a_plan_is_told_with_its_file_and_step(tmp_path):
    path = tmp_path / "plan.json"
    for text, kind, words in (
        ("[" * 100_000, PlanError, "nested too deep"),
        ("{", PlanError, "a plan is JSON"),
        (
            '{"steps": [{"step": "average", "heads": "L1"}, {"heads": "L1"}]}',
            PlanError,
            'step 2 of 2: "step" is missing',
        ),
        ('{"steps": [{"step": "ablate", "heads": "Q9"}]}', HeadError, "step 1 of 1: 'Q9' names no heads"),
    ):
        path.write_text(text)
        with pytest.raises(kind, match=f"^{re.escape(str(path))}: .*{words}"):
            open_plan(path)
