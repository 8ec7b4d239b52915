"""Encodings as trained: their parameters after small trainings, for pictures that initial ones say nothing of."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from pejax._naming.make import make_encoding
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params

STORED = Path(__file__).parent / "trained.json"
"""Parameters after training, written by `docs/make_trained_encodings.py`."""


class Training(NamedTuple):
    """A small training of models whose only encoding is the one that is drawn.

    Attributes:
        program: name of the trainer, `python -m train.PROGRAM`.
        data: data that the models were trained on, in words.
        dims: dims of the models.
        specs: spec of each encoding, by name.
    """

    program: str
    data: str
    dims: Dims
    specs: Mapping[str, str]

    def encoding(self, name: str) -> Encoding:
        """Return the encoding that was trained, or that of this spec if none was."""
        return make_encoding(self.specs.get(name, name), self.dims)

    def params(self, name: str) -> Params | None:
        """Return the stored parameters of an encoding, those of the first layer where each layer has its own.

        None where nothing was trained.
        """
        if name not in self.specs:
            return None
        stored = json.loads(STORED.read_text(encoding="utf-8"))[self.program][name]
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), stored, is_leaf=lambda x: not isinstance(x, dict))

    def label(self, name: str) -> str:
        """Return the name of an encoding in a title."""
        return f"{name}, trained on {self.data}"


IMAGES = Training(
    "vit",
    "Fashion-MNIST",
    Dims(heads=4, head_dim=16, axes=2, extent=(7, 7)),
    {
        "t5": "t5",
        "kerple": "kerple",
        "fire": "fire",
        "cpb": "cpb(hidden=32, share='model')",
    },
)
TEXT = Training(
    "lm",
    "Shakespeare",
    Dims(heads=4, head_dim=8, extent=32, causal=True),
    {name: name for name in ("t5", "kerple", "fire", "learned", "shaw", "transformer_xl")},
)
