"""The rotary encoding in the config.json of any model: its frequencies, and its pairing by model type."""

from collections.abc import Mapping
from typing import Any

from pejax._ops.checks import check_choice
from pejax._ops.rotary import PAIRINGS
from pejax._record.specs import NONE, EncodingSpec, Extension
from pejax.extensions import EXTENSIONS
from pejax.interop.config import Config, is_number
from pejax.interop.rope import (
    LAYER_TYPES,
    LENGTH,
    PART,
    TYPES,
    check_rotation,
    head_channels,
    read_extension,
    rope_objects,
    rope_type,
)
from pejax.interop.rope_models import MODELS, UNREADABLE

OF_IMAGES = tuple(f"{name}{part}" for name in ("qwen2_vl", "qwen3_vl") for part in ("", "_text"))
"""Types that `load` reads as models of text alone; here their channels turn with several axes."""

KINDS = (*TYPES, "mrope", "proportional", "axial")
"""The types of scaling that are read here."""

WHOLE = ("default", "mrope", "axial")
"""Types of scaling whose code may ignore `partial_rotary_factor`."""

BASES = ("rope_theta", "rotary_emb_base")
FRACTIONS = (PART, "rotary_pct")
"""Keys of older files, beside `rope_scaling`."""

PLACES = ("rope_parameters", "rope_scaling", *BASES)
"""Keys of which one is in the config of a part that rotates."""

LOCAL = "rope_local_base_freq"
"""Key of the base of layers with windows, in older files."""

ORDERS = {True: "interleaved", False: "chunked"}
"""Order of the axes among pairs, by `mrope_interleaved`."""


def read_any_rope(
    c: Config, layer_type: str | None, *, pairing: str | None, base: float | None, rotated_fraction: float | None
) -> EncodingSpec:
    """Return the spec of a layer's encoding with its extension, of any model.

    Args:
        c: the config.
        layer_type: a name in `rope_parameters`, in models whose layers differ. None = all are alike.
        pairing: which channels are rotated together. None = as the model type says.
        base: default of the base. None = that of the model type, or 10,000 without a type.
        rotated_fraction: default fraction of a head's channels that is rotated. None = that of the model type, or 1.

    Raises:
        ValueError: a key that is missing or has an impossible value, an unknown type of scaling, or a model type whose
            pairing is unknown, without `pairing`.
    """
    _check_place(c)
    model = _model(c)
    keys = model.get("keys", {})
    c.defaults(**{key: value for key, value in keys.items() if key not in ("rope_theta", PART)})
    if "head" in model:
        _take_head(c, model["head"])
    given = {"pairing": pairing, "base": base, "rotated_fraction": rotated_fraction}
    pairing = _pairing(c, model, given)
    p = _of_layer(c, layer_type, model) if _has_positions(c, model) else None
    if p is None:
        return NONE
    kind = rope_type(p)
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{p.where}: rope_type must be one of {', '.join(KINDS)}, got {kind!r}")
    base = p.positive("rope_theta", None) or _flat(c, BASES, keys.get("rope_theta", 1e4 if base is None else base))
    fraction = p.positive(PART, None) or _flat(c, FRACTIONS, keys.get(PART, rotated_fraction or 1.0))
    reads = model.get("reads", () if model else ("rotary_dim",))
    if PART not in p.keys and "rotary_dim" in reads and c("rotary_dim", None) is not None:
        fraction = c.count("rotary_dim") / _channels(c, layer_type)
    if model and fraction != 1 and kind in WHOLE and not model.get("part"):
        rule = f"{PART} must be 1.0 for model_type {c.keys.get('model_type')!r}, whose code does not read it"
        raise ValueError(f"{p.where}: {rule}, got {fraction}")
    extension = _extension(c, p, kind)
    if kind == "axial" or "axial" in model:
        spec = EncodingSpec("rope_axial", _axial(c, layer_type, model, base, fraction), extension)
    else:
        options = {"base": base, "pairing": pairing} | _rotated(c, layer_type, kind, fraction) | _sections(p, model)
        spec = EncodingSpec("rope", options, extension)
    check_rotation(p, spec, _width(c, layer_type, spec))
    return spec


