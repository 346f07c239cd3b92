"""Saved checkpoints load, in a process that never heard of the one that wrote them, and compute the same.

Many folders are tried in one fresh process. Models in hand are cut by us; what they are held to is cut by hand.
"""

import hashlib
import json
import os
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from safetensors.torch import save as save_tensors

import manyheads as mh
from manyheads.errors import ModelError
from manyheads.interventions import prune_heads
from manyheads.interventions.save import fresh_process as trials
from manyheads.interventions.save import save as saving
from manyheads.interventions.save.fresh_process import Trial, fault_in, try_all
from manyheads.models import quietly
from manyheads.models.weights import compact_form as compact
from tests.interventions.checkpoints import BERT, COMPACT, SAME, STOCK, Family, by_hand
from tests.models.tiny import tiny_gpt2

EXTRA = {  # what a config can say of one half or with other means
    "llama with biases": Family(
        "LlamaForCausalLM", STOCK["llama"].sizes, "L*H1", "o_proj", "Qwen2ForCausalLM",
        changes={"num_key_value_heads": 6, "attention_bias": True},
    ),
}  # fmt: skip
EMPTIED = ("gpt2", "L0, L1H3")
# Of each kind one: one matrix for q, k, v, sinks, another family's name, three stacks, pictures, a layer without heads.
# The slow tests try the others.
FEW_STOCK = ("llama", "llama, five heads", "phi3", "gpt_oss", "t5", "vit", "llama with biases")
FEW_COMPACT = ("bert", "gpt2", "opt", "llama, uneven", "emptied")
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
    seed = int(os.environ.get("MANYHEADS_SEED") or torch.randint(2**31, ()))
    print(f"MANYHEADS_SEED={seed}")
    fresh = torch.Generator().manual_seed(seed)
    jobs: dict[str, Trial] = {}
    mine: dict[str, Trial] = {}
    forms = {}
    with quietly(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "NEW_TOKENS", 14)
        known = {**STOCK, **EXTRA, **COMPACT, "emptied": COMPACT[EMPTIED[0]]}
        for name, family in ((name, known[name]) for name in names):
            model = family.make(fresh)
            if name in EXTRA:
                with torch.no_grad():
                    for layer in model.model.layers:
                        layer.self_attn.o_proj.bias.zero_()
            lm = mh.load(model, tokenizer=False)
            what = EMPTIED[1] if name == "emptied" else family.remove
            small = prune_heads(lm, what, empty_layers=name == "emptied")
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
        jobs |= mine  # manyheads is imported there only after all that need none of it
        found = dict(zip(jobs, try_all(list(jobs.values())), strict=True))
    return SimpleNamespace(found=found, forms=forms, folders={name: job.folder for name, job in jobs.items()})


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


@pytest.mark.parametrize("name", some_and_slow(FEW_COMPACT, [*COMPACT, "emptied"]))
def test_other_results_load_with_us_and_zeroed_with_stock_transformers(name, found):
    assert found.forms[name].form == "compact" and found.forms[name].because.startswith("transformers has no config")
    for form in (name, f"{name}, zeroed"):
        assert fault_in(found.found[form]) == "" and found.found[form]["error"] <= SAME


@pytest.mark.parametrize("name", some_and_slow(FEW_COMPACT, [*COMPACT, "emptied"]))
def test_stock_transformers_never_loads_a_compact_folder(name, found):
    folder = found.folders[name]
    cls = getattr(transformers, found.forms[name].loads_as)
    for loader in (cls, transformers.AutoModel):
        with pytest.raises(OSError, match="no file named model.safetensors"):
            loader.from_pretrained(folder)
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
    with pytest.raises(ModelError, match=said):
        mh.load(folder, tokenizer=False)


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
        with pytest.raises(ModelError, match="their checksum differs"):
            mh.load(folder, tokenizer=False)
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
    with pytest.raises(ModelError, match="manyheads.json cannot be read .* the file is damaged"):
        mh.load(folder, tokenizer=False)
    shutil.copy(compact_folder / "manyheads.json", folder)
    (folder / "pruned.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="the weights in .*copy are damaged"):
        mh.load(folder, tokenizer=False)
    (folder / "pruned.safetensors").write_bytes(save_tensors({"a": torch.zeros(3)}))
    with pytest.raises(
        ModelError, match=r"pruned\.safetensors is damaged, or of another model: its bytes are not those"
    ):
        mh.load(folder, tokenizer=False)
    shutil.copy(compact_folder / "pruned.safetensors", folder)
    transformers.BertConfig(**BERT, architectures=["BertModel"]).save_pretrained(folder)
    with pytest.raises(ModelError, match="does not fit the BertModel of its config.json"):
        mh.load(folder, tokenizer=False)
