"""The configs of whole models: layers, embeddings and heads."""

from dataclasses import dataclass, replace

from jax.export import is_symbolic_dim

from pejax._calls.arguments import checked_fields
from pejax._naming.parse import parse_extension
from pejax._ops.checks import check_choice
from pejax._record.dims import Dims
from pejax._record.specs import NONE, Extension
from pejax.models.configs.layer import AttentionConfig, Config, HeadConfig, LayerConfig, NormConfig, check_counts

DTYPES = ("float32", "bfloat16")
RMS_NORM, LAYER_NORM, HEAD = NormConfig("rms"), NormConfig("layer", bias=True), HeadConfig()
PLAIN_NORM = NormConfig("layer", weight=False)

PADDING = ("skipped", "counted")
"""Whether padding is counted in the positions of the tokens after it."""

CROSS = ("none", "query_only", "separate", "unified")
"""Position policies of cross-attention (`pejax.models.stack.cross_positions`)."""


@checked_fields
@dataclass(frozen=True, repr=False)
class TransformerConfig(Config):
    """A model of text: a decoder, or an encoder where `causal` is False.

    Args:
        vocab: V, size of the vocabulary.
        width: C, channels of the residual stream.
        length: trained context, tokens.
        layers: one config per layer.
        causal: whether keys after the query are masked.
        norm: norm after the last layer. None = no norm.
        embed_norm: norm of the token vectors, positions included. None = no norm.
        embed_scale: factor of the token vectors, without types and positions.
        mask_id: id of the mask token of a model that was trained with token dropout (ESM-2): its vector is 0, and all
            others are multiplied by 0.88 / (1 - r), with r the share of mask tokens in the document. None = the vector
            of no token is changed.
        types: number of token types, which have vectors of their own (BERT's segments). 0 = no types.
        head: config of the head. None = no head: the model has states, no logits.
        padding: what padding does to the positions after it, where an `attention_mask` says what is padding. "skipped":
            it is not counted, so padding on the left changes nothing. "counted": it is, as in BERT and GPT-2. An id:
            tokens with this id are not counted, whatever the mask says, as in RoBERTa.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, no layers, padding of another kind, an unknown dtype, or a mask token outside the
            vocabulary or in a causal model.
    """

    vocab: int
    width: int
    length: int
    layers: tuple[LayerConfig, ...]
    causal: bool = True
    norm: NormConfig | None = RMS_NORM
    embed_norm: NormConfig | None = None
    embed_scale: float = 1.0
    mask_id: int | None = None
    types: int = 0
    head: HeadConfig | None = HEAD
    padding: str | int = "skipped"
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_counts(self, "vocab", "width", "length")
        check_counts(self, "types", least=0)
        if self.mask_id is not None and (self.causal or self.mask_id not in range(self.vocab)):
            rule = f"mask_id must be None, or an id from 0 to {self.vocab - 1} in a model with causal=False"
            raise ValueError(f"{rule}, got {self.mask_id} with causal={self.causal}")
        if isinstance(self.padding, str):
            check_choice("padding", self.padding, PADDING)
        elif (
            isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding not in range(self.vocab)
        ):
            rule = f"padding must be one of {', '.join(PADDING)}, or an id from 0 to {self.vocab - 1}"
            raise ValueError(f"{rule}, got {self.padding!r}")
        _check_model(self)

    @property
    def dims(self) -> Dims:
        """The dims of the first layer's encoding."""
        return self.dims_of(self.layers[0])

    def dims_of(self, layer: LayerConfig) -> Dims:
        """Return the dims of a layer's encoding."""
        return layer.attention.dims(width=self.width, extent=self.length, causal=self.causal)

    def extended(self, extend: str | Extension | None) -> "TransformerConfig":
        """Return the config with this extension added to every layer's encoding, after the encoding's own."""
        return replace(self, layers=_extended(self.layers, extend))


