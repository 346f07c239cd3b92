"""The whole examination: each part after the other; a part that fails is a finding too, and the others go on.

What needs torch is tried in a fresh process (`trials`), which prints a line of JSON for each step that begins and for
each finding. Where the process dies, the last step that began is the finding.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError

from manyheads.doctor import packages, surroundings
from manyheads.doctor.findings import NOTE, REPORT, WRONG, Examination, Finding, in_words, one_line
from manyheads.doctor.imports import failed_import

TITLES = ("packages", "extras", "machine", "attention", "bundled models", "places", "studio", "environment")
SECONDS = 300  # it takes about 10
PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from manyheads.doctor.trials import main; main()"
ENDED = {
    "SIGILL": "This build of torch has instructions that this processor lacks: install another build.",
    "SIGKILL": "Was there memory for it? Free some, and try again.",
}


def examine() -> Examination:
    """Examine packages, machine, models and surroundings. Cost: some ten seconds, mostly torch's and transformers'
    own imports."""
    sections: dict[str, list[Finding]] = {title: [] for title in TITLES}
    reported: set[str] = set()  # packages that cannot be imported: wrong once, a note in later findings
    sections["packages"] += findings_of("manyheads", packages.own, reported)
    sections["packages"] += findings_of("python", packages.python, reported)
    sections["packages"] += findings_of("what it needs", packages.needed, reported)
    sections["extras"] += findings_of("extras", packages.extras, reported)
    for section, finding in trial_findings():
        if finding.subject not in reported:
            sections[section].append(finding)
    sections["environment"] += findings_of("variables", surroundings.variables, reported)
    if packages.checkout() is not None:
        sections["environment"] += findings_of("Chromium", surroundings.browser, reported)
    return Examination({title: tuple(findings) for title, findings in sections.items() if findings})


def findings_of(subject: str, look: Callable[[], Iterable[Finding]], reported: set[str]) -> list[Finding]:
    """The findings of `look`; where it fails, that. `reported` names packages that are reported as wrong already."""
    try:
        return list(look())
    except PackageNotFoundError:  # manyheads itself is not installed, which `packages.own` reports
        return []
    except Exception as error:
        failed = failed_import(error)
        if failed is None:
            return [Finding(subject, f"failed with {in_words(error)}", WRONG, REPORT)]
        name = failed.package
        why = "is not installed" if failed.missing else f"cannot be imported ({in_words(failed.error)})"
        remedy = f"pip install {'' if failed.missing else '--force-reinstall '}{name}"
        state = NOTE if name in reported else WRONG
        reported.add(name)
        return [Finding(subject, f"not known, since that needs {name}, which {why}", state, remedy)]


def trial_findings() -> Iterator[tuple[str, Finding]]:
    """Run the trials in a fresh process and read them: section and finding, one after the other."""
    # The process gets this one's sys.path, so that it looks for modules in the same places.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=SECONDS
        )
        out, err, ended = done.stdout, done.stderr, how_it_ended(done.returncode)
    except subprocess.TimeoutExpired as error:
        out, err = (stream.decode(errors="replace") if stream else "" for stream in (error.stdout, error.stderr))
        ended = f"did not come to an end within {SECONDS} s"
    section, subject = "packages", "manyheads"
    for line in out.splitlines():
        # Every line is ours: the process moves what libraries print to stderr before its first step.
        message = json.loads(line)
        section = message["section"]
        if "finding" in message:
            yield section, Finding(**message["finding"])
        else:
            subject = message["subject"]
    if ended:
        last = one_line((err.strip().splitlines() or ["nothing"])[-1])
        advice = next((words for name, words in ENDED.items() if name in ended), "Does the same happen again?")
        words = f"the process that tried it {ended}; it said: {last}. What comes after it was not looked at"
        yield section, Finding(subject, words, WRONG, advice)


def how_it_ended(code: int) -> str:
    """How a process ended, by its return code; "" where it ended well."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}" if code else ""
