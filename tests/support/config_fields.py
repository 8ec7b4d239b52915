"""Make pejax/interop/config_fields.json from the installed transformers: `python -m tests.support.config_fields`.

For each type of model that pejax reads, the file has the names that its config class or its code in transformers knows.
A key of config.json under another name changes nothing there, whoever wrote it.
"""

import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.fields import FILE
from pejax.interop.towers import TOWERS

COMMON = (
    *("configuration_utils", "modeling_utils", "modeling_rope_utils", "modeling_layers"),
    *("masking_utils", "cache_utils", "activations", "integrations.sdpa_attention", "integrations.flash_attention"),
    *("integrations.flex_attention", "integrations.moe", "modeling_flash_attention_utils"),
)
"""Modules that all models share."""

READS = (
    r"\bconfig\.(\w+)",
    r"\b(?:get|has)attr\(\s*(?:self\.)?\w*config\w*,\s*[\"'](\w+)[\"']",
    r"\bkwargs\.(?:get|pop|setdefault)\(\s*[\"'](\w+)[\"']",
    r"\bself\.(\w+)",
)
"""Patterns of what a module reads of a config; the last one in the modules of config classes alone."""


def names_read(path: Path) -> set[str]:
    """Return the names that a module reads of a config, and some more."""
    text = path.read_text(encoding="utf-8")
    patterns = READS if path.name.startswith("configuration_") else READS[:-1]
    return {name for pattern in patterns for name in re.findall(pattern, text)}


def names_of(model_type: str) -> set[str]:
    """Return the names that the config class of a type and the code of its models know."""
    kind: Any = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING[model_type]
    folder = Path(inspect.getfile(kind)).parent
    modules = [*folder.glob("configuration_*.py"), *folder.glob("modeling_*.py")]
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set[str]()
    parameters = {*inspect.signature(kind.__init__).parameters}
    return fields.union(parameters, kind.attribute_map, *map(names_read, modules)) - {"self", "kwargs"}


def table() -> dict[str, Any]:
    """Return the content of the file."""
    transformers = importlib.import_module("transformers")
    package = Path(inspect.getfile(transformers)).parent
    common = set[str]().union(*(names_read(package / f"{name.replace('.', '/')}.py") for name in COMMON))
    known = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    own = {name: names_of(name) - common for name in sorted({*ARCHITECTURES, *TOWERS}) if name in known}
    return {
        "transformers": transformers.__version__,
        "common": sorted(common),
        "types": {k: sorted(v) for k, v in own.items()},
    }


def lines(content: dict[str, Any]) -> Iterable[str]:
    """Yield the lines of the file: one per type."""
    yield "{"
    yield f' "transformers": {json.dumps(content["transformers"])},'
    yield f' "common": {json.dumps(content["common"])},'
    yield ' "types": {'
    rows = [f"  {json.dumps(name)}: {json.dumps(names)}" for name, names in content["types"].items()]
    yield ",\n".join(rows)
    yield " }"
    yield "}"


if __name__ == "__main__":
    FILE.write_text("\n".join(lines(table())) + "\n", encoding="utf-8")