@checked_fields
@dataclass(frozen=True, repr=False)
class EncoderDecoderConfig(Config):
    """An encoder and a decoder that attends to its states.

    Args:
        encoder: the model of the source; not causal, without a head.
        decoder: the model of the target; all of its layers have cross-attention.
        cross: position policy of cross-attention: "none", "query_only", "separate" or "unified".
        two_tables: whether the source has an embedding table of its own (T5Gemma), not that of the target.

    Raises:
        ValueError: an unknown policy, different vocabularies, widths or dtypes, an encoder with a head or a causal
            mask, or decoder layers without cross-attention or with different cross-attention.
    """

    encoder: TransformerConfig
    decoder: TransformerConfig
    cross: str = "none"
    two_tables: bool = False

    def __post_init__(self) -> None:
        check_choice("cross", self.cross, CROSS)
        for name in ("vocab", "width", "dtype"):
            ours, theirs = getattr(self.encoder, name), getattr(self.decoder, name)
            if ours != theirs:
                raise ValueError(f"{name} must be the same in encoder and decoder, got {ours} and {theirs}")
        if self.encoder.causal or self.encoder.head is not None:
            raise ValueError("the encoder must have causal=False and head=None")
        kinds = {layer.cross for layer in self.decoder.layers}
        if len(kinds) != 1 or None in kinds:
            raise ValueError(f"all layers of the decoder must have the same cross-attention, got {len(kinds)} kinds")

    @property
    def cross_attention(self) -> AttentionConfig:
        """Cross-attention, which is the same in all layers."""
        return next(layer.cross for layer in self.decoder.layers if layer.cross is not None)

    @property
    def cross_dims(self) -> Dims:
        """The dims of the encoding of cross-attention; the extent covers all positions that occur."""
        continued = self.decoder.length if self.cross == "unified" else 0
        return self.cross_attention.dims(width=self.decoder.width, extent=self.encoder.length + continued)

    def extended(self, extend: str | Extension | None) -> "EncoderDecoderConfig":
        """Return the config with this extension in encoder, decoder and cross-attention, after their own."""
        return replace(self, encoder=self.encoder.extended(extend), decoder=self.decoder.extended(extend))


@checked_fields
@dataclass(frozen=True, repr=False)
class ViTConfig(Config):
    """A vision transformer.

    Args:
        image_size: (height, width) of the training images, pixels.
        patch: side of a patch, pixels.
        channels: number of image channels.
        width: C, channels of the residual stream.
        layers: one config per layer.
        norm: norm after the last layer. None = no norm.
        embed_norm: norm of all tokens before the first layer. None = no norm.
        patch_norm: norm of the vectors of patches, before the encoding's `embed` (AIMv2). None = no norm.
        patch_bias: whether the map from the pixels of a patch to its vector has a bias.
        cls: whether there is a learned CLS token before the patches.
        registers: number of learned tokens without position, after CLS.
        pool: input of the head: "cls"; "mean", the average of the patches; or "cls_mean", both in one vector of 2C
            channels (DINOv2's linear classifier).
        classes: number of logits. 0 = no head, states alone.
        distilled: whether the first register has a head of its own; the logits of both heads are averaged (DeiT's
            distillation token).
        coordinates: positions of the patches in the layers: "index", their (row, column), or "centered", DINOv3's
            `2π · (2 (i + ½) / N - 1)` in N rows or columns.
        stochastic_depth: rate of the last layer in training; it grows linearly with depth from 0 in the first.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and logits are float32.

    Raises:
        ValueError: a count below 1, no layers, an image whose sides are not multiples of the patch, an unknown name, a
            pool that reads CLS in a model without CLS, a distilled model without a register or a head, an extended
            encoding with centered coordinates (they need none: they fit every grid), or a rate outside [0, 1).
    """

    image_size: tuple[int, int]
    patch: int
    channels: int
    width: int
    layers: tuple[LayerConfig, ...]
    norm: NormConfig | None = LAYER_NORM
    embed_norm: NormConfig | None = None
    patch_norm: NormConfig | None = None
    patch_bias: bool = True
    cls: bool = True
    registers: int = 0
    pool: str = "cls"
    classes: int = 0
    distilled: bool = False
    coordinates: str = "index"
    stochastic_depth: float = 0.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_counts(self, "patch", "channels", "width")
        check_counts(self, "registers", "classes", least=0)
        check_choice("pool", self.pool, ("cls", "mean", "cls_mean"))
        check_choice("coordinates", self.coordinates, ("index", "centered"))
        if self.pool != "mean" and self.classes and not self.cls:
            raise ValueError(f"cls must be True where the head reads it (pool={self.pool!r}), got False")
        if self.distilled and not (self.registers and self.classes):
            rule = "distilled=True needs a register and classes"
            raise ValueError(f"{rule}, got registers={self.registers} and classes={self.classes}")
        extended = [layer.attention.pe for layer in self.layers if layer.attention.pe.is_extended]
        if self.coordinates == "centered" and extended:
            rule = "encodings must not be extended with coordinates='centered', which span every grid from edge to edge"
            raise ValueError(f"{rule}, got {extended[0]}")
        if not 0.0 <= self.stochastic_depth < 1.0:
            raise ValueError(f"stochastic_depth must be in [0, 1), got {self.stochastic_depth}")
        _ = self.grid
        _check_model(self)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of the training images."""
        return patch_grid(self.image_size, self.patch)

    @property
    def dims(self) -> Dims:
        """The dims of the first layer's encoding."""
        return self.dims_of(self.layers[0])

    def dims_of(self, layer: LayerConfig) -> Dims:
        """Return the dims of a layer's encoding."""
        return layer.attention.dims(width=self.width, axes=2, extent=self.grid)

    def extended(self, extend: str | Extension | None) -> "ViTConfig":
        """Return the config with this extension added to every layer's encoding, after the encoding's own."""
        return replace(self, layers=_extended(self.layers, extend))

    @property
    def prefix(self) -> int:
        """Number of tokens without a position, before the patches: CLS, then registers."""
        return self.cls + self.registers

    @property
    def pooled(self) -> int:
        """Number of channels that the head reads."""
        return self.width * (2 if self.pool == "cls_mean" else 1)


