"""Texts as batches of token ids: cut to the longest length, sorted by length, padded on the right to few shapes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pejax._calls.kinds import shown
from pejax.interop.config import is_number, read_json
from pejax.interop.tokenizer import load_tokenizer
from pejax.interop.tokenizer_settings import folder_settings, named_tokens
from pejax.interop.tokenizer_trial import library_errors
from pejax.models import Execution, TransformerConfig

Text: TypeAlias = str | tuple[str, str]
"""A text, or a pair of texts that the model reads together."""

AT_ONCE = 1024
"""Texts that are tokenized together."""

SHORTEST = 16
"""Shortest padded length with no other one below it but 12."""

TYPED = ("BertTokenizer", "ElectraTokenizer")
"""Classes of transformers whose tokens have types, unless `model_input_names` says otherwise."""

BATCHED = ("data", "fsdp", "sequence")
"""Axes of a mesh that rows are split over; tokens are not, because lengths vary."""


class Tokens(NamedTuple):
    """The tokens of a text or of a pair.

    Attributes:
        ids: token ids, `(N,)`.
        types: types of the tokens: 1 in the second text of a pair, `(N,)`.
    """

    ids: np.ndarray
    types: np.ndarray


class Batch(NamedTuple):
    """Rows that a program reads together.

    Attributes:
        ids: token ids, `(B, T)`.
        mask: 1 = a token, 0 = padding after the last one, `(B, T)`.
        types: types of the tokens, `(B, T)`. None = the model has no types.
    """

    ids: Any
    mask: Any
    types: Any


class TextReader:
    """Converts texts to the tokens of a model, as transformers and sentence-transformers do.

    Attributes:
        tokenizer: the tokenizer of the folder.
        max_length: most tokens that are read of a text or a pair, special ones included; the rest is cut off.
        types: whether the model reads types of tokens.
        named_tokens: texts of the special tokens that tokenizer_config.json names.

    Args:
        folder: folder of the tokenizer.
        config: config of the model.
        max_length: see above. None = the least of tokenizer_config.json and the trained length of the model.
        lower_case: whether texts are lowered before anything else.
    """

    def __init__(
        self, folder: Path, config: TransformerConfig, max_length: int | None = None, *, lower_case: bool = False
    ) -> None:
        self.tokenizer = load_tokenizer(folder)
        if lower_case:
            _lower(self.tokenizer.library)
        path = folder / "tokenizer_config.json"
        settings = folder_settings(folder)
        self.vocab, self.padding = config.vocab, config.padding
        self.types = config.types > 1 and _has_types(settings)
        self.named_tokens = named_tokens(settings, str(path))
        self.side = settings.get("truncation_side") or _stored_side(folder / "tokenizer.json")
        if self.side not in ("left", "right"):
            raise ValueError(f"{path}: truncation_side must be left or right, got {self.side!r}")
        longest = settings.get("model_max_length")
        longest = config.length if longest is None else longest
        if not is_number(longest) or longest < 1:
            raise ValueError(f"{path}: model_max_length must be a number of at least 1, got {longest!r}"[:400])
        self.max_length = min(int(longest), config.length) if max_length is None else max_length

    @property
    def max_length(self) -> int:
        """Most tokens that are read of a text or a pair."""
        return self._max_length

    @max_length.setter
    def max_length(self, length: int) -> None:
        special = self.tokenizer.library.num_special_tokens_to_add(is_pair=True)
        if isinstance(length, bool) or not isinstance(length, int) or length <= special:
            rule = f"max_length must be an integer above {special}, the special tokens of a pair"
            raise ValueError(f"{rule}, got {shown(length)}")
        self._max_length = length

    def encodings(self, texts: Sequence[Text], name: str = "texts") -> Iterator[Any]:
        """Yield what the package `tokenizers` makes of each text: ids, types, offsets.

        Args:
            texts: texts, or pairs.
            name: name of the argument in errors.

        Raises:
            ValueError: a text without a token, one that the tokenizer cannot encode, or a token outside the vocabulary;
                a text with the padding token, where the model has no position for it.
        """
        library, place = self.tokenizer.library, 0
        library.enable_truncation(self.max_length, strategy="longest_first", direction=self.side)
        remaining = iter(texts)
        while part := [*islice(remaining, AT_ONCE)]:
            try:
                with library_errors(f"{name} must be such that the tokenizer can encode them, got"):
                    encodings = library.encode_batch(part)
            except TypeError:
                rule = f"{name}[{place}:{place + len(part)}] must be Unicode"
                raise ValueError(f"{rule}, got half of a surrogate pair in one of them") from None
            for number, encoding in enumerate(encodings, place):
                if not encoding.ids:
                    raise ValueError(f"{name}[{number}] must have at least one token, got {shown(texts[number])}")
                if max(encoding.ids) >= self.vocab:
                    rule = f"{name}[{number}] must have tokens below the vocabulary of the model, {self.vocab}"
                    raise ValueError(f"{rule}, got {max(encoding.ids)}")
                if isinstance(self.padding, int) and self.padding in encoding.ids:
                    token = encoding.tokens[encoding.ids.index(self.padding)]
                    rule = f"{name}[{number}] must not have the padding token, for which the model has no position"
                    raise ValueError(f"{rule}, got {token!r} in it")
                yield encoding
            place += len(part)

    def tokens(self, texts: Sequence[Text], name: str = "texts") -> list[Tokens]:
        """Return the tokens of each text; arguments and errors as those of `encodings`."""
        return [tokens_of(encoding) for encoding in self.encodings(texts, name)]


def _stored_side(file: Path) -> str:
    """Return the side on which tokenizer.json cuts texts, which counts where tokenizer_config.json has none."""
    truncation = read_json(file).get("truncation") if file.exists() else None
    return str(truncation.get("direction", "Right")).lower() if isinstance(truncation, Mapping) else "right"


def _has_types(settings: Mapping[str, Any]) -> bool:
    """Whether transformers gives the model types of tokens, by tokenizer_config.json."""
    names = settings.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    return str(settings.get("tokenizer_class", TYPED[0])).removesuffix("Fast") in TYPED


def _lower(library: Any) -> None:
    """Let a tokenizer of the package `tokenizers` lower texts before anything else."""
    from tokenizers.normalizers import Lowercase, Sequence

    own = [] if library.normalizer is None else [library.normalizer]
    library.normalizer = Sequence([Lowercase(), *own])


def tokens_of(encoding: Any) -> Tokens:
    """Return the tokens of one text, from what the package `tokenizers` makes of it."""
    return Tokens(np.asarray(encoding.ids, np.int32), np.asarray(encoding.type_ids, np.int32))


def require_texts(texts: object, name: str = "texts", *, pairs: bool = False) -> None:
    """Refuse what is no sequence of texts, or of texts and pairs where `pairs`.

    Raises:
        TypeError: naming the first entry that is another thing.
    """
    kinds = "strings or pairs of strings" if pairs else "strings"
    if isinstance(texts, str) or not isinstance(texts, Sequence | np.ndarray):
        raise TypeError(f"{name} must be a list of {kinds}, got {shown(texts)}")
    for number, text in enumerate(texts):
        is_pair = isinstance(text, tuple | list) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not isinstance(text, str) and not (pairs and is_pair):
            raise TypeError(f"{name}[{number}] must be one of {kinds}, got {shown(text)}")


def require_batch(batch: object) -> None:
    """Raise ValueError for a number of rows that is not at least 1."""
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch must be an integer of at least 1, got {shown(batch)}")


def padded_length(length: int, most: int) -> int:
    """Return 12, 16, 24, 32, 48, ...: the next power of two, or three quarters of it, but at most `most`."""
    power = max(SHORTEST, 1 << (length - 1).bit_length())
    return min(3 * power // 4 if length <= 3 * power // 4 else power, max(most, length))


def batches(
    rows: Sequence[Tokens], batch: int, *, most: int, multiple: int = 1, types: bool = False
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield the numbers of rows of similar lengths and their batch, whose last row is repeated until it is full.

    The longest rows come first, so that too little memory shows at once.

    Args:
        rows: tokens of each text.
        batch: most rows of a batch.
        most: longest length of a row.
        multiple: the number of rows is a multiple of it, the devices that rows are split over.
        types: whether the model reads types of tokens.

    Raises:
        ValueError: no rows in a batch.
    """
    require_batch(batch)
    order = sorted(range(len(rows)), key=lambda number: -len(rows[number].ids))
    for start in range(0, len(order), batch):
        numbers = order[start : start + batch]
        count = row_count(len(numbers), batch, multiple)
        chosen = [rows[number] for number in numbers]
        chosen += [chosen[-1]] * (count - len(chosen))
        length = padded_length(len(chosen[0].ids), most)
        pad = lambda arrays, length=length: np.stack([np.pad(array, (0, length - len(array))) for array in arrays])
        mask = pad([np.ones(len(row.ids), np.int32) for row in chosen])
        type_ids = pad([row.types for row in chosen]) if types else None
        yield np.asarray(numbers), Batch(pad([row.ids for row in chosen]), mask, type_ids)


