"""Sources of models that were made here, by the classes of transformers that compute the same."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from pejax._record.specs import EncodingSpec
from pejax.interop.config import ACTIVATIONS
from pejax.interop.layouts import Layout
from pejax.interop.model_config import read_config
from pejax.interop.slots import Slot
from pejax.interop.source import Source, source_from_config
from pejax.models import Decoder, DiT, EncoderDecoder, LayerConfig, MlpConfig, TransformerConfig, ViT, ViTConfig

THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""Activations: our names, and the first of config.json for each."""
CLASSES = {
    "llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM", "smollm3": "SmolLM3ForCausalLM",
    "gpt2": "GPT2LMHeadModel", "starcoder2": "Starcoder2ForCausalLM", "vit": "ViTForImageClassification",
}  # fmt: skip
"""Classes of transformers by the `model_type` of config.json."""
ROPE = {"base": 10000.0, "pairing": "interleaved"}
"""Options of RoPE that readers state, at our defaults."""
NOT_COMPARED = ("dtype", "stochastic_depth")
"""Fields that no file stores."""
ABSENT = "nothing"
"""What a config has in place of a field that another one has."""


def source_from_model(model: Decoder | EncoderDecoder | ViT | DiT, *, dtype: str = "float32") -> Source:
    """Return the source of a model that was made here, with which `save` writes it for transformers.

    It is that of the first class out of Llama, Qwen3, SmolLM3, GPT-2, StarCoder 2 and ViT that computes what the model
    does. Where RoPE turns neighboring channels together, the file has the channels of queries and keys in the order of
    these classes, which turn channel i with D/2 + i: their products are the same.

    Args:
        model: a `Decoder`, such as that of a run of `train.lm`, or a `ViT` with learned positions. `save` writes an
            extension of its encoding where config.json can hold it.
        dtype: type of the tensors in the file: "float32", "bfloat16" or "float16".

    Raises:
        ValueError: a model that none of these classes computes, with what the nearest one computes in its place.

    Examples:
        >>> from flax import nnx
        >>> from pejax.models import decoder
        >>> source_from_model(Decoder(decoder(vocab=97), rngs=nnx.Rngs(0))).name
        'llama'
    """
    config = model.config
    if not isinstance(config, TransformerConfig | ViTConfig):
        kind = type(model).__name__
        raise ValueError(f"model must be a Decoder or a ViT, as transformers has no class for others, got a {kind}")
    changes: dict[str, Any] = {"stochastic_depth": 0.0} if isinstance(config, ViTConfig) else {}
    own = replace(config, layers=tuple(map(_without_extension, config.layers)), dtype="float32", **changes)
    source = source_from_config(config_json_of(own), dtype=dtype)
    pairings = {rope["pairing"] for layer in own.layers if (rope := _rope(layer))}
    if len(pairings) > 1:
        raise ValueError(f"pairing must be the same in all layers of model, got {' and '.join(sorted(pairings))}")
    head_dim = own.layers[0].attention.head_dim
    slots = [_in_halves(slot, head_dim) for slot in source.slots] if pairings == {"interleaved"} else source.slots
    return replace(source, config=own, slots=slots)


def config_json_of(config: TransformerConfig | ViTConfig) -> dict[str, Any]:
    """Return the config.json of the first class that computes what a model of this config does, without extensions.

    Raises:
        ValueError: as `source_from_model`.
    """
    own = replace(config, layers=tuple(map(_with_halves, config.layers)))
    differences: dict[str, list[str]] = {}
    for config_json in _images(own) if isinstance(own, ViTConfig) else _texts(own):
        try:
            theirs = read_config(config_json)
        except ValueError:  # the class cannot have such sizes
            continue
        differs = _differences(_values(theirs), _values(own))
        if not differs:
            return config_json
        differences[config_json["model_type"]] = differs
    if not differences:
        raise ValueError(f"model must have a head and sizes of a class of transformers, got {str(config)[:200]}")
    nearest = min(differences, key=lambda name: len(differences[name]))
    rule = f"model must compute what {' or '.join(CLASSES[name] for name in differences)} does"
    raise ValueError(f"{rule}; {CLASSES[nearest]} is nearest, but for {', '.join(differences[nearest])}"[:500])


