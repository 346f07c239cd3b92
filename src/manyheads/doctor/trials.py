"""What can only be known by trying: a program of its own, so that what breaks in it breaks nothing else.

A torch built for another processor kills the process that imports it, and no `except` helps. So everything that needs
torch is done in a fresh process, step by step, with a line of JSON for each step that begins and for each finding; the
reader (`examination`) knows which step was running when the process died. No network is asked.

Imports of our own packages stand inside the steps: each may fail, and must fail as a finding of its own step.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from manyheads.base import free_memory_bytes
from manyheads.doctor import packages, surroundings
from manyheads.doctor.findings import ABSENT, NOTE, WRONG, Finding, guarded, in_words, one_line, shown
from manyheads.doctor.imports import BACKEND, BACKEND_REMEDY, Failed, failed_import, module_of, refused_backend
from manyheads.doctor.packages import INSTALL_ANEW
from manyheads.errors import ModelError

SERVER = ("fastapi", "uvicorn")
VARIABLE = "MANYHEADS_DEVICE"
SMALL = "tiny-code"  # a model that comes with us: it is recorded on every device


@dataclass(frozen=True)
class Step:
    """A look and its section and subject. Without one of the modules in `needs` it is left out."""

    section: str
    subject: str
    look: Callable[[], Iterator[Finding]]
    needs: tuple[str, ...] = ()


def main() -> None:
    """Carry out all steps; findings go to stdout, and what a library prints there to stderr."""
    # By file descriptor, not by sys.stdout: native code prints too, and would break a line of JSON.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    broken: list[str] = []
    for step in STEPS:
        print(json.dumps({"section": step.section, "subject": step.subject}), file=out)
        for finding in carried_out(step, broken):
            print(json.dumps({"section": step.section, "finding": asdict(finding)}), file=out)
            if finding.state == WRONG:
                broken.append(finding.subject)


def carried_out(step: Step, broken: Sequence[str]) -> Iterator[Finding]:
    """The findings of a step. `broken` names packages that are wrong, and reported already."""
    lacking = [name for name in step.needs if name in broken or find_spec(name) is None]
    if lacking:
        yield left_out(step.subject, *lacking)
        return
    try:
        yield from guarded(step.subject, step.look)
    except Exception as error:
        failed = failed_import(error)
        assert failed is not None, error  # `guarded` lets nothing else through
        yield from for_want_of(failed, step.subject, broken)
    except SystemExit as error:  # of a package that ends its importer, which `imports` has named
        yield Finding(step.subject, f"not known: what it needs ends the process ({in_words(error)})", NOTE)


def for_want_of(failed: Failed, subject: str, broken: Sequence[str]) -> Iterator[Finding]:
    """That a package is missing or broken, where that is not reported yet, and that `subject` is not known for it."""
    # `packages.needed` reports everything that is declared and missing.
    if failed.package not in broken and not (failed.missing and failed.declared):
        words = "not installed" if failed.missing else f"importing it fails with {in_words(failed.error)}"
        yield Finding(failed.package, words, WRONG, anew(failed.package))
    yield left_out(subject, failed.package)


def left_out(subject: str, *lacking: str) -> Finding:
    return Finding(subject, f"not looked at, since that needs {' and '.join(lacking)}", NOTE)


def anew(package: str) -> str:
    """The command that repairs a package that is broken, or missing."""
    try:
        installed = version(package).partition("+")[0]
    except PackageNotFoundError:
        return f"pip install {package}"
    remedy = f"Install it anew: pip install --force-reinstall {package}=={installed}"
    spec, location = find_spec(module_of(package)), Path(str(distribution(package).locate_file("")))
    if spec is not None and spec.origin and not Path(spec.origin).is_relative_to(location):
        return f"Take {shown(spec.origin)} off the path, which is not what pip installed. {remedy}"
    return remedy


def imports() -> Iterator[Finding]:
    """Installed packages that cannot be imported, or are another version than their metadata."""
    broken: list[str] = []
    for name in packages.imported():
        if name in broken:
            continue
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue  # `packages` reports it
        for finding in import_findings(name, installed, broken):
            yield finding
            broken.append(finding.subject)  # a note, too: what fails for another package is reported once


def import_findings(name: str, installed: str, broken: Sequence[str]) -> Iterator[Finding]:
    """Import a package whose metadata says version `installed`: no finding where that succeeds."""
    try:
        module = import_module(module_of(name))
    except (Exception, SystemExit) as error:
        failed = failed_import(error)
        if refused_backend(error):
            return  # `backend` reports it
        # The package that is at fault is blamed once, not everything that imports it.
        if failed is not None and failed.declared and failed.package != name:
            yield from for_want_of(failed, name, broken)
            return
        if blamed := next((package for package in broken if module_of(package) in in_all_words(error)), None):
            words = f"importing it fails with {in_words(error)}, perhaps for {blamed}: mend that first"
            yield Finding(name, words, NOTE)
            return
        yield Finding(
            name, f"{installed} is installed, but importing it fails with {in_words(error)}", WRONG, anew(name)
        )
        return
    imported = str(getattr(module, "__version__", "no version"))
    build = "+"  # what follows names the build, and may differ
    if name in packages.SHOWN and imported.partition(build)[0] != installed.partition(build)[0]:
        place = getattr(module, "__file__", None) or "an unknown place"
        words = f"{installed} is installed, but {imported} is imported, from {place}"
        yield Finding(name, words, WRONG, f"Take that off the path, or install {name} anew.")


def in_all_words(error: BaseException | None) -> str:
    """The message of an exception and of those that caused it, in small letters."""
    return "" if error is None else f"{error} {in_all_words(error.__cause__ or error.__context__)}".lower()


def backend() -> Iterator[Finding]:
    """The value of MPLBACKEND, where it is set. Our figures draw on a canvas of their own, whatever it names."""
    if not (value := os.environ.get(BACKEND)):
        return
    try:
        import_module("matplotlib")
    except Exception as error:
        if refused := refused_backend(error):
            yield Finding(BACKEND, f"{one_line(refused)}, so no picture can be drawn", WRONG, BACKEND_REMEDY)
        else:
            raise
    else:
        yield Finding(BACKEND, f"{one_line(value)}: matplotlib's own windows; no picture of manyheads needs it", NOTE)


def attention() -> Iterator[Finding]:
    from manyheads.doctor.attention import backends  # deferred: imports torch

    yield from backends()


def weights() -> Iterator[Finding]:
    """The bundled models' files: byte for byte the ones that they should be, or what installs them."""
    from manyheads.models import BUNDLED  # deferred: needs huggingface_hub

    for name, model in BUNDLED.items():
        fault = bundled().get(name)
        if fault is None:
            yield Finding(f"{name}, its files", "not here", ABSENT, f"To have them: {model.install}")
        elif fault:
            words, _, remedy = fault.rpartition(" Install it anew")
            yield Finding(f"{name}, its files", words.rstrip("."), WRONG, f"Install it anew{remedy}")
        else:
            yield Finding(f"{name}, its files", "its weights are byte for byte the published ones")


