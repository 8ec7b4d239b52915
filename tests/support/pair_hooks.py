"""Biases of pairs of one's own that together use every operation that kernels run."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from pejax import Dims, Encoding

CHANNELS = 8


class Call(NamedTuple):
    """The arguments of a bias hook, with what most of the hooks read."""

    params: Mapping[str, Array]
    q: Array
    k: Array
    q_positions: Array
    k_positions: Array

    @property
    def apart(self) -> Array:
        """Key minus query of each pair, whole numbers."""
        return self.k_positions[None] - self.q_positions[:, None]

    @property
    def distance(self) -> Array:
        """Key minus query, in units of 16 tokens, nowhere 0."""
        return self.apart.astype(jnp.float32) / 16 + 0.03

    def sides(self, function: Callable[[Array], Array]) -> Array:
        """Return products of a number of each query, and of each key, of some channels of it."""
        of = lambda x: function(x[:, :CHANNELS].astype(jnp.float32) * self.params["a"])
        return self.params["w"] * of(self.q)[:, None] * of(self.k)


def gates(call: Call) -> Array:
    """GRAPE-A's form: a slope for each pair, from gates of both of its tokens."""
    gate = lambda x, name: jax.nn.softplus(x[:, :CHANNELS].astype(jnp.float32) @ call.params[name])
    slope = gate(call.q, "a")[:, None] + gate(call.k, "b")
    return -jnp.abs(call.apart).astype(jnp.float32) * call.params["w"] * slope


def units(call: Call) -> Array:
    """Two layers of units for each pair, and one gate of each query for each of them."""
    first = jnp.tanh(call.distance[..., None] * call.params["a"] + call.params["b"])
    opened = jax.nn.sigmoid(call.q[:, :CHANNELS].astype(jnp.float32))[:, None] * jnp.tanh(first @ call.params["m"])
    return jax.nn.relu(opened) @ call.params["a"]


def functions(call: Call) -> Array:
    """Functions of one number."""
    x = call.distance
    near = jnp.abs(x) + 0.1
    of_floor = lax.stop_gradient(jnp.floor(x) + jnp.ceil(x) + jnp.round(x) + lax.rem(x, jnp.float32(0.7)))
    of_signs = jnp.sign(x) + lax.is_finite(x).astype(jnp.float32) + lax.clamp(jnp.float32(-1), x, jnp.float32(1))
    of_waves = jnp.sin(x) + jnp.cos(x) + jnp.tan(x / 8) + lax.atan2(x, near) + lax.erf(x) + lax.logistic(x)
    of_powers = jnp.exp(-near) + jnp.exp2(-near) + near**0.3 + x**3 + lax.square(x) + jnp.sqrt(near) + lax.rsqrt(near)
    return call.params["w"] * (of_floor + of_signs + of_waves + of_powers + jnp.log(near) + jnp.log1p(near) / near)


def whole_numbers(call: Call) -> Array:
    """Arithmetic of bits and of truth values."""
    x = call.apart
    bits = ((x & 5) | (x << 2)) ^ (~x >> 1) ^ lax.shift_right_logical(x, jnp.int32(29))
    is_between = ((x >= -9) & (x < 7)) | (x == 11) ^ ~(x != 12)
    rest = jnp.where(is_between & (x <= 5) | (x > 90), lax.rem(x, jnp.int32(7)) * -lax.div(x, jnp.int32(3)), 0)
    return call.params["w"] * (bits % 16 + jnp.minimum(jnp.maximum(rest, -4), 4)).astype(jnp.float32) / 16


def channels(call: Call) -> Array:
    """Operations along the channels of each token."""

    def of_token(x: Array) -> Array:
        pairs = x.reshape(-1, CHANNELS // 2, 2)
        turned = jnp.swapaxes(pairs, 1, 2).reshape(x.shape)
        halves = jnp.split(x, 2, axis=1)
        joined = jnp.concatenate([halves[1], jnp.flip(halves[0], 1)], axis=1)
        padded = lax.pad(x[:, ::2], jnp.float32(0.5), ((0, 0, 0), (1, 0, 1)))
        normed = (x - x.mean(1, keepdims=True)) * lax.rsqrt(jnp.mean(x * x, 1, keepdims=True) + 0.1)
        largest = pairs.max(2).sum(1) - pairs.min(2).sum(1)
        return jnp.sum(jax.nn.softmax(turned) * joined * padded, axis=1) + normed[:, 0] * largest

    return call.sides(of_token)


def products(call: Call) -> Array:
    """Products of matrices, of queries with keys and of both with parameters."""
    q, k = (x[:, :CHANNELS].astype(jnp.float32) @ call.params["m"] for x in (call.q, call.k))
    shifted = jnp.einsum("td,sd,ts->ts", q[:, :3], k[:, :3], call.distance)
    return call.params["w"] * (q @ k.T + shifted)


def constant(call: Call) -> Array:
    """The same for every pair, whatever the tokens and the parameters are."""
    return jnp.ones((len(call.q), len(call.k)))


HOOKS = {hook.__name__: hook for hook in (gates, units, functions, whole_numbers, channels, products, constant)}


def encoding(name: str, dims: Dims) -> Encoding:
    """Return an encoding whose bias is one of `HOOKS`."""

    def init(key: Array) -> Mapping[str, Any]:
        if name == "constant":
            return {}
        w, a, b, m = jax.random.split(key, 4)
        shape = (dims.heads, CHANNELS)
        normal = lambda key, *shape: 0.3 * jax.random.normal(key, shape)
        heads = {"w": normal(w, dims.heads), "a": normal(a, *shape), "m": normal(m, *shape, CHANNELS)}
        return {"heads": heads, "all": {"b": normal(b, CHANNELS)}}

    return Encoding(init=init, bias=lambda *arguments: HOOKS[name](Call(*arguments)), dims=dims)
