# %% [markdown]
# # How do I use pejax in my own model?
#
# Your attention layer stays as it is. In Flax NNX, a module goes into `attention_fn` and its parameters train with the
# layer. In Flax Linen, a function goes there, and you pass the parameters. You will train both on a task that only
# position can solve. Then you write an encoding of your own in ten lines, run the laws of `pejax.testing` on it, and see
# what the error looks like when a law fails.

# %%
import os

import flax.linen as nn
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import pejax.visualize
from pejax.models import attention_module
from pejax.testing import assert_norm_preserved, assert_shift_invariant, assert_tile_consistent

FAST = "PEJAX_FAST" in os.environ  # fewer steps, for tests
STEPS = 60 if FAST else 200

# %% [markdown]
# ## The task
#
# Random tokens out of 8. At every position the model has to name the token three positions back. Content says nothing
# about it, so a model without position can only guess. That is 1 of 8 without looking, and more with the token that was
# the most frequent so far, because a causal mask leaves few tokens to choose from.

# %%
VOCAB, BACK, LENGTH, WIDTH, HEADS = 8, 3, 24, 32, 2
dims = pejax.Dims(heads=HEADS, head_dim=WIDTH // HEADS, extent=LENGTH, causal=True)


def draw(seed, length=LENGTH):
    return jax.random.randint(jax.random.key(seed), (32, length), 0, VOCAB)


def cross_entropy(logits, tokens):
    return optax.softmax_cross_entropy_with_integer_labels(logits[:, BACK:], tokens[:, :-BACK]).mean()


def accuracy(logits, tokens):
    return float(jnp.mean(jnp.argmax(logits[:, BACK:], axis=-1) == tokens[:, :-BACK]))


# %% [markdown]
# ## Flax NNX: a module in `attention_fn`
#
# `attention_module` holds the parameters of the encoding. The optimizer finds them like any others. `dims.causal` adds the
# causal mask, so the layer needs none. Nothing but the name of the encoding changes between the runs below.

# %%
SPECS = ["none", "t5(buckets=16, max_distance=16)", "alibi", "rope"]


class Model(nnx.Module):
    def __init__(self, encoding, rngs):
        self.embed = nnx.Embed(VOCAB, WIDTH, rngs=rngs)
        position = attention_module(encoding, dims, rngs)
        self.attend = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, attention_fn=position, rngs=rngs)
        self.head = nnx.Linear(WIDTH, VOCAB, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.attend(self.embed(tokens)))


@nnx.jit
def step(model, optimizer, tokens):
    loss, gradients = nnx.value_and_grad(lambda model: cross_entropy(model(tokens), tokens))(model)
    optimizer.update(model, gradients)
    return loss


models, curves = {}, {}
for spec in SPECS:
    models[spec] = model = Model(pejax.make_encoding(spec, dims), nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
    curves[spec] = [float(step(model, optimizer, draw(seed))) for seed in range(STEPS)]

figure, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for spec, curve in curves.items():
    ax.plot(curve, label=spec.partition("(")[0])
ax.axhline(np.log(VOCAB), color="0.5", linestyle="--", linewidth=1)
ax.text(STEPS, np.log(VOCAB) + 0.03, "guessing, ln 8", ha="right", fontsize=9, color="0.4")
ax.set(xlabel="training step", ylabel="cross-entropy (nats per token)", ylim=(-0.1, 2.4))
ax.set_title("Name the token three positions back")
ax.grid(alpha=0.3)
ax.legend()
plt.show()

# %% [markdown]
# The trained layers read any length. Positions default to 0, 1, 2, ...; `module.at(positions)` sets others.


# %%
def most_frequent(tokens):
    """How often each token came so far, in place of logits."""
    return jnp.cumsum(jax.nn.one_hot(tokens, VOCAB), axis=1)


for spec, model in {"the most frequent so far": most_frequent, **models}.items():
    row = {length: accuracy(model(draw(1000, length)), draw(1000, length)) for length in (LENGTH, 4 * LENGTH)}
    print(f"{spec:32}", *(f"  {length} tokens: {100 * value:3.0f} %" for length, value in row.items()))
    if spec.startswith("t5") and not FAST:
        assert min(row.values()) > 0.95

# %% [markdown]
# Without position the model is as good as that guess. ALiBi does not solve this task either: its bias falls from the query
# on, and no slope puts its peak three tokens back. RoPE does, and loses some of it at four times the length. What T5
# learned is one number per bucket of distances. Three tokens back is the same bucket at any length, and all distances from
# 15 on share one.
#
# Where are T5's parameters? In the layer, with the others:

# %%
t5_model = models[SPECS[1]]
for path, leaf in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(nnx.state(t5_model.attend, nnx.Param))):
    print(jax.tree_util.keystr(path), leaf.shape)

