"""The role of each head of a model: measured once per model on the bundled page, worded as the page shows it."""

from __future__ import annotations

from manyheads.roles import HeadRole, PageLabels, label_page
from manyheads.roles.role_table import group_of
from manyheads.studio.jobs import Say
from manyheads.studio.problems import NotHere
from manyheads.studio.schema.recordings import EvidenceInfo, RoleEntry, RoleInfo, Roles
from manyheads.studio.state.recordings import Opened
from manyheads.studio.state.workspace import Workspace

__all__ = ["Labels", "basis_of", "role_info"]


class Labels:
    """The page's labels of each model, measured once (`label_page` keeps them on the disk, too)."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.known: dict[str, PageLabels] = {}

    def find(self, model: str, say: Say) -> PageLabels:
        """Measure the roles of a model, unless they are known. Raises NotHere for an unknown model, TextError."""
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
        """The labels of a recording's model as far as they are known; None where its heads were edited."""
        return None if opened.edited else self.known.get(opened.model)

    def roles(self, opened: Opened, say: Say) -> Roles:
        if opened.edited:
            raise NotHere("roles are of the model as it is, and the heads of this recording were edited.")
        labels = self.find(opened.model, say)
        entries = [RoleEntry(head=str(role.head), role=role_info(role)) for role in labels.roles]
        return Roles.of(labels, recording=opened.id, roles=entries, because=basis_of(labels))


def basis_of(labels: PageLabels) -> str:
    """The texts that roles were measured on. Where on the disk they are kept is left out: the page may be shared."""
    because = labels.because.partition(" (")[0]
    return f"{labels.num_texts} {labels.texts_are}, {labels.num_tokens:,} tokens; {because}"


def role_info(role: HeadRole) -> RoleInfo:
    """A role and its group, which has one colour and letter: "sink [CLS]" is in "sink", "offset -3" in "local"."""
    return RoleInfo(name=role.name, family=group_of(role.name), evidence=EvidenceInfo.of(role.evidence))
