# %% [markdown]
# # Which encodings read texts longer than those in training?
#
# ALiBi subtracts slope times distance from the logits. You will see its slopes, why this makes attention local, and a
# claim about the entropy of attention that is backwards. Then three small language models are trained on 64 bytes of
# Shakespeare at a time, and read 64, 128 and 256. At the end ALiBi goes from one dimension to two, for images.

# %%
import lzma
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import pejax.visualize
from pejax.models import Decoder, decoder

FAST = "PEJAX_FAST" in os.environ  # fewer steps, for tests

# %% [markdown]
# ## Slopes and bias
#
# Each head has a slope m, in logits per token. The bias of head h is `-m_h · |j - i|` for query i and key j. With H a power
# of two, `m_h = 2^(-8(h+1)/H)`: head 0 is the steepest.

# %%
print("8 heads: ", pejax.alibi_slopes(8))
print("12 heads:", pejax.alibi_slopes(12).round(4))
np.testing.assert_array_equal(pejax.alibi_slopes(8), [2.0**-n for n in range(1, 9)])
np.testing.assert_allclose(pejax.alibi_slopes(12)[8:], [2.0 ** -(n + 0.5) for n in range(4)], rtol=1e-6)

start = 2 ** (-8 / 8)
published = {
    "start · start^(i+1), off by one": start * start ** np.arange(1, 9),
    "the formula for powers of two, on 12 heads": 2.0 ** (-8 * np.arange(1, 13) / 12),
}
for mistake, slopes in published.items():
    right = np.asarray(pejax.alibi_slopes(len(slopes)))
    print(f"\noften published: {mistake}\n  {slopes.round(4)}\n  times the right slope: {(slopes / right).round(2)}")

# %% [markdown]
# *Often written:* head 0 has a gentle slope and sees far, and the last of 8 heads has the slope 0.008.
#
# *Computed:* head 0 has the slope 1/2 and is the most local. The last one has 2^-8 = 0.0039. For 12 heads the paper takes
# the slopes of 8, and every second slope of 16.

# %%
pejax.visualize.plot_slopes(heads=(8, 12))

# %%
dims = pejax.Dims(heads=8, head_dim=64, extent=32, causal=True)
alibi = pejax.encodings.alibi(dims)
print("head 0, five tokens:\n", pejax.alibi_bias(jnp.arange(5), jnp.arange(5), pejax.alibi_slopes(8))[0])
pejax.visualize.plot_bias(alibi, dims)

# %% [markdown]
# The sign matters. *Often written:* the matrix `E_ij = |i - j|` times the slope is *added*. *Computed:* that rewards
# distance. Here is the weight that head 0 gives to the nearest and to the farthest of 16 keys, when all products are equal.

# %%
bias = pejax.alibi_bias(jnp.asarray([15]), jnp.arange(16), pejax.alibi_slopes(8))[0, 0]
for name, logits in {"-m · distance": bias, "+m · distance": -bias}.items():
    weights = jax.nn.softmax(logits)
    print(f"{name}: nearest key {weights[-1]:.4f}, farthest key {weights[0]:.4f}")

# %% [markdown]
# ## Why softmax turns a slope into a window
#
# Softmax exponentiates. With equal products, a key at distance d has a weight proportional to `e^(-m d)`: every 1/m tokens
# the weight falls by a factor e. So a slope is a window of soft edges, and `3/m` tokens hold 95 % of the weight.

# %%
T = 2048
q = k = jnp.zeros((1, T, 8, 64))
hooks = pejax.attention_hooks(alibi, {})
last = pejax.attention_weights(
    q[:, -1:], k, positions=jnp.asarray([T - 1]), k_positions=jnp.arange(T), hooks=hooks, causal=True
)[0, :, 0, ::-1]  # heads, distances of the last query
inside = jnp.cumsum(last, axis=-1)
print("head  slope    3/m tokens   weight within 3/m")
for head, slope in enumerate(np.asarray(pejax.alibi_slopes(8))):
    print(f"{head:4}  {slope:.4f}   {3 / slope:9.0f}   {inside[head, min(T, round(3 / slope)) - 1]:.3f}")
