"""Heads of classifiers and rerankers as data: which tensors of a folder come after the model, and what they compute.

x = pool(states)  ->  norm(activation(x @ dense + b))  ->  logits = x @ out + b
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pejax.interop.config import Config
from pejax.interop.pooling import Dense, dense, pooled
from pejax.interop.source import Source, prefixes_in, with_prefix

TASKS = {
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
    "ForImageClassification": "image",
}
"""Ends of the names of classes of transformers, and what their heads read: a text, its tokens, or an image."""


class Head(NamedTuple):
    """The head of a classifier, in the names of its file.

    Attributes:
        out: the layer that makes the logits.
        pool: what it reads: "first", the state of the first token; "last", that of the last token that is not
            `pad_token_id`; "mean" of the tokens; "patches", the mean of those of an image. "" = every token.
        dense: a layer before it. "" = none.
        activation: activation of `dense`.
        norm: a LayerNorm after `dense`. "" = none.
        epsilon: of the norm.
        biases: the layers that have a bias, out of "out", "dense" and "norm".
        normed: whether the states pass the model's last norm.
    """

    out: str
    pool: str = ""
    dense: str = ""
    activation: str = ""
    norm: str = ""
    epsilon: float = 0.0
    biases: tuple[str, ...] = ("out", "dense")
    normed: bool = True

    @property
    def tensors(self) -> dict[str, str]:
        """Roles of the tensors, such as "out.bias", and their names."""
        names = {role: getattr(self, role) for role in ("out", "dense", "norm") if getattr(self, role)}
        weights = {f"{role}.weight": f"{name}.weight" for role, name in names.items()}
        return weights | {f"{role}.bias": f"{name}.bias" for role, name in names.items() if role in self.biases}


HeadReader = Callable[[Config, str], Head | None]
"""Function `(config, task)` to the head of an architecture; None = it has no such head."""


def _encoder(c: Config, task: str, sequence: Head) -> Head | None:
    """Return the head of an encoder, `sequence` for a whole text."""
    del c
    return {"sequence": sequence, "token": Head("classifier"), "question": Head("qa_outputs")}.get(task)


def _roformer(c: Config, task: str) -> Head | None:
    """Return the head of RoFormer."""
    return _encoder(
        c, task, Head("classifier.out_proj", "first", "classifier.dense", c.activation("hidden_act", "gelu"))
    )


def _modernbert(c: Config, task: str) -> Head | None:
    """Return the head of ModernBERT, whose layer and norm stand before every task's."""
    c.must("classifier_pooling", "cls", "mean")
    pool = {"sequence": "mean" if c("classifier_pooling", "cls") == "mean" else "first", "token": "", "question": ""}
    has = {"dense": c.flag("classifier_bias", False), "norm": c.flag("norm_bias", False)}
    biases = ("out", *(role for role, there in has.items() if there))
    activation, epsilon = c.activation("classifier_activation", "gelu"), c.number("norm_eps", 1e-5)
    if task not in pool:
        return None
    return Head("classifier", pool[task], "head.dense", activation, "head.norm", epsilon, biases)


def _decoder(c: Config, task: str) -> Head | None:
    """Return the head of a decoder."""
    del c
    return {"sequence": Head("score", "last", biases=()), "token": Head("score")}.get(task)


def _image(c: Config, task: str, normed: bool) -> Head | None:
    """Return the head of a vision tower."""
    del c
    return Head("classifier", "patches", normed=normed) if task == "image" else None


HEADS: dict[str, HeadReader] = {
    "bert": partial(_encoder, sequence=Head("classifier", "first", "bert.pooler.dense", "tanh")),
    **dict.fromkeys(
        ("roberta", "xlm-roberta", "camembert"),
        partial(_encoder, sequence=Head("classifier.out_proj", "first", "classifier.dense", "tanh")),
    ),
    "distilbert": partial(_encoder, sequence=Head("classifier", "first", "pre_classifier", "relu")),
    "roformer": _roformer,
    "modernbert": _modernbert,
    "siglip": partial(_image, normed=True),
    "clip": partial(_image, normed=False),
}
"""Heads by `model_type`; all other text models have that of decoders."""


