"""A loaded language model as trainers and measurements take it: split into a definition and parameters."""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Int

from pejax import interop
from pejax.interop.gguf_parts import part_paths
from pejax.interop.source_files import find_gguf, open_source
from pejax.models import Decoder, TransformerConfig
from train.data.text.loading import Corpus
from train.data.text.tokenizers import Library
from train.lm.model import DecoderSplit


def decoder_source(path: str) -> tuple[TransformerConfig, interop.Source]:
    """Return the config of a decoder and its source, read without the weights.

    Raises:
        ValueError: a model that `pejax.interop.load` refuses, or one that is not a decoder with a head.
    """
    source, _ = open_source(Path(path))
    config = source.config
    if not isinstance(config, TransformerConfig) or not config.causal or config.head is None:
        raise ValueError(f"model must be a decoder with a head, got {source.config_json.get('model_type')} in {path}")
    return config, source


def model_digest(path: str) -> str:
    """Return a digest of the config of a model and of the files that its weights are in.

    Raises:
        ValueError: as `decoder_source`.
    """
    _, source = decoder_source(path)
    folder, gguf = Path(path), find_gguf(Path(path))
    names = sorted({tensor.file for tensor in source.tensors.values()})
    files = part_paths(gguf) if gguf else [folder / name for name in names]
    digest = hashlib.sha256(b"" if gguf else json.dumps(source.config_json, sort_keys=True).encode())
    for file in files:
        with file.open("rb") as weights:
            digest.update(hashlib.file_digest(weights, "sha256").digest())
    return digest.hexdigest()[:16]


class Loaded(DecoderSplit):
    """A decoder from a folder or a GGUF file.

    Args:
        path: path of the model.
        extend: an extension of its encodings, or "none".
        dtype: type of the computation.
        mesh: the devices that have its parameters.

    Raises:
        ValueError: a model that `pejax.interop.load` refuses, or one that is not a decoder with a head.
    """

    def __init__(self, path: str, extend: str, dtype: str, mesh: Mesh | None = None) -> None:
        decoder_source(path)
        module, self.source = interop.load(path, extend=None if extend == "none" else extend, dtype=dtype, mesh=mesh)
        model = cast(Decoder, module)  # `decoder_source` refused all others
        self.config = model.config
        self.loaded = nnx.to_pure_dict(nnx.state(model))
        super().__init__(lambda rngs: Decoder(self.config, rngs=rngs))

    def ends(self, params: Any, ids: Int[Array, "B T_1"], count: int) -> Int[Array, "B count"]:
        """Return the most probable tokens in place of the last ones, each given all tokens before it."""
        model = self.model(params)
        return jnp.argmax(model.logits(model.states(ids[:, :-1])[:, -count:]), axis=-1)


def retokenized_corpus(corpus: Corpus, path: str, vocab: int) -> Corpus:
    """Return a corpus of bytes in the tokens of a model.

    Args:
        corpus: tokenized as bytes.
        path: path of the model.
        vocab: number of tokens that the model knows.

    Raises:
        ValueError: the model has no tokenizer, the corpus has another one, or a token is not one of the model.
    """
    if corpus.tokenizer.identity != "bytes":
        raise ValueError(f"data must be given without a tokenizer, that of the model is used; got {corpus.identity}")
    library = Library(interop.load_tokenizer(path).library, Path(path).name)

    def encode(documents: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        return library.encode_all([corpus.tokenizer.decode(ids) for ids in documents])

    train, held_out = encode(corpus.train), encode(corpus.held_out)
    largest = max(int(np.max(ids)) for ids in (*train, *held_out) if len(ids))
    if largest >= vocab:
        raise ValueError(f"the tokens of {path} must be below its vocabulary of {vocab}, got {largest}")
    note = corpus.note.removesuffix("; bytes, vocabulary 256")
    identity = f"{corpus.identity.removesuffix('bytes')}{library.identity}"
    return corpus._replace(train=train, held_out=held_out, tokenizer=library, note=note, identity=identity)
