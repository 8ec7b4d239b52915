"""Ways to extend an encoding beyond the length or grid it was trained on, for the argument `extend` of every factory.

    rope = pejax.encodings.rope(dims, extend=pejax.extensions.yarn(factor=8) + pejax.extensions.log_n())

On a command line, the same extension is a string: `--extend="yarn(factor=8)+log_n"`.
"""

from collections.abc import Callable

from pejax._extensions.by_step import by_step
from pejax._extensions.clips import hard_clip, soft_clip
from pejax._extensions.interpolation import pi
from pejax._extensions.linear import linear
from pejax._extensions.llama3 import llama3
from pejax._extensions.longrope import longrope
from pejax._extensions.ntk import dynamic_ntk, ntk
from pejax._extensions.own import extension
from pejax._extensions.resize import resize
from pejax._extensions.resonance import resonance
from pejax._extensions.riflex import riflex
from pejax._extensions.self_extend import rerope, self_extend
from pejax._extensions.slopes import slopes
from pejax._extensions.temperature import llama4, log_n
from pejax._extensions.yarn import yarn
from pejax._record.specs import Extension

__all__ = [
    "ANY_ENCODING",
    "EXTENSIONS",
    "ROTARY",
    "Extension",
    "by_step",
    "dynamic_ntk",
    "extension",
    "hard_clip",
    "linear",
    "llama3",
    "llama4",
    "log_n",
    "longrope",
    "ntk",
    "pi",
    "rerope",
    "resize",
    "resonance",
    "riflex",
    "self_extend",
    "slopes",
    "soft_clip",
    "yarn",
]

ROTARY: dict[str, Callable[..., Extension]] = {
    "linear": linear,
    "ntk": ntk,
    "dynamic_ntk": dynamic_ntk,
    "yarn": yarn,
    "longrope": longrope,
    "llama3": llama3,
    "riflex": riflex,
    "soft_clip": soft_clip,
    "hard_clip": hard_clip,
    "resonance": resonance,
    "by_step": by_step,
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
