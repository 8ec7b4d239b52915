"""What sentence-transformers writes beside a classifier that is a CrossEncoder, such as a reranker."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pejax.interop.config import read_json
from pejax.interop.other_folders import MODULES
from pejax.interop.pooling import torch_activation
from pejax.interop.sentence_modules import SETTINGS, read_modules, read_settings, read_transformer


class CrossEncoder(NamedTuple):
    """Settings of a classifier.

    Attributes:
        max_length: most tokens of a pair. None = the file does not say.
        lower_case: whether texts are lowered.
        activation: from logits to scores, a name out of `pooling.OUTPUTS`. None = the file does not say.
    """

    max_length: int | None = None
    lower_case: bool = False
    activation: str | None = None


def read_cross_encoder(folder: Path, config: Mapping[str, Any]) -> CrossEncoder:
    """Return the settings of a folder; `config` is the content of its config.json.

    Raises:
        ValueError: modules besides the model, a default prompt, or an activation that is not known.
    """
    max_length, lower_case, activation = None, False, None
    if os.path.lexists(folder / MODULES):  # else the files of modules do not count
        names = [name for name, _ in read_modules(folder)]
        if names != ["Transformer"]:
            rule = f"{folder / MODULES}: a classifier must have one module, Transformer"
            raise ValueError(f"{rule}, got {', '.join(names) or 'none'}"[:400])
        if read_settings(folder, "CrossEncoder")["default_prompt"] is not None:
            raise ValueError(f"{folder / SETTINGS}: default_prompt_name must be null in a classifier, got a name")
        max_length, lower_case = read_transformer(folder, "sequence-classification", ("logits", "scores"))
        activation = read_json(folder / SETTINGS).get("activation_fn") if (folder / SETTINGS).exists() else None
    own = config.get("sentence_transformers")
    places = {
        folder / SETTINGS: activation,
        "config.json: sentence_transformers": own.get("activation_fn") if isinstance(own, Mapping) else None,
        "config.json": config.get("sbert_ce_default_activation_function"),
    }
    paths = [(path, where) for where, path in places.items() if path is not None]
    activation = torch_activation(paths[0][0], f"{paths[0][1]}: the activation") if paths else None
    return CrossEncoder(max_length, lower_case, activation)
