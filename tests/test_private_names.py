"""Private names of torch and transformers: each is where the table says, and no other file of the package has one."""

import ast
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from packaging.version import Version
from torch import nn

from manyheads import private_names
from manyheads.errors import ModelError
from tests.refusals import refuses

SOURCE = Path(private_names.__file__).parent
# A program that imports nothing of manyheads, so that a stock transformers elsewhere does what passes here.
ALONE = SOURCE / "interventions/save/fresh_process_program.py"
STANDARD = {"_asdict", "_replace", "_fields", "_getframe", "_sysconfigdata"}  # Python's own
COMMON = {"cache"}  # names that say nothing of whose they are


def present(row) -> bool:
    """Whether the installed libraries have a row's name, found by other means than the package's own."""
    path, made = row.path.replace(":", "."), None
    if "()" not in path:
        for cut in range(path.count("."), 0, -1):
            parts = path.split(".")
            try:
                made = resolve_name(".".join(parts[:cut]))
            except (ImportError, AttributeError):
                continue
            for part in parts[cut:]:
                if not hasattr(made, part):
                    return False
                made = getattr(made, part)
            return True
        return False
    return hasattr(made_by(path.split("()")[0], row.name), row.name)


def made_by(path: str, name: str) -> object:
    """What a call of the function or class at `path` returns."""
    if path == "torch.compile":
        return torch.compile(torch.sin if name.startswith("_torchdynamo") else nn.Identity(), backend="eager")
    if path == "accelerate.hooks.add_hook_to_module":
        from accelerate.hooks import ModelHook, add_hook_to_module

        return add_hook_to_module(nn.Identity(), ModelHook())
    return resolve_name(path)()


@pytest.mark.parametrize("row", private_names.NAMES, ids=lambda row: row.path)
def test_each_name_is_there_from_the_version_on_that_the_table_says(row):
    pytest.importorskip(row.library)
    since = Version(row.since.removeprefix("<="))
    if Version(version(row.library)) >= since:
        assert present(row), f"{row.library} {version(row.library)} has no {row.path}"
    elif not row.since.startswith("<="):
        assert not present(row), f"{row.library} {version(row.library)} has {row.path} already"


def of_others(tree: ast.Module, own: set[str]):
    """(line, name) of what a file takes from others, as far as it is private or stands in the table."""
    names = {row.name for row in private_names.NAMES} - COMMON
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    looked_up = {
        id(argument) for call in calls if ast.unparse(call.func) == "private_names.found" for argument in call.args
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=imported, level=0):
                if module.split(".")[0] == "manyheads":
                    continue
                taken = [*module.split("."), *(alias.name for alias in imported)]
            case ast.Import(names=imported):
                taken = [part for alias in imported for part in alias.name.split(".")]
            case ast.Attribute(value=ast.Name(id="private_names" | "self" | "cls" | "super")):
                continue
            case ast.Attribute(attr=attribute):
                taken = [attribute]
            case ast.Constant(value=str(text)):
                taken = [text] if text in names and text.startswith("_") and id(node) not in looked_up else []
            case _:
                continue
        for name in taken:
            private = re.match(r"_[a-zA-Z]", name) is not None and name not in own and name not in STANDARD
            if private or name in names:
                yield node.lineno, name


def names_made_in(tree: ast.Module) -> set[str]:
    """Names of functions, classes, variables, attributes and arguments that a file defines."""
    own: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                own.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                own.add(name)
    return own


@pytest.mark.slow
def test_no_other_file_has_a_private_name_of_others():
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")}
    own = set().union(*map(names_made_in, trees.values()))
    places = [
        f"{file.relative_to(SOURCE)}:{line}: {name}"
        for file, tree in trees.items()
        if file not in (Path(private_names.__file__), ALONE)
        for line, name in of_others(tree, own)
    ]
    assert not places, "say these in private_names.py:\n" + "\n".join(places)


@pytest.mark.parametrize(
    "line",
    ["import torch\ntorch._C.f()", "from torch.utils._pytree import f", "from transformers import _x",
     "x._from_config(c)", "from transformers.cache_utils import DynamicLayer", "import torch._dynamo",
     "setattr(model, '_compiled_call_impl', None)", "PreTrainedModel.get_compiled_call"],
)  # fmt: skip
def test_what_finds_private_names_finds(line):
    """The test above would see each of these."""
    assert list(of_others(ast.parse(line), set()))


