"""No positional encoding: a causal mask alone tells a decoder where it is.

Reference:
    Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in Transformers"
    (arXiv 2305.19466).
"""

from pejax._encodings.factory import encoding_factory
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding
from pejax._record.specs import Extension


@encoding_factory()
def none(dims: Dims, *, extend: Extension | None = None) -> Encoding:
    """Make the encoding that does nothing: attention without a mask is then equivariant to permutations of tokens."""
    del dims, extend  # the decorator applies extensions
    return Encoding(shift_invariant=True)
