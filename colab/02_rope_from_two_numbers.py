# %% [markdown]
# # What does RoPE do to two numbers?
#
# RoPE turns pairs of numbers, and nothing else. You will rotate two numbers by hand and get what `pejax.rope_apply` gives.
# Then come many pairs at many speeds, the law that only the distance counts, and the precision that this law needs at
# long positions. At the end the same two numbers are rotated on an image, along its axes and in any direction.

# %%
import chex
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import pejax.visualize
from pejax.testing import assert_norm_preserved, assert_shift_invariant

# %% [markdown]
# ## Two numbers
#
# Take a head of two channels, a vector `x = (1, 0)` and a frequency of a right angle per token. At position p the vector
# is turned by p right angles.

# %%
RIGHT_ANGLE = np.pi / 2  # radians per token


def rotate(x, angle):
    """Turn two numbers counterclockwise by an angle in radians."""
    return np.array([x[0] * np.cos(angle) - x[1] * np.sin(angle), x[0] * np.sin(angle) + x[1] * np.cos(angle)])


by_hand = np.stack([rotate((1.0, 0.0), position * RIGHT_ANGLE) for position in range(4)])
x = jnp.tile(jnp.asarray([1.0, 0.0]), (4, 1, 1))  # 4 tokens, 1 head, 2 channels
by_pejax = pejax.rope_apply(x, jnp.arange(4), jnp.asarray([RIGHT_ANGLE]))
print(np.column_stack([by_hand, by_pejax[:, 0]]).round(3) + 0.0)
np.testing.assert_allclose(by_pejax[:, 0], by_hand, atol=1e-6)

# %%
pejax.visualize.plot_needle(positions=4)

# %% [markdown]
# ## Why turn? Only the distance counts
#
# Turn a query at position m and a key at position n by the same frequency. Their product is
# `(R_m q) · (R_n k) = q · (R_{n-m} k)`: the positions are gone, and their difference is left.

# %%
FREQUENCY = 0.3  # radians per token
q, k = np.array([1.0, 0.5]), np.array([-0.3, 0.8])


def product(m, n):
    return rotate(q, m * FREQUENCY) @ rotate(k, n * FREQUENCY)


for m, n in [(5, 2), (105, 102), (1005, 1002)]:
    print(f"query at {m:4}, key at {n:4}: {product(m, n):.6f}")
print(f"key turned by the distance:  {q @ rotate(k, -3 * FREQUENCY):.6f}")
np.testing.assert_allclose([product(105, 102), product(1005, 1002)], product(5, 2), atol=1e-9)

# %% [markdown]
# Two numbers are one complex number, and a rotation is a product with `e^(i angle)`. Formulas in this form are often
# misprinted. Three of the misprints, computed:

# %%
Q, K = complex(*q), complex(*k)


def turned(z, position):
    return z * np.exp(1j * position * FREQUENCY)


def at(m, n):
    return {
        "right:  Re[(q e^imθ) · conj(k e^inθ)]": (turned(Q, m) * np.conj(turned(K, n))).real,
        "wrong:  Re[(q e^imθ) · (k e^inθ)], without the conjugate": (turned(Q, m) * turned(K, n)).real,
        "wrong:  query and key both turned by m": (turned(Q, m) * np.conj(turned(K, m))).real,
        "wrong:  the query alone is turned": (turned(Q, m) * np.conj(K)).real,
    }


print(f"{'positions (m, n)':58} (5, 2)  (6, 3)  (5, 3)")
for name, value in at(5, 2).items():
    print(f"{name:58} {value:6.3f}  {at(6, 3)[name]:6.3f}  {at(5, 3)[name]:6.3f}")

# %% [markdown]
# Only the first line is a function of the distance: equal for (5, 2) and (6, 3), another number for (5, 3). Without the
# conjugate the product depends on m + n. With m for both, position cancels. With the query alone, the product depends on
# m. So "rotate the queries only", which is often suggested for cross-attention, encodes where the query is in its own
# sequence and no relation to the key.

# %% [markdown]
# ## Many pairs, many speeds
#
# A head of D channels has D/2 pairs. Pair i turns by `f_i = base^(-2i/D)` radians per token, i = 0 ... D/2 - 1. The first
# pair turns once in 6.3 tokens. The last one turns once in about 47,000 tokens, for base 10,000 and D = 64.

