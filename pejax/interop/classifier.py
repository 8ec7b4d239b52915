"""Classifiers and rerankers: scores and labels of texts, of pairs, of tokens and of images."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pejax._ops.checks import check_choice
from pejax.interop.pooling import OUTPUTS
from pejax.interop.predictions import Prediction, best_answer, best_label, token_labels
from pejax.interop.text_batches import (
    Runner,
    Text,
    TextReader,
    batches,
    require_batch,
    require_texts,
    row_count,
    tokens_of,
)
from pejax.models import Decoder, ViT

Inputs: TypeAlias = Sequence[Text] | Float[np.ndarray, "N height width channels"]
"""Texts, or pairs of texts; of an image classifier, images as its model takes them."""


class Classifier:
    """A model with a head that scores labels. `load_classifier` makes it.

    Attributes:
        model: the model below the head.
        task: "sequence", labels of a text or a pair; "token", of each token; "question", answers to (question,
            context); "image", labels of an image.
        labels: the labels, of `id2label`.
    """

    def __init__(
        self,
        model: Decoder | ViT,
        task: str,
        labels: Sequence[str],
        activation: str,
        runner: Runner,
        reader: TextReader | None = None,
        pad: int | None = None,
    ) -> None:
        self.model, self.task, self.labels = model, task, tuple(labels)
        self.activation = activation
        self._runner, self._reader, self._pad = runner, reader, pad

    @property
    def activation(self) -> str:
        """Name of the function from logits to scores: "identity", "sigmoid", "softmax", or another activation."""
        return self._activation

    @activation.setter
    def activation(self, name: str) -> None:
        check_choice("activation", name, tuple(OUTPUTS))
        self._activation = name

    @property
    def max_length(self) -> int:
        """Most tokens that are read of a text or a pair, special ones included; the rest is cut off.

        Raises:
            ValueError: an image classifier.
        """
        return self._text_reader().max_length

    @max_length.setter
    def max_length(self, length: int) -> None:
        self._text_reader().max_length = length

    def logits(self, inputs: Inputs, *, batch: int = 32) -> np.ndarray | list[np.ndarray]:
        """Return the logits, float32: `(N, labels)`; for tokens and questions, a list of `(T, labels)`.

        Args:
            inputs: texts or pairs of texts, or images.
            batch: most inputs that the model reads at once; texts of similar lengths are read together.

        Raises:
            TypeError: inputs of another kind.
            ValueError: a text without a token, or a length that the encoding refuses.
        """
        if self.task == "image":
            return self._of_images(np.asarray(inputs, np.float32), batch)
        return self._of_texts([*self._text_reader().encodings(_as_pairs(inputs), "inputs")], batch)

    def scores(self, inputs: Inputs, *, batch: int = 32) -> np.ndarray | list[np.ndarray]:
        """Return the scores: the logits after `activation`, over the labels; for questions, over the tokens.

        Arguments and errors as those of `logits`.
        """
        logits = self.logits(inputs, batch=batch)
        return [self._scored(row) for row in logits] if isinstance(logits, list) else self._scored(logits)

    def score(self, query: str, texts: Sequence[str], *, batch: int = 32) -> Float[np.ndarray, " N"]:
        """Return how well each text fits a query, of a reranker, in the order of the texts.

        Args:
            query: first text of each pair.
            texts: second texts.
            batch: as in `logits`.

        Raises:
            TypeError: as `logits`.
            ValueError: as `logits`, or a classifier with several labels.
        """
        if self.task != "sequence" or len(self.labels) != 1:
            raise ValueError(
                f"score needs a classifier of texts with one label, got {len(self.labels)} and {self.task}"
            )
        require_texts(texts)
        return np.asarray(self.scores([(query, text) for text in texts], batch=batch))[:, 0]

    def predict(self, inputs: Inputs, *, batch: int = 32) -> list[Prediction] | list[list[Prediction]]:
        """Return the best label of each input with its score; of tokens, a list for each text; of questions, answers.

        Arguments and errors as those of `logits`; questions are pairs (question, context).
        """
        if self.task in ("sequence", "image"):
            return [best_label(self.labels, row) for row in self.scores(inputs, batch=batch)]
        texts = _as_pairs(inputs)
        if self.task == "question" and any(isinstance(text, str) for text in texts):
            raise TypeError("inputs must be pairs (question, context), got a text alone")
        encodings = [*self._text_reader().encodings(texts, "inputs")]
        logits = self._of_texts(encodings, batch)
        if self.task == "token":
            return [
                token_labels(self.labels, self._scored(row), encoding)
                for row, encoding in zip(logits, encodings, strict=True)
            ]
        return [
            best_answer(text[1], row, encoding) for text, row, encoding in zip(texts, logits, encodings, strict=True)
        ]

    def _text_reader(self) -> TextReader:
        """Return the reader of texts."""
        if self._reader is None:
            raise ValueError("an image classifier reads no texts and has no max_length")
        return self._reader

    def _scored(self, logits: np.ndarray) -> np.ndarray:
        """Return scores: softmax and the like over labels, or over the tokens where a label is a place."""
        score = lambda x: np.asarray(OUTPUTS[self.activation](jnp.asarray(x)))
        return score(logits.T).T if self.task == "question" else score(logits)

    def _of_texts(self, encodings: Sequence[Any], batch: int) -> np.ndarray | list[np.ndarray]:
        """Return the logits of texts, in their order."""
        reader = self._text_reader()
        rows = [tokens_of(encoding) for encoding in encodings]
        last = np.asarray([_last(row.ids, self._pad) for row in rows], np.int32)
        options = {"most": self.max_length, "multiple": self._runner.multiple, "types": reader.types}
        inputs = (
            (numbers, (part, np.pad(last[numbers], (0, len(part.ids) - len(numbers)))))
            for numbers, part in batches(rows, batch, **options)
        )
        results: list[Any] = [None] * len(rows)
        for numbers, logits in self._runner(inputs):
            for number, row in zip(numbers, logits, strict=False):  # rows that fill the batch are left out
                results[number] = row if self.task == "sequence" else row[: len(rows[number].ids)]
        if self.task != "sequence":
            return results
        return np.stack(results) if results else np.empty((0, len(self.labels)), np.float32)

    def _of_images(self, images: np.ndarray, batch: int) -> np.ndarray:
        """Return the logits of images, in their order."""
        require_batch(batch)
        if images.ndim != 4:
            raise ValueError(f"images must be (N, height, width, channels), got {images.shape}")

        def parts() -> Iterator[tuple[int, np.ndarray]]:
            for start in range(0, len(images), batch):
                part = images[start : start + batch]
                missing = row_count(len(part), batch, self._runner.multiple) - len(part)
                yield len(part), np.concatenate([part, np.repeat(part[-1:], missing, axis=0)])

        results = [logits[:count] for count, logits in self._runner(parts())]
        return np.concatenate([np.empty((0, len(self.labels)), np.float32), *results])


def _as_pairs(inputs: Inputs) -> list[Text]:
    """Return texts, and pairs as tuples.

    Raises:
        TypeError: inputs of another kind.
    """
    require_texts(inputs, "inputs", pairs=True)
    return [text if isinstance(text, str) else (str(text[0]), str(text[1])) for text in inputs]


def _last(ids: np.ndarray, pad: int | None) -> int:
    """Return the number of the last token that is not padding; 0 where all are."""
    places = np.flatnonzero(ids != pad) if pad is not None else np.arange(len(ids))
    return int(places[-1]) if len(places) else 0
