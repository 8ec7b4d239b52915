"""What transformers knows of a config.json: a key that no code there reads changes nothing, whoever wrote it."""

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "config_fields.json"
"""Names by type of model, and their version of transformers; `python -m tests.support.config_fields` makes it."""

DANGEROUS = re.compile(
    "quant|alibi|window|rope|rotary|position|moe|expert|bias|causal|norm|scale|scaling|multiplier|residual|cap$|capping"
    "|lora|attn|attention"
)
"""Words of keys that say what a model computes: code outside of transformers may have trained by them."""


@functools.cache
def known_names(model_type: str) -> frozenset[str] | None:
    """Return the names that the config and the models of a type know in transformers. None = the type is not listed."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    own = content["types"].get(model_type)
    return None if own is None else frozenset([*content["common"], *own])


def is_foreign(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key of a config.json is of another tool, and changes nothing in transformers.

    It does not if no code there reads it, and its name says nothing of the computation or it is switched off. Where the
    folder brings code of its own (`auto_map`), nobody knows what that reads.
    """
    model_type = config.get("model_type")
    names = known_names(model_type) if isinstance(model_type, str) else None
    if names is None or key in names or own_model(config) is not None:
        return False
    return config[key] is False or not DANGEROUS.search(key.lower())


def own_model(config: Mapping[str, Any]) -> str | None:
    """Return the class of the folder's own code that computes its model, by `auto_map`. None = transformers' code."""
    entries = config.get("auto_map")
    entries = entries if isinstance(entries, Mapping) else {}
    classes = [value for name, value in entries.items() if str(name).startswith("AutoModel")]
    return str(classes[0]) if classes else None