# %% [markdown]
# ## T5's buckets
#
# *Often written:* buckets grow from one end of the sequence to the other, with distance 0 in the middle, at bucket 8, and
# 17 buckets in all. Or keys *before* the query get the offset of 16.
#
# *Computed:* T5 has 32 buckets. Distance 0 is bucket 0, keys before the query have 0 to 15, and keys *after* it have 17
# to 31. A table that was trained with the sides exchanged is mirrored.

# %%
official = {0: 0, -1: 1, -7: 7, -8: 8, -16: 10, -32: 12, -64: 14, -128: 15, 1: 17, 8: 24, 64: 30, 128: 31}
relative = jnp.asarray(list(official))
buckets = pejax.t5_bucket(relative, bidirectional=True)
np.testing.assert_array_equal(buckets, list(official.values()))
mirrored = pejax.t5_bucket(-relative, bidirectional=True)
print("key - query    ", *(f"{r:5}" for r in relative.tolist()))
print("bucket         ", *(f"{b:5}" for b in buckets.tolist()))
print("sides exchanged", *(f"{b:5}" for b in mirrored.tolist()))
pejax.visualize.plot_t5_buckets()

# %% [markdown]
# ## Flax Linen: a function, and parameters that you pass
#
# In Linen, draw the parameters with `self.param`, and make `attention_fn` from them in the same call. Then they are part
# of the variables of your model, and gradients reach them.

# %%
t5 = pejax.make_encoding(SPECS[1], dims)


