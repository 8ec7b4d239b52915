"""What holds for every encoding, as functions that raise AssertionError where it does not.

They are given a case: an encoding made for some dims, with parameters off their initial values. The law tests hold
every encoding to them; the mutant tests require that a broken one breaks them.
"""

import functools
import inspect
import itertools
import math
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from pejax import ENCODINGS, TokenPositions, attend, make_encoding
from pejax._record.encoding import from_distance, split_params
from pejax.testing import (
    assert_norm_preserved,
    assert_shift_invariant,
    assert_tile_consistent,
    dense_terms,
    draw_probe,
    shift_deviation,
)
from tests.support.cases import (
    DIFFERENTIATED,
    HOOKS,
    KINDS,
    SIZES,
    TOKENS,
    Case,
    close,
    derivatives,
    draw,
    forward,
    gradients,
    in_order,
    no_weight,
    normal,
    of_sizes,
    run,
    with_tokens,
)

LAWS: list[Callable[[Case], None]] = []
"""Every law; `law.applies(case)` says whether it says anything about a case."""


def law(applies: Callable[[Case], bool]) -> Callable:
    """Enter a function into `LAWS`."""

    def enter(function: Callable[[Case], None]) -> Callable[[Case], None]:
        function.applies = applies
        LAWS.append(function)
        return function

    return enter


def always(case: Case) -> bool:
    return True


def has(*hooks: str) -> Callable[[Case], bool]:
    """Say whether an encoding has one of these hooks."""
    return lambda case: any(getattr(case.encoding, hook) is not None for hook in hooks)


def attends(case: Case) -> bool:
    """Say whether a case is run through attention: defaults, on the settings that differ by more than an axis."""
    return case.is_default and case.setting != "volume"


def has_pairings(case: Case) -> bool:
    """Say whether a case is made by a factory that knows both pairings, with its defaults."""
    return case.is_default and "pairing" in inspect.signature(ENCODINGS[case.spec]).parameters


@law(always)
def shift_invariance_is_as_declared(case: Case) -> None:
    """`logits(p + c) = logits(p)` where declared; elsewhere some shift changes them."""
    args = (case.encoding, case.params, case.dims)
    if case.encoding.shift_invariant:
        for dtype in KINDS:
            assert_shift_invariant(*args, dtype=dtype)
            assert_shift_invariant(*args, dtype=dtype, reach=2000.0)
    else:
        near_change, far_change = shift_deviation(*args, reach=1.0), shift_deviation(*args, reach=8.0)
        assert max(near_change, np.nan_to_num(far_change)) > 1e-3, (near_change, far_change)


@law(lambda case: case.encoding.rotate is not None and case.encoding.rotate_keys is None)
def rotation_preserves_norms(case: Case) -> None:
    """`|rotate(x, p)| = |x|` for queries and keys."""
    for dtype in KINDS:
        assert_norm_preserved(case.encoding, case.params, case.dims, dtype=dtype)


@law(has("rotate"))
def rotation_starts_from_the_identity(case: Case) -> None:
    """`rotate(x, 0) = x`, so a token without a position is not turned; `rotate(x, 1)` is not x."""
    x = jnp.ones((2, case.dims.heads, case.dims.head_dim))
    position = jnp.asarray([0, 1], jnp.int32)
    position = position if case.dims.axes == 1 else jnp.stack([position] * case.dims.axes, axis=-1)
    turned = jax.jit(case.encoding.rotate)(case.settled, x, position)
    close(turned[0], x[0], 1e-6)
    assert jnp.max(jnp.abs(turned[1] - x[1])) > 0.05


@law(has("bias", "relative_values"))
def a_tile_is_a_slice_of_the_whole(case: Case) -> None:
    """`bias(tile) = bias(all)[tile]`, values add up over tiles of keys, `distance` is the bias."""
    for dtype in KINDS:
        assert_tile_consistent(case.encoding, case.params, case.dims, dtype=dtype)


@law(has("distance_bias"))
def distance_is_the_bias(case: Case) -> None:
    """`from_distance(distance) = bias` to the bit, and such an encoding can only be shift invariant."""
    encoding = case.encoding
    assert encoding.shift_invariant or encoding.embed is not None
    shared, heads = split_params(case.settled)
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[-1], heads)}
    q, k = jnp.zeros((2, 5, case.dims.head_dim))
    at = draw(case, 5, reach=8)
    bias = encoding.bias(params_h, q, k, at, at[::-1])
    chex.assert_trees_all_equal(bias, from_distance(encoding.distance_bias)(params_h, q, k, at, at[::-1]))
    chex.assert_trees_all_close(bias[:, 0], encoding.distance_bias(params_h, at[-1:] - at), rtol=1e-6)


