"""A plan and what was computed for it: written whole or not at all, read back the same, and for its own model only."""

import errno
import hashlib
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save

import manyheads as mh
from manyheads.edits import computed as planfiles
from manyheads.edits import open_plan
from manyheads.edits.computed import Computed, Prepared
from manyheads.errors import FileAccessError, HeadError, PlanError
from manyheads.plan import Ablate, Plan, Scale
from tests import seeds
from tests.interventions.surgeries import TEXTS, assert_matters, loaded
from tests.models.eager import draw, padded
from tests.models.tiny import VOCAB_SIZE
from tests.refusals import refuses

PLAN = Plan(
    [Ablate("L1H1", kind="mean", per_position=True), Ablate("L0H2", kind="resample", text=TEXTS[1]), Scale("L1H4", 2)]
)
CORPUS = list(TEXTS)
MEANS = Plan([
    Ablate("L1H1", kind="mean", per_position=True), Ablate("L0H2", kind="resample", text=TEXTS[1]),
    Ablate("L2H3", kind="resample", seed=3),
])  # fmt: skip
INPUTS = {"input_ids": torch.tensor([[5, 6, 7]])}


@pytest.fixture(scope="module")
def lm():
    """One model and its saved plans for the page: no test changes it."""
    return loaded("llama", draw(torch.Generator().manual_seed(seeds.seed_of("planned"))))


@pytest.fixture(scope="module")
def saved_plans(lm, tmp_path_factory) -> dict[Plan, Path]:
    folders = {plan: tmp_path_factory.mktemp("saved") for plan in (PLAN, MEANS)}
    for plan, folder in folders.items():
        with mh.applied(lm, plan, corpus=CORPUS) as now:
            now.save(folder / "plan.json")
            lm.model(**INPUTS)
    return folders


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
def written(saved_plans, tmp_path) -> Path:
    return shutil.copytree(saved_plans[PLAN], tmp_path / "written") / "plan.json"


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
    refuses(HeadError, "'1' is a str; use whole numbers", open_plan, tmp_path / "mine.json")
    (tmp_path / "mine.json").write_text('{"steps": [{"step": "ablate", "heads": ["L1H1", "L0"]}]}')
    assert torch.equal(output(lm, inputs, tmp_path / "mine.json"), output(lm, inputs, Ablate("L1H1, L0")))
    with mh.applied(lm, Ablate("L1H1")) as now:
        now.save(tmp_path / "zero.json")
        output(lm, inputs)
    assert not (tmp_path / "zero.safetensors").exists()


def test_another_model_is_refused(fresh, inputs, written):
    other = loaded("llama", draw(fresh) + 1)
    words = r"were computed with a model other than LlamaForCausalLM.*: give corpus= to compute it again"
    for model in (other, other.model):
        with pytest.raises(PlanError, match=words), mh.applied(model, written):
            raise AssertionError("inside")
    output(other, inputs, written, CORPUS)


def test_one_plan_a_file_and_its_ending(lm, tmp_path):
    with mh.applied(lm, [Ablate("L1H1"), Ablate("L1H2")]) as now:
        refuses(PlanError, "2 plans do not go into one file: save them one by one", now.save, tmp_path / "plan.json")
        output(lm, {"input_ids": torch.tensor([[5, 6], [7, 8]])})
    with mh.applied(lm, Ablate("L1H1")) as now:
        refuses(PlanError, r"end 'plan\.yaml' in \.json", now.save, tmp_path / "plan.yaml")
        output(lm, {"input_ids": torch.tensor([[5, 6], [7, 8]])})


def test_tensors_that_are_missing_damaged_or_of_another_plan_are_told(lm, fresh, written, tmp_path):
    tensors = written.with_suffix(".safetensors")
    whole = tensors.read_bytes()
    tensors.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        FileAccessError, match=r"the values computed for .*plan\.json cannot be read from " ".*safetensors"
    ):
        open_plan(written)
    tensors.unlink()
    refuses(FileAccessError, r"cannot be read from", open_plan, written)
    for model, corpus, what in ((lm, CORPUS[1:], "corpus"), (loaded("llama", draw(fresh)), CORPUS, "model")):
        with mh.applied(model, PLAN, corpus=corpus) as now:
            now.save(tmp_path / "other.json")
            output(model, {"input_ids": torch.tensor([[5, 6]])})
        tensors.write_bytes((tmp_path / "other.safetensors").read_bytes())
        refuses(PlanError, rf"not computed from the {what} that .*compute it again", open_plan, written)


