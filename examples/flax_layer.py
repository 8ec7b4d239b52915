"""Train a Flax NNX attention layer with T5's bias, then run it on longer input: python examples/flax_layer.py"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx

import pejax
from pejax.models import attention_module

VOCAB, BACK = 8, 3


class Model(nnx.Module):
    """Predict the token three positions back, which attention can find by its encoding alone."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        dims = pejax.Dims(heads=2, head_dim=16, causal=True)
        t5 = pejax.encodings.t5(dims, buckets=16, max_distance=16)  # distances of 16 and more share a bucket
        encoding = attention_module(t5, dims, rngs)
        self.embed = nnx.Embed(VOCAB, 32, rngs=rngs)
        self.attend = nnx.MultiHeadAttention(2, 32, decode=False, attention_fn=encoding, rngs=rngs)
        self.head = nnx.Linear(32, VOCAB, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        return self.head(self.attend(self.embed(tokens)))


@nnx.jit
def train_step(model: Model, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
    def loss(model: Model) -> jax.Array:
        logits = model(tokens)[:, BACK:]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, :-BACK]).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.03), wrt=nnx.Param)
for step, key in enumerate(jax.random.split(jax.random.key(0), 150)):
    loss = train_step(model, optimizer, jax.random.randint(key, (16, 24), 0, VOCAB))
    if step % 50 == 0:
        print(f"step {step}: loss {loss:.3f}")

for length in (24, 96):  # the trained length, and four times that length
    tokens = jax.random.randint(jax.random.key(1), (16, length), 0, VOCAB)
    accuracy = jnp.mean(jnp.argmax(model(tokens)[:, BACK:], axis=-1) == tokens[:, :-BACK])
    print(f"{length} tokens: accuracy {100 * accuracy:.0f} %")
