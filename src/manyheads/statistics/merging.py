"""What several processes have, added up on all of them: the same table everywhere, at any number of processes.

Sums are added in place over the network (float64, 50 MB for 400 statistics of 72 heads); the few words about them are
gathered as JSON.
"""

from __future__ import annotations

import json

import torch

from manyheads.statistics.accounts import Account, packed, unpacked
from manyheads.corpora.corpus import Failures
from manyheads.statistics.kindcounts import KindCounts, KindTally
from manyheads.statistics.measuring import Gathered
from manyheads.base.processes import Ranks
from manyheads.statistics.tallies import Tally, agreed, counted, read_sites

__all__ = ["everywhere"]


def everywhere(account: Account, ranks: Ranks) -> Account:
    """The sum of all processes' accounts, on each of them. With one process, the account itself."""
    if ranks.group is None:
        return account
    told = [json.loads(each) for each in ranks.gather(json.dumps(account.said()).encode())]
    rows = [unpacked(each)[0]["done"] for each in ranks.gather(packed({"done": account.done_rows()}, {}))]
    out = Account(
        Gathered(
            _tally(account.gathered.tally, [each["tally"] for each in told], ranks),
            counted(each["backend"] for each in told),
            max(each["guard_error"] for each in told),
            any(each["edited"] for each in told),
        ),
        sum((Failures.read(each["failures"]) for each in told), Failures()),
        counted(each["counts"] for each in told),
    )
    out.count_done(torch.cat(rows))
    return out


def _tally(mine: Tally | None, told: list[dict | None], ranks: Ranks) -> Tally | None:
    """Sums of all processes; one that measured nothing adds zeros of the others' shape."""
    known = [each for each in told if each is not None]
    if not known:
        return None
    sites = agreed(read_sites(each["sites"]) for each in known)
    columns = tuple(sorted({column for each in known for column in each["columns"]}))
    out = mine or Tally.empty(sites, known[0]["size"], columns, known[0]["kinds"])
    out.widen(columns)
    for tensor in (out.num, out.den, out.own):
        ranks.add(tensor)
    out.sites = sites
    out.num_texts = sum(each["num_texts"] for each in known)
    out.num_tokens = sum(each["num_tokens"] for each in known)
    if out.kinds is not None:
        out.kinds = _kinds(out.kinds, ranks)
    return out


def _kinds(mine: KindTally, ranks: Ranks) -> KindTally:
    """Every process counts over the kinds that any of them saw, and these are added."""
    counts = mine.counts()
    ids = [unpacked(each)[0]["ids"] for each in ranks.gather(packed({"ids": counts.ids}, {}))]
    wide = counts.over(torch.cat(ids).unique())
    marks = wide.mark.int()
    for tensor in (marks, wide.mass, wide.even):
        ranks.add(tensor)
    return KindTally.of(mine.layers, KindCounts(wide.ids, marks > 0, wide.mass, wide.even))
