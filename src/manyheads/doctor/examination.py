"""Everything looked at, one after another: what cannot be looked at is a finding too, and the rest goes on."""

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


def examine() -> Examination:
    """Look at all of it. Cost: some ten seconds, most of it torch's and transformers' own imports."""
    found: dict[str, list[Finding]] = {title: [] for title in TITLES}
    said: set[str] = set()
    found["packages"] += [*looked("manyheads", packages.own, said), *looked("python", packages.python, said)]
    found["packages"] += looked("what it needs", packages.needed, said)
    found["extras"] += looked("extras", packages.extras, said)
    for section, finding in tried():
        if finding.subject not in said:  # else it has been told of
            found[section].append(finding)
    found["environment"] += looked("variables", surroundings.variables, said)
    if packages.checkout() is not None:
        found["environment"] += looked("Chromium", surroundings.browser, said)
    return Examination({title: tuple(findings) for title, findings in found.items() if findings})


def looked(subject: str, look: Callable[[], Iterable[Finding]], said: set[str]) -> list[Finding]:
    """What `look` finds. What is not installed has been said by `packages.own`.

    A package that it needs and that cannot be imported is wrong once: `said` names those that have been told of.
    """
    try:
        return list(look())
    except PackageNotFoundError:
        return []
    except Exception as error:
        failed = failed_import(error)
        if failed is None:
            return [Finding(subject, f"failed with {in_words(error)}", WRONG, REPORT)]
        name = failed.package
        why = "is not installed" if failed.missing else f"cannot be imported ({in_words(failed.error)})"
        remedy = f"pip install {'' if failed.missing else '--force-reinstall '}{name}"
        state = NOTE if name in said else WRONG
        said.add(name)
        return [Finding(subject, f"not known, since that needs {name}, which {why}", state, remedy)]


# ---------------------------------------------------------------------------------------------------------------------
# The trials, started in a fresh process and read: what they found, or what they were at when the process ended.


SECONDS = 300  # it takes about 10
PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from manyheads.doctor.trials import main; main()"
ENDED = {
    "SIGILL": "This build of torch has instructions that this processor lacks: install another build.",
    "SIGKILL": "Was there memory for it? Free some, and try again.",
}


def tried() -> Iterator[tuple[str, Finding]]:
    """Section and finding, one after the other. The process looks for modules where this one does."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(sys.path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=SECONDS
        )
        out, err, ended = done.stdout, done.stderr, how_it_ended(done.returncode)
    except subprocess.TimeoutExpired as error:
        out, err = (each.decode(errors="replace") if each else "" for each in (error.stdout, error.stderr))
        ended = f"did not come to an end within {SECONDS} s"
    section, subject = "packages", "manyheads"
    for line in out.splitlines():
        said = json.loads(line)
        section = said["section"]
        if "finding" in said:
            yield section, Finding(**said["finding"])
        else:
            subject = said["subject"]
    if ended:
        last = one_line((err.strip().splitlines() or ["nothing"])[-1])
        advice = next((words for name, words in ENDED.items() if name in ended), "Does the same happen again?")
        words = f"the process that tried it {ended}; it said: {last}. What comes after it was not looked at"
        yield section, Finding(subject, words, WRONG, advice)


def how_it_ended(code: int) -> str:
    """ "" where it ended well."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with code {code}" if code else ""
