"""`manyheads doctor`: what is installed, what would run and why, and what is wrong. Exit 0 where nothing is, else 1.

A section of the page is a function that yields findings. One that fails becomes a finding, and the others go on: torch,
transformers or einops may be what is wrong, so nothing above the functions imports them: faces load their names late.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, version
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import typer
from rich.text import Text

import manyheads
from manyheads import attention as operation
from manyheads import base, machine, models, recording
from manyheads.cli.arguments import AsJson
from manyheads.cli.failed_imports import (
    CORE,
    NAME,
    Failed,
    failed_import,
    in_words,
    installed_as,
    module_of,
    refused_backend,
    spans,
)
from manyheads.cli.terminal.console import clean, emit_document, hanging, knows_blocks, stdout_console
from manyheads.cli.terminal.progress import ProgressLine
from manyheads.errors import FileAccessError, ModelError, ShapeError

MISSING = "not installed"
SHOWN = ("torch", "transformers")  # rows of their own; other packages share one, unless something is to be said of them
NEWER = "If anything is refused or fails, try an older one, and please report it."
REPORT = "If nothing else here is wrong, please report it."
REINSTALL = f"Install it again: pip install --force-reinstall --no-deps {NAME} (in a checkout: --no-deps .)."
VARIABLES: Mapping[str, str] = MappingProxyType({  # and what each does where it is set
    "MANYHEADS_CACHE": "the folder where labels are remembered",
    "MANYHEADS_PASS": "what reads maps: kernels, tiles or auto; kernels is an error if there are none",
    "MANYHEADS_STATE": "the folder where progress in lessons is kept",
    "MANYHEADS_DEFAULT_MODEL": "the model of a command without --model",
    "MANYHEADS_DEVICE": "the device that models are loaded on, where none is named",
    "MANYHEADS_GOLD": "tests: the folder of gold treebanks",
    "MANYHEADS_SEED": "tests: the seed of all random inputs, or fresh; without it each commit has its own",
    "MANYHEADS_CHROMIUM": "tests: the browser",
    "XDG_CACHE_HOME, XDG_STATE_HOME": "folders of all programs, where MANYHEADS_CACHE and MANYHEADS_STATE name none",
    "HF_HUB_OFFLINE": "1, yes, true or on: only models on this machine are loaded, and the hub is not asked",
    "TRANSFORMERS_OFFLINE": "read in place of HF_HUB_OFFLINE, where that is not set",
    "HF_HOME, HF_HUB_CACHE": "where models of the hub are kept",
    "HF_ENDPOINT": "the address of another hub",
    "HF_TOKEN": "your login to the hub",
    "OMP_NUM_THREADS, MKL_NUM_THREADS": "how many threads compute: sums have another order, so last digits differ",
    "ATEN_CPU_CAPABILITY": "which instructions torch may use: slower, and last digits differ",
    "ONEDNN_DEFAULT_FPMATH_MODE, DNNL_DEFAULT_FPMATH_MODE, NVIDIA_TF32_OVERRIDE, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE":
        "float32 products are rounded to fewer digits: the guard may refuse recordings",
    "CUDA_VISIBLE_DEVICES": "which GPUs there are",
    "RANK, WORLD_SIZE, LOCAL_RANK": "this is one of several processes, which share a corpus (torchrun)",
    "PYTHONOPTIMIZE": "manyheads' own invariants are not checked",
    "MPLBACKEND": "matplotlib's windows; no picture of manyheads needs them",
})  # fmt: skip
State = Literal["fine", "note", "absent", "wrong"]
MARKS: Mapping[State, tuple[str, str, str]] = MappingProxyType(  # with the sign of an ASCII terminal, and a colour
    {"fine": ("✓", "+", "green"), "note": ("·", "*", "yellow"), "absent": ("–", "-", "dim"), "wrong": ("✗", "!", "red")}
)


@dataclass(frozen=True)
class Finding:
    """What was found of a subject; `remedy`: what to do, "" where there is nothing to do."""

    subject: str
    found: str
    state: State = "fine"
    remedy: str = ""

    @property
    def line(self) -> str:
        """The whole finding in one line."""
        return f"{self.subject}: {self.found}. {self.remedy}".rstrip()


def doctor(as_json: AsJson = False) -> None:
    """What is installed, which backends run and why, and what is wrong.

    Exit 1 where something is wrong, with a line for each that says what to do.
    """
    # Packages that print while they are imported must not break the document.
    with ProgressLine().step("looking at packages, devices and models"), redirect_stdout(StringIO()):
        sections = examine()
    wrong = [finding for section in sections.values() for finding in section if finding.state == "wrong"]
    if as_json:
        documents = {title: [asdict(finding) for finding in section] for title, section in sections.items()}
        emit_document({"fine": not wrong, "wrong": [finding.line for finding in wrong], "sections": documents})
    else:
        show(sections, wrong)
    if wrong:
        raise typer.Exit(1)


def show(sections: Mapping[str, list[Finding]], wrong: list[Finding]) -> None:
    """Print the page: the sections, and below them what is wrong, a line each, with what to do."""
    console = stdout_console()
    width = max(len(finding.subject) for section in sections.values() for finding in section)
    signs = {state: (sign if knows_blocks(console) else plain, hue) for state, (sign, plain, hue) in MARKS.items()}
    for title, section in sections.items():
        console.print(Text(title, style="bold"))
        for finding in section:
            label = Text.assemble("  ", signs[finding.state], f" {finding.subject:<{width}}  ")
            lines = hanging(label, finding.found, console.width)
            if finding.remedy and finding.state != "wrong":  # on lines of its own, to be copied
                lines += hanging(Text(" " * label.cell_len), finding.remedy, console.width)
            for line in lines:
                console.print(line, style="dim" if finding.state == "absent" else "", soft_wrap=True)
        console.print()
    console.print(Text("What is wrong:" if wrong else "Nothing is wrong.", style="bold"))
    for finding in wrong:
        console.print(Text.assemble("  ", signs["wrong"], f" {finding.line}"), soft_wrap=True)


def examine() -> dict[str, list[Finding]]:
    """All findings, by section. Cost: some seconds, most of them the imports of torch and transformers."""
    looks = {"packages": packages, "extras": extras, "devices": devices, "attention": attention,
             "bundled models": bundled, "variables": variables}  # fmt: skip
    if installed_as() == CORE:  # the rest asks torch
        looks = {"packages": packages, "variables": variables}
    sections: dict[str, list[Finding]] = {title: [] for title in looks}
    for title, look in looks.items():
        try:
            for finding in look():
                sections[title].append(finding)
        except PackageNotFoundError:  # manyheads itself is not installed, which `packages` reports
            pass
        except (Exception, SystemExit) as error:
            if (failed := failed_import(error)) is None:
                sections[title].append(Finding(title, f"failed with {in_words(error)}", "wrong", REPORT))
                continue
            faults = [finding for section in sections.values() for finding in section if finding.state != "fine"]
            if failed.package not in [finding.subject for finding in faults]:
                words = MISSING if failed.missing else f"importing it fails with {in_words(failed.error)}"
                sections[title].append(Finding(failed.package, words, "wrong", failed.remedy))
            sections[title].append(Finding(title, f"not checked, since that needs {failed.package}", "note"))
    return {title: section for title, section in sections.items() if section}


def packages() -> Iterator[Finding]:
    """manyheads and its files, Python, and every package that manyheads cannot do without."""
    words = f"{manyheads.__version__}, in {Path(manyheads.__file__).parent}"
    name = installed_as() or NAME
    installed, remedy = (
        (version(name), REINSTALL) if spans() else ("nothing", "In the folder of its source: pip install -e .")
    )
    if name == CORE:
        words_of_core = "the part without torch: sizes, lessons, the reference"
        yield Finding(CORE, words_of_core, "absent", f"For the whole: pip install {NAME}")
    if installed != manyheads.__version__:
        yield Finding(NAME, f"{words}, but what is installed is {installed}", "wrong", remedy)
    else:
        yield Finding(NAME, words)
    yield from files()
    yield Finding("python", f"{platform.python_version()}, {sys.executable}")
    findings = list(judged())
    rows = [finding for finding in findings if finding.state != "fine" or finding.subject in SHOWN]
    yield from rows
    others = ", ".join(f"{each.subject} {version(each.subject)}" for each in findings if each not in rows)
    yield Finding("others", f"within their ranges: {others}")


def files() -> Iterator[Finding]:
    """Whether the files that came with the package are there, and as the installer wrote them down."""
    damaged, count = [], 0
    try:
        package = distribution(CORE)  # holds the files wherever the two wheels were installed
    except PackageNotFoundError:
        package = distribution(NAME)
    # The record itself, since Python 3.12's `files` leaves out those that are missing. Hashed anew, as pip does when it
    # installs: sizes and dates say nothing of a damaged byte.
    for name, written, *_ in csv.reader((package.read_text("RECORD") or "").splitlines()):
        if written and name.startswith(f"{NAME}/"):
            count += 1
            mode, _, value = written.partition("=")
            try:
                digest = hashlib.new(mode, Path(str(package.locate_file(name))).read_bytes()).digest()
            except OSError:
                digest = b""
            if base64.urlsafe_b64encode(digest).decode().rstrip("=") != value:
                damaged.append(name)
    if damaged:
        few = ", ".join(damaged[:3]) + (", ..." if len(damaged) > 3 else "")
        yield Finding("its files", f"{len(damaged)} of {count} missing or changed: {few}", "wrong", REINSTALL)
    elif count:
        yield Finding("its files", f"{count}, as they were installed")


def judged(extra: str = "") -> Iterator[Finding]:
    """Packages that manyheads needs here, or that an extra adds: whether each is in its range and can be imported."""
    from packaging.requirements import Requirement  # deferred: it takes 30 ms, and may be missing

    requirements = [Requirement(line) for line in distribution(installed_as() or NAME).requires or ()]
    on_page = {entry.name for entry in requirements if not str(entry.marker).endswith(('"dev"', '"docs"'))}
    for requirement in requirements:
        name, marker, span = requirement.name, requirement.marker, spans()[requirement.name]
        applies, always = (marker is None or marker.evaluate({"extra": given}) for given in (extra, ""))
        if not applies or (extra and always):
            continue
        try:
            installed = version(name)
        except PackageNotFoundError:
            yield Finding(name, MISSING, "wrong", f'pip install "{name}{span}"')
            continue
        # A pre-release within the range is somebody's own choice, not a mistake.
        if not requirement.specifier.contains(installed, prereleases=True):
            yield Finding(name, f"{installed}, but {span} is needed", "wrong", f'pip install "{name}{span}"')
            continue
        try:
            import_module(module_of(name))
        except (Exception, SystemExit) as error:
            failed, refused = failed_import(error) or Failed(name, False, error), refused_backend(error).rstrip(".")
            words = f"importing it fails with {in_words(error)}"
            if failed.package != name and failed.package in on_page:  # with a finding of its own
                yield Finding(name, words, "note")
            else:
                yield Finding(name, refused or words, "wrong", "" if refused else failed.remedy)
            continue
        newer = machine.newer_than_tested(name, installed)
        words = f"{installed}, within {span}" + (f"; {newer}" if newer else "")
        yield Finding(name, words, "note" if newer else "fine", NEWER if newer else "")


def extras() -> Iterator[Finding]:
    """Each extra: whole, or what to type to have it."""
    for extra in distribution(NAME).metadata.get_all("Provides-Extra") or ():
        if extra not in ("dev", "docs"):  # which are of no use without the sources
            findings = list(judged(extra))
            versions = ", ".join(f"{one.subject} {version(one.subject)}" for one in findings if one.state == "fine")
            if absent := ", ".join(finding.subject for finding in findings if finding.found == MISSING):
                yield Finding(f"[{extra}]", f"not here: {absent}", "absent", f'pip install "{NAME}[{extra}]"')
            elif versions:
                yield Finding(f"[{extra}]", versions)
            yield from (finding for finding in findings if finding.state != "fine" and finding.found != MISSING)


def devices() -> Iterator[Finding]:
    """Each device with the dtypes that it multiplies, and the one that models are loaded on."""
    import torch  # deferred: it may be missing or broken

    try:
        for device in machine.devices_here():
            name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
            if device.type == "cpu":
                name = f"{torch.backends.cpu.get_cpu_capability()}, {base.plural(torch.get_num_threads(), 'thread')}"
            free = machine.free_bytes(device)
            words = name if free is None else f"{name}, {free / 1e9:.1f} GB free"
            yield Finding(str(device), f"{words}: {', '.join(map(machine.plain, machine.dtypes_of(device)))}")
        yield Finding("models go to", ", ".join(map(str, machine.choose_device())))
    except ModelError as error:  # a device is full or busy, or MANYHEADS_DEVICE names none that is here
        words, _, remedy = str(error).partition(". ")
        yield Finding("models go to", words, "wrong", remedy)
    if (built := torch.version.cuda or torch.version.hip) and not torch.accelerator.is_available():
        words = f"none that torch can use, though it is built for {built}"
        yield Finding("GPU", words, "note", "Is there a driver, and a new enough one? (nvidia-smi)")


def attention() -> Iterator[Finding]:
    """Which backend serves which call, on a GPU where one is here: in the words of the results (`Attended.because`).

    "maps": what reads a recording's maps there, as MANYHEADS_PASS says or for want of another.
    """
    import torch  # deferred, as above

    from manyheads.recording.exact_map import Entropy  # which imports torch

    device = machine.devices_here()[:2][-1]
    q, k = (torch.randn(2, heads, 23, 16, device=device) for heads in (6, 2))
    causal, bias = operation.Mask.causal(23, 23), torch.randn(1, 6, 23, 23, device=device)
    padded = operation.Mask.from_lengths(torch.tensor([23, 7], device=device), 23, 23)
    calls = {
        "float32": (q, k, causal, None),
        "bfloat16": (q.bfloat16(), k.bfloat16(), causal, None),
        "unlike lengths": (q, k, padded, None),
        "a bias": (q, k, causal, bias),
        "a gradient": (q.clone().requires_grad_(), k, causal, None),
    }
    for subject, (query, key, mask, added) in calls.items():
        try:
            yield Finding(subject, operation.attend(query, key, key, mask=mask, bias=added).because)
        except Exception as error:  # of any kind: it is what is found
            if failed_import(error):
                raise
            yield Finding(subject, f"failed with {in_words(error)}", "wrong", REPORT)
    try:
        yield Finding("maps", recording.record_tensors(q, k).layers[0].reduce([Entropy()]).because)
    except (ShapeError, ModelError) as error:  # MANYHEADS_PASS is none, or is kernels where there are none
        yield Finding("maps", str(error).rstrip("."), "wrong")


def bundled() -> Iterator[Finding]:
    """The bundled models: loaded, with byte for byte the weights that they should have, or what installs them."""
    from manyheads.models.loading import is_here  # deferred, as models are

    for name in models.BUNDLED:
        try:
            absent = not is_here(name)
        except FileAccessError as error:  # no home folder, which nothing else here needs
            yield Finding(name, f"not looked for: {error}".rstrip("."), "absent")
            continue
        if absent:
            yield Finding(name, "not here", "absent", f"manyheads fetch {name}")
            continue
        try:
            models.load(name, device="cpu")
            yield Finding(name, "it loads, and has the published weights byte for byte")
        except ModelError as error:
            fault, _, remedy = str(error).partition(" again: ")
            yield Finding(name, fault.rpartition(".")[0], "wrong", remedy)


def variables() -> list[Finding]:
    """Variables that are set and change results, or may. Values of secrets and of unknown variables are not shown."""
    effects = {name: effect for names, effect in VARIABLES.items() for name in names.split(", ")}
    findings = []
    for name, value in sorted(os.environ.items()):
        if value and (name in effects or name.startswith("MANYHEADS_")):
            words = clean(value) if name in effects and name != "HF_TOKEN" else "set"
            fault, remedy = refused(name, value)
            words += f": {fault or effects.get(name, 'nothing reads it')}"
            findings.append(Finding(name, words, "wrong" if fault else "note", remedy))
    return findings or [Finding("variables", "none that would change a result is set")]


def refused(name: str, value: str) -> tuple[str, str]:
    """What is wrong with a variable's value, for which something else would fail, and what to do; "" where nothing is.

    MANYHEADS_PASS, MANYHEADS_DEVICE and MPLBACKEND are judged where they are used, in the sections above.
    """
    if name in ("MANYHEADS_CACHE", "MANYHEADS_STATE") and Path(value).exists() and not Path(value).is_dir():
        return "it is a file, so nothing can be kept there", f"Name a folder, or unset {name}."
    if name in ("RANK", "WORLD_SIZE", "LOCAL_RANK") and not value.isdecimal():
        return "it is not a whole number", f"torchrun sets it: unset {name}, and start several processes by torchrun."
    return "", ""
