"""`Dims`: the sizes of a model that an encoding may depend on."""

from dataclasses import dataclass

from pejax._calls.arguments import checked


@dataclass(frozen=True, init=False)
class Dims:
    """The sizes of a model that an encoding may depend on. Equal dims have equal hashes.

    Args:
        heads: H, query heads.
        head_dim: D, channels per head.
        width: C, channels of the residual stream. None = H·D.
        kv_heads: K, key/value heads; H must be a multiple of K. None = H.
        axes: A, position axes: 1 for a sequence, 2 for an image.
        extent: the trained length (axes = 1) or grid (axes > 1), in tokens. None = unknown.
        scale: factor that multiplies q·k. None = head_dim**-0.5.
        causal: whether keys after the query are masked.

    Raises:
        ValueError: a count below 1, heads that are not a multiple of kv_heads, or an extent that does not match axes.

    Examples:
        >>> dims = Dims(heads=8, head_dim=64, kv_heads=2, extent=2048, causal=True)
        >>> dims.width, dims.scale
        (512, 0.125)
    """

    heads: int
    head_dim: int
    width: int
    kv_heads: int
    axes: int
    extent: int | tuple[int, ...] | None
    scale: float
    causal: bool

    @checked
    def __init__(
        self,
        heads: int,
        head_dim: int,
        *,
        width: int | None = None,
        kv_heads: int | None = None,
        axes: int = 1,
        extent: int | tuple[int, ...] | None = None,
        scale: float | None = None,
        causal: bool = False,
    ) -> None:
        width = heads * head_dim if width is None else width
        kv_heads = heads if kv_heads is None else kv_heads
        counts = {"heads": heads, "head_dim": head_dim, "width": width, "kv_heads": kv_heads, "axes": axes}
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        if heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got heads={heads}, kv_heads={kv_heads}")
        if extent is not None:
            sizes = (extent,) if isinstance(extent, int) else tuple(extent)
            if len(sizes) != axes or min(sizes) < 1 or (axes == 1) != isinstance(extent, int):
                rule = "a positive int" if axes == 1 else f"a tuple of {axes} positive ints"
                raise ValueError(f"extent must be {rule} when axes={axes}, got {extent!r}")
        scale = float(head_dim) ** -0.5 if scale is None else scale
        for name, value in {**counts, "extent": extent, "scale": scale, "causal": causal}.items():
            object.__setattr__(self, name, value)