class LinenModel(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        position = self.param("position", lambda key: pejax.init_params(t5, key))
        attention_fn = pejax.attention_fn(t5, position, positions=jnp.arange(tokens.shape[1]))
        x = nn.Embed(VOCAB, WIDTH)(tokens)
        x = nn.MultiHeadDotProductAttention(HEADS, attention_fn=attention_fn)(x)
        return nn.Dense(VOCAB)(x)


linen = LinenModel()
variables = linen.init(jax.random.key(0), draw(0))
before = variables["params"]["position"]["heads"]["table"]
optimizer = optax.adam(0.02)
state = optimizer.init(variables)


@jax.jit
def linen_step(variables, state, tokens):
    loss, gradients = jax.value_and_grad(lambda v: cross_entropy(linen.apply(v, tokens), tokens))(variables)
    updates, state = optimizer.update(gradients, state)
    return optax.apply_updates(variables, updates), state, loss


for seed in range(STEPS):
    variables, state, loss = linen_step(variables, state, draw(seed))
tokens = draw(1000)
print(f"loss {loss:.3f} nats, accuracy {100 * accuracy(linen.apply(variables, tokens), tokens):.0f} %")
if not FAST:
    assert accuracy(linen.apply(variables, tokens), tokens) > 0.95

# %% [markdown]
# The trained table shows what was learned: one distance stands out.

# %%
after = variables["params"]["position"]["heads"]["table"]
distance = jnp.arange(-LENGTH + 1, 1)
bucket = pejax.t5_bucket(distance, bidirectional=False, buckets=16, max_distance=16)
figure, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for head in range(HEADS):
    ax.plot(distance, after[head][bucket], marker="o", markersize=4, label=f"head {head}, trained")
    ax.plot(distance, before[head][bucket], color="0.6", linewidth=1, label="before" if head == 0 else None)
ax.axvline(-BACK, color="0.5", linestyle="--", linewidth=1)
ax.set(xlabel="key - query (tokens)", ylabel="bias (logits)", title="T5's table, read at each distance")
ax.grid(alpha=0.3)
ax.legend()
plt.show()
if not FAST:
    best = [int(distance[jnp.argmax(after[head][bucket])]) for head in range(HEADS)]
    assert -BACK in best, best

# %% [markdown]
# *Often written:* the logits of T5 are `q·k / sqrt(d) + bias`. *Computed:* T5 itself does not divide. pejax divides unless
# you say otherwise, and `Dims(scale=1.0)` gives T5's own convention:

# %%
q, k, v = jax.random.normal(jax.random.key(0), (3, 1, LENGTH, HEADS, 16))
same_params = pejax.init_params(t5, jax.random.key(1))
unscaled = pejax.Dims(heads=HEADS, head_dim=16, extent=LENGTH, causal=True, scale=1.0)
as_in_t5 = pejax.attend(pejax.make_encoding(SPECS[1], unscaled), q, k, v, params=same_params)
prescaled = pejax.attend(t5, 4.0 * q, k, v, params=same_params)  # 4 = sqrt(16)
print(f"largest difference {jnp.max(jnp.abs(as_in_t5 - prescaled)):.1e}")
np.testing.assert_allclose(as_in_t5, prescaled, atol=1e-5)

# %% [markdown]
# ## An encoding of your own
#
# An encoding is a record of functions. If the bias depends on key - query alone, one function is enough: `distance_bias`
# gets the parameters of one head and an array of distances. This one is a Gaussian bump around a distance that each head
# learns.


# %%
def bump(dims):
    """Prefer keys near a distance: `bias = -((j - i) - center_h)² / (2 width_h²)`."""

    def init(key):
        del key
        center = -jnp.arange(1.0, dims.heads + 1)  # head 0 starts one token back
        return {"heads": {"center": center, "log_width": jnp.zeros(dims.heads)}}

    def distance_bias(params, relative):
        return -0.5 * jnp.square((relative - params["center"]) * jnp.exp(-params["log_width"]))

    return pejax.Encoding(init=init, distance_bias=distance_bias, shift_invariant=True, dims=dims)


mine = bump(dims)
params = pejax.init_params(mine, jax.random.key(0))
print(pejax.explain(mine, dims))
pejax.visualize.plot_bias_curves(mine, dims, length=8, name="bump")

# %% [markdown]
# The laws, measured on random tokens and positions. A tile of the bias must equal that slice of the whole, because
# attention evaluates it tile by tile.

# %%
print(f"shift: largest deviation {assert_shift_invariant(mine, params, dims):.0e}")
print(f"tiles: largest deviation {assert_tile_consistent(mine, params, dims):.0e}")
print(f"norm:  largest deviation {assert_norm_preserved(mine, params, dims):.0e} (it rotates nothing)")

# %% [markdown]
# And it trains, in the same model as before. The centers move toward the distance that the task needs, -3.

# %%
model = Model(mine, nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.adam(0.02), wrt=nnx.Param)
for seed in range(STEPS):
    step(model, optimizer, draw(seed))
tokens = draw(1000)
for path, leaf in jax.tree_util.tree_leaves_with_path(
    nnx.to_pure_dict(nnx.state(model.attend.attention_fn, nnx.Param))
):
    print(path[-1].key, np.asarray(leaf).round(2))
print(f"accuracy {100 * accuracy(model(tokens), tokens):.0f} %")
if not FAST:
    assert accuracy(model(tokens), tokens) > 0.95

# %% [markdown]
# ## When a law fails
#
# Three mistakes. A rotation that takes its cosines from the table of sines, as in some published code. A bias that reads
# the position of the key alone, although the record claims shift invariance. And a bias that looks at the other tokens of
# its tile, here to subtract the mean of the row. The first error is shown whole, the others by their last line.


# %%
def sine_twice(params, x, positions):
    angle = positions[..., :, None, None] * jnp.asarray(pejax.rope_frequencies(x.shape[-1]))
    sin, even, odd = jnp.sin(angle), x[..., ::2], x[..., 1::2]
    return jnp.stack([even * sin - odd * sin, even * sin + odd * sin], axis=-1).reshape(x.shape)


def key_alone(params, q, k, q_positions, k_positions):
    return jnp.broadcast_to(0.1 * k_positions.astype(jnp.float32), (len(q), len(k)))


def centered(params, q, k, q_positions, k_positions):
    bias = -0.1 * jnp.abs(k_positions - q_positions[:, None]).astype(jnp.float32)
    return bias - bias.mean(axis=1, keepdims=True)


broken = {
    "sine twice": (assert_norm_preserved, pejax.Encoding(rotate=sine_twice)),
    "position of the key alone": (assert_shift_invariant, pejax.Encoding(bias=key_alone, shift_invariant=True)),
    "mean over the tile": (assert_tile_consistent, pejax.Encoding(bias=centered)),
}
for name, (law, encoding) in broken.items():
    try:
        law(encoding, {}, dims)
    except AssertionError as error:
        lines = str(error).strip().splitlines()
        print(f"--- {name}\n{law.__name__}:", *(lines if name == "sine twice" else lines[-1:]), sep="\n")
    else:
        raise RuntimeError(f"{name}: no law failed")

# %% [markdown]
# The second one is subtle: a term that depends on the key alone is not invariant by itself, but a shift adds the same
# constant to a whole row, and softmax removes it. `assert_shift_invariant` is strict and compares logits.
#
# Other mistakes do not reach a law, because attention refuses them. An encoding is never dropped silently:

# %%
q = k = v = jnp.ones((1, LENGTH, HEADS, 16))
attempts = {
    "a table that was not added to the input": lambda: pejax.attend(pejax.encodings.learned(dims), q, k, v),
    "a misspelled name": lambda: pejax.make_encoding("ropee", dims),
    "a causal encoding without its mask": lambda: pejax.attend(pejax.encodings.alibi(dims), q, k, v, causal=False),
}
for name, attempt in attempts.items():
    try:
        attempt()
    except ValueError as error:
        print(f"{name}:\n  ValueError: {error}\n")

# %% [markdown]
# ## In short
#
# - NNX: `attention_fn=attention_module(encoding, dims, rngs)`.
# - Linen: `self.param("position", ...)`, then `attention_fn=pejax.attention_fn(encoding, params, ...)`.
# - Your own: one function of the distance in a `pejax.Encoding`, and the laws of `pejax.testing` in your tests.
#
# [Attention](../docs/attention.md) says the same with masks, packing and CLS tokens.
