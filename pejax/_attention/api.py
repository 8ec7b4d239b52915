"""Attention: check the operands, choose an implementation, run it."""

import functools
import inspect
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jaxtyping import Array, Float

from pejax._attention.backends import IMPLEMENTATIONS, KERNELS, attempt, candidates, run
from pejax._attention.compiling import compile_error
from pejax._attention.core.dropout import check_dropout
from pejax._attention.core.hooks import Hooks
from pejax._attention.core.operands import (
    Layout,
    Operands,
    check_hooks,
    check_hooks_causal,
    check_sharding,
    over_heads,
    prepare,
)
from pejax._attention.core.options import LEARNED_SCALE, Options, Window, check_options
from pejax._attention.core.order import follow_arrays
from pejax._attention.core.reference import dense_weights
from pejax._attention.core.sink import check_sink, share_of_keys, with_sink
from pejax._attention.sharding import Sharding, run_sharded
from pejax._calls.arguments import checked, read_arguments
from pejax._calls.names import unknown_argument
from pejax._ops.backend import platform
from pejax._tokens.positions import Positions

MASKS = (
    "masks are causal, window, distance_range and TokenPositions.segment_ids (packed_positions); "
    "attention_fn takes a mask or bias array"
)
"""What to do in place of an array of masks."""


