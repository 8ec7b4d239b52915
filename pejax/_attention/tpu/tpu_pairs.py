"""Hooks of pairs inside a Mosaic kernel: the programs of `kernels.pairs`, run on arrays that Mosaic lowers well."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array

from pejax._attention.kernels.pairs import Pairs, Values
from pejax._attention.kernels.programs import Program, dtype_of, shape_of
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
    """Programs of hooks in kernels, and the forms in which these read the programs' operands, found by a trial.

    Attributes:
        pairs: the `bias` hook, or None.
        values: the `relative_values` hook, or None.
        gradients: sizes of the gradients of the numbers of both, by name.
    """

    def __init__(self, pairs: Pairs | None, values: Values | None, dim: int, axes: int) -> None:
        """Try the programs.

        Args:
            pairs: the `bias` hook.
            values: the `relative_values` hook.
            dim: D.
            axes: A.

        Raises:
            NotImplementedError: an operation that kernels cannot run.
        """
        self.pairs, self.values, self._count = pairs, values, 0
        self.gradients: dict[str, tuple[int, int]] = {}
        self._forms: dict[str, list[tuple[int, str]]] = {}
        s, t = TRIAL
        floats, ints = (functools.partial(jax.ShapeDtypeStruct, dtype=dtype) for dtype in (jnp.float32, jnp.int32))
        queries, of_pairs, positions = floats((dim, t)), floats((s, t)), [ints((axes, t)), ints((s, axes))]
        tile, weighed = [queries, floats((s, dim)), *positions], [*positions, of_pairs]
        inputs = (tile, [*tile, of_pairs], [*tile, of_pairs], weighed, [*weighed, queries], [*weighed, queries])
        for name, shapes in zip(PROGRAMS, inputs, strict=True):
            if (program := self.program(name)) is not None:
                self._forms[name] = self._forms_of(name, program, shapes)
        if self._count > MOST_VALUES:
            raise NotImplementedError(
                f"makes {self._count:,} numbers for each pair, with gradients; at most {MOST_VALUES:,}"
            )
        for prefix, hook in (("number", pairs), ("value number", values)):
            learned = {} if hook is None else hook.learned
            self.gradients |= {f"{prefix} {i}": gradient_shape(shape) for i, shape in learned.items()}

    def program(self, name: str) -> Program | None:
        """Return a program of `Pairs` or of `Values`, if there is one of this name."""
        return getattr(self.pairs, name, None) or getattr(self.values, name, None)

    def largest_block(self, lanes: int) -> int:
        """Return the largest number of queries, and of keys, in a tile whose values fit into vector memory."""
        return BLOCK if self._count <= VALUES else lanes

    def _forms_of(self, name: str, program: Program, shapes: Sequence[Any]) -> list[tuple[int, str]]:
        """Return the operands that a program reads, by place and form, and count its numbers for each pair."""
        forms: dict[tuple[int, str], None] = {}

        def load(i: int, form: str) -> Array:
            forms[i, form] = None
            variable = program.tile.invars[i]
            return jnp.zeros(form_shape(shape_of(variable), form), kept_type(dtype_of(variable)))

        jax.eval_shape(lambda *tile: run(program, load, tile, TRIAL, sums=name != "bias"), *shapes)
        results = [shape_of(x) for equation in program.tile.eqns for x in equation.outvars]
        self._count += sum(math.prod(channels_of(shape)) for shape in results if kind_of(shape) == "st")
        return [*forms]

    def operands(self, name: str, numbers: list[Array], heads: int) -> dict[str, Array]:
        """Return the operands `(H, R, C)` of a program by name, from the numbers of all heads."""
        if name not in self._forms:
            return {}
        program: Any = self.program(name)
        arrays, results = jax.vmap(program.outside, axis_size=heads)(numbers), {}
        for i, form in self._forms[name]:
            array = arrays[i].astype(jnp.int32 if arrays[i].dtype == bool else kept_type(arrays[i].dtype))
            results[f"{name} {i} {form}"] = array.reshape(len(array), *form_shape(array.shape[1:], form))
        return results

    def run(self, name: str, refs: dict[str, Any], tile: Sequence[Array], sizes: tuple[int, int]) -> list[Array]:
        """Run a program in a kernel."""
        program: Any = self.program(name)

        def load(i: int, form: str) -> Array:
            data, is_truth = refs[f"{name} {i} {form}"][0], dtype_of(program.tile.invars[i]) == jnp.bool_
            return data != 0 if is_truth else data

        return run(program, load, tile, sizes, sums=name != "bias")


PROGRAMS = ("bias", "query_gradients", "key_gradients", "values", "weight_gradients", "number_gradients")
"""The programs of `Pairs`, then those of `Values`."""
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
        program: a program of `Pairs` or `Values`.
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
