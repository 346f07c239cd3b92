"""The contract of faces, for import-linter: code of another package imports a package's face, and nothing behind it.

A face is the `__init__.py` of a package, or of a folder in it, whose names its stub `__init__.pyi` lists. A module that
stands at the top itself (`manyheads.errors`) is its own face.
"""

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output
from importlinter.application.contract_utils import AlertLevel, remove_ignored_imports


class FacesContract(Contract):
    """Broken by each import, from one top-level package of `root`, of a module in another that holds no modules itself.

    - `root`: the package whose packages have faces.
    - `ignore_imports`: imports that are allowed all the same; an error where one is not there any more.
    """

    type_name = "faces"
    root = fields.StringField()
    ignore_imports = fields.SetField(subfield=fields.ImportExpressionField(), required=False)

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        warnings = remove_ignored_imports(graph, self.ignore_imports, AlertLevel.ERROR)
        files = [module for module in graph.find_descendants(self.root) if not graph.find_children(module)]
        past = [
            f"{user} imports {used}: import the name from {used.rpartition('.')[0]}, and list it in the stub there"
            for used in sorted(files)
            for user in sorted(graph.find_modules_that_directly_import(used))
            if used.count(".") > 1 and user.split(".")[:2] not in ([self.root], used.split(".")[:2])
        ]
        return ContractCheck(kept=not past, warnings=warnings, metadata={"past": past})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["past"]:
            output.print_error(line)
