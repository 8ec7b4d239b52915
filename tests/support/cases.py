"""Encodings made for given dims, with parameters, and one layer around them: what the laws are held against."""

import functools
import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pejax
from pejax import Dims, Encoding, TokenPositions, adapt, attend, dot_product_attention, make_encoding
from pejax._attention.core.hooks import attention_hooks
from pejax._record.encoding import Params, merge_params
from pejax.extensions import ROTARY
from pejax.testing import Probe, draw_probe, queries_and_keys, settle

TOKENS = 11
DIMS = {
    "sequence": Dims(heads=4, head_dim=12, extent=24),
    "causal": Dims(heads=4, head_dim=12, kv_heads=2, extent=24, causal=True),
    "image": Dims(heads=4, head_dim=12, kv_heads=2, axes=2, extent=(6, 4)),
    "volume": Dims(heads=2, head_dim=12, width=48, kv_heads=1, axes=3, extent=(3, 4, 2), scale=0.5),
}

SIZES = {"image": ((3, 5), (6, 4), (8, 2)), "volume": ((2, 3, 2), (4, 4, 1), (3, 4, 2))}
"""Grids of one batch, smaller and larger than the trained one."""

HOOKS = {item.name for item in fields(Encoding)} - {
    *("init", "init_layer", "constants", "layer_constants", "adapt"),
    *("shift_invariant", "hides", "tabulate", "periods", "dims", "spec"),
}
"""The hooks of tokens and of pairs: fields of the record that are neither parameters nor facts."""

EXTEND_FREQUENCIES = {
    name: getattr(pejax.functions, f"extend_{name}")
    for name, make in ROTARY.items()
    if "factor" in inspect.signature(make).parameters
}
"""The array function behind every extension of frequencies that has a factor."""

KINDS = (jnp.int32, jnp.float32)
"""Types of positions; drawn floats fall between the tokens."""

DIFFERENTIATED = ("causal",)
"""The settings whose gradients are compiled in every run; `-m slow` adds images, `-m long` all others."""


EACH_KIND = ("learned", "rope", "shaw", "t5")
"""One encoding per place where position enters: the input, rotations, each layer's tables, a shared distance bias."""


def mostly_slow(values: Iterable[Any], quick: Sequence[Any] = EACH_KIND) -> list:
    """Return values to parametrize a test with: those in `quick` for every run, the others for `-m slow`."""
    return [pytest.param(value, marks=() if value in quick else pytest.mark.slow) for value in values]


def slow(*values: Any) -> Any:
    """Return the values of one run of a test, for `-m slow`: `["cpu", slow("blockwise")]`."""
    return pytest.param(*values, marks=pytest.mark.slow)


@dataclass(frozen=True)
class Case:
    """An encoding made for some dims, and parameters of one layer of it."""

    spec: str
    setting: str

    @property
    def dims(self) -> Dims:
        return DIMS[self.setting]

    @property
    def encoding(self) -> Encoding:
        return make_encoding(self.spec, self.dims)

    @property
    def is_default(self) -> bool:
        """Whether every argument has its default."""
        return "(" not in self.spec

    @functools.cached_property
    def params(self) -> Params:
        """Merged, before `adapt`; every number is moved, so that nothing stays at a zero that would hide it."""
        draw = lambda key: merge_params(self.encoding.init(key), self.encoding.init_layer(key))
        return jax.tree.map(lambda leaf: leaf + 0.3 * normal(*leaf.shape), jax.jit(draw)(jax.random.key(7)))

    @functools.cached_property
    def settled(self) -> Params:
        """The parameters passed through `adapt`."""
        return settle(self.encoding, self.params, self.dims)

    def __str__(self) -> str:
        return f"{self.spec}-{self.setting}"


compiled = functools.partial(
    jax.jit, static_argnames=("case", "implementation"), compiler_options={"xla_backend_optimization_level": 0}
)


class Args(NamedTuple):
    """What a layer has gradients for."""

    params: Params
    x: jax.Array
    q_kernel: jax.Array
    k_kernel: jax.Array
    positions: jax.Array


