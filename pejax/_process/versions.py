"""What pejax runs on. The package imports this module first: another Python or JAX ends here, in one line.

Any Python from 3.6 on reads this module, and the start of the package.
"""

import re
import sys

SUPPORTED = {"Python": ">=3.11,<3.15", "jax": ">=0.10,<0.13", "flax": ">=0.12.8"}
"""The bounds of pyproject.toml, which a test compares."""


def requirement(package: str) -> str:
    """Return the requirement of a package for pip's command line, with quotes: `"jax>=0.10,<0.13"`."""
    return f'"{package}{SUPPORTED[package]}"'


def require_version(name: str, found: str, by: str = "pejax") -> None:
    """Refuse a version outside of the bounds.

    Args:
        name: "Python", "jax" or "flax".
        found: the version of what runs.
        by: the module that needs it, for the message.

    Raises:
        ImportError: `found` is below the lowest or above the highest version.
    """
    lowest, *beyond = [_numbers(bound) for bound in SUPPORTED[name].split(",")]
    version = _numbers(found)
    if lowest <= version and all(version < bound for bound in beyond):
        return
    text = ".".join(map(str, lowest))
    text += f" to {beyond[0][0]}.{beyond[0][1] - 1}" if beyond else " or later"
    install = "" if name == "Python" else f": pip install {requirement(name)}"
    raise ImportError(f"{by} needs {name} {text}, got {name} {found}{install}")


def _numbers(version: str) -> tuple:
    return tuple(int(number) for number in re.findall(r"\d+", version))


require_version("Python", ".".join(map(str, sys.version_info[:3])))
try:
    import jax
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise ImportError(f"pejax needs jax, which is not installed: pip install {requirement('jax')}") from None
require_version("jax", jax.__version__)