@functools.partial(checked, scale=LEARNED_SCALE, dropout="a key and the rate")
def dot_product_attention(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    v: Float[Array, "*B S K D"],
    *,
    positions: Positions | None = None,
    k_positions: Positions | None = None,
    hooks: Hooks = Hooks(),
    causal: bool = False,
    window: Window | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    key_bias: Float[Array, "*B S H"] | None = None,
    sink: Float[Array, " H"] | None = None,
    dropout: tuple[Array, float] | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    sharding: Sharding | None = None,
    **unknown: Any,
) -> Float[Array, "*B T H D"] | tuple[Float[Array, "*B T H D"], Float[Array, "*B T H"]]:
    """Attend from q to k and v; position enters through the `hooks` of an encoding.

    `o_i = Σ_j w_ij v_j + relative_values(w)_i` with
    `w_i = softmax_j(cap·tanh((scale·q_i·k_j + bias_ij) / cap) + key_bias_j)` over the keys that i sees; without a
    `soft_cap`, `w_i = softmax_j(scale·q_i·k_j + bias_ij + key_bias_j)`. A query that sees no key gives zeros. A `sink`
    is the logit of one more key per head, which every query sees and whose value is zero.
    Logits and softmax are computed in at least 32 bits. Apart from `unplaced_bias`, hooks do not act on pairs in which
    a token has no position. This function does not rotate queries and keys; `attend` does.

    Padding, segment 0, is read as zeros: what it holds, such as NaN, reaches neither outputs nor gradients. Anywhere
    else a NaN in a key or value reaches every query of its head, whatever the mask, since 0 · NaN is NaN.

    For arrays split over a mesh, give a `sharding`. Without one, explicit mesh axes raise an error. Automatic
    axes may split the batch; heads or a sequence that they split are gathered by tiled implementations on a CPU, and
    so is the batch by the implementation "cpu", a loop over it, which runs there only if it is named.

    Args:
        q: queries, already rotated if the encoding rotates, with tokens before heads. Heads before tokens,
            `(*B, H, T, D)`, are wrong, but do not always raise an error.
        k: keys, already rotated; H must be a multiple of K, and query head h attends to key head `h // (H/K)`.
        v: values.
        positions: positions of the queries as an array, `(T,)` or `(*B, T)`, or on A > 1 axes `(T, A)` or `(*B, T, A)`;
            or as `TokenPositions`, in which each field is batched over all of *B or not at all. None = 0 ... T-1.
        k_positions: positions of the keys, in one of these forms. None = `positions`.
        hooks: from `attention_hooks`. Their parameters and float positions receive gradients.
        causal: whether keys after the query are masked, by `TokenPositions.order`. Must be True with hooks made for a
            causal model. Without `k_positions` and order, no token sees what follows it in the arrays.
        window: w, in tokens, keeps keys with 0 <= i - j < w if causal, else |i - j| < w, by `TokenPositions.order`;
            (before, after) keeps those with -after <= i - j <= before, as `local_window_size` of `jax.nn` does, and if
            causal none after the query.
        distance_range: `(lo, hi)`, in tokens, keeps keys with lo <= |i - j| < hi, by `TokenPositions.order`.
        scale: factor that multiplies q·k. None = D**-0.5.
        soft_cap: cap of the logits, bias included, in logits; applied before the mask. None = no cap.
        key_bias: logits `(*B, S, H)` that are added for each key and query head, after the cap and for every query that
            sees the key. For a bias `c_i - c_j`, pass `-c_j`: the softmax cancels c_i. None = no bias.
        sink: logits `(H,)`, neither scaled nor capped. If results are merged, pass it to only one of the calls. None =
            no sink.
        dropout: `(key, rate)`: drops this fraction of the weights, the same pairs in every implementation.
        return_lse: also return the log-sum-exp of each query's logits, the sink's included, -inf where it sees no key.
        implementation: "dense", "reference" (dense, in plain formulas), or tiled: "blockwise", "cpu", "gpu", "cudnn",
            "mosaic_gpu" or "tpu". Tiled ones have memory linear in T and S, and first derivatives alone. On other
            devices, the kernels of "gpu", "cudnn", "mosaic_gpu" and "tpu" run in interpret mode: correct but slow.
            None = the fastest that supports the arguments (`explain_attention`), never "mosaic_gpu", which no GPU has
            run yet. With a sharding, it attends to one shard of keys.
        sharding: how batch, heads and sequence are split over a mesh of devices. None = not split.
        **unknown: not accepted; the error names an unknown argument, and what is near to it.

    Returns:
        The output in q's type; with `return_lse` also the log-sum-exps, `(*B, T, H)` in float32.

    Raises:
        ValueError: shapes that do not match; known positions that do not rise within a segment while `causal` is True
            and neither `k_positions` nor an order is given; an option out of range; an unknown implementation; arrays
            split over explicit axes of a mesh without a sharding; or a sharding that mesh or sizes do not allow.
        TypeError: an argument of a wrong type, or an unknown argument.
        NotImplementedError: the named implementation does not support these arguments (the message says why), or a
            derivative of a tiled implementation other than a first reverse-mode gradient, such as `jax.jvp`.

    Examples:
        >>> q, k = jnp.ones((2, 5, 8, 16)), jnp.ones((2, 5, 2, 16))  # 8 query heads, 2 key/value heads
        >>> dot_product_attention(q, k, k, causal=True).shape
        (2, 5, 8, 16)
    """
    if unknown:
        refuse_unknown("dot_product_attention", unknown, ARGUMENTS)
    if sharding is None:
        check_sharding(q=q, k=k, v=v)
    options, layout, operands = prepared(
        q, k, v, positions=positions, k_positions=k_positions, hooks=hooks, key_bias=key_bias, dropout=dropout,
        causal=causal, window=window, distance_range=distance_range, scale=scale, soft_cap=soft_cap,
    )  # fmt: skip
    check_sink(sink, q.shape[-2])
    attend = run if sharding is None else functools.partial(run_sharded, sharding)
    output, lse = with_sink(*attend(options, layout, operands, implementation, q.shape), sink)
    return (output, lse) if return_lse else output


ARGUMENTS = tuple(name for name in inspect.signature(dot_product_attention).parameters if name != "unknown")
"""The arguments of `dot_product_attention`."""