def _width(c: Config, layer_type: str | None, spec: EncodingSpec) -> int | None:
    """Return the channels that may turn, where the spec counts them or their pairs. None = it does not, or unknown."""
    latent = c.count("qk_rope_head_dim", None)
    counted = {"rotary_dim", "sections"} & {*dict(spec.options)} or "longrope" in str(spec.extend)
    known = latent or c("head_dim", c("hidden_size", None)) is not None
    return latent or _channels(c, layer_type) if counted and known else None


def _take_head(c: Config, key: str) -> None:
    """Set `head_dim` to the value of the key that stands for it in this model."""
    channels = c.count(key)
    if c("head_dim", channels) != channels:
        raise ValueError(f"{c.where}: head_dim must be {key}={channels}, got {c('head_dim')!r}")
    c.keys["head_dim"] = channels


def _check_place(c: Config) -> None:
    """Raise ValueError for the config of a whole model whose parts have the rotary keys."""
    if any(c.keys.get(key) is not None for key in PLACES):
        return
    parts = [key for key, value in c.keys.items() if isinstance(value, Mapping) and any(map(value.get, PLACES))]
    if parts:
        way = " or ".join(f"config[{part!r}]" for part in parts)
        raise ValueError(f"{c.where} must have the key rope_parameters, got none: {way} has, pass that")


def entry_name(keys: Mapping[str, Any]) -> str:
    """Return the name in the table of a config.json, in which a part may have the model type of the whole.

    The part for pictures has patches; the older files of a whole model have the rotary keys of its text model.
    """
    name = str(keys.get("model_type"))
    if "patch_size" in keys and f"{name}_vision" in MODELS:
        return f"{name}_vision"
    is_whole = name not in MODELS and any(keys.get(key) is not None for key in PLACES)
    return f"{name}_text" if is_whole and f"{name}_text" in {*MODELS, *UNREADABLE} else name


def _model(c: Config) -> Mapping[str, Any]:
    """Return the entry of the model type in the table, empty where there is none."""
    name = entry_name(c.keys)
    if name in UNREADABLE:
        raise ValueError(f"model_type {name!r} is not supported: {UNREADABLE[name]}")
    return MODELS.get(name, {})