np.testing.assert_allclose(last[0, :20], (1 - np.exp(-0.5)) * np.exp(-0.5 * np.arange(20)), rtol=1e-3)

figure, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
for head in range(0, 8, 2):
    ax.loglog(np.arange(1, T + 1), inside[head], label=f"head {head}, slope {pejax.alibi_slopes(8)[head]:.4f}")
ax.set(xlabel="nearest keys (tokens)", ylabel="their share of the weight", ylim=(1e-2, 1.3))
ax.set_title("ALiBi's weight of the nearest keys, all products equal")
ax.grid(alpha=0.3)
ax.legend()
plt.show()

# %% [markdown]
# A constant per row does not change a softmax. So in a causal model `m · j` gives the weights of `-m · (i - j)`, and both
# forms are in use. The log of the sum differs, so the two cannot be mixed where attention is merged from parts.

# %%
logits = jax.random.normal(jax.random.key(0), (16,))
row, distance = 0.5 * jnp.arange(16.0), -0.5 * (15 - jnp.arange(16.0))
np.testing.assert_allclose(jax.nn.softmax(logits + row), jax.nn.softmax(logits + distance), atol=1e-6)
print(f"log of the sum: {jax.nn.logsumexp(logits + row):.2f} and {jax.nn.logsumexp(logits + distance):.2f}")

# %% [markdown]
# ## How spread is attention? A conclusion that is backwards
#
# The entropy `-Σ w ln w` of a row of weights says how spread it is. A comparison that is often repeated takes random
# queries and keys of one head with 32 channels, without a mask. It concludes: "the entropy of the sinusoid grows fastest,
# that of ALiBi slowest". The figures:

# %%
LENGTHS = (8, 128) if FAST else (8, 32, 128)


def entropy(logits):
    log_weights = jax.nn.log_softmax(logits, axis=-1)
    hidden = jnp.isneginf(log_weights)
    return -jnp.sum(jnp.where(hidden, 0.0, jnp.exp(log_weights) * log_weights), axis=-1)


def draw(length, draws=20):
    return jnp.asarray(np.random.default_rng(0).standard_normal((2, draws, length, 1, 32), np.float32))


def encoded(name, q, k, heads):
    """Logits of the comparison, (draws, heads, queries, keys): the sinusoid is added to q and k."""
    positions = jnp.arange(q.shape[1])
    if name == "sinusoidal":
        E = pejax.sinusoidal_embedding(positions, 32)[:, None]
        q, k = q + E, k + E
    if name == "rope":
        q, k = pejax.rope_apply(q, positions), pejax.rope_apply(k, positions)
    logits = jnp.einsum("bthd,bshd->bhts", q, k) / 32**0.5
    return logits + pejax.alibi_bias(positions, positions, pejax.alibi_slopes(heads)) if name == "alibi" else logits


LINES = {
    "none": ("0.5", "-"),
    "sinusoidal": ("tab:orange", "--"),
    "rope": ("tab:blue", "-"),
    "alibi": ("tab:green", "-"),
}
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for ax, heads in zip(axes, (1, 8), strict=True):
    print(f"ALiBi with {heads} head{'s' * (heads > 1)}, entropy in nats (uniform: ln of the length)")
    names = ("sinusoidal", "rope", "alibi")
    table = {T: {name: float(entropy(encoded(name, *draw(T), heads)).mean()) for name in names} for T in LENGTHS}
    print("  tokens      ", *(f"{length:6}" for length in LENGTHS))
    ax.plot(LENGTHS, np.log(LENGTHS), color="0.8", linewidth=4, label="uniform weights")
    for name in names:
        row = [table[length][name] for length in LENGTHS]
        print(f"  {name:12}", *(f"{value:6.2f}" for value in row))
        color, line = LINES[name]
        ax.plot(LENGTHS, row, line, color=color, marker="o", markersize=4, label=name)
    ax.set_xscale("log", base=2)
    ax.set_xticks(LENGTHS, LENGTHS)
    ax.set(xlabel="length (tokens)", title=f"ALiBi with {heads} head{'s' * (heads > 1)}")
    ax.grid(alpha=0.3)
    if heads == 1:
        at_128 = table[128]
        assert at_128["sinusoidal"] < at_128["alibi"] - 0.2
        assert abs(at_128["rope"] - at_128["alibi"]) < 0.1
    else:
        assert table[128]["alibi"] < table[128]["sinusoidal"]
