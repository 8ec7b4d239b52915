"""Train an encoder to find the passage after a passage, then read longer ones: python examples/retrieval_by_length.py

An encoder of a million parameters learns, from scratch, vectors of passages of 32 words of Shakespeare: that of a
passage shall be nearest to that of the passage after it, among those of its batch (van den Oord et al. 2018, arXiv
1807.03748). Then held-out passages of 8 to 256 words are looked up, with rotary positions as they are, with extensions
of them, and as the mean of the vectors of their parts of 32 words, which needs none. Writes retrieval_by_length.png, in
about four minutes on two cores.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from matplotlib.figure import Figure

from pejax.models import Decoder, TransformerConfig, decoder
from train.data.text.loading import load_text

TRAINED, LENGTHS = 32, (8, 16, 32, 64, 128, 256)
VOCAB, WIDTH, LAYERS, HEADS = 4096, 128, 2, 4
BATCH, TEMPERATURE, LR = 64, 0.1, 3e-3
CANDIDATES, SETS = 64, 8
METHODS = ("none", "pi", "ntk", "yarn", "parts")

CONFIG = decoder(VOCAB, TRAINED, WIDTH, LAYERS, HEADS, causal=False, tied=True, pe="rope")


def tokenized() -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of the words of the text and of its held-out part; a rare word has the id 0."""
    corpus = load_text("shakespeare")
    words = [
        re.findall(r"[a-z']+|[^a-z\s]", b"".join(bytes(ids.astype(np.uint8)) for ids in documents).decode().lower())
        for documents in (corpus.train, corpus.held_out)
    ]
    common = {word: number for number, (word, _) in enumerate(Counter(words[0]).most_common(VOCAB - 1), 1)}
    train, held_out = (np.asarray([common.get(word, 0) for word in part], np.int32) for part in words)
    return train, held_out


def pairs(text: np.ndarray, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the passages of a length that begin at these words, and those after them, `(B, length)` each."""
    at = starts[:, None] + np.arange(2 * length)
    return text[at[:, :length]], text[at[:, length:]]


def vectors(model: Decoder, ids: jax.Array) -> jax.Array:
    """Return the means of the states of passages, of length 1."""
    return unit(jnp.mean(model.states(ids).astype(jnp.float32), axis=1))


def vectors_of_parts(model: Decoder, ids: jax.Array) -> jax.Array:
    """Return the means of the vectors of the parts of passages that are as long as those of training, of length 1."""
    parts = vectors(model, ids.reshape(-1, min(TRAINED, ids.shape[1])))
    return unit(jnp.mean(parts.reshape(len(ids), -1, WIDTH), axis=1))


def unit(x: jax.Array) -> jax.Array:
    """Return vectors of length 1."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def loss(model: Decoder, passages: jax.Array, following: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of choosing the right one of the following passages, and the right one before."""
    similar = vectors(model, passages) @ vectors(model, following).T / TEMPERATURE
    right = jnp.arange(len(similar))
    choose = optax.softmax_cross_entropy_with_integer_labels
    return 0.5 * jnp.mean(choose(similar, right) + choose(similar.T, right))


def trained(text: np.ndarray, steps: int, say: Callable[[str], object]) -> Decoder:
    """Return the encoder after so many steps."""
    model = Decoder(CONFIG, rngs=nnx.Rngs(0))
    schedule = optax.warmup_cosine_decay_schedule(0.0, LR, max(1, steps // 10), steps)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule), wrt=nnx.Param)

    @nnx.jit
    def step(model: Decoder, optimizer: nnx.Optimizer, passages: jax.Array, following: jax.Array) -> jax.Array:
        value, gradients = nnx.value_and_grad(loss)(model, passages, following)
        optimizer.update(model, gradients)
        return value

    rng = np.random.default_rng(0)
    for number in range(1, steps + 1):
        starts = rng.integers(0, len(text) - 2 * TRAINED, BATCH)
        value = step(model, optimizer, *map(jnp.asarray, pairs(text, starts, TRAINED)))
        if number == 1 or number % max(1, steps // 10) == 0:
            say(f"step {number:4d}: loss {float(value):.3f}, of {np.log(BATCH):.3f} by chance")
    return model


def extended(name: str, length: int) -> TransformerConfig:
    """Return the config of the encoder with an extension for passages of a length; none within the trained one."""
    if name in ("none", "parts") or length <= TRAINED:
        return CONFIG
    return CONFIG.extended(name if name == "pi" else f"{name}(factor={length / TRAINED})")


def accuracy(model: Decoder, text: np.ndarray, name: str, length: int) -> float:
    """Return the share of passages whose vector is nearest to that of the passage after it, of `CANDIDATES`.

    Args:
        model: the trained encoder.
        text: held-out words.
        name: name of an extension, or a method of `METHODS`.
        length: words of a passage.
    """
    starts = np.linspace(0, len(text) - 2 * max(LENGTHS), SETS * CANDIDATES).astype(int)
    config, state = extended(name, length), nnx.state(model)
    graph, _ = nnx.split(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    compute = vectors_of_parts if name == "parts" else vectors
    read = jax.jit(lambda state, ids: compute(nnx.merge(graph, state), ids))
    hits = []
    for number in range(SETS):  # passages of a set are far from one another
        before, after = (np.asarray(read(state, jnp.asarray(ids))) for ids in pairs(text, starts[number::SETS], length))
        hits.append(np.argmax(before @ after.T, axis=1) == np.arange(CANDIDATES))
    return float(np.mean(hits))


def draw(shares: dict[str, Sequence[float]], path: str) -> None:
    """Write the figure: the share of passages found, by length and method."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    labels = {"none": "positions as they are", "parts": f"mean of parts of {TRAINED} words"}
    for name, values in shares.items():
        axes.plot(LENGTHS, values, "o-", label=labels.get(name, name))
    axes.axvline(TRAINED, color="0.6", linestyle=":")
    axes.text(TRAINED, 0.97, "trained length ", color="0.4", ha="right", va="top", transform=axes.get_xaxis_transform())
    axes.axhline(1 / CANDIDATES, color="0.6", linestyle="--", label="chance")
    axes.set(xscale="log", xlabel="words of a passage", ylabel=f"following passage found, of {CANDIDATES}")
    axes.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
    axes.minorticks_off()
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.1))
    figure.savefig(path, dpi=150)


def main(steps: int = 600, path: str = "retrieval_by_length.png", say: Callable[[str], object] = print) -> dict:
    """Train, look up and draw; return the shares by method, one per length."""
    text, held_out = tokenized()
    model = trained(text, steps, say)
    count = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    say(f"{count:,} parameters; share of held-out passages whose following one is found, of {CANDIDATES}:")
    shares: dict[str, Sequence[float]] = {}
    say("words   " + "".join(f"{length:8d}" for length in LENGTHS))
    for name in METHODS:
        shares[name] = [accuracy(model, held_out, name, length) for length in LENGTHS]
        say(f"{name:8s}" + "".join(f"{share:8.2f}" for share in shares[name]))
    draw(shares, path)
    return shares


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 600)
