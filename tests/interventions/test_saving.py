"""Saved checkpoints load, in a process that never heard of the one that wrote them, and compute the same.

Many folders are tried in one fresh process. Models in hand are cut by us; what they are held to is cut by hand.
"""

import errno
import hashlib
import json
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from safetensors.torch import save as save_tensors
from torch import nn

import manyheads as mh
from manyheads.errors import FileAccessError, ModelError
from manyheads.interventions import convert_to_gqa, difference, prune_heads, removed_text
from manyheads.interventions.convert import convert as converting
from manyheads.interventions.convert.convert import FAMILIES
from manyheads.interventions.save import fresh_process as trials
from manyheads.interventions.save import save as saving
from manyheads.interventions.save import whole_folder as wholefolders
from manyheads.interventions.save.fresh_process import Trial, fault_in, try_all
from manyheads.interventions.verify import outputs_of, random_inputs
from manyheads.models import LoadedModel, quietly
from manyheads.models.weights import compact_form as compact
from tests import seeds
from tests.interventions.checkpoints import (
    BERT,
    COMPACT,
    SAME,
    STOCK,
    Family,
    Reader,
    assert_same,
    by_hand,
    mha_of_type,
)
from tests.models.tiny import tiny_gpt2, tiny_llama, tiny_tokenizer
from tests.processes import assert_killed, in_child
from tests.refusals import refuses

EXTRA = {  # what a config can say of one half or with other means
    "llama with biases": Family(
        "LlamaForCausalLM", STOCK["llama"].sizes, "L*H1", "o_proj", "Qwen2ForCausalLM",
        changes={"num_key_value_heads": 6, "attention_bias": True},
    ),
}  # fmt: skip
EMPTIED = {"emptied": ("gpt2", "L0, L1H3"), "emptied, norms of q and k": ("qwen3", "L1")}
# Of each kind one: sinks, another family's name, three stacks, pictures, a layer without heads.
# The slow tests try the others.
FEW_STOCK = ("llama, five heads", "gpt_oss", "t5", "vit", "llama with biases")
FEW_COMPACT = ("bert", "gpt2", *EMPTIED)
CONVERTED = ("phi3",)  # to fewer key/value heads, of one matrix
OTHERS = {**STOCK, **EXTRA, **COMPACT}.keys() - {*FEW_STOCK, *FEW_COMPACT}


def some_and_slow(few, names):
    """The parameters of a test: a few names, and the others as slow."""
    return [*few, *(pytest.param(name, marks=pytest.mark.slow) for name in names if name not in few)]


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """name -> what the one fresh process found of the family's checkpoint: the class it came back as, error, tokens."""
    return saved_and_tried((*FEW_STOCK, *FEW_COMPACT), tmp_path_factory)


@pytest.fixture(scope="module")
def tried_too(tmp_path_factory, tried):
    """The same of all families."""
    others = saved_and_tried([name for name in {**STOCK, **COMPACT} if name in OTHERS], tmp_path_factory)
    return SimpleNamespace(**{key: {**vars(tried)[key], **value} for key, value in vars(others).items()})


@pytest.fixture
def found(request):
    """What was found, of all families only where `name` is not among the few."""
    return request.getfixturevalue("tried_too" if request.getfixturevalue("name") in OTHERS else "tried")


