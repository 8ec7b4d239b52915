"""Loading of classifiers and rerankers: model, head, labels, and the function from logits to scores."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array

from pejax._record.specs import Extension
from pejax.interop.classifier import Classifier
from pejax.interop.config import Config, read_json, read_names
from pejax.interop.cross_encoder import read_cross_encoder
from pejax.interop.files import require_folder
from pejax.interop.heads import Head, HeadValues, find_head, head_logits, read_values, task_of
from pejax.interop.text_batches import Run, Runner, TextReader
from pejax.interop.weights import load
from pejax.models import Decoder, Execution, ViT


def load_classifier(
    path: str | os.PathLike[str],
    *,
    extend: str | Extension | None = None,
    dtype: str = "float32",
    params: str = "float32",
    mesh: Mesh | None = None,
    ignore: str | Sequence[str] = (),
) -> Classifier:
    """Load a classifier or a reranker, with the head of its folder.

    Args:
        path: a folder of transformers, of a class that ends in ForSequenceClassification, ForTokenClassification,
            ForQuestionAnswering or ForImageClassification; or of a CrossEncoder of sentence-transformers.
        extend: as in `load`.
        dtype: as in `load`; heads are computed in float32.
        params: as in `load`.
        mesh: mesh of the devices: inputs are split over its axes `data`, `fsdp` and `sequence`, parameters as in
            `load`. None = the default device.
        ignore: as in `load`.

    Raises:
        ValueError: as `load`; a head that is not read, or whose tensors do not fit; labels that are not 0 to n - 1; an
            activation that is not known.
    """
    folder = Path(path)
    require_folder(folder)
    where = folder / "config.json"
    config = read_json(where)
    task, head = task_of(config, where), find_head(config, where)
    names = [] if head is None else [*head.tensors.values()]
    # Files may lack the prefix of the model: `pooler.dense` in place of `bert.pooler.dense`.
    names += [name.partition(".")[2] for name in names if name.startswith("bert.")]
    settings = {"extend": extend, "dtype": dtype, "params": params, "mesh": mesh}
    model, source = load(folder, ignore=(*read_names("ignore", ignore), *names), **settings)
    if not isinstance(model, ViT if task == "image" else Decoder):
        raise ValueError(f"{folder} must be a model of one stack for the task {task}, got a {type(model).__name__}")
    values = None if head is None else read_values(head, source, model.config.width, folder)
    if isinstance(model, ViT):
        return _image_classifier(model, head, values, config, mesh)
    assert head is not None  # images alone have none
    assert values is not None
    own, count = read_cross_encoder(folder, config), values.out.kernel.shape[1]
    reader = TextReader(folder, model.config, own.max_length, lower_case=own.lower_case)
    text = config.get("text_config")
    pad = (text if isinstance(text, Mapping) else config).get("pad_token_id")
    if pad is not None and type(pad) is not int:
        raise ValueError(f"{where}: pad_token_id must be an id, got {pad!r}"[:400])
    runner = Runner(model, _text_logits(head), values, mesh)
    activation = own.activation or _default_activation(config, task, count)
    return Classifier(model, task, _labels(config, count), activation, runner, reader, pad)


def _image_classifier(
    model: ViT, head: Head | None, values: HeadValues | None, config: Mapping[str, Any], mesh: Mesh | None
) -> Classifier:
    """Return the classifier of a vision transformer, which has the head itself where there is no other."""
    if head is not None and not head.normed:
        model.norm = None
    count = model.config.classes if values is None else values.out.kernel.shape[1]
    if not count:
        raise ValueError("the folder of an image classifier must hold its head, got the model alone")
    activation, runner = _default_activation(config, "image", count), Runner(model, _image_logits(head), values, mesh)
    return Classifier(model, "image", _labels(config, count), activation, runner)


def _labels(config: Mapping[str, Any], count: int) -> list[str]:
    """Return the labels of `id2label`, or LABEL_0, LABEL_1, ... where there are none.

    Raises:
        ValueError: labels that are not 0 to count - 1.
    """
    named = Config(config).object("id2label")
    if not named:
        return [f"LABEL_{number}" for number in range(count)]
    if {*named} != {str(number) for number in range(count)}:
        rule = f"config.json: id2label must name the labels 0 to {count - 1} of the head"
        raise ValueError(f"{rule}, got {', '.join(map(str, named))}"[:400])
    return [str(named[str(number)]) for number in range(count)]


def _default_activation(config: Mapping[str, Any], task: str, count: int) -> str:
    """Return the name of the function from logits to scores, that of the pipelines of transformers."""
    if task == "sequence" and config.get("problem_type") == "regression":
        return "identity"
    several = config.get("problem_type") == "multi_label_classification"
    return "sigmoid" if task == "sequence" and (several or count == 1) else "softmax"


def _text_logits(head: Head) -> Run:
    """Return the function from a batch of texts to logits, which `Runner` compiles."""

    def run(model: Decoder, values: HeadValues, inputs: Any, execution: Execution) -> Array:
        batch, last = inputs
        states = model.states(batch.ids, attention_mask=batch.mask, type_ids=batch.types, execution=execution)
        return head_logits(head, values, states, batch.mask, last)

    return run


def _image_logits(head: Head | None) -> Run:
    """Return the function from a batch of images to logits; without a head, the model has its own."""

    def run(model: ViT, values: HeadValues, images: Any, execution: Execution) -> Array:
        images = jnp.asarray(images)
        if head is None:
            return model(images, execution=execution)
        return head_logits(head, values, model.states(images, execution=execution)[:, model.prefix :], None, None)

    return run
