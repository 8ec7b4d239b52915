"""Configs of small text models of families that `hub_folders` has not: relatives of Llama and Gemma, and encoders."""

from typing import Any

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 500.0, "pad_token_id": 0}  # fmt: skip
FOUR = {**SIZES, "num_hidden_layers": 4}
ENCODER = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
           "num_attention_heads": 4, "max_position_embeddings": 48, "pad_token_id": 0}  # fmt: skip
ROTARY = {**ENCODER, "rope_theta": 500.0}
PAIR = {
    "vocab_size": 97, "d_model": 32, "d_kv": 10, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20, "decoder_start_token_id": 0,
}  # fmt: skip
BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16, "rope_theta": 500.0}  # fmt: skip
GEMMA = {**SIZES, "head_dim": 12, "sliding_window": 7, "query_pre_attn_scalar": 20}
TYPES = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILIES: dict[str, dict[str, Any]] = {
    "helium": {"model_type": "helium", **SIZES, "head_dim": 8, "attention_bias": True, "mlp_bias": True},
    "cwm": {"model_type": "cwm", **{k: v for k, v in FOUR.items() if k != "rope_theta"}, "head_dim": 12,
            "sliding_window": 7, "rope_parameters": LLAMA3},
    "internlm3": {"model_type": "internlm3", **SIZES, "head_dim": 12, "qkv_bias": True, "bias": True},
    "eurobert": {"model_type": "eurobert", **SIZES},
    "eurobert, biases": {"model_type": "eurobert", **SIZES, "attention_bias": True, "mlp_bias": True},
    "granite_swa": {"model_type": "granite_swa", **FOUR, "sliding_window": 7, "embedding_multiplier": 3.0,
                    "residual_multiplier": 0.7, "attention_multiplier": 0.4, "logits_scaling": 0.5},
    "granite_swa, bases": {"model_type": "granite_swa", **FOUR, "sliding_window": 7,
                           "layer_rope_theta": [500.0, 0, 60.0, 500.0]},
    "jais2": {"model_type": "jais2", **SIZES},
    "olmo": {"model_type": "olmo", **SIZES},
    "vaultgemma": {"model_type": "vaultgemma", **SIZES, "head_dim": 12, "query_pre_attn_scalar": 20,
                   "sliding_window": 7},
    "gemma3_text, both sides": {
        "model_type": "gemma3_text", **{k: v for k, v in SIZES.items() if k != "rope_theta"}, "num_hidden_layers": 3,
        "head_dim": 12, "sliding_window": 10, "query_pre_attn_scalar": 20, "rope_parameters": BASES,
        "layer_types": TYPES, "use_bidirectional_attention": True,
    },
    "modernbert-decoder": {
        "model_type": "modernbert-decoder", **ENCODER, "num_hidden_layers": 3, "local_attention": 14,
        "rope_parameters": BASES, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
    },
    "nomic_bert": {"model_type": "nomic_bert", **ROTARY},
    "jina_embeddings_v3": {"model_type": "jina_embeddings_v3", **ROTARY},
    "gte": {"model_type": "gte", **ROTARY},
    "gte, no types": {"model_type": "gte", **ROTARY, "type_vocab_size": 0, "hidden_act": "relu"},
    "electra": {"model_type": "electra", **ENCODER, "embedding_size": 32, "hidden_act": "relu"},
    "mpnet": {"model_type": "mpnet", **ENCODER, "pad_token_id": 1, "max_position_embeddings": 50},
    "esm": {"model_type": "esm", **ENCODER, "position_embedding_type": "rotary", "pad_token_id": 1},
    "esm, dropout": {"model_type": "esm", **ENCODER, "position_embedding_type": "rotary", "pad_token_id": 1,
                     "mask_token_id": 5, "token_dropout": True},
    "esm, learned": {"model_type": "esm", **ENCODER, "pad_token_id": 1, "max_position_embeddings": 50,
                     "mask_token_id": 5, "token_dropout": True, "emb_layer_norm_before": True},
    "nanochat": {"model_type": "nanochat", **SIZES, "attention_bias": True},
    "siglip_text_model": {"model_type": "siglip_text_model", **ENCODER},
    "siglip2_text_model": {"model_type": "siglip2_text_model", **ENCODER},
    "metaclip_2_text_model": {"model_type": "metaclip_2_text_model", **ENCODER, "eos_token_id": 2},
    "t5gemma": {"model_type": "t5gemma", "encoder": GEMMA, "decoder": {**GEMMA, "num_hidden_layers": 3},
                "vocab_size": 97},
    "t5gemma, untied": {"model_type": "t5gemma", "encoder": GEMMA, "decoder": GEMMA, "vocab_size": 97,
                        "tie_word_embeddings": False},
    "umt5": {"model_type": "umt5", **PAIR},
    "umt5, not scaled": {"model_type": "umt5", **PAIR, "tie_word_embeddings": False, "num_decoder_layers": 3},
}  # fmt: skip
