# %% [markdown]
# # What if a position is no index?
#
# A word has a place in a row. A measurement has a time, a weather station a latitude and a longitude, an atom three
# coordinates, a residue a chain. These positions are real numbers with gaps, and most encodings take them as they are.
# This notebook trains one small model on measurements at irregular times and on stations of a sphere, keeps two chains
# apart, and measures the memory of a trained bias by distance among 16,384 points.

# %%
import datetime
import os
from itertools import pairwise

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import pejax
from pejax.models import attention_module

FAST = "PEJAX_FAST" in os.environ  # fewer steps, to test the notebook

# %% [markdown]
# ## One model for all of it
#
# It is given values at some positions, and asked for the values at others. A token is a value and whether it is known;
# where it is comes from the encoding alone. The attention layers are Flax's, and pejax goes into `attention_fn`.

# %%
WIDTH, HEADS, LAYERS = 64, 4, 2
STEPS, BATCH = (3, 4) if FAST else (700, 32)


class Model(nnx.Module):
    def __init__(self, encoding, dims, rngs):
        self.embed = nnx.Linear(2, WIDTH, rngs=rngs)
        self.positions = nnx.List([attention_module(encoding, dims, rngs) for _ in range(LAYERS)])
        self.attention = nnx.List(
            [nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, attention_fn=p, rngs=rngs) for p in self.positions]
        )
        self.wide = nnx.List([nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs) for _ in range(LAYERS)])
        self.narrow = nnx.List([nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs) for _ in range(LAYERS)])
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2 * LAYERS)])
        self.head = nnx.Linear(WIDTH, 1, rngs=rngs)

    def __call__(self, values, known, positions):
        x = self.embed(jnp.stack([jnp.where(known, values, 0), known.astype(jnp.float32)], -1))
        for i in range(LAYERS):
            with self.positions[i].at(positions):
                x += self.attention[i](self.norms[2 * i](x))
            x += self.narrow[i](nnx.gelu(self.wide[i](self.norms[2 * i + 1](x))))
        return self.head(x)[..., 0]


@nnx.jit
def train_step(model, optimizer, values, known, positions):
    def error(model):
        return jnp.mean(jnp.square(model(values, known, positions) - values), where=~known)

    loss, gradients = nnx.value_and_grad(error)(model)
    optimizer.update(model, gradients)
    return loss


def trained(encoding, dims, draw):
    """Return a model trained on batches `draw(rng) -> (values, known, positions)`, and the last losses."""
    model = Model(encoding, dims, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, STEPS)), wrt=nnx.Param)
    rng = np.random.default_rng(0)
    losses = [train_step(model, optimizer, *draw(rng)) for _ in range(STEPS)]
    return model, float(np.mean(losses[-50:]))


# %% [markdown]
# ## Irregular times
#
# A sensor writes at random moments, with pauses. The clock counts seconds since 1970, which float32 holds to 128 seconds.
# pejax refuses such numbers, and `offset_positions` subtracts the first of them in double precision.

# %%
start = datetime.datetime(2026, 11, 29, tzinfo=datetime.UTC).timestamp()
stamps = start + np.asarray([0.0, 0.25, 1.5, 60.0, 3600.5])
try:
    pejax.attend(pejax.encodings.rope(pejax.Dims(1, 8)), *[jnp.ones((1, 5, 1, 8))] * 3, positions=stamps)
except ValueError as refusal:
    print(refusal)
times, origin = pejax.offset_positions(stamps)
print(times, "since", origin)

# %% [markdown]
# The task: 24 measurements of two waves with noise, at random times of a minute, and the value at 8 other times. `rope`
# with the times as positions is compared with the same encoding on 0, 1, 2, ..., as if a row of measurements were a text, and
# with no position.

# %%
LENGTH, ASKED = 32, 8


def measurements(rng):
    times = np.sort(rng.uniform(0, 60, (BATCH, LENGTH)), axis=1)
    periods, phases = rng.uniform(8, 30, (2, BATCH, 1)), rng.uniform(0, 2 * np.pi, (2, BATCH, 1))
    values = np.sin(2 * np.pi * times / periods + phases).sum(0) + 0.05 * rng.normal(size=times.shape)
    known = rng.permuted(np.arange(LENGTH) >= ASKED * np.ones((BATCH, 1)), axis=1)
    return values.astype(np.float32), known, times.astype(np.float32)


