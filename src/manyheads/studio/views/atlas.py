"""The Atlas and the head card: every head's statistics on a text, its role on the bundled texts, its strongest links.

Statistics come from the recording alone (`measure_recording`); roles from the labels of its model, where it is known:
measured once per model, and worded as the page shows them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from numpy import ndarray

from manyheads.corpora import reading_of
from manyheads.edits import METRICS
from manyheads.heads import Head
from manyheads.interventions import Importance
from manyheads.measurement import EVERY_ROW, measure_recording
from manyheads.recording import LayerRecord, TellingSearch, spaced_words
from manyheads.roles import HeadRole, PageLabels, label_page, shipped_labels
from manyheads.roles.words import CAVEAT, group_of
from manyheads.statistics import DEFAULT, STATISTICS, HeadTable, Statistic
from manyheads.studio.jobs import ReportProgress
from manyheads.studio.problems import NotHere
from manyheads.studio.schema import recordings as bodies
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace
from manyheads.studio.views.maps import FILE_TYPES, file_bytes
from manyheads.studio.views.recording import layer_info
from manyheads.texts import Sinks, Words

TABLE_CELLS = 400_000_000  # visible cells over all heads; beyond, rows are sampled: some seconds
LINKS = 24
LINK_ROWS = 2_048  # rows that are read for the strongest links
LINK_CELLS = 1 << 24
TELLING_CELLS = 1 << 17  # weights between words, over all heads, that the link to begin with is searched among


def atlas_of(opened: Opened, text: int, labels: PageLabels | None) -> bodies.Atlas:
    """Every head's statistics on one text; importance among them once it has been measured."""
    table = table_of(opened, text)
    statistics = [statistic for statistic in table.statistics if statistic.kind != "chance"]
    infos = [_statistic_info(statistic) for statistic in statistics]
    columns: list[Sequence[float] | ndarray] = [table.column(statistic.name) for statistic in statistics]
    importance: Importance | None = opened.computed.get(("importance", text))
    if importance is not None:
        exact = importance.estimator == "ablation"
        what = (
            "what is lost when the head is ablated"
            if exact
            else "an estimate, without a sign, of what its loss changes"
        )
        how = "zero ablation, each head by itself" if exact else "the gradient in a gate on each head"
        infos.append(
            bodies.StatisticInfo(
                name="importance",
                title="importance",
                unit=importance.unit,
                low=None,
                high=None,
                meaning=f"{what}: {METRICS[importance.metric].meaning}",
                source=f"{how}; Michel et al. 2019, section 4.1. Measured so because: {importance.notes['metric']}",
            )
        )
        values = dict(zip(importance.heads, importance.values, strict=True))
        columns.append([values.get(head, math.nan) for head in table.heads])
    roles = {} if labels is None else {role.head: _role_info(role) for role in labels.roles}
    places = {head: index for index, head in enumerate(table.heads)}
    heads = [
        bodies.AtlasHead.of(
            head,
            head=str(head),
            kv_group=layer.site.kv_head_of(head.index),
            role=roles.get(head),
            # A head that reads another text (cross-attention) has no statistics of one text.
            values=[column[places[head]] if head in places else None for column in columns],
        )
        for layer in opened.layers()
        for head in layer.site.heads
    ]
    return bodies.Atlas(
        recording=opened.id,
        text=text,
        statistics=infos,
        heads=heads,
        roles_because="not known yet" if labels is None else _basis_of(labels),
        caveat=CAVEAT,
        exact=_exactness(table.notes),
        telling=opened.once(("telling", text), lambda: _telling_of(opened, text)),
    )


def table_file(opened: Opened, text: int, kind: str) -> tuple[str, str, bytes]:
    """Every head's statistics as a file, one row per head: its name, media type and bytes."""
    return f"heads.{kind}", FILE_TYPES[kind], file_bytes(table_of(opened, text).to_pandas(), kind)


def table_of(opened: Opened, text: int) -> HeadTable:
    """The table of one text's statistics, chance levels included; computed once."""
    opened.check_text(text)
    names = [name for name in STATISTICS if name.split(".")[0] in DEFAULT]
    sinks = opened.sinks(text)
    return opened.once(
        ("table", text),
        lambda: measure_recording(opened.recording, names, text=text, sinks=sinks, most_cells=TABLE_CELLS),
    )


