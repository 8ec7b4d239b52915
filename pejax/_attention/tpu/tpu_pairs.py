"""A bias of pairs inside a Mosaic kernel: the programs of `kernels.pairs`, run on arrays that Mosaic lowers well."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from pejax._attention.kernels.pairs import Pairs, Program, dtype_of, shape_of
from pejax._attention.tpu.tpu_operations import Operations
from pejax._attention.tpu.tpu_values import Operand, channels_of, kept_type, kind_of, literal, of_tile

BLOCK = 256
"""Largest number of queries, and of keys, in a tile, where the programs make at most `VALUES` numbers for each pair."""
VALUES = 64
"""Numbers for each pair, of which 64 take 16 MiB in a tile of 256."""
MOST_VALUES = 4096
"""Largest number of numbers for each pair: 3,562 were compiled, in tiles of 128, where few are needed at a time."""
Load = Callable[[int, str], Array]
"""`(index of an operand of the program, "row", "column" or "matrix") -> (1, C), (C, 1) or (C1, C2)`."""


class TilePairs:
    """A hook's programs in kernels, and the forms in which these read the programs' operands, found by a trial."""

    def __init__(self, pairs: Pairs, dim: int, axes: int) -> None:
        """Try the programs.

        Args:
            pairs: the hook.
            dim: D.
            axes: A.

        Raises:
            NotImplementedError: an operation that kernels cannot run.
        """
        self.pairs, self.values = pairs, 0
        self.gradients: dict[str, tuple[int, int]] = {}
        self._forms: dict[str, list[tuple[int, str]]] = {}
        s, t = TRIAL
        floats, ints = (functools.partial(jax.ShapeDtypeStruct, dtype=dtype) for dtype in (jnp.float32, jnp.int32))
        tile = [floats((dim, t)), floats((s, dim)), ints((axes, t)), ints((s, axes)), floats((s, t))]
        for name in PROGRAMS:
            if (program := getattr(pairs, name)) is not None:
                forms: dict[tuple[int, str], None] = {}
                jax.eval_shape(functools.partial(self._try, program, forms), *tile[: 4 if name == "bias" else 5])
                self._forms[name] = [*forms]
                shapes = [shape_of(x) for equation in program.tile.eqns for x in equation.outvars]
                self.values += sum(math.prod(channels_of(shape)) for shape in shapes if kind_of(shape) == "st")
        if self.values > MOST_VALUES:
            raise NotImplementedError(
                f"makes {self.values:,} numbers for each pair, with gradients; at most {MOST_VALUES:,}"
            )
        for i, shape in pairs.learned.items():
            self.gradients[f"number{i}"] = gradient_shape(shape)

    def largest_block(self, lanes: int) -> int:
        """Return the largest number of queries, and of keys, in a tile whose values fit into vector memory."""
        return BLOCK if self.values <= VALUES else lanes

    def _try(self, program: Program, forms: dict[tuple[int, str], None], *tile: Array) -> list[Array]:
        def load(i: int, form: str) -> Array:
            forms[i, form] = None
            variable = program.tile.invars[i]
            return jnp.zeros(form_shape(shape_of(variable), form), kept_type(dtype_of(variable)))

        return run(program, load, tile, TRIAL, sums=program is not self.pairs.bias)

    def operands(self, name: str, numbers: list[Array], heads: int) -> dict[str, Array]:
        """Return the operands `(H, R, C)` of a program by name, from the numbers of all heads."""
        if name not in self._forms:
            return {}
        arrays, results = jax.vmap(getattr(self.pairs, name).outside, axis_size=heads)(numbers), {}
        for i, form in self._forms[name]:
            array = arrays[i].astype(jnp.int32 if arrays[i].dtype == bool else kept_type(arrays[i].dtype))
            results[f"{name} {i} {form}"] = array.reshape(len(array), *form_shape(array.shape[1:], form))
        return results

    def run(self, name: str, refs: dict[str, Any], tile: Sequence[Array], sizes: tuple[int, int]) -> list[Array]:
        """Run a program in a kernel."""
        program = getattr(self.pairs, name)

        def load(i: int, form: str) -> Array:
            data, is_truth = refs[f"{name} {i} {form}"][0], dtype_of(program.tile.invars[i]) == jnp.bool_
            return data != 0 if is_truth else data

        return run(program, load, tile, sizes, sums=program is not self.pairs.bias)


PROGRAMS = ("bias", "query_gradients", "key_gradients")
"""The programs of `Pairs`."""
TRIAL = (8, 128)
"""Keys and queries of the tile on which programs are tried."""


def form_shape(shape: Sequence[int], form: str) -> tuple[int, int]:
    """Return the size of an array without tokens in one form."""
    wide, size = [x for x in shape if x > 1], math.prod(shape)
    return {"row": (1, size), "column": (size, 1)}.get(form) or (wide[0], wide[1])


def gradient_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return the size in which kernels return the gradient of a number of this shape."""
    return form_shape(shape, "matrix" if len([x for x in shape if x > 1]) > 1 else "row")


def run(program: Program, load: Load, tile: Sequence[Array], sizes: tuple[int, int], *, sums: bool) -> list[Array]:
    """Run a program on a tile; return its outputs as full arrays.

    Args:
        program: a program of `Pairs`.
        load: reads an operand.
        tile: its other inputs, arrays of the forms above.
        sizes: S and T.
        sums: whether the program may sum over tokens: gradients do, a bias may not.

    Raises:
        NotImplementedError: an operation that kernels cannot run.
    """
    jaxpr, emitter = program.tile, Operations(sizes)
    count = len(jaxpr.invars) - len(tile)
    values: dict[Any, Any] = {
        variable: Operand(shape_of(variable), dtype_of(variable), functools.partial(load, i))
        for i, variable in enumerate(jaxpr.invars[:count])
    }
    for variable, array in zip(jaxpr.invars[count:], tile, strict=True):
        values[variable] = of_tile(shape_of(variable), dtype_of(variable), array)
    read = lambda atom: literal(atom) if isinstance(atom, Literal) else values[atom]
    for equation in jaxpr.eqns:
        before, after = ({*"".join(map(kind_of, map(shape_of, side)))} for side in (equation.invars, equation.outvars))
        if not (sums or before <= after):
            raise NotImplementedError(f"combines tokens by {equation.primitive.name}: a pair must not depend on others")
        results = emitter.results(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [emitter.whole(read(atom)) for atom in jaxpr.outvars]
