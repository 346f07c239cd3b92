"""`python -m tests.docs [PAGE ...]`: run the code of every page, or of those named; say what was not run, and why.

The documents are held to what they say: `pages` finds the code in a page, `running` runs one page's in a process of
its own, as a reader would type it, `test_code` does so for all. `test_pages` holds what is made of the code to it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.docs.pages import blocks_of, named, pages
from tests.docs.running import Outcome, outcome_of


def main(asked: list[str]) -> int:
    chosen = [Path(each).resolve() for each in asked] or pages()
    outcomes = []
    for page in chosen:
        if any(block.language in ("python", "sh") for block in blocks_of(page)):
            outcomes.append(outcome_of(page))
            found = outcomes[-1]
            verdict = "FAILS" if found.fault else "runs"
            counts = f"{found.python:2} blocks, {found.commands:2} commands, {len(found.skipped):2} not run"
            print(f"{named(page):40} {verdict:5} {counts} {found.seconds:6.1f} s", flush=True)
            if found.fault:
                print(found.fault, flush=True)
    print(summary(outcomes))
    return int(any(each.fault for each in outcomes))


def summary(outcomes: list[Outcome]) -> str:
    """What was run, what not, and why, by reason."""
    by_reason: dict[str, list[str]] = {}
    for outcome in outcomes:
        for line, what, reason in outcome.skipped:
            by_reason.setdefault(reason, []).append(f"    {outcome.page}:{line}  {what.split(' #')[0].strip()}")
    blocks, commands = sum(each.python for each in outcomes), sum(each.commands for each in outcomes)
    skipped, seconds = sum(len(each.skipped) for each in outcomes), sum(each.seconds for each in outcomes)
    ran = f"{blocks} blocks of Python and {commands} commands run in {seconds:.0f} s of one core"
    lines = [f"\n{len(outcomes)} pages: {ran}; {skipped} not run:"]
    for reason, places in sorted(by_reason.items()):
        lines += [f"  {reason} ({len(places)})", *places]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