@law(has("relative_keys"))
def vectors_are_the_bias(case: Case) -> None:
    """`(q_i + v) · a_r + u · k_j = bias` with r = p_j - p_i; such an encoding can only be shift invariant."""
    encoding = case.encoding
    assert encoding.shift_invariant
    shared, heads = split_params(case.settled)
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[-1], heads)}
    q, k = normal(2, 5, case.dims.head_dim)
    at = draw(case, 5, reach=8)
    relative = at[::-1] - at[:, None]
    first, last = int(jnp.min(relative)), int(jnp.max(relative))
    a, v, u = encoding.relative_keys(params_h, jnp.arange(first, last + 1))
    bias = jnp.einsum("id,ijd->ij", q + v, a[relative - first]) + k @ u
    close(bias, encoding.bias(params_h, q, k, at, at[::-1]), 1e-5)


@law(always)
def integers_and_floats_agree(case: Case) -> None:
    """Whole positions mean the same in either type."""
    probe = draw_probe(1, case.dims, reach=1.0)
    floats = probe._replace(positions=probe.positions.astype(jnp.float32))
    terms = [dense_terms(case.encoding, case.params, case.dims, item) for item in (probe, floats)]
    close(*terms)


@law(always)
def hooks_keep_shapes_and_types(case: Case) -> None:
    """`embed` and `rotate` keep shape and type; `bias` and `values` are float32 whatever the queries are."""
    encoding, dims, params = case.encoding, case.dims, case.settled
    shared, heads = split_params(params)
    assert all(leaf.shape[0] == dims.heads for leaf in jax.tree.leaves(heads)), "every leaf of heads leads with H"
    assert set(shared).isdisjoint(heads)
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}
    for dtype in (jnp.float32, jnp.bfloat16):
        x = jnp.ones((5, dims.width), dtype)
        at = draw(case, 5, reach=1)
        q = jnp.ones((5, dims.heads, dims.head_dim), dtype)
        k = jnp.ones((5, dims.kv_heads, dims.head_dim), dtype)
        if encoding.embed is not None:
            same(x, encoding.embed, params, x, at)
        for hook in (encoding.rotate, encoding.rotate_keys):
            for heads in (q, k) if hook is not None else ():
                same(heads, hook, params, heads, at)
        if encoding.bias is not None:
            same(jnp.zeros((3, 5)), encoding.bias, params_h, q[:3, 0], k[:, 0], at[:3], at)
        if encoding.relative_values is not None:
            same(jnp.zeros((3, dims.head_dim)), encoding.relative_values, params_h, jnp.ones((3, 5)), at[:3], at)
        if encoding.distance_bias is not None:
            same(jnp.zeros(5), encoding.distance_bias, params_h, at)


def same(expected: jax.Array, hook: Callable, *args: object) -> None:
    """Require that the hook's result has the shape and type of `expected`."""
    actual = jax.eval_shape(hook, *args)
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)


@law(has("rotate"))
def bfloat16_loses_no_phase(case: Case) -> None:
    """Rotating in bfloat16 is rotating those numbers in float32, rounded once; likewise the bias reads them exactly."""
    at = draw(case, 6, reach=1000)
    x = normal(6, case.dims.heads, case.dims.head_dim).astype(jnp.bfloat16)
    rotate = jax.jit(case.encoding.rotate)
    exact = rotate(case.settled, x.astype(jnp.float32), at)
    rough = rotate(case.settled, x, at).astype(jnp.float32)
    chex.assert_trees_all_close(rough, exact, rtol=2.0**-8, atol=1e-6)


@law(has("relative_values"))
def values_are_linear(case: Case) -> None:
    """`values(a·w + b·u) = a·values(w) + b·values(u)`."""
    shared, heads = split_params(case.settled)
    params_h = {**shared, **jax.tree.map(lambda leaf: leaf[0], heads)}
    at = draw(case, 5, reach=1)
    hook = lambda weights: case.encoding.relative_values(params_h, weights, at, at)
    w, u = normal(2, 5, 5)
    close(hook(2.0 * w - 3.0 * u), 2.0 * hook(w) - 3.0 * hook(u))


