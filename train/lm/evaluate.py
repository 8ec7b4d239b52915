"""Perplexity of held-out text at lengths from half to sixteen times the trained length.

The same regions of text are read at every length N, cut into windows of N tokens; an incomplete last window is left
out. Beyond the trained length L three losses are compared: of all tokens; of the tokens with more than L tokens before
them in their window; and of these same tokens with only the last L tokens as context. The difference of the last two is
the gain from the longer context; a model that ignores it gains zero.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float
from rich.console import Console

from pejax.models import Execution
from train.data.text.loading import Corpus, evaluation_windows
from train.devices.mesh import EVALUATED, evaluation_execution, limit_launches, put_batch, replicated_sharding
from train.engine.numbers import PERPLEXITY, Number, mean
from train.engine.progress import Evaluating
from train.lm.config import TextConfig
from train.lm.results import BEYOND, GAIN, SLIDING, PerplexityResults

TOKENS_AT_ONCE = {"cpu": 2**12, "gpu": 2**17, "tpu": 2**17}
"""Tokens per evaluation batch and device."""

EVERY_WINDOW = 2**31
"""A number of windows that exceeds that of any text."""


class Readable(Protocol):
    """A language model in an evaluation: `train.lm.model.Language`, or a loaded one."""

    config: Any

    def losses(
        self, params: Any, ids: Any, segment_ids: Any = None, execution: Execution = Execution()
    ) -> Float[Array, "B T"]:
        """Return the cross-entropy of every token after the first, in nats."""
        ...

    def refusal(self, length: int) -> str:
        """Return why the encoding does not support a length, or an empty string if it does."""
        ...


def evaluate(
    language: Readable, corpus: Corpus, params: Any, *, step: int, mesh: Mesh, console: Console
) -> list[PerplexityResults]:
    """Return the perplexity at every evaluation length of the config.

    Args:
        language: the model.
        corpus: whose held-out documents are read.
        params: trained.
        step: step of the checkpoint, stored with the results.
        mesh: the batches are sharded over it.
        console: prints to the user.

    Raises:
        ValueError: no held-out document is as long as the longest length.
    """
    config = language.config
    longest, trained = max(config.lengths), config.length
    regions = evaluation_regions(config, corpus)
    refused = {length: language.refusal(length) for length in config.lengths}
    served = [length for length in config.lengths if not refused[length]]
    beyond, sliding = np.arange(trained, longest, config.eval_stride), None
    if max(served, default=0) <= trained:
        beyond = beyond[:0]
    per_region = len(beyond) * trained + sum((longest // length) * length for length in served)
    with Evaluating(console, len(regions) * per_region) as progress:
        reader = Reader(language.losses, params, mesh, progress)
        if len(beyond):
            contexts = np.stack([regions[:, at - trained + 1 : at + 2] for at in beyond], axis=1)
            sliding = reader.last(contexts)
        numbers = []
        for length in config.lengths:
            if refused[length]:
                measures = (PERPLEXITY, GAIN) if length > trained else (PERPLEXITY,)
                numbers += [Number(measure=measure, at=length, refused=refused[length]) for measure in measures]
            else:
                numbers += measure_length(reader, regions, length, trained, beyond, sliding)
    evaluation = PerplexityResults(
        name=config.pe + (f", from {config.init.rstrip('/').split('/')[-1]}" if config.init else ""),
        data=config.data, trained=trained, step=step, extend=config.extend, note=corpus.note, numbers=tuple(numbers),
        made_by={"data": corpus.identity},
    )  # fmt: skip
    return [evaluation]


def evaluation_regions(config: TextConfig, corpus: Corpus) -> np.ndarray:
    """Return the regions of held-out text that every length is evaluated on, `(regions, longest + 1)`.

    Raises:
        ValueError: no held-out document is as long as the longest length.
    """
    try:
        return evaluation_windows(corpus, max(config.lengths), config.eval_limit or EVERY_WINDOW)[0]
    except ValueError as refused:
        way = "" if config.windows == "contiguous" else " (--windows=contiguous reads across documents)"
        raise ValueError(f"eval_lengths: {refused}{way}") from None


class Reader:
    """Computes the losses of windows of tokens, in batches over the devices.

    Args:
        losses: `(params, ids, execution=...)` to the loss of every token after the first.
        params: trained.
        mesh: the batches are sharded over it.
        progress: called with the number of tokens read, and their length in words.
    """

    def __init__(
        self, losses: Callable[..., Any], params: Any, mesh: Mesh, progress: Callable[[float, str], None]
    ) -> None:
        self.params, self.mesh, self.progress = params, mesh, progress
        losses = partial(losses, execution=evaluation_execution(mesh))
        last = lambda params, ids: losses(params, ids)[:, -1]
        self._all, self._last = (
            limit_launches(jax.jit(f, out_shardings=replicated_sharding(mesh)), mesh) for f in (losses, last)
        )

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
        outputs = np.concatenate([np.asarray(part) for part in parts])[: len(flat)]
        return outputs.reshape(*lead, *outputs.shape[1:])


def measure_length(
    reader: Reader, regions: np.ndarray, length: int, trained: int, beyond: np.ndarray, sliding: np.ndarray | None
) -> list[Number]:
    """Return the numbers at one length.

    Args:
        reader: reader of the model.
        regions: token ids, `(regions, longest + 1)`.
        length: N, tokens.
        trained: L, tokens.
        beyond: the tokens compared with a sliding context, as indices of the tokens before them in a region.
        sliding: their losses with a sliding context, `(regions, len(beyond))`.
    """
    count = (regions.shape[1] - 1) // length
    windows = np.stack([regions[:, n * length : (n + 1) * length + 1] for n in range(count)], axis=1)
    losses = reader.all(windows).reshape(len(regions), count * length)
    numbers = [mean(PERPLEXITY, length, losses)]
    chosen = (beyond < count * length) & (beyond % length >= trained)
    if sliding is None or not chosen.any():
        return numbers
    full, short = losses[:, beyond[chosen]], sliding[:, chosen]
    others = mean(BEYOND, length, full), mean(SLIDING, length, short), mean(GAIN, length, short - full, log=False)
    return [
        *numbers,
        *(dataclasses.replace(number, outcomes=None) for number in others),
    ]  # no runs are compared by them
