"""The model that goes on with a text, and its tokenizer: of a folder from Hugging Face, a GGUF file, or a run."""

import codecs
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
from flax import nnx

from pejax import interop
from pejax.interop.tokenizer import until
from pejax.models import Decoder
from train.data.text.loading import load_text
from train.data.text.tokenizers import Bytes, Library
from train.engine.stored_config import is_run, program_of
from train.generate.options import GenerateOptions
from train.lm.config import Config
from train.runs import load_run


class Reader(Protocol):
    """Converts text to token ids, and ids to text as they come; an `interop.Tokenizer` does."""

    @property
    def eos(self) -> tuple[int, ...]:
        """Ids of the tokens that end a text."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...

    def stream(self, ids: Iterable[int], *, stop: Sequence[str | int] = ()) -> Iterator[str]:
        """Return the text of ids in pieces, up to the first of these ids and texts."""
        ...


class ByteReader:
    """Converts text to the bytes of its UTF-8, which have no end of a text among them."""

    eos: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Return the bytes of a text."""
        return [*text.encode()]

    def stream(self, ids: Iterable[int], *, stop: Sequence[str | int] = ()) -> Iterator[str]:
        """Return the text of bytes in pieces of whole characters; invalid UTF-8 becomes U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        end_ids = {end for end in stop if not isinstance(end, str)}

        def pieces() -> Iterator[str]:
            for byte in takewhile(lambda byte: byte not in end_ids, ids):
                yield decoder.decode(bytes([byte]))
            yield decoder.decode(b"", final=True)

        return until(filter(None, pieces()), [end for end in stop if isinstance(end, str)])


class Subject(NamedTuple):
    """A loaded model.

    Attributes:
        model: the model.
        reader: its tokenizer.
        name: name of its kind, for the first line.
    """

    model: Decoder
    reader: Reader
    name: str


def model_folder(model: str) -> str:
    """Return the folder or file of a model: of a run of train.tune the one that it wrote, of others what is given."""
    folder = Path(model)
    return str(folder / "model") if is_run(folder) and program_of(folder) == "tune" else model


def open_model(options: GenerateOptions) -> Subject:
    """Load the model that the options name.

    Raises:
        ValueError: a model that cannot be loaded or is no decoder, or an option of runs with another model.
    """
    if is_run(Path(options.model)):
        return _of_run(options)
    for name in ("data", "pe"):
        if value := getattr(options, name):
            raise ValueError(f"{name} must be given with a run of train.lm alone, got {value!r} with {options.model}")
    reader = interop.load_tokenizer(options.model)
    extend = options.extend or None
    model, source = interop.load(options.model, extend=extend, dtype=options.dtype, params=options.params)
    return Subject(_decoder(model), reader, str(source.config_json["model_type"]))


def _of_run(options: GenerateOptions) -> Subject:
    """Load the model of a run of train.lm, with the tokenizer of its data."""
    if options.params != "float32":
        raise ValueError(f"params must be float32 with a run, whose weights are, got {options.params!r}")
    run = load_run(options.model, data=options.data, pe=options.pe)
    model = _decoder(run.model)
    if not isinstance(run.config, Config):
        raise ValueError(f"the model must be that of train.lm, got a run of {type(run.config).__module__}")
    tokenizer = load_text(run.config.data, run.config.validation, run.config.windows).tokenizer
    config = dataclasses.replace(model.config.extended(options.extend or None), dtype=options.dtype)
    if config != model.config:
        state = nnx.state(model)
        model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
        nnx.update(model, state)
    name = f"step {run.step:,} of {Path(options.model).name}"
    if isinstance(tokenizer, Library):
        return Subject(model, interop.Tokenizer(tokenizer.tokenizer), name)
    if isinstance(tokenizer, Bytes):
        return Subject(model, ByteReader(), name)
    raise ValueError(f"the tokenizer of a run must be bytes or of the package tokenizers, got {tokenizer.identity}")


def _decoder(model: nnx.Module) -> Decoder:
    """Return the model, or raise ValueError if it is no decoder."""
    if not isinstance(model, Decoder):
        raise ValueError(f"the model must be a decoder, got a {type(model).__name__}")
    return model


def about(subject: Subject) -> str:
    """Return the description of a loaded model, in one line."""
    model = subject.model
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    encodings = {str(layer.attention.pe) for layer in model.config.layers}
    positions, context = " and ".join(sorted(encodings)), f"context of {model.config.length:,} tokens"
    return f"{subject.name} · {count:,} parameters · {positions} · {context}"