def saved_and_tried(names, tmp_path_factory):
    fresh = torch.Generator().manual_seed(seeds.seed_of("saved"))
    jobs: dict[str, Trial] = {}
    mine: dict[str, Trial] = {}
    forms = {}
    with quietly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "NEW_TOKENS", 14)
        known = {**STOCK, **EXTRA, **COMPACT, **{name: (COMPACT | STOCK)[kind] for name, (kind, _) in EMPTIED.items()}}
        for name, family in ((name, known[name]) for name in names):
            model = family.make(fresh)
            if name in EXTRA:
                with torch.no_grad():
                    for layer in model.model.layers:
                        layer.self_attn.o_proj.bias.zero_()
            lm = mh.load(model, tokenizer=False)
            what = EMPTIED[name][1] if name in EMPTIED else family.remove
            small = prune_heads(lm, what, empty_layers=name in EMPTIED)
            oracle = by_hand(model, family.output, lm.spec.sites, small.removed)
            folder = tmp_path_factory.mktemp("saved")
            draft = next(saving.drafts(small, folder, None, []))
            forms[name] = draft
            if draft.form == "stock":
                jobs[name] = Trial(folder, oracle)
            else:
                jobs[f"{name}, zeroed"] = Trial(folder / "zeroed", oracle)
                mine[name] = Trial(folder, oracle, "manyheads")
        if "gpt2" in names:
            wrong = damaged(jobs["gpt2, zeroed"], mine["gpt2"], tmp_path_factory)
            jobs["a weight is wrong"], mine["no weights"] = wrong
        if "bert" in names:
            converted = converted_trials(CONVERTED, fresh, tmp_path_factory)
            forms |= {name: saved for name, (saved, _) in converted.items()}
            jobs |= {name: trial for name, (_, trial) in converted.items()}
        jobs |= mine  # manyheads is imported there only after all that need none of it
        found = dict(zip(jobs, try_all(list(jobs.values())), strict=True))
    return SimpleNamespace(found=found, forms=forms, folders={name: job.folder for name, job in jobs.items()})


def converted_trials(names, fresh, folders):
    """ "<model type>, converted" -> how it was saved with fewer key/value heads, and the trial of that folder."""
    trials = {}
    with quietly(), pytest.MonkeyPatch.context() as patch:
        fine = {"error": 0.0, "tokens": None, "wanted": None, "auto": True}
        patch.setattr(converting, "try_all", lambda trials: [fine for _ in trials])
        for name in names:
            small = convert_to_gqa(mh.load(mha_of_type(name, fresh), tokenizer=False), 2)
            saved = small.save(folders.mktemp("converted"))
            trials[f"{name}, converted"] = saved, Trial(saved.folder, small.model)
    return trials


def damaged(zeroed, compact, tmp_path_factory):
    """The same two once more, one with a weight changed a little, one without weights."""
    places = [shutil.copytree(job.folder, tmp_path_factory.mktemp("wrong") / "copy") for job in (zeroed, compact)]
    weights = load_file(places[0] / "model.safetensors")
    name = next(name for name in weights if name.endswith("mlp.c_fc.weight"))
    weights[name][0, 0] += 0.1
    save_file(weights, places[0] / "model.safetensors", {"format": "pt"})
    (places[1] / "pruned.safetensors").unlink()
    return Trial(places[0], zeroed.model), Trial(places[1], compact.model, "manyheads")


# ---------------------------------------------------------------------------------------------------------- they load


@pytest.mark.slow
@pytest.mark.parametrize("name", some_and_slow(FEW_STOCK, [*STOCK, *EXTRA]))
def test_uniform_results_load_with_stock_transformers_and_equal_surgery_by_hand(name, found):
    family, result = {**STOCK, **EXTRA}[name], found.found[name]
    assert found.forms[name].form == "stock"
    assert fault_in(result) == "" and result["error"] <= SAME
    assert result["class"] == (family.comes_back or family.cls)
    if result["tokens"] is not None:
        assert len(set(result["tokens"][-12:])) >= 10 and result["tokens"] == result["wanted"]


def test_a_llama_written_as_another_family_has_no_window_and_says_why(tried):
    for name in ("llama, five heads", "llama with biases"):
        config = json.loads((tried.folders[name] / "config.json").read_text())
        assert (config["sliding_window"], config["num_attention_heads"], config["head_dim"]) == (None, 5, 8)
        assert "Llama's config wants the number of heads to divide the model's width" in tried.forms[name].because


@pytest.mark.slow
def test_at_least_twelve_families_were_asked_to_generate(tried_too):
    assert sum(tried_too.found[name]["tokens"] is not None for name in STOCK) >= 12


def test_of_the_few_every_language_model_was_asked_to_generate(tried):
    assert [name for name in FEW_STOCK if tried.found[name]["tokens"] is None] == ["vit"]


@pytest.mark.parametrize("name", some_and_slow(FEW_COMPACT, [*COMPACT, *EMPTIED]))
def test_other_results_load_with_us_and_zeroed_with_stock_transformers(name, found):
    assert found.forms[name].form == "compact" and found.forms[name].because.startswith("transformers has no config")
    for form in (name, f"{name}, zeroed"):
        assert fault_in(found.found[form]) == "" and found.found[form]["error"] <= SAME


