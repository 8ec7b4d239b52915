"""Search LongRoPE's factors, by which the frequencies of RoPE are divided, for a trained run and a longer length.

    python -m train.lm.longrope runs/rope-shakespeare-0 --length=1024
    python -m train.evaluate runs/rope-shakespeare-0 --extend="$(cat runs/rope-shakespeare-0/longrope-1024.txt)"

The factors minimize the loss on held-out text that the evaluation of the run does not read.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from rich.console import Console
from rich.progress import Progress

from pejax import Encoding, Rotary, extend_longrope, rope_apply, rope_frequencies, search_longrope
from pejax.models import Decoder
from pejax.specs import EncodingSpec
from train.data.text.loading import Corpus, evaluation_windows, load_text
from train.devices.mesh import make_mesh
from train.engine.files import write_atomic
from train.engine.options import require_rules
from train.engine.outside import own_encodings, require_named
from train.engine.session import restore_params
from train.engine.stopping import report_errors, stop_on_signals
from train.engine.stored_config import load_config
from train.engine.task import Split
from train.engine.terminal import user_console
from train.lm.config import Config
from train.lm.evaluate import EVERY_WINDOW
from train.lm.longrope.options import SearchOptions, parser
from train.lm.model import SUMS, Language


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = parser(__doc__ or "").parse_args(argv)
    with (
        stop_on_signals(lambda: "nothing was written: run the same command again"),
        report_errors(ValueError, TypeError, OSError),
    ):
        search(arguments.run, arguments.options, user_console())
    return 0


def search(folder: Path, options: SearchOptions, console: Console) -> None:
    """Search, print the best factors, and write them as an `--extend` into the run folder.

    Raises:
        ValueError: a run with another encoding, a length not beyond the trained one, too little held-out text, or files
            that the run names and the options do not.
    """
    config = load_config(Config, folder)
    if own_encodings(config):  # not imported, so that `config.pattern` cannot read them
        raise ValueError(f"LongRoPE needs a run with --pe=rope, got {config.pe!r}")
    require_named(config, folder, options.data)
    length = options.length or 8 * config.length
    rope = config.pattern.specs[0]
    if len(config.pattern.specs) > 1 or not isinstance(rope, EncodingSpec) or rope.name != "rope":
        raise ValueError(f"LongRoPE needs a run with --pe=rope, got {config.pe!r}")
    rope_options = dict(rope.options)
    if config.extensions[0] != "none" or rope.is_extended:
        raise ValueError(f"the run must not be extended already, got --pe={config.pe} --extend={config.extend}")
    if not config.length < length <= max(config.lengths):
        rule = f"above the trained {config.length} and at most the longest evaluation length, {max(config.lengths)}"
        raise ValueError(f"length must be {rule}, got {length}")
    require_rules(options)
    corpus = load_text(config.data, config.validation, config.windows)
    language = Language(config, corpus.tokenizer.vocab)
    ids = jnp.asarray(unread_windows(corpus, config, length, options.windows))
    _, params = restore_params(config, language, SUMS, folder, make_mesh(1), console)
    pairs = (rope_options.get("rotary_dim") or language.decoder.dims.head_dim) // 2
    decoder = ExtendedDecoder(language, length, pairs, rope_options)
    start = decoder.loss(params, ids, jnp.ones(pairs))
    console.print(f"{length} tokens, {len(ids)} windows · all factors 1: loss {float(start):.4f}")
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("searching", total=options.generations + 1)

        def report(generation: int, result: Any) -> None:
            progress.update(task, completed=generation + 1, description=f"loss {float(result.loss):.4f}")
            if not console.is_terminal:
                console.print(f"generation {generation}/{options.generations} · loss {float(result.loss):.4f}")

        result = search_longrope(
            lambda factors: decoder.loss(params, ids, factors),
            2 * pairs,
            length / config.length,
            key=jax.random.key(options.seed),
            trained_length=config.length,
            base=decoder.base,
            generations=options.generations,
            population=options.population,
            parents=max(1, options.population // 2),
            mutations=max(1, options.children // 2),
            crossovers=options.children // 2,
            chunk=options.chunk,
            progress=report,
        )
    numbers = ", ".join(f"{value:.4f}" for value in np.asarray(result.factors))
    path = folder / f"longrope-{length}.txt"
    write_atomic(path, f"longrope(factor={length / config.length}, long_factors=({numbers},))\n")
    console.print(f"factors {numbers}")
    console.print(f'wrote {path}; try: python -m train.evaluate {folder} --extend="$(cat {path})"')


class ExtendedDecoder:
    """A trained decoder whose rotary frequencies are divided by factors that each call gives.

    Args:
        language: the model of the run.
        length: tokens of a window.
        pairs: number of rotated channel pairs.
        options: the arguments of rope in the run's config.
    """

    def __init__(self, language: Language, length: int, pairs: int, options: dict[str, Any]) -> None:
        self.base, decoder = float(options.get("base", 10000.0)), language.decoder
        frequencies = rope_frequencies(decoder.dims.head_dim, base=self.base, rotary_dim=2 * pairs)

        def rotate(params: Any, x: Array, positions: Array) -> Array:
            scaled_frequencies, attention_factor = extend_longrope(
                frequencies,
                Rotary(self.base, 2 * pairs, length),
                trained_length=decoder.length,
                long_factors=params["factors"],
            )
            pairing = options.get("pairing", "interleaved")
            return rope_apply(x, positions, scaled_frequencies, pairing=pairing, attention_factor=attention_factor)

        encoding = Encoding(init=lambda key: {"factors": jnp.ones(pairs)}, rotate=rotate)
        self._split = Split(lambda rngs: Decoder(decoder, encoding, rngs=rngs))

    def loss(self, params: Any, ids: Array, factors: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the mean cross-entropy of windows `(B, T + 1)`, in nats."""
        stack = {**params["stack"], "position": {"factors": factors}}
        logits = self._split.model({**params, "stack": stack})(ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


def unread_windows(corpus: Corpus, config: Config, length: int, count: int) -> np.ndarray:
    """Return windows of held-out text, `(count, length + 1)`, that the evaluation of the run does not read.

    Raises:
        ValueError: the evaluation reads all of it, or there is too little.
    """
    longest = max(config.lengths)
    every, _ = evaluation_windows(corpus, longest, EVERY_WINDOW)
    read, _ = evaluation_windows(corpus, longest, config.eval_limit or EVERY_WINDOW)
    contents = {window.tobytes() for window in read}
    candidates = [window for window in every if window.tobytes() not in contents]
    if len(candidates) < count:
        rule = f"the search needs {count} windows of {longest} tokens that the evaluation does not read (eval_limit)"
        raise ValueError(f"{rule}, got {len(candidates)} of {len(every)}")
    indices = np.arange(count) * len(candidates) // count
    return np.stack([candidates[index][: length + 1] for index in indices])
