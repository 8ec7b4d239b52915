"""Numbers from the host keep their digits or are refused, at every public door that reads positions, ids or labels.

A door is a parameter of a public function whose name says so. The reference is NumPy's float64.
"""

import inspect
import re
import typing
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import AbstractArray

import pejax
from pejax import models
from pejax._calls.arguments import read_arguments
from pejax._calls.host import DigitsLost, check_digits
from pejax._tokens.positions import as_token_positions
from pejax.models.generation.prompts import as_prompts
from tests.support.cases import slow
from tests.support.plain_calls import GROUPS, Call, plain_calls

DOOR = re.compile(r"(^|_)(positions|relative|order|ids|labels|source|target|segments|tokens|attention_mask)$")
"""Names of parameters that hold positions or ids."""

NO_DOORS = {
    "pairing_permutation": "source and target are names of pairings",
    "text": "tokens is a count",
    **dict.fromkeys(("sound", "mutual", "causal", "blocks"), "tokens is a count"),
    "unplaced": "tokens is a count",
    "segment_ids_of": "it reads whatever the host holds",
    "generate": "as_prompts reads its ids",
    "generate_answers": "as_prompts reads its ids",
    "stream": "as_prompts reads its ids",
    "cross_context": "a step inside compiled loops; the stack reads its tokens",
    "cached": "a step inside compiled loops; the stack reads its tokens",
}
"""Functions with a parameter of such a name that is read in another way, and why."""

STAMPS = np.asarray([1764200000.3, 1764200001.3])
"""Seconds since 1970; float32 keeps every 128th."""

WHOLE = np.asarray([5, 2**32 + 5])
WRAPPING = [WHOLE, WHOLE.astype(np.uint64), np.asarray([0, 2**31], np.uint32), WHOLE.tolist(), [2**70, 1]]
ROUNDED = [STAMPS, STAMPS.tolist(), 2.0**30 + np.asarray([0.0, 1.0, 64.0]), np.asarray([1e300, 1.0])]
TIMES = [STAMPS.astype("datetime64[s]"), STAMPS.astype("timedelta64[s]"), list(STAMPS.astype("datetime64[s]"))]


def functions() -> dict[str, Callable]:
    """Return the public functions, and the public methods of the models."""
    rooms = (pejax, pejax.functions, pejax.placement, models)
    result = {name: getattr(room, name) for room in rooms for name in room.__all__}
    for cls in (models.Decoder, models.EncoderDecoder, models.ViT, models.DiT, models.PositionalAttention):
        own = {name: item for name, item in vars(cls).items() if name == "__call__" or not name.startswith("_")}
        result |= {f"{cls.__name__}.{name}": item for name, item in own.items()}
    return {name: item for name, item in result.items() if inspect.isroutine(item)}


def doors() -> Iterator[Any]:
    """Yield every function with every parameter of it that holds positions or ids."""
    for name, function in functions().items():
        for parameter in inspect.signature(function).parameters.values():
            if DOOR.search(parameter.name) and name.rpartition(".")[2] not in NO_DOORS:
                yield pytest.param(function, parameter, id=f"{name}-{parameter.name}")


class Thing:
    """A value that no function takes."""


def check_read(function: Callable) -> None:
    """Call a function with things alone: it must refuse the first by its annotation, as functions do that read them."""
    needed = [item for item in inspect.signature(function).parameters.values() if item.default is item.empty]
    with pytest.raises(TypeError, match=r"must be .*, got Thing"):
        function(**{item.name: Thing() for item in needed if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)})


def arrays(hint: Any) -> set[str]:
    """Return which arrays of JAX an annotation takes, "Num" or "Int" among them."""
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return {hint.dtype.__name__} if hint.array_type is jax.Array else set()
    return set().union(*map(arrays, typing.get_args(hint)))


def hostile(hint: Any) -> Iterator[tuple[str, Any]]:
    """Yield words of the refusal, and values that JAX's 32 bits would change."""
    result = arrays(hint)
    if result & {"Num", "Int"}:
        yield from (("must fit int32, got ", item) for item in WRAPPING)
    if "Num" in result:
        yield from (("must not lose digits in float32, got ", item) for item in ROUNDED)
        yield from (("got (date|time).*offset_positions", item) for item in TIMES)
    if pejax.TokenPositions in (hint, *typing.get_args(hint)):
        record: Any = pejax.TokenPositions
        yield from ((rf"\.{name} must fit int32", record(**{name: item})) for name, item in [("positions", WHOLE)])
        for item in WRAPPING:
            yield r"\.order must fit int32, got .*numpy.unique", record(np.arange(2), order=item)
            yield r"\.segment_ids must fit int32, got .*segment_ids_of", record(np.arange(2), segment_ids=item)
        yield from ((r"\.positions must not lose digits.*offset_positions", record(item)) for item in ROUNDED)


@pytest.mark.parametrize(("function", "parameter"), list(doors()))
def test_no_door_changes_a_number_from_the_host(function, parameter):
    check_read(function)
    values = list(hostile(parameter.annotation))
    assert values, f"{parameter.annotation} keeps no digits"
    only = inspect.Signature([parameter.replace(kind=parameter.KEYWORD_ONLY)])
    for words, value in values:
        with pytest.raises(ValueError, match=words) as refusal:
            read_arguments("door", only, {parameter.name: value})
        assert "\n" not in str(refusal.value)