def task_of(config: Mapping[str, Any], where: Path) -> str:
    """Return the task of a folder, a value of `TASKS`, by the class that `architectures` names.

    Raises:
        ValueError: another class, or none.
    """
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "none"
    tasks = [task for end, task in TASKS.items() if name.endswith(end)]
    if not tasks:
        raise ValueError(f"{where}: architectures must name a class that ends in {', '.join(TASKS)}, got {name}"[:400])
    return tasks[0]


def find_head(config: Mapping[str, Any], where: Path) -> Head | None:
    """Return the head of a folder. None = the model computes the logits itself, as vision transformers do.

    Raises:
        ValueError: no head of this architecture is known.
    """
    task, kind = task_of(config, where), config.get("model_type")
    read = HEADS.get(str(kind), _decoder)
    head = read(Config(config, str(where)), task)
    if head is None and not (task == "image" and kind not in HEADS):
        raise ValueError(f"{where}: the head of {config['architectures'][0]} with model_type {kind!r} is not read")
    return head


class HeadValues(NamedTuple):
    """The parameters of a head.

    Attributes:
        out: layer that makes the logits.
        dense: layer before it. None = none.
        scale: factor of the norm, `(C,)`. None = no norm.
        shift: summand of the norm. None = none.
        epsilon: of the norm.
    """

    out: Dense
    dense: Dense | None
    scale: Float[Array, " C"] | None
    shift: Float[Array, " C"] | None
    epsilon: float


def read_values(head: Head, source: Source, width: int, where: Path) -> HeadValues:
    """Return the parameters of a head, from the tensors that its model does not read.

    Args:
        head: the head.
        source: source of the model, which carries them.
        width: C, channels of the model.
        where: path of the folder, for errors.

    Raises:
        ValueError: a tensor that is missing, misshapen or not finite.
    """
    prefixes = prefixes_in(source.architecture, source.tensors)
    values = {}
    for role, name in head.tensors.items():
        name = with_prefix(name, prefixes)
        if name not in source.carried:
            raise ValueError(f"{where} must hold the tensor {name} of the head, got none")
        value = source.carried[name].astype(np.float32)
        rows = value.shape[:1] if role.startswith("out") else (width,)
        shape = (*rows, width) if role in ("out.weight", "dense.weight") else rows
        if value.shape != shape or 0 in shape:
            raise ValueError(f"{where}: {name} must have shape {shape}, got {value.shape}")
        if not np.all(np.isfinite(value)):
            raise ValueError(f"{where}: {name} must hold finite numbers, got others")
        values[role] = jnp.asarray(value.T)
    if (bias := values.get("out.bias")) is not None and bias.shape != values["out.weight"].shape[1:]:
        raise ValueError(
            f"{where}: the bias of {head.out} must have shape {values['out.weight'].shape[1:]}, got {bias.shape}"
        )
    layer = lambda role, activation: Dense(values[f"{role}.weight"], values.get(f"{role}.bias"), activation)
    before = layer("dense", head.activation) if head.dense else None
    return HeadValues(
        layer("out", "identity"), before, values.get("norm.weight"), values.get("norm.bias"), head.epsilon
    )


def head_logits(
    head: Head, values: HeadValues, x: Float[Array, "B T C"], mask: Any, last: Any
) -> Float[Array, "B *T classes"]:
    """Return the logits of states: one list per text, or per token where the head pools nothing.

    Args:
        head: the head.
        values: its parameters.
        x: states; those of an image without CLS and registers.
        mask: 1 = a token, 0 = padding after the last one, `(B, T)`. None = images, without padding.
        last: number of the last token that is not `pad_token_id`, `(B,)`. None = images.
    """
    x = x.astype(jnp.float32)
    if head.pool == "patches":
        x = jnp.mean(x, axis=1)
    elif head.pool == "last":
        x = jnp.take_along_axis(x, last[:, None, None], axis=1)[:, 0]
    elif head.pool:
        x = pooled(("cls" if head.pool == "first" else "mean",), x, mask, jnp.zeros(len(x), jnp.int32))
    if values.dense is not None:
        x = dense(values.dense, x)
    if values.scale is not None:
        x = (x - jnp.mean(x, axis=-1, keepdims=True)) / jnp.sqrt(jnp.var(x, axis=-1, keepdims=True) + values.epsilon)
        x = x * values.scale if values.shift is None else x * values.scale + values.shift
    return dense(values.out, x)