# %%
D = 64
frequencies = pejax.rope_frequencies(D)
by_formula = 10000.0 ** (-2 * np.arange(D // 2) / D)
np.testing.assert_allclose(frequencies, by_formula, rtol=1e-6)
print(
    f"{len(frequencies)} pairs; wavelengths {2 * np.pi / frequencies[0]:.1f} to {2 * np.pi / frequencies[-1]:,.0f} tokens"
)

dims = pejax.Dims(heads=1, head_dim=D, extent=256)
rope = pejax.encodings.rope(dims)
pejax.visualize.plot_rotation(rope, dims)

# %% [markdown]
# *Often written:* i runs from 0 to D/2. *Computed:* that is one pair too many; there are 32 frequencies for 64 channels.
#
# Here is RoPE on a whole head, from the function `rotate` of two numbers. Then two mistakes of published code.

# %%
tokens = jax.random.normal(jax.random.key(0), (10, 1, D))


def rope_by_hand(x):
    y = np.zeros(x.shape)
    for position in range(x.shape[0]):
        for i, frequency in enumerate(by_formula):
            y[position, 0, 2 * i : 2 * i + 2] = rotate(x[position, 0, 2 * i : 2 * i + 2], position * frequency)
    return y


np.testing.assert_allclose(pejax.rope_apply(tokens, jnp.arange(10)), rope_by_hand(np.asarray(tokens)), atol=1e-5)

# Mistake 1: the table of cosines is read from the channels of the sines.
sin = np.sin(np.arange(10)[:, None] * by_formula)
even, odd = np.asarray(tokens[:, 0, ::2]), np.asarray(tokens[:, 0, 1::2])
wrong = np.stack([even * sin - odd * sin, even * sin + odd * sin], axis=-1)
print(
    "norm of the token at position 0, before:",
    f"{jnp.linalg.norm(tokens[0]):.2f}",
    "with sines for cosines:",
    np.linalg.norm(wrong[0]),
)

# Mistake 2: pairs (2i, 2i+1) of one model are read as pairs (i, D/2+i) by another.
half = pejax.rope_apply(tokens, jnp.arange(10), pairing="half")
print(
    "largest difference between the two pairings:",
    f"{jnp.max(jnp.abs(half - pejax.rope_apply(tokens, jnp.arange(10)))):.1f}",
)
order = pejax.pairing_permutation(D, source="interleaved", target="half")
converted = pejax.rope_apply(tokens[..., order], jnp.arange(10), pairing="half")
np.testing.assert_allclose(converted, pejax.rope_apply(tokens, jnp.arange(10))[..., order], atol=1e-6)
print("equal after the channels are reordered by pairing_permutation")

# %% [markdown]
# ## The laws
#
# `pejax.testing` checks the two laws on random tokens, up to eight times the trained length: a shift of all positions
# changes no logit, and a rotation keeps the length of a vector. It returns the largest deviation.

# %%
print(f"shift: {assert_shift_invariant(rope, {}, dims):.1e}   norm: {assert_norm_preserved(rope, {}, dims):.1e}")

q, k = jax.random.normal(jax.random.key(1), (2, 32, 1, D))


def logits(first):
    positions = first + jnp.arange(32)
    return jnp.einsum("thd,shd->hts", pejax.rope_apply(q, positions), pejax.rope_apply(k, positions))


chex.assert_trees_all_close(logits(0), logits(1000), logits(1_000_000), logits(16_000_000), atol=1e-4)
print("32 tokens have the same logits at 0, 1,000, 1,000,000 and 16,000,000")

# %% [markdown]
# ## Precision at long positions
#
# The last check is not free. The usual code multiplies position and frequency in float32. The product has 24 bits, so at
# 2^24 tokens its spacing is one radian, and the angle is off by up to half of that. In bfloat16, with 8 bits, positions
# themselves are rounded beyond 256. pejax reduces the exact product to one turn first.
#
# Below is the largest error of an angle over all pairs and 256 random positions of each octave, against float64, where
# these products are exact.

# %%
octaves = 2 ** np.arange(4, 25)
draws = np.random.default_rng(0)
errors = {"bfloat16 position, float32 product": [], "float32 product": [], "pejax": []}
unit = jnp.tile(jnp.asarray([1.0, 0.0]), (256, 1, D // 2))  # turned, each pair is (cos, sin) of its angle
for top in octaves:
    positions = draws.integers(top // 2, top, 256, endpoint=True).astype(np.int32)
    exact = positions[:, None].astype(np.float64) * frequencies.astype(np.float64)
    low = np.asarray(jnp.asarray(positions, jnp.bfloat16).astype(jnp.float32))
    errors["bfloat16 position, float32 product"].append(np.abs(low[:, None] * frequencies - exact).max())
    errors["float32 product"].append(np.abs(positions[:, None].astype(np.float32) * frequencies - exact).max())
    pairs = np.asarray(pejax.rope_apply(unit, positions), np.float64).reshape(256, D // 2, 2)
    difference = np.arctan2(pairs[..., 1], pairs[..., 0]) - exact
    errors["pejax"].append(np.abs((difference + np.pi) % (2 * np.pi) - np.pi).max())

figure, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
for (name, error), marker in zip(errors.items(), "^so", strict=True):
    ax.loglog(octaves, np.maximum(error, 1e-9), marker=marker, base=10, label=name)
ax.axhline(np.pi, color="0.5", linestyle="--", linewidth=1)
ax.text(octaves[0], 0.7, "half a turn", color="0.4", fontsize=9)
ax.set(xlabel="position (tokens)", ylabel="largest error of an angle (radians)", ylim=(1e-9, 1e6))
ax.set_title("Rotation angles for base 10,000 and 64 channels")
ax.grid(alpha=0.3)
ax.legend(loc="upper left")
plt.show()

for name, error in errors.items():
    print(f"{name:36} at 4,096 tokens {error[8]:.1e} rad   at 2^24 tokens {error[-1]:.1e} rad")
assert max(errors["pejax"]) < 2e-6 < 0.2 < errors["float32 product"][-1] < 0.5

# %% [markdown]
# The inputs may be bfloat16. Their type does not affect the angles: the only error is the rounding of the result.

# %%
x16 = jax.random.normal(jax.random.key(2), (256, 1, D)).astype(jnp.bfloat16)
positions = jnp.arange(2**24 - 256, 2**24)
result = pejax.rope_apply(x16, positions)
same = pejax.rope_apply(x16.astype(jnp.float32), positions)
print(
    result.dtype,
    f"largest relative difference {jnp.max(jnp.abs(result - same) / jnp.abs(same)):.4f}, half a step is {2**-8:.4f}",
)
assert (result == same.astype(jnp.bfloat16)).all()

# %% [markdown]
# ## To play with
#
# This page has the pairs of a head of 64 channels, and what extensions to longer contexts do to them. Run the cell to
# move the needle. `python -m pejax.visualize rope --only=page` writes the page as a file.

# %%
pejax.visualize.needle_page()

# %% [markdown]
# ## Does the product fall with the distance?
#
# *Often written:* RoPE has a natural decay, so far tokens count less.
#
# *Computed:* take a query and a key that are copies of one word. Their product is `Σ_i |x_i|² cos(d f_i)`. Its mean over
# words falls at first, but then it rises and falls again, and single words differ from it. For a query and a key that
# have nothing to do with each other, the mean is 0 at every distance.

# %%
pejax.visualize.plot_logits_by_distance(rope, dims, length=257)

# %%
distances = np.arange(512)
mean = np.cos(distances[:, None] * frequencies).sum(axis=1) * 2  # of |x|² = 64, over standard normal words
rises = np.flatnonzero(np.diff(mean) > 0)
print(f"the mean rises at {len(rises)} of 511 distances, first from {rises[0]} to {rises[0] + 1} tokens")
for d in (0, 5, 40, 80, 160, 320):
    print(f"distance {d:3} tokens: mean product {mean[d]:5.1f}")
assert len(rises) > 100

# %% [markdown]
# ## What softmax makes of it
#
# The same as weights, `softmax(q·k / sqrt(D))` over 64 tokens: without an encoding, with a sinusoid added to queries and
# keys, and with RoPE. In the upper maps, all queries and keys are copies of one word. In the lower maps they have nothing
# to do with each other.

# %%
T, WORDS = 64, 256
places = jnp.arange(T)
sinusoid = pejax.sinusoidal_embedding(places, D)[:, None]
ENCODED = {
    "none": lambda x: x,
    "sinusoidal": lambda x: x + sinusoid,
    "rope": lambda x: pejax.rope_apply(x, places),
}
LOOKS = {"none": ("0.5", "-"), "sinusoidal": ("tab:orange", "--"), "rope": ("tab:blue", "-")}


def weights(name, q, k):
    """Attention weights of one head: (words, queries, keys)."""
    return jax.nn.softmax(jnp.einsum("nihd,njhd->nij", ENCODED[name](q), ENCODED[name](k)) / D**0.5, axis=-1)


q, k = jax.random.normal(jax.random.key(8), (2, WORDS, T, 1, D))
copies = jnp.broadcast_to(q[:, :1], q.shape)
words = {"copies of one word": (copies, copies), "unrelated words": (q, k)}
found = {which: {name: weights(name, *both) for name in ENCODED} for which, both in words.items()}

figure, axes = plt.subplots(2, 3, figsize=(10, 6.6), sharex=True, sharey=True, layout="constrained")
for row, (which, maps) in zip(axes, found.items(), strict=True):
    for ax, (name, one) in zip(row, maps.items(), strict=True):
        drawn = ax.imshow(one[0], cmap="Blues", vmin=0)
        ax.set_title(f"{name}, {which}", fontsize=10)
        figure.colorbar(drawn, ax=ax, shrink=0.85)
figure.supxlabel("position of the key (tokens)")
figure.supylabel("position of the query (tokens)")
figure.suptitle("Attention weights of one draw")
plt.show()

# %% [markdown]
# One map is one draw. The mean over 256 draws shows what position does: these are the weights that the last query gives to
# the keys, by their distance.

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
by_distance = {}
print(f"mean weight in units of 1/{T}" + "".join(f"{d:8}" for d in (0, 1, 5, 20, 40, 63)) + "  tokens away")
for ax, (which, maps) in zip(axes, found.items(), strict=True):
    for name, one in maps.items():
        mean = by_distance[which, name] = np.asarray(one[:, -1, ::-1].mean(axis=0)) * T
        color, line = LOOKS[name]
        ax.plot(places, mean, line, color=color, label=name)
        print(f"{name + ', ' + which:29}" + "".join(f"{mean[d]:8.2f}" for d in (0, 1, 5, 20, 40, 63)))
    ax.set(title=which, xlabel="distance (tokens)", yscale="log")
    ax.grid(alpha=0.3)
axes[0].set_ylabel(f"mean weight (1/{T})")
axes[0].legend()
plt.show()

of_copies = by_distance["copies of one word", "rope"]
print(f"\nrope, copies: the weight rises with the distance at {np.sum(np.diff(of_copies) > 0)} of 63 steps")
w_q, w_k = jax.random.normal(jax.random.key(9), (2, D, D)) * D**-0.5
behind = (ENCODED["sinusoidal"](q)[..., 0, :] @ w_q, ENCODED["sinusoidal"](k)[..., 0, :] @ w_k)
behind = jax.nn.softmax(jnp.einsum("nid,njd->nij", *behind) / D**0.5, axis=-1)[:, -1].mean(axis=0) * T
print(f"sinusoidal, unrelated, before random projections: weight {behind[-1]:.2f} of the query's own position")

assert of_copies[0] > 10 > 0.5 > of_copies[40]
assert np.sum(np.diff(of_copies) > 0) > 10
assert np.abs(by_distance["unrelated words", "rope"] - 1).max() < 0.5
assert by_distance["unrelated words", "sinusoidal"][0] > 3

# %% [markdown]
# *Often shown:* the map of random queries and keys, like the one at the lower right, as what attention with RoPE looks like.
#
# *Computed:* position is not in that map. On average, unrelated words get the same weight at every distance, with RoPE as
# without an encoding. RoPE turns what the content says, so it acts where a query and a key match: of many copies of a
# word, the near ones get most of the weight, and on the way to the far ones it falls and rises.
#
# A sinusoid on queries and keys has a term of its own, `E_m · E_n`: neighbors win whatever the words are. In a transformer
# it is added to the tokens instead, and the projections decide what is left of that term. Random ones remove it.

# %% [markdown]
# RoFormer has a bound that decays. It is a bound, far above the products themselves:

# %%
pejax.visualize.plot_decay_bounds(head_dim=128)

# %% [markdown]
# ## Images: pairs along the axes, or in any direction
#
# On an image a position is (row, column), and each pair has a frequency per axis. Its angle is
# `row · f_row + column · f_column`. *Axial* RoPE gives each pair one axis: the other frequency is 0. *Mixed* RoPE learns
# both, per head. Each pair is then a plane wave in a direction of its own.

# %%
axial, mixed = pejax.rope_axial_frequencies(8), pejax.rope_mixed_frequencies(jax.random.key(0), heads=1, head_dim=8)[0]
print("axial, radians per patch (rows: axis)\n", axial.round(3), "\nmixed\n", np.asarray(mixed).round(3))

image = pejax.Dims(heads=2, head_dim=32, axes=2, extent=(14, 14))
both = {"rope_axial": pejax.encodings.rope_axial(image), "rope_mixed": pejax.encodings.rope_mixed(image)}
pejax.visualize.plot_plane_waves(both, image)

# %% [markdown]
# The difference shows in what a query can look for. With axial pairs, a logit is a term of the row offset plus a term of
# the column offset. So the mixed difference `L(r, c) - L(r, 0) - L(0, c) + L(0, 0)` is 0, and no head can prefer one
# diagonal neighbor without preferring its row and its column. With mixed pairs it can.

# %%
grid = pejax.grid_positions(14, 14)
word = jax.random.normal(jax.random.key(3), (1, 2, 32))
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
for ax, (name, encoding) in zip(axes, both.items(), strict=True):
    params = pejax.init_params(encoding, jax.random.key(4))
    query = encoding.rotate(params, word, jnp.asarray([[0, 0]]))
    keys = encoding.rotate(params, jnp.tile(word, (196, 1, 1)), grid)
    L = np.asarray(keys[:, 0] @ query[0, 0]).reshape(14, 14) / 32**0.5
    interaction = np.abs(L - L[:, :1] - L[:1, :] + L[0, 0]).max()
    print(f"{name}: |L(r, c) - L(r, 0) - L(0, c) + L(0, 0)| is at most {interaction:.1e}")
    assert (interaction < 1e-4) == (name == "rope_axial")
    drawn = ax.imshow(L, cmap="RdBu_r", vmin=-abs(L).max(), vmax=abs(L).max())
    ax.set(title=name, xlabel="column offset (patches)", ylabel="row offset (patches)")
    ax.set(xticks=range(0, 14, 4), yticks=range(0, 14, 4))
    figure.colorbar(drawn, ax=ax, label="logit")
plt.show()

# %% [markdown]
# *Often written:* axial RoPE alternates the axes, pair 2t for x and pair 2t + 1 for y. *Computed:* the authors' code puts
# all pairs of one axis before all pairs of the other. pejax has both orders, and weights of one do not fit the other.

# %%
print("concat\n", pejax.rope_axial_frequencies(8).round(3))
print("alternate\n", pejax.rope_axial_frequencies(8, layout="alternate").round(3))
for name, encoding in both.items():
    deviation = assert_shift_invariant(encoding, pejax.init_params(encoding, jax.random.key(5)), image)
    print(f"{name}: a shift of all rows and columns changes a logit by {deviation:.0e}")

# %% [markdown]
# ## In short
#
# - RoPE turns pairs of channels by position times frequency. Products of queries and keys then depend on the distance.
# - It has no built-in decay: products oscillate.
# - A float32 product of position and frequency loses the angle at long positions. `pejax.rope_apply` does not.
# - On images, axial pairs see rows and columns; mixed pairs see directions.
#
# Next: [ALiBi and extrapolation](03_alibi_and_extrapolation.ipynb), where
# RoPE meets lengths that it was not trained on.