def card_of(opened: Opened, head: str, text: int, labels: PageLabels | None) -> bodies.HeadCard:
    """Everything known about one head: statistics beside chance and beside the page, role, strongest links."""
    layer, index = opened.layer_of(head)
    opened.check_text(text)
    site = layer.site
    name, group = Head(site.stack, site.layer, index), site.kv_head_of(index)
    role = None if labels is None else labels.role_of(name)
    page = {} if labels is None else labels.values.get(str(name), {})
    values, exact = [], "exact"
    if not layer.crosses:
        table = table_of(opened, text)
        place, exact = table.heads.index(name), _exactness(table.notes)
        for statistic in table.statistics:
            if statistic.kind == "chance":
                continue
            chances = [table.column(column)[place] for column in table.names if column.startswith(f"{statistic.name}.")]
            levels = [chance for chance in chances if not math.isnan(chance)]
            values.append(
                bodies.CardValue(
                    statistic=_statistic_info(statistic),
                    value=table.column(statistic.name)[place],
                    chance=max(levels) if levels else None,
                    page=page.get(statistic.name),
                )
            )
    links, links_exact = opened.once(("links", text, head), lambda: _links_of(layer, index, text, opened.sinks(text)))
    return bodies.HeadCard(
        head=str(name),
        recording=opened.id,
        text=text,
        layer=layer_info(layer, opened.main, text),
        kv_group=group,
        shares_with=[
            str(sharing) for sharing in site.heads if site.kv_head_of(sharing.index) == group and sharing.index != index
        ],
        role=None if role is None else _role_info(role),
        values=values,
        links=links,
        exact=exact if links_exact == "exact" else f"{exact}; links: {links_exact}",
        because=layer.because,
        caveat=CAVEAT,
    )


class Labels:
    """The page's labels of each model, measured once (`label_page` keeps them on the disk as well)."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.known: dict[str, PageLabels] = {}
        self._none: dict[str, None] = {}  # loaded models with which no labels come
        self._lock = threading.Lock()

    def of(self, opened: Opened) -> PageLabels | None:
        """The labels of a recording's model as far as they are known; None where its heads were edited."""
        return None if opened.edited else self.at_hand(opened.model)

    def at_hand(self, model: str) -> PageLabels | None:
        """The labels of a model that are known, or come with the package for one that is loaded; None: not yet."""
        with self._lock:  # reading the weights' digest takes a moment: a second request waits for the first
            if model not in (*self.known, *self._none) and (lm := self.workspace.loaded.get(model)) is not None:
                labels = shipped_labels(lm)
                if labels is None:
                    self._none[model] = None
                else:
                    self.known[model] = labels
        return self.known.get(model)

    def sinks_of(self, model: str) -> Sinks | None:
        """Where a model parks attention, from its labels; None where they are not at hand."""
        labels = self.at_hand(model)
        return None if labels is None or not labels.roles else labels.sinks

    def roles(self, opened: Opened, report: ReportProgress) -> bodies.Roles:
        """The roles of a recording's heads, measured unless they are known. Raises NotHere, TextError."""
        model = opened.model
        if opened.edited:
            raise NotHere("roles are of the model as it is, and the heads of this recording were edited.")
        if model not in self.workspace.models:
            raise NotHere(f"{model} is not in this workspace, so its roles cannot be measured: add --model {model}.")
        if model not in self.known:
            lm = self.workspace.load(model, report)
            words = "reading the bundled texts (once for each model)"
            report(words, 0, None)
            self.known[model] = label_page(lm, progress=lambda done, total: report(words, done, total))
        labels = self.known[model]
        entries = [bodies.RoleEntry(head=str(role.head), role=_role_info(role)) for role in labels.roles]
        return bodies.Roles.of(labels, recording=opened.id, roles=entries, because=_basis_of(labels))


def _basis_of(labels: PageLabels) -> str:
    """The texts that roles were measured on. Where on the disk they are kept is left out: the page may be shared."""
    because = labels.because.partition(" (")[0]
    return f"{labels.num_texts} {labels.texts_are}, {labels.num_tokens:,} tokens; {because}"