@law(has("embed", "rotate"))
def batched_positions_are_rows(case: Case) -> None:
    """Positions `(B, T)` are B sequences, `(T,)` are all of them; other ranks are refused."""
    encoding, dims, params = case.encoding, case.dims, case.settled
    at = draw(case, 2, 5, reach=1)
    x = normal(2, 5, dims.width)
    heads = x.reshape(2, 5, dims.width // dims.head_dim, dims.head_dim)[..., : dims.heads, :]
    for hook, tokens in ((encoding.embed, x), (encoding.rotate, heads)):
        if hook is None:
            continue
        op = functools.partial(hook, params)
        rows, expected = jax.jit(lambda x, at, op=op: (op(x, at), jax.vmap(op)(x, at)))(tokens, at)
        shared, repeated = jax.jit(lambda x, at, op=op: (op(x, at), jax.vmap(op, (0, None))(x, at)))(tokens, at[0])
        close((rows, shared), (expected, repeated), 1e-6)
        for wrong in (at[..., None], at[0, 0], at[:, :-1]):
            refuses(hook, params, tokens, wrong)


def refuses(hook: Callable, *args: object) -> None:
    """Require a ValueError or TypeError."""
    try:
        hook(*args)
    except (ValueError, TypeError):
        return
    raise AssertionError(f"positions of shape {args[-1].shape} were accepted for tokens {args[-2].shape}")


@law(lambda case: case.is_default and case.setting in ("causal", "image"))
def jit_changes_nothing(case: Case) -> None:
    """The compiled layer gives what the layer gives, operation by operation; a traced length is a length."""
    probe = draw_probe(0, case.dims, reach=1.0)
    args = (case.encoding, case.params, case.dims, probe)
    close(dense_terms(*args), dense_terms.__wrapped__(*args))
    if case.encoding.adapt is not None and case.dims.axes == 1 and case.encoding.embed is None:
        traced = jax.jit(case.encoding.adapt)(case.params, jnp.int32(3 * case.dims.extent))
        close(traced, case.encoding.adapt(case.params, 3 * case.dims.extent))


@law(attends)
def blockwise_is_dense(case: Case, *, everywhere: bool = False) -> None:
    """Tiles with an online softmax give the dense output and every gradient, all finite; every parameter has one."""
    args, tokens = in_order(case)
    tokens = tokens._replace(
        positions=tokens.positions.at[5].set(tokens.positions[2]).at[0].set(0),  # two tokens at one place
        has_position=jnp.arange(TOKENS) > 0,
        segment_ids=jnp.asarray([1] * 7 + [2] * (TOKENS - 8) + [0], jnp.int32),
    )
    args, tokens = with_tokens(args, tokens, args.x)
    weight = normal(*no_weight(case).shape)
    if not (everywhere or case.setting in DIFFERENTIATED):
        close(forward(case, args, tokens, "blockwise"), run(case, args, tokens), 1e-4)
        return
    dense, tiled = (gradients(case, args, tokens, weight, name) for name in ("reference", "blockwise"))
    close(tiled, dense, 1e-4)
    chex.assert_tree_all_finite(dense)
    learned = jax.tree_util.tree_leaves_with_path(dense[1].params)
    assert not [jax.tree_util.keystr(path) for path, leaf in learned if not jnp.any(leaf != 0)], "no gradient"


def derivatives_of_every_kind_agree(case: Case) -> None:
    """`df(d) = grad f · d`, and forward over reverse is reverse over reverse, at positions that count on by one."""
    args, tokens = in_order(case)
    forward_mode, slope, *curvatures = derivatives(case, args, tokens._replace(positions=jnp.arange(TOKENS)))
    close(forward_mode, slope, 1e-4)
    close(*curvatures, 1e-4)


@law(lambda case: case.is_default and case.setting == "image" and case.encoding.embed is None)
def constants_are_arguments(case: Case, *, everywhere: bool = False) -> None:
    """A program in which q, k, v and the parameters are constants gives the gradients of one that is handed them."""
    dims = case.dims
    ways = itertools.product(("cpu", "blockwise", "reference"), ("bfloat16", "float32"))
    for implementation, dtype in ways if everywhere else [("cpu", "bfloat16")]:
        shape = (TOKENS, dims.heads, dims.head_dim)
        q, k, v, weight = (x.astype(dtype) for x in normal(4, *shape))
        tokens = TokenPositions(draw(case, TOKENS, reach=1), order=jnp.arange(TOKENS))
        options = {"positions": tokens, "causal": dims.causal, "extent": dims.extent, "implementation": implementation}
        k, v = (x[:, : dims.kv_heads] for x in (k, v))

        def total(q, k, v, params, options=options, weight=weight):
            return jnp.sum((weight * attend(case.encoding, q, k, v, params=params, **options)).astype(jnp.float32))

        step, operands = jax.grad(total, argnums=(0, 1, 2, 3)), (q, k, v, case.params)
        runs = jax.jit(functools.partial(step, *operands))(), jax.jit(step)(*operands)
        close(*jax.tree.map(lambda x: x.astype(jnp.float32), runs), 2e-2 if dtype == "bfloat16" else 1e-4)


@law(attends)
def permutation_moves_the_output(case: Case) -> None:
    """Tokens carried with their positions can come in any order; without hooks, positions do not matter at all."""
    args, tokens = in_order(case)
    order = np.random.default_rng(0).permutation(TOKENS)
    expected = run(case, args, tokens)[order]
    close(run(case, *with_tokens(args, jax.tree.map(lambda leaf: leaf[order], tokens), args.x[order])), expected)
    blind = not case.dims.causal and not any(getattr(case.encoding, hook) for hook in HOOKS - {"unplaced_bias"})
    stay = run(case, *with_tokens(args, tokens, args.x[order]))
    assert blind == bool(jnp.max(jnp.abs(stay - expected)) < 1e-4)


@law(lambda case: attends(case) and case.setting in DIFFERENTIATED)
def the_future_is_not_seen(case: Case) -> None:
    """`d out_i / d x_j = 0` for j > i under the causal mask, and nowhere else."""
    args, tokens = in_order(case)
    step = lambda i: gradients(case, args, tokens, no_weight(case).at[i].set(1.0), "reference")
    rows = [step(i)[1].x for i in range(TOKENS)]
    seen = np.asarray(jnp.max(jnp.abs(jnp.stack(rows)), axis=-1) > 0)
    np.testing.assert_array_equal(
        seen, np.tri(TOKENS, dtype=bool) if case.dims.causal else np.ones((TOKENS, TOKENS), bool)
    )


@law(lambda case: attends(case) and case.setting == "causal")
def the_future_is_not_seen_where_positions_restart(case: Case) -> None:
    """No output changes with a later token, whatever the positions are, without an order and segments."""
    args, _ = in_order(case)
    later, slots = 6, np.arange(TOKENS)
    for at in (slots, slots % 4, np.maximum(slots - 5, 0), slots[::-1]):
        plain = TokenPositions(jnp.asarray(at, jnp.int32))
        outputs = [
            forward(case, *with_tokens(args, plain, x), "reference") for x in (args.x, args.x.at[later:].add(3.0))
        ]
        np.testing.assert_array_equal(outputs[0][:later], outputs[1][:later])
        assert jnp.any(outputs[0][later:] != outputs[1][later:])


@law(attends)
def packed_is_separate(case: Case) -> None:
    """Two sequences in one row, each with its own positions, are two rows."""
    args, tokens = in_order(case)
    at = jnp.concatenate([tokens.positions[:6], tokens.positions[:5]])
    first, segments = jnp.arange(TOKENS) < 6, tokens.segment_ids
    packed = run(
        case, *with_tokens(args, tokens._replace(positions=at, segment_ids=segments + first.astype(jnp.int32)), args.x)
    )
    for mine in (first, ~first):
        noise = jnp.where(mine[:, None], args.x, 100.0)
        alone = tokens._replace(positions=at, segment_ids=mine.astype(jnp.int32))
        output = run(case, *with_tokens(args, alone, noise))
        close(output[mine], packed[mine])
        assert not jnp.any(output[~mine]), "padding gives zeros"


@law(has_pairings)
def half_is_permuted_interleaved(case: Case) -> None:
    """Pairs (i, F + i) are pairs (2i, 2i + 1) of permuted channels."""
    half, interleaved = (make_encoding(f"{case.spec}(pairing={kind!r})", case.dims) for kind in ("half", "interleaved"))
    x = normal(7, case.dims.heads, case.dims.head_dim)
    at = draw(case, 7)
    order = jnp.concatenate([jnp.arange(0, case.dims.head_dim, 2), jnp.arange(1, case.dims.head_dim, 2)])
    rotated = jax.jit(interleaved.rotate)(case.settled, x, at)
    close(jax.jit(half.rotate)(case.settled, x[..., order], at), rotated[..., order], 1e-6)


@law(lambda case: case.setting in SIZES)
def sizes_in_one_batch_are_each_alone(case: Case, *, slopes: bool | None = None) -> None:
    """Images of several sizes in one padded batch, each at its own traced grid, are each alone, gradients included.

    Unless `slopes` says otherwise, the gradients are those of images; `-m long` adds those of volumes.
    """
    slopes = case.setting == "image" if slopes is None else slopes
    dims, count = case.dims, len(SIZES[case.setting])
    longest = max(map(math.prod, SIZES[case.setting]))
    x, weight = normal(count, longest + 2, dims.width), normal(count, longest + 2, dims.heads, dims.head_dim, seed=1)
    kernels = 0.2 * normal(3, dims.width, dims.heads * dims.head_dim, seed=2)
    close(*of_sizes(case, case.params, x, kernels, weight, slopes), 1e-4)
