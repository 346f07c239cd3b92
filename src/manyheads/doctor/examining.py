"""Everything looked at, one after another: what cannot be looked at is a finding too, and the rest goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError

from manyheads.doctor import packages, surroundings
from manyheads.doctor.findings import REPORT, WRONG, Examination, Finding, in_words
from manyheads.doctor.trying import tried

TITLES = ("packages", "extras", "machine", "attention", "bundled models", "places", "studio", "environment")


def examine() -> Examination:
    """Look at all of it. Cost: some ten seconds, most of it torch's and transformers' own imports."""
    found: dict[str, list[Finding]] = {title: [] for title in TITLES}
    found["packages"] += [*looked("manyheads", packages.own), *looked("python", packages.python)]
    found["packages"] += looked("what it needs", packages.needed)
    found["extras"] += looked("extras", packages.extras)
    for section, finding in tried():
        found[section].append(finding)
    found["environment"] += looked("variables", surroundings.variables)
    if packages.checkout() is not None:
        found["environment"] += looked("Chromium", surroundings.browser)
    return Examination({title: tuple(findings) for title, findings in found.items() if findings})


def looked(subject: str, look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """What `look` finds. What is not installed has been said by `packages.own`."""
    try:
        return list(look())
    except PackageNotFoundError:
        return []
    except ModuleNotFoundError as error:
        remedy = f"pip install {error.name}"
        return [Finding(subject, f"not known, since that needs {error.name}, which is not installed", WRONG, remedy)]
    except Exception as error:
        return [Finding(subject, f"failed with {in_words(error)}", WRONG, REPORT)]
