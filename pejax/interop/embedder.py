"""Embedding models: a vector for each text, from a folder of sentence-transformers or of a plain model."""

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from pejax._calls.kinds import shown
from pejax._record.specs import Extension
from pejax.interop.pooling import Dense, Normalize, dense, pooled, unit_vectors
from pejax.interop.sentence_modules import Layout, read_layout, require_prompt
from pejax.interop.similarity import SIMILARITIES
from pejax.interop.text_batches import Run, Runner, TextReader, batches, require_texts
from pejax.interop.weights import load
from pejax.models import Decoder, Execution


class Embedder:
    """An embedding model: texts to vectors. `load_embedder` makes it.

    Attributes:
        model: the model that the states of the tokens come from.
        prompts: texts that are put before every text, by name; add those that the folder does not name, such as E5's
            `embedder.prompts["query"] = "query: "`.
        default_prompt: name of the prompt where `encode` gets none. None = no prompt.
        similarity_name: "cosine", "dot", "euclidean" or "manhattan".
        width: C, channels of a vector before `truncate_dim`.
    """

    def __init__(self, model: Decoder, reader: TextReader, layout: Layout, mesh: Mesh | None = None) -> None:
        self.model, self._reader, self._layout = model, reader, layout
        settings = layout.settings
        self.prompts: dict[str, str] = {**settings.get("prompts", {})}
        self.default_prompt: str | None = settings.get("default_prompt")
        self.similarity_name: str = settings.get("similarity_name", "cosine")
        self.width = _width(model.config.width * len(layout.modes), layout.after)
        self.truncate_dim = settings.get("truncate_dim")
        self._runner = Runner(model, _vectors(layout.modes), layout.after, mesh)

    @property
    def max_length(self) -> int:
        """Most tokens that are read of a text with its prompt, special ones included; the rest is cut off."""
        return self._reader.max_length

    @max_length.setter
    def max_length(self, length: int) -> None:
        self._reader.max_length = length

    @property
    def truncate_dim(self) -> int | None:
        """Channels of a vector that `encode` returns, the first ones. None = all."""
        return self._truncate_dim

    @truncate_dim.setter
    def truncate_dim(self, channels: int | None) -> None:
        is_count = isinstance(channels, int) and not isinstance(channels, bool) and 1 <= channels <= self.width
        if channels is not None and not is_count:
            raise ValueError(f"truncate_dim must be None or from 1 to {self.width}, got {shown(channels)}")
        self._truncate_dim = channels

    def encode(self, texts: Sequence[str], *, prompt: str | None = None, batch: int = 32) -> Float[np.ndarray, "N C"]:
        """Return the vectors of texts, float32, in the order of the texts.

        Args:
            texts: the texts.
            prompt: name of the prompt, out of `prompts`, that is put before every text; "" = none. None = the default
                of the folder.
            batch: most texts that the model reads at once; texts of similar lengths are read together.

        Raises:
            TypeError: `texts` is no list of strings.
            ValueError: an unknown prompt, a text without a token, or a length that the encoding refuses.
        """
        require_texts(texts)
        result = np.empty((len(texts), self.truncate_dim or self.width), np.float32)
        for rows, vectors in self.encode_batches(texts, prompt=prompt, batch=batch):
            result[rows] = vectors
        return result

    def encode_batches(
        self, texts: Sequence[str], *, prompt: str | None = None, batch: int = 32, skip: int = 0
    ) -> Iterator[tuple[np.ndarray, Float[np.ndarray, "B C"]]]:
        """Yield the numbers of the texts in each batch and their vectors, the longest texts first.

        Args:
            texts: the texts.
            prompt: as in `encode`.
            batch: as in `encode`; with the same texts, the same batches come in the same order.
            skip: number of batches at the begin that are left out.

        Raises:
            TypeError: as `encode`.
            ValueError: as `encode`.
        """
        require_texts(texts)
        before = self.prompt_text(prompt)
        rows = self._reader.tokens([before + text for text in texts])
        prompt_length = 0 if self._layout.include_prompt or not before else self._prompt_length(before)
        options = {"most": self.max_length, "multiple": self._runner.multiple, "types": self._reader.types}
        inputs = (
            (numbers, (part, np.full(len(part.ids), prompt_length, np.int32)))
            for numbers, part in islice(batches(rows, batch, **options), skip, None)
        )
        for numbers, vectors in self._runner(inputs):
            yield numbers, vectors[: len(numbers), : self.truncate_dim]

    def similarity(self, a: np.ndarray, b: np.ndarray) -> Float[np.ndarray, "N M"]:
        """Return the similarity of every vector of `a`, `(N, C)`, to every one of `b`, `(M, C)`.

        Distances are negative.

        Raises:
            ValueError: arrays that are not two lists of vectors of one width.
        """
        a, b = (np.asarray(vectors, np.float32) for vectors in (a, b))
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
            raise ValueError(f"a and b must be (N, C) and (M, C), got {a.shape} and {b.shape}")
        return SIMILARITIES[self.similarity_name](a, b)

    def prompt_text(self, prompt: str | None = None) -> str:
        """Return the text that `encode` puts before every text; `prompt` as there.

        Raises:
            ValueError: an unknown prompt.
        """
        name = self.default_prompt if prompt is None else prompt
        if not name:
            return ""
        require_prompt(name, self.prompts)
        return self.prompts[name]

    def _prompt_length(self, prompt: str) -> int:
        """Return the number of tokens that a prompt puts before every text, without the one that ends a text.

        As sentence-transformers does: the last one, if it was added to the text or is a special token with a name.
        """
        (encoding,) = self._reader.encodings([prompt], "prompt")
        is_end = encoding.special_tokens_mask[-1] or encoding.tokens[-1] in self._reader.named_tokens
        return len(encoding.ids) - int(bool(is_end))