@pytest.mark.parametrize("name", some_and_slow(FEW_COMPACT, [*COMPACT, *EMPTIED]))
def test_stock_transformers_never_loads_a_compact_folder(name, found):
    folder = found.folders[name]
    cls = getattr(transformers, found.forms[name].loads_as)
    for loader in (cls, transformers.AutoModel):
        refuses(OSError, "no file named model.safetensors", loader.from_pretrained, folder)
    shutil.copy(folder / "pruned.safetensors", folder / "model.safetensors")  # not even under their name
    with quietly(), pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        cls.from_pretrained(folder)
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_nothing_is_pickled_and_the_compact_tensors_are_the_small_ones(few, request):
    tried = request.getfixturevalue("tried" if few else "tried_too")
    assert len(tried.folders) > (10 if few else 30)
    for name, folder in tried.folders.items():
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert not [path for path in files if path.suffix in (".bin", ".pt", ".pth", ".pkl", ".ckpt")], name
    sizes = {
        form: sum(weight.numel() for weight in load_file(tried.folders[name] / file).values())
        for form, name, file in (
            ("small", "bert", "pruned.safetensors"),
            ("whole", "bert, zeroed", "model.safetensors"),
        )
    }
    assert sizes["whole"] - sizes["small"] == 4 * (4 * 40 * 8 + 3 * 8)  # 4 heads of 8: q, k, v with biases, and output


def test_the_other_process_sees_a_weight_that_is_a_little_wrong_and_a_folder_without_weights(tried):
    assert fault_in(tried.found["a weight is wrong"]).startswith("its outputs differ by")
    assert "has no weights: model.safetensors" in fault_in(tried.found["no weights"])


def assert_converted(saved, result):
    assert fault_in(result) == "" and result["error"] <= SAME
    assert result["class"] == saved.loads_as and saved.form == "stock"
    assert json.loads((saved.folder / "config.json").read_text())["num_key_value_heads"] == 2


@pytest.mark.parametrize("name", CONVERTED)
def test_a_model_with_fewer_key_heads_is_equal_in_a_fresh_process_of_stock_transformers(name, tried):
    assert_converted(tried.forms[f"{name}, converted"], tried.found[f"{name}, converted"])


@pytest.mark.slow
def test_every_family_that_errors_name_is_converted_saved_and_equal_in_a_fresh_process(fresh, tmp_path_factory):
    converted = converted_trials(FAMILIES, fresh, tmp_path_factory)
    assert len(converted) == len(FAMILIES) and set(FAMILIES) > set(CONVERTED)
    results = try_all([trial for _, trial in converted.values()])
    for (saved, _), result in zip(converted.values(), results, strict=True):
        assert_converted(saved, result)


# ---------------------------------------------------------------------------------------------------- damaged folders


def changed(**changes):
    return lambda mark: {**mark, **changes}


def first_kept(**changes):
    def change(mark):
        (first, *others) = mark["kept"]
        return {**mark, "kept": [{**first, **changes}, *others]}

    return change


DAMAGE = {
    "no format": (changed(format=None), "is not a pruned model's"),
    "newer": (changed(version=99), "is of version 99, and this manyheads reads up to 1. Upgrade"),
    **{
        f"version {wrong!r}": (changed(version=wrong), f"says version {said}, and should say 1: the file is damaged")
        for wrong, said in ((0, 0), (-1, -1), (True, True), (1.0, "1.0"), (1.5, "1.5"), (None, None), ([1], "a list"))
    },
    "nothing kept": (changed(kept=None), "does not say which heads are left"),
    "a head too many": (first_kept(heads=[0, 9]), "should be different heads of 0 to 3"),
    "a head twice": (first_kept(heads=[0, 0]), "should be different heads of 0 to 3"),
    "no number": (first_kept(heads=["0"]), "should be different heads of 0 to 3"),
    "no site": (first_kept(site={}), "lacks"),
    "uneven": (first_kept(kv_heads=[0, 1]), "num_heads=3 is not a multiple of num_kv_heads=2"),
    "other heads": (first_kept(heads=[0], kv_heads=[0]), "weights are not those that its config.json and"),
    "no such alias": (changed(aliases={"a": "b"}), "names, as 'aliases', tensors that pruned.safetensors"),
    "no aliases at all": (changed(aliases=["a"]), "names, as 'aliases', tensors that pruned.safetensors"),
    "another form": (changed(form="stock"), "says that the form is 'stock', and pruned.safetensors beside it"),
}  # fmt: skip


