"""Settings of sampling that come with a model, in generation_config.json or the metadata of a GGUF file."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pejax.interop.config import read_json
from pejax.interop.gguf_parts import read_gguf
from pejax.interop.source_files import find_gguf
from pejax.models import Sampling
from pejax.models.generation.sampling import check_sampling

FILE = "generation_config.json"

DRAWN = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""Settings that count where tokens are drawn, and their values where the file has none."""

UNREAD: dict[str, Any] = {
    "num_beams": 1, "typical_p": 1, "top_h": 1, "epsilon_cutoff": 0, "eta_cutoff": 0, "penalty_alpha": 0,
    "guidance_scale": 1, "no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "encoder_no_repeat_ngram_size": 0,
    "min_length": 0, "min_new_tokens": 0, "bad_words_ids": [], "suppress_tokens": [], "begin_suppress_tokens": [],
    "sequence_bias": [], "forced_bos_token_id": [], "forced_eos_token_id": [], "exponential_decay_length_penalty": [],
    "stop_strings": [], "watermarking_config": {},
    "sequence": "", "penalty_last_n": -1, "xtc_probability": 0, "mirostat": 0,
}  # fmt: skip
"""Settings that change which token comes and are not read, and the values at which they change nothing."""

PREFIX = "general.sampling."
OURS = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
"""Settings in the metadata of GGUF files, and the names that generation_config.json has for them."""


def load_sampling(path: str | os.PathLike[str]) -> Sampling:
    """Return the settings of sampling that a model comes with: greedy where it has none, or draws no tokens.

    A warning names settings of the file that would change the tokens and are not read.

    Args:
        path: folder of a model, whose generation_config.json counts: `do_sample`, `temperature`, `top_k`, `top_p`,
            `min_p` and `repetition_penalty`. What the file does not have is left out: transformers would cut to the 50
            most probable tokens. Or a GGUF file, with `general.sampling.temp` and its like in the metadata; tokens are
            drawn where there is a temperature.

    Raises:
        ValueError: a damaged file, or a setting that is no number or out of range.
    """
    file, settings = read_settings(Path(path))
    unread = [key for key, neutral in UNREAD.items() if settings.get(key, neutral) != neutral]
    if unread:
        warnings.warn(f"{file}: {', '.join(unread)} are not read, which would change the tokens", stacklevel=2)
    is_drawn = settings.get("do_sample", False)
    if not isinstance(is_drawn, bool):
        raise ValueError(f"{file}: do_sample must be true or false, got {is_drawn!r}")
    number = lambda key, default: _number(file, settings, key, default)
    drawn = {key: number(key, default) for key, default in DRAWN.items()} if is_drawn else {}
    sampling = Sampling(**drawn, repetition_penalty=number("repetition_penalty", 1.0))
    try:
        check_sampling(sampling, max(sampling.top_k, 0))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return sampling


def read_settings(path: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file with the settings of a model and their values, in the words of generation_config.json."""
    if (path / FILE).is_file():
        return path / FILE, {key: value for key, value in read_json(path / FILE).items() if value is not None}
    file = find_gguf(path)
    if file is None:
        return path, {}
    header = read_gguf(file).keys
    keys = {key.removeprefix(PREFIX): value for key, value in header.items() if key.startswith(PREFIX)}
    return file, {OURS.get(key, key): value for key, value in keys.items()} | {"do_sample": "temp" in keys}


def _number(file: Path, settings: Mapping[str, Any], key: str, default: float) -> Any:
    """Return a setting as a number of the type of its default."""
    value, kind = settings.get(key, default), type(default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**31
    if not is_number or kind(value) != value:
        raise ValueError(
            f"{file}: {key} must be a {'whole ' * (kind is int)}number below 2^31, got {str(value)[:80]!a}"
        )
    return kind(value)