def by_index(draw):
    def drawn(rng):
        values, known, positions = draw(rng)
        return values, known, np.broadcast_to(np.arange(LENGTH, dtype=np.float32), positions.shape[:2])

    return drawn


dims = pejax.Dims(heads=HEADS, head_dim=WIDTH // HEADS, extent=60)
rope = pejax.encodings.rope(dims, base=100.0)
errors = {}
by_time, errors["rope, times"] = trained(rope, dims, measurements)
_, errors["rope, 0, 1, 2, ..."] = trained(rope, dims, by_index(measurements))
_, errors["none"] = trained(pejax.encodings.none(dims), dims, measurements)
for name, error in errors.items():
    print(f"{name:20} mean squared error {error:.3f}")

# %%
rng = np.random.default_rng(1)
values, known, times = measurements(rng)
figure, panels = plt.subplots(1, 2, figsize=(9, 2.8), layout="constrained", sharey=True)
for axes, row in zip(panels, range(2), strict=True):
    estimates = np.asarray(by_time(values, known, times))[row]
    t, v, k = times[row], values[row], known[row]
    axes.plot(t[k], v[k], "o", label="given", color="0.55", markersize=4)
    axes.plot(t[~k], v[~k], "o", label="asked, true", color="#0b6", markersize=6)
    axes.plot(t[~k], estimates[~k], "x", label="rope, times", color="#c33", markersize=7)
    axes.set(xlabel="time (s)", ylim=(-2.6, 2.6))
panels[0].set_ylabel("value")
panels[1].legend(loc="lower right", fontsize=8)
plt.show()
if not FAST:
    assert errors["rope, times"] < 0.5 * errors["rope, 0, 1, 2, ..."]

# %% [markdown]
# ## A sphere
#
# Longitude comes round: 179.5° and -179.5° are neighbors. `periodic=(None, 360.0)` gives the second axis of `rope_axial`
# whole turns per 360°, so that a station at -179.5° is where one at 180.5° is. Without it, neighbors across the date line
# are 359° apart. The fields below change over some 60 degrees, and the fastest pair turns by one radian per unit: so positions
# are counted in units of 45°, of which a period has 8.

# %%
UNIT = 45.0
sphere = pejax.Dims(heads=HEADS, head_dim=WIDTH // HEADS, axes=2)
flat = pejax.encodings.rope_axial(sphere)
globe = pejax.encodings.rope_axial(sphere, periodic=(None, 360 / UNIT))
places = jnp.asarray([[0.0, 179.5], [0.0, -179.5], [0.0, 0.5], [0.0, 1.5]]) / UNIT
x = jnp.ones((1, 4, 1, WIDTH // HEADS))
for name, encoding in {"rope_axial": flat, "periodic": globe}.items():
    turned = encoding.rotate(pejax.init_params(encoding, jax.random.key(0)), x, places)[0, :, 0]
    print(f"{name:12} q·k across the date line {turned[0] @ turned[1]:.4f}, elsewhere {turned[2] @ turned[3]:.4f}")

# %% [markdown]
# Trained: 40 stations at random places give the value of a smooth field, and 8 others are asked for. The error is counted
# by the distance from the date line, on fields that training never had.

# %%
STATIONS = 48


def fields(rng, rows=BATCH):
    """Return values of random smooth fields at random places, evenly spread over the sphere."""
    latitude = np.degrees(np.arcsin(rng.uniform(-1, 1, (rows, STATIONS))))
    longitude = rng.uniform(-180, 180, (rows, STATIONS))
    a, b = np.radians(latitude), np.radians(longitude)
    points = np.stack([np.cos(a) * np.cos(b), np.cos(a) * np.sin(b), np.sin(a)], -1)
    waves = rng.normal(size=(rows, 3, 6)) * 1.2
    values = np.sin(np.einsum("bsx,bxw->bsw", points, waves) + rng.uniform(0, 6.3, (rows, 1, 6))).sum(-1) / np.sqrt(3)
    known = np.arange(STATIONS) >= ASKED * np.ones((rows, 1))
    return values.astype(np.float32), known, np.float32(np.stack([latitude, longitude], -1) / UNIT)


models = {name: trained(e, sphere, fields)[0] for name, e in {"rope_axial": flat, "periodic": globe}.items()}
values, known, places = fields(np.random.default_rng(2), 50 if FAST else 1000)
far = 180 - UNIT * np.abs(places[..., 1])
edges = np.asarray([0, 15, 30, 60, 120, 180])
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
for name, model in models.items():
    square = np.square(np.asarray(model(values, known, places)) - values)
    means = [square[~known & (far >= a) & (far < b)].mean() for a, b in pairwise(edges)]
    axes.step(edges, [*means, means[-1]], where="post", label=name)
    print(f"{name:12}", *(f"{a} to {b}°: {m:.3f} " for (a, b), m in zip(pairwise(edges), means, strict=True)))
axes.set(xlabel="longitude from the date line (degrees)", ylabel="mean squared error", ylim=(0, None))
axes.legend()
plt.show()

# %% [markdown]
# On a sphere, an encoding by distance needs no period either: with the unit vectors as positions on three axes, `alibi` and
# `kerple` see the length of the chord.

# %% [markdown]
# ## Chains
#
# Two chains of a protein in one row count their residues anew, and must not see each other. `segment_ids_of` numbers any
# labels from 1; 0 is padding, so ids that count from 0 would silence the first chain. The last number is the largest
# difference between chain B in the row and chain B alone.

# %%
labels = ["A"] * 5 + ["B"] * 7
chains = pejax.segment_ids_of(labels)
tokens = pejax.packed_positions(chains)
line = pejax.Dims(heads=2, head_dim=16)
q, k, v = jax.random.normal(jax.random.key(0), (3, 1, len(labels), 2, 16))
together = pejax.attend(pejax.encodings.rope(line), q, k, v, positions=tokens)
alone = pejax.attend(pejax.encodings.rope(line), q[:, 5:], k[:, 5:], v[:, 5:])
print(chains, tokens.positions, f"{float(jnp.abs(together[:, 5:] - alone).max()):.0e}", sep="\n")

# %% [markdown]
# ## 16,384 points
#
# A bias by distance with trained parameters, `kerple`, among points in space. As an array it would have a number per pair
# and head. pejax computes it tile by tile, forward and backward, so memory grows with the points. These are the bytes
# that XLA reserves for the gradients of the parameters, the queries, keys, values and the positions.

# %%
space = pejax.Dims(heads=8, head_dim=16, axes=3)
kerple = pejax.encodings.kerple(space)
params = jax.eval_shape(lambda key: pejax.init_params(kerple, key), jax.random.key(0))


def loss(params, q, k, v, points):
    return jnp.sum(jnp.square(pejax.attend(kerple, q, k, v, params=params, positions=points)))


counts = (1024, 2048) if FAST else (1024, 2048, 4096, 8192, 16384)
memory = []
for n in counts:
    tokens = jax.ShapeDtypeStruct((1, n, 8, 16), jnp.float32)
    points = jax.ShapeDtypeStruct((1, n, 3), jnp.float32)
    program = jax.jit(jax.grad(loss, range(5))).lower(params, tokens, tokens, tokens, points).compile()
    memory.append(program.memory_analysis().temp_size_in_bytes / 2**20)
array = [8 * n * n * 4 / 2**20 for n in counts]
figure, axes = plt.subplots(figsize=(6.5, 3.4), layout="constrained")
axes.loglog(counts, array, "o--", color="0.55", label="the bias as an array")
axes.loglog(counts, memory, "o-", color="#0b6", label="kerple, all gradients")
axes.set(xlabel="points", ylabel="MiB", xticks=counts)
axes.set_xticks(counts, [f"{n:,}" for n in counts])
axes.minorticks_off()
axes.legend()
plt.show()
print(f"{counts[-1]:,} points: {memory[-1]:.0f} MiB; the array alone would have {array[-1]:,.0f} MiB")

# %% [markdown]
# ## What to take
#
# | positions | encoding |
# |---|---|
# | times with gaps | `rope` or `alibi` on `offset_positions(times)` |
# | latitude and longitude | `rope_axial(periodic=(None, 360.0))`, or `kerple` on unit vectors |
# | points and atoms | `kerple` or `alibi` on three axes, `rope_axial` with a width per axis |
# | any coordinates, added to the input | `fourier` |
# | chains | any, with `segment_ids_of(labels)` |
#
# [Positions that are no grid](../docs/coordinates.md) has every case with its figure.
