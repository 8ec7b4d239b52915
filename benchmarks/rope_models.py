"""The table of rotary encodings by model type, `pejax/interop/rope_models.py`: `python -m benchmarks.rope_models`.

A config.json does not say which channels turn together, nor how axes share a head. This runs the rotary code of every
default configuration of the installed transformers on unit vectors (`benchmarks.rope_code`) and keeps the pairing and
the layout with which ours gives the same products of queries and keys; two that fit, or none, end with an error. It
takes five minutes.
"""

import datetime
import importlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rope_code import Case, Rotation, default_configurations, difference, layer_types, source
from pejax.encodings import PRESETS
from pejax.interop.any_rope import OF_IMAGES, read_any_rope
from pejax.interop.architectures import ARCHITECTURES
from pejax.interop.config import Config
from pejax.interop.rope_models import MODELS

TABLE = Path(__file__).parents[1] / "pejax" / "interop" / "rope_models.py"
ORDERS = ({"section_order": "interleaved"}, {"section_order": ((1, 2), (0,)), "section_axes": (1, 2, 0)})
PLAIN = {"layout": "concat", "spectrum": "own", "indexing": "ij"}
AXIAL = [
    dict(zip(("layout", "spectrum", "indexing", "pairing"), values, strict=True))
    for values in itertools.product(
        ("concat", "alternate"), ("own", "dealt"), ("ij", "xy"), ("half", "interleaved", "half_by_axis")
    )
    if values[3] != "half_by_axis" or values[:2] == ("concat", "own")
]
"""Ways to share a head among axes."""

HEAD = '''"""What config.json does not say of rotary encodings, by model type: pairs of channels, and their axes.

Written on {today} from transformers {version} by `python -m benchmarks.rope_models`, which runs their code.
"""

from typing import Any

# ruff: noqa: E501
'''
DOC_MODELS = '''"""By model type:

pairing: which channels turn together.
by_flag: whether `rope_interleave` in the file decides about it.
mrope_section, section_order: number of pairs that turn with each axis, where the file does not say, and their order.
section_axes: the axes of the numbers, where they are not in the order of the axes.
axial: options of `rope_axial` in place of a pairing; its axes are 2 where they are not named.
keys: values of keys that a file may leave out; a base that is None must be in `rope_parameters`, no base is 10,000.
part: whether `partial_rotary_factor` is read; by extensions, it is always.
reads: keys that other models leave unread.
head: key of the channels of a head, in place of `head_dim`.
position_embedding_type: its value where a file does not say.
"""
'''
DOC_UNREADABLE = '"""Model types whose encoding is not in a config.json, and why."""'

EXTRA = {
    "minimax_m2": {"reads": ("rotary_dim",)},
    "granitemoehybrid": {"position_embedding_type": "nope"},
}
"""Parts of entries that the code reads outside of its rotation."""

HALF, QUARTER = (
    {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": part}}
    for part in (0.5, 0.25)
)
PUBLISHED: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 128},
    "glm4v_text": HALF,
    "glm4v_moe_text": {**HALF, "head_dim": 128},
    "glm_image_text": HALF,
    "qwen3_omni_moe_talker_text": {"head_dim": 128},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen4_exp_text": QUARTER,
}
"""Keys of published configurations, of model types whose default one has heads that its rotation does not fit."""

BY_PRESET = {"llama4_vision_model": "llama4_vision", "sam2_video": "sam2", "sam3_tracker_video": "sam2"}
"""Model types whose code has its positions inside, and the presets that tests compare with it."""

UNREADABLE = {
    "blt": "each of its parts has a configuration of its own",
    "deepseek_v4": "it rotates values, too, and turns the outputs back",
    "edgetam_video": "its queries and keys lie on grids of two sizes",
    "efficientloftr": "its channels alternate between the axes of a grid that it pools",
    "eomt_dinov3": "its positions are normalized coordinates, as in rope_axial(preset='dinov3')",
    "hunyuan_vl_text": "both channels of a pair turn with different axes, which is no rotation",
    "mistral_large4_text": "its frequencies are learned",
    "musicflamingo": "it turns by seconds and by windows of audio",
    "nanochat": "it turns the other way: negate the positions of rope(pairing='half')",
    "qwen2_5_omni_dit": "it turns the first head alone",
    "zamba2": "it turns heads of its shared layers where use_mem_rope is set",
}
"""Model types whose encoding a config.json does not hold, and why."""


def entries(theirs: Rotation) -> Iterator[dict[str, Any]]:
    """Yield what the table may say of a rotation."""
    if theirs.parameters.get("rope_type") == "axial" or (theirs.axes > 1 and not theirs.sections):
        axes = {} if theirs.axes == 2 else {"axes": theirs.axes}
        for options in AXIAL:
            yield {"axial": {**axes, **{key: value for key, value in options.items() if PLAIN.get(key) != value}}}
        return
    sections = {"mrope_section": tuple(theirs.sections)} if theirs.sections else {}
    for pairing in ("half", "interleaved"):
        yield {"pairing": pairing, **sections}
        for order in ORDERS if theirs.sections else ():
            yield {"pairing": pairing, **sections, **order}