@checked_fields
@dataclass(frozen=True, repr=False)
class DiTConfig(Config):
    """A diffusion transformer of pictures or videos, whose layers' norms adapt to the time of the flow and the class.

    Args:
        image_size: (height, width) of the training images, pixels.
        patch: side of a patch, pixels.
        channels: number of image channels.
        width: C, channels of the residual stream.
        layers: one config per layer, all of them adaptive.
        classes: number of classes. One more vector stands for no class.
        norm: norm after the last layer, which is adaptive, too.
        dtype: type of the computation, "float32" or "bfloat16"; parameters and the output are float32.
        frames: F, frames of the training videos, each with patches of its own. 0 = the model is one of pictures.

    Raises:
        ValueError: a count below 1, negative frames, no layers, one without adaptive norms, an image whose sides are
            not multiples of the patch, or an unknown dtype.
    """

    image_size: tuple[int, int]
    patch: int
    channels: int
    width: int
    layers: tuple[LayerConfig, ...]
    classes: int
    norm: NormConfig = PLAIN_NORM
    dtype: str = "float32"
    frames: int = 0

    def __post_init__(self) -> None:
        check_counts(self, "patch", "channels", "width", "classes")
        check_counts(self, "frames", least=0)
        _ = self.grid
        _check_model(self)
        if not all(layer.adaptive for layer in self.layers):
            raise ValueError("the layers of a diffusion transformer must have adaptive=True, got False")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a training picture, (height, width), or of a training video, (frames, height, width)."""
        return (self.frames, *self.image_size) if self.frames else self.image_size

    @property
    def grid(self) -> tuple[int, ...]:
        """Rows and columns of patches of the training pictures, behind the frames of videos."""
        return self.grid_of(self.shape)

    def grid_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the grid of tokens of a picture, (rows, columns), or of a video, (frames, rows, columns).

        Args:
            shape: (height, width), or (frames, height, width), in pixels.

        Raises:
            ValueError: a shape of another number of axes, or sides that are not multiples of the patch.
        """
        axes = ("frames", "height", "width") if self.frames else ("height", "width")
        if len(shape) != len(axes):
            what = f"a model of frames={self.frames} takes {'videos' if self.frames else 'pictures'}"
            raise ValueError(f"{what}, images (B, {', '.join(axes)}, C), got axes {shape} between B and C")
        *frames, height, width = shape
        if frames and frames[0] < 1:
            raise ValueError(f"videos must have at least one frame, got shape {shape}")
        return (*frames, *patch_grid((height, width), self.patch))

    @property
    def pixels(self) -> int:
        """Numbers in a patch."""
        return self.patch**2 * self.channels

    @property
    def dims(self) -> Dims:
        """The dims of the first layer's encoding."""
        return self.dims_of(self.layers[0])

    def dims_of(self, layer: LayerConfig) -> Dims:
        """Return the dims of a layer's encoding."""
        return layer.attention.dims(width=self.width, axes=len(self.grid), extent=self.grid)

    def extended(self, extend: str | Extension | None) -> "DiTConfig":
        """Return the config with this extension added to every layer's encoding, after the encoding's own."""
        return replace(self, layers=_extended(self.layers, extend))


def _extended(layers: tuple[LayerConfig, ...], extend: str | Extension | None) -> tuple[LayerConfig, ...]:
    """Return the layers with an extension of their encodings."""
    extension = parse_extension(extend)

    def own(attention: AttentionConfig) -> AttentionConfig:
        return attention if attention.pe == NONE else replace(attention, pe=attention.pe.extended(extension))

    crossed = lambda layer: None if layer.cross is None else own(layer.cross)
    return tuple(replace(layer, attention=own(layer.attention), cross=crossed(layer)) for layer in layers)


def _check_model(model: TransformerConfig | ViTConfig | DiTConfig) -> None:
    if not model.layers:
        raise ValueError("layers must hold at least one config, got none")
    check_choice("dtype", model.dtype, DTYPES)


def patch_grid(image: tuple[int, int], patch: int) -> tuple[int, int]:
    """Return (rows, columns) of patches in an image of (height, width) pixels.

    Raises:
        ValueError: a side is not a positive multiple of the patch, or left open by `jax.export`.
    """
    if any(map(is_symbolic_dim, image)):
        way = "export a program of each size"
        raise ValueError(f"image (height, width) must have known sizes in jax.export, too, got {image}: {way}")
    if len(image) != 2 or min(image) < 1 or any(side % patch for side in image):
        raise ValueError(f"image (height, width) must be positive multiples of patch={patch}, got {image}")
    return image[0] // patch, image[1] // patch
