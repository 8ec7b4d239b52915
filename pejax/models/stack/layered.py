"""The layers of a model and the encodings of their kinds."""

from flax import nnx

from pejax._naming.make import make_encoding
from pejax._record.dims import Dims
from pejax._record.encoding import Encoding, Params, merge_params, shared_params
from pejax.models.configs.model import DiTConfig, TransformerConfig, ViTConfig
from pejax.models.parts.block import LayerKind
from pejax.models.sharding import position_variables
from pejax.models.stack.layer_scan import Holder, Layers


class Layered(nnx.Module):
    """The base of models: L layers, the encodings of their kinds, and the parameters that all layers of a kind share.

    Attributes:
        dims: dims of the first layer's encoding.
        encodings: the different encodings of the layers, in the order of their first layers.
        position: the parameters of the first encoding that all its layers share; encoding n has `encoding_n.position`.
            The parameters of single layers are in `layers`, under `attention.position`.
        layers: the layers.
    """

    layers: Layers

    def _make_layers(
        self,
        config: TransformerConfig | ViTConfig | DiTConfig,
        *,
        encoding: Encoding | None = None,
        cross: tuple[Dims, Encoding] | None = None,
        rngs: nnx.Rngs,
    ) -> None:
        """Make encodings, their parameters and the layers; `encoding` replaces the encodings of all layers."""
        kinds = []
        for layer in config.layers:
            if layer.cross is not None and cross is None:
                raise ValueError("cross must be None in the layers of a model without an encoder, got cross-attention")
            dims = config.dims_of(layer)
            named = make_encoding(layer.attention.pe, dims) if encoding is None else encoding
            kinds.append(LayerKind(layer, dims, named, cross))
        self.dims = kinds[0].dims
        self.encodings = tuple(dict.fromkeys(kind.encoding for kind in kinds))
        for number, made_encoding in enumerate(self.encodings):
            if number and made_encoding.embed is not None:
                rule = "only the encoding of the first layer may change the input tokens"
                raise ValueError(f"{rule}, got {made_encoding.spec or 'another one'} in a later layer")
            position = position_variables(shared_params(made_encoding, rngs.params()))
            if number:
                setattr(self, f"encoding_{number}", Holder(position=nnx.data(position)))
            else:
                self.position = nnx.data(position)
        rate = config.stochastic_depth if isinstance(config, ViTConfig) else 0.0
        self.layers = Layers(kinds, self.encodings, stochastic_depth=rate, dtype=config.dtype, rngs=rngs)
        for number in range(len(self.encodings)):
            self.encoding_params(number)  # raises now, not at the first call, if init and init_layer share a name

    @property
    def encoding(self) -> Encoding:
        """The encoding of the first layer, whose `embed` is applied to the input tokens."""
        return self.encodings[0]

    def shared_params(self) -> tuple[Params, ...]:
        """Return the parameters of every encoding that all its layers share."""
        later = [getattr(self, f"encoding_{number}").position for number in range(1, len(self.encodings))]
        return tuple(nnx.as_pure(position) for position in (self.position, *later))

    def encoding_params(self, number: int = 0) -> Params:
        """Return an encoding's shared parameters merged with those of the first layer that has it, before `adapt`."""
        return merge_params(self.shared_params()[number], self.layers.first_of(number))
