"""Embedding models: order, lengths, prompts and meshes; folders that are refused in one line."""

import json
import warnings

import numpy as np
import pytest

from pejax.interop import Embedder, load, load_classifier, load_embedder
from pejax.interop.sentence_modules import read_layout
from pejax.interop.text_batches import require_texts
from tests.support.text_folders import MODULES, texts_of, write_embedder, write_json
from train.devices.mesh import make_mesh

TEXTS = texts_of(7, longest=9)
NEW = "sentence_transformers.sentence_transformer.modules.pooling."
PROMPTS = {"prompts": {"query": "w3 w4 ", "document": None}, "default_prompt_name": "query", "truncate_dim": 12}


@pytest.fixture(scope="module")
def embedder(tmp_path_factory) -> Embedder:
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    folder = tmp_path_factory.mktemp("models") / "bert"
    return load_embedder(write_embedder(folder, pooling=pooling, settings=PROMPTS, num_hidden_layers=1, types=NEW))


def encoded(embedder, text: str, **options) -> np.ndarray:
    """Return the vector of one text, among four, so that all calls are one program."""
    return embedder.encode([text] * 4, batch=4, **options)[0]


def test_rows_are_in_the_order_of_the_texts_whatever_the_batch(embedder):
    vectors = embedder.encode(TEXTS, batch=4)
    assert vectors.shape == (7, 12)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(embedder.encode(TEXTS[::-1], batch=4)[::-1], vectors, atol=1e-6)
    assert embedder.encode([]).shape == (0, 12)
    parts = [*embedder.encode_batches(TEXTS, batch=4, skip=1)]
    assert len(parts) == 1
    np.testing.assert_array_equal(parts[0][1], vectors[parts[0][0]])


def test_a_prompt_is_read_and_not_pooled(embedder):
    """The vector is the mean of the states after the prompt; with none, of all."""
    with_prompt, without = (encoded(embedder, "w5 w6", prompt=prompt) for prompt in (None, ""))
    before = encoded(embedder, "w3 w4 w5 w6", prompt="")
    assert min(np.max(np.abs(with_prompt - other)) for other in (without, before)) > 1e-3
    embedder.prompts["mine"] = "w3 w4 "
    np.testing.assert_array_equal(encoded(embedder, "w5 w6", prompt="mine"), with_prompt)


def test_a_text_is_cut_to_the_longest_length(embedder):
    longest, words = embedder.max_length, [f"w{number}" for number in range(14)]
    embedder.max_length = 12
    result = encoded(embedder, " ".join(words), prompt="")
    embedder.max_length = longest
    np.testing.assert_array_equal(result, encoded(embedder, " ".join(words[:10]), prompt=""))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda e: e.encode("w1"), "texts must be a list of strings, got 'w1'"),
        (lambda e: require_texts(["w1", 2]), "texts[1] must be one of strings, got 2"),
        (lambda e: e.encode(["w1"], batch=0), "batch must be an integer of at least 1, got 0"),
        (lambda e: e.encode(["w1"], prompt="qery"), "prompt must be the name of a prompt, out of query, document"),
        (lambda e: e.similarity(np.ones((2, 3)), np.ones((4, 2))), "a and b must be (N, C) and (M, C), got"),
        (lambda e: setattr(e, "max_length", 3), "max_length must be an integer above 3, the special tokens of a pair"),
        (lambda e: setattr(e, "truncate_dim", 33), "truncate_dim must be None or from 1 to 32, got 33"),
    ],
)
def test_wrong_arguments(call, error, embedder):
    with pytest.raises((ValueError, TypeError)) as refusal:
        call(embedder)
    assert str(refusal.value).startswith(error)
    assert "\n" not in str(refusal.value)