def test_importing_the_file_loads_neither_transformers_nor_torchs_compiler():
    program = (
        "import sys; from manyheads import private_names; "
        "print(sorted({'transformers', 'torch._dynamo', 'torch.distributed.tensor'} & sys.modules.keys()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_name_that_a_version_lacks_is_refused_by_its_name_and_use(monkeypatch):
    row = private_names.PrivateName("transformers.cache_utils:NoSuchLayer", "9.1", "mh.streaming is refused")
    monkeypatch.setattr(private_names, "NAMES", (*private_names.NAMES, row))
    private_names._rows.cache_clear()
    try:
        message = (
            rf"transformers {re.escape(version('transformers'))} has no transformers\.cache_utils\.NoSuchLayer, which "
            r"manyheads depends on \(mh\.streaming is refused\)\. Install a version that was tested"
        )
        refuses(ModelError, message, getattr, private_names, "NoSuchLayer")
        assert private_names.found("NoSuchLayer") is None
    finally:
        private_names._rows.cache_clear()


def test_other_attributes_are_missing_as_in_any_module():
    refuses(AttributeError, "has no attribute 'no_such_name'", getattr, private_names, "no_such_name")


def test_look_ups_that_a_version_lacks_are_left_out_or_refused(monkeypatch):
    """Without flash attention's, its models are refused; without the interface's, all are."""
    rows = {row.name: row for row in private_names.NAMES}

    def look_ups_without(name):
        gone = private_names.PrivateName(rows[name].path.replace(name, "no_such_name"), "9.1", "x")
        monkeypatch.setattr(private_names, "_rows", lambda: {**rows, name: gone})
        return set(private_names.look_ups())

    everything = {"interface", "item", "compiled", "batching", "flash", "flex"}
    assert set(private_names.look_ups()) == everything
    assert look_ups_without("lazy_import_flash_attention") == everything - {"flash"}
    assert look_ups_without("compile_friendly_flex_attention") == everything - {"flex"}
    assert look_ups_without("init_continuous_batching") == everything - {"batching"}
    for name in ("get_interface", "get_compiled_call"):
        refuses(ModelError, r"which manyheads depends on \(x\)", look_ups_without, name)


def test_states_of_a_layer_are_read_as_one_tensor_and_as_several():
    one, other, third = torch.ones(3), torch.ones(5), torch.ones(7)
    old = type("Old", (), {"conv_states": one, "recurrent_states": None})()
    new = type("New", (), {"conv_states": {0: one, 1: other}, "recurrent_states": {0: third, 1: None}})()
    assert [x is y for x, y in zip(private_names.states_of(old), [one], strict=True)] == [True]
    assert all(x is y for x, y in zip(private_names.states_of(new), [one, other, third], strict=True))
    assert private_names.states_of(object()) == []


# ============================================================================================= a cache by either name
# Three names of one thing: transformers renames it in 5.24, and drops the old one in 5.40.


class New(nn.Module):
    def forward(self, ids, cache=None, **kwargs): ...


class Old(nn.Module):
    def forward(self, ids, past_key_values=None, **kwargs): ...


class Mamba(nn.Module):
    def forward(self, ids, cache_params=None): ...


@pytest.mark.parametrize("kind, name", [(New, "cache"), (Old, "past_key_values"), (Mamba, "cache_params")])
@pytest.mark.parametrize("given", ["cache", "past_key_values", "cache_params"])
def test_cache_is_given_by_the_name_that_the_model_has(kind, name, given):
    one, other = object(), object()
    assert private_names.with_cache(kind(), {"ids": 5, given: None}, one) == {"ids": 5, name: one}
    assert private_names.with_cache(kind(), {given: other}, one) == {name: one}
    assert private_names.cache_in({"ids": 5, given: other}) is other
    assert private_names.cache_in({"ids": 5, given: None}) is None


def test_cache_of_a_wrapper_has_the_name_that_this_transformers_uses():
    class Wrapper(nn.Module):
        def forward(self, *args, **kwargs): ...

    expected = "cache" if Version(version("transformers")) >= Version("5.24") else "past_key_values"
    assert private_names.cache_name(Wrapper()) == expected


def test_cache_of_outputs_is_read_without_a_warning(recwarn):
    from transformers.modeling_outputs import BaseModelOutputWithPast

    name, one = private_names.cache_name(nn.Identity()), object()
    assert private_names.cache_in(BaseModelOutputWithPast(torch.ones(1), one)) is one
    assert private_names.cache_in(BaseModelOutputWithPast(torch.ones(1))) is None
    assert name in ("cache", "past_key_values") and not recwarn.list
