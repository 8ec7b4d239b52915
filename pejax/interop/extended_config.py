"""The config.json of a model that was loaded with an extension of its rotary encoding."""

from collections.abc import Mapping
from typing import Any

from pejax._record.specs import NONE, EncodingSpec
from pejax.interop.config import Config
from pejax.interop.model_config import architecture_of
from pejax.interop.rope import LAYER_TYPES, TYPES
from pejax.models import TransformerConfig

KINDS = {ours: theirs for theirs, ours in TYPES.items() if theirs not in ("default", "su")}
"""Extensions, and the types of scaling in config.json."""

STORABLE = (*KINDS, "ntk")
"""Extensions that config.json can hold; NTK-aware scaling is a larger base."""

NEEDED = {
    "dynamic_ntk": {"factor": 1.0},
    "llama3": {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
"""Keys that config.json needs even at our defaults."""

RENAMED = {"long_factors": "long_factor", "short_factors": "short_factor",
           "trained_length": "original_max_position_embeddings"}  # fmt: skip

ROTARY, SECTIONS = ("rope_theta", "partial_rotary_factor"), ("mrope_section", "mrope_interleaved")
"""Keys beside the scaling in `rope_parameters`, and those that are in `rope_scaling`, too."""


def extended_config(config: Mapping[str, Any], own: TransformerConfig, extended: TransformerConfig) -> dict[str, Any]:
    """Return the config.json of a model whose layers have an extension that its file does not have.

    `max_position_embeddings` becomes the length that the model is extended to, except with `dynamic_ntk`, whose scaling
    starts at the unchanged value. With `yarn`, `llama3` and `longrope`, `original_max_position_embeddings` holds the
    trained length. With `ntk`, a larger base takes the place of a scaling.

    Args:
        config: config.json of the file.
        own: config of the file's model.
        extended: config of the extended model.

    Raises:
        ValueError: an extension that config.json cannot hold, or that its architecture does not have.
    """
    rope, name, options = _only_term(own, extended)
    length = options.pop("trained_length", own.length)
    if name == "dynamic_ntk" and length != own.length:
        raise ValueError(f"trained_length of dynamic_ntk must be the length of the model, {own.length}, got {length}")
    changed = dict(config)
    if name == "ntk":
        channels = rope.get("rotary_dim", extended.layers[0].attention.head_dim)
        _set_base(changed, rope.get("base", 10000.0) * options["factor"] ** (channels / max(channels - 2, 1)))
    else:
        lengths = {} if name in ("linear", "dynamic_ntk") else {"trained_length": length}
        short = {"short_factors": [1.0] * len(options["long_factors"])} if name == "longrope" else {}
        said = {**NEEDED.get(name, {}), **short, **options, **lengths}
        listed = {
            RENAMED.get(key, key): list(value) if isinstance(value, tuple) else value for key, value in said.items()
        }
        _set_scaling(changed, {"rope_type": KINDS[name], **listed})
    if name != "dynamic_ntk":
        changed["max_position_embeddings"] = round(length * options["factor"])
    if config["model_type"] == "mixtral" and config.get("head_dim") is None:
        changed["head_dim"] = extended.layers[0].attention.head_dim  # without it transformers fails to read a scaling
    again = architecture_of(config).read(Config(changed))
    attention = lambda model: [layer.attention for layer in model.layers]
    if attention(again) == attention(own):
        raise ValueError(f"config.json of {config['model_type']} cannot hold an extension, got {name}")
    return changed


def _only_term(loaded: TransformerConfig, extended: TransformerConfig) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """Return the options of RoPE, and the name and options of its only extension; all layers must have the same."""
    kinds = {(one.attention.pe, two.attention.pe)
             for one, two in zip(loaded.layers, extended.layers, strict=True) if one.attention.pe != NONE}  # fmt: skip
    if len(kinds) != 1:
        raise ValueError(f"extend must be the same in all layers to be saved, got {len(kinds)} kinds of layers")
    before, after = kinds.pop()
    terms = () if after.extend is None else after.extend.terms
    name, options = (terms[0].name, dict(terms[0].options)) if len(terms) == 1 else ("", {})
    fixed = name in STORABLE and ("factor" in options or name == "dynamic_ntk")
    if before.is_extended or not fixed or not isinstance(before, EncodingSpec) or before.name != "rope":
        rule = f"extend must be one of {', '.join(STORABLE)} alone, with a factor, of rope, to be saved in config.json"
        raise ValueError(f"{rule}, got {after.extend} of {before.without_extension()}")
    if "ramp" in options:
        raise ValueError(f"yarn must have ramp='pair' to be saved in config.json, got {options['ramp']!r}")
    return dict(before.options), name, options


def _set_base(config: dict[str, Any], base: float) -> None:
    """Write the base where the config has it."""
    if config.get("rope_parameters"):
        config["rope_parameters"] = {**_parameters(config), "rope_theta": base}
    else:
        config["rotary_emb_base" if "rotary_emb_base" in config else "rope_theta"] = base


def _set_scaling(config: dict[str, Any], said: dict[str, Any]) -> None:
    """Write the scaling into `rope_parameters`, or into `rope_scaling` beside the flat keys of older files."""
    length = "original_max_position_embeddings"
    if config.get(length) is not None or config.get("model_type") == "phi3":  # it overrides the key in rope_scaling
        config[length] = said.get(length, config.get(length))
    has_new = bool(config.get("rope_parameters"))
    before = _parameters(config) if has_new else config.get("rope_scaling") or {}
    names = (*ROTARY, *SECTIONS) if has_new else SECTIONS
    rotary = {key: value for key, value in before.items() if key in names}
    config["rope_parameters" if has_new else "rope_scaling"] = {**rotary, **said}


def _parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters`, which are the same for all layers."""
    parameters = config["rope_parameters"]
    if any(key in LAYER_TYPES for key in parameters):
        raise ValueError("rope_parameters must be the same for all layers to be extended, got one set per layer type")
    return parameters
