"""Files with less than a language model, or with a tensor twice: trunks, encoders of pairs, repeated, wrong weights."""

import jax.numpy as jnp
import numpy as np
import pytest

from pejax.interop import load, save
from pejax.interop.command import main
from pejax.models import Decoder
from tests.support.hub_folders import rewrite, run, tensors, write

IDS = np.random.default_rng(0).integers(0, 97, (2, 12))


def saved_bytes(folder, out) -> bytes:
    """Return the file that is saved of what is loaded."""
    model, source = load(folder)
    save(model, out, source)
    return (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        pytest.param("llama", {"tie_word_embeddings": False}, marks=pytest.mark.slow), ("llama", {}),
        pytest.param("qwen3", {"tie_word_embeddings": True, "architectures": ["Qwen3Model"]}, marks=pytest.mark.slow),
        pytest.param("phi", {"architectures": ["PhiModel"]}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_trunk_has_states(name, keys, tmp_path):
    folder = write(tmp_path / "a", name)
    whole, _ = load(folder)
    values = {key.removeprefix("model."): value for key, value in tensors(folder).items() if "lm_head" not in key}
    rewrite(folder, values, **keys)
    model, _ = load(folder)
    assert model.head is None
    np.testing.assert_array_equal(model.states(jnp.asarray(IDS)), whole.states(jnp.asarray(IDS)))
    assert saved_bytes(folder, tmp_path / "b") == (folder / "model.safetensors").read_bytes()


def test_a_file_without_prefix_and_head_is_tied_where_its_class_has_a_head(tmp_path):
    folder = write(tmp_path / "a", "llama, tied")
    values = {key.removeprefix("model."): value for key, value in tensors(folder).items()}
    model, _ = load(rewrite(folder, values, architectures=["LlamaForCausalLM"]))
    assert model.head is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table", "head"),
    [("bert", "bert.embeddings.word_embeddings", "cls.predictions"),
     ("roberta", "roberta.embeddings.word_embeddings", "lm_head")],
)  # fmt: skip
def test_a_tied_weight_may_be_repeated(name, table, head, tmp_path):
    folder = write(tmp_path / "a", name)
    values = tensors(folder)
    kernel, bias = f"{head}.decoder.weight", f"{head}.decoder.bias"
    repeated = {**values, kernel: values[f"{table}.weight"], bias: values[f"{head}.bias"]}
    before, _ = load(folder)
    model, _ = load(rewrite(folder, repeated))
    np.testing.assert_array_equal(run(model, IDS), run(before, IDS))
    assert saved_bytes(folder, tmp_path / "b") == (folder / "model.safetensors").read_bytes()

    rewrite(folder, {**repeated, kernel: repeated[kernel] + 1})
    model, _ = load(folder)
    assert model.head.kernel is not None
    assert saved_bytes(folder, tmp_path / "c") == (folder / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=rf"{bias} must be the same as {head}.bias, got other values"):
        load(rewrite(folder, {**repeated, bias: repeated[bias] + 1}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys"), [("t5", {}), ("t5, gated", {}), ("mt5", {"is_encoder_decoder": False})]
)  # fmt: skip
def test_the_encoder_of_a_pair_loads_alone(name, keys, tmp_path):
    folder = write(tmp_path / "a", name)
    pair, _ = load(folder)
    values = {key: value for key, value in tensors(folder).items() if key.startswith(("shared.", "encoder."))}
    rewrite(folder, {**values, "encoder.embed_tokens.weight": values["shared.weight"]}, **keys)
    model, source = load(folder)
    assert isinstance(model, Decoder)
    assert source.config == pair.config.encoder
    expected = pair.encode(jnp.asarray(IDS)).states
    np.testing.assert_allclose(model.states(jnp.asarray(IDS)), expected, atol=1e-5)
    assert saved_bytes(folder, tmp_path / "b") == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("name", "head", "ignore"),
    [("bert", "classifier.weight", "classifier.*"), ("llama", "score.weight", "score.*"),
     ("roberta", "classifier.dense.weight", "classifier.*"), ("distilbert", "qa_outputs.bias", "qa_outputs.*")],
)  # fmt: skip
def test_a_classifier_is_refused_by_name(name, head, ignore, tmp_path):
    folder = write(tmp_path / "a", name)
    rewrite(folder, {**tensors(folder), head: np.zeros((2, 32), np.float32)})
    way = f"load_classifier reads those of classifiers, ignore=({ignore!r},) loads the model without it"
    rule = f"has a head that load does not read, {head}: {way}"
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        load(folder)
    assert str(refusal.value) == f"{folder / 'model.safetensors'} {rule}"


# Weights that are not finite


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("value", "found"), [(np.nan, "1 NaN and 0"), (-np.inf, "0 NaN and 1")])
def test_weights_are_finite(dtype, value, found, tmp_path):
    folder = write(tmp_path / "a", dtype=dtype)
    values = tensors(folder)
    name = "model.layers.1.mlp.down_proj.weight"
    values[name][3, 5] = np.finfo(np.float32).max if dtype == "float32" else 3e4
    load(rewrite(folder, values))
    values[name][3, 5] = value
    rewrite(folder, values)
    rule = f"{name} must hold finite numbers, or load(..., finite=False) allow others"
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        load(folder)
    assert str(refusal.value) == f"{rule}, got {found} infinite of 1536"
    model, source = load(folder, finite=False)
    save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_a_carried_buffer_may_be_infinite(tmp_path):
    folder = write(tmp_path / "a", "gpt2")
    values = {**tensors(folder), "transformer.h.0.attn.masked_bias": np.float32([-np.inf])}
    _, source = load(rewrite(folder, values))
    assert [*source.carried] == ["transformer.h.0.attn.masked_bias"]


def test_the_command_names_the_original_of_a_copy(tmp_path, capsys):
    folder = write(tmp_path / "a", "bert")
    values = tensors(folder)
    rewrite(folder, {**values, "cls.predictions.decoder.bias": values["cls.predictions.bias"]})
    main([str(folder)])
    assert "copy of cls.predictions.bias: cls.predictions.decoder.bias" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("name", "head"), [("bert", "classifier.weight"), ("llama", "score.weight")])
def test_the_trunk_of_a_classifier_loads(name, head, tmp_path):
    folder = write(tmp_path / "a", name)
    whole, _ = load(folder)
    values = {key: value for key, value in tensors(folder).items() if not key.startswith(("cls.", "lm_head."))}
    kind = {"bert": "BertForSequenceClassification", "llama": "LlamaForSequenceClassification"}[name]
    rewrite(folder, {**values, head: np.zeros((2, 32), np.float32)}, architectures=[kind])
    model, source = load(folder, ignore=(head.replace("weight", "*"),))
    np.testing.assert_array_equal(model.states(jnp.asarray(IDS)), whole.states(jnp.asarray(IDS)))
    save(model, tmp_path / "b", source)
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