@pytest.fixture(scope="module")
def compact_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compact")
    lm = mh.load(tiny_gpt2(seed=7), tokenizer=False)
    with quietly():
        saving.draft_compact(prune_heads(lm, "L0H1, L1H0, L1H2"), folder, None, "for this test")
    return folder


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_mark_is_refused_with_what_is_wrong(what, compact_folder, tmp_path):
    change, said = DAMAGE[what]
    folder = shutil.copytree(compact_folder, tmp_path / "copy")
    mark = folder / "manyheads.json"
    mark.write_text(json.dumps(change(json.loads(mark.read_text()))))
    refuses(ModelError, said, mh.load, folder, tokenizer=False)


def test_any_flipped_bit_of_the_weights_is_refused_and_older_folders_without_a_checksum_load(
    compact_folder, fresh, tmp_path
):
    folder = shutil.copytree(compact_folder, tmp_path / "copy")
    weights, mark = folder / "pruned.safetensors", folder / "manyheads.json"
    whole, said = weights.read_bytes(), json.loads(mark.read_text())
    assert said["weights_sha256"] == hashlib.sha256(whole).hexdigest()
    data = 8 + int.from_bytes(whole[:8], "little")
    for at in torch.randint(data, len(whole), (3,), generator=fresh).tolist():
        weights.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ModelError, match=r"pruned\.safetensors is damaged, .* not those that manyheads\.json"):
            mh.load(folder, tokenizer=False)
    weights.write_bytes(whole)
    for wrong in ("", None, said["weights_sha256"].upper()):
        mark.write_text(json.dumps({**said, "weights_sha256": wrong}))
        refuses(ModelError, "their checksum differs", mh.load, folder, tokenizer=False)
    mark.write_text(json.dumps({name: value for name, value in said.items() if name != "weights_sha256"}))
    older = mh.load(folder, tokenizer=False)
    assert older.weights_hash == mh.load(compact_folder, tokenizer=False).weights_hash


def test_a_folder_that_is_saved_anew_while_it_is_read_is_read_once_more(compact_folder, tmp_path, monkeypatch):
    folder = shutil.copytree(compact_folder, tmp_path / "copy")
    with quietly():
        other = prune_heads(mh.load(tiny_gpt2(seed=8), tokenizer=False), "L0H2")
        saving.draft_compact(other, tmp_path / "other", None, "for this test")
    read = compact.read_mark

    def overtaken(place):
        mark = read(place)
        monkeypatch.setattr(compact, "read_mark", read)
        shutil.copytree(tmp_path / "other", folder, dirs_exist_ok=True)
        return mark

    monkeypatch.setattr(compact, "read_mark", overtaken)
    assert mh.load(folder, tokenizer=False).weights_hash == other.weights_hash


def test_damaged_files_and_another_models_weights_are_refused(compact_folder, tmp_path):
    folder = shutil.copytree(compact_folder, tmp_path / "copy")
    (folder / "manyheads.json").write_text("{")
    refuses(ModelError, "manyheads.json cannot be read .* the file is damaged", mh.load, folder, tokenizer=False)
    shutil.copy(compact_folder / "manyheads.json", folder)
    (folder / "pruned.safetensors").write_bytes(b"no tensors")
    refuses(ModelError, "the weights in .*copy are damaged", mh.load, folder, tokenizer=False)
    (folder / "pruned.safetensors").write_bytes(save_tensors({"a": torch.zeros(3)}))
    message = r"pruned\.safetensors is damaged, or belongs to another model: its bytes are not those"
    refuses(ModelError, message, mh.load, folder, tokenizer=False)
    shutil.copy(compact_folder / "pruned.safetensors", folder)
    transformers.BertConfig(**BERT, architectures=["BertModel"]).save_pretrained(folder)
    refuses(ModelError, "does not fit the BertModel of its config.json", mh.load, folder, tokenizer=False)


