"""A vision transformer whose positions enter through `Encoding` records and nowhere else.

    x = patches @ W + b  ->  norm?  ->  embed
    [cls, registers, x]  ->  norm?  ->  L layers  ->  norm  ->  pool  ->  head

`embed` is the hook of the encoding; the first norm? is there if the config has a `patch_norm`, the second if it has an
`embed_norm`. Model, initialization and number of tokens are the same for every encoding.

Reference:
    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words" (arXiv 2010.11929), section 3.1.
    Darcet et al. 2024, "Vision Transformers Need Registers" (arXiv 2309.16588).
"""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Key, Num

from pejax._attention.encoded import is_one_extent, read_grids
from pejax._calls.arguments import checked
from pejax._calls.hook_calls import call_token_hook
from pejax._record.encoding import Encoding, Extent, adapt
from pejax._tokens.patches import Patches
from pejax._tokens.positions import (
    TokenPositions,
    check_within,
    grid_positions,
    normalized_positions,
    with_unplaced,
)
from pejax.models.configs.model import ViTConfig, patch_grid
from pejax.models.execution import Execution
from pejax.models.parts.attention import LayerContext
from pejax.models.parts.layers import linear, make_norm, normed
from pejax.models.sharding import named
from pejax.models.stack.layered import Layered

TOKEN_STD = 0.02
"""Standard deviation of the initial CLS and register tokens."""


def images_to_patches(images: Float[Array, "B height width channels"], patch: int) -> Float[Array, "B T pixels"]:
    """Cut images into T patches, in raster order.

    Each has patch² · channels numbers, ordered by row, column, channel.

    Args:
        images: the images; their sides, in pixels, must be multiples of `patch`.
        patch: side of a patch, in pixels.
    """
    batch, height, width, channels = images.shape
    rows, columns = patch_grid((height, width), patch)
    patches = images.reshape(batch, rows, patch, columns, patch, channels).swapaxes(2, 3)
    return patches.reshape(batch, rows * columns, patch * patch * channels)


def _learned_tokens(count: int, width: int, rngs: nnx.Rngs) -> nnx.Param:
    """Draw the initial vectors `(count, C)` of learned tokens."""
    return nnx.Param(TOKEN_STD * jax.random.normal(rngs.params(), (count, width)), **named("tokens", "embed"))