axes[0].set_ylabel("entropy of a row (nats)")
axes[0].legend()
plt.show()

# %% [markdown]
# *Computed:* in that comparison the sinusoid has the *lowest* entropy at 128 tokens, about 4.0 nats, and ALiBi equals
# RoPE at about 4.4. Two reasons:
#
# - One head was taken "for a fair comparison". A single head has the slope 2^-8, ALiBi's gentlest.
# - The sinusoid adds 16 to every |q|², so its logits are larger, and larger logits mean a sharper softmax.
#
# With eight heads ALiBi's mean is indeed the lowest, because the steep heads stay local. The gentle ones do not.
#
# The mean over a whole matrix hides where the entropy grows. So here it is row by row, in a causal model: the query at
# position i sees i + 1 keys. Left, queries and keys are random, as above. Right, all are copies of one word.

# %%
T, HEADS_SHOWN = 64 if FAST else 256, (0, 2, 4, 7)
q, k = draw(T, 32)
same = jnp.broadcast_to(q[:, :1], q.shape)
future = jnp.triu(jnp.full((T, T), -jnp.inf), 1)
figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), sharey=True, layout="constrained")
last = {}
for ax, (which, both) in zip(axes, {"random": (q, k), "copies of one word": (same, same)}.items(), strict=True):
    for name, (color, line) in LINES.items():
        rows = entropy(encoded(name, *both, 8) + future).mean(axis=0)  # heads, queries
        last[which, name] = rows[:, -1]
        for head in HEADS_SHOWN if name == "alibi" else (0,):
            ax.plot(
                np.arange(1, T + 1), rows[head], line, color=color, linewidth=1.2, label=name if head == 0 else None
            )
            if name == "alibi":
                ax.annotate(f" head {head}", (T, rows[head, -1]), color=color, fontsize=8, va="center")
    ax.set_xscale("log", base=2)
    ax.set(xlabel="keys that the query sees (tokens)", title=which, xlim=(1, 1.6 * T))
    ax.grid(alpha=0.3)
axes[0].set_ylabel("entropy (nats)")
axes[0].legend(loc="upper left")
plt.show()

print(f"e^entropy of the last row, copies of one word: how many of {T} keys share the weight")
for name in LINES:
    heads = HEADS_SHOWN if name == "alibi" else (0,)
    print(f"  {name:12}", ", ".join(f"{np.exp(last['copies of one word', name][head]):.1f}" for head in heads))
of_alibi = last["copies of one word", "alibi"]
np.testing.assert_allclose(np.exp(of_alibi[:3]), np.e / np.asarray(pejax.alibi_slopes(8)[:3]), rtol=0.02)
assert abs(last["random", "rope"][0] - last["random", "none"][0]) < 0.1
assert last["copies of one word", "rope"][0] < last["copies of one word", "none"][0] - 0.3

# %% [markdown]
# With random queries and keys, RoPE's entropy is that of no encoding: it grows with the logarithm of the position. A slope
# m of ALiBi stops it at about `1 + ln(1/m)`, e/m keys, once the query sees more of them, and only the gentlest heads still
# grow here. RoPE narrows attention only among words that match, and this does not stop it from growing.
#
# Does this tell which model reads larger inputs well? In the vision transformers of the
# [results](../docs/results.md) it does not: the change of e^entropy and the lost accuracy are hardly related.
#
# `plot_attention_entropy` draws this for causal layers, with the sinusoid added to the tokens, where it belongs:

# %%
names = ["sinusoidal", "rope", "alibi"]
lengths = (8, 128) if FAST else (8, 32, 128)
causal = pejax.Dims(heads=8, head_dim=32, causal=True)
pejax.visualize.plot_attention_entropy({n: pejax.make_encoding(n, causal) for n in names}, causal, lengths=lengths)

