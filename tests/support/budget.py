"""What a run of the tests ends with: its slowest tests, its time by folder, and whether it is within its budget."""

import time
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

SECONDS = 540.0
"""What the tests of the default run may take in all: five minutes on two cores, less what it takes to start."""

SLOW = 12_000.0
"""What all slow tests may take with nothing compiled: of a sixth, which `.ci/run` has with every commit, 17 minutes."""

REFERENCE = 0.075
"""Seconds of `calibration` on the machine for which both are meant, two cores of a Xeon (family 6, model 207)."""

OTHERS = ("slow", "long", "parity", "tpu", "gpu_aot")
"""Markers of the tests that the default run leaves out."""

ADVICE = (
    "mark some of its tests slow, or make them cheaper",
    "make them cheaper, or mark full products long and leave a covering array",
)
"""What to do where the default run is over its budget, and where slow tests are."""


class Budget:
    """Durations of tests, setup and teardown included, wherever they ran."""

    def __init__(self) -> None:
        self.tests: Counter[str] = Counter()
        self.default = self.slow = 0.0
        self.lines: list[tuple[str, bool]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += report.duration
        if not any(marker in report.keywords for marker in OTHERS):
            self.default += report.duration
        elif "slow" in report.keywords and "long" not in report.keywords:
            self.slow += report.duration

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Hold the run to its budget: slow tests over theirs are a failure, since no person waits for them."""
        if max(self.default / SECONDS, self.slow / SLOW) < 0.1:  # a few tests
            return
        speed = REFERENCE / calibration()
        shares = (session.config.option.shard or (0, 1))[1]
        if self.default:
            allowed = SECONDS / speed
            self.lines.append(
                (f"{self.default:7.1f} s  in the default run; five minutes here are {allowed:.0f} s", False)
            )
            if self.default > allowed:
                self.lines.append(("warning: the default run is over its budget: " + ADVICE[0], True))
        if self.slow:
            allowed = SLOW / shares / speed
            self.lines.append((f"{self.slow:7.1f} s  in slow tests, which may take {allowed:.0f} s here", False))
            if self.slow > allowed:
                self.lines.append(("error: the slow tests are over their budget: " + ADVICE[1], True))
                session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED

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
        for line, over in self.lines:
            terminalreporter.line(line, yellow=over)


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
