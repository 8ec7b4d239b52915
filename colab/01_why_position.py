# %% [markdown]
# # Why does attention need position at all?
#
# Attention computes a weighted mean, and a mean does not know the order of its terms. You will see that "dog bites man"
# and "man bites dog" give every word the same output, to the last bits of float32. Then you will see all the encodings
# of pejax in one picture, and which step of attention each one changes. A few numbers that are often written about
# sinusoids and about the history of encodings are computed along the way.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import pejax.visualize
from pejax.testing import Probe, dense_terms, shift_deviation

# %% [markdown]
# ## Dog bites man
#
# This is one head of attention, written out. Each word has a random vector, and the three projections are random too.

# %%
WIDTH = 64
words = {
    word: jax.random.normal(key, WIDTH)
    for word, key in zip(["dog", "bites", "man"], jax.random.split(jax.random.key(0), 3), strict=True)
}
w_q, w_k, w_v = jax.random.normal(jax.random.key(1), (3, WIDTH, WIDTH)) * WIDTH**-0.5


def attention(sentence):
    x = jnp.stack([words[word] for word in sentence.split()])
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    weights = jax.nn.softmax(q @ k.T / jnp.sqrt(WIDTH), axis=-1)
    return dict(zip(sentence.split(), weights @ v, strict=True))


one, other = attention("dog bites man"), attention("man bites dog")
for word in words:
    change = jnp.max(jnp.abs(one[word] - other[word]))
    print(f"{word:5}  first channels {np.asarray(one[word][:3]).round(3)}  change of the output {change:.1e}")
    assert change < 1e-6

# %% [markdown]
# Both sentences give each word the same output. Nothing behind this layer can tell who bites.
#
# The law behind it: for every permutation P of the tokens, `attention(P x) = P attention(x)`. Attention is
# *permutation equivariant*. Here is the law for 16 tokens and four heads, measured with `pejax.attend`. The positions stay
# 0, 1, 2, ...; only the tokens move.

# %%
T = 16
dims = pejax.Dims(heads=4, head_dim=16, extent=T)
causal_dims = pejax.Dims(heads=4, head_dim=16, extent=T, causal=True)
order = jax.random.permutation(jax.random.key(2), T)
x = jax.random.normal(jax.random.key(3), (T, dims.width))
kernels = jax.random.normal(jax.random.key(4), (3, dims.width, dims.heads, dims.head_dim)) * dims.width**-0.5


def layer(name, x, dims):
    encoding = pejax.make_encoding(name, dims)
    params = pejax.adapt(encoding, pejax.init_params(encoding, jax.random.key(5)), T)
    if encoding.embed is not None:
        x = encoding.embed(params, x, jnp.arange(T))
    q, k, v = (jnp.einsum("tc,chd->thd", x, kernel) for kernel in kernels)
    return pejax.attend(encoding, q, k, v, params=params, positions=jnp.arange(T), extent=T, embedded=True)


def order_effect(name, dims):
    """Largest change when the tokens are permuted, in units of the output's standard deviation."""
    moved, expected = layer(name, x[order], dims), layer(name, x, dims)[order]
    return float(jnp.max(jnp.abs(moved - expected)) / jnp.std(expected))


print(f"without a mask:        {order_effect('none', dims):.1e}")
print(f"with a causal mask:    {order_effect('none', causal_dims):.1e}")
assert order_effect("none", dims) < 1e-5 < 1e-1 < order_effect("none", causal_dims)

# %% [markdown]
# *Often written:* a transformer without positional encoding cannot know the order of its tokens.
#
# *Computed:* this holds for attention without a mask, as in an encoder or a vision transformer. A causal mask breaks the
# symmetry by itself, because token i sees exactly i + 1 keys. This is why `none` is an encoding worth a comparison in a
# decoder (Kazemnejad et al. 2023).

# %%
everything = ["none", "sinusoidal", "learned", "fourier", "rope", "rope_axial", "rope_mixed"]
everything += ["alibi", "kerple", "fire", "cpb", "lookhere", "t5", "relative_table", "transformer_xl", "shaw"]
assert set(everything) == set(pejax.ENCODINGS)
effects = {name: order_effect(name, dims) for name in everything}
for name, effect in effects.items():
    print(f"{name:15} {effect:8.1e}")
assert all(effect > 1e-4 for name, effect in effects.items() if name not in ("none", "relative_table"))

# %% [markdown]
# Every encoding but `none` breaks the symmetry; the table of `relative_table` starts at 0 and breaks it once it is
# trained. The next picture shows how, for our sentence of three words. Left and
# middle are what attention puts out for each word in the two sentences. Right is the difference: where it is 0, the
# encoding does not tell who bites.

