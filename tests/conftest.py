"""Strict promotion, eight host devices, warnings as errors and runtime type checks for the whole test run."""

import ctypes
import gc
import os
import threading
from pathlib import Path

from tests.support import type_checks  # noqa: F401 - jaxtyping, which is told its name, imports `tests` alone
from tests.support.quick import QUICK

# Compilation is most of the time of these tests, and most of that would go into code that they run once.
os.environ.setdefault("XLA_FLAGS", QUICK)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "device_count=8" not in os.environ["XLA_FLAGS"]:
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"

import hypothesis
import jax
import jaxtyping
import pytest

pytest_plugins = ("tests.support.budget", "tests.support.programs", "tests.support.shards")
pytest.register_assert_rewrite(*(f"tests.support.{name}" for name in ("cases", "cli", "laws", "biases")))

jax.config.update("jax_numpy_dtype_promotion", "strict")
gc.set_threshold(50_000, 20, 50)  # what is traced is many objects and little garbage: look for cycles seldom
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=25, database=None)
hypothesis.settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Without xdist (`-p no:xdist`), know its options in pyproject.toml, which then say nothing."""
    if not pluginmanager.hasplugin("xdist"):
        for option in ("--numprocesses", "--maxprocesses", "--dist"):
            parser.addoption(option)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Start no workers for one file or one test: each takes seconds to start, and what a file shares is made twice."""
    path = config.args[0].split("::")[0]
    return 0 if len(config.args) == 1 and path.endswith(".py") else None


UNCHECKED = ("arguments", "benchmarks", "colab", "data", "models", "ops", "train", "visualize")
"""Folders of tests that call pejax as the tests of the contract, encodings, extensions and attention do."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check types at run time where every public function is called: a sixth of the time of a test goes into it."""
    jaxtyping.config.update("jaxtyping_disable", item.path.parent.name in UNCHECKED)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests that are slow and long: the first run in a share of every CI, the others by hand."""
    for item in items:
        if item.get_closest_marker("slow") and item.get_closest_marker("long"):
            raise pytest.UsageError(f"{item.nodeid} must be marked slow or long, got both")


def pytest_collection_finish() -> None:
    """Do not look for cycles in what is imported."""
    gc.collect()
    gc.freeze()


MEMORY = Path("/proc/self/statm")  # on Linux
MOST = 2 * 2**30
"""Bytes that a process may hold at the end of a file of tests before it lets go of what it has compiled."""


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep memory bounded: all slow tests in two workers would leave 12 GB of programs behind."""
    if nextitem is None or nextitem.path == item.path or not MEMORY.exists():
        return
    if int(MEMORY.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST:
        jax.clear_caches()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", abs)(0)  # glibc keeps what is freed


STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep the status for the end."""
    session.config.stash[STATUS] = int(session.exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End ten seconds after the last line: Python waits for threads, and those of a failed checkpoint take minutes."""
    late = threading.Timer(10.0, os._exit, (config.stash.get(STATUS, 1),))
    late.daemon = True
    late.start()
