"""The architectures that can be read and written: a file per family, a line per model."""

from pejax._calls.names import did_you_mean
from pejax.interop.architecture import Architecture
from pejax.interop.architectures import (
    bloom,
    clip,
    cohere,
    encoders,
    esm,
    gemma,
    glm,
    gpt,
    granite,
    llama,
    modernbert,
    moe,
    olmo,
    phi,
    rotary_encoders,
    squared,
    t5,
    vit,
)
from pejax.interop.towers import TOWERS

ARCHITECTURES: dict[str, Architecture] = {
    **llama.LLAMA,
    **llama.QWEN,
    **llama.LLAMAS,
    **llama.SMOLLM3,
    **gpt.GPT2,
    **gpt.GPT_NEOX,
    **gemma.ARCHITECTURES,
    **olmo.OLMO,
    **olmo.OLMO2,
    **olmo.OLMO3,
    **phi.PHI3,
    **llama.STARCODER2,
    **bloom.BLOOM,
    **bloom.MPT,
    **gpt.OPT,
    **gpt.GPTJ,
    **phi.PHI,
    **cohere.ARCHITECTURES,
    **encoders.BERT,
    **encoders.ELECTRA,
    **encoders.MPNET,
    **modernbert.ARCHITECTURES,
    **esm.ARCHITECTURES,
    **rotary_encoders.NOMIC,
    **rotary_encoders.JINA,
    **rotary_encoders.GTE,
    **encoders.ROFORMER,
    **t5.ARCHITECTURES,
    **encoders.XLNET,
    **moe.MIXTRAL,
    **moe.GPT_OSS,
    **moe.OLMOE,
    **moe.QWEN3_MOE,
    **squared.ARCHITECTURES,
    **encoders.DISTILBERT,
    **olmo.EXAONE4,
    **bloom.FALCON,
    **glm.ARCHITECTURES,
    **gpt.GPT_NEO,
    **granite.ARCHITECTURES,
    **llama.SEED_OSS,
    **llama.STABLELM,
    **vit.VIT,
    **vit.DINO,
    **clip.SIGLIP,
    **clip.CLIP,
    **clip.AIMV2,
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
    **dict.fromkeys(("whisper", "mllama"), "multimodal inputs"),
}
"""Unsupported architectures, and the missing feature."""


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
