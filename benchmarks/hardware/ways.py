"""The ways that are timed: ours, JAX's and torch's, each made in a process of its own, which gives a sample at a time.

All of attention is causal, in bfloat16, heads of 64 channels, as many sequences as make 32,768 tokens. A way compiles
first, without arrays; these are drawn when its turn comes.
"""

import functools
import gc
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from benchmarks.hardware import peers, programs
from benchmarks.hardware.outcomes import BEFORE
from benchmarks.hardware.peers import Queue, Start
from benchmarks.operands import Sizes
from benchmarks.timing import forward_and_backward
from pejax import Dims, adapt, attention_hooks, dot_product_attention, init_params, make_encoding, rope_frequencies
from pejax._ops.phases import exact_cos_sin
from pejax._ops.rotary import rotate_pairs

HEADS, DIM, TOKENS = 16, 64, 32768
OURS = {
    "pejax kernels, no bias": ("none", "gpu", False),
    "pejax kernels, ALiBi": ("alibi", "gpu", False),
    "pejax kernels, ALiBi, slopes learned": ("alibi(learned=True)", "gpu", True),
    "pejax kernels, T5": ("t5", "gpu", False),
    "pejax kernels, T5, table learned": ("t5", "gpu", True),
    "pejax kernels, cpb": ("cpb", "gpu", False),
    "pejax kernels, cpb, network learned": ("cpb", "gpu", True),
    "pejax folded into cuDNN, ALiBi": ("alibi", "cudnn", False),
    "pejax cuDNN, no bias": ("none", "cudnn", False),
    "pejax on Mosaic GPU, no bias": ("none", "mosaic_gpu", False),
    "pejax on Mosaic GPU, ALiBi": ("alibi", "mosaic_gpu", False),
    "pejax on Mosaic GPU, T5": ("t5", "mosaic_gpu", False),
    "pejax on Mosaic GPU, T5, table learned": ("t5", "mosaic_gpu", True),
}
"""Encoding, implementation, and whether its parameters get gradients."""

FUSED = "jax.nn cuDNN, no bias"
COPY = "copy of q and k"
STEP, UNTUNED = "pejax", "pejax, products by cuBLAS, not tuned"
TUNING = {STEP: {"xla_gpu_autotune_level": 4}, UNTUNED: {"xla_gpu_enable_triton_gemm": False}}
"""XLA's flags of the steps. What it tunes, it times, which it cannot where the GPU is absent."""

GPT2_SMALL = Sizes(layers=12, width=768, heads=12, batch=8, length=1024, vocab=50257)
TOY = Sizes(layers=1, width=16, heads=2, batch=2, length=16, vocab=16)

SAMPLE = 0.03
"""Seconds that a sample takes at least, so that waiting for it is little of it."""

HELD: dict[str, tuple[Queue, int]] = {}
"""The way whose turn it is, and how many launches make a sample; by its name."""


def make(column: str, arguments: dict[str, Any], way: str, only_compile: bool = False) -> dict[str, Any]:
    """Make a way: compile it, and unless that is all, draw its arrays and call it until it has settled.

    Args:
        column: "attention", "rotation" or "step".
        arguments: arguments of the function of this name.
        way: its name among those of the column, with a prefix in the processes of an earlier checkout.
        only_compile: leave it in the caches for the process that times it. torch's ways are called for that once.
    """
    begun = time.perf_counter()
    start = WAYS[column](**arguments)[way.removeprefix(BEFORE)]()
    if only_compile and not way.startswith("torch"):
        return {"outcome": "made", "message": f"compiled in {time.perf_counter() - begun:.1f} s"}
    queue = start()
    queue(1)
    took = time.perf_counter() - begun
    if not only_compile:
        queue(2)
        began = time.perf_counter()
        queue(2)
        launches = max(1, min(200, math.ceil(2 * SAMPLE / (time.perf_counter() - began))))
        HELD[way] = queue, launches
    return {"outcome": "made", "message": f"first call {took:.1f} s"}


