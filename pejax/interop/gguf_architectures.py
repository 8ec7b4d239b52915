"""The architectures of GGUF files: how their metadata are said in config.json, and which tensors were changed.

Keys and changes are those of llama.cpp's converter.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from pejax.interop import gguf_families as families
from pejax.interop.gguf_families import Settings
from pejax.interop.gguf_keys import Keys
from pejax.interop.gguf_tensors import Change, by_key_head, minus_one, neighbors, transposed
from pejax.models import LayerConfig


class GgufArchitecture(NamedTuple):
    """The differences between families of GGUF files.

    Attributes:
        model_type: `model_type` in config.json.
        model_class: class of transformers, for config.json.
        more: function from the metadata, and the settings that most families share, to further or other settings.
        epsilon: key of config.json for the epsilon of the norms.
        rms: whether the norms are RMSNorm.
        rotary: "all", "part" or "": how many channels of a head may be rotated.
        changes: changes of the tensors, by part (`PARTS`).
        modules: function from the config of a layer to names of the file by part that are not the usual ones.
        renamed: keys of config.json that have other names in this family; "" = it has no such key.
    """

    model_type: str
    model_class: str
    more: Callable[[Keys, Settings], Settings] = lambda k, shared: {}
    epsilon: str = "rms_norm_eps"
    rms: bool = True
    rotary: str = "all"
    changes: Mapping[str, Change] = {}
    modules: Callable[[LayerConfig], Mapping[str, str]] = lambda layer: {}
    renamed: Mapping[str, str] = {}


NEIGHBORS = {"q": neighbors("heads"), "k": neighbors("kv_heads")}
OFFSETS: dict[str, Change] = dict.fromkeys(
    ("norm", "norm_attention", "norm_attention_after", "norm_mlp", "norm_mlp_after", "q_norm", "k_norm"), minus_one
)
BY_HEAD = {"qkv": by_key_head}
IN_OUT = dict.fromkeys(("qkv", "o", "up", "down"), transposed)
POST_NORM = lambda layer: {"norm_mlp": "blk.{n}.post_attention_norm"}
OLD_NAMES = {"rope_theta": "", "rope_scaling": "", "num_key_value_heads": "", "head_dim": ""}


def config_of(k: Keys, entry: GgufArchitecture) -> Settings:
    """Return the metadata of a file in the words of config.json."""
    keys, file = k.file.keys, k.file
    heads, width = k.per_layer("attention.head_count"), k.count("embedding_length")
    whole = k.count("rope.dimension_count", width // heads) if entry.rotary == "all" else width // heads
    channels = k.count("attention.key_length", whole)
    k.must("attention.value_length", channels)
    vocab = k.rows("token_embd.weight")
    k.must("vocab_size", vocab)
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    tokens = {ours: keys.get(f"tokenizer.ggml.{name}_token_id") for ours, name in names.items()}
    kinds = {tensor.kind for tensor in file.tensors.values()}
    shared: Settings = {
        "architectures": [entry.model_class],
        "model_type": entry.model_type,
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": k.per_layer("feed_forward_length"),
        "num_hidden_layers": k.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": k.per_layer("attention.head_count_kv", heads),
        "head_dim": channels,
        "max_position_embeddings": k.count("context_length"),
        **_rotation(k, entry, channels),
        **({"is_causal": False} if not k.flag("attention.causal", True) else {}),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": {"F16": "float16", "BF16": "bfloat16"}.get("".join(kinds), "float32"),
        **{name: value for name, value in tokens.items() if value is not None},
    }
    rms, layer = (k.number(f"attention.layer_norm_{kind}epsilon", None) for kind in ("rms_", ""))
    epsilon = (rms if rms is not None else layer) if entry.rms else (layer if layer is not None else rms)
    if epsilon is None:
        _ = k.number(f"attention.layer_norm_{'rms_' if entry.rms else ''}epsilon")
    shared[entry.epsilon] = epsilon
    _ = k("pooling_type", None)  # for the states of a text, after the model
    settings = shared | entry.more(k, shared)
    if entry.renamed.get("num_key_value_heads") == "" and shared["num_key_value_heads"] != heads:
        raise k.error("attention.head_count_kv", f"{heads}, as many as heads", shared["num_key_value_heads"])
    if not settings.get("num_experts", settings.get("num_local_experts", 0)):
        k.must("expert_count", 0)
        k.must("expert_used_count", 0)
    named = {entry.renamed.get(key, key): value for key, value in settings.items()}
    return {key: value for key, value in named.items() if key and (value is not None or key == "sliding_window")}


def _rotation(k: Keys, entry: GgufArchitecture, channels: int) -> Settings:
    """Return the settings of rotary positions."""
    if not entry.rotary:
        return {}
    rotated, base = k.count("rope.dimension_count", channels), k.number("rope.freq_base", 1e4)
    _ = k("rope.scaling.finetuned", False)
    scaling = k.scaling(base, rotated)
    settings = {"rope_theta": base} | ({"rope_scaling": scaling} if scaling else {})
    if entry.rotary == "all":
        k.must("rope.dimension_count", channels)
        return settings
    fraction = rotated / channels
    # The reader of config.json rounds down.
    return {**settings, "partial_rotary_factor": fraction if int(channels * fraction) == rotated else
            math.nextafter(fraction, 2)}  # fmt: skip


SMALL = {**OLD_NAMES, "num_hidden_layers": "n_layer", "num_attention_heads": "n_head", "intermediate_size": ""}
GPT2_KEYS = {**SMALL, "hidden_size": "n_embd", "max_position_embeddings": "n_positions",
             "intermediate_size": "n_inner"}  # fmt: skip
MPT_KEYS = {**SMALL, "hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len"}  # fmt: skip
NEOX_KEYS = {**OLD_NAMES, "rope_scaling": "rope_scaling", "partial_rotary_factor": "rotary_pct"}
FALCON_KEYS = {"intermediate_size": "ffn_hidden_size", "num_key_value_heads": "num_kv_heads", "head_dim": ""}
BOTH_SIDES = {"is_causal": ""}
TWO_BASES = {"rope_theta": "", "rope_scaling": ""}
WithLayerNorm = partial(GgufArchitecture, epsilon="layer_norm_eps", rms=False)

ARCHITECTURES = {
    "llama": GgufArchitecture("llama", "LlamaForCausalLM", families.llama, changes=NEIGHBORS),
    "mistral3": GgufArchitecture(
        "mistral", "MistralForCausalLM", families.mistral3, changes=NEIGHBORS
    ),
    "granite": GgufArchitecture("granite", "GraniteForCausalLM", families.granite, changes=NEIGHBORS),
    "smollm3": GgufArchitecture("smollm3", "SmolLM3ForCausalLM", families.smollm3, changes=NEIGHBORS),
    "arcee": GgufArchitecture("arcee", "ArceeForCausalLM", families.squared, changes=NEIGHBORS),
    "qwen2": GgufArchitecture("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GgufArchitecture("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": GgufArchitecture("qwen3_moe", "Qwen3MoeForCausalLM", families.qwen3_moe),
    "olmoe": GgufArchitecture("olmoe", "OlmoeForCausalLM", families.olmoe),
    "gpt-oss": GgufArchitecture("gpt_oss", "GptOssForCausalLM", families.gpt_oss, modules=POST_NORM),
    "gemma": GgufArchitecture("gemma", "GemmaForCausalLM", changes=OFFSETS),
    "gemma2": GgufArchitecture("gemma2", "Gemma2ForCausalLM", families.gemma2, changes=OFFSETS),
    "gemma3": GgufArchitecture("gemma3_text", "Gemma3ForCausalLM", families.gemma3, changes=OFFSETS, renamed=TWO_BASES),
    "gemma-embedding": GgufArchitecture(
        "gemma3_text", "Gemma3TextModel", families.embedding_gemma, changes=OFFSETS,
        renamed={**TWO_BASES, **BOTH_SIDES},
    ),
    "phi2": WithLayerNorm("phi", "PhiForCausalLM", rotary="part"),
    "phi3": GgufArchitecture("phi3", "Phi3ForCausalLM", families.phi3, rotary="part"),
    "glm4": GgufArchitecture("glm4", "Glm4ForCausalLM", families.glm4, rotary="part"),
    "exaone4": GgufArchitecture("exaone4", "Exaone4ForCausalLM", families.exaone4),
    "olmo2": GgufArchitecture("olmo2", "Olmo2ForCausalLM", families.olmo2),
    "seed_oss": GgufArchitecture("seed_oss", "SeedOssForCausalLM", families.seed_oss, modules=POST_NORM),
    "ernie4_5": GgufArchitecture("ernie4_5", "Ernie4_5ForCausalLM", families.ernie),
    "command-r": WithLayerNorm("cohere", "CohereForCausalLM", families.cohere),
    "cohere2": WithLayerNorm("cohere2", "Cohere2ForCausalLM", families.cohere2),
    "starcoder2": WithLayerNorm(
        "starcoder2", "Starcoder2ForCausalLM", families.starcoder2, epsilon="norm_epsilon"
    ),
    "stablelm": WithLayerNorm("stablelm", "StableLmForCausalLM", families.stablelm, rotary="part"),
    "nemotron": WithLayerNorm(
        "nemotron", "NemotronForCausalLM", families.squared, epsilon="norm_eps", rotary="part", changes=OFFSETS
    ),
    "gptneox": WithLayerNorm(
        "gpt_neox", "GPTNeoXForCausalLM", families.gptneox, rotary="part", changes=BY_HEAD, renamed=NEOX_KEYS
    ),
    "falcon": WithLayerNorm(
        "falcon", "FalconForCausalLM", families.falcon, epsilon="layer_norm_epsilon", changes=BY_HEAD,
        modules=families.two_norms, renamed=FALCON_KEYS,
    ),
    "gpt2": WithLayerNorm(
        "gpt2", "GPT2LMHeadModel", epsilon="layer_norm_epsilon", rotary="", changes=IN_OUT,
        renamed=GPT2_KEYS,
    ),
    "bloom": WithLayerNorm(
        "bloom", "BloomForCausalLM", families.bloom, epsilon="layer_norm_epsilon", rotary="", changes=BY_HEAD,
        renamed={**SMALL, "max_position_embeddings": "seq_length"},
    ),
    "mpt": WithLayerNorm(
        "mpt", "MptForCausalLM", families.mpt, epsilon="layer_norm_epsilon", rotary="", renamed=MPT_KEYS
    ),
    "bert": WithLayerNorm("bert", "BertModel", families.bert, rotary="", renamed={**OLD_NAMES, **BOTH_SIDES}),
    "nomic-bert": WithLayerNorm(
        "nomic_bert", "NomicBertModel", families.nomic_bert, renamed={"num_key_value_heads": "", **BOTH_SIDES}
    ),
    "jina-bert-v3": WithLayerNorm(
        "jina_embeddings_v3", "JinaEmbeddingsV3Model", families.bert, renamed={"num_key_value_heads": "", **BOTH_SIDES}
    ),
    "olmo": WithLayerNorm(
        "olmo", "OlmoForCausalLM", families.olmo, epsilon="", changes=NEIGHBORS
    ),
    "modern-bert": GgufArchitecture(
        "modernbert", "ModernBertModel", families.modern_bert, "norm_eps", renamed={**OLD_NAMES, **BOTH_SIDES}
    ),
    "eurobert": GgufArchitecture("eurobert", "EuroBertModel", families.eurobert, renamed=BOTH_SIDES),
}  # fmt: skip
"""By the `general.architecture` of a file."""
