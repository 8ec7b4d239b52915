"""Other people's implementations to compare with."""

import importlib
import os
import types
import warnings

import pytest


def peer(name: str) -> types.ModuleType:
    """Import a peer; where it is missing, skip the test, or fail it when the environment has PEJAX_REQUIRE_PEERS=1."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] != name.partition(".")[0]:
            raise
        if os.environ.get("PEJAX_REQUIRE_PEERS") == "1":
            pytest.fail(f"{name} must be installed where PEJAX_REQUIRE_PEERS=1, got {missing}")
        pytest.skip(f"{name} is not installed")
