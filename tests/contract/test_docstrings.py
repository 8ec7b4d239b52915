"""The examples in docstrings run, and print what they say; those of pictures are run by tests/visualize."""

import doctest
import importlib

import pytest
from test_imports import PEJAX

WITH_EXAMPLES = [module for module, path in PEJAX.items() if ">>>" in path.read_text() and "isualize" not in module]
LONG = {
    *("pejax.models.generation.decoder", "pejax.models.stack.cache", "pejax._attention.kernel_check"),
    *("pejax._encodings.fire", "pejax._encodings.cpb", "pejax._tokens.positions"),
}
"""Modules whose examples take over a second."""


@pytest.mark.parametrize(
    "module", [pytest.param(item, marks=pytest.mark.slow) if item in LONG else item for item in WITH_EXAMPLES]
)
def test_the_examples_of_a_module_run(module):
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0
