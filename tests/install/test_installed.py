"""The wheel in a fresh environment, with each extra: what is there runs, and what is not there is named."""

import pytest

from .building import build
from .claims import CLAIMS
from .environments import linked

pytestmark = pytest.mark.slow
EXTRAS = ((), ("minilm",), ("studio",), ("bench",), ("minilm", "studio"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def labels(tmp_path_factory):
    """Labels are measured once for all environments: they hang on sources, which are the same."""
    return tmp_path_factory.mktemp("labels")


@pytest.mark.parametrize("extras", EXTRAS, ids=lambda extras: ",".join(extras) or "none")
def test_every_claim_holds_where_the_wheel_is_installed(extras, wheel, labels, tmp_path):
    here = linked(tmp_path, wheel, extras, labels)
    for claim in CLAIMS:
        claim(here)