def test_prompts_and_records_behind_the_doors_keep_their_digits():
    with pytest.raises(
        ValueError, match="segment_ids must fit int32, got 4294967301, which would become 5: number the"
    ):
        as_prompts(np.ones((1, 2), int), WHOLE[None], 16)
    with pytest.raises(ValueError, match="prompts must be from 0 to 15, one of 16 ids, got 4294967301"):
        as_prompts(WHOLE[None], None, 16)
    for item in (STAMPS, pejax.TokenPositions(STAMPS)):
        with pytest.raises(ValueError, match="positions must not lose digits in float32"):
            as_token_positions(item)


@pytest.mark.parametrize("kind", [np.uint32, np.uint64])
def test_unsigned_numbers_become_signed(kind):
    assert pejax.packed_positions(np.ones((1, 2), kind)).segment_ids.dtype == jnp.int32
    assert as_token_positions(np.arange(2, dtype=kind)).positions.dtype == jnp.int32


@pytest.mark.parametrize(
    ("values", "refused"),
    [
        ([2**31 - 1, -(2**31)], None),
        ([2**31], "must fit int32, got 2147483648, which would become -2147483648"),
        ([16383.3, 0.0], None),  # rounded by less than 2^-11
        ([100000.3, 100001.3], "got 100000.3, which would become 100000.296875"),
        ([100000.3, 0.0], None),  # 2^-20 of the span are 0.1
        ([[0.0, 1.5], [1764200000.0, 1764200001.5]], "got 1764200000.0"),  # rows, each with a span of its own
        ([[1764200000.5, 3, 4], [1764200001.5, 3, 5]], "got 1764200000.5"),  # (time, row, column)
        ([[0.0, 0.3, 1e6 + 0.3, 2e6, 3e6]] * 2, None),
        ([np.nan, np.inf, 0.0], None),
        ([np.nan, 1764200000.3], "got 1764200000.3"),
    ],
)
def test_the_law(values, refused):
    array = np.asarray(values)
    if refused is None:
        check_digits(array)
    else:
        with pytest.raises(DigitsLost, match=refused):
            check_digits(array)


ACCEPTED = {
    "int64": np.arange(3) + 2**31 - 4,
    "uint64": np.arange(3, dtype=np.uint64),
    "uint32": np.arange(3, dtype=np.uint32) + np.uint32(7),
    "uint8": np.asarray([0, 255, 1], np.uint8),
    "list": [5, 2**31 - 1, 0],
    "float64": np.asarray([0.1, 7.3, 12.25]),
    "floats": [0.1, 7.3, 12.25],
    "float32": np.asarray([2.0**31, 2.0**31 + 256, 0.5], np.float32),
}


def rotated(positions: np.ndarray) -> np.ndarray:
    """Return ones rotated at the first frequency of two, 1, in float64."""
    return np.stack([np.cos(positions) - np.sin(positions), np.sin(positions) + np.cos(positions)], axis=-1)