# %% [markdown]
# ## Longer than in training
#
# At a distance that was never trained, ALiBi's bias goes on along its line, and the softmax forgets what is far. RoPE
# turns its slow pairs to angles that were never trained. A sinusoid adds vectors that were never trained, and a table has
# no rows. The maps below show this without any training: all tokens are copies of one word, so only position tells them
# apart. Each map has four times the length given as trained.

# %%
short = pejax.Dims(heads=8, head_dim=32, extent=32, causal=True)
pejax.visualize.plot_extrapolation({name: pejax.make_encoding(name, short) for name in names}, short)

# %% [markdown]
# Such pictures are often titled "trained on 16 tokens, tested on 64", although nothing was trained. Whether a *model* reads
# longer texts is a matter of training, so here is one. It is small: two layers, 64 channels, bytes of Shakespeare.

# %%
packed = repository_file("train/data/shakespeare.xz")
works = dict(work.split("\n", 1) for work in lzma.decompress(packed).decode().split("\0"))
held_out = np.frombuffer(works.pop("othello").encode(), np.uint8).astype(np.int32)
text = np.frombuffer("\n".join(works.values()).encode(), np.uint8).astype(np.int32)
print(f"{len(works)} works, {len(text):,} bytes; held out: Othello, {len(held_out):,} bytes")

# %%
LENGTH, BATCH, STEPS = 64, 16, 30 if FAST else 400


def windows(text, starts, length):
    return jnp.asarray(text[starts[:, None] + np.arange(length + 1)])


@nnx.jit
def loss(model, window):
    logits = model(window[:, :-1])
    return optax.softmax_cross_entropy_with_integer_labels(logits, window[:, 1:]).mean()


@nnx.jit
def step(model, optimizer, window):
    value, gradients = nnx.value_and_grad(loss)(model, window)
    optimizer.update(model, gradients)
    return value


def untrained(pe):
    return Decoder(decoder(vocab=128, length=LENGTH, width=64, layers=2, heads=4, pe=pe), rngs=nnx.Rngs(0))


def train(pe):
    model = untrained(pe)
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, STEPS // 10, STEPS)
    optimizer = nnx.Optimizer(model, optax.adam(schedule), wrt=nnx.Param)
    draws = np.random.default_rng(0)
    for _ in range(STEPS):
        step(model, optimizer, windows(text, draws.integers(0, len(text) - LENGTH, BATCH), LENGTH))
    return model


def perplexity(model, length, tokens=8192 if FAST else 16384):
    """Per byte of Othello, read in windows of this length."""
    return float(jnp.exp(loss(model, windows(held_out, np.arange(0, tokens, length), length))))


# %% [markdown]
# All models see the same windows in the same order. They differ in `pe` alone. A learned table has no rows for more than
# 64 bytes, so a model with one is refused there, trained or not.

# %%
TIMES = (1, 2, 4)
perplexities = {}
for pe in ["alibi", "rope", "sinusoidal"][: 2 if FAST else 3]:
    model = train(pe)
    perplexities[pe] = [perplexity(model, times * LENGTH) for times in TIMES]
    row = " ".join(f"{x:8.2f}" for x in perplexities[pe])
    print(f"{pe:11} perplexity at {LENGTH}, {2 * LENGTH} and {4 * LENGTH} bytes: {row}")

try:
    perplexity(untrained("learned"), 2 * LENGTH)
except ValueError as error:
    print(f"learned, {2 * LENGTH} bytes: ValueError: {error}")

# %%
figure, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for (pe, values), marker in zip(perplexities.items(), "os^", strict=False):
    ax.plot(np.asarray(TIMES) * LENGTH, values, marker=marker, label=pe)
ax.axvline(LENGTH, color="0.5", linestyle="--", linewidth=1)
ax.set(xscale="log", yscale="log", xlabel="context length (bytes)", ylabel="perplexity per byte of Othello")
ax.set_xticks(np.asarray(TIMES) * LENGTH, [f"{times * LENGTH}\n{times} × trained" for times in TIMES])
ax.minorticks_off()
ax.set_yticks([8, 10, 15, 20], ["8", "10", "15", "20"])
ax.set_title(f"Trained on {LENGTH} bytes at a time, {STEPS} steps")
ax.grid(alpha=0.3)
ax.legend()
plt.show()