# %%
encodings = {name: pejax.make_encoding(name, dims) for name in everything}
params = {name: pejax.init_params(encoding, jax.random.key(5)) for name, encoding in encodings.items()}
shown = {name: encodings[name] for name in ["none", "sinusoidal", "rope", "alibi", "t5", "shaw"]}
pejax.visualize.plot_word_order(shown, dims, params)

# %% [markdown]
# ALiBi changes nothing here, although it does encode position. Its bias depends on |distance|, and reversing a sentence
# keeps all distances. KERPLE and FIRE (up to its trained length) are such encodings too. Without a causal mask they know
# who is near, and not who comes first.

# %% [markdown]
# ## Where does each encoding act?
#
# In pejax an encoding is a record of functions, its hooks. Attention calls each hook at one step:
#
# | step | hook |
# |---|---|
# | tokens x | `embed` adds a vector per position, once, before the first layer |
# | queries and keys, `x W_q` and `x W_k` | `rotate` turns pairs of channels, in every layer |
# | logits, `q·k / sqrt(head_dim)` | `bias` or `distance_bias` adds a term per pair of tokens |
# | output, `softmax(logits) v` | `relative_values` adds vectors that depend on the distance |
#
# So the records say where the encodings act. `shift_deviation` measures whether a shift of all positions changes a logit,
# at positions up to twice the trained length. For `learned` and `fourier` it is nan: they refuse positions there.

# %%
STEPS = {
    "embed": "tokens", "rotate": "queries and keys", "bias": "logits", "distance_bias": "logits",
    "relative_values": "output",
}  # fmt: skip


def steps(encoding):
    found = {step: None for hook, step in STEPS.items() if getattr(encoding, hook) is not None}
    return list(found) or ["nothing"]


print(f"{'encoding':15} {'acts on':18} {'parameters':>10} {'change under a shift':>21}")
for name, encoding in encodings.items():
    learned = sum(leaf.size for leaf in jax.tree.leaves(params[name]))
    shift = shift_deviation(encoding, params[name], dims)
    print(f"{name:15} {', '.join(steps(encoding)):18} {learned:10} {shift:21.0e}")
    assert (shift < 1e-5) == encoding.shift_invariant

# %% [markdown]
# *Often written:* absolute encodings are added after queries and keys are multiplied.
#
# *Computed:* `sinusoidal`, `learned` and `fourier` have the hook `embed` and no other. They are added to the tokens, before the
# projections, so their effect on a logit depends on the learned `W_q` and `W_k`.
#
# Now all of them at once. Every token of the sequence is the *same* word, so content cannot tell two tokens apart: every
# structure that you see comes from position. Rows are queries, columns are keys, colors are logits of head 0 minus
# their mean.

# %%
COLORS = {"nothing": "0.4", "tokens": "tab:orange", "queries and keys": "tab:blue", "logits": "tab:green"}
word = jnp.tile(jax.random.normal(jax.random.key(6), dims.width), (32, 1))
probe = Probe(word, kernels[0], kernels[1], jnp.arange(32))
longer = pejax.Dims(heads=4, head_dim=16, extent=32)

figure, axes = plt.subplots(4, 4, figsize=(9.6, 9.8), sharex=True, sharey=True, layout="constrained")
for ax, name in zip(axes.flat, everything, strict=True):
    encoding = pejax.make_encoding(name, longer)
    logits = dense_terms(encoding, pejax.init_params(encoding, jax.random.key(5)), longer, probe).logits[0]
    logits = jnp.where(jnp.isfinite(logits), logits, jnp.nan)  # lookhere hides keys; they stay white
    logits -= jnp.nanmean(logits)
    top = float(jnp.nanmax(jnp.abs(logits)))
    image = ax.imshow(logits, cmap="RdBu_r", vmin=-max(top, 1e-3), vmax=max(top, 1e-3))
    where = steps(encoding)
    ax.set_title(f"{name}\n{' and '.join(where)}", fontsize=9, color=COLORS[where[0]])
    figure.colorbar(image, ax=ax, shrink=0.8).ax.tick_params(labelsize=7)