def sample(way: str) -> dict[str, Any]:
    """Return the seconds of one launch, from as many as take long enough, after one that is not counted."""
    if way not in HELD:
        return {"outcome": "lost"}
    queue, launches = HELD[way]
    queue(1)
    begun = time.perf_counter()
    queue(launches)
    return {"outcome": "measured", "seconds": (time.perf_counter() - begun) / launches}


def forget(way: str) -> dict[str, Any]:
    """Let go of the arrays of a way."""
    HELD.pop(way, None)
    gc.collect()
    return {"outcome": "made"}


def by_jax(function: Callable, *operands: Any) -> Start:
    """Compile a function for shapes and arrays; arrays in the place of shapes are drawn when the way starts."""
    compiled = programs.compiled(function, *operands)
    draws = {x: _draw(x) for x in jax.tree.leaves(operands) if isinstance(x, jax.ShapeDtypeStruct)}

    def start() -> Queue:
        drawn = lambda x: draws[x]() if isinstance(x, jax.ShapeDtypeStruct) else programs.put(x)
        arrays = jax.tree.map(drawn, operands)

        def queue(launches: int) -> Any:
            for _ in range(launches):
                result = compiled(*arrays)
            return jax.block_until_ready(result)

        return queue

    return start


@functools.cache
def _draw(shape: jax.ShapeDtypeStruct) -> Callable[[], Array]:
    seed = np.uint32(len(shape.shape))
    draw = programs.compiled(lambda seed: jax.random.normal(jax.random.key(seed), shape.shape, shape.dtype), seed)
    return lambda: draw(programs.put(seed))


def program(length: int, spec: str, implementation: str, backward: bool, learned: bool) -> tuple[Callable, Any]:
    """Return a function of q, k, v, the cotangent and an encoding's parameters, and those parameters."""
    encoding = make_encoding(spec, Dims(HEADS, DIM, extent=length, causal=True))
    with programs.on_host():
        params = adapt(encoding, init_params(encoding, jax.random.key(0)), length)

    def forward(q: Array, k: Array, v: Array, params: Any) -> Any:
        hooks = attention_hooks(encoding, params)
        return dot_product_attention(q, k, v, causal=True, implementation=implementation, hooks=hooks)

    def both(q: Array, k: Array, v: Array, cotangent: Array, params: Any) -> tuple:
        if learned:
            return forward_and_backward(forward)(cotangent, q, k, v, params)
        return forward_and_backward(lambda q, k, v: forward(q, k, v, params))(cotangent, q, k, v)

    return (both if backward else lambda q, k, v, _, params: forward(q, k, v, params)), params