# ---- a pruned model's folder: its card and tokenizer too, written whole or not at all, never over anything else

# ------------------------------------------------------------------------------------------- the whole way, for once


@pytest.fixture
def small(fresh):
    lm = mh.load(tiny_gpt2(seed=7), tokenizer=tiny_tokenizer(special_tokens=False))
    return prune_heads(lm, "L0H1, L1H0, L1H2")


@pytest.fixture
def trusting(monkeypatch):
    """No other process: every checkpoint passes. `trusting.results` is what is found, while it lasts."""
    state = SimpleNamespace(results=[])
    fine = {"error": 0.0, "tokens": None, "wanted": None, "auto": True}
    monkeypatch.setattr(saving, "try_all", lambda jobs: [state.results.pop(0) if state.results else fine for _ in jobs])
    return state


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def test_a_pruned_model_is_saved_and_loaded_with_its_tokenizer_and_its_card(small, tmp_path, trusting):
    saved = small.save(tmp_path / "out", evidence="ablation of each head\non 200 texts")
    assert (saved.form, saved.folder, saved.loads_as) == ("compact", tmp_path / "out", "GPT2LMHeadModel")
    assert saved.zeroed == tmp_path / "out" / "zeroed" and saved.error <= SAME
    assert os.listdir(tmp_path) == ["out"]
    for folder in (saved.folder, saved.zeroed):
        assert {"config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= {
            *os.listdir(folder)
        }
    back, inputs = mh.load(saved.folder), random_inputs(small.model)
    assert difference(outputs_of(back.model, inputs), outputs_of(small.model, inputs)) == 0
    assert back.spec.sites == small.spec.sites and "3 heads removed, in manyheads' compact form" in back.because
    assert back.tokenizer("the cat").input_ids == small.tokenizer("the cat").input_ids
    assert back.model.lm_head.weight is back.model.transformer.wte.weight  # tied, as they were
    again = prune_heads(back, "L2H0")
    assert [str(head) for head in again.removed] == ["L0H1", "L1H0", "L1H2", "L2H0"]
    assert removed_text(again) == "L0H1, L1H0, L1H2, L2H0"
    half = mh.load(saved.folder, dtype="bfloat16")
    assert half.dtype == torch.bfloat16 and half.model.training is False
    card = (saved.folder / "README.md").read_text()
    before, after = small.before.num_parameters, small.spec.num_parameters
    for said in (
        "**Removed:** L0H1, L1H0, L1H2", small.weights_hash_before, "a GPT2LMHeadModel with 12 heads",
        "ablation of each head on 200 texts.", f"| parameters | {before:,} | {after:,} | -",
        "| cache, bytes a token | 864 | 648 | -25.0 % |", "mh.load(", "from_pretrained(",
    ):  # fmt: skip
        assert said in card, said


@pytest.mark.parametrize("only", ["compact", "zeroed"])
def test_one_form_alone_holds_the_same_model_and_others_are_refused(only, small, tmp_path, trusting):
    saved = small.save(tmp_path / "out", only=only)
    assert (saved.form, saved.zeroed) == (only, None if only == "compact" else tmp_path / "out")
    assert "zeroed" not in os.listdir(tmp_path / "out")
    inputs = random_inputs(small.model)
    back = (
        mh.load(saved.folder) if only == "compact" else transformers.AutoModelForCausalLM.from_pretrained(saved.folder)
    )
    model = back.model if only == "compact" else back.eval()
    assert difference(outputs_of(model, inputs), outputs_of(small.model, inputs)) <= SAME
    assert small.save(tmp_path / "out").form == "compact"  # replaces it
    refuses(ModelError, "only='both' is not a form; None writes both: use one of compact, zeroed", small.save,
            tmp_path / "other", only="both")  # fmt: skip
    assert os.listdir(tmp_path) == ["out"]


