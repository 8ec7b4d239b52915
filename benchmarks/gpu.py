"""Attention and rotation on an NVIDIA GPU, ours beside torch FlexAttention, SDPA and cuDNN: time and memory.

    python -m benchmarks.gpu [--rounds 15] [--toy]

Every round times each way in turn, several launches at a time; what counts is the median of the rounds' ratios to the
first way. All in bfloat16, causal, heads of 64 channels, as many sequences as make 32,768 tokens. Without a GPU it says
so and stops.
"""

import argparse
import functools
import math
import os
from collections.abc import Callable, Sequence

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch needs some of the memory too

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from benchmarks import peers_gpu
from benchmarks.report import Column, column_of, machine, table
from benchmarks.timing import Call, Maker, Say, forward_and_backward, side_by_side
from pejax import Dims, adapt, attention_hooks, dot_product_attention, make_encoding, rope_frequencies
from pejax._ops.phases import exact_cos_sin
from pejax._ops.rotary import rotate_pairs

HEADS, DIM, TOKENS = 16, 64, 32768
LENGTHS = (2048, 8192, 32768)
LONG = (32768, 65536, 131072)
OURS = {
    "pejax kernels, no bias": ("none", "gpu", False),
    "pejax kernels, ALiBi": ("alibi", "gpu", False),
    "pejax kernels, ALiBi, slopes learned": ("alibi", "gpu", True),
    "pejax kernels, T5": ("t5", "gpu", False),
    "pejax kernels, T5, table learned": ("t5", "gpu", True),
    "pejax folded into cuDNN, ALiBi": ("alibi", "cudnn", False),
    "pejax cuDNN, no bias": ("none", "cudnn", False),
}
"""Encoding, implementation, and whether its parameters get gradients."""


def queued(function: Callable, operands: Sequence, launches: int) -> Call:
    """Return the way that queues a compiled function several times and waits once."""
    compiled = jax.jit(function)

    def call() -> object:
        for _ in range(launches):
            result = compiled(*operands)
        return jax.block_until_ready(result)

    return call


