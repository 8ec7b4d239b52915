"""Perplexity of a language model on a stream of text through a rolling cache, beside the cache that keeps everything.

    python -m benchmarks.streaming --model=SmolLM2-135M-Instruct.Q4_1.gguf
    python -m benchmarks.streaming --model=DIR_OR_GGUF --tokens=16384 --slots=1024 --first=0,1,4,16 --data=file:book.txt

The stream is the beginning of the held-out text. A block of tokens goes through the cache at a time; each sees what it
would see alone, the first M tokens and the last `slots - M`. Prints a table: the perplexity of all tokens and of those
after the first `slots`, where the rolling caches have dropped some.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    prepare_cpu()

import argparse
import functools
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from pejax import TokenPositions, interop
from pejax.models import Decoder, Rolling
from train.data.text.loading import load_text
from train.engine.stopping import report_errors
from train.tune.subject import decoder_source, retokenized_corpus


class Row(NamedTuple):
    """A cache, and what was measured with it.

    Attributes:
        cache: its name.
        slots: number of slots.
        whole: perplexity of all tokens.
        late: perplexity of the tokens after the first `slots` of the rolling caches.
        seconds: time of the stream, compilation included.
    """

    cache: str
    slots: int
    whole: float
    late: float
    seconds: float


@functools.partial(jax.jit, static_argnames="static", donate_argnames="cache")
def add_block(static: Any, params: Any, cache: Any, start: Array, ids: Int[Array, "1 T"]) -> tuple[Any, Array]:
    """Return the cache with the first T - 1 ids added, and the loss of each id after the first.

    The parameters of the encoding are those of the trained length, as in one forward pass over a text as long.
    """
    model: Decoder = nnx.merge(static, params)
    tokens = TokenPositions(start + jnp.arange(ids.shape[1] - 1, dtype=jnp.int32))
    logits, cache = model.cached(ids[:, :-1], cache, tokens=tokens, extent=model.config.length)
    likelihoods = jax.nn.log_softmax(logits)
    return cache, -jnp.take_along_axis(likelihoods, ids[:, 1:, None], axis=-1)[0, :, 0]


def losses(model: Decoder, ids: Int[np.ndarray, " T"], kept: int | Rolling, block: int) -> Float[np.ndarray, " T-1"]:
    """Return the loss of every token after the first, given those before it that the cache keeps.

    Args:
        model: a decoder.
        ids: the stream.
        kept: number of slots of a cache that keeps everything, or what a rolling cache keeps.
        block: number of tokens that go through the cache at a time.
    """
    static, params = nnx.split(model)
    cache, found = model.stack.empty_cache(1, kept), []
    for start in range(0, len(ids) - 1, block):
        part = jnp.asarray(ids[None, start : start + block + 1])
        cache, loss = add_block(static, params, cache, jnp.asarray(start, jnp.int32), part)
        found.append(np.asarray(loss, np.float64))
    return np.concatenate(found)


def measure(model: Decoder, ids: Int[np.ndarray, " T"], name: str, kept: int | Rolling, options: Any) -> Row:
    """Return the row of one cache."""
    began = time.perf_counter()
    found = losses(model, ids, kept, options.block)
    slots = kept if isinstance(kept, int) else kept.slots
    perplexity = lambda part: float(np.exp(np.mean(part)))
    return Row(name, slots, perplexity(found), perplexity(found[options.slots :]), time.perf_counter() - began)


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.streaming", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, metavar="DIR_OR_GGUF", help="a decoder with its tokenizer")
    parser.add_argument("--data", default="topics", help="text, as train.lm takes it (default topics)")
    parser.add_argument("--tokens", type=int, default=4096, help="length of the stream (default 4096)")
    parser.add_argument("--slots", type=int, default=512, help="M + N of the rolling caches (default 512)")
    parser.add_argument("--first", default="0,4", metavar="M,M", help="first tokens that are kept (default 0,4)")
    parser.add_argument("--block", type=int, default=256, help="tokens at a time (default 256)")
    options = parser.parse_args(argv)
    options.first = [int(one) for one in options.first.split(",")]
    if not 0 < options.block <= options.slots < options.tokens:
        raise ValueError(f"block, slots and tokens must ascend from 1, got {options.block}, {options.slots} and "
                         f"{options.tokens}")  # fmt: skip
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    with report_errors(ValueError, TypeError, OSError):
        options = read_options(argv)
        config, _ = decoder_source(options.model)
        text = retokenized_corpus(load_text(options.data), options.model, config.vocab).held_out[0]
        if len(text) <= options.tokens:
            raise ValueError(f"tokens must be below the {len(text)} of the text, got {options.tokens}")
        ids = np.asarray(text[: options.tokens + 1], np.int32)
        model, _ = interop.load(options.model)
        if not isinstance(model, Decoder):
            raise ValueError(f"model must be a decoder, got a {type(model).__name__}")
        caches: dict[str, int | Rolling] = {"everything": options.tokens}
        for first in options.first:
            for renumber in (True, False) if first else (True,):
                name = (
                    f"the first {first} and the last {options.slots - first}" if first else f"the last {options.slots}"
                )
                counted = (", counted anew" if renumber else ", own positions") if first else ""
                caches[name + counted] = Rolling(options.slots - first, first, renumber)
        print(
            f"| cache keeps | slots | perplexity | after {options.slots} tokens | seconds |\n|---|---:|---:|---:|---:|"
        )
        for name, kept in caches.items():
            row = measure(model, ids, name, kept, options)
            print(f"| {name} | {row.slots:,} | {row.whole:.2f} | {row.late:.2f} | {row.seconds:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