def devices() -> Iterator[Finding]:
    """On each device that is here, a small model is recorded in every dtype that the device has."""
    from manyheads.base import devices_here  # deferred: imports torch

    if not bundled()[SMALL]:  # else its files are reported
        for device in devices_here():
            yield from guarded(f"recordings on {device}", partial(recordings_on, device))


def recordings_on(device: Any) -> Iterator[Finding]:
    """The guard compares every layer of each recording with what the model returned, or raises."""
    from manyheads.base import dtypes_of, is_out_of_memory, plain  # deferred: imports torch
    from manyheads.base.devices import DTYPES  # deferred: the same
    from manyheads.corpora import reading_of  # deferred: the same
    from manyheads.models import load, record  # deferred: the same
    from manyheads.models.taps.call import TOLERANCE  # deferred: the same

    # Two texts, so that one is padded.
    text, errors, faults, full, dtypes = reading_of(SMALL).sentence, [], [], True, dtypes_of(device)
    for dtype in dtypes:
        try:
            recording = record(load(SMALL, device=device, dtype=dtype), [text, text[:9]])
        except Exception as error:  # of any kind: it is what is found
            faults.append(f"{plain(dtype)} failed with {in_words(error)}")
            full = full and any(map(is_out_of_memory, (error, error.__cause__ or error)))
        else:
            errors.append(f"{plain(dtype)} {recording.provenance['guard_error']:.0e} (of {TOLERANCE[dtype]:.0e})")
    lacking = [plain(dtype) for dtype in DTYPES if dtype not in dtypes]
    facts = [f"off from {SMALL}'s own output by {', '.join(errors)}"] * bool(errors)
    facts += [f"the device has no {' and no '.join(lacking)}"] * bool(lacking)
    subject, summary = f"recordings on {device}", "; ".join([*faults, *facts])
    if faults:
        remedy = "use another device or dtype (--device cpu, MANYHEADS_DEVICE=cpu)"
        report = f"{remedy.capitalize()}, and please report it."
        yield Finding(subject, summary, WRONG, f"Its memory is full: free some, or {remedy}." if full else report)
    else:
        yield Finding(subject, summary)


def recordings() -> Iterator[Finding]:
    """Each bundled model that is whole reads its own short text."""
    if placeless := without_a_device("recordings"):
        yield placeless
        return
    for name, fault in bundled().items():
        if not fault:
            yield from guarded(name, partial(recording_of, name))


def without_a_device(subject: str) -> Finding | None:
    """That the subject is not looked at, where models can be loaded nowhere; None where they can."""
    from manyheads.base import choose_device  # deferred: imports torch

    try:
        choose_device()
    except ModelError:  # `machine` reports it
        reason = f"{VARIABLE} is wrong" if os.environ.get(VARIABLE) else "the device for models cannot be used"
        return Finding(subject, f"not looked at, since {reason}", NOTE)
    return None


