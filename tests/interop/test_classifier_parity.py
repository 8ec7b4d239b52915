"""Classifiers and rerankers against transformers and sentence-transformers, from the same folders."""

import os

import numpy as np
import pytest

from pejax.interop import load_classifier
from tests.support.hub_pictures import SIZES as VISION
from tests.support.peers import peer
from tests.support.text_folders import PAIRS, TEXTS, add_tokenizer, texts_of, write_json

pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]
os.environ.setdefault("HF_HUB_OFFLINE", "1")

IDENTITY = "torch.nn.modules.linear.Identity"
TASKS = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification",
         "question": "ForQuestionAnswering"}  # fmt: skip
ENCODER = {"vocab_size": 95, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
           "intermediate_size": 48, "max_position_embeddings": 50}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
MODERN = {**ENCODER, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3,
          "num_hidden_layers": 4, "local_attention": 8}  # fmt: skip
MODELS = {
    "bert": ("Bert", ENCODER),
    "roberta": ("Roberta", {**ENCODER, "pad_token_id": 0}),
    "xlm-roberta": ("XLMRoberta", {**ENCODER, "pad_token_id": 0}),
    "camembert": ("Camembert", {**ENCODER, "pad_token_id": 0}),
    "distilbert": ("DistilBert", {"vocab_size": 95, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}),
    "roformer": ("RoFormer", ENCODER),
    "modernbert": ("ModernBert", MODERN),
    "modernbert, mean": ("ModernBert", {**MODERN, "classifier_pooling": "mean", "classifier_bias": True,
                                        "norm_bias": True, "classifier_activation": "silu"}),
    "llama": ("Llama", DECODER),
    "qwen2": ("Qwen2", DECODER),
    "qwen3": ("Qwen3", {**DECODER, "head_dim": 8}),
    "gemma": ("Gemma", {**DECODER, "head_dim": 8}),
    "gemma2": ("Gemma2", {**DECODER, "head_dim": 8}),
    "gemma3_text": ("Gemma3Text", {**DECODER, "head_dim": 8}),
    "mistral": ("Mistral", DECODER),
    "llama, padding at the end": ("Llama", {**DECODER, "pad_token_id": 3}),
    "gpt2": ("GPT2", {"vocab_size": 95, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "pad_token_id": 0}),
}  # fmt: skip
ENCODERS = [name for name in MODELS if "bert" in name or "former" in name]


def made(folder, name: str, task: str, **options):
    """Return a random classifier of transformers, saved with a tokenizer in a folder."""
    torch, transformers = peer("torch"), peer("transformers")
    kind, config = MODELS[name]
    torch.manual_seed(0)
    maker = getattr(transformers, f"{kind}{TASKS[task]}")
    theirs = maker(maker.config_class(**{**config, **options})).eval()
    with torch.no_grad():
        for path, parameter in theirs.named_parameters():
            if not parameter.requires_grad:  # RoFormer's angles
                continue
            is_factor = path.endswith("weight") and (parameter.ndim == 1 or "_norm" in path)
            parameter.normal_(std=0.1 if is_factor else 0.2)
            if is_factor and "Gemma" not in kind:
                parameter += 1.0
    theirs.save_pretrained(folder)
    add_tokenizer(folder, decoder=name not in ENCODERS, bert=name == "bert")
    return theirs


def expected_logits(theirs, folder, inputs) -> list[np.ndarray]:
    """Return the logits of transformers, of one text at a time; the begin and end of answers are two labels."""
    torch = peer("torch")
    kind = "BertTokenizer" if theirs.config.model_type == "bert" else "PreTrainedTokenizerFast"
    tokenizer = getattr(peer("transformers"), kind).from_pretrained(folder)
    rows = []
    for text in inputs:
        parts = (text,) if isinstance(text, str) else text
        tokens = tokenizer(*parts, return_tensors="pt", truncation=True)
        with torch.no_grad():
            output = theirs(**tokens)
        keys = ("logits",) if "logits" in output else ("start_logits", "end_logits")
        logits = [output[key].numpy() for key in keys]
        rows.append(logits[0][0] if len(logits) == 1 else np.stack([row[0] for row in logits], axis=-1))
    return rows


CASES = [
    *((name, "sequence") for name in MODELS),
    *((name, task) for name in ENCODERS for task in ("token", "question")),
    ("llama", "token"), ("qwen3", "token"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "task"), CASES)
