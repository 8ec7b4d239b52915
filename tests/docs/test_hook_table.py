"""The table of hooks in docs/encodings.md is what the record's docstring, every encoding and attention say."""

import inspect
import re
from dataclasses import fields
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import pejax
from pejax import Dims, Encoding
from pejax._record.encoding import split_params
from pejax.testing import settle
from tests.support.cases import mostly_slow

PAGE = Path(__file__).parents[2] / "docs" / "encodings.md"
ROW = re.compile(r"^\| `(\w+)` \| `(\(.*?\) -> .*?)` \|(.*?)\| ", re.MULTILINE)
HOOKS = {name: (call, shapes) for name, call, shapes in ROW.findall(PAGE.read_text())}
OF_PARAMS = ("init", "init_layer", "constants", "layer_constants", "adapt")

DIMS = {
    "sequence": Dims(heads=4, head_dim=12, kv_heads=2, extent=8),
    "image": Dims(heads=4, head_dim=12, kv_heads=2, axes=2, extent=(4, 2)),
}
SIZES = {"T": 5, "S": 7, "H": 4, "K": 2, "D": 12, "A": 2, "C": 48, "R": 6}


def shapes_of(hook: str, axes: int, batch: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the table gives for the arguments and results of a hook."""

    def read(shape: str) -> tuple[int, ...]:
        names = [name for name in re.split(r",\s*", shape.strip("()")) if name]
        return sum((batch if name == "*B" else (SIZES[name],) for name in names), ())

    result = re.findall(r"(\w+) `(\(.*?\))`(?:; `(\(.*?\))`)?", HOOKS[hook][1])
    return {name: read(grid if grid and axes > 1 else sequence) for name, sequence, grid in result}


def names_of(hook: str) -> tuple[list[str], list[str]]:
    """Return the names of the arguments and results of a hook."""
    before, after = HOOKS[hook][0].split(" -> ")
    return re.findall(r"\w+", before), re.findall(r"\w+", after)


def made(setting: str, name: str) -> Encoding:
    try:
        return pejax.make_encoding(name, DIMS[setting])
    except ValueError as refused:
        pytest.skip(f"{name} refuses these dims: {refused}")


def test_every_hook_has_the_call_that_the_record_says():
    """`bands` and the facts are no functions."""
    others = {"bands", "shift_invariant", "hides", "tabulate", "periods", "dims", "spec"}
    assert set(HOOKS) == {item.name for item in fields(Encoding)} - others
    said = inspect.getdoc(Encoding)
    for hook, (call, _) in HOOKS.items():
        same = {"rotate_keys": "rotate"}.get(hook, hook)
        assert re.search(rf"^ *{same}: `{re.escape(call)}`", said, re.MULTILINE), f"{hook}: {call}"


@pytest.mark.parametrize("setting", DIMS)
@pytest.mark.parametrize("name", mostly_slow(pejax.ENCODINGS, ("learned", "rope", "fire", "shaw", "transformer_xl")))
def test_every_encoding_takes_and_gives_the_shapes_of_the_table(name, setting):
    dims, encoding = DIMS[setting], made(setting, name)
    params = jax.eval_shape(lambda key: settle(encoding, pejax.init_params(encoding, key), dims), jax.random.key(0))
    shared, heads = split_params(params)
    one_head = {**shared, **jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), heads)}
    for hook in HOOKS.keys() - OF_PARAMS:
        function = getattr(encoding, hook)
        for batch in ((), (3,)) if function else ():
            shapes, (taken, results) = shapes_of(hook, dims.axes, batch), names_of(hook)
            kind = lambda argument: jnp.int32 if "positions" in argument or argument == "relative" else jnp.float32
            values = [jax.ShapeDtypeStruct(shapes[argument], kind(argument)) for argument in taken[1:]]
            result = jax.eval_shape(function, one_head if "params_h" in taken else params, *values)
            expected = [shapes[result] for result in results]
            assert [leaf.shape for leaf in jax.tree.leaves(result)] == expected, (hook, batch)


@pytest.mark.parametrize("setting", DIMS)
def test_attention_calls_hooks_with_the_arguments_of_the_table(setting):
    """Ranks are compared: how large a tile is, attention decides."""
    dims, seen = DIMS[setting], {}

    def noting(hook, result):
        def called(params, *arguments):
            del params
            seen.setdefault(hook, set()).add(tuple(argument.ndim for argument in arguments))
            return result(*arguments)

        return called

    hooks = {
        "rotate": lambda x, positions: x,
        "rotate_keys": lambda x, positions: x,
        "unplaced_bias": lambda: jnp.float32(0),
        "relative_values": lambda weights, q_positions, k_positions: jnp.zeros((len(weights), dims.head_dim)),
    }
    pairs = {
        "bias": lambda q, k, q_positions, k_positions: jnp.zeros((len(q), len(k))),
        "distance_bias": lambda relative: jnp.zeros(len(relative)),
    }
    q, k = (jnp.ones((3, 8, heads, dims.head_dim)) for heads in (dims.heads, dims.kv_heads))
    positions = jnp.arange(8) if dims.axes == 1 else pejax.grid_positions(4, 2)
    where = pejax.TokenPositions(positions, has_position=jnp.arange(8) > 0)
    for item in pairs:
        record = Encoding(**{hook: noting(hook, result) for hook, result in {**hooks, item: pairs[item]}.items()})
        jax.eval_shape(lambda q, k, record=record: pejax.attend(record, q, k, k, positions=where, causal=False), q, k)
    assert set(seen) == {*hooks, *pairs}
    for hook, ranks in seen.items():
        expected = [
            tuple(len(shapes_of(hook, dims.axes, batch)[name]) for name in names_of(hook)[0][1:])
            for batch in ((), (3,))
        ]
        shapes_of_rows = (
            {(*expected[1][:1], *expected[0][1:])} if hook.startswith("rotate") else set()
        )  # one row of positions
        assert ranks <= {*expected, *shapes_of_rows}, hook
