"""What a look found as data: one JSON document, and a frame with a row a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyheads.cli.roleview import plain, role_of
from manyheads.statistics.head_table import number

if TYPE_CHECKING:
    import pandas as pd

    from manyheads.cli.look import Looked

CAVEAT = "Attention is not effect: a role says what a head reads, not what is lost without it."


def document(found: Looked) -> dict[str, Any]:
    """Everything; null where there is no number."""
    lm, labels, table = found.lm, found.labels, found.table
    return {
        "model": {"asked": found.model, "because": lm.because, **lm.spec.to_dict()},
        "text": {
            "origin": found.source.origin,
            "text": found.source.text,
            "tokens_read": table.sums.num_tokens,
            "texts_or_windows": table.sums.num_texts,
        },
        "page": {
            "texts": labels.num_texts,
            "texts_are": labels.texts_are,
            "tokens": labels.num_tokens,
            "because": labels.because,
            "sinks": list(labels.sinks.names),
            "notes": dict(labels.notes),
        },
        "statistics": {
            each.name: {"unit": each.unit, "meaning": each.meaning, "source": each.source} for each in table.statistics
        },
        "heads": _heads(found),
        "notes": {**table.notes, "caveat": CAVEAT},
        "written": list(found.written),
        "seconds": {step: round(value, 3) for step, value in found.seconds.items()},
    }


def _heads(found: Looked) -> list[dict[str, Any]]:
    columns = {name: found.table.column(name) for name in found.table.names}
    heads = []
    for index, head in enumerate(found.table.heads):
        values = {name: number(column[index]) for name, column in columns.items()}
        role = role_of(found.labels, head)
        heads.append(
            {
                "head": str(head),
                "stack": head.stack,
                "layer": head.layer,
                "index": head.index,
                "role": None if role is None else role.name,
                "evidence": None if role is None else evidence_of(role),
                "page": found.labels.values.get(str(head)),
                "text": values,
            }
        )
    return heads


def evidence_of(role: Any) -> dict[str, Any]:
    return {key: value for key, value in plain(role.to_dict()).items() if key not in ("head", "role")}


def frame(labels: Any, table: Any, asked: tuple[str, ...]) -> pd.DataFrame:
    """A row a head: role and evidence from the page, then what was asked of the text."""
    from dataclasses import asdict

    import pandas as pd

    from manyheads.roles.labels import Evidence

    whole = table.to_pandas()
    roles = [role_of(labels, head) for head in table.heads]
    said = pd.DataFrame([{} if role is None else asdict(role.evidence) for role in roles])
    said = said.reindex(columns=list(Evidence.__dataclass_fields__)).add_prefix("page_")
    said.insert(0, "role", [None if role is None else role.name for role in roles])
    return pd.concat([whole[["head", "stack", "layer", "index", "module"]], said, whole[list(asked)]], axis=1)