def test_logits_are_those_of_transformers(name, task, tmp_path):
    options = {} if task == "question" else {"num_labels": 3}
    theirs = made(tmp_path / "a", name, task, **options)
    inputs = [*PAIRS, *TEXTS, *texts_of(5)] if task == "sequence" else [*PAIRS, *TEXTS]
    expected = expected_logits(theirs, tmp_path / "a", inputs)
    result = load_classifier(tmp_path / "a").logits(inputs, batch=4)
    difference = max(np.max(np.abs(ours - row)) for ours, row in zip(result, expected, strict=True))
    deviation = np.std(np.concatenate([row.ravel() for row in expected]))
    print(f"largest difference: {name}, {task}: {difference:.1e} of a standard deviation of {deviation:.2f}")
    assert deviation > 0.1
    assert difference < 1e-4


@pytest.mark.parametrize(("task", "pipeline"), [("sequence", "text-classification"), ("token", "token-classification")])
def test_labels_and_scores_are_those_of_the_pipelines(task, pipeline, tmp_path):
    labels = {0: "calm", 1: "loud", 2: "odd"}
    made(tmp_path / "a", "bert", task, id2label=labels, label2id={v: k for k, v in labels.items()})
    run = peer("transformers").pipeline(pipeline, str(tmp_path / "a"), device="cpu")
    expected = [run(text) for text in TEXTS]
    result = load_classifier(tmp_path / "a").predict(TEXTS)
    for ours, theirs in zip(result, expected, strict=True):
        if task == "sequence":
            ours, theirs = [ours], [{**theirs[0], "start": None, "end": None}]
        fields = [(entry.get("label", entry.get("entity")), entry["start"], entry["end"]) for entry in theirs]
        assert [(entry.label, entry.start, entry.end) for entry in ours] == fields
        np.testing.assert_allclose([entry.score for entry in ours], [entry["score"] for entry in theirs], atol=1e-5)


@pytest.mark.parametrize(
    ("labels", "options", "config"),
    [
        (1, {}, {}),
        (1, {"problem_type": "regression"}, {"sbert_ce_default_activation_function": IDENTITY}),
        (1, {}, {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh", "version": "4.0.1"}}),
        (3, {}, {"sbert_ce_default_activation_function": IDENTITY}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
def test_scores_are_those_of_the_cross_encoder(name, labels, options, config, tmp_path):
    made(tmp_path / "a", name, "sequence", num_labels=labels, **options)
    path = tmp_path / "a" / "config.json"
    write_json(path, {**peer("json").loads(path.read_text()), **config})
    inputs = [*PAIRS, ("w1", TEXTS[2]), (TEXTS[2], TEXTS[2] * 2)]
    theirs = peer("sentence_transformers").CrossEncoder(str(path.parent), device="cpu", local_files_only=True)
    expected = theirs.predict(inputs, batch_size=2)
    ours = load_classifier(path.parent)
    assert ours.max_length == theirs.max_length
    np.testing.assert_allclose(ours.scores(inputs, batch=3), expected.reshape(len(inputs), labels), atol=1e-5)
    if labels == 1:
        ranked = theirs.rank("w1 w2", TEXTS)
        by_rank = sorted(ranked, key=lambda entry: entry["corpus_id"])
        np.testing.assert_allclose(ours.score("w1 w2", TEXTS), [entry["score"] for entry in by_rank], atol=1e-5)
    theirs.save_pretrained(str(tmp_path / "b"))
    again = load_classifier(tmp_path / "b")
    assert again.activation == ours.activation
    np.testing.assert_array_equal(again.logits(inputs), ours.logits(inputs))


@pytest.mark.parametrize("name", ["Clip", "Siglip"])
def test_images_are_classified_as_in_transformers(name, tmp_path):
    torch, transformers = peer("torch"), peer("transformers")
    prefix = "CLIP" if name == "Clip" else name
    text = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 97,
    }
    config = getattr(transformers, f"{prefix}Config")(vision_config=VISION, text_config=text, num_labels=3)
    torch.manual_seed(0)
    theirs = getattr(transformers, f"{prefix}ForImageClassification")(config).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    theirs.save_pretrained(tmp_path)
    side = VISION["image_size"]
    images = np.random.default_rng(0).normal(size=(5, side, side, 3)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.as_tensor(images.transpose(0, 3, 1, 2))).logits.numpy()
    ours = load_classifier(tmp_path)
    np.testing.assert_allclose(ours.logits(images, batch=2), expected, atol=1e-4)
    assert [entry.label for entry in ours.predict(images)] == [f"LABEL_{row.argmax()}" for row in expected]
