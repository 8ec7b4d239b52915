"""The encodings by name, and their factories: `(dims, **options) -> Encoding`."""

from typing import NoReturn

from pejax._encodings.alibi import alibi
from pejax._encodings.cpb import cpb
from pejax._encodings.factory import EncodingFactory
from pejax._encodings.fire import fire
from pejax._encodings.fourier import fourier
from pejax._encodings.kerple import kerple
from pejax._encodings.learned import learned
from pejax._encodings.lookhere import lookhere
from pejax._encodings.none import none
from pejax._encodings.relative_table import relative_table
from pejax._encodings.rope import rope
from pejax._encodings.rope_axial import rope_axial
from pejax._encodings.rope_mixed import rope_mixed
from pejax._encodings.shaw import shaw
from pejax._encodings.sinusoidal import sinusoidal
from pejax._encodings.t5 import t5
from pejax._encodings.transformer_xl import transformer_xl
from pejax._record.presets import PRESETS

__all__ = [
    "ENCODINGS",
    "PRESETS",
    "alibi",
    "cpb",
    "fire",
    "fourier",
    "kerple",
    "learned",
    "lookhere",
    "none",
    "relative_table",
    "rope",
    "rope_axial",
    "rope_mixed",
    "shaw",
    "sinusoidal",
    "t5",
    "transformer_xl",
]


class Encodings(dict[str, EncodingFactory[...]]):
    """The factories by name, to which `pejax.register_encoding` adds checked ones of your own."""

    def _refuse(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError("ENCODINGS takes checked factories: call pejax.register_encoding(name, factory)")

    __setitem__ = __ior__ = setdefault = update = _refuse  # pyright: ignore[reportAssignmentType]


ENCODINGS = Encodings({
    "alibi": alibi,
    "cpb": cpb,
    "fire": fire,
    "fourier": fourier,
    "kerple": kerple,
    "learned": learned,
    "lookhere": lookhere,
    "none": none,
    "relative_table": relative_table,
    "rope": rope,
    "rope_axial": rope_axial,
    "rope_mixed": rope_mixed,
    "shaw": shaw,
    "sinusoidal": sinusoidal,
    "t5": t5,
    "transformer_xl": transformer_xl,
})  # fmt: skip
"""The factories by name."""
