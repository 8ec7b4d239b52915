"""Names that people write: the one that is meant by a misspelled one, or by the word of another library."""

import difflib
import types
from collections.abc import Iterable, Mapping

MEANT = {
    # arguments
    "heads": "num_heads n_heads n_head nhead nheads num_attention_heads attention_heads",
    "kv_heads": "num_kv_heads n_kv_heads n_kv_head num_key_value_heads num_query_groups key_value_heads",
    "head_dim": "d_head dim_head head_size head_width dim_per_head qkv_features d_k dim",
    "width": "dim embed_dim hidden_size d_model n_embd model_dim emb_dim embedding_dim hidden_dim features",
    "hidden": "d_ff ffn_dim intermediate_size mlp_dim n_inner dim_feedforward hidden_dim",
    "layers": "depth num_layers n_layers n_layer num_hidden_layers num_blocks",
    "vocab": "vocab_size n_vocab num_embeddings",
    "length": "max_len max_length seq_len max_seq_len sequence_length seq_length context_length context block_size "
    "n_positions max_position_embeddings n_ctx extent",
    "count": "max_new_tokens max_tokens num_tokens n_tokens new_tokens steps max_length length",
    "extent": "max_len max_length seq_len max_seq_len sequence_length seq_length context_length context block_size "
    "n_positions max_position_embeddings n_ctx length grid grid_size",
    "axes": "ndim ndims num_axes n_axes spatial_dims dims",
    "dims=pejax.Dims(heads=8, head_dim=64)": "heads head_dim num_heads n_heads d_head dim embed_dim d_model width "
    "head_size hidden_size extent causal axes kv_heads max_len seq_len",
    "base": "theta rope_theta rotary_base rope_base freq_base rope_freq_base",
    "rotary_dim": "rotary_ndims rope_dim partial_rotary_factor rotary_pct rotary_percent dim",
    "pairing": "interleaved is_neox_style neox traditional rotate_half",
    "factor": "scale scaling scaling_factor ratio s",
    "trained_length": "original_max_position_embeddings original_length max_position_embeddings trained length extent",
    "buckets": "num_buckets relative_attention_num_buckets n_buckets",
    "max_distance": "relative_attention_max_distance max_relative_position max_dist",
    "extend=pejax.extensions.yarn(factor=8)": "rope_scaling scaling rope_type extension yarn",
    "causal": "is_causal causal_mask use_causal_mask",
    "mask": "attention_mask attn_mask key_padding_mask padding_mask",
    "bias": "attn_bias attention_bias",
    "positions=pejax.packed_positions(segment_ids)": "segment_ids attention_mask attn_mask key_padding_mask "
    "padding_mask cu_seqlens",
    "positions": "position_ids pos position indices coords positions_ids input_pos",
    "window": "sliding_window window_size local_window_size attention_window",
    "scale": "softmax_scale sm_scale query_pre_attn_scalar scaling",
    "soft_cap": "softcap logits_soft_cap attn_logit_softcapping logit_cap logits_softcap",
    "sink": "sinks attention_sink attention_sinks",
    "dropout=(key, 0.1)": "dropout_rate dropout_p attention_dropout dropout_rng",
    "implementation": "backend impl attn_implementation kernel",
    "sampling=Sampling(temperature=0.7)": "temperature temp do_sample",
    "sampling=Sampling(top_p=0.9)": "top_p nucleus p",
    "sampling=Sampling(top_k=50)": "top_k k",
    "sampling=Sampling(min_p=0.05)": "min_p",
    "sampling=Sampling(repetition_penalty=1.1)": "repetition_penalty rep_pen repeat_penalty",
    "sampling=Sampling(presence_penalty=0.5)": "presence_penalty",
    "sampling=Sampling(frequency_penalty=0.5)": "frequency_penalty",
    "stop": "eos_token_id eos eos_id stop_tokens stop_token_ids",
    "key": "rng rngs seed generator rng_key prng_key",
    "prompts": "input_ids prompt inputs tokens ids",
    "tokens": "input_ids ids inputs x",
    "return_logits": "output_scores output_logits scores",
    "return_logprobs": "logprobs log_probs",
    "classes": "num_classes n_classes num_labels",
    "channels": "in_chans in_channels num_channels",
    "image_size": "img_size input_size resolution image",
    "patch": "patch_size",
    "registers": "num_registers reg_tokens register_tokens num_register_tokens",
    "stochastic_depth": "drop_path drop_path_rate",
    "layer_scale": "init_values layer_scale_init_value",
    "pool": "global_pool pooling",
    "pe": "encoding pos_embed pos_emb position_embedding positional_encoding position_embedding_type rope",
    "tied": "tie_weights tie_word_embeddings weight_tying",
    "qk_norm": "use_qk_norm qk_layernorm qk_layer_norm",
    "directory": "path folder model_name_or_path",
    "q": "query queries",
    "k": "keys",
    "v": "value values",
    "query": "q queries",
    "value": "v values",
    # encodings
    "rope": "rotary rotary_embedding rotary_position_embedding roformer rope_1d 1d_rope",
    "rope_axial": "2d_rope rope_2d rope2d axial axial_rope rope_3d 3d_rope rope3d mrope m_rope 2d_rotary axial_rotary",
    "rope_mixed": "mixed rope_vit learned_rope rope_learned mixed_rope",
    "sinusoidal": "sincos sin_cos sin sine vanilla 2d_sincos sincos_2d sinus",
    "fourier": "fourier_features random_fourier rff gaussian_fourier learnable_fourier nerf ff",
    "learned": "learnable absolute ape trainable abs table embedding",
    "relative_table": "rel_pos relative rpb relative_bias rel_pos_bias relative_position_bias swin beit",
    "t5": "t5_bias bucketed buckets relative_buckets",
    "shaw": "relative_key rpr relative_key_query rel_key",
    "transformer_xl": "txl xl transfo_xl",
    "cpb": "swinv2 swin_v2 log_cpb continuous",
    "none": "nope no_pe no null off identity",
    # extensions
    "pi": "position_interpolation interpolation interpolate",
    "dynamic_ntk": "dynamic ntk_dynamic",
    "ntk": "ntk_aware ntk_scaled ntk_aware_scaled",
    "longrope": "su",
    "slopes": "alibi_slopes",
    "log_n": "log_scaling scaled_softmax",
    # values of options
    "half": "halves rotate_half neox half_split split blocked",
    "bfloat16": "bf16",
    "float32": "fp32 float f32 single",
    "gpu": "flash flash_attention triton cuda fused pallas",
    "blockwise": "xla memory_efficient chunked",
    "dense": "naive eager math vanilla",
}
"""What to write, by the words for it in other libraries and papers. What stands first wins where it is known there."""