def refuse_unknown(caller: str, names: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError for the first of the arguments that a function of attention does not have."""
    if unknown := sorted({*names} - {*known}):
        raise TypeError(unknown_argument(caller, unknown[0], known, {"mask": MASKS, "bias": MASKS}))


def prepared(
    q: Array,
    k: Array,
    v: Array,
    *,
    positions: Positions | None = None,
    k_positions: Positions | None = None,
    hooks: Hooks = Hooks(),
    key_bias: Array | None = None,
    dropout: tuple[Array, float] | None = None,
    **options: Any,
) -> tuple[Options, Layout, Operands]:
    """Return the arguments of `dot_product_attention` as implementations take them, or raise what it raises."""
    check_hooks(hooks)
    checked = check_options(q, **options)
    check_hooks_causal(checked.causal, hooks)
    if positions is not None and k_positions is None:
        positions = follow_arrays(positions, q.shape[:-2], causal=checked.causal, spans=checked.uses_distance)
    seed, rate = check_dropout(dropout)
    operands, layout = prepare(q, k, v, positions, k_positions, hooks, seed, key_bias=key_bias)
    return checked._replace(dropout_rate=rate, hides=hooks.hides), layout, operands


@functools.partial(checked, scale=LEARNED_SCALE, mask=MASKS, bias=MASKS)
def attention_weights(
    q: Float[Array, "*B T H D"],
    k: Float[Array, "*B S K D"],
    *,
    positions: Positions | None = None,
    k_positions: Positions | None = None,
    hooks: Hooks = Hooks(),
    causal: bool = False,
    window: Window | None = None,
    distance_range: tuple[int, int] | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    key_bias: Float[Array, "*B S H"] | None = None,
    sink: Float[Array, " H"] | None = None,
) -> Float[Array, "*B H T S"]:
    """Return the weights of `dot_product_attention` themselves, in float32 and before dropout, for figures and tests.

    Args:
        q: queries, already rotated if the encoding rotates.
        k: keys, already rotated if the encoding rotates.
        positions: positions of the queries; this and all arguments below as in `dot_product_attention`.
        k_positions: positions of the keys. None = `positions`.
        hooks: from `attention_hooks`.
        causal: whether keys after the query are masked.
        window: w, or (before, after), in tokens.
        distance_range: `(lo, hi)`, in tokens.
        scale: factor that multiplies q·k. None = D**-0.5.
        soft_cap: in logits.
        key_bias: logits `(*B, S, H)`.
        sink: logits `(H,)`; the weight that it takes is left out.

    Returns:
        Weights whose rows sum to 1, or to 0 if a query sees no key; with a sink, to less than 1.

    Raises:
        ValueError: as in `dot_product_attention`.
        TypeError: as in `dot_product_attention`.
    """
    check_sharding(q=q, k=k)
    options, layout, operands = prepared(
        q, k, k, positions=positions, k_positions=k_positions, hooks=hooks, key_bias=key_bias,
        causal=causal, window=window, distance_range=distance_range, scale=scale, soft_cap=soft_cap,
    )  # fmt: skip
    check_sink(sink, q.shape[-2])
    return weights_of(options, layout, operands, q.shape, sink)


@checked
def explain_attention(
    q: Float[Array | jax.ShapeDtypeStruct, "*B T H D"],
    k: Float[Array | jax.ShapeDtypeStruct, "*B S K D"],
    v: Float[Array | jax.ShapeDtypeStruct, "*B S K D"],
    *,
    implementation: str | None = None,
    compile: bool = False,
    **arguments: Any,
) -> str:
    """Return a text that says which implementation `dot_product_attention` would run, and why not the others.

    Nothing is computed: the arrays may be `jax.ShapeDtypeStruct`s. Choices made at run time, such as whether the
    positions are consecutive, are not reported. A kernel reported as running may still fail to compile on a device on
    which it was not tested. Inside your jit, nothing then takes its place: find out beforehand with `compile=True`,
    or for all kernels with `check_kernels`.

    Args:
        q: queries.
        k: keys.
        v: values.
        implementation: one implementation, or None, as in `dot_product_attention`.
        compile: whether to compile the one that runs, forward and backward, on the device at hand.
        **arguments: the other arguments of `dot_product_attention`, except `sharding`.

    Returns:
        A line with the platform and the sizes, then one line per implementation: `name: runs`, or why it does not run.

    Raises:
        ValueError: as in `dot_product_attention`.
        TypeError: as in `dot_product_attention`.
    """
    signature = inspect.signature(dot_product_attention)
    refuse_unknown("explain_attention", arguments, ARGUMENTS)
    read_arguments("explain_attention", signature, arguments, {"scale": LEARNED_SCALE})
    if arguments.pop("sharding", None) is not None:
        raise TypeError("sharding must be None: explain_attention takes q, k and v of one shard, got a sharding")
    arguments.pop("return_lse", None)
    lines: list[str] = []
    sink = arguments.pop("sink", None)
    check_sink(sink, q.shape[-2])

    def trace(q: Array, k: Array, v: Array) -> None:
        check_sharding(q=q, k=k, v=v)
        options, layout, operands = prepared(q, k, v, **arguments)
        names, (t, s) = candidates(operands, implementation), (q.shape[-3], k.shape[-3])
        turns, _ = attempt(options, layout, operands, names)
        lines.append(f"{platform()}: {t:,} queries, {s:,} keys, {q.shape[-2]} heads, {q.dtype}")
        reasons = dict(turns)
        for name in (*names, *(name for name in IMPLEMENTATIONS if name not in names)):
            if name in reasons:
                lines.append(f"{name}: {_how_it_runs(name) if reasons[name] is None else reasons[name]}")
            elif name in names:
                lines.append(f"{name}: not needed, {turns[-1].name} comes first at this size")
            else:
                why = "not asked for" if implementation is not None else f"not among those tried on {platform()}"
                lines.append(f"{name}: {why}")

    jax.eval_shape(trace, q, k, v)
    ran = next((i for i, line in enumerate(lines) if ": runs" in line), None)
    if compile and ran is not None:
        lines[ran] += _how_it_compiles(lines[ran].partition(":")[0], q, k, v, {**arguments, "sink": sink})
    return "\n".join(lines)


def _how_it_compiles(name: str, q: Any, k: Any, v: Any, arguments: dict[str, Any]) -> str:
    hooks = arguments.pop("hooks", Hooks())
    run = lambda q, k, v, hooks: dot_product_attention(q, k, v, hooks=hooks, implementation=name, **arguments)
    shapes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v))
    error, seconds = compile_error(run, *shapes, hooks)
    if not error:
        return f"; compiled forward and backward in {seconds:.1f} s"
    instead = "" if name == "blockwise" else '; implementation="blockwise" needs no kernel'
    return f", but does not compile here: {error}{instead}"


def _how_it_runs(name: str) -> str:
    mesh = jax.sharding.get_abstract_mesh()
    if name == "cpu" and any(kind == AxisType.Auto for kind in mesh.axis_types):
        return "runs, but gathers arrays that are split over the mesh: give a Sharding"
    device = KERNELS[name].device if name in KERNELS else platform()
    return "runs" if device == platform() else f"runs interpreted, for tests: this is not a {device.upper()}"


def weights_of(
    options: Options, layout: Layout, operands: Operands, shape: tuple[int, ...], sink: Array | None = None
) -> Array:
    """Return the dense weights, `(*B, H, T, S)` for q of `shape`."""
    *batch, t, heads, _ = shape
    full = (*batch, heads, t, operands.k.shape[-2])
    if 0 in full:
        return jnp.zeros(full, jnp.float32)
    weights, lse = _weights(options, layout, operands)
    weights = weights.reshape(full)
    if sink is None:
        return weights
    share = share_of_keys(jnp.moveaxis(lse.reshape(full[:-1]), -2, -1), sink)
    return weights * jnp.moveaxis(share, -1, -2)[..., None]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _weights(options: Options, layout: Layout, operands: Operands) -> tuple[Array, Array]:
    def head(q, k, v, hooks, q_tokens, k_tokens, key_bias, dropout, pair_arrays):
        del v, dropout
        return dense_weights(options, q, k, hooks, q_tokens, k_tokens, key_bias, pair_arrays)

    return over_heads(head, operands, layout)