REFERENCES: dict[str, tuple[Callable, Callable]] = {
    "rope_apply": (lambda p: pejax.rope_apply(jnp.ones((3, 1, 2)), p)[:, 0], rotated),
    "sinusoidal_embedding": (
        lambda p: pejax.sinusoidal_embedding(p, 2), lambda p: np.stack([np.sin(p), np.cos(p)], axis=-1)
    ),
    "alibi_bias": (
        lambda p: pejax.alibi_bias(p, p, jnp.ones(1))[0], lambda p: -np.abs(p[:, None] - p[None])
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ACCEPTED)
@pytest.mark.parametrize("name", REFERENCES)
def test_what_is_accepted_is_right_to_float64(name, kind):
    function, reference = REFERENCES[name]
    value = ACCEPTED[kind]
    held = np.asarray(value).astype(np.float32 if np.asarray(value).dtype.kind == "f" else np.int64)
    np.testing.assert_allclose(function(value), reference(held.astype(np.float64)), rtol=2e-7, atol=4e-7)


@pytest.mark.parametrize("kind", [np.float16, jnp.bfloat16])
def test_sixteen_bits_are_refused_by_name(kind):
    x, at = jnp.ones((3, 1, 8)), np.arange(3)
    with pytest.raises(TypeError, match=r"positions must be integers or float32, got .*float16, which is exact only"):
        pejax.rope_apply(x, at.astype(kind))
    frequencies = pejax.rope_frequencies(8)
    for array in (frequencies.astype(kind), np.asarray(frequencies).astype(kind)):
        with pytest.raises(TypeError, match=r"frequencies must be float32, got .*float16, off by up to .* rad at"):
            pejax.rope_apply(x, at, array)
        with pytest.raises(TypeError, match=r"frequencies must be float32, got .*float16"):
            pejax.extend_yarn(array, pejax.Rotary(10000.0, 8, 64), factor=4.0, trained_length=16)


def test_with_64_bits_nothing_is_lost():
    with jax.enable_x64(True):
        stamps = np.asarray([0, 250, 500]) + 1_732_000_000_000
        seen = pejax.rope_apply(jnp.ones((3, 1, 2)), stamps)[:, 0]
        np.testing.assert_allclose(seen, rotated(stamps.astype(np.longdouble)).astype(float), atol=4e-7)
        halves = np.asarray([0.0, 0.5, 1.0]) + 2.0**33
        np.testing.assert_array_equal(
            pejax.alibi_bias(halves, halves, jnp.ones(1, jnp.float32))[0, 0], [0.0, -0.5, -1.0]
        )


@pytest.mark.parametrize("second", [2**32 + 5, slow(2**32)])
@pytest.mark.parametrize("implementation", [slow("reference"), slow("blockwise"), slow("cpu"), "linear", "dense"])
def test_with_64_bits_segments_are_those_of_the_ids(implementation, second):
    q = jnp.linspace(-1, 1, 6 * 8).reshape(1, 6, 1, 8)
    alibi, rope = (make(pejax.Dims(1, 8, causal=True)) for make in (pejax.encodings.alibi, pejax.encodings.rope))

    def attend(ids: Any) -> jax.Array:
        positions = pejax.packed_positions(ids)
        if implementation == "linear":
            return pejax.linear_attention(rope, q, q, q, positions=positions)
        return pejax.attend(alibi, q, q, q, positions=positions, implementation=implementation)

    with jax.enable_x64(True):
        ids = np.repeat([[5, second]], 3, axis=1)
        np.testing.assert_array_equal(attend(ids), attend(np.repeat([[1, 2]], 3, axis=1)))


def same_values(value: Any) -> Iterator[Any]:
    """Yield an argument as the host may hold it: arrays of other widths, and lists."""
    if isinstance(value, pejax.TokenPositions):
        yield value._replace(
            **{name: next(same_values(item)) for name, item in value._asdict().items() if item is not None}
        )
    elif isinstance(value, np.ndarray | jax.Array) and np.issubdtype(value.dtype, np.integer):
        known = np.asarray(value)
        yield from (known.astype(np.int64), known.tolist())
        if known.min(initial=0) >= 0:
            yield from (known.astype(np.uint64), known.astype(np.uint32), known.astype(np.int8))
    else:
        yield value


def plain_doors(group: str) -> Iterator[tuple[str, Call, str]]:
    """Yield the plain calls of a group with each argument that is a door."""
    for name, call in plain_calls(group).items():
        parameters = inspect.signature(call.function).parameters
        for argument in call.arguments.keys() & parameters.keys():
            hint = parameters[argument].annotation
            if call.arguments[argument] is not None and any(hostile(hint)):
                yield name, call, argument


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("group", GROUPS)
def test_every_public_function_keeps_digits_or_refuses(group):
    """Values that fit give the plain result, and those that do not are refused before anything is computed."""
    with jax.numpy_dtype_promotion("standard"):
        for name, call, argument in plain_doors(group):
            plain = call.function(**call.arguments)
            for value in same_values(call.arguments[argument]):
                result = call.function(**{**call.arguments, argument: value})
                leaves = zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True)
                assert all(np.allclose(item, other, atol=1e-6, equal_nan=True) for item, other in leaves), (
                    name,
                    argument,
                )
            hint = inspect.signature(call.function).parameters[argument].annotation
            for words, value in hostile(hint):
                # Numbers that are no positions and no ids, such as factors, may be refused for their shape before.
                with pytest.raises(ValueError, match=words if DOOR.search(argument) else None):
                    call.function(**{**call.arguments, argument: value})


def test_padding_at_zero_does_not_widen_the_span():
    """Half of the row is padding at 0: the span of the others is 3 s, so 64 s are no rounding of it."""
    stamps = np.asarray([0.0, 0.0, 1.7642e9, 1.7642e9 + 1, 1.7642e9 + 3])
    with pytest.raises(ValueError, match="must not lose digits in float32"):
        pejax.rope_apply(jnp.ones((5, 2, 8)), stamps, pejax.rope_frequencies(8))


def test_a_list_of_known_and_traced_numbers_keeps_the_known_ones():
    late = np.int64(2**32 + 1)
    with pytest.raises(ValueError, match="must fit int32, got 4294967297"):
        jax.jit(lambda item: pejax.segment_positions([item, item, late]))(1)


@pytest.mark.parametrize("kind", ["u1", "u2", ">i4", ">i8", "<u8"])
def test_every_width_and_byte_order_of_integers_is_read(kind):
    assert pejax.segment_positions(np.asarray([1, 1, 2, 0], kind)).tolist() == [0, 1, 0, 0]


def test_hooks_that_are_called_directly_keep_digits():
    far = np.arange(3) + 2**32
    hook = pejax.from_distance(lambda params, relative: relative.astype(jnp.float32))
    with pytest.raises(ValueError, match="q_positions must fit int32, got 4294967298"):
        hook({}, jnp.ones((3, 8)), jnp.ones((3, 8)), far, np.arange(3))