def positions(theirs: Rotation) -> list[np.ndarray]:
    """Return positions within the trained length that tell frequencies apart, and those beside a temperature's step."""
    length = getattr(theirs.config, "max_position_embeddings", None) or 2000
    counts = [1, 30, 1000, 30000, 10**6]
    if theirs.parameters.get("llama_4_scaling_beta"):
        step = theirs.parameters["original_max_position_embeddings"]
        counts += [step - 1, step, 2 * step]
    if theirs.axes > 1:
        counts = counts[:3]
    return [np.arange(count, count + theirs.axes) for count in counts if count + theirs.axes < length]


def fit(keys: dict[str, Any], theirs: Rotation, entry: dict[str, Any]) -> float:
    """Return the largest difference of the rotation that is read with this entry, over what is allowed."""
    kept, MODELS[keys["model_type"]] = MODELS.get(keys["model_type"]), entry
    try:
        spec = read_any_rope(Config(keys), theirs.layer_type, pairing=None, base=None, rotated_fraction=None)
        return difference(theirs, spec, positions(theirs)[:2])
    except ValueError:
        return float("inf")
    finally:
        del MODELS[keys["model_type"]]
        MODELS.update({} if kept is None else {keys["model_type"]: kept})


def defaults(config: Any, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the values of keys that a file may leave out; a base of None says that it must have rope_parameters."""
    rope = keys["rope_parameters"]
    plain = rope.get("rope_type") in ("default", "axial") and layer_types(config) == [None]
    read: dict[str, Any] = {"rope_theta": rope["rope_theta"] if plain else None}
    if plain and rope.get("partial_rotary_factor", 1.0) != 1:
        read["partial_rotary_factor"] = rope["partial_rotary_factor"]
    for key in filter(keys.get, ("qk_rope_head_dim", config.attribute_map.get("head_dim"))):
        read[key] = keys[key]
    width, heads = keys.get("hidden_size"), keys.get("num_attention_heads")
    if keys.get("head_dim") and (not width or not heads or width // heads != keys["head_dim"]):
        read["head_dim"] = keys["head_dim"]
    return {key: value for key, value in read.items() if (key, value) != ("rope_theta", 10000.0)}


def entry_of(config: Any, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a model type.

    Raises:
        ValueError: none fits its rotation, or several do, or layers differ in it.
    """
    name, found = config.model_type, []
    for layer_type in layer_types(config):
        if layer_type is not None and config.rope_parameters[layer_type] is None:
            continue
        theirs = Rotation(config, layer_type)
        if theirs.learned:
            raise ValueError(f"{name} learns {', '.join(theirs.learned)}")
        part = {"part": True} if "partial_rotary_factor" in source(type(theirs.rotary)) else {}
        fitting = [entry | part for entry in entries(theirs) if fit(keys, theirs, entry | part) < 1]
        if len(fitting) != 1:
            raise ValueError(f"{name} {layer_type} must fit one entry, got {fitting}")
        found += fitting
    if any(entry != found[0] for entry in found):
        raise ValueError(f"layers of {name} must have one entry, got {found}")
    entry = found[0]
    if getattr(config, "rope_interleave", None) is not None:
        entry["by_flag"] = True
    if key := config.attribute_map.get("head_dim"):
        entry["head"] = key
    return entry | EXTRA.get(name, {})


def table(cases: Iterable[Case]) -> dict[str, dict[str, Any]]:
    """Return the entries of the model types of these configurations that `load` does not read."""
    models = {}
    for _, config, keys in cases:
        name = config.model_type
        if not name or name in {*ARCHITECTURES} - {*OF_IMAGES} or name in UNREADABLE or name in models:
            continue
        if name in BY_PRESET:
            options = {key: value for key, value in PRESETS[BY_PRESET[name]].options.items() if key != "base"}
            models[name] = {"axial": {"pairing": "interleaved", **options}}
            continue
        run = type(config)(**PUBLISHED[name]) if name in PUBLISHED else config
        models[name] = entry_of(run, run.to_dict())
        if keys_read := defaults(config, keys):
            models[name]["keys"] = keys_read
        print(name, models[name], flush=True)
    return models


def main() -> None:
    """Write the table."""
    write(table(default_configurations()))


def write(models: dict[str, dict[str, Any]]) -> None:
    """Write these entries, with date and version."""
    version, today = importlib.import_module("transformers").__version__, datetime.date.today()
    written = [f"    {name!r}: {entry!r},".replace("'", '"') for name, entry in sorted(models.items())]
    reasons = [f'    "{name}": "{reason}",' for name, reason in sorted(UNREADABLE.items())]
    text = HEAD.format(version=version, today=today)
    text += "\n".join(["MODELS: dict[str, dict[str, Any]] = {", *written, "}  # fmt: skip", DOC_MODELS, ""])
    text += "\n".join(["UNREADABLE = {", *reasons, "}", DOC_UNREADABLE, ""])
    TABLE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