def row_count(rows: int, batch: int, multiple: int) -> int:
    """Return the number of rows that a program is compiled for: the multiple of the devices times a power of two."""
    per_device = -(-rows // multiple)
    return multiple * min(1 << (per_device - 1).bit_length(), -(-batch // multiple))


Run: TypeAlias = Callable[[Any, Any, Any, Execution], Any]
"""Function `(model, after, inputs, execution) -> rows`."""


class Runner:
    """Runs a function of a model on batches, with the model's parameters where they are.

    Args:
        model: the model.
        run: the function; its rows are an array whose first axis is the batch.
        after: parameters of what comes after the model, a pytree of arrays.
        mesh: mesh of the devices. None = the default device.
    """

    def __init__(self, model: nnx.Module, run: Run, after: Any, mesh: Mesh | None) -> None:
        self.model = model
        sizes: Mapping[str, int] = {} if mesh is None else mesh.shape
        axes = tuple(axis for axis in BATCHED if axis in sizes)
        self.multiple = prod(sizes[axis] for axis in axes)
        heads = "tensor" if "tensor" in sizes else None
        execution = Execution() if mesh is None or mesh.size == 1 else Execution(mesh, batch=axes, heads=heads)
        graph, _ = nnx.split(model)
        whole, self._sharding = (
            None if mesh is None else NamedSharding(mesh, PartitionSpec(*entries)) for entries in ((), (axes,))
        )
        program = lambda state, after, inputs: run(nnx.merge(graph, state), after, inputs, execution)
        self._program = jax.jit(program, out_shardings=whole)
        self._after = after if whole is None else jax.device_put(after, whole)

    def __call__(self, inputs: Iterator[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield for each `(name, arrays)` the name and the result on the host, while the next one is computed."""
        state = nnx.state(self.model)
        waiting: list[tuple[Any, Any]] = []
        for name, arrays in inputs:
            placed = jax.device_put(arrays, self._sharding) if self._sharding is not None else arrays
            waiting.append((name, self._program(state, self._after, placed)))
            if len(waiting) > 1:
                yield _on_host(*waiting.pop(0))
        for name, result in waiting:
            yield _on_host(name, result)


def _on_host(name: Any, result: Any) -> tuple[Any, Any]:
    """Return the name, and the result as NumPy arrays."""
    return name, jax.tree.map(np.asarray, result)