def test_steps_that_were_added_by_hand_and_never_computed_are_told(lm, inputs, written):
    document = json.loads(written.read_text())
    document["steps"].append({"step": "ablate", "heads": "L2H0", "kind": "mean"})
    written.write_text(json.dumps(document))
    message = r"this plan needs 'mean:L2', which was not computed: give applied\(\) a corpus="
    refuses(PlanError, message, output, lm, inputs, written)


@pytest.mark.parametrize(("text", "words"), [
    ("{", "a plan is JSON, and this is not"),
    ("[]", r'a plan is \{"steps": \[\.\.\.\]\}'),
    ('{"steps": [], "computed": 3}', "'computed' should hold file, corpus, model, texts, tokens: the file is damaged"),
    ('{"steps": [], "computed": {"file": 3}}', "'computed' should hold"),
])  # fmt: skip
def test_a_damaged_plan_is_told(text, words, tmp_path):
    (tmp_path / "plan.json").write_text(text)
    refuses(PlanError, words, open_plan, tmp_path / "plan.json")


def test_files_that_cannot_be_read_are_told(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xff\xfe\x00")
    refuses(PlanError, "is not a plan: it is not text", open_plan, tmp_path / "plan.json")
    refuses(FileAccessError, "no such file", open_plan, tmp_path / "none.json")
    for name in ("a\0b.json", ""):
        refuses(FileAccessError, "cannot read", open_plan, name)


def test_heads_in_the_place_of_a_plan_are_no_missing_file(lm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = r"^'L0H1, l1' names heads, but not what to do with them: write Plan\(\[Ablate\('L0H1, L1'\)\]\)\.$"
    refuses(PlanError, message, mh.applied(lm, "L0H1, l1").__enter__)
    many = ", ".join(["L0H1"] * 99)  # longer than a file's name can be
    refuses(PlanError, "names heads", mh.applied(lm, many).__enter__)
    refuses(FileAccessError, "^cannot read none.json: there is no such file", mh.applied(lm, "none.json").__enter__)
    (tmp_path / "L0H1").write_text(mh.Plan([mh.Scale("L1H0", 0.5)]).to_json())
    with mh.applied(lm, "L0H1") as now:  # a file of that name is a plan
        lm.model(torch.tensor([[3, 5, 2]]))
    assert now.prepared.plans == (mh.Plan([mh.Scale("L1H0", 0.5)]),)


@pytest.mark.parametrize("fails", ["tensors", "plan"])
def test_a_full_disk_leaves_the_older_plan_and_its_tensors_as_they_were(fails, lm, written, monkeypatch):
    older = {path.name: path.read_bytes() for path in written.parent.iterdir()}
    name = "write_bytes" if fails == "tensors" else "write_text"

    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with mh.applied(lm, Ablate("L1H3", kind="mean"), corpus=CORPUS[:1]) as now:
        output(lm, {"input_ids": torch.tensor([[5, 6]])})
        monkeypatch.setattr(planfiles.Path, name, full)
        refuses(FileAccessError, "the disk is full", now.save, written)
        monkeypatch.undo()
        assert {path.name: path.read_bytes() for path in written.parent.iterdir()} == older
        now.save(written)
    assert open_plan(written).plans[0] == Plan(Ablate("L1H3", kind="mean"))


def test_a_plan_saved_again_has_the_same_bytes(saved_plans, tmp_path):
    """So a process that is killed between the two files leaves the plan that it saved again whole, as it was."""
    plan = open_plan(saved_plans[PLAN] / "plan.json")
    saved = set()
    for _ in range(12):
        plan.save(tmp_path / "plan.json")
        saved.add(tuple((tmp_path / f"plan{ending}").read_bytes() for ending in (".json", ".safetensors")))
    assert len(saved) == 1


def test_what_is_wrong_with_a_plan_is_told_with_its_file_and_step(tmp_path):
    path = tmp_path / "plan.json"
    for text, kind, words in (
        ("[" * 100_000, PlanError, "nested too deep"),
        ("{", PlanError, "a plan is JSON"),
        ('{"steps": [{"step": "average", "heads": "L1"}, {"heads": "L1"}]}', PlanError,
         'step 2 of 2: "step" is missing'),
        ('{"steps": [{"step": "ablate", "heads": "Q9"}]}', HeadError, "step 1 of 1: 'Q9' names no heads"),
    ):  # fmt: skip
        path.write_text(text)
        refuses(kind, f"^{re.escape(str(path))}: .*{words}", open_plan, path)


# ---- a plan's file and its tensors' file damaged: every change is refused in words, soon, and none gets into a model


@pytest.fixture
def saved_plan(saved_plans, tmp_path) -> Path:
    return shutil.copytree(saved_plans[MEANS], tmp_path / "saved") / "plan.json"


def forget_checksum(plan: Path) -> None:
    """As plans were saved before there was one."""
    document = json.loads(plan.read_text())
    document["computed"].pop("sha256", None)
    plan.write_text(json.dumps(document))


def split(data: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(plan: Path, change) -> None:
    """The tensors' file with its header changed, by hand: its bytes stay."""
    tensors = plan.with_suffix(".safetensors")
    header, data = split(tensors.read_bytes())
    change(header)
    text = json.dumps(header).encode()
    tensors.write_bytes(len(text).to_bytes(8, "little") + text + data)


def with_tensors(plan: Path, change) -> None:
    """Other tensors in the file: `change` has them by name."""
    tensors = plan.with_suffix(".safetensors")
    found, metadata = load(tensors.read_bytes()), split(tensors.read_bytes())[0]["__metadata__"]
    change(found)
    tensors.write_bytes(save(found, metadata))


# ------------------------------------------------------------------------------------------------------- the checksum


def test_a_plan_names_its_tensors_by_their_checksum_and_any_flipped_bit_is_refused(saved_plan, fresh):
    whole = saved_plan.with_suffix(".safetensors").read_bytes()
    assert json.loads(saved_plan.read_text())["computed"]["sha256"] == hashlib.sha256(whole).hexdigest()
    tensors = saved_plan.with_suffix(".safetensors")
    whole = tensors.read_bytes()
    words = rf"{re.escape(str(tensors))} is damaged: its bytes are not those that {re.escape(str(saved_plan))} names\. "
    words += r"Compute it again, corpus=\."
    for at in torch.randint(8 + int.from_bytes(whole[:8], "little"), len(whole), (20,), generator=fresh).tolist():
        bit = int(torch.randint(8, (), generator=fresh))
        tensors.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        refuses(PlanError, words, open_plan, saved_plan)


def test_a_tensor_declared_of_another_type_and_a_checksum_that_is_another_or_none_are_refused(saved_plan):
    with_header(saved_plan, lambda header: header["mean:L1"].update(dtype="I32"))
    refuses(PlanError, "its bytes are not those that .* names", open_plan, saved_plan)
    document = json.loads(saved_plan.read_text())
    for wrong, words in (("0" * 64, "its bytes are not those"), ("", "its bytes"), (None, "'computed' should hold")):
        document["computed"]["sha256"] = wrong
        saved_plan.write_text(json.dumps(document))
        refuses(PlanError, words, open_plan, saved_plan)


# ------------------------------------------------------------------------------------ plans of before there was one


def test_a_plan_saved_without_a_checksum_opens_and_does_the_same(lm, saved_plan):
    def output():
        with torch.no_grad(), mh.applied(lm, saved_plan):
            return lm.model(**INPUTS).logits

    want = output()
    forget_checksum(saved_plan)
    assert torch.equal(output(), want)


def replaced(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name])})