class ViT(Layered):
    """A vision transformer. Its head starts at zero: before training, all logits are zero.

    Attributes:
        config: config of the model.
        cls: the learned CLS token, `(1, C)`; None = no CLS.
        registers: the learned registers, `(R, C)`; None = no registers.
        patch: the linear layer from the numbers of a patch to its vector.
        patch_norm: the norm of the vectors of patches; None = no norm.
        embed_norm: the norm before the first layer; None = no norm.
        layers: the layers.
        norm: the norm after the last layer; None = no norm.
        head: the linear layer to logits; None = no head.
        distilled_head: the head that reads the first register (DeiT); None = no such head.
        dims: the dims that the encoding of the first layer was made for.
        encoding: the encoding of the first layer, whose `embed` is applied to the patches.
        position: the encoding's parameters that all layers share. The parameters of single layers are in `layers`,
            stacked, under `attention.position`.

    Args:
        config: sizes, layers, tokens, pooling and head of the model.
        encoding: encoding of all layers in place of those that `config` names, for example your own, made for
            `config.dims`. None = as `config` says.
        rngs: random streams; the parameters are drawn from `params`.

    Raises:
        ValueError: a config that the encoding refuses.
    """

    @checked
    def __init__(self, config: ViTConfig, encoding: Encoding | None = None, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.cls = _learned_tokens(1, config.width, rngs) if config.cls else None
        self.registers = _learned_tokens(config.registers, config.width, rngs) if config.registers else None
        self.patch = linear(
            config.patch**2 * config.channels,
            config.width,
            ("pixels", "embed"),
            dtype=config.dtype,
            rngs=rngs,
            bias=config.patch_bias,
            kernel_init=nnx.initializers.lecun_normal(),
            bias_init=nnx.initializers.zeros_init(),
        )
        self.patch_norm = make_norm(config.patch_norm, config.width)
        self.embed_norm = make_norm(config.embed_norm, config.width)
        self._make_layers(config, encoding=encoding, rngs=rngs)
        self.norm = make_norm(config.norm, config.width)
        zeros, axes = nnx.initializers.zeros_init(), ("embed", "classes")
        make_head = lambda inputs: linear(
            inputs, config.classes, axes, dtype=jnp.float32, rngs=rngs, kernel_init=zeros, bias_init=zeros
        )
        self.head = make_head(config.pooled) if config.classes else None
        self.distilled_head = make_head(config.width) if config.distilled else None

    @property
    def prefix(self) -> int:
        """The number of tokens without a position, before the patches: CLS, then registers."""
        return self.config.prefix

    @checked
    def __call__(
        self,
        images: Float[Array, "B height width channels"] | Patches,
        *,
        positions: Num[Array, "*#B T 2"] | None = None,
        extent: Extent | None = None,
        train: bool = False,
        key: Key[Array, ""] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B classes"]:
        """Return the logits of a batch of images of any size whose sides are multiples of the patch.

        Args:
            images: floating point, channels last; or images of several sizes, as `pejax.patchify` returns them. Their
                padding is not attended to, and has no part in a mean of patches.
            positions: (row, column) of each of T patches in raster order, in patches; None = its place in the image.
            extent: grid (rows, columns), in patches, that the encoding adapts to, or grids `(B, 2)`, one per image;
                None = rows and columns of each image.
            train: whether stochastic depth drops branches; no effect if `config.stochastic_depth` is 0.
            key: random key of the branches to drop; required if branches are dropped, otherwise not used.
            execution: device mesh, sharding and rematerialization.

        Raises:
            ValueError: images with another number of channels or sides that are not multiples of the patch, patches of
                another size, positions or an extent of another shape, grids `(B, 2)` on a mesh that splits attention, a
                missing key, or a model without a head.
            TypeError: images of an integer type, whose scale the model cannot know.
        """
        if self.head is None:
            raise ValueError("a model without a head has states, no logits, got classes=0")
        x = self._last_states(images, positions, extent, train, key, execution)
        logits = self.head(self._pool(x, images.tokens.segment_ids if isinstance(images, Patches) else None))
        if self.distilled_head is not None:
            register = normed(self.norm, x[:, int(self.config.cls)].astype(jnp.float32))  # the first one, after CLS
            logits = 0.5 * (logits + self.distilled_head(register))
        chex.assert_shape(logits, (x.shape[0], self.config.classes))
        return logits

    @checked
    def states(
        self,
        images: Float[Array, "B height width channels"] | Patches,
        *,
        positions: Num[Array, "*#B T 2"] | None = None,
        extent: Extent | None = None,
        train: bool = False,
        key: Key[Array, ""] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B N C"]:
        """Return the normalized states of all N tokens after the last layer, in float32: CLS, registers, then patches.

        Arguments and errors as in a call; a head is not needed. The states of padding mean nothing.
        """
        x = self._last_states(images, positions, extent, train, key, execution)
        return normed(self.norm, x.astype(jnp.float32))

    def _last_states(
        self,
        images: Array | Patches,
        positions: Array | None,
        extent: Extent | None,
        train: bool,
        key: Array | None,
        execution: Execution,
    ) -> Float[Array, "B N C"]:
        """Return the states of all N tokens after the last layer, before the norm."""
        config = self.config
        pixels, grid, positions, segments = self._patches(images, positions)
        batch, patch_count = pixels.shape[:2]
        if positions.shape not in ((patch_count, 2), (batch, patch_count, 2)):
            shapes = f"({patch_count}, 2) or ({batch}, {patch_count}, 2)"
            raise ValueError(f"positions must be {shapes}, got {positions.shape}")
        drops_branches = train and config.stochastic_depth > 0.0
        if drops_branches and key is None:
            raise ValueError(f"stochastic_depth={config.stochastic_depth} needs a key while training, got None")
        extent = read_grids(grid if extent is None else extent, (batch,), axes=2)
        if not isinstance(extent, tuple) and np.ndim(extent):  # known only at run time, or one per image
            extent = jnp.broadcast_to(extent, (batch, 2))
            positions = jnp.broadcast_to(positions, (batch, patch_count, 2))

        x = self._embed(normed(self.patch_norm, self.patch(pixels)), positions, extent)
        if config.coordinates == "centered":
            if not isinstance(extent, tuple) and not np.ndim(extent):
                raise ValueError(f"extent must be a grid (rows, columns) with centered coordinates, got {extent!r}")
            positions = 2.0 * math.pi * normalized_positions(positions, extent)  # formula: `ViTConfig.coordinates`
        x, tokens = self._with_prefix(x, TokenPositions(positions, segment_ids=segments))
        chex.assert_shape(x, (batch, self.prefix + patch_count, config.width))
        x = normed(self.embed_norm, x)
        # {}: each layer fills in the shared parameters of its own encoding.
        context = LayerContext({}, tokens, extent, execution=execution)
        shared = self.shared_params()
        x, _ = self.layers(execution.shard_states(x), context, shared=shared, key=key if drops_branches else None)
        return x

    def _patches(self, images: Array | Patches, positions: Array | None) -> tuple[Array, Extent, Array, Array | None]:
        """Return the numbers, grids, positions and segments of the patches.

        Returns:
            Numbers `(B, T, patch² · channels)`; one grid, or grids `(B, 2)`; positions `(T, 2)` or `(B, T, 2)`; and
            segments `(B, T)`, 0 in padding, None = no padding.
        """
        config = self.config
        if isinstance(images, Patches):
            pixels, tokens, extent = images
            batch, length, numbers = pixels.shape
            expected = [(batch, length, 2), (batch, length), (batch, 2)]
            arrays = tokens.positions, tokens.segment_ids, extent
            shapes = [() if array is None else np.shape(array) for array in arrays]
            if not batch or numbers != config.patch**2 * config.channels or shapes != expected:
                rule = f"patches must be (B, T, {config.patch**2 * config.channels})"
                raise ValueError(f"{rule} with positions, segments, grids {expected}, got {pixels.shape} and {shapes}")
            check_within(tokens, extent, axes=2)
            return pixels, extent, tokens.positions if positions is None else positions, tokens.segment_ids
        batch, height, width, channels = images.shape
        if not batch:
            raise ValueError(f"images must be at least one, got shape {images.shape}")
        grid = patch_grid((height, width), config.patch)
        if channels != config.channels:
            raise ValueError(f"images must have channels={config.channels}, got {images.shape}")
        positions = grid_positions(*grid) if positions is None else positions
        return images_to_patches(images, config.patch), grid, positions, None

    def _embed(self, x: Float[Array, "B T C"], positions: Array, extent: Extent) -> Float[Array, "B T C"]:
        """Return the patches after the encoding's `embed`, at one grid or at the grid of each image."""
        encoding, hook, params = self.encoding, self.encoding.embed, self.encoding_params()
        if hook is None:
            return x
        embed = lambda grid, x, positions: call_token_hook("embed", hook, adapt(encoding, params, grid), x, positions)
        if encoding.adapt is None or is_one_extent(extent, axes=2):
            return embed(extent, x, positions)
        return jax.vmap(embed)(extent, x, positions)

    def _with_prefix(
        self, x: Float[Array, "B T C"], patches: TokenPositions
    ) -> tuple[Float[Array, "B N C"], TokenPositions]:
        """Return CLS, registers and patches as N tokens, and their positions: CLS and registers have none."""
        if not self.prefix:
            return x, patches
        segments = patches.segment_ids
        learned = jnp.concatenate([tokens[...] for tokens in (self.cls, self.registers) if tokens is not None])
        prefix_states = jnp.broadcast_to(learned.astype(x.dtype), (x.shape[0], self.prefix, x.shape[-1]))
        if segments is not None:  # the prefix belongs to the image
            prefix_segments = jnp.broadcast_to(segments[:, :1], (len(segments), self.prefix))
            segments = jnp.concatenate([prefix_segments, segments], axis=1)
        tokens = with_unplaced(self.prefix, patches.positions)._replace(segment_ids=segments)
        return jnp.concatenate([prefix_states, x], axis=1), tokens

    def _pool(self, x: Float[Array, "B N C"], segments: Array | None) -> Float[Array, "B inputs"]:
        """Return the head's input in float32: the normalized CLS token, the mean of the normalized patches, or both.

        Args:
            x: states of all tokens, before the norm.
            segments: segments of the patches, `(B, T)`; patches of segment 0 are not counted. None = all are.
        """
        counted = None if segments is None else (segments != 0)[..., None]
        cls = lambda: normed(self.norm, x[:, 0].astype(jnp.float32))
        mean = lambda: jnp.mean(normed(self.norm, x[:, self.prefix :].astype(jnp.float32)), axis=1, where=counted)
        if self.config.pool == "cls_mean":
            return jnp.concatenate([cls(), mean()], axis=-1)
        return cls() if self.config.pool == "cls" else mean()