def normal(*shape: int, seed: int = 0) -> jax.Array:
    """Draw standard normal numbers."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def draw(case: Case, *shape: int, reach: int = 2) -> jax.Array:
    """Draw integer positions of tokens `shape`, within `reach` extents."""
    axes = () if case.dims.axes == 1 else (case.dims.axes,)
    sizes = reach * np.asarray(case.dims.extent)
    return jnp.asarray(np.random.default_rng(1).integers(sizes, size=shape + axes), jnp.int32)


def serves(spec: str, setting: str) -> bool:
    """Ask the factory whether it serves these dims."""
    try:
        make_encoding(spec, DIMS[setting])
    except ValueError:
        return False
    return True


@compiled
def gradients(
    case: Case, args: Args, tokens: TokenPositions, weight: jax.Array, implementation: str
) -> tuple[jax.Array, Args]:
    """Return one layer's attention output `(T, H, D)` and the gradients of its sum weighted by `weight`."""

    def total(args: Args) -> tuple[jax.Array, jax.Array]:
        output = layer(case, args, tokens._replace(positions=args.positions), implementation)
        return jnp.sum(weight * output), output

    (_, output), slopes = jax.value_and_grad(total, has_aux=True)(args)
    return output, slopes


@functools.partial(jax.jit, static_argnames="case", compiler_options={"xla_backend_optimization_level": 0})
def derivatives(case: Case, args: Args, tokens: TokenPositions) -> tuple[jax.Array, ...]:
    """Return the slope of a sum of squares along a direction, in two ways, and the change of its gradient, in two."""
    floats = {name: getattr(args, name) for name in ("params", "x", "q_kernel", "k_kernel")}
    along = jax.tree.map(lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), floats)
    total = lambda floats: jnp.mean(layer(case, args._replace(**floats), tokens, "reference") ** 2)
    dot = lambda a, b: sum(jnp.vdot(*pair) for pair in zip(*map(jax.tree.leaves, (a, b)), strict=True))
    slope = lambda floats: dot(jax.grad(total)(floats), along)
    once = jax.jvp(total, (floats,), (along,))[1]
    _, change = jax.jvp(jax.grad(total), (floats,), (along,))
    return once, slope(floats), change, jax.grad(slope)(floats)


