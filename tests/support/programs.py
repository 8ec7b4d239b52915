"""`--keep-programs`: what the tests compile is kept between runs, since most of their time goes into it.

The first run takes a tenth longer for it, the next ones less than half as long.
"""

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

OPTIONS = {
    "jax_persistent_cache_min_compile_time_secs": 0,  # a test compiles many small ones
    "jax_persistent_cache_min_entry_size_bytes": -1,
}

UNREADABLE = "Error reading persistent compilation cache entry"
"""Begin of JAX's warning where another process has not finished writing; JAX then compiles the program."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--keep-programs", action="store_true", help="keep compiled programs in pytest's cache for later runs"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep them for this process and those that tests start."""
    if config.option.keep_programs:
        if not hasattr(config, "cache"):
            raise pytest.UsageError("--keep-programs needs pytest's cache, got -p no:cacheprovider")
        folder = config.cache.mkdir(f"programs-{version('jaxlib')}-{processor()}")
        for name, value in {"jax_compilation_cache_dir": str(folder), **OPTIONS}.items():
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)
        config.addinivalue_line("filterwarnings", f"ignore:{UNREADABLE}:UserWarning")
        os.environ["PYTHONWARNINGS"] = f"ignore:{UNREADABLE}:UserWarning"


@contextlib.contextmanager
def compilation_options(**options: Any) -> Iterator[None]:
    """Set these options of JAX for a while, and let it decide anew whether programs are kept: it does so once."""
    before = {name: jax.config.values[name] for name in options}
    set_options(options)
    try:
        yield
    finally:
        set_options(before)


def set_options(options: dict[str, Any]) -> None:
    for name, value in options.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def processor() -> str:
    """Return a digest of what this processor can do: a program compiled for another one may end the process."""
    facts = Path("/proc/cpuinfo")  # on Linux
    first = (
        facts.read_text().split("\n\n")[0].splitlines() if facts.exists() else [f"model name: {platform.processor()}"]
    )
    lines = [line for line in first if line.startswith(("model name", "CPU part", "flags", "Features"))]
    return hashlib.sha256("\n".join([platform.machine(), *lines]).encode()).hexdigest()[:12]
