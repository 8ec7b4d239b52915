"""Encodings of layers of several kinds in one string: a period over the layers.

    rope(base=1e4)*5 + rope(base=1e6)*1     five layers with the first, one with the second, and so on
    rope*3 + none*1                         every fourth layer without position
    (learned+rope)*1 + rope*1               parentheses around a sum that one layer composes (`make_encoding`)

A string without `*` is the encoding of all layers. In a period, a term without `*` counts once.
"""

import ast

from pejax._make import Spec, expression, parse_spec, split_sum, sum_terms

DEEPEST = 10_000
"""Most layers of a period: more than any model has, and few enough to list."""


def layer_specs(pe: str, layers: int) -> tuple[str, ...]:
    """Return the spec of every layer's encoding.

    Args:
        pe: the spec of an encoding, or a period over the layers.
        layers: L.

    Raises:
        ValueError: a count that is no positive integer, or a period of more layers than the model has, or than 10,000.

    Examples:
        >>> layer_specs("rope(base=1e4)*2 + none*1", 4)
        ('rope(base=1e4)', 'rope(base=1e4)', 'none', 'rope(base=1e4)')
        >>> layer_specs("learned+rope", 2)
        ('learned+rope', 'learned+rope')
    """
    period = _period(pe)
    if len(period) > layers:
        raise ValueError(f"pe={pe!r} has a period of {len(period)} layers, the model has {layers}")
    return tuple(period[layer % len(period)] for layer in range(layers))


def first_spec(pe: str) -> str:
    """Return the spec of the first layer's encoding."""
    return _period(pe)[0]


def encoding_specs(pe: str) -> list[Spec]:
    """Return every encoding that a spec or a period names, parsed and checked.

    Raises:
        ValueError: what `layer_specs` or `make_encoding` refuses.
        TypeError: an argument of a wrong type.
    """
    distinct = dict.fromkeys(_period(pe))
    return [parse_spec(term) for spec in distinct for term in split_sum(spec, what="an encoding")]


def _period(pe: str) -> list[str]:
    """Return the spec of every layer of a period; one where all layers are alike."""
    terms = _terms(pe)
    if not any(isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult) for term in terms):
        return [pe]
    counted = [_counted(pe.strip(), term) for term in terms]
    layers = sum(count for _, count in counted)
    if layers > DEEPEST:
        raise ValueError(f"a period must have at most {DEEPEST:,} layers, got {layers:,}")
    return [spec for spec, count in counted for _ in range(count)]


def _terms(pe: str) -> list[ast.expr]:
    """Return the terms of a sum; none for what is no expression, which `make_encoding` refuses."""
    try:
        return sum_terms(expression(pe, "an encoding"), "an encoding")
    except ValueError:
        return []


def _counted(pe: str, term: ast.expr) -> tuple[str, int]:
    """Return the spec of a term, and for how many layers it stands."""
    one, count = term, ast.Constant(1)
    if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult):
        one, count = term.left, term.right
    if not isinstance(count, ast.Constant) or type(count.value) is not int or count.value < 1:
        raise ValueError(f"a period counts layers by positive integers, got {ast.get_source_segment(pe, count)!r}")
    return str(ast.get_source_segment(pe, one)), count.value


def check_spec(pe: object) -> None:
    """Raise TypeError if the encoding of a model's settings is not a string, for example if it is a record."""
    if not isinstance(pe, str):
        raise TypeError(f"pe must be a string such as 'rope' or 'alibi(learned=True)', got {type(pe).__name__}")
