"""Families of text models: what their configs mean, what is refused, and the layouts that they alone have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load, rope_from_config, save, source_from_config
from pejax.interop.layouts import grouped_by_key_head
from pejax.interop.model_config import read_config
from pejax.interop.slots import model_slots
from pejax.models import AttentionConfig
from pejax.models.parts.text_ends import DROPPED, _kept
from tests.support.hub_families import FAMILIES, SIZES
from tests.support.hub_folders import rewrite, run, tensors, write

DOCLING = {
    "architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3", "image_token_id": 100270,
    "scale_factor": 4, "pad_token_id": 100257, "tie_word_embeddings": True, "vocab_size": 100352,
    "vision_config": {"model_type": "idefics3_vision", "hidden_size": 768, "image_size": 512, "patch_size": 16},
    "text_config": {
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 1e5, "rope_scaling": None, "tie_word_embeddings": True,
        "vocab_size": 100352, "pretraining_tp": 1,
    },
}  # fmt: skip
NOMIC = {
    "model_type": "nomic_bert", "vocab_size": 30528, "type_vocab_size": 2, "n_embd": 768, "n_inner": 3072,
    "n_layer": 12, "n_head": 12, "n_positions": 8192, "max_trained_positions": 2048, "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
    "rotary_scaling_factor": None, "activation_function": "swiglu", "prenorm": False, "causal": False,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "parallel_block": False,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}  # fmt: skip
GTE = {
    "model_type": "new", "vocab_size": 250048, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "max_position_embeddings": 8192, "type_vocab_size": 1, "layer_norm_eps": 1e-12,
    "layer_norm_type": "layer_norm", "position_embedding_type": "rope", "rope_theta": 20000, "hidden_act": "gelu",
    "rope_scaling": {"factor": 8.0, "type": "ntk"}, "pack_qkv": True, "unpad_inputs": False, "pad_token_id": 1,
    "use_memory_efficient_attention": False, "logn_attention_scale": False, "logn_attention_clip1": False,
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
}  # fmt: skip


def of(name: str, **keys):
    return read_config({**FAMILIES[name], **keys})


def encodings(config) -> list[str]:
    return [str(layer.attention.pe) for layer in config.layers]


def windows(config) -> list:
    return [layer.attention.window for layer in config.layers]


def test_windows_are_of_as_many_tokens_as_in_transformers():
    both = of("gemma3_text, both sides", sliding_window=512)
    assert (both.causal, windows(both)) == (False, [257, None, 257])
    assert windows(of("gemma3_text, both sides", use_bidirectional_attention=False)) == [10, None, 10]
    assert windows(of("modernbert-decoder", local_attention=128)) == [None, 64, 64]
    pair = of("t5gemma")
    assert (windows(pair.encoder), windows(pair.decoder)) == ([8, None], [7, None, 7])
    assert {layer.cross.window for layer in pair.decoder.layers} == {None}


def test_bases_and_scalings_are_those_of_the_classes():
    cwm = of("cwm", rope_parameters=None, num_hidden_layers=5)
    assert windows(cwm) == [None, 7, 7, 7, None]
    assert encodings(cwm)[0].startswith("rope(base=1000000.0, pairing='half', extend='llama3(factor=16.0")
    assert encodings(of("granite_swa, bases"))[1] == "none"
    assert [pe[:15] for pe in encodings(of("granite_swa, bases"))[::2]] == ["rope(base=500.0", "rope(base=60.0,"]
    for name, base in {"nomic_bert": 1000.0, "jina_embeddings_v3": 20000.0, "gte": 160000.0}.items():
        plain = {key: value for key, value in FAMILIES[name].items() if key != "rope_theta"}
        assert encodings(read_config(plain)) == [f"rope(base={base}, pairing='half')"] * 2


def test_folders_of_the_makers_are_read():
    docling, nomic, gte = map(read_config, (DOCLING, NOMIC, GTE))
    assert (docling.width, len(docling.layers), docling.layers[0].attention.kv_heads) == (576, 30, 3)
    assert docling.head.tied
    assert (nomic.width, nomic.length, len(nomic.layers), nomic.layers[0].mlp.hidden) == (768, 2048, 12, 3072)
    assert encodings(nomic)[0] == "rope(base=1000.0, pairing='half')"
    assert read_config({**NOMIC, "max_position_embeddings": 2048, "rope_parameters": {
        "rope_theta": 1000.0, "rope_type": "default"}}) == nomic  # fmt: skip
    factor = 8.0 ** (2 / 64)
    assert encodings(gte)[0] == f"rope(base=160000.0, pairing='half', extend='linear(factor={factor})')"
    assert gte.layers[0].mlp.bias == "down"
    mimo = {**SIZES, "model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1}
    assert read_config(mimo) == read_config({**SIZES, "model_type": "qwen2"})


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("internlm3", {"bias": False}, "mlp_bias must be True, got False"),
        ("internlm3", {"attention_bias": False}, "attention_bias must be True, got False"),
        ("nomic_bert", {"n_embd": 64}, "hidden_size must be 64, got 32"),
        ("nomic_bert", {"n_embd": 32, "rotary_emb_base": 1000}, "rope_theta must be 1000, got 500.0"),
        ("helium", {"head_dim": 12}, "head_dim must be 8, got 12"),
        (
            "granite_swa",
            {"layer_rope_theta": [1.0]},
            "layer_rope_theta must be num_hidden_layers=4 numbers of at least",
        ),
        ("granite_swa", {"layer_rope_theta": [1.0, -1.0, 0, 0]}, "numbers of at least 0, got [1.0, -1.0, 0, 0]"),
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv must be None, got 8.0"),
        ("electra", {"embedding_size": 16}, "embedding_size must be 32, got 16"),
        ("mpnet", {"relative_attention_num_buckets": 16}, "relative_attention_num_buckets must be 32, got 16"),
        ("esm", {"is_folding_model": True}, "is_folding_model must be False, got True"),
        ("esm", {"token_dropout": True}, "must have the key mask_token_id, got none"),
        ("esm", {"position_embedding_type": "relative_key"}, "must be 'absolute' or 'rotary', got 'relative_key'"),
        ("modernbert-decoder", {"sliding_window": 9}, "sliding_window must be 7, got 9"),
        ("nanochat", {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type must not scale rotated vectors"),
        ("vaultgemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be False, got True"),
        ("t5gemma", {"vocab_size": 98}, "vocab_size must be 97, got 98"),
        ("nomic_bert", {"n_embd": 32, "prenorm": True}, "prenorm must be False, got True"),
        ("gte", {"hidden_act": "swiglu"}, "hidden_act must be one of"),
    ],
)
def test_what_is_not_computed_is_refused(name, keys, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        of(name, **keys)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}}, "mixed_b must be None, got 0.6"),
        ({"rope_scaling": {"type": "dynamic", "factor": 8.0}}, "type must be 'ntk', got 'dynamic'"),
        ({"logn_attention_scale": True}, "logn_attention_scale must be False, got True"),
        ({"position_embedding_type": "absolute"}, "position_embedding_type must be 'rope', got 'absolute'"),
        ({"pack_qkv": False}, "pack_qkv must be True, got False"),
    ],
)
def test_what_gte_of_its_makers_has_beyond_is_refused(keys, message):
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        read_config({**GTE, **keys})
    assert message in str(refusal.value)


def test_nanochat_turns_the_other_way():
    """Heads whose halves are swapped give under rope the products of the original ones under the opposite rotation."""
    with pytest.raises(ValueError, match="it turns the other way"):
        rope_from_config(FAMILIES["nanochat"])
    attention, draw = AttentionConfig(2, 2, 6), np.random.default_rng(0)
    q, k, v = (draw.normal(size=(12, 5)) for _ in "qkv")
    layout = grouped_by_key_head(attention, "qkv", transposed=True, swapped="qk")
    ours = layout.join([q, k, v]).reshape(5, 2, 3, 6)
    for piece, back in zip((q, k, v), layout.split(ours.reshape(5, -1)), strict=True):
        np.testing.assert_array_equal(piece, back)

    def turned(x, position, direction):
        angles = direction * position * 50.0 ** -(np.arange(0, 6, 2) / 6)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)], -1
        )

    theirs = [x.reshape(2, 6, 5).transpose(2, 0, 1) for x in (q, k)]
    expected = np.sum(turned(theirs[0], 7, -1) * turned(theirs[1], 3, -1), axis=-1)
    result = np.sum(turned(ours[:, :, 0], 7, 1) * turned(ours[:, :, 1], 3, 1), axis=-1)
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_the_tensor_of_up_and_gate_holds_up_first():
    source = source_from_config(FAMILIES["gte"])
    slots = {
        slot.path[-2]: slot.pieces[0] for slot in model_slots(source.config, source.architecture) if "mlp" in slot.path
    }
    assert {part: (piece.start, piece.stop) for part, piece in slots.items()} == {
        "up": (0, 48), "gate": (48, 96), "down": (0, 32),
    }  # fmt: skip


def test_vectors_are_scaled_by_the_share_of_mask_tokens_in_their_document():
    masked = np.array([[1, 0, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1]], bool)
    segments = np.array([[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 0]])
    expected = np.zeros(masked.shape)
    for row, column in np.ndindex(*masked.shape):
        share = np.mean(masked[row][segments[row] == segments[row, column]])
        expected[row, column] = 0.0 if masked[row, column] else (1 - DROPPED) / (1 - share)
    both = jax.jit(lambda masked, segments: (_kept(masked, segments), _kept(masked, None)))
    result, rows = both(jnp.asarray(masked), jnp.asarray(segments))
    np.testing.assert_allclose(result[..., 0], expected, rtol=1e-6)
    np.testing.assert_allclose(rows[1, :4, 0], (1 - DROPPED) / (1 - 2 / 6), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, 0.5, 0.25], "inv_freq must hold 4 frequencies above 0, the same in all layers, got [1.0, 0.5, 0.25]"),
        ([1.0, 0.5, 0.25, 0.0], "the same in all layers, got [1.0, 0.5, 0.25, 0.0]"),
        ([1.0, 0.5, 0.25, np.nan], "the same in all layers, got [1.0, 0.5, 0.25, nan]"),
    ],
)
def test_frequencies_that_cannot_be_are_refused(values, message, tmp_path):
    folder = write(tmp_path / "a", "esm")
    name = "esm.encoder.layer.0.attention.self.rotary_embeddings.inv_freq"
    rewrite(folder, {**tensors(folder), name: np.asarray(values, np.float32)})
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        load(folder)
    assert message in str(refusal.value)


@pytest.mark.slow
def test_layers_of_mimo_that_predict_later_tokens_are_carried(tmp_path):
    folder = write(tmp_path / "a", "qwen2")
    ids = np.arange(12)[None]
    expected = run(load(folder)[0], ids)
    more = {f"model.mtp_layers.0.{name}.weight": np.full((3, 2), np.nan, np.float32) for name in ("input_proj", "norm")}
    makers = {"model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1}
    rewrite(folder, {**tensors(folder), **more}, **makers)
    model, source = load(folder)
    np.testing.assert_array_equal(run(model, ids), expected)
    save(model, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


def test_a_causal_model_has_no_mask_token():
    config = of("esm, dropout")
    for changes in ({"causal": True}, {"mask_id": 97}):
        with pytest.raises(ValueError, match="mask_id must be None, or an id from 0 to 96"):
            type(config)(**{**vars(config), **changes})
