"""The compiler for TPUs that are not here: what its tests need."""

import importlib.util
import os

import pytest

from tests.support.programs import compilation_options
from train.plan.topology import ENVIRONMENT


@pytest.fixture(autouse=True, scope="module")
def compiler():
    """Set what libtpu reads; skip where it is missing, or fail where the environment has PEJAX_REQUIRE_TPU=1."""
    if importlib.util.find_spec("libtpu") is None:
        if os.environ.get("PEJAX_REQUIRE_TPU") == "1":
            pytest.fail("libtpu must be installed where PEJAX_REQUIRE_TPU=1")
        pytest.skip("libtpu is not installed")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        # Without a TPU a program that `--keep-programs` kept cannot be read again.
        with compilation_options(jax_enable_compilation_cache=False):
            yield