def _role_info(role: HeadRole) -> bodies.RoleInfo:
    """A role and its group, which has one colour and letter: "sink [CLS]" is in "sink", "offset -3" in "local"."""
    return bodies.RoleInfo.of(role, family=group_of(role.name), evidence=bodies.EvidenceInfo.of(role.evidence))


def _links_of(layer: LayerRecord, head: int, text: int, sinks: Sinks) -> tuple[list[bodies.Link], str]:
    """Each query's best key apart from sinks, the strongest first, and which rows of the map were read."""
    num_rows, num_keys = layer.num_queries(text), layer.num_keys(text)
    most = max(1, min(num_rows, LINK_ROWS, LINK_CELLS // max(1, num_keys)))
    rows = (torch.arange(most, dtype=torch.float64, device="cpu") * num_rows / most).long()
    is_sink = None  # a sink takes most of nearly every row, and would fill the list
    if not layer.crosses and layer.tokens.ids is not None:
        is_sink = layer.tokens.text(text).with_sinks(sinks).sink[0, :num_keys]
    best: list[tuple[float, int, int]] = []
    step = max(1, (1 << 20) // max(1, num_keys))
    for begin in range(0, most, step):
        queries = rows[begin : begin + step]
        first, last = int(queries[0]), int(queries[-1])
        if last - first + 1 == len(queries):
            weights = layer.weights(head, slice(first, last + 1), None, text)
        else:  # rows of a long text lie apart: one by one costs less than the rows between them
            weights = torch.cat([layer.weights(head, slice(row, row + 1), None, text) for row in queries.tolist()])
        weights = weights.cpu()
        if is_sink is not None:
            weights = weights.masked_fill(is_sink, 0)
        top, keys = weights.max(-1)
        best += [
            (weight, query, key)
            for weight, query, key in zip(top.tolist(), queries.tolist(), keys.tolist(), strict=True)
            if weight > 0
        ]
    best.sort(key=lambda link: -link[0])  # stable: of equal weights the earlier query comes first
    links = [bodies.Link(query=query, key=key, weight=weight) for weight, query, key in best[:LINKS]]
    return links, "exact" if most == num_rows else f"of {most:,} of {num_rows:,} rows, spread evenly"


def _telling_of(opened: Opened, text: int) -> bodies.TellingLink | None:
    """The link to begin with: of an example text the one that its question asks for, else the one that tells most."""
    if not opened.main.tokens.pieces:  # a call that was recorded without its text has no words to link
        return None
    words = Words.of(opened.main.tokens)
    units, question, link, num_units = words.units(text), reading_of(opened.model).question, None, None
    if question is not None and (opened.written or words.texts[text]).strip() == question[0].strip():
        names = [word.name for word in spaced_words(words, text)]
        query = next((i for i in reversed(range(len(units))) if units[i].text == question[1]), None)
        key = next((i for i, unit in enumerate(units) if unit.text == question[2]), None)  # as the page reads them
        if query is not None and key is not None:
            link = opened.recording.heads_linking(names[query], names[key], text=text)[0]
    if link is None:
        layers = [layer for layer in opened.layers() if not layer.crosses and layer.tokens is opened.main.tokens]
        num_heads = sum(layer.site.num_heads for layer in layers)
        num_units = max(2, math.isqrt(TELLING_CELLS // max(1, num_heads)))
        search = TellingSearch(num_units)
        for layer in layers:
            search.add(layer, words, text)
        link = search.link
    if link is None:
        return None
    names = [word.name for word in spaced_words(words, text, num_units)]  # names count among the words searched
    query, key = (units[names.index(name)].tokens[0] for name in (link.query, link.key))
    return bodies.TellingLink(head=str(link.head), query=query, key=key, weight=link.weight)


def _statistic_info(statistic: Statistic) -> bodies.StatisticInfo:
    low, high = statistic.range
    return bodies.StatisticInfo.of(statistic, title=statistic.title, low=low, high=high)


def _exactness(notes: dict[str, str]) -> str:
    return "exact" if notes["rows"] == EVERY_ROW else f"sampled: {notes['rows']}"
