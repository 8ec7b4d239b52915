"""Encodings as values, before they are made: specs, sums and patterns over layers, and the functions that read them.

    spec = parse("rope(base=500000)").extended(pejax.extensions.yarn(factor=8))
    encoding = pejax.make_encoding(spec, dims)
    config = pejax.models.decoder(pe=parse_pattern("rope*3 + none*1"))

`str` writes a spec, for files and messages.
"""

from pejax._naming.parse import parse, parse_call, parse_extension, parse_pattern
from pejax._record.specs import EncodingSpec, LayerPattern, Spec, SumSpec

__all__ = [
    "EncodingSpec",
    "LayerPattern",
    "Spec",
    "SumSpec",
    "parse",
    "parse_call",
    "parse_extension",
    "parse_pattern",
]
