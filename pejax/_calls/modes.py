"""The modes of JAX in which the code of this package runs."""

import contextlib
from typing import Any

import jax


def own_modes() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which arrays of two ranks broadcast: the mode that forbids it checks the code of its user."""
    forbids = jax.config.jax_numpy_rank_promotion != "allow"
    return jax.numpy_rank_promotion("allow") if forbids else contextlib.nullcontext()
