"""Architectures from outside: checked, and then known to `load`, `save` and `source_from_config`."""

import re
from collections.abc import Mapping

from pejax._calls.names import did_you_mean
from pejax.interop.architecture import PARTS, Architecture
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.config import read_names
from pejax.interop.towers import TOWERS

EXPERTS = ("each", "stacked")
PLACEHOLDERS = {"{n}", "{e}", "{h}"}


def register(model_type: str, architecture: Architecture) -> None:
    """Add an architecture, which `load`, `save` and `source_from_config` then use for config.json of this `model_type`.

    Args:
        model_type: name in config.json that no other architecture has.
        architecture: the reader of config.json and the names of the tensors.

    Raises:
        ValueError: a name that is taken; something else than an architecture; a part that is not one of
            `pejax.interop.PARTS`; a name without `{n}` in a layer, or with it outside the layers; a prefix that no name
            begins with; a pattern that is no regular expression.

    Examples:
        >>> from pejax.interop import Architecture, register
        >>> register("mine", Architecture(lambda config: ..., {"tabel": "embed_tokens"}))
        Traceback (most recent call last):
            ...
        ValueError: names must be of parts in pejax.interop.PARTS, got 'tabel'; did you mean 'table'?
    """
    if not isinstance(model_type, str) or not model_type:
        raise ValueError(f"model_type must be the name of the architecture in config.json, got {model_type!r}")
    if model_type in ARCHITECTURES or model_type in TOWERS:
        raise ValueError(f"model_type must be a name that no other architecture has, got {model_type!r}")
    if not isinstance(architecture, Architecture):
        raise ValueError(f"architecture must be a pejax.interop.Architecture, got a {type(architecture).__name__}")
    check_architecture(architecture)
    ARCHITECTURES[model_type] = architecture._replace(inert=read_names("inert", architecture.inert))


def check_architecture(architecture: Architecture) -> None:
    """Raise ValueError for what is wrong with an architecture, as `register` does."""
    names, prefix = architecture.names, architecture.prefix
    if not callable(architecture.read):
        raise ValueError(f"read must be a function from config.json to a config, got {architecture.read!r}")
    if not isinstance(names, Mapping):
        raise ValueError(f"names must map parts to names, got a {type(names).__name__}")
    for part, name in names.items():
        _check_name(part, name)
    if not {"table", "patch"} & {*names}:
        raise ValueError(
            f"names must have an entry for 'table', or for 'patch' of images, got {', '.join(names)}"[:200]
        )
    if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in names.values()):
        raise ValueError(f"prefix must be the beginning of some names, or '', got {prefix!r}")
    if architecture.experts not in EXPERTS:
        raise ValueError(f"experts must be one of {', '.join(EXPERTS)}, got {architecture.experts!r}")
    for pattern in (architecture.ignored, *(pattern for pattern, _ in architecture.fixed)):
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ValueError(f"ignored and fixed must be regular expressions, got {pattern!r}: {error}") from None


def _check_name(part: object, name: object) -> None:
    """Check a part and the placeholders of its name.

    Raises:
        ValueError: an unknown part, or a name with wrong placeholders.
    """
    alone = str(part).removeprefix("encoder.").removeprefix("decoder.")
    if alone not in PARTS:
        rule = "names must be of parts in pejax.interop.PARTS"
        raise ValueError(f"{rule}, got {part!r}{did_you_mean(alone, PARTS)}")
    if not isinstance(name, str) or not name:
        raise ValueError(f"names[{part!r}] must be a name in the file, without .weight, got {name!r}")
    fields, in_layer = {*re.findall(r"{.*?}", name)}, PARTS[alone].in_layer
    if not fields <= PLACEHOLDERS or ("{n}" in fields) != in_layer:
        rule = "hold {n}, the number of the layer" if in_layer else "hold no {n}, because it is outside the layers"
        raise ValueError(f"names[{part!r}] must {rule}, got {name!r}")
