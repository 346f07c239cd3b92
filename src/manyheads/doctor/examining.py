"""Everything looked at, one after another: what cannot be looked at is a finding too, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError

from manyheads.doctor import packages, surroundings
from manyheads.doctor.findings import NOTE, REPORT, WRONG, Examination, Finding, in_words
from manyheads.doctor.importing import failed_import
from manyheads.doctor.trying import tried

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
