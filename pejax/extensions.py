"""Ways to extend an encoding beyond the length or grid it was trained on, for the argument `extend` of every factory.

    rope = pejax.encodings.rope(dims, extend=pejax.extensions.yarn(factor=8) + pejax.extensions.log_n())

On a command line, the same extension is a string: `--extend="yarn(factor=8)+log_n"`.
"""

from collections.abc import Callable

from pejax._extensions.interpolation import pi
from pejax._extensions.linear import linear
from pejax._extensions.llama3 import llama3
from pejax._extensions.longrope import longrope
from pejax._extensions.ntk import dynamic_ntk, ntk
from pejax._extensions.resize import resize
from pejax._extensions.self_extend import rerope, self_extend
from pejax._extensions.slopes import slopes
from pejax._extensions.temperature import llama4, log_n
from pejax._extensions.yarn import yarn
from pejax._specs import Extension

__all__ = [
    "ANY_ENCODING",
    "EXTENSIONS",
    "ROTARY",
    "Extension",
    "dynamic_ntk",
    "linear",
    "llama3",
    "llama4",
    "log_n",
    "longrope",
    "ntk",
    "pi",
    "rerope",
    "resize",
    "self_extend",
    "slopes",
    "yarn",
]

ROTARY: dict[str, Callable[..., Extension]] = {
    "linear": linear,
    "ntk": ntk,
    "dynamic_ntk": dynamic_ntk,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": llama3,
}
"""Extensions of rotary frequencies that are fixed, not learned."""

ANY_ENCODING: dict[str, Callable[..., Extension]] = {
    "pi": pi,
    "self_extend": self_extend,
    "rerope": rerope,
    "log_n": log_n,
    "llama4": llama4,
}
"""Extensions that work on the record of any encoding; the docstring of each says what the record must have."""

EXTENSIONS: dict[str, Callable[..., Extension]] = {**ROTARY, **ANY_ENCODING, "slopes": slopes, "resize": resize}
"""All extensions by name."""
