"""The architectures that can be read and written: a file per family, a line per file."""

from collections.abc import Mapping
from typing import Any

from pejax._calls.names import did_you_mean
from pejax.interop.architecture import Architecture
from pejax.interop.architectures import (
    arcee,
    bloom,
    clip,
    cohere,
    dinov2,
    distilbert,
    encoders,
    exaone4,
    falcon,
    gemma,
    glm,
    gpt,
    gpt_neo,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    llama,
    modernbert,
    moe,
    mpt,
    olmo,
    olmo3,
    olmoe,
    opt,
    phi,
    phi3,
    qwen,
    qwen3_moe,
    roformer,
    rope_vit,
    seed_oss,
    siglip,
    smollm3,
    stablelm,
    starcoder2,
    t5,
    vit,
    xlnet,
)
from pejax.interop.config import Config
from pejax.interop.towers import TOWERS, text_tower

ARCHITECTURES: dict[str, Architecture] = {
    **llama.ARCHITECTURES,
    **qwen.ARCHITECTURES,
    **smollm3.ARCHITECTURES,
    **gpt.ARCHITECTURES,
    **gpt_neox.ARCHITECTURES,
    **gemma.ARCHITECTURES,
    **olmo.ARCHITECTURES,
    **olmo3.ARCHITECTURES,
    **phi3.ARCHITECTURES,
    **starcoder2.ARCHITECTURES,
    **bloom.ARCHITECTURES,
    **mpt.ARCHITECTURES,
    **opt.ARCHITECTURES,
    **gptj.ARCHITECTURES,
    **phi.ARCHITECTURES,
    **cohere.ARCHITECTURES,
    **encoders.ARCHITECTURES,
    **modernbert.ARCHITECTURES,
    **roformer.ARCHITECTURES,
    **t5.ARCHITECTURES,
    **xlnet.ARCHITECTURES,
    **moe.ARCHITECTURES,
    **gpt_oss.ARCHITECTURES,
    **olmoe.ARCHITECTURES,
    **qwen3_moe.ARCHITECTURES,
    **arcee.ARCHITECTURES,
    **distilbert.ARCHITECTURES,
    **exaone4.ARCHITECTURES,
    **falcon.ARCHITECTURES,
    **glm.ARCHITECTURES,
    **gpt_neo.ARCHITECTURES,
    **granite.ARCHITECTURES,
    **seed_oss.ARCHITECTURES,
    **stablelm.ARCHITECTURES,
    **vit.ARCHITECTURES,
    **dinov2.ARCHITECTURES,
    **siglip.ARCHITECTURES,
    **clip.ARCHITECTURES,
}
"""Architectures by the `model_type` of config.json."""

REFUSED = {
    "qwen2_moe": "a shared expert",
    "phimoe": "experts chosen by SparseMixer",
    "phi3small": "attention to blocks (block-sparse)",
    "exaone": "tensors named as in the makers' own code",
    **dict.fromkeys(("chatglm", "internlm2"), "keys and tensors of the makers' own code, which is never run"),
    "dbrx": "clipped queries, keys and values",
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), "experts and attention with latent keys and values (MLA)"),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba", "jamba", "qwen3_next", "falcon_h1"), "state space layers"),
    "ministral3": "queries that are scaled by their position",
    **dict.fromkeys(("whisper", "qwen2_vl", "mllama"), "multimodal inputs"),
}
"""Unsupported architectures, and the missing feature."""


def architecture_of(config: Mapping[str, Any]) -> Architecture:
    """Return the architecture of a config.json, by its `model_type`, or by timm's `architecture`.

    Raises:
        ValueError: an unknown or unsupported architecture.
    """
    if config.get("model_type") in TOWERS:
        return text_tower(config, find_architecture)
    if "model_type" in config or "architecture" not in config:
        architecture = find_architecture(config.get("model_type"))
        return (
            architecture
            if architecture.padding is None
            else architecture._replace(skipped_rows=rows_of_padding(config, architecture.padding))
        )
    return rope_vit.ARCHITECTURES.get(config["architecture"], rope_vit.SIZES_GIVEN)


def rows_of_padding(config: Mapping[str, Any], default: int) -> int:
    """Return the number of rows up to that of `pad_token_id`."""
    return 1 + Config(config).count("pad_token_id", default, least=0)


def find_architecture(model_type: object) -> Architecture:
    """Return an architecture by its `model_type`.

    Raises:
        ValueError: an unknown or unsupported architecture.
    """
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]
    if isinstance(model_type, str) and model_type in REFUSED:
        raise ValueError(f"model_type {model_type!r} is not supported: it has {REFUSED[model_type]}")
    hint = did_you_mean(str(model_type), ARCHITECTURES) or "."
    raise ValueError(f"unknown model_type {model_type!r}{hint} Known: {', '.join(sorted((*ARCHITECTURES, *TOWERS)))}")
