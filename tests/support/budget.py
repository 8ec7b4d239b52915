"""What a run of the tests ends with: its slowest tests, its time by folder, and a warning if it is over budget."""

import time
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

SECONDS = 540.0
"""What the tests of the default run may take in all: five minutes on two cores, less what it takes to start."""

REFERENCE = 0.052
"""Seconds of `calibration` on the machine for which `SECONDS` are meant, an Intel Xeon."""

OTHERS = ("slow", "long", "parity", "tpu")
"""Markers of the tests that the default run leaves out."""


class Budget:
    """Durations of tests, setup and teardown included, wherever they ran."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.default = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += report.duration
        if not any(marker in report.keywords for marker in OTHERS):
            self.default += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.tests:
            return
        folders: Counter[str] = Counter()
        for test, seconds in self.tests.items():
            folders[test.split("::")[0].rpartition("/")[0].removeprefix("tests/")] += seconds
        terminalreporter.section("time")
        for test, seconds in self.tests.most_common(10):
            if seconds >= 0.1:
                terminalreporter.line(f"{seconds:7.1f} s  {test}")
        by_folder = ", ".join(f"{folder} {seconds:.0f}" for folder, seconds in folders.most_common())
        terminalreporter.line(f"{self.tests.total():7.1f} s  in all: {by_folder}")
        if self.default > SECONDS / 10:
            allowed = SECONDS * calibration() / REFERENCE
            terminalreporter.line(f"{self.default:7.1f} s  in the default run; five minutes here are {allowed:.0f} s")
            if self.default > allowed:
                terminalreporter.line(
                    "warning: the default run is over its budget: mark some of its tests slow, or make them cheaper",
                    yellow=True,
                )


def calibration() -> float:
    """Return the seconds of CPU time that this machine takes to trace and lower one fixed program.

    It is not compiled: how long XLA takes for one program differs by version far more than for all tests together.
    """

    def program(x: jax.Array) -> jax.Array:
        for step in range(30):
            x = jnp.sin(x @ x.T + step) @ x
        return jnp.sum(x)

    def once() -> float:
        start = time.process_time()
        jax.jit(jax.grad(lambda x: program(x))).lower(jnp.ones((8, 8)))
        return time.process_time() - start

    return min(once() for _ in range(5))  # the first starts JAX


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that prints
        config.pluginmanager.register(Budget(), "budget of time")