def attention(length: int, backward: bool, toy: bool) -> dict[str, Callable[[], Start]]:
    """Return the ways of attention at one length."""
    shape = (1 if toy else max(1, TOKENS // length), length, HEADS, DIM)
    array = jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    def ours(spec: str, implementation: str, learned: bool) -> Start:
        function, params = program(length, spec, implementation, backward, learned)
        return by_jax(function, *(array,) * 4, params)

    def fused() -> Start:
        attend = functools.partial(jax.nn.dot_product_attention, is_causal=True, implementation="cudnn")
        return by_jax(forward_and_backward(attend), *(array,) * 4) if backward else by_jax(attend, *(array,) * 3)

    ways: dict[str, Callable[[], Start]] = {
        name: functools.partial(ours, *way) for name, way in OURS.items() if backward or not way[-1]
    }
    return ways | {FUSED: fused} | peers.attention(shape, backward)


def rotation(length: int, toy: bool) -> dict[str, Callable[[], Start]]:
    """Return the rotations of q and k, and a copy of both, which reads and writes as many bytes."""
    tokens = length if toy else TOKENS
    shapes = (tokens // length, length, 32, 128), (tokens // length, length, 8, 128)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]

    def way(turn: Callable) -> Callable[[], Start]:
        def start() -> Start:
            with programs.on_host():
                positions = jnp.arange(length, dtype=jnp.int32)
                cos, sin = (x[:, None] for x in exact_cos_sin(positions, jnp.asarray(rope_frequencies(128))))
            return by_jax(lambda q, k, cos, sin: (turn(q, cos, sin), turn(k, cos, sin)), *arrays, cos, sin)

        return start

    ways = {COPY: way(lambda x, cos, sin: -x)}
    for pairing in ("half", "interleaved"):
        ways[f"pejax, {pairing}"] = way(functools.partial(_turned, pairing))
    return ways | peers.rotation(shapes)


def _turned(pairing: str, x: Array, cos: Array, sin: Array) -> Array:
    return rotate_pairs(x, cos, sin, pairing=pairing)


def step(pe: str, toy: bool) -> dict[str, Callable[[], Start]]:
    """Return the training steps of a GPT of GPT-2 small's size, in bfloat16: the trainer's own, and torch's."""
    sizes = TOY if toy else GPT2_SMALL
    steps = {way: functools.partial(_step, sizes, pe, options) for way, options in TUNING.items()}
    return steps | peers.step(sizes, pe)


def _step(sizes: Sizes, pe: str, options: dict[str, Any]) -> Start:
    from train.devices.mesh import mesh_of, put_batch, training_execution
    from train.engine.loop import init_state, make_step, state_shapes, state_shardings
    from train.engine.task import recipe
    from train.lm.config import Config
    from train.lm.model import SUMS, Language

    shape: dict[str, Any] = {"layers": sizes.layers, "width": sizes.width, "heads": sizes.heads, "length": sizes.length}
    config = Config(pe=pe, style="gpt2", dtype="bfloat16", batch=sizes.batch, **shape).validated()
    mesh = mesh_of([programs.device()])
    with programs.on_host():
        split, steps = Language(config, sizes.vocab), recipe(config, optax.adamw(1e-4, weight_decay=0.1), SUMS)
        shardings = state_shardings(split, steps, mesh)
    ids = np.random.default_rng(0).integers(0, sizes.vocab, (sizes.batch, sizes.length + 1), np.int32)
    batch = {"ids": ids}  # as the trainer's on a GPU where a window is of one document, and as torch's
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), batch)
    loss = functools.partial(split.loss, execution=training_execution(mesh))
    step = make_step(loss, steps, shardings, mesh)
    flags = options if programs.device().platform == "gpu" else {}
    compiled = programs.compile_jitted(step, state_shapes(split, steps, shardings), shapes, on=mesh, options=flags)

    def start() -> Queue:
        with programs.on_host():
            states = [jax.device_put(init_state(split.init(jax.random.key(0)), steps), shardings)]
        put = put_batch(batch, mesh)

        def queue(launches: int) -> Any:
            for _ in range(launches):
                states.append(compiled(states.pop(), put))
            return jax.block_until_ready(states[0].step)

        return queue

    return start


def memory(length: int, way: str, only_compile: bool = False) -> dict[str, Any]:
    """Return the temporary bytes of forward and backward over those of q, k, v and output, after one run of it.

    Args:
        length: number of tokens.
        way: one of `OURS`.
        only_compile: leave the programs in the cache.
    """
    spec, implementation, learned = OURS[way]
    function, params = program(length, spec, implementation, True, learned)
    shape = jax.ShapeDtypeStruct((1, length, HEADS, DIM), jnp.bfloat16)
    compiled, draw = programs.compiled(function, *(shape,) * 4, params), _draw(shape)
    if only_compile:
        return {"outcome": "made"}
    jax.block_until_ready(compiled(*(draw(),) * 4, programs.put(params)))
    temporary = compiled.memory_analysis().temp_size_in_bytes
    share = temporary / (4 * math.prod(shape.shape) * shape.dtype.itemsize)
    return {"outcome": "measured", "share": share, "message": f"{share:.2f} of the bytes of q, k, v and output"}


WAYS: dict[str, Callable[..., dict[str, Callable[[], Start]]]] = {
    "attention": attention,
    "rotation": rotation,
    "step": step,
}