def load_embedder(
    path: str | os.PathLike[str],
    *,
    extend: str | Extension | None = None,
    dtype: str = "float32",
    params: str = "float32",
    mesh: Mesh | None = None,
    ignore: str | Sequence[str] = (),
) -> Embedder:
    """Load an embedding model, whose vectors are those of sentence-transformers.

    Args:
        path: a folder of sentence-transformers, with modules.json; or a folder of a model, whose vector is then the
            mean of the states, or the last token's where the model generates text, and a warning says so.
        extend: as in `load`; `max_length` stays that of the folder until it is set.
        dtype: as in `load`; vectors are pooled in float32.
        params: as in `load`.
        mesh: mesh of the devices: texts are split over its axes `data`, `fsdp` and `sequence`, parameters as in `load`.
            None = the default device.
        ignore: as in `load`.

    Raises:
        ValueError: as `load`; a module that is not read; a setting that is not known; no model of texts.
    """
    layout = read_layout(Path(path))
    model, _ = load(layout.model, extend=extend, dtype=dtype, params=params, mesh=mesh, ignore=ignore)
    if not isinstance(model, Decoder):
        raise ValueError(
            f"{layout.model} must be a model of texts with one stack of layers, got a {type(model).__name__}"
        )
    reader = TextReader(layout.model, model.config, layout.max_length, lower_case=layout.lower_case)
    return Embedder(model, reader, layout, mesh)


def _width(width: int, after: Sequence[Dense | Normalize]) -> int:
    """Return the width of a vector after the linear layers.

    Raises:
        ValueError: a layer for vectors of another width.
    """
    for layer in (layer for layer in after if isinstance(layer, Dense)):
        inputs, outputs = layer.kernel.shape
        if inputs != width:
            raise ValueError(f"in_features of a Dense module must be {width}, the width before it, got {inputs}")
        width = outputs
    return width


def _vectors(modes: Sequence[str]) -> Run:
    """Return the function from a batch to vectors, pooled in these modes, which `Runner` compiles."""

    def run(model: Decoder, after: Sequence[Dense | Normalize], inputs: Any, execution: Execution) -> Array:
        batch, left_out = inputs
        states = model.states(batch.ids, attention_mask=batch.mask, type_ids=batch.types, execution=execution)
        x = pooled(modes, states, batch.mask, left_out)
        for step in after:
            x = dense(step, x) if isinstance(step, Dense) else unit_vectors(x)
        return x

    return run