DENSE = {"in_features": 32, "out_features": 8, "bias": True}
POOLS = "the modes of pooling must be out of cls, max, mean, mean_sqrt_len_tokens, weightedmean, lasttoken, got"
REFUSED = {
    "no such activation": ("2_Dense/config.json", {**DENSE, "activation_function": "builtins.exec"},
                           "activation_function must be torch.nn's Identity, Tanh, Sigmoid, GELU, ReLU, SiLU, got"),
    "another input": ("2_Dense/config.json", {**DENSE, "module_input_name": "token_embeddings"},
                      "module_input_name must be 'sentence_embedding', got 'token_embeddings'"),
    "an unknown key": ("2_Dense/config.json", {**DENSE, "rank": 4}, "every key must be known, got rank = 4"),
    "an activation of null": ("2_Dense/config.json", {**DENSE, "activation_function": None}, "got None"),
    "another value than the config's": ("sentence_bert_config.json", {"config_kwargs": {"layer_norm_eps": 0.5}},
                                        "config_kwargs: layer_norm_eps must be as in config.json, absent, got 0.5"),
    "another value for the model": ("sentence_bert_config.json", {"model_args": {"rope_theta": 3}},
                                    "model_args: rope_theta must be as in config.json, absent, got 3"),
    "no pooling": ("1_Pooling/config.json", {"pooling_mode_mean_tokens": False}, f"{POOLS} 'none'"),
    "unknown pooling": ("1_Pooling/config.json", {"pooling_mode": "median"}, f"{POOLS} 'median'"),
    "an unknown flag": ("1_Pooling/config.json", {"pooling_mode": "mean", "pooling_mode_median": True},
                        "every key must be known, got pooling_mode_median = True"),
    "a flag that is no flag": ("1_Pooling/config.json", {"pooling_mode_cls_token": "yes"}, "must be true or false"),
    "lengths by task": ("sentence_bert_config.json", {"query_length": 32}, "query_length must be absent, because"),
    "another task": ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "must be 'feature-extraction'"),
    "a sparse encoder": ("config_sentence_transformers.json", {"model_type": "SparseEncoder"},
                         "model_type must be 'SentenceTransformer', got 'SparseEncoder'"),
    "no such prompt": ("config_sentence_transformers.json", {"default_prompt_name": "a", "prompts": {"b": "c"}},
                       "default_prompt_name must be one of b, got 'a'"),
    "no such similarity": ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "got 'maxsim'"),
    "modules that are no list": ("modules.json", {}, "must be a list of modules, got a dict"),
}  # fmt: skip


def layout(folder, *kinds: str, **entry: str):
    """Write a folder of sentence-transformers without a model."""
    folder.mkdir()
    modules = [{"type": MODULES + kind, "path": f"{n}_{kind}" if n else "", **entry} for n, kind in enumerate(kinds)]
    write_json(folder / "config.json", {})
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    write_json(folder / "2_Dense" / "config.json", DENSE)
    return folder


