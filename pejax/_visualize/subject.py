"""The subject of pictures: one encoding, the dims it was made for, its parameters, and how it is called and colored."""

from collections.abc import Mapping

from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params
from pejax._visualize.layer import refuse
from pejax._visualize.style import theme_of


class Subject:
    """An encoding as it is drawn.

    Attributes:
        encoding: the record.
        dims: the dims that it was made for.
        params: its parameters, not yet adapted; None = the initial ones.
        name: its name in titles.
        colors: the colors of the theme.
    """

    def __init__(
        self,
        encoding: Encoding,
        params: Params | None = None,
        *,
        name: str | None = None,
        theme: str = "light",
        dims: Dims | None = None,
    ) -> None:
        """Name what is drawn.

        Args:
            encoding: the record.
            params: its parameters, not yet adapted. None = the initial ones.
            name: its name in titles. None = titles without a name.
            theme: "light" or "dark".
            dims: the dims that it was made for. None = its own.

        Raises:
            ValueError: an unknown theme, or no dims with an encoding that has none.
        """
        self.encoding, self.params, self.name = encoding, params, name
        self.colors = theme_of("Pictures", theme)
        self.dims = dims_of("Pictures", dims, {"": encoding})

    @property
    def parts(self) -> tuple[Encoding, Dims, Params | None]:
        """The encoding, its dims and its parameters."""
        return self.encoding, self.dims, self.params


def dims_of(picture: str, dims: Dims | None, encodings: Mapping[str, Encoding]) -> Dims:
    """Return the dims given, or those that all encodings were made for; refuse encodings without dims or of several."""
    if dims is not None:
        return dims
    made_for = list(dict.fromkeys(encoding.dims for encoding in encodings.values()))
    if len(made_for) != 1 or made_for[0] is None:
        got = "encodings that were made for different dims" if len(made_for) > 1 else "an encoding made without dims"
        refuse(picture, "dims must be given where the encodings do not say them", got)
    return made_for[0]