@cache
def bundled() -> dict[str, str]:
    """The bundled models whose package is installed, and what is wrong with their files, "" if nothing."""
    from manyheads.models import BUNDLED  # deferred: needs huggingface_hub
    from manyheads.models.loading.checkpoints import find_bundled  # deferred: the same

    faults = {}
    for name, model in BUNDLED.items():
        if find_spec(model.module) is not None:
            try:
                find_bundled(name)
                faults[name] = ""
            except ModelError as error:
                faults[name] = str(error)
    return faults


def recording_of(name: str) -> Iterator[Finding]:
    """A recording; the guard compares every layer of it with what the model returned, or raises."""
    from manyheads.corpora import reading_of  # deferred: needs torch
    from manyheads.models import load, record  # deferred: needs torch
    from manyheads.models.taps.call import TOLERANCE  # deferred: needs torch

    lm: Any = load(name)
    recording = record(lm, reading_of(name).sentence)
    error, heads = recording.provenance["guard_error"], sum(site.num_heads for site in lm.spec.sites)
    layers = f"{len(lm.spec.sites)} layers with {heads} heads"
    words = f"{recording.tokens.longest} tokens recorded, {layers}, on {lm.device}"
    allowed = f"{TOLERANCE[lm.dtype]:.0e}"
    yield Finding(name, f"{words}; the guard found {error:.0e} of a row's norm at most, of {allowed} allowed")


def page() -> Iterator[Finding]:
    """The studio answers, without a socket: its page, the page's files, and the recordings that it may open."""
    from manyheads.studio import Desk, Workspace, answer, create_app  # deferred: needs the web server

    if placeless := without_a_device("its page"):
        yield placeless
        return
    desk = Desk(Workspace.of([], None, None), None)
    app = create_app(desk)
    answers = {path: answer(app, "GET", path) for path in ("/", "/studio.js", "/studio.css", "/api/workspace")}
    desk.close()
    faults = [f"{path} answers {reply.status}, {len(reply.body)} bytes" for path, reply in answers.items()
              if reply.status != 200 or not reply.body]  # fmt: skip
    if faults:
        yield Finding("its page", "; ".join(faults), WRONG, f"{INSTALL_ANEW}.")
    else:
        yield Finding("its page", f"answers, with a script of {len(answers['/studio.js'].body) / 1e3:.0f} KB")


def machine() -> Iterator[Finding]:
    """What computes: the processor and its features, threads, memory, and the devices that torch would use."""
    import torch

    from manyheads.base import choose_device, native_bf16  # deferred: needs torch

    name = torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine()
    bf16 = "natively" if native_bf16() else "by way of float32, slowly"
    computes = f"torch {torch.__version__} computes with {torch.backends.cpu.get_cpu_capability()}, bf16 {bf16}"
    yield Finding("processor", f"{name}; {computes}")
    cores, threads = cores_for_us(), torch.get_num_threads()
    words = f"{threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}"
    if threads > cores:
        yield Finding("threads", f"{words}: they wait for each other", NOTE, f"Faster: OMP_NUM_THREADS={cores}")
    else:
        yield Finding("threads", words)
    free = free_memory_bytes()
    if free is not None:
        yield Finding("memory", f"{free / 1e9:.1f} GB free")
    try:
        yield Finding("models are loaded on", ", ".join(map(str, choose_device())))
    except ModelError as error:
        words, _, devices = str(error).rpartition(" Here is: ")
        subject = VARIABLE if os.environ.get(VARIABLE) else "models are loaded on"
        remedy = f"Use one of {devices.rstrip('.')}{', or unset it' * (subject == VARIABLE)}."
        yield Finding(subject, words.rstrip("."), WRONG, remedy)
    if not torch.accelerator.is_available():
        built = torch.version.cuda or getattr(torch.version, "hip", None)
        if built:
            words = f"none that torch can use, though it is built for {built}"
            yield Finding("GPU", words, NOTE, "Is there a driver, and a new enough one? (nvidia-smi)")
        else:
            yield Finding("GPU", "none, or none that this build of torch knows")
        return
    kind = torch.accelerator.current_accelerator()
    for index in range(torch.accelerator.device_count()):
        if kind is not None and kind.type == "cuda":
            properties = torch.cuda.get_device_properties(index)
            yield Finding(f"cuda:{index}", f"{properties.name}, {properties.total_memory / 1e9:.0f} GB")
        else:
            yield Finding(f"{kind}:{index}", "here")


def cores_for_us() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


TENSORS = ("numpy", "torch")
MODELS = (*TENSORS, "transformers")
STEPS = (
    Step("packages", "imports", imports),
    Step("machine", "processor and devices", machine, TENSORS),
    Step("attention", "backends", attention, TENSORS),
    Step("attention", "recordings on each device", devices, MODELS),
    Step("bundled models", "their files", weights),
    Step("bundled models", "recordings", recordings, MODELS),
    Step("places", "labels", surroundings.labels, MODELS),
    Step("places", "progress in lessons", surroundings.progress),
    Step("places", "models of the hub", surroundings.hub, ("huggingface_hub",)),
    Step("studio", "its page", page, (*MODELS, *SERVER)),
    Step("studio", "port", surroundings.port, (*MODELS, *SERVER)),
    Step("environment", BACKEND, backend),
)