def layer(case: Case, args: Args, tokens: TokenPositions, implementation: str) -> jax.Array:
    """Run one layer by the model's rule, the keys being their own values."""
    encoding, dims = case.encoding, case.dims
    params = settle(encoding, args.params, dims)
    q, k = queries_and_keys(encoding, params, Probe(args.x, args.q_kernel, args.k_kernel, tokens.positions))
    k = k[:, :: dims.heads // dims.kv_heads]
    options = {"causal": dims.causal, "scale": dims.scale, "implementation": implementation}
    return dot_product_attention(
        q, k, k, positions=tokens, hooks=attention_hooks(encoding, params, rotated=True, embedded=True), **options
    )


def in_order(case: Case) -> tuple[Args, TokenPositions]:
    """Draw tokens within the extent that come in the order of their array, all placed, in one segment."""
    probe = draw_probe(3, case.dims, tokens=TOKENS, reach=1.0, dtype=jnp.float32)
    positions = jnp.arange(TOKENS, dtype=jnp.float32) if case.dims.axes == 1 else probe.positions
    order, placed = jnp.arange(TOKENS, dtype=jnp.int32), jnp.ones(TOKENS, bool)
    tokens = TokenPositions(positions, order=order, has_position=placed, segment_ids=jnp.ones(TOKENS, jnp.int32))
    return Args(case.params, probe.x, probe.q_kernel, probe.k_kernel, positions), tokens


def with_tokens(args: Args, tokens: TokenPositions, x: jax.Array) -> tuple[Args, TokenPositions]:
    """Return the arguments for other tokens."""
    return args._replace(x=x, positions=tokens.positions), tokens


def run(case: Case, args: Args, tokens: TokenPositions) -> jax.Array:
    """Return the layer's output, from a program that is compiled anyway."""
    if case.setting in DIFFERENTIATED:
        return gradients(case, args, tokens, no_weight(case), "reference")[0]
    return forward(case, args, tokens, "reference")


@compiled
def forward(case: Case, args: Args, tokens: TokenPositions, implementation: str) -> jax.Array:
    """Return one layer's attention output `(T, H, D)`."""
    return layer(case, args, tokens, implementation)


@functools.partial(jax.jit, static_argnames=("case", "slopes"), compiler_options={"xla_backend_optimization_level": 0})
def of_sizes(
    case: Case, params: Params, x: jax.Array, kernels: jax.Array, weight: jax.Array, slopes: bool = True
) -> tuple[Any, Any]:
    """Return a layer's outputs on images of `SIZES`, with gradients: all in one batch, and each of them alone.

    Args:
        case: the case, on several axes.
        params: merged, before `adapt`.
        x: tokens `(B, T, C)`; what comes after the patches of an image is padding.
        kernels: of queries, keys and values, `(3, C, H·D)`.
        weight: `(B, T, H, D)`, of each output in the sum that is differentiated.
        slopes: whether with gradients.
    """
    sizes = SIZES[case.setting]
    cells = [np.indices(size).reshape(len(size), -1).T.astype(np.int32) for size in sizes]
    fill = lambda rows: np.concatenate([rows, np.zeros((x.shape[1] - len(rows), *rows.shape[1:]), rows.dtype)])
    at = jnp.asarray(np.stack([fill(item) for item in cells]))
    segments = jnp.asarray(np.stack([fill(np.ones(len(item), np.int32)) for item in cells]))

    def together(params: Params, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        tokens = TokenPositions(at, segment_ids=segments)
        out = sized(case, params, kernels, x, tokens, jnp.asarray(sizes, jnp.int32))
        real = jnp.where(segments[..., None, None] != 0, weight * out, 0.0)
        return jnp.sum(real), [rows[: len(item)] for rows, item in zip(out, cells, strict=True)]

    def alone(params: Params, x: jax.Array) -> tuple[jax.Array, list[jax.Array]]:
        outs = []
        for rows, size, item in zip(x, sizes, cells, strict=True):
            outs.append(sized(case, params, kernels, rows[: len(item)], TokenPositions(jnp.asarray(item)), size))
        return sum(jnp.sum(w[: len(out)] * out) for w, out in zip(weight, outs, strict=True)), outs

    runs = (together, alone)
    if slopes:
        runs = tuple(jax.value_and_grad(run, argnums=(0, 1), has_aux=True) for run in runs)
    return tuple(run(params, x) for run in runs)


def sized(
    case: Case, params: Params, kernels: jax.Array, x: jax.Array, tokens: TokenPositions, extent: Any
) -> jax.Array:
    """Return a layer's output `(*B, T, H, D)` at one grid, or at the grid of each image."""
    encoding, dims = case.encoding, case.dims
    if encoding.embed is not None:
        embed = lambda extent, x, at: encoding.embed(adapt(encoding, params, extent), x, at)
        x = embed(extent, x, tokens) if isinstance(extent, tuple) else jax.vmap(embed)(extent, x, tokens)
    q, k, v = ((x @ kernel).reshape(*x.shape[:-1], dims.heads, dims.head_dim) for kernel in kernels)
    k, v = (side[..., : dims.kv_heads, :] for side in (k, v))
    return attend(encoding, q, k, v, params=params, positions=tokens, extent=extent, embedded=True)


def no_weight(case: Case) -> jax.Array:
    """Return zeros as large as the output."""
    return jnp.zeros((TOKENS, case.dims.heads, case.dims.head_dim))


def close(actual: object, expected: object, tolerance: float = 2e-5) -> None:
    """Require that two trees agree, relative to 1 and to the size of each number."""
    chex.assert_trees_all_close(actual, expected, rtol=tolerance, atol=tolerance)
