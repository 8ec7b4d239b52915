"""A vision transformer whose positions enter through an `Encoding` record and nowhere else.

    x = patches @ W + b  ->  embed  ->  [cls, registers, x]  ->  L pre-norm blocks  ->  norm  ->  pool  ->  head

Model, initialization and number of tokens are the same for every encoding.

Reference:
    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1.
    Darcet et al. 2024, "Vision Transformers Need Registers" (arXiv 2309.16588).
"""

from dataclasses import dataclass

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, Num

from pejax._dims import Dims
from pejax._encoding import Extent, Params, adapt, merge_params
from pejax._extensions.extension import Extension
from pejax._make import make_encoding
from pejax._ops.checks import check_floats
from pejax._positions import TokenPositions, grid_positions
from pejax.models.attention import LayerContext
from pejax.models.block import Layers
from pejax.models.execution import Execution
from pejax.models.layers import LayerNorm, channels_per_head, check_spec, linear
from pejax.models.sharding import named, position_variables

TOKEN_STD = 0.02
"""Standard deviation of the initial CLS and register tokens."""


@dataclass(frozen=True)
class ViTConfig:
    """The settings of a `ViT`.

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
        pe: spec of the encoding, as in `make_encoding`.
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
        _ = self.dims

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


def patch_grid(image: tuple[int, int], patch: int) -> tuple[int, int]:
    """Return (rows, columns) of patches in an image of (height, width) pixels.

    Raises:
        ValueError: a side is not a positive multiple of the patch.
    """
    if len(image) != 2 or min(image) < 1 or any(side % patch for side in image):
        raise ValueError(f"image (height, width) must be positive multiples of patch={patch}, got {image}")
    return image[0] // patch, image[1] // patch


def images_to_patches(images: Float[Array, "B height width channels"], patch: int) -> Float[Array, "B T pixels"]:
    """Cut images into patches, in raster order; the numbers of a patch are ordered by row, column, channel.

    Args:
        images: sides must be multiples of the patch.
        patch: side of a patch, pixels.
    """
    batch, height, width, channels = images.shape
    rows, columns = patch_grid((height, width), patch)
    patches = images.reshape(batch, rows, patch, columns, patch, channels).swapaxes(2, 3)
    return patches.reshape(batch, rows * columns, patch * patch * channels)


def _learned_tokens(count: int, width: int, rngs: nnx.Rngs) -> nnx.Param:
    """Draw the initial vectors `(count, C)` of learned tokens."""
    return nnx.Param(TOKEN_STD * jax.random.normal(rngs.params(), (count, width)), **named("tokens", "embed"))


class ViT(nnx.Module):
    """A vision transformer. Its head starts at zero: before training, all logits are zero.

    Attributes:
        config: its settings.
        dims: the dims that the encoding was made for.
        encoding: the record.
        position: the encoding's parameters that all layers share. The parameters of single layers are in `layers`,
            stacked on L, under the same name.

    Args:
        config: the settings.
        rngs: draws the parameters from its `params` stream.

    Raises:
        ValueError: settings that the encoding refuses.
    """

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs) -> None:
        self.config, self.dims = config, config.dims
        self.encoding = make_encoding(config.pe, self.dims, config.extend)
        self.cls = _learned_tokens(1, config.width, rngs) if config.pool == "cls" else None
        self.registers = _learned_tokens(config.registers, config.width, rngs) if config.registers else None
        self.patch = linear(
            config.patch**2 * config.channels,
            config.width,
            ("pixels", "embed"),
            dtype=config.dtype,
            rngs=rngs,
            kernel_init=nnx.initializers.lecun_normal(),
            bias_init=nnx.initializers.zeros_init(),
        )
        self.position = nnx.data(position_variables(self.encoding.init(rngs.params())))
        self.layers = Layers(
            config.layers,
            stochastic_depth=config.stochastic_depth,
            dims=self.dims,
            encoding=self.encoding,
            hidden=config.mlp_ratio * config.width,
            layer_scale=config.layer_scale,
            dtype=config.dtype,
            rngs=rngs,
        )
        self.norm = LayerNorm(config.width)
        zeros = nnx.initializers.zeros_init()
        self.head = linear(
            config.width,
            config.classes,
            ("embed", "classes"),
            dtype=jnp.float32,
            rngs=rngs,
            kernel_init=zeros,
            bias_init=zeros,
        )
        self._embed_params()  # raises now, not at the first call, if init and init_layer share a parameter name

    @property
    def prefix(self) -> int:
        """The number of tokens before the patches, which have no position: CLS, then registers."""
        return (self.config.pool == "cls") + self.config.registers

    def __call__(
        self,
        images: Float[Array, "B height width channels"],
        *,
        positions: Num[Array, "*#B T 2"] | None = None,
        extent: Extent | None = None,
        train: bool = False,
        key: Key[Array, ""] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B classes"]:
        """Return the logits of a batch of images of any size whose sides are multiples of the patch.

        Args:
            images: floating point, channels last.
            positions: (row, column) of each patch in raster order, in patches; None = those of the image's own grid.
            extent: grid (rows, columns), in patches, that the encoding adapts to; None = the image's own grid.
            train: whether stochastic depth drops branches, if `config.stochastic_depth` is above 0.
            key: draws the branches to drop; required in that case only.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: images with another number of channels or sides that are not multiples of the patch, positions
                of another shape, or a missing key.
            TypeError: images of an integer type, whose scale the model cannot know.
        """
        batch, height, width, channels = images.shape
        grid = patch_grid((height, width), self.config.patch)
        patches = grid[0] * grid[1]
        check_floats("images", images)
        if channels != self.config.channels:
            raise ValueError(f"images must have channels={self.config.channels}, got {images.shape}")
        positions = grid_positions(*grid) if positions is None else positions
        if positions.shape not in ((patches, 2), (batch, patches, 2)):
            raise ValueError(f"positions must be ({patches}, 2) or ({batch}, {patches}, 2), got {positions.shape}")
        dropping = train and self.config.stochastic_depth > 0.0
        if dropping and key is None:
            raise ValueError(f"stochastic_depth={self.config.stochastic_depth} needs a key while training, got None")
        extent = grid if extent is None else extent

        x = self.patch(images_to_patches(images, self.config.patch))
        if self.encoding.embed is not None:
            params = adapt(self.encoding, self._embed_params(), extent)
            x = self.encoding.embed(params, x, positions)
        x, tokens = self._with_prefix(x, positions)
        chex.assert_shape(x, (batch, self.prefix + patches, self.config.width))
        context = LayerContext(nnx.as_pure(self.position), tokens, extent, execution=execution)
        x, _ = self.layers(execution.shard_states(x), context, key=key if dropping else None)
        logits = self.head(self._pool(x))
        chex.assert_shape(logits, (batch, self.config.classes))
        return logits

    def _embed_params(self) -> Params:
        """Return the parameters that `embed` reads, before `adapt`: those of the model and of the first layer."""
        first = jax.tree.map(lambda leaf: leaf[0], nnx.as_pure(self.layers.blocks.attention.position))
        return merge_params(nnx.as_pure(self.position), first)

    def _with_prefix(self, x: Float[Array, "B P C"], positions: Array) -> tuple[Float[Array, "B T C"], TokenPositions]:
        """Return the patches with CLS and registers before them, and the positions: the new tokens have none."""
        if not self.prefix:
            return x, TokenPositions(positions)
        learned = jnp.concatenate([tokens[...] for tokens in (self.cls, self.registers) if tokens is not None])
        prefix = jnp.broadcast_to(learned.astype(x.dtype), (x.shape[0], self.prefix, x.shape[-1]))
        origin = jnp.zeros((*positions.shape[:-2], self.prefix, 2), positions.dtype)
        has_position = jnp.arange(self.prefix + x.shape[1]) >= self.prefix
        tokens = TokenPositions(jnp.concatenate([origin, positions], axis=-2), has_position=has_position)
        return jnp.concatenate([prefix, x], axis=1), tokens

    def _pool(self, x: Float[Array, "B T C"]) -> Float[Array, "B C"]:
        """Return the normalized CLS token, or the mean of the normalized patches, in float32."""
        if self.cls is not None:
            return self.norm(x[:, 0].astype(jnp.float32))
        return jnp.mean(self.norm(x[:, self.prefix :].astype(jnp.float32)), axis=1)