def _pairing(c: Config, model: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return the pairing: that of the model, or the caller's where the model is unknown."""
    name, pairing = c.keys.get("model_type"), given["pairing"]
    if pairing is not None:
        check_choice("pairing", pairing, PAIRINGS)
    for argument in ("base", "rotated_fraction"):
        if given[argument] is not None and not (is_number(given[argument]) and given[argument] > 0):
            raise ValueError(f"{argument} must be a number above 0, got {given[argument]!r}")
    if not model:
        if pairing is not None:
            return pairing
        of = "without a model_type" if not name else f"for model_type {name!r}, which is not known"
        rule = "'half' (channel i turns with D/2 + i) or 'interleaved' (neighbors), as in the model's code"
        raise ValueError(f"pairing must be given {of}: {rule}, got None")
    own = model.get("axial", model)["pairing"]
    if model.get("by_flag"):
        own = "interleaved" if c.flag("rope_interleave", True) else "half"
    if pairing not in (None, own):
        raise ValueError(f"pairing must be None or that of model_type {name!r}, {own!r}, got {pairing!r}")
    for argument in ("base", "rotated_fraction"):
        if given[argument] is not None:
            raise ValueError(f"{argument} must be None for model_type {name!r}, which is known, got {given[argument]}")
    return own


def _of_layer(c: Config, layer_type: str | None, model: Mapping[str, Any]) -> Config | None:
    """Return the keys of this layer's rotation, without flat keys. None = the layer has no positions."""
    old, new = rope_objects(c)
    inert = "max_position_embeddings"
    nested = {key: value for key, value in new.items() if isinstance(value, Mapping) or key in LAYER_TYPES}
    if not nested:
        _check_flat(c, layer_type, bool(old or new), model)
        if layer_type == "sliding_attention" and c(LOCAL, None) is not None:
            return c.part(LOCAL, {"rope_theta": c.positive(LOCAL)})
        return c.part("rope_scaling" if old else "rope_parameters", old or new, inert=inert)
    others = {*new} - {*nested} - {"rope_type", "type"}
    if layer_type not in nested or others:
        rule = f"rope_parameters must have an entry for layer_type={layer_type!r} and no key beside layer types"
        raise ValueError(f"{c.where}: {rule}, got {', '.join(new)}")
    if nested[layer_type] is None:
        return None
    return c.part(f"rope_parameters.{layer_type}", nested[layer_type], inert=inert)


def _check_flat(c: Config, layer_type: str | None, given: bool, model: Mapping[str, Any]) -> None:
    """Raise ValueError for a layer type where all layers are alike, and for parameters that are missing."""
    local = c(LOCAL, None) is not None
    known = LAYER_TYPES if local else () if model else (*LAYER_TYPES, *_layer_types(c))
    if layer_type is not None and layer_type not in known:
        raise ValueError(f"layer_type must be None where all layers have the same rotation, got {layer_type!r}")
    if local and layer_type is None:
        raise ValueError(f"layer_type must be one of {', '.join(LAYER_TYPES)} where {LOCAL} is given, got None")
    if not given and not local and model and model.get("keys", {}).get("rope_theta", 1e4) is None:
        raise ValueError(f"{c.where} must have the key rope_parameters, got none")


def _flat(c: Config, names: tuple[str, ...], default: float | None) -> float:
    """Return the number of the first of these flat keys that is there, or the default.

    Raises:
        ValueError: none of them is there, and the model type has no default.
    """
    values = [c.positive(name, None) for name in names]
    if default is None and not any(values):
        return c.positive(names[0])
    return next(filter(None, [*values, default]))


def _layer_types(c: Config) -> list[Any]:
    """Return the types of the layers, of which older files have none."""
    names = c("layer_types", [])
    if not isinstance(names, list | tuple):
        raise ValueError(f"{c.where}: layer_types must be a list, got {names!r}")
    return [*names]


def _has_positions(c: Config, model: Mapping[str, Any]) -> bool:
    """Return whether layers rotate at all, in models that say so by `position_embedding_type`."""
    kind = c("position_embedding_type", model.get("position_embedding_type", "rope"))
    if kind not in ("rope", "rotary", "nope"):
        raise ValueError(f"{c.where}: position_embedding_type must be 'rope', 'rotary' or 'nope', got {kind!r}")
    return kind != "nope"


def _channels(c: Config, layer_type: str | None) -> int:
    """Return the channels of a head in layers of this type."""
    own = {str(layer).lstrip("0") or "0": keys for layer, keys in c.object("per_layer_config").items()}
    layers = [layer for layer, name in enumerate(_layer_types(c)) if name == layer_type]
    for layer in layers:
        if not isinstance(own.get(str(layer), {}), Mapping):
            raise ValueError(f"{c.where}: per_layer_config.{layer} must be an object, got {own[str(layer)]!r}")
    parts = [Config(own.get(str(layer), {}), f"{c.where}: per_layer_config.{layer}") for layer in layers]
    widths = {part.count("head_dim") for part in parts if part("head_dim", None) is not None}
    if layer_type == "full_attention" and c("global_head_dim", None) is not None:
        return c.count("global_head_dim")
    if len(widths) > 1:
        raise ValueError(f"{c.where}: layers of {layer_type} must have heads of one width, got {sorted(widths)}")
    if not widths and c("encoder_num_attention_heads", None) is not None:
        c.defaults(num_attention_heads=c.count("encoder_num_attention_heads"))
    return widths.pop() if widths else head_channels(c)


def _rotated(c: Config, layer_type: str | None, kind: object, fraction: float) -> dict[str, Any]:
    """Return the options of a head of which only a part turns.

    Where keys are latent (MLA), the part that turns is a head of its own, of `qk_rope_head_dim` channels.
    """
    if fraction == 1:
        return {}
    channels = _channels(c, layer_type)
    latent = c.count("qk_rope_head_dim", channels)
    if kind == "proportional":
        if latent != channels:
            rule = f"rope_type must be another one than 'proportional' where qk_rope_head_dim={latent}"
            raise ValueError(f"{c.where}: {rule} is not the head's {channels}, got {kind!r}")
        return {"layout": "proportional", "rotary_dim": 2 * int(fraction * channels // 2)}
    rotated = int(channels * fraction)
    if latent not in (channels, rotated):
        rule = f"{PART} must be qk_rope_head_dim={latent} over the head's {channels}"
        raise ValueError(f"{c.where}: {rule}, got {fraction}")
    return {} if rotated in (channels, latent) else {"rotary_dim": rotated}


def _sections(p: Config, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a head whose pairs turn with several axes, as time, height and width."""
    counts = p("mrope_section", p("xdrope_section", model.get("mrope_section")))
    flags = [p.flag(name) for name in ("mrope_interleaved", "interleaved") if p(name, None) is not None]
    if counts is None:
        return {}
    own = model.get("mrope_section", counts)
    whole = isinstance(counts, list | tuple) and all(type(count) is int and count >= 0 for count in counts)
    if not whole or len(counts) != len(own):
        raise ValueError(f"{p.where}: mrope_section must be the number of pairs of each axis, got {counts!r}")
    order = model.get("section_order", ORDERS["mrope_section" not in model and any(flags)])
    if flags and ORDERS[flags[0]] != order:
        raise ValueError(f"{p.where}: mrope_interleaved must be {order == 'interleaved'} in this model, got {flags[0]}")
    axes = model.get("section_axes", range(len(counts)))
    sections = tuple(count for _, count in sorted(zip(axes, counts, strict=True)))
    return {"sections": sections} | ({} if order == "chunked" else {"section_order": order})


def _axial(c: Config, layer_type: str | None, model: Mapping[str, Any], base: float, fraction: float) -> dict[str, Any]:
    """Return the options of a head whose channels are divided among the axes of a picture or video."""
    if "axial" not in model:
        name = c.keys.get("model_type")
        way = "write rope_axial(...) with the model's own layout"
        raise ValueError(f"rope_type 'axial' must come with a known model_type, got {name!r}: {way}")
    options = {"base": base, **model["axial"]}
    axes = options.pop("axes", 2)
    if fraction != 1:
        options["rotary_dim"] = int(_channels(c, layer_type) * fraction)
    elif axes > 2:
        width = 2 * (_channels(c, layer_type) // (2 * axes))
        options["widths"] = (width,) * axes
    return options


def _extension(c: Config, p: Config, kind: str) -> Extension | None:
    """Return the extension: the scaling of frequencies, and the temperature of queries."""
    if kind in TYPES and TYPES[kind] not in ("none", "linear"):
        scaling = read_extension(c, p, c.count("max_position_embeddings"))
    else:
        p.count(LENGTH, 1)
        scaled = kind == "linear" or (kind == "proportional" and p("factor", 1.0) != 1)
        scaling = EXTENSIONS["linear"](factor=p.number("factor")) if scaled else None
    beta = p.number("llama_4_scaling_beta", None)
    if not beta:
        return scaling
    temperature = EXTENSIONS["llama4"](floor_length=p.count(LENGTH), scale=beta, offset=0)
    return temperature if scaling is None else scaling + temperature