def test_without_evidence_the_card_says_so_and_a_stock_folder_is_plain(fresh, tmp_path, trusting):
    lm = mh.load(STOCK["llama"].make(fresh), tokenizer=False)
    small = prune_heads(lm, STOCK["llama"].remove)
    saved = small.save(tmp_path / "out")
    assert (saved.form, saved.zeroed) == ("stock", None) and "its own family" in saved.because
    assert "**Evidence for removing them:** none was given." in (saved.folder / "README.md").read_text()
    assert mh.load(saved.folder, tokenizer=False).spec.sites == small.spec.sites
    assert json.loads((saved.folder / "manyheads.json").read_text())["form"] == "stock"


@pytest.mark.parametrize(("free", "tried_on"), [(1, "cpu, since a try on cuda:0 takes 0.0 GB and "), (9**9, "cuda:0")])
def test_a_folder_is_tried_on_the_cpu_where_the_models_device_has_no_room_for_it(
    free, tried_on, fresh, tmp_path, trusting, monkeypatch
):
    small = prune_heads(mh.load(STOCK["llama"].make(fresh), tokenizer=False), STOCK["llama"].remove)
    cuda, model = torch.device("cuda", 0), small.model
    place = property(lambda lm: cuda if lm.model is model else torch.device("cpu"))
    monkeypatch.setattr(LoadedModel, "device", place)
    monkeypatch.setattr(trials, "free_bytes", {cuda: free}.get)
    monkeypatch.setattr(nn.Module, "to", lambda module, device: module)  # there is no such device
    lm, words = trials.where_to_try(small)
    assert words.startswith(tried_on) and (lm is small) == (tried_on == "cuda:0")
    if lm is not small:
        assert lm.removed == small.removed and lm.device.type == "cpu"
        assert not {id(x) for x in lm.model.parameters()} & {id(x) for x in small.model.parameters()}
        assert_same(lm.model, small.model)
    assert small.save(tmp_path / "out").tried_on == words


def test_a_stock_form_that_does_not_pass_its_trial_gives_way_and_is_said(fresh, tmp_path, trusting):
    small = prune_heads(mh.load(STOCK["qwen2"].make(fresh), tokenizer=False), "L*H2-3")
    trusting.results = [{"error": 0.3}]
    saved = small.save(tmp_path / "out")
    assert saved.form == "compact" and not (saved.folder / "model.safetensors").exists()
    assert "saved as Qwen2ForCausalLM, its outputs differ by 3.0e-01 of the largest" in saved.because


@pytest.mark.parametrize(("result", "said"), [
    ({"fault": "OSError: no such thing"}, "it does not load: OSError: no such thing"),
    ({"error": float("nan")}, "its outputs differ by nan"),
    ({"error": 0.0, "tokens": [1, 2], "wanted": [1, 3]}, r"it generates \[1, 2\], not \[1, 3\]"),
    ({"error": 0.0, "tokens": None, "wanted": None, "auto": False}, "no Auto class of transformers leads to it"),
])  # fmt: skip
def test_a_compact_form_that_does_not_pass_is_not_left_behind(result, said, small, tmp_path, trusting):
    trusting.results = [{"error": 0.0, "tokens": None, "wanted": None, "auto": True}, result]
    refuses(ModelError, f"was not saved: {said}", small.save, tmp_path / "out")
    assert os.listdir(tmp_path) == []


def test_a_process_that_dies_is_told(small, tmp_path, monkeypatch):
    program = tmp_path / "dies.py"
    program.write_text("import sys; sys.exit('killed, for want of memory')")
    monkeypatch.setattr(trials, "PROGRAM", program)
    with pytest.raises(ModelError, match="ended with code 1 and said: killed, for want of memory. Nothing was saved"):
        small.save(tmp_path / "out")
    assert os.listdir(tmp_path) == ["dies.py"]


# ------------------------------------------------------------------------------------------ written whole or not at all

