"""Classifiers and rerankers: what they read, the labels and scores they give, and heads that are refused."""

import numpy as np
import pytest

from pejax.interop import load_classifier
from pejax.interop.classifier import _last
from pejax.interop.classifier_folder import _default_activation, _labels
from pejax.interop.heads import HEADS, find_head
from pejax.interop.text_batches import require_texts
from tests.support.hub_folders import rewrite, tensors, write
from tests.support.text_folders import MODULES, add_tokenizer, write_json

SEQUENCE = "BertForSequenceClassification"
RNG = np.random.default_rng(0)


def add_head(folder, labels: int = 2, **config):
    """Write the head of a BERT that classifies texts into its folder."""
    names = {"bert.pooler.dense": 32, "classifier": labels}
    own = {f"{name}.weight": (rows, 32) for name, rows in names.items()}
    own |= {f"{name}.bias": (rows,) for name, rows in names.items()}
    drawn = {name: RNG.normal(size=shape).astype(np.float32) for name, shape in own.items()}
    body = {name: value for name, value in tensors(folder).items() if not name.startswith("cls.")}
    return add_tokenizer(rewrite(folder, {**body, **drawn}, architectures=[SEQUENCE], **config), bert=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return add_head(write(tmp_path_factory.mktemp("models") / "bert", "bert", num_hidden_layers=1), 1)


@pytest.fixture(scope="module")
def reranker(folder):
    return load_classifier(folder)


def test_a_reranker_scores_pairs_by_types_of_their_tokens(reranker):
    """The pair is not the two texts in one, and its score is the logit after the sigmoid."""
    pairs = [("w1 w2", text) for text in ("w3 w4 w5", "w6", "w7 w8", "w9")]  # four rows each time: one program
    logits = reranker.logits(pairs)
    assert logits.shape == (4, 1)
    assert logits.dtype == np.float32
    assert abs(logits[0, 0] - reranker.logits(["w1 w2 w3 w4 w5"] * 4)[0, 0]) > 1e-3
    scores = 1 / (1 + np.exp(-logits[:, 0]))
    np.testing.assert_allclose(reranker.score("w1 w2", [text for _, text in pairs]), scores, rtol=1e-5)
    (first, *_) = reranker.predict(pairs)
    assert first == ("LABEL_0", pytest.approx(scores[0]), None, None)


def test_wrong_inputs(reranker):
    for inputs in ("w1", [("w1", "w2", "w3")], [("w1", 3)]):
        with pytest.raises(TypeError, match=r"must be .* strings or pairs of strings, got"):
            require_texts(inputs, "inputs", pairs=True)
    with pytest.raises(ValueError, match=r"activation must be one of identity, tanh, .*, got 'sigmoyd'"):
        reranker.activation = "sigmoyd"


def refusal_of(folder) -> str:
    """Return the one line in which a folder is refused."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011
        load_classifier(folder)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"classifier.weight": None}, "must hold the tensor classifier.weight of the head, got none"),
        ({"classifier.weight": (1, 31)}, "classifier.weight must have shape (1, 32), got (1, 31)"),
        ({"classifier.bias": (2,)}, "the bias of classifier must have shape (1,), got (2,)"),
        ({"bert.pooler.dense.weight": (31, 32)}, "bert.pooler.dense.weight must have shape (32, 32), got (31, 32)"),
        ({"classifier.out_proj.weight": (3, 3)}, "has a head that load does not read, classifier."),
        ({"classifier.bias": np.nan}, "classifier.bias must hold finite numbers, got others"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_tensors_that_do_not_fit(change, rule, folder, tmp_path):
    values = tensors(folder)
    for name, shape in change.items():
        values.pop(name, None)
        if shape is not None:
            values[name] = np.full(1, np.nan, np.float32) if shape is np.nan else np.zeros(shape, np.float32)
    other = write(tmp_path / "a", "bert", num_hidden_layers=1)
    assert rule in refusal_of(rewrite(other, values, architectures=[SEQUENCE]))


CONFIG = {"model_type": "bert", "architectures": [SEQUENCE]}


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"architectures": ["BertModel"]}, "architectures must name a class that ends in ForSequenceClassification, "),
        ({"architectures": None}, "got none"),
        ({"architectures": ["BertForImageClassification"]},
         "the head of BertForImageClassification with model_type 'bert' is not read"),
        ({"model_type": "modernbert", "classifier_pooling": "max"}, "classifier_pooling must be 'cls' or 'mean'"),
    ],
)  # fmt: skip
def test_configs_without_a_head_that_is_read(config, rule, tmp_path):
    write_json(tmp_path / "config.json", {**CONFIG, **config})
    assert rule in refusal_of(tmp_path)


def test_a_head_beside_an_adapter(tmp_path):
    write_json(tmp_path / "config.json", CONFIG)
    write_json(tmp_path / "adapter_config.json", {"base_model_name_or_path": "owner/base"})
    assert "got an adapter of owner/base (adapter_config.json): peft's merge_and_unload()" in refusal_of(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "rule"),
    [
        ("modules.json", [{"type": MODULES + kind, "path": ""} for kind in ("Transformer", "LogitScore")],
         "a classifier must have one module, Transformer, got Transformer, LogitScore"),
        ("config_sentence_transformers.json", {"activation_fn": "mine.Sigmoid"}, "the activation must be torch.nn's"),
        ("config_sentence_transformers.json", {"model_type": "SentenceTransformer"}, "must be 'CrossEncoder', got"),
        ("config_sentence_transformers.json", {"prompts": {"a": "b"}, "default_prompt_name": "a"},
         "default_prompt_name must be null in a classifier"),
    ],
)  # fmt: skip
def test_files_of_a_cross_encoder_that_are_not_read(file, content, rule, tmp_path):
    folder = add_head(write(tmp_path / "a", "bert", num_hidden_layers=1))
    write_json(folder / "modules.json", [{"type": f"{MODULES}Transformer", "path": ""}])
    write_json(folder / file, content)
    assert rule in refusal_of(folder)


def test_labels_and_activations():
    assert _labels({"id2label": {"1": "b", "0": "a"}}, 2) == ["a", "b"]
    assert _labels({}, 2) == ["LABEL_0", "LABEL_1"]
    with pytest.raises(ValueError, match="id2label must name the labels 0 to 2 of the head, got 0, 1"):
        _labels({"id2label": {"0": "a", "1": "b"}}, 3)
    several, regression = ({"problem_type": kind} for kind in ("multi_label_classification", "regression"))
    assert [_default_activation(config, "sequence", 3) for config in ({}, several)] == ["softmax", "sigmoid"]
    assert [_default_activation(config, "sequence", 1) for config in ({}, regression)] == ["sigmoid", "identity"]
    assert _default_activation(several, "token", 1) == "softmax"


def test_the_last_token_is_not_padding():
    ids = np.asarray([5, 0, 7, 3, 3])
    assert [_last(ids, pad) for pad in (None, 0, 3)] == [4, 4, 2]
    assert _last(np.asarray([3, 3]), 3) == 0


def test_every_head_has_a_task(tmp_path):
    for name in HEADS:
        tasks = ("ForImageClassification",) if name in ("clip", "siglip") else ("ForTokenClassification",)
        for task in tasks:
            assert find_head({"model_type": name, "architectures": [f"X{task}"]}, tmp_path) is not None