def one(x, value):
    x = x.clone()
    x.view(-1)[x.numel() // 2] = value
    return x


TEXT = "texts:L2"
WRONG = {
    "whole numbers": (replaced("mean:L1", torch.Tensor.int), r"'mean:L1' is int32 of shape \[6, \d+\], and should be"),
    "half precision": (replaced("mean:L1", torch.Tensor.half), "'mean:L1' is float16 .* float32 or float64"),
    "NaN": (replaced("position:L1", lambda x: one(x, float("nan"))), "'position:L1' holds numbers that are not finite"),
    "infinity": (replaced(TEXT, lambda x: one(x, float("-inf"))), "'texts:L2' holds numbers that are not finite"),
    "an axis less": (replaced("mean:L1", torch.Tensor.flatten), r"'mean:L1' .* its axes should be \[heads, width\]"),
    "an axis more": (replaced("position:L1", lambda x: x[None]), r"should be \[positions, heads, width\]"),
    "nothing": (replaced("position:L1", lambda x: x[:0]), r"of shape \[0, 6, \d+\], and its axes should be"),
    "no lengths": (replaced(f"{TEXT}:lengths", torch.Tensor.float), "float32 of .*not one whole number for each text"),
    "few lengths": (replaced(f"{TEXT}:lengths", lambda x: x[1:]), "and not one whole number for each text"),
    "long": (replaced(f"{TEXT}:lengths", lambda x: one(x, 99)), "holds lengths that are not from 0 to"),
    "negative": (replaced(f"{TEXT}:lengths", lambda x: one(x, -1)), "holds lengths that are not from 0 to"),
    "lengths of nothing": (lambda tensors: tensors.pop(TEXT), "'texts:L2:lengths' .* for each text"),
    "a name": (lambda tensors: tensors.update({"L1": tensors["mean:L1"].clone()}), "'L1' is nothing that a step takes"),
}


@pytest.mark.parametrize("what", WRONG)
def test_tensors_that_no_step_could_use_are_refused_without_a_checksum_too(what, saved_plan):
    change, words = WRONG[what]
    forget_checksum(saved_plan)
    with_tensors(saved_plan, change)
    beside = re.escape(str(saved_plan.with_suffix(".safetensors")))
    refuses(PlanError, rf"^{beside} is damaged: .*{words}.*\. Compute it again, corpus=\.", open_plan, saved_plan)


def test_float64_is_as_good(lm, saved_plan):
    forget_checksum(saved_plan)
    with_tensors(
        saved_plan,
        lambda tensors: tensors.update({n: x.double() for n, x in tensors.items() if x.is_floating_point()}),
    )
    with torch.no_grad(), mh.applied(lm, saved_plan):
        lm.model(**INPUTS)


@pytest.mark.parametrize(
    ("name", "change", "shape"),
    [
        ("mean:L1", lambda x: x[:, :-1], r"\[6, \d+\]"),
        ("mean:L1", lambda x: x[:-1], r"\[6, \d+\]"),
        ("mean:L1", lambda x: x[:, :1], r"\[6, \d+\]"),  # would have been spread over the width
        ("position:L1", lambda x: x[:, :, :1], r"\[any, 6, \d+\]"),
        (TEXT, lambda x: x[:, :, :4], r"\[any, any, 6, \d+\]"),
        (TEXT, lambda x: x[..., :1], r"\[any, any, 6, \d+\]"),
    ],
)
def test_tensors_of_other_heads_or_another_width_are_refused_when_they_are_wanted(name, change, shape, lm, saved_plan):
    forget_checksum(saved_plan)
    with_tensors(saved_plan, replaced(name, lambda x: change(x).contiguous()))
    words = rf"plan\.safetensors is not for this model: '{name}' has the shape \[.*\], and should have {shape}"
    with torch.no_grad(), pytest.raises(PlanError, match=words), mh.applied(lm, saved_plan):
        lm.model(**INPUTS)


def test_a_text_without_a_token_is_told_when_it_is_drawn(lm, saved_plan):
    forget_checksum(saved_plan)
    with_tensors(saved_plan, replaced(f"{TEXT}:lengths", torch.zeros_like))
    with torch.no_grad(), pytest.raises(PlanError, match="of 'texts:L2' has no token"), mh.applied(lm, saved_plan):
        lm.model(**INPUTS)


def test_numbers_that_are_not_finite_are_not_saved(tmp_path):
    computed = Computed({"mean:L1": torch.full((6, 4), float("nan"))}, "c", "m", 1, 2)
    message = r"computed for this plan cannot be used: 'mean:L1' holds numbers that are not"
    refuses(PlanError, message, Prepared((Plan(Ablate("L1H1", kind="mean")),), computed).save, tmp_path / "plan.json")
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize("metadata", [None, {}])
def test_metadata_that_say_nothing_are_refused(metadata, saved_plan):
    with_header(saved_plan, lambda header: header.update(__metadata__=metadata))
    refuses(PlanError, "was not computed from the corpus that", open_plan, saved_plan)


@pytest.mark.parametrize("metadata", [[], 3, "text", True, {"corpus": 3}, {"corpus": None}])
def test_metadata_that_are_none_are_refused(metadata, saved_plan):
    with_header(saved_plan, lambda header: header.update(__metadata__=metadata))
    refuses(FileAccessError, "the values computed for .* cannot be read from", open_plan, saved_plan)


@pytest.mark.parametrize("entry", [
    {"dtype": "F4", "shape": [48], "data_offsets": [0, 24]},
    {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]},
    None,
])  # fmt: skip
def test_tensors_that_torch_cannot_have_are_refused(entry, saved_plan):
    header = {"__metadata__": split(saved_plan.with_suffix(".safetensors").read_bytes())[0]["__metadata__"]}
    text = json.dumps({**header, "mean:L1": entry}).encode()
    size = 24 if entry is not None and entry["dtype"] == "F4" else 0
    saved_plan.with_suffix(".safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    refuses(FileAccessError, "the values computed for .* cannot be read from", open_plan, saved_plan)


# ------------------------------------------------------------------------------------------------ what is no such file


def put(kind: str, path: Path) -> None:
    """Something else under a file's name."""
    path.unlink(missing_ok=True)
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "endless":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder"])
@pytest.mark.parametrize("name", ["plan.json", "plan.safetensors"])
def test_a_pipe_a_device_and_a_folder_are_refused_at_once(kind, name, tmp_path):
    about = {"file": "plan.safetensors", "corpus": "c", "model": "m", "texts": 1, "tokens": 1}
    (tmp_path / "plan.json").write_text(json.dumps({"steps": [], "computed": about}))
    put(kind, tmp_path / name)
    began = time.monotonic()
    words = "it is a folder" if kind == "folder" else "it is a device or a pipe, not a file"
    refuses(FileAccessError, rf"cannot (be )?read .*{re.escape(name)}: {words}", open_plan, tmp_path / "plan.json")
    assert time.monotonic() - began < 5


def test_more_than_a_plan_can_be_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no place on the disk; a terabyte to whoever reads it
    message = r"plan\.json is not a plan: it has more than 4,000,000 bytes, and a plan is a list"
    refuses(PlanError, message, open_plan, path)
    path.unlink()
    most = len(json.dumps({"steps": []}))
    monkeypatch.setattr(planfiles, "MOST_BYTES", most)
    path.write_text(json.dumps({"steps": []}))
    assert open_plan(path).plans[0].steps == ()
    path.write_text(json.dumps({"steps": []}) + " ")
    refuses(PlanError, "it has more than", open_plan, path)


def test_a_plan_that_would_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(planfiles, "MOST_BYTES", 100)
    for computed in (Computed(), Computed({"mean:L1": torch.zeros(6, 4)}, "c", "m", 1, 2)):
        plan = Prepared((Plan([Ablate(f"L{layer}H1", kind="mean") for layer in range(9)]),), computed)
        with pytest.raises(PlanError, match=r"takes [\d,]+ bytes of JSON, and one of more than 100 is not read again"):
            plan.save(tmp_path / "plan.json")
    assert os.listdir(tmp_path) == []