figure.supxlabel("position of the key (tokens)")
figure.supylabel("position of the query (tokens)")
figure.suptitle("Logits between copies of one word: what each encoding sees, and where it acts")
plt.show()
# %% [markdown]
# Diagonal stripes mean that only the distance counts. `sinusoidal`, `learned` and `fourier` have no such stripes: their
# logits depend on both positions. Learned parameters (`learned`, `fourier`, `shaw`, `transformer_xl`, `t5`,
# `relative_table`, `fire`, `cpb`) are initial ones, so their pictures are what training starts from. `rope_axial` equals
# `rope` up to its base here, because a sequence has one axis.
#
# `explain` says the same in words:

# %%
for name in ["sinusoidal", "rope", "alibi"]:
    print(f"--- {name}\n{pejax.explain(encodings[name])}\n")

# %% [markdown]
# ## Three numbers that are often wrong
#
# **The sinusoid.** *Often written:* even positions get a sine and odd positions a cosine. *Computed:* every position gets
# both. Even *channels* hold sines and odd channels cosines, `E[p, 2i] = sin(p f_i)` and `E[p, 2i+1] = cos(p f_i)` with
# `f_i = base^(-2i/width)`. The exponent belongs to the base and not to the sine.

# %%
E = pejax.sinusoidal_embedding(jnp.arange(64), 512)
print("E(0) =", np.asarray(E[0, :4]).round(3), "  often written with E(1) = [0.84, 0.54, 0.04, 0.99, ...]")
print("E(1) =", np.asarray(E[1, :4]).round(3))
np.testing.assert_allclose(E[1, :4], [0.841, 0.540, 0.822, 0.570], atol=1e-3)

# %% [markdown]
# **How fast positions become unlike.** *Often written:* with 512 channels, the cosine similarity to position 0 drops to
# 0.12 at 40 tokens. *Computed:* it is still 0.535 there. It is the mean of `cos(d f_i)` over all pairs of channels, and most
# pairs turn slowly.

# %%
far = jnp.asarray([5, 10, 20, 40])
cosine = E[far] @ E[0] / (jnp.linalg.norm(E[far], axis=-1) * jnp.linalg.norm(E[0]))
for d, written, computed in zip(far, [0.92, 0.71, 0.38, 0.12], cosine, strict=True):
    print(f"{d:3} tokens   often written {written:.2f}   computed {computed:.3f}")
np.testing.assert_allclose(cosine, [0.741, 0.679, 0.616, 0.535], atol=1e-3)

sinusoidal = pejax.Dims(heads=8, head_dim=64, extent=64)
pejax.visualize.plot_position_similarity(pejax.encodings.sinusoidal(sinusoidal), sinusoidal)

# %% [markdown]
# Here it is to play with: move the position, the pair of channels and the base. Run the cell to make it move.
# `python -m pejax.visualize sinusoidal --only=page` writes the page as a file.

# %%
pejax.visualize.sinusoid_page()

# %% [markdown]
# **The scale of the logits.** *Often written:* logits are divided by the square root of the width of the model. *Computed:*
# a product of two random vectors of one head has the standard deviation `sqrt(head_dim)`. Divided by it, logits have
# standard deviation 1. Divided by the root of the width, those of 8 heads have 0.35, and attention starts closer to uniform.

# %%
q, k = jax.random.normal(jax.random.key(7), (2, 4096, 64))  # head_dim 64, of a model with width 512
products = jnp.sum(q * k, axis=-1)
print(f"divided by sqrt(head_dim): standard deviation {jnp.std(products) / 64**0.5:.2f}")
print(f"divided by sqrt(width):    standard deviation {jnp.std(products) / 512**0.5:.2f}")

# %% [markdown]
# ## When they were published
#
# *Often written:* ALiBi came first and RoPE completed it, or relative positions began with Transformer-XL. By the months
# of their first versions, Shaw's relative positions are of March 2018, Transformer-XL of January 2019, RoPE of April 2021
# and ALiBi of August 2021.

# %%
papers = {"Shaw": "1803.02155", "Transformer-XL": "1901.02860", "RoPE": "2104.09864", "ALiBi": "2108.12409"}
for name, arxiv in papers.items():
    print(f"{name:15s} arXiv {arxiv}, first version 20{arxiv[:2]}-{arxiv[2:4]}")

# %% [markdown]
# ## In short
#
# - Attention without mask and position is permutation equivariant, so word order is lost.
# - A causal mask alone tells positions apart. An encoding makes this easier to learn, and says *how far*.
# - Encodings act on the tokens, on queries and keys, on the logits or on the output. Shift invariance is a property of
#   the formula, and `pejax.testing` measures it.
#
# Next: [RoPE from two numbers](02_rope_from_two_numbers.ipynb) and
# [ALiBi and extrapolation](03_alibi_and_extrapolation.ipynb).