FAILURES = {
    "a full disk": OSError(errno.ENOSPC, "No space left on device"),
    "a full disk, as safetensors says it": RuntimeError("I/O error: No space left on device (os error 28)"),
    "Ctrl-C": KeyboardInterrupt(),
}  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("where", ["compact", "readers", "trial", "move"])
@pytest.mark.parametrize("failure", FAILURES)
def test_whatever_happens_on_the_way_leaves_the_older_checkpoint_whole(
    failure, where, small, tmp_path, trusting, monkeypatch
):
    small.save(tmp_path / "out")
    before, error = contents(tmp_path), FAILURES[failure]

    def fail(*_, **__):
        raise error

    place = {"compact": (saving, "write_compact"), "readers": (small.tokenizer, "save_pretrained")}
    place |= {"trial": (saving, "try_all"), "move": (wholefolders, "_put")}
    with monkeypatch.context() as patch:
        patch.setattr(*place[where], fail)
        if isinstance(error, KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                small.save(tmp_path / "out")
        else:
            with pytest.raises(FileAccessError, match="cannot write .*out: the disk is full. Free some space"):
                small.save(tmp_path / "out")
    assert contents(tmp_path) == before


def test_a_kill_leaves_the_older_checkpoint_whole(small, tmp_path, trusting):
    small.save(tmp_path / "out")
    before = contents(tmp_path / "out")

    def save():
        saving.try_all = lambda jobs: os.kill(os.getpid(), signal.SIGKILL)
        small.save(tmp_path / "out")

    assert_killed(in_child(save))
    assert contents(tmp_path / "out") == before and len(os.listdir(tmp_path)) == 2  # and what it was about to be


def test_an_older_checkpoint_is_replaced_whole_in_one_step_or_in_two(small, tmp_path, trusting, monkeypatch):
    for exchanged in (wholefolders._exchanged, lambda one, other: False):
        monkeypatch.setattr(wholefolders, "_exchanged", exchanged)
        (tmp_path / "out").mkdir()
        for name in ("config.json", "manyheads.json", "vocab.txt", "model-00001-of-00002.safetensors"):
            (tmp_path / "out" / name).write_text("of the older one")
        small.save(tmp_path / "out")
        assert "vocab.txt" not in os.listdir(tmp_path / "out") and os.listdir(tmp_path) == ["out"]
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("entry", [".git/config", "notes.doc", "my_notes.txt", "zeroed/notes.txt", "results.json"])
def test_a_folder_with_anything_but_an_older_save_is_never_replaced(entry, small, tmp_path, trusting):
    path = tmp_path / "out" / entry
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    for name in ("config.json", "manyheads.json"):
        (tmp_path / "out" / name).write_text("{}")
    with pytest.raises(FileAccessError, match="not of an earlier save by manyheads. Only such a save"):
        small.save(tmp_path / "out")
    assert path.read_text() == "mine"


def test_somebody_elses_checkpoint_and_the_models_own_are_never_replaced(small, tmp_path, trusting):
    tiny_llama().save_pretrained(tmp_path / "theirs")
    lm = mh.load(tmp_path / "theirs", tokenizer=False)
    for pruned in (small, mh.prune_heads(lm, "L*H0-1")):
        refuses(FileAccessError, "not of an earlier save by manyheads", pruned.save, tmp_path / "theirs")
    mh.prune_heads(lm, "L*H0-1").save(tmp_path / "mine")
    again = mh.prune_heads(mh.load(tmp_path / "mine", tokenizer=False), "L*H0-1")
    refuses(FileAccessError, "the model was loaded from there", again.save, tmp_path / "mine")
    assert mh.load(tmp_path / "theirs", tokenizer=False).spec.layers == lm.spec.layers


def test_what_transformers_did_not_make_whole_is_not_saved_nor_where_it_cannot_be(small, tmp_path):
    (tmp_path / "file").write_text("")
    refuses(FileAccessError, "it is a file. Name a folder", small.save, tmp_path / "file")
    refuses(FileAccessError, "its folder does not exist", small.save, tmp_path / "no" / "out")
    other, out = prune_heads(mh.load(Reader().eval(), tokenizer=False), "L0H1"), tmp_path / "out"
    refuses(ModelError, "is a Reader, not a transformers model, so there is no checkpoint", other.save, out)
    refuses(ModelError, "Reader is not a transformers model, so it cannot be built again", other.zeroed)

    class Strange(type(small.model)):
        pass

    small.model.__class__ = Strange
    refuses(ModelError, "is a Strange of .*, which transformers does not have", small.save, out)
