"""Models that have a GGUF file, by their names in `CONFIGS`."""

from typing import Any

from tests.support.hub_folders import CONFIGS

ALIKE = {
    "gemma2": {"query_pre_attn_scalar": 12}, "gemma3_text": {"query_pre_attn_scalar": 12},
    "gemma3_text, both sides": {"query_pre_attn_scalar": 12},
    "starcoder2": {"sliding_window": 4096}, "smollm3": {"no_rope_layers": [1, 1]},
}  # fmt: skip
"""Values that are those of all published models, because the file does not say them."""
QUICK = ("gemma3_text", "gpt_oss", "falcon, new")
"""Families with an offset, experts, another order of rows, windows and two bases."""
SLOW = (
    *("llama, biases", "llama, linear", "llama, yarn", "mistral", "mixtral, windows", "qwen2, both sides", "qwen3"),
    *("qwen3_moe, normalized", "olmoe", "gemma", "gemma2", "phi", "phi3", "glm4", "exaone4", "exaone4, no windows"),
    *("smollm3", "olmo2", "seed_oss", "ernie4_5", "ernie4_5, biases", "cohere", "cohere, norms", "cohere2"),
    *("starcoder2", "stablelm", "nemotron", "arcee", "arcee, biases", "gpt_neox", "falcon", "falcon, one norm"),
    *("bloom", "mpt", "stablelm, norms", "gpt2", "granite", "olmo3"),
)
OF_MORE = ("eurobert", "nomic_bert", "jina_embeddings_v3", "gemma3_text, both sides")
HEADLESS = ("bert", "modernbert", *(name for name in OF_MORE if name in CONFIGS))
"""Encoders, whose files hold no head."""
SLOW += tuple(name for name in ("olmo",) if name in CONFIGS)


def config_of(name: str) -> dict[str, Any]:
    """Return the config.json of a case."""
    return {**CONFIGS[name], **ALIKE.get(name, {})}
