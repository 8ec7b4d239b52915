"""A mixture of experts: several MLPs, of which each token uses the few that a router chooses for it."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pejax.models.configs.layer import MlpConfig, MoEConfig
from pejax.models.parts.layers import ACTIVATIONS, Linear, check_activation, gate_by, linear, uniform_by_fan_in
from pejax.models.sharding import named


class Experts(nnx.Module):
    """`sum over e of weight[e] · mlp_e(x)`, where all but k of the E weights are 0.

    All experts are computed for every token, as one MLP with E·hidden inner channels; each inner channel is multiplied
    by the weight of its expert. The result is exact: an expert has no capacity, a maximum number of tokens beyond which
    they are dropped. The cost is E/k times that of computing only the chosen experts.

    Args:
        experts: config of the experts.
        width: C, channels of input and output.
        dtype: type of the computation; parameters are float32.
        rngs: random streams that parameters are drawn from.

    Raises:
        ValueError: an unknown activation.

    Reference:
        Jiang et al. 2024, "Mixtral of Experts" (arXiv 2401.04088), section 2.1; Shazeer et al. 2017, "Outrageously
        Large Neural Networks" (arXiv 1701.06538), equations 1 and 3 to 5, without noise.
    """

    def __init__(self, experts: MoEConfig, width: int, *, dtype: DTypeLike, rngs: nnx.Rngs) -> None:
        self.config, mlp = experts, experts.mlp
        check_activation(mlp)
        make = functools.partial(linear, dtype=dtype, rngs=rngs)
        self.router = make(width, experts.count, ("embed", None), bias=experts.router_bias)
        to_hidden = lambda: make(width, experts.hidden, ("embed", "mlp"), bias=mlp.bias is True)
        self.up = to_hidden()
        self.gate = to_hidden() if mlp.gated else None
        initializer = uniform_by_fan_in(mlp.hidden)  # the fan-in of one expert, not of all that `down` joins
        self.down = make(experts.hidden, width, ("mlp", "embed"), bias=False, kernel_init=initializer)
        biases = jnp.zeros((experts.count, width), jnp.float32)
        self.down_bias = nnx.Param(biases, **named(None, "embed")) if mlp.bias else None

    def __call__(self, x: Float[Array, "B T C"]) -> Float[Array, "B T C"]:
        weights = self.weights(x)
        hidden = (self.up(x),) if self.gate is None else (self.gate(x), self.up(x))
        function = weighted_activation(self.config.mlp)
        if isinstance(self.down, Linear):
            output = self.down.of(function, weights, *hidden)
        else:  # another layer put in its place, such as `nnx.LoRA`
            output = self.down(function(weights.astype(hidden[0].dtype), *hidden))
        if self.down_bias is None:
            return output
        return output + (weights @ self.down_bias[...].astype(weights.dtype)).astype(output.dtype)

    def weights(self, x: Float[Array, "B T C"]) -> Float[Array, "B T E"]:
        """Return the weights of the experts, in float32: 0 except for the k experts with the largest logits."""
        config = self.config
        logits = self.router(x).astype(jnp.float32)
        largest, chosen = jax.lax.top_k(logits, config.chosen)
        if config.over_chosen:
            weights = jax.nn.softmax(largest, axis=-1)
        else:
            weights = jnp.exp(largest - jax.nn.logsumexp(logits, axis=-1, keepdims=True))
        return jnp.sum(weights[..., None] * jax.nn.one_hot(chosen, config.count, dtype=jnp.float32), axis=-2)


@functools.cache
def weighted_activation(mlp: MlpConfig) -> Callable[..., Array]:
    """Return the function from the weights, and the outputs of `gate` and `up`, to the input of `down`."""
    function = gate_by(mlp.activation) if mlp.gated else ACTIVATIONS[mlp.activation]

    def run(weights: Float[Array, "B T E"], *hidden: Float[Array, "B T M"]) -> Float[Array, "B T M"]:
        inner = function(*hidden)
        return (inner.reshape(*weights.shape, -1) * weights[..., None]).reshape(inner.shape)

    return run