BY_WORD: dict[str, list[str]] = {}
"""What to write, by word: the table above, turned round."""

for _ours, _theirs in MEANT.items():
    for _word in _theirs.split():
        BY_WORD.setdefault(_word, []).append(_ours)

NO_WAYS: Mapping[str, str] = types.MappingProxyType({})


def guess(name: str, names: Iterable[str]) -> str | None:
    """Return the name that somebody meant by an unknown one; None where nothing that is known is near.

    A word of another library gives what it is called here, `sampling=Sampling(temperature=0.7)`; any other name the
    known one with the fewest wrong letters: none in a name of one letter, one up to four letters, two in longer names.

    Args:
        name: the unknown name.
        names: the names that there are.

    Examples:
        >>> guess("num_heads", ["heads", "head_dim"]), guess("alibo", ["alibi", "rope"]), guess("sam3", ["cosmos3"])
        ('heads', 'alibi', None)
    """
    names, word = list(names), _plain(name)
    for ours in BY_WORD.get(word, ()):
        if ours.partition("=")[0] in names:
            return ours
    candidates = [
        (wrong_letters(word, _plain(candidate)), -_likeness(word, candidate), n, candidate)
        for n, candidate in enumerate(names)
    ]
    fewest, _, _, nearest = min(candidates, default=(1, 0.0, 0, ""))
    return nearest if fewest <= min((len(word) + 1) // 3, 2) else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name, with a guess if there is one: "; did you mean 'rope'?"."""
    meant = guess(name, names)
    return f"; did you mean {meant!r}?" if meant else ""


def unknown_name(noun: str, name: str, names: Iterable[str]) -> str:
    """Return the message about a name that a table lacks."""
    names = list(names)
    return f"unknown {noun} {name!r}{did_you_mean(name, names) or '.'} Known: {', '.join(names)}"


def unknown_argument(caller: str, name: str, names: Iterable[str], ways: Mapping[str, str] = NO_WAYS) -> str:
    """Return the message about an argument that a function lacks.

    Args:
        caller: the function.
        name: the argument that was given.
        names: its arguments.
        ways: what to do, by an argument that it lacks.
    """
    names = list(names)
    meant = name if name in ways else guess(name, (*names, *ways))
    guessed = f"; did you mean {meant}?" if meant else ""
    hint = f": {ways[meant]}" if meant and meant in ways and meant not in names else guessed
    return f"{caller} takes {', '.join(names) or 'no arguments'}; got {name!r}{hint}"


def wrong_letters(word: str, other: str) -> int:
    """Return how many letters are missing, too many, others or swapped (the restricted Damerau-Levenshtein distance).

    Examples:
        >>> wrong_letters("yarm", "yarn"), wrong_letters("alibi", "alibi"), wrong_letters("tabel", "table")
        (1, 0, 1)
    """
    before, last = [], list(range(len(other) + 1))
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            fewest = min(row[j - 1] + 1, last[j] + 1, last[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and word[i - 2] == wanted:
                fewest = min(fewest, before[j - 2] + 1)
            row.append(fewest)
        before, last = last, row
    return last[-1]


def _likeness(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, word, other).ratio()


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")
