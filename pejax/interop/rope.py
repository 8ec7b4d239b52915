"""The rotary encoding that a config.json describes, as a spec for `make_encoding`."""

from collections.abc import Mapping
from typing import Any

from pejax._specs import EncodingSpec, Extension
from pejax.extensions import EXTENSIONS
from pejax.interop.config import Config

TYPES = {"default": "none", "linear": "linear", "dynamic": "dynamic_ntk", "yarn": "yarn", "llama3": "llama3",
         "longrope": "longrope", "su": "longrope"}  # fmt: skip
"""The types of scaling in config.json, and our extensions."""

LAYER_TYPES = ("full_attention", "sliding_attention")


def rope_from_config(
    config: Mapping[str, Any] | Config,
    layer_type: str | None = None,
    *,
    pairing: str = "half",
    base: float = 1e4,
    part: float = 1.0,
    local: bool | None = None,
) -> EncodingSpec:
    """Return the spec of a layer's encoding with its extension: `make_encoding(spec, dims)` makes it.

    It reads the flat keys of older files (`rope_theta`, `rotary_emb_base`, `rotary_pct`, `partial_rotary_factor`,
    `rope_scaling` with `type` or `rope_type`) and `rope_parameters`, with an entry per layer type or without.

    Args:
        config: the content of config.json.
        layer_type: "full_attention" or "sliding_attention", in models whose layers differ. None = all are alike.
        pairing: which channels are rotated together, as in `pejax.encodings.rope`.
        base: default of the base.
        part: default of the rotated part of a head's channels.
        local: whether to take the base from `rope_local_base_freq` and ignore `rope_scaling`. None = only if the
            config has that key and the layer type is "sliding_attention".

    Raises:
        ValueError: a key that is missing, unknown or has an impossible value, or an unknown type.

    Examples:
        >>> scaling = {"type": "linear", "factor": 4.0}
        >>> heads = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
        >>> rope_from_config({**heads, "rope_theta": 500000.0, "rope_scaling": scaling})
        rope(base=500000.0, pairing='half', extend='linear(factor=4.0)')
    """
    c = config if isinstance(config, Config) else Config(config)
    length = c.count("max_position_embeddings")
    local = layer_type == "sliding_attention" and "rope_local_base_freq" in c.keys if local is None else local
    p = _parameters(c, layer_type, local)
    base_key = "rope_local_base_freq" if local else "rope_theta"
    base = p.number("rope_theta", c(base_key, c("rotary_emb_base", base)))
    part = p.number("partial_rotary_factor", c("partial_rotary_factor", c("rotary_pct", part)))
    channels = head_channels(c)
    turned = int(channels * part)
    options = {"base": base, "pairing": pairing} | ({} if turned == channels else {"rotary_dim": turned})
    spec = EncodingSpec("rope", options, _extend(c, p, length))
    p.close()
    return spec


def head_channels(c: Config) -> int:
    """Return the channels of a head: `head_dim`, or the width over the heads."""
    if c("head_dim", None) is not None:
        return c.count("head_dim")
    width, heads = c.count("hidden_size"), c.count("num_attention_heads")
    if width % heads:
        raise ValueError(f"{c.where}: hidden_size must be a multiple of num_attention_heads={heads}, got {width}")
    return width // heads


def _parameters(c: Config, layer_type: str | None, local: bool) -> Config:
    """Return the keys of this layer's rotation, without flat keys."""
    old, new = c.object("rope_scaling"), c.object("rope_parameters")
    if old and new and old != new:
        raise ValueError(f"{c.where}: rope_scaling must be absent where rope_parameters are given, got {old}")
    if any(name in LAYER_TYPES for name in new):
        if layer_type not in new or set(new) - {*LAYER_TYPES}:
            rule = f"rope_parameters must have an entry for {layer_type} and for no unknown layer type"
            raise ValueError(f"{c.where}: {rule}, got {', '.join(new)}")
        return Config(new[layer_type] or {}, f"{c.where}: rope_parameters.{layer_type}")
    where = "rope_scaling" if old else "rope_parameters"
    return Config({} if local else old or new, f"{c.where}: {where}")


def _extend(c: Config, p: Config, length: int) -> Extension | None:
    """Return the extension that a layer's keys `p` describe; None = no extension."""
    kind = p("rope_type", p("type", "default"))
    if kind not in TYPES:
        raise ValueError(f"{p.where}: rope_type must be one of {', '.join(TYPES)}, got {kind!r}")
    if kind == "default":
        return None
    trained = c.count("original_max_position_embeddings", p("original_max_position_embeddings", length))
    options: dict[str, Any] = {}
    if kind != "linear":
        options["trained_length"] = trained
    given = p("factor", None) is not None
    by_lengths = kind in ("yarn", "longrope", "su") and not given
    options["factor"] = length / trained if by_lengths else p.number("factor")
    if kind == "llama3":
        options |= {key: p.number(key) for key in ("low_freq_factor", "high_freq_factor")}
    if kind in ("yarn", "longrope", "su") and p("attention_factor", None) is not None:
        options["attention_factor"] = p.number("attention_factor")
    if kind == "yarn":
        keys = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
        options |= {key: p.number(key) for key in keys if p(key, None) is not None}
        options |= {} if p.flag("truncate", True) else {"truncate": False}
    if kind in ("longrope", "su"):
        options["long_factors"] = tuple(map(float, p("long_factor")))
        options["short_factors"] = tuple(map(float, p("short_factor")))
    return EXTENSIONS[TYPES[kind]](**options)
