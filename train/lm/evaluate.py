"""Perplexity of held-out text at lengths from half to sixteen times the trained one.

The same stretches of text are read at every length N, cut into windows of N tokens; a rest that fills none is left
out. Beyond the trained length L three numbers are set side by side: of all tokens; of the tokens that have more than L
before them in their window; and of those same tokens with the last L as their only context. The difference of the last
two is what the longer context is worth, and it cannot be won by ignoring it: that gives zero.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from train.data.text.loading import Corpus, evaluation_windows
from train.devices.mesh import EVALUATED, evaluation_execution, paced, put_batch, replicated
from train.engine.progress import Evaluating
from train.lm.config import Config
from train.lm.model import Language
from train.lm.results import Results, Row, estimate

TOKENS_AT_ONCE = {"cpu": 2**12, "gpu": 2**17, "tpu": 2**17}
"""Tokens of an evaluation batch on one device."""

EVERY_WINDOW = 2**31
"""More windows than any text has."""


def evaluate(language: Language, corpus: Corpus, params: Any, *, step: int, mesh: Mesh, console: Console) -> Results:
    """Return the perplexity at every length the config asks for.

    Args:
        language: the model.
        corpus: whose held-out documents are read.
        params: trained.
        step: of the checkpoint, for the record.
        mesh: that the batches are split over.
        console: of the user.

    Raises:
        ValueError: no held-out document is as long as the longest length.
    """
    config = language.config
    longest, trained = max(config.lengths), config.length
    regions = stretches(config, corpus)
    refused = {length: language.refusal(length) for length in config.lengths}
    served = [length for length in config.lengths if not refused[length]]
    beyond, sliding = np.arange(trained, longest, config.eval_stride), None
    if max(served, default=0) <= trained:
        beyond = beyond[:0]
    per_region = len(beyond) * trained + sum((longest // length) * length for length in served)
    with Evaluating(console, len(regions) * per_region) as progress:
        reader = Reader(language, params, mesh, progress)
        if len(beyond):
            contexts = np.stack([regions[:, at - trained + 1 : at + 2] for at in beyond], axis=1)
            sliding = reader.last(contexts)
        rows = [
            Row(length, refused=refused[length])
            if refused[length]
            else measure(reader, regions, length, trained, beyond, sliding)
            for length in config.lengths
        ]
    return Results(
        name=config.pe + (f", from {config.init.rstrip('/').split('/')[-1]}" if config.init else ""),
        data=config.data, trained=trained, step=step, extend=config.extend, note=corpus.note, rows=tuple(rows),
    )  # fmt: skip


def stretches(config: Config, corpus: Corpus) -> np.ndarray:
    """Return the stretches of held-out text that every length is evaluated on, `(regions, longest + 1)`.

    Raises:
        ValueError: no held-out document is as long as the longest length.
    """
    try:
        return evaluation_windows(corpus, max(config.lengths), config.eval_limit or EVERY_WINDOW)[0]
    except ValueError as refused:
        raise ValueError(f"eval_lengths: {refused}") from None


class Reader:
    """Losses of windows of tokens, in batches over the devices.

    Args:
        language: the model.
        params: trained.
        mesh: that the batches are split over.
        progress: is told the tokens that were read, and at which length.
    """

    def __init__(self, language: Language, params: Any, mesh: Mesh, progress: Callable[[float, str], None]) -> None:
        self.params, self.mesh, self.progress = params, mesh, progress
        losses = partial(language.losses, execution=evaluation_execution(mesh))
        last = lambda params, ids: losses(params, ids)[:, -1]
        self._all, self._last = (paced(jax.jit(f, out_shardings=replicated(mesh)), mesh) for f in (losses, last))

    def all(self, windows: np.ndarray) -> np.ndarray:
        """Return the loss of every token after the first of windows `(..., N + 1)`: `(..., N)`."""
        return self._read(self._all, windows)

    def last(self, windows: np.ndarray) -> np.ndarray:
        """Return the loss of the last token of windows `(..., N + 1)`: `(...)`."""
        return self._read(self._last, windows)

    def _read(self, read: Callable[[Any, Any], Any], windows: np.ndarray) -> np.ndarray:
        lead, size = windows.shape[:-1], windows.shape[-1]
        flat = windows.reshape(-1, size)
        most = TOKENS_AT_ONCE[self.mesh.devices.flat[0].platform] // size
        batch = self.mesh.size * min(max(1, most), -(-len(flat) // self.mesh.size))
        padded = np.pad(flat, ((0, -len(flat) % batch), (0, 0)))
        parts = []
        for start in range(0, len(flat), batch):
            parts.append(read(self.params, put_batch(padded[start : start + batch], self.mesh, axes=EVALUATED)))
            self.progress(min(batch, len(flat) - start) * (size - 1), f"{size - 1} tokens")
        found = np.concatenate([np.asarray(part) for part in parts])[: len(flat)]
        return found.reshape(*lead, *found.shape[1:])


def measure(
    reader: Reader, regions: np.ndarray, length: int, trained: int, beyond: np.ndarray, sliding: np.ndarray | None
) -> Row:
    """Return what one length gives.

    Args:
        reader: of the model.
        regions: stretches of text, `(regions, longest + 1)`.
        length: N, tokens.
        trained: L, tokens.
        beyond: the tokens compared with a sliding context, by the place of the token before them in a region.
        sliding: their losses, `(regions, len(beyond))`.
    """
    count = (regions.shape[1] - 1) // length
    windows = np.stack([regions[:, n * length : (n + 1) * length + 1] for n in range(count)], axis=1)
    losses = reader.all(windows).reshape(len(regions), count * length)
    chosen = (beyond < count * length) & (beyond % length >= trained)
    if sliding is None or not chosen.any():
        return Row(length, everything=estimate(losses))
    full, short = losses[:, beyond[chosen]], sliding[:, chosen]
    return Row(length, estimate(losses), estimate(full), estimate(short), estimate(short - full))
