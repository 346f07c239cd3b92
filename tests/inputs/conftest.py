"""What tests of inputs share: models as the tests of `models` make them."""

from tests.models.conftest import bert as bert
from tests.models.conftest import made as made
