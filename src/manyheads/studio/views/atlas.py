"""The atlas and the head card: every head's numbers on a text, its role by the bundled page, its strongest links.

Numbers come from the recording alone (`measure_recording`), roles from the model's page, where the model is here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from manyheads.heads import Head
from manyheads.interventions import Importance
from manyheads.recording import LayerRecord
from manyheads.roles import PageLabels
from manyheads.roles.role_table import CAVEAT
from manyheads.statistics import DEFAULT, STATISTICS, Statistic
from manyheads.statistics.head_table import number
from manyheads.statistics.of_a_recording import EVERY_ROW, measure_recording
from manyheads.studio.schema.recordings import Atlas, AtlasHead, CardValue, HeadCard, Link, StatisticInfo
from manyheads.studio.state.labels import basis_of, role_info
from manyheads.studio.state.recordings import Opened
from manyheads.studio.views.recording import layer_info

__all__ = ["CAVEAT", "atlas_of", "card_of", "table_of"]


TABLE_CELLS = 400_000_000  # visible cells over all heads; more, and rows are sampled: some seconds
LINKS = 24
LINK_ROWS = 2_048  # rows that are read for the strongest links
LINK_CELLS = 1 << 24


def atlas_of(opened: Opened, text: int, labels: PageLabels | None) -> Atlas:
    """Every head's numbers on one text; importance among them where it has been found."""
    table = table_of(opened, text)
    shown = [statistic for statistic in table.statistics if statistic.kind != "chance"]
    infos, columns = [statistic_info(each) for each in shown], [table.column(each.name) for each in shown]
    if (found := opened.kept.get(("importance", text))) is not None:
        infos.append(importance_info(found))
        worth = dict(zip(found.heads, found.values, strict=True))
        columns.append([worth.get(head, math.nan) for head in table.heads])
    roles = {} if labels is None else {role.head: role_info(role) for role in labels.roles}
    places = {head: at for at, head in enumerate(table.heads)}
    heads = [
        AtlasHead(
            head=str(head),
            stack=head.stack,
            layer=head.layer,
            index=head.index,
            kv_group=layer.site.kv_head_of(head.index),
            role=roles.get(head),
            # What a head between two texts does (cross-attention) has no statistics of one text.
            values=[number(column[places[head]]) if head in places else None for column in columns],
        )
        for layer in opened.layers()
        for head in layer.site.heads
    ]
    return Atlas(
        recording=opened.id,
        text=text,
        statistics=infos,
        heads=heads,
        roles_because="not known yet" if labels is None else basis_of(labels),
        caveat=CAVEAT,
        exact=exactness(table.notes),
    )


def importance_info(found: Importance) -> StatisticInfo:
    """What importance is here: by which metric, and that it holds for this text alone."""
    return StatisticInfo(
        name="importance",
        title="importance",
        unit=found.unit,
        low=None,
        high=None,
        meaning=f"what is lost on this text alone when the head is silenced: {found.metric}, {found.notes['metric']}",
        source="zero ablation, each head by itself; Michel et al. 2019, section 4.1",
    )


def table_of(opened: Opened, text: int) -> Any:
    """The table of one text, chance levels included; computed once."""
    opened.check_text(text)
    names = [n for n in STATISTICS if n.split(".")[0] in DEFAULT]
    sinks = opened.sinks(text)

    def make() -> Any:
        return measure_recording(opened.recording, names, text=text, sinks=sinks, most_cells=TABLE_CELLS)

    return opened.once(("table", text), make)


def card_of(opened: Opened, head: str, text: int, labels: PageLabels | None) -> HeadCard:
    """All that is known of one head."""
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    site = layer.site
    name, group = Head(site.stack, site.layer, index), site.kv_head_of(index)
    role = None if labels is None else next((each for each in labels.roles if each.head == name), None)
    page = {} if labels is None else labels.values.get(str(name), {})
    values, exact = [], "exact"
    if not layer.crosses:
        table = table_of(opened, text)
        values, exact = _values(table, name, page), exactness(table.notes)
    shares = [str(each) for each in site.heads if site.kv_head_of(each.index) == group and each.index != index]
    links, said = opened.once(("links", text, head), lambda: links_of(layer, index, text, opened.sinks(text)))
    return HeadCard(
        head=str(name),
        recording=opened.id,
        text=text,
        layer=layer_info(layer, opened.main, text),
        kv_group=group,
        shares_with=shares,
        role=None if role is None else role_info(role),
        values=values,
        links=links,
        exact=exact if said == "exact" else f"{exact}; links: {said}",
        because=layer.because,
        caveat=CAVEAT,
    )


def _values(table: Any, head: Head, page: Mapping[str, float | None]) -> list[CardValue]:
    """A head's statistics, each beside the most that chance gives and beside its value on the page."""
    at, values = table.heads.index(head), []
    for statistic in table.statistics:
        if statistic.kind == "chance":
            continue
        chances = [table.column(name)[at] for name in table.names if name.startswith(f"{statistic.name}.")]
        known = [chance for chance in chances if not math.isnan(chance)]
        values.append(
            CardValue(
                statistic=statistic_info(statistic),
                value=number(table.column(statistic.name)[at]),
                chance=number(max(known)) if known else None,
                page=page.get(statistic.name),
            )
        )
    return values


def links_of(layer: LayerRecord, head: int, text: int, sinks: Any) -> tuple[list[Link], str]:
    """Each query's best key but the sinks, the strongest first; of a long text, of rows spread evenly over it."""
    num_rows, num_keys = layer.num_queries(text), layer.num_keys(text)
    most = max(1, min(num_rows, LINK_ROWS, LINK_CELLS // max(1, num_keys)))
    rows = (torch.arange(most, dtype=torch.float64) * num_rows / most).long()
    barred = None
    if not layer.crosses and layer.tokens.ids is not None:
        barred = layer.tokens.text(text).with_sinks(sinks).sink[0, :num_keys]
    best: list[tuple[float, int, int]] = []
    step = max(1, (1 << 20) // max(1, num_keys))
    for begin in range(0, most, step):
        chosen = rows[begin : begin + step]
        weights = _rows(layer, head, chosen, text)
        if barred is not None:
            weights = weights.masked_fill(barred, 0)
        value, key = weights.max(-1)
        best += [(v, q, k) for v, q, k in zip(value.tolist(), chosen.tolist(), key.tolist(), strict=True) if v > 0]
    best.sort(key=lambda each: -each[0])
    links = [Link(query=query, key=key, weight=value) for value, query, key in best[:LINKS]]
    return links, "exact" if most == num_rows else f"of {most:,} of {num_rows:,} rows, spread evenly"


def _rows(layer: LayerRecord, head: int, rows: torch.Tensor, text: int) -> torch.Tensor:
    if len(rows) and int(rows[-1]) - int(rows[0]) + 1 == len(rows):
        return layer.weights(head, slice(int(rows[0]), int(rows[-1]) + 1), None, text)
    return torch.cat([layer.weights(head, slice(at, at + 1), None, text) for at in rows.tolist()])


def statistic_info(each: Statistic) -> StatisticInfo:
    low, high = each.range
    return StatisticInfo(
        name=each.name,
        title=each.name.replace("_", " "),
        unit=each.unit,
        low=number(low),
        high=number(high),
        meaning=each.meaning,
        source=each.source,
    )


def exactness(notes: dict[str, str]) -> str:
    return "exact" if notes["rows"] == EVERY_ROW else f"sampled: {notes['rows']}"
