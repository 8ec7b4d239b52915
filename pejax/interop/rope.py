"""The rotary encoding that a config.json describes, as a spec for `make_encoding`."""

from typing import Any

from pejax._record.specs import NONE, EncodingSpec, Extension
from pejax.extensions import EXTENSIONS
from pejax.interop.config import Config

TYPES = {"default": "none", "linear": "linear", "dynamic": "dynamic_ntk", "yarn": "yarn", "llama3": "llama3",
         "longrope": "longrope", "su": "longrope"}  # fmt: skip
"""The types of scaling in config.json, and our extensions."""

LAYER_TYPES = ("full_attention", "sliding_attention")
PART, LENGTH = "partial_rotary_factor", "original_max_position_embeddings"


def read_rope(
    c: Config,
    layer_type: str | None = None,
    *,
    pairing: str = "half",
    base: float = 1e4,
    rotated_fraction: float | None = None,
    local: bool | None = None,
) -> EncodingSpec:
    """Return the spec of a layer's encoding with its extension, from flat keys or `rope_parameters`.

    A layer type whose entry of `rope_parameters` is null has no positions.

    Args:
        c: the config.
        layer_type: "full_attention" or "sliding_attention", in models whose layers differ. None = all are alike.
        pairing: which channels are rotated together, as in `pejax.encodings.rope`.
        base: default of the base.
        rotated_fraction: default fraction of a head's channels that is rotated. None = the architecture rotates all.
        local: whether to take the base from `rope_local_base_freq` and ignore `rope_scaling`. None = the architecture
            does not know that key.

    Raises:
        ValueError: a key that is missing or has an impossible value, or an unknown type.
    """
    length = c.count("max_position_embeddings")
    p = _parameters(c, layer_type, local)
    if p is None:
        return NONE
    base_key = "rope_local_base_freq" if local else "rope_theta"
    base = p.number("rope_theta", c.number(base_key, base))
    channels = head_channels(c)
    rotated = channels if rotated_fraction is None else int(channels * p.number(PART, c.number(PART, rotated_fraction)))
    if rotated_fraction is None:
        c.must(PART, 1.0)
        p.must(PART, 1.0)
    options = {"base": base, "pairing": pairing} | ({} if rotated == channels else {"rotary_dim": rotated})
    return EncodingSpec("rope", options, read_extension(c, p, length))


def head_channels(c: Config) -> int:
    """Return the channels of a head: `head_dim`, or the width over the heads."""
    if c("head_dim", None) is not None:
        return c.count("head_dim")
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    if width % heads:
        raise ValueError(f"{c.where}: hidden_size must be a multiple of num_attention_heads={heads}, got {width}")
    return width // heads


def rope_objects(c: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `rope_scaling`, of older files, and `rope_parameters`; at most one of them has keys, or both are equal."""
    old, new = c.object("rope_scaling"), c.object("rope_parameters")
    if old and new and old != new:
        raise ValueError(f"{c.where}: rope_scaling must be absent where rope_parameters are given, got {old}")
    return old, new


def _parameters(c: Config, layer_type: str | None, local: bool | None) -> Config | None:
    """Return the keys of this layer's rotation, without flat keys. None = the layer has no positions."""
    old, new = rope_objects(c)
    if any(name in LAYER_TYPES for name in new):
        if layer_type not in new or set(new) - {*LAYER_TYPES}:
            rule = f"rope_parameters must have an entry for {layer_type} and for no unknown layer type"
            raise ValueError(f"{c.where}: {rule}, got {', '.join(new)}")
        return None if new[layer_type] is None else c.part(f"rope_parameters.{layer_type}", new[layer_type])
    if new and not old and local is not None:
        raise ValueError(f"{c.where}: rope_parameters must have an entry per layer type, got {new}"[:400])
    return c.part("rope_scaling" if old else "rope_parameters", {} if local else old or new)


def rope_type(p: Config) -> object:
    """Return the type of scaling: `rope_type`, or `type` in older files."""
    return p("rope_type", p("type", "default"))


def read_extension(c: Config, p: Config, length: int) -> Extension | None:
    """Return the extension; `default`, `linear` and `dynamic` do not read the trained length.

    Args:
        c: the config.
        p: the keys of the layer's rotation.
        length: `max_position_embeddings`.
    """
    trained = p.count(LENGTH, length)
    kind = rope_type(p)
    if not isinstance(kind, str) or kind not in TYPES:
        raise ValueError(f"{p.where}: rope_type must be one of {', '.join(TYPES)}, got {kind!r}")
    if kind == "default":
        return None
    if kind == "linear":
        return EXTENSIONS["linear"](factor=p.number("factor"))
    if kind == "dynamic":
        return EXTENSIONS["dynamic_ntk"](trained_length=length, factor=p.number("factor"))
    if p.path.removeprefix(c.path).count(".") == 1:  # flat keys are not those of a layer type
        trained = c.count(LENGTH, trained)
    by_lengths = kind != "llama3" and p("factor", None) is None
    options: dict[str, Any] = {"trained_length": trained}
    options["factor"] = length / trained if by_lengths else p.number("factor")
    if kind == "llama3":
        options |= {key: p.number(key) for key in ("low_freq_factor", "high_freq_factor")}
    elif p("attention_factor", None) is not None:
        options["attention_factor"] = p.number("attention_factor")
    if kind == "yarn":
        keys = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        options |= {key: p.number(key) for key in keys if p(key, None) is not None}
        options |= {} if p.flag("truncate", True) else {"truncate": False}
    if kind in ("longrope", "su"):
        options["factor"] = max(1.0, options["factor"])  # it sets the attention factor alone, which is 1 below
        options |= {"long_factors": p.numbers("long_factor"), "short_factors": p.numbers("short_factor")}
    return EXTENSIONS[TYPES[kind]](**options)


def check_rotation(c: Config, spec: EncodingSpec, channels: int | None) -> None:
    """Raise ValueError for a rotation that no head has.

    Args:
        c: the config, which the message names.
        spec: the rotation.
        channels: channels of a head. None = unknown, and not checked.
    """
    options = dict(spec.options)
    rotated = options.get("rotary_dim", channels)
    if channels is not None and (rotated % 2 or not 2 <= rotated <= channels):
        rule = f"the number of rotated channels must be even, from 2 to the {channels} of a head"
        raise ValueError(f"{c.where}: {rule}, got {rotated}")
    if channels is not None and sum(options.get("sections", [rotated // 2])) != rotated // 2:
        rule = f"mrope_section must count {rotated // 2} pairs together"
        raise ValueError(f"{c.where}: {rule}, got {options['sections']}")
    for name, value in (pair for term in (spec.extend.terms if spec.extend else ()) for pair in term.options):
        if name == "factor" and not value > 0:
            raise ValueError(f"{c.where}: factor must be a number above 0, got {value}")
        if name in ("long_factors", "short_factors") and channels is not None and len(value) != rotated // 2:
            raise ValueError(f"{c.where}: {name[:-1]} must have {rotated // 2} numbers, one per pair, got {len(value)}")
