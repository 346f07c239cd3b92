"""What each head of a model does, by the bundled page: measured once for each model, and told in the page's words."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from manyheads.roles import HeadRole, PageLabels, label_page
from manyheads.roles.role_table import group_of
from manyheads.statistics.head_table import number
from manyheads.studio.jobs import Say
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.recordings import EvidenceInfo, RoleEntry, RoleInfo, Roles
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace

__all__ = ["Labels", "basis_of", "role_info"]


class Labels:
    """The page's labels of each model, measured once (and remembered on the disk by `label_page`)."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.known: dict[str, PageLabels] = {}

    def find(self, model: str, say: Say) -> PageLabels:
        """Read the page, if nobody has. Raises NotHere for a model that is not here, TextError where it cannot read."""
        if model not in self.workspace.models:
            raise NotHere(f"{model} is not in this workspace, so its roles cannot be measured: add --model {model}.")
        if model not in self.known:
            say(f"loading {model}", 0, None)
            lm = self.workspace.load(model)
            words = "reading the page that roles rest on (once for each model)"
            say(words, 0, None)
            self.known[model] = label_page(lm, progress=lambda done, total: say(words, done, total))
        return self.known[model]

    def of(self, opened: Opened) -> PageLabels | None:
        """What is known of a recording's model by now; nothing where its heads were edited."""
        return None if opened.edited else self.known.get(opened.model)

    def roles(self, opened: Opened, say: Say) -> Roles:
        if opened.edited:
            raise NotHere("roles are of the model as it is, and the heads of this recording were edited.")
        found = self.find(opened.model, say)
        entries = [RoleEntry(head=str(role.head), role=role_info(role)) for role in found.roles]
        return Roles(
            recording=opened.id,
            roles=entries,
            because=basis_of(found),
            num_texts=found.num_texts,
            num_tokens=found.num_tokens,
        )


def basis_of(labels: PageLabels) -> str:
    """What roles rest on; where on the disk they are remembered is for the command to say, not for a page."""
    because = labels.because.partition(" (")[0]
    return f"{labels.num_texts} {labels.texts_are}, {labels.num_tokens:,} tokens; {because}"


def role_info(role: HeadRole) -> RoleInfo:
    told: dict[str, Any] = asdict(role.evidence)
    fields = {name: told[name] for name in EvidenceInfo.model_fields}
    evidence = EvidenceInfo.model_validate({k: number(x) if isinstance(x, float) else x for k, x in fields.items()})
    return RoleInfo(name=role.name, family=group_of(role.name), evidence=evidence)