def refusal_of(folder) -> str:
    """Return the one line in which a folder is refused."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        load_embedder(folder)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize("name", REFUSED)
def test_files_that_say_what_is_not_computed(name, tmp_path):
    file, content, rule = REFUSED[name]
    folder = layout(tmp_path / "a", "Transformer", "Pooling", "Dense")
    write_json(folder / file, content)
    assert rule in refusal_of(folder)
    assert file in refusal_of(folder)


@pytest.mark.parametrize(
    "kinds",
    [("CLIPModel",), ("WordEmbeddings", "Pooling"), ("Router",), ("Transformer", "Asym"), ("Transformer", "Dense"),
     ("Transformer", "Pooling", "LSTM"), ()],
)  # fmt: skip
def test_other_modules(kinds, tmp_path):
    rule = "modules must be Transformer, Pooling, then Dense, Normalize, Dropout, got"
    assert f"{rule} {', '.join(kinds) or 'none'}" in refusal_of(layout(tmp_path / "a", *kinds))


def test_a_module_of_foreign_code(tmp_path):
    folder = layout(tmp_path / "a", "Transformer", type="custom_st.Transformer")
    assert "the type of a module must begin with sentence_transformers., got 'custom_st" in refusal_of(folder)


@pytest.mark.parametrize("loader", [load_embedder, load_classifier])
def test_a_file_is_no_folder(loader, tmp_path):
    path = write_json(tmp_path / "model.gguf", {})
    with pytest.raises(ValueError, match=r"gguf must be a folder with config\.json and safetensors files, got a file$"):
        loader(path)


def test_settings_that_say_how_torch_runs_the_model_or_what_config_json_says(tmp_path):
    folder = layout(tmp_path / "a", "Transformer", "Pooling")
    write_json(folder / "config.json", {"layer_norm_eps": 1e-12})
    model = {"torch_dtype": "bfloat16", "attn_implementation": "sdpa", "layer_norm_eps": 1e-12}
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 9, "model_args": model, "config_args": None})
    assert read_layout(folder).max_length == 9


@pytest.mark.parametrize("path", ["../elsewhere", "/etc"])
def test_a_module_outside_of_the_folder(path, tmp_path):
    folder = layout(tmp_path / "a", "Transformer", path=path)
    assert "the path of a module must be within the folder, got" in refusal_of(folder)


def test_an_adapter_and_damaged_json(tmp_path):
    folder = layout(tmp_path / "a", "Transformer", "Pooling")
    write_json(folder / "adapter_config.json", {"base_model_name_or_path": "owner/base"})
    assert "got an adapter of owner/base" in refusal_of(folder)
    (folder / "modules.json").write_text("[" * 100000)
    assert "modules.json must be JSON, got" in refusal_of(folder)


@pytest.mark.parametrize(
    ("config", "mode", "words"),
    [
        ({"architectures": ["BertModel"]}, "mean", "the mean of the states is the vector of a text"),
        ({"architectures": ["LlamaForCausalLM"]}, "lasttoken", "the last token's state is the vector of a text"),
        ({"architectures": ["Qwen2ForCausalLM"], "is_causal": False}, "mean", "the mean of the states"),
    ],
)
def test_a_plain_folder_is_pooled_as_in_sentence_transformers_with_a_warning(config, mode, words, tmp_path):
    write_json(tmp_path / "config.json", config)
    with pytest.warns(UserWarning, match=f"has no modules.json: {words}"):
        assert read_layout(tmp_path).modes == (mode,)


@pytest.mark.slow
def test_a_text_with_the_padding_token_needs_a_position_for_it(tmp_path):
    """RoBERTa gives no position to padding, wherever it is."""
    folder = write_embedder(tmp_path / "a", name="roberta", pad_token_id=0, num_hidden_layers=1)
    embedder = load_embedder(folder)
    rule = r"texts\[1\] must not have the padding token, for which the model has no position, got '\[PAD\]' in it"
    with pytest.raises(ValueError, match=rule):
        embedder.encode(["w1", "w1 [PAD] w2"])
    with pytest.raises(ValueError, match="ids must not hold padding, id 0, where attention_mask is 1"):
        embedder.model.states(np.asarray([[2, 5, 0, 3]]), attention_mask=np.ones((1, 4), np.int32))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ["data=8", "data=2,fsdp=2,tensor=2"])
def test_a_mesh_changes_nothing(sizes, tmp_path):
    after = ({**DENSE, "activation_function": "torch.nn.modules.activation.Tanh"}, "Normalize")
    folder = write_embedder(tmp_path / "a", after=after, tokenizer={"bert": True})
    expected = load_embedder(folder).encode(texts_of(21))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "whole on every device")
        embedder = load_embedder(folder, mesh=make_mesh(8, sizes))
    np.testing.assert_allclose(embedder.encode(texts_of(21), batch=5), expected, atol=1e-5)


@pytest.mark.slow
def test_an_extension_reads_longer_texts(tmp_path):
    """Beyond the trained length, and with the extension as `load` has it."""
    options = {"name": "llama", "pooling": {"pooling_mode": "lasttoken"}, "tokenizer": {"decoder": True}}
    folder, text = write_embedder(tmp_path / "a", **options), " ".join(texts_of(12))
    plain, extended = load_embedder(folder), load_embedder(folder, extend="yarn(factor=4)")
    assert extended.max_length == plain.max_length == 48
    short = [embedder.encode([text])[0] for embedder in (plain, extended)]
    extended.max_length = plain.max_length = 200
    long = [embedder.encode([text])[0] for embedder in (plain, extended)]
    vectors = np.stack([*short, *long])
    assert np.min(np.max(np.abs(vectors[:, None] - vectors), axis=-1) + np.eye(4)) > 1e-2
    model, _ = load(folder, extend="yarn(factor=4)")
    ids = np.asarray([extended._reader.tokens([text])[0].ids])
    np.testing.assert_allclose(long[1], model.states(ids)[0, -1], atol=1e-4)


@pytest.mark.slow
def test_a_learned_table_refuses_longer_texts(tmp_path):
    embedder = load_embedder(write_embedder(tmp_path / "a", num_hidden_layers=1))
    embedder.max_length = 200
    with pytest.raises(ValueError, match="a learned table must be as long as the sequence, got a table of 48"):
        embedder.encode([" ".join(texts_of(12))])


@pytest.mark.slow
def test_the_model_may_be_in_a_folder_of_its_own(tmp_path):
    folder = write_embedder(
        tmp_path / "a", transformer={"max_seq_length": 6}, after=("Normalize",), num_hidden_layers=1
    )
    expected = load_embedder(folder).encode(TEXTS[:4])
    place = folder / "0_Transformer"
    place.mkdir()
    for name in (
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
    ):
        (folder / name).rename(place / name)
    modules = json.loads((folder / "modules.json").read_text())
    write_json(folder / "modules.json", [{**modules[0], "path": "0_Transformer"}, *modules[1:]])
    moved = load_embedder(folder)
    assert moved.max_length == 6
    np.testing.assert_array_equal(moved.encode(TEXTS[:4]), expected)