def drawn(length: int) -> tuple[np.ndarray, ...]:
    """Return q, k, v and the cotangent of the output."""
    shape = (4, max(1, TOKENS // length), length, HEADS, DIM)
    return tuple(np.random.default_rng(0).standard_normal(shape, np.float32))


def program(length: int, spec: str, implementation: str | None, backward: bool, learned: bool) -> tuple:
    """Return a function of q, k, v, the cotangent and an encoding's parameters, and those parameters."""
    dims = Dims(HEADS, DIM, extent=length, causal=True)
    encoding = make_encoding(spec, dims)
    params = encoding.init(jax.random.key(0))
    params = adapt(encoding, params, length)

    def forward(q: Array, k: Array, v: Array, params: dict) -> Array:
        tokens = jnp.arange(length, dtype=jnp.int32)
        hooks = attention_hooks(encoding, params)
        return dot_product_attention(q, k, v, positions=tokens, causal=True, implementation=implementation, hooks=hooks)  # pyright: ignore

    def both(q: Array, k: Array, v: Array, cotangent: Array, params: dict) -> tuple:
        if learned:
            return forward_and_backward(forward)(cotangent, q, k, v, params)
        return forward_and_backward(lambda q, k, v: forward(q, k, v, params))(cotangent, q, k, v)

    return (both if backward else lambda q, k, v, _, params: forward(q, k, v, params)), params


def ours(length: int, backward: bool, spec: str, implementation: str, learned: bool, launches: int) -> Call:
    """Return our attention."""
    function, params = program(length, spec, implementation, backward, learned)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in drawn(length)]
    return queued(function, (*arrays, params), launches)


def fused(length: int, backward: bool, launches: int) -> Call:
    """Return what JAX has without a bias."""
    attend = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")
    q, k, v, cotangent = (jnp.asarray(x, jnp.bfloat16) for x in drawn(length))
    if backward:
        return queued(forward_and_backward(attend), (cotangent, q, k, v), launches)
    return queued(attend, (q, k, v), launches)


def compared(makers: dict[str, Maker], launches: int, rounds: int, say: Say) -> Column:
    """Time ways that launch several times a call."""
    timed = side_by_side(makers, rounds, say)
    one = {name: [seconds / launches for seconds in each] for name, each in timed.seconds.items()}
    return column_of(timed._replace(seconds=one))


def attention_column(length: int, backward: bool, rounds: int, say: Say) -> Column:
    """Time all ways of attention at one length."""
    launches = max(1, 32768 // length)
    makers = {
        name: functools.partial(ours, length, backward, *way, launches)
        for name, way in OURS.items()
        if backward or not way[-1]
    }
    makers["jax.nn cuDNN, no bias"] = functools.partial(fused, length, backward, launches)
    return compared(makers | peers_gpu.attention(drawn(length), backward, launches), launches, rounds, say)


def memory_column(length: int) -> Column:
    """Return temporary bytes of forward and backward, over those of q, k, v and output."""
    shape = jax.ShapeDtypeStruct((1, length, HEADS, DIM), jnp.bfloat16)
    cells, notes = {}, []
    for name, (spec, implementation, learned) in OURS.items():
        function, params = program(length, spec, implementation, True, learned)
        try:
            compiled = jax.jit(function).lower(*(shape,) * 4, params).compile()
            jax.block_until_ready(compiled(*(jnp.zeros(shape.shape, shape.dtype),) * 4, params))
        except Exception as failure:  # out of memory has many types; the other rows still count
            notes.append(f"{name}: {' '.join(str(failure).split())[:120]}")
        else:
            temporary = compiled.memory_analysis().temp_size_in_bytes  # pyright: ignore[reportOptionalMemberAccess]
            cells[name] = f"{temporary / (4 * math.prod(shape.shape) * shape.dtype.itemsize):.2f}"
    return Column(cells, notes)


def rotation_column(length: int, rounds: int, say: Say) -> Column:
    """Time the rotation of q and k beside a copy of both, which reads and writes as many bytes."""
    rng, launches = np.random.default_rng(0), 20
    q, k = (rng.standard_normal((TOKENS // length, length, heads, 128), np.float32) for heads in (32, 8))
    positions = jnp.arange(length, dtype=jnp.int32)
    cos, sin = (x[:, None] for x in exact_cos_sin(positions, jnp.asarray(rope_frequencies(128))))

    def way(function: Callable) -> Maker:
        return lambda: queued(function, [*(jnp.asarray(x, jnp.bfloat16) for x in (q, k)), cos, sin], launches)

    def by_xla(pairing: str) -> Callable:
        return lambda q, k, cos, sin: tuple(rotate_pairs(x, cos, sin, pairing=pairing) for x in (q, k))

    makers = {"copy of q and k": way(lambda q, k, cos, sin: (-q, -k))}
    makers |= {f"pejax, {pairing}": way(by_xla(pairing)) for pairing in ("half", "interleaved")}
    return compared(makers | peers_gpu.rotation(q, k, launches), launches, rounds, say)


def show(title: str, columns: dict[str, Column]) -> None:
    """Print one table."""
    kept = [(name, {"cells": column.cells, "notes": column.notes}) for name, column in columns.items()]
    print(f"\n{table(title, kept, 'way')}", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15, help="of each comparison (default 15)")
    parser.add_argument("--toy", action="store_true", help="the shortest length alone, one round")
    chosen = parser.parse_args(argv)
    if jax.default_backend() != "gpu":
        print(f"benchmarks.gpu measures NVIDIA GPUs, and JAX sees none: its backend is {jax.default_backend()}.")
        return 0
    print(machine())
    rounds, lengths, long = (1, LENGTHS[:1], LONG[:1]) if chosen.toy else (chosen.rounds, LENGTHS, LONG)
    say = lambda what, share: None
    named = lambda lengths, column: {f"L = {length:,}": column(length) for length in lengths}
    for backward, title in ((False, "forward"), (True, "forward and backward")):
        timed = functools.partial(attention_column, backward=backward, rounds=rounds, say=say)
        show(f"Causal attention, bfloat16, {title}", named(lengths, timed))
    show("Temporary bytes of forward and backward, over q, k, v and output", named(long, memory_column))
    show("Rotation of q and k", named(lengths, functools.partial(rotation_column, rounds=rounds, say=say)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
