"""No positional encoding: a causal mask alone tells a decoder where it is.

Reference:
    Kazemnejad et al. 2023, "The Impact of Positional Encoding on Length Generalization in Transformers"
    (arXiv 2305.19466).
"""

from pejax._encoding import Dims, Encoding
from pejax._tokens import encoding_factory


@encoding_factory
def none(dims: Dims) -> Encoding:
    """Make the encoding that does nothing: attention without a mask is then equivariant to permutations of tokens."""
    del dims
    return Encoding(shift_invariant=True)