if not FAST:
    assert perplexities["alibi"][2] < 1.02 * perplexities["alibi"][0], "ALiBi stays flat"
    assert perplexities["rope"][0] < 1.05 * perplexities["alibi"][0], "RoPE is nearly as good at the trained length"
    assert perplexities["rope"][2] > 1.3 * perplexities["rope"][0], "and breaks beyond it"
    assert perplexities["sinusoidal"][2] > 1.2 * perplexities["sinusoidal"][0]

# %% [markdown]
# *Often written:* the attention of RoPE decays naturally, so it stays well-behaved beyond the trained length.
#
# *Computed:* at the trained length RoPE is within 5 % of ALiBi, and its perplexity grows at once beyond it. ALiBi stays
# flat. A sinusoid gets worse too, and a learned table is refused. This is one run per encoding with one seed, of a model
# that is trained for less than a minute. The [results](../docs/results.md) have more encodings, on a larger model and
# over seven times as much text. There RoPE is clearly ahead at the trained length, with 5.35 against ALiBi's 5.79, and
# breaks in the same way.
#
# "Flat" is not "better with more context": the steep heads see a few tokens, and what they do not see cannot help. And
# RoPE is not lost. Its frequencies can be scaled to the longer text, which is the subject of
# [the next notebook](04_longer_contexts.ipynb).

# %% [markdown]
# ## From a line to a plane
#
# On an image, ALiBi takes the Euclidean distance of two patches: `-m · sqrt(Δrow² + Δcolumn²)`. With the sign of a penalty;
# some papers print the distance without it. If patches are counted in raster order instead, the neighbor below counts as
# 14 patches away:

# %%
grid = pejax.grid_positions(14, 14)
index = jnp.arange(196)
slopes = jnp.ones(1)
in_2d, in_1d = pejax.alibi_bias(grid, grid, slopes)[0], pejax.alibi_bias(index, index, slopes)[0]
middle = 7 * 14 + 7
for name, other in {"right": middle + 1, "below": middle + 14, "diagonal": middle + 15}.items():
    print(f"neighbor {name:8}  Euclidean {in_2d[middle, other]:6.3f}   raster {in_1d[middle, other]:6.1f}")
np.testing.assert_allclose(in_2d[middle, middle + 15], -np.sqrt(2), rtol=1e-6)

image = pejax.Dims(heads=8, head_dim=16, axes=2, extent=(14, 14))
pejax.visualize.plot_grid_bias(pejax.encodings.alibi(image), image, patch=(3, 9))

# %% [markdown]
# Here it is to play with, next to other biases: move the patch and choose the encoding. Run the cell to make it move.
# `python -m pejax.visualize alibi --only=page` writes the page as a file.

# %%
pejax.visualize.bias_page()

# %% [markdown]
# A CLS token has no place on the grid. ALiBi on images was published for a model without one, so a convention is needed.
# In pejax, a token without a position gets no bias, as a query and as a key:

# %%
where = pejax.TokenPositions(
    positions=jnp.concatenate([jnp.zeros((1, 2), grid.dtype), grid]), has_position=jnp.arange(197) > 0
)
zeros = jnp.zeros((197, 8, 16))
hooks = pejax.attention_hooks(pejax.encodings.alibi(image), {})
weights = pejax.attention_weights(zeros, zeros, positions=where, hooks=hooks)
print(f"CLS attends to every patch alike: {weights[0, 0].min():.5f} to {weights[0, 0].max():.5f}")
print(f"a patch gives CLS the weight of itself: {weights[0, 100, 0]:.4f} and {weights[0, 100, 100]:.4f}")
np.testing.assert_allclose(weights[0, 100, 0], weights[0, 100, 100], rtol=1e-6)

# %% [markdown]
# ## In short
#
# - ALiBi's head 0 is the steepest and the most local. A slope m is a window of about 3/m tokens.
# - In the comparison of entropies that is often repeated, the sinusoid is the sharpest and not ALiBi.
# - A model with ALiBi reads longer texts as it reads short ones. RoPE, better at its own length once it is trained for
#   longer, needs an extension beyond it.
# - On images the distance is Euclidean.
