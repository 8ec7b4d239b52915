"""The settings of a usual vision transformer, and the record that follows from them.

Reference:
    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1.
"""

from dataclasses import dataclass

from pejax._dims import Dims
from pejax._extensions.extension import Extension
from pejax.models.layer_records import Attention, Block, Mlp, Norm
from pejax.models.model_records import Picture, patch_grid
from pejax.models.periods import check_spec, layer_specs
from pejax.models.text_recipes import channels_per_head


@dataclass(frozen=True)
class ViTConfig:
    """The settings of a usual `ViT`: a recipe for its record, a `Picture`.

    Args:
        image_size: side, or (height, width), of the training images, pixels.
        patch: side of a patch, pixels.
        channels: number of image channels.
        classes: number of classes, and of logits.
        width: C, channels of the residual stream.
        layers: L.
        heads: H.
        kv_heads: K, key/value heads; None = H.
        mlp_ratio: channels inside the MLP, as a multiple of C.
        pe: spec of the encoding, as in `make_encoding`, or a period over the layers such as "rope_axial*3 + none*1"
            (`pejax.models.periods`).
        extend: extension of the encoding beyond the trained grid, a record of `pejax.extensions` or its string.
        pool: what the head reads: "cls", a learned token, or "mean", the average of the patches.
        registers: number of learned tokens without position that the head does not read.
        layer_scale: initial factor of each residual branch; None = no factor.
        stochastic_depth: probability that an example skips a branch of the last layer in training; it grows linearly
            with depth from 0 in the first layer. 0 = no stochastic depth.
        dtype: of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, an image whose sides are not multiples of the patch, an unknown pool or dtype, or
            a rate outside [0, 1).
    """

    image_size: int | tuple[int, int] = 28
    patch: int = 4
    channels: int = 1
    classes: int = 10
    width: int = 64
    layers: int = 3
    heads: int = 4
    kv_heads: int | None = None
    mlp_ratio: int = 4
    pe: str = "rope_mixed"
    extend: str | Extension = "none"
    pool: str = "cls"
    registers: int = 0
    layer_scale: float | None = None
    stochastic_depth: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("patch", "channels", "classes", "width", "layers", "heads", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.registers < 0:
            raise ValueError(f"registers must be at least 0, got {self.registers}")
        if self.pool not in ("cls", "mean"):
            raise ValueError(f"pool must be 'cls' or 'mean', got {self.pool!r}")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype must be 'float32' or 'bfloat16', got {self.dtype!r}")
        if not 0.0 <= self.stochastic_depth < 1.0:
            raise ValueError(f"stochastic_depth must be in [0, 1), got {self.stochastic_depth}")
        check_spec(self.pe)
        patch_grid(self.image_hw, self.patch)
        _ = self.record

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the training images, pixels."""
        size = self.image_size
        return (size, size) if isinstance(size, int) else (size[0], size[1])

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of the training images."""
        return patch_grid(self.image_hw, self.patch)

    @property
    def dims(self) -> Dims:
        """The sizes of this model that the encoding may depend on."""
        return Dims(
            self.heads, channels_per_head(self.width, self.heads), kv_heads=self.kv_heads, axes=2, extent=self.grid
        )

    @property
    def record(self) -> Picture:
        """The model as data, with one record per layer."""
        norm, kv_heads = Norm("layer", bias=True), self.heads if self.kv_heads is None else self.kv_heads
        head_dim = channels_per_head(self.width, self.heads)
        attention = lambda pe: Attention(self.heads, kv_heads, head_dim, pe, self.extend, bias="qkvo")
        mlp = Mlp(self.mlp_ratio * self.width, "gelu", bias=True)
        blocks = tuple(
            Block(attention(pe), mlp, norm, layer_scale=self.layer_scale) for pe in layer_specs(self.pe, self.layers)
        )
        return Picture(
            self.image_hw, self.patch, self.channels, self.width, blocks, norm, cls=self.pool == "cls",
            registers=self.registers, pool=self.pool, classes=self.classes, stochastic_depth=self.stochastic_depth,
            dtype=self.dtype,
        )  # fmt: skip