def _differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Return the values in which two configs differ, of layers the first that does."""
    pairs = {name: (theirs.get(name, ABSENT), ours.get(name, ABSENT)) for name in {**ours, **theirs}}
    names = [name for name, (there, here) in pairs.items() if there != here]
    first = {re.sub(r"^layers\[\d+\]\.", "", name): name for name in reversed(names)}
    texts = {short: "{} there, {} here".format(*pairs[name]) for short, name in reversed(first.items())}
    return [f"{short} ({text})" for short, text in texts.items()]


def _texts(config: TransformerConfig) -> Iterator[dict[str, Any]]:
    """Generate the config.json of every class of texts, with the sizes of a model whose first layer stands for all."""
    layer = config.layers[0]
    attention, mlp = layer.attention, layer.mlp
    if config.head is None or not isinstance(mlp, MlpConfig):
        return
    activation = THEIR_ACTIVATIONS.get(mlp.activation, mlp.activation)
    # Defaults of transformers name tokens of the published models, which here are any others.
    no_tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    head = {"vocab_size": config.vocab, "tie_word_embeddings": config.head.tied, **no_tokens}
    rotations = [_rope(layer) for layer in config.layers]
    base = next((rope["base"] for rope in rotations if rope), None)
    sizes = {
        **head, "hidden_size": config.width, "intermediate_size": mlp.hidden, "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.heads, "num_key_value_heads": attention.kv_heads, "hidden_act": activation,
        "max_position_embeddings": config.length, **({"rope_theta": base} if base else {}),
    }  # fmt: skip
    rms = {**sizes, "rms_norm_eps": layer.norm.epsilon, "attention_bias": bool(attention.bias)}
    gated = {"head_dim": attention.head_dim, "mlp_bias": mlp.bias}
    yield _new("llama", **rms, **gated)
    yield _new("qwen3", **rms, head_dim=attention.head_dim)
    yield _new("smollm3", **rms, no_rope_layers=[int(bool(rope)) for rope in rotations], mlp_bias=mlp.bias)
    yield _new(
        "gpt2", **head, n_embd=config.width, n_head=attention.heads, n_layer=len(config.layers), n_inner=mlp.hidden,
        n_positions=config.length, activation_function=activation, layer_norm_epsilon=layer.norm.epsilon,
    )  # fmt: skip
    yield _new("starcoder2", **sizes, norm_epsilon=layer.norm.epsilon, use_bias=mlp.bias, sliding_window=None)


def _images(config: ViTConfig) -> Iterator[dict[str, Any]]:
    """Generate the config.json of every class of pictures with the sizes of a model."""
    layer = config.layers[0]
    if isinstance(layer.mlp, MlpConfig):
        yield _new(
            "vit", hidden_size=config.width, intermediate_size=layer.mlp.hidden, num_hidden_layers=len(config.layers),
            num_attention_heads=layer.attention.heads, num_channels=config.channels, patch_size=config.patch,
            image_size=list(config.image_size), layer_norm_eps=layer.norm.epsilon, num_labels=config.classes,
            hidden_act=THEIR_ACTIVATIONS.get(layer.mlp.activation, ""),
        )  # fmt: skip


def _new(model_type: str, **keys: Any) -> dict[str, Any]:
    """Return the content of a config.json."""
    return {"model_type": model_type, "architectures": [CLASSES[model_type]], **keys}


def _without_extension(layer: LayerConfig) -> LayerConfig:
    """Return the config of a layer without the extension of its encoding."""
    return replace(layer, attention=replace(layer.attention, pe=layer.attention.pe.without_extension()))


def _rope(layer: LayerConfig) -> dict[str, Any]:
    """Return the options of RoPE in a layer, empty where it has another encoding."""
    pe = layer.attention.pe
    return {**ROPE, **dict(pe.options)} if isinstance(pe, EncodingSpec) and pe.name == "rope" else {}


def _with_halves(layer: LayerConfig) -> LayerConfig:
    """Return the config of a layer whose RoPE turns channel i with D/2 + i, as all of the classes here do."""
    options = _rope(layer)
    pe = EncodingSpec("rope", {**options, "pairing": "half"}) if options else layer.attention.pe
    return replace(layer, attention=replace(layer.attention, pe=pe))


def _in_halves(slot: Slot, head_dim: int) -> Slot:
    """Return the slot of a model with neighboring channels for a file in which channel i turns with D/2 + i.

    Queries, keys and the norms of both have other orders of channels; the other slots stay as they are.
    """
    moved = {"qkv": 2, "norm_q": 1, "norm_k": 1}.get(str(slot.path[-2]), 0)  # queries and keys are before the values
    if not moved:
        return slot
    to_halves = np.arange(head_dim).reshape(-1, 2).T.reshape(-1)  # all channels 2 i, then all channels 2 i + 1

    def reorder(pieces: Sequence[np.ndarray], order: np.ndarray) -> list[np.ndarray]:
        by_head = lambda piece: piece.reshape(-1, head_dim, *piece.shape[1:])[:, order].reshape(piece.shape)
        return [by_head(piece) if number < moved else piece for number, piece in enumerate(pieces)]

    def join(pieces: list[np.ndarray]) -> np.ndarray:
        return slot.layout.join(reorder(pieces, np.argsort(to_halves)))

    return slot._replace(layout=Layout(join, lambda value: reorder(slot.layout.split(value), to_halves)))


def _values(config: Any, path: str = "") -> dict[str, Any]:
    """Return the values of a config by their paths, without those of `NOT_COMPARED`.

    Of `padding` an id alone counts, which has an effect whatever an attention mask says.
    """
    if isinstance(config, tuple):
        parts = {f"{path}[{number}]": value for number, value in enumerate(config)}
    elif is_dataclass(config) and not isinstance(config, EncodingSpec):
        names = [field.name for field in fields(config) if field.name not in NOT_COMPARED]
        parts = {f"{path}.{name}" if path else name: getattr(config, name) for name in names}
        if "padding" in parts and not isinstance(parts["padding"], int):
            parts["padding"] = None
    else:
        return {path: config}
    return {name: value for part, child in parts.items() for name, value in _values(child, part).items()}
