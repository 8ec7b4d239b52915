"""Search LongRoPE's factors for a trained run: which frequency to divide by how much, on held-out text at a length.

    python -m train.lm.longrope runs/rope-shakespeare-0 --length=1024
    python -m train.evaluate runs/rope-shakespeare-0 --extend="$(cat runs/rope-shakespeare-0/longrope-1024.txt)"

The text is held out, and not what the evaluation of the run reads.
"""

if __name__ == "__main__":  # before anything heavy is imported
    from train.devices.cpu import prepare_cpu

    prepare_cpu()

import dataclasses
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

from pejax._encoding import Encoding, Params
from pejax._encodings.rope import rope_frequencies
from pejax._extensions.longrope import extend_longrope
from pejax._extensions.longrope_search import Found, search_longrope
from pejax._make import parse_spec
from pejax._ops.rotary import rope_apply
from pejax.models import Decoder
from train.data.text.loading import Corpus, evaluation_windows, load_text
from train.devices.mesh import make_mesh
from train.engine.config import load_config
from train.engine.parser import Parser
from train.engine.session import restore_params
from train.engine.stopping import friendly
from train.engine.task import Split
from train.lm.config import Config
from train.lm.evaluate import EVERY_WINDOW
from train.lm.model import SUMS, Language


@dataclasses.dataclass(frozen=True)
class SearchOptions:
    """Search the factors of LongRoPE for a trained run."""

    length: int = 0  # tokens to stretch to; 0 = eight times the trained length
    windows: int = 4  # of held-out text, of that length, that the loss is taken on
    generations: int = 15  # of the evolution, after the first
    population: int = 32  # members that a generation keeps
    children: int = 16  # of a generation: half of them mutants, half crossings
    chunk: int = 4  # members that are tried at once
    seed: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = Parser(prog="python -m train.lm.longrope")
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="run folder of train.lm with --pe=rope")
    parser.add_arguments(SearchOptions, dest="options")
    arguments = parser.parse_args(argv)
    with friendly(ValueError, TypeError, OSError):
        search(arguments.run, arguments.options, Console(soft_wrap=True, highlight=False))
    return 0


def search(folder: Path, options: SearchOptions, console: Console) -> None:
    """Search, print the best, and write it as an `--extend` into the run folder.

    Raises:
        ValueError: a run of another encoding, a length not beyond the trained one, or too little held-out text.
    """
    config = load_config(Config, folder)
    length = options.length or 8 * config.length
    name, written = parse_spec(config.pe)
    if name != "rope":
        raise ValueError(f"LongRoPE's factors are those of a run with --pe=rope, got {config.pe!r}")
    if config.extend != "none" or "extend" in written:
        raise ValueError(f"the run must not be stretched already, got --pe={config.pe} --extend={config.extend}")
    if not config.length < length <= max(config.lengths):
        rule = f"beyond the trained {config.length} and at most the longest of the evaluation, {max(config.lengths)}"
        raise ValueError(f"length must be {rule}, got {length}")
    if options.windows < 1:
        raise ValueError(f"windows must be at least 1, got {options.windows}")
    corpus = load_text(config.data)
    language = Language(config, corpus.tokenizer.vocab)
    ids = jnp.asarray(unread_windows(corpus, config, length, options.windows))
    _, params = restore_params(config, language, SUMS, folder, make_mesh(1), console)
    pairs = (written.get("rotary_dim") or language.decoder.dims.head_dim) // 2  # pyright: ignore[reportOperatorIssue]
    stretched = Stretched(language, length, pairs, written)
    start = stretched.loss(params, ids, jnp.ones(pairs))
    console.print(f"{length} tokens, {len(ids)} windows · all factors 1: loss {float(start):.4f}")
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("searching", total=options.generations + 1)

        def report(generation: int, found: Found) -> None:
            progress.update(task, completed=generation + 1, description=f"loss {float(found.loss):.4f}")
            if not console.is_terminal:
                console.print(f"generation {generation}/{options.generations} · loss {float(found.loss):.4f}")

        found = search_longrope(
            lambda factors: stretched.loss(params, ids, factors),
            2 * pairs,
            length / config.length,
            key=jax.random.key(options.seed),
            trained_length=config.length,
            base=stretched.base,
            generations=options.generations,
            population=options.population,
            parents=max(1, options.population // 2),
            mutations=max(1, options.children // 2),
            crossovers=options.children // 2,
            chunk=options.chunk,
            progress=report,
        )
    numbers = ", ".join(f"{value:.4f}" for value in np.asarray(found.factors))
    path = folder / f"longrope-{length}.txt"
    path.write_text(f"longrope(factor={length / config.length}, long_factors=({numbers},))\n")
    console.print(f"factors {numbers}")
    console.print(f'wrote {path}; try: python -m train.evaluate {folder} --extend="$(cat {path})"')


class Stretched:
    """A trained decoder whose frequencies are divided by factors that are given with each call.

    Args:
        language: the model of the run.
        length: tokens of a window.
        pairs: that turn.
        written: the arguments of rope in the run's spec.
    """

    def __init__(self, language: Language, length: int, pairs: int, written: dict[str, Any]) -> None:
        self.base, decoder = float(written.get("base", 10000.0)), language.decoder
        frequencies = rope_frequencies(decoder.dims.head_dim, base=self.base, rotary_dim=2 * pairs)

        def rotate(params: Params, x: Array, positions: Array) -> Array:
            turned, sharpened = extend_longrope(
                frequencies,
                base=self.base,
                rotary_dim=2 * pairs,
                trained_length=decoder.length,
                length=length,
                long_factors=params["factors"],
            )
            pairing = written.get("pairing", "interleaved")
            return rope_apply(x, positions, turned, pairing=pairing, attention_factor=sharpened)

        encoding = Encoding(init=lambda key: {"factors": jnp.ones(pairs)}, rotate=rotate)
        self._split = Split(lambda rngs: Decoder(decoder, encoding, rngs=rngs))

    def loss(self, params: Any, ids: Array, factors: Float[Array, " n"]) -> Float[Array, ""]:
        """Return the mean cross-entropy of windows `(B, T + 1)`, in nats."""
        stack = {**params["stack"], "position": {"factors": factors}}
        logits = self._split.model({**params, "stack": stack})(ids[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids[:, 1:]).mean()


def unread_windows(corpus: Corpus, config: Config, length: int, count: int) -> np.ndarray:
    """Return windows of held-out text, `(count, length + 1)`, that the run's evaluation does not read.

    Raises:
        ValueError: the evaluation reads all of it, or there is too little.
    """
    longest = max(config.lengths)
    every, _ = evaluation_windows(corpus, longest, EVERY_WINDOW)
    read, _ = evaluation_windows(corpus, longest, config.eval_limit or EVERY_WINDOW)
    taken = {window.tobytes() for window in read}
    free = [window for window in every if window.tobytes() not in taken]
    if len(free) < count:
        rule = f"the search needs {count} windows of {longest} tokens that the evaluation (eval_limit) leaves"
        raise ValueError(f"{rule}, got {len(free)} of {len(every)}")
    spread = np.arange(count) * len(free) // count
    return np.stack([free[index][: length + 1] for index in spread])


if __name__ == "__main__":
    raise SystemExit(main())
