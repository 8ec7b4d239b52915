"""`--keep-programs`: what the tests compile is kept between runs, since most of their time goes into it.

The first run takes a tenth longer for it, the next ones less than half as long.
"""

import hashlib
import os
import platform
from importlib.metadata import version
from pathlib import Path

import jax
import pytest

OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": 0,  # a test compiles many small ones
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-programs", action="store_true", help="keep compiled programs in pytest's cache for later runs"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep them for this process and those that tests start."""
    if config.option.keep_programs:
        folder = config.cache.mkdir(f"programs-{version('jaxlib')}-{processor()}")
        for name, value in {"jax_compilation_cache_dir": str(folder), **OPTIONS}.items():
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


def processor() -> str:
    """Return a digest of what this processor can do: a program compiled for another one may end the process."""
    facts = Path("/proc/cpuinfo")  # on Linux
    first = (
        facts.read_text().split("\n\n")[0].splitlines() if facts.exists() else [f"model name: {platform.processor()}"]
    )
    kept = [line for line in first if line.startswith(("model name", "CPU part", "flags", "Features"))]
    return hashlib.sha256("\n".join([platform.machine(), *kept]).encode()).hexdigest()[:12]
