"""The encoder-decoder of a run: its loss, and its evaluation, which counts exact answers at many lengths."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int
from rich.console import Console

from pejax.models import EncoderDecoder, Execution, encoder_decoder, generate_answers
from train.devices.mesh import EVALUATED, put_batch, replicated_sharding
from train.engine import attention_entropy
from train.engine.intervals import packed
from train.engine.loop import Metrics
from train.engine.progress import Evaluating
from train.engine.sequence_config import model_options
from train.engine.task import Split, laws, layer_params, refusal
from train.seq2seq.config import Config
from train.seq2seq.results import ExactMatchResults, ExactMatchRow
from train.seq2seq.tasks import PAD, STOP, TASKS, VOCAB, evaluation_batches

SUMS = ("loss", "right", "count")
"""Names of the sums that the loss returns."""

NOTE = "Answers are generated token by token and count if every token is right; all runs answer the same questions."

PROBED = 8
"""Number of test examples on which the entropy of attention is measured."""

EXAMPLES_AT_ONCE = {"cpu": 128, "gpu": 2048, "tpu": 2048}
"""Examples per evaluation batch and device."""


class Answerer(Split[EncoderDecoder]):
    """The model of a run, split into a static definition and parameters.

    Args:
        config: settings of the run.

    Raises:
        ValueError: the config does not fit the model or its encodings.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.network = encoder_decoder(
            vocab=VOCAB,
            source_length=config.length + 1,
            target_length=config.length + 1,
            encoder_layers=config.encoder_layers,
            decoder_layers=config.layers,
            decoder_pe=config.decoder_pe,
            cross=config.cross,
            cross_pe=config.cross_pe,
            **model_options(config),
        )
        super().__init__(lambda rngs: EncoderDecoder(self.network, rngs=rngs))

    def loss(
        self, params: Any, batch: Mapping[str, Array], key: Array, *, execution: Execution = Execution()
    ) -> tuple[Array, Metrics]:
        """Return the mean cross-entropy of the tokens of the answers, in nats, and the sums over the batch.

        Args:
            params: parameters of the model.
            batch: result of `train.seq2seq.tasks.make_batch`; encodings adapt to the length of each source, and of
                answers to that of the batch.
            key: not used: the loss is not random.
            execution: the devices, shardings and rematerialization.
        """
        del key
        target, segments = batch["target"], batch["target_segments"]
        logits = self.logits(params, batch, execution)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, target)
        inside = (segments != 0).astype(jnp.float32)
        total, count = jnp.sum(losses * inside), jnp.sum(inside)
        right = jnp.sum(inside * (jnp.argmax(logits, -1) == target).astype(jnp.float32))
        return total / count, {"loss": total, "right": right, "count": count}

    def logits(
        self, params: Any, batch: Mapping[str, Array], execution: Execution, *, source_extent: int | None = None
    ) -> Float[Array, "B T V"]:
        """Return the logits of every token of the answers.

        For all answers of a batch, encodings adapt to its length: `generate_answers` cannot know where one will end.

        Args:
            params: parameters of the model.
            batch: result of `train.seq2seq.tasks.make_batch`.
            execution: the devices, shardings and rematerialization.
            source_extent: the length of all sources. None = of each its own, without padding.
        """
        source, target = batch["source"], batch["target"]
        return self.model(params)(
            source,
            shift_right(target),
            source_segments=batch["source_segments"],
            target_segments=batch["target_segments"],
            source_extent=source_extent,
            target_extent=target.shape[1],
            execution=execution,
        )

    def head_entropies(self, params: Any, length: int) -> list[list[Array]]:
        """Return the attention entropy of every layer and head, `(L, H)`, on a few test examples of the first task.

        Raises:
            ValueError: an encoding refuses the length.
        """
        batch = jax.tree.map(jnp.asarray, next(evaluation_batches(self.config.tasks[0], length, PROBED, PROBED)))
        extent = batch["source"].shape[1]  # test examples are not padded

        def read(params: Any, execution: Execution) -> Array:
            return self.logits(params, batch, execution, source_extent=extent)

        return attention_entropy.entropy_probe(read, heads=True)(params)

    def laws(self, params: Any) -> str:
        """Test the initialized encoding of the encoder against its laws; return one line with the deviations."""
        return laws(self.config.pattern, layer_params(params["encoder"], 0), self.prototype.encoder.dims)

    def refusal(self, length: int) -> str:
        """Return why the encodings do not support a length, or an empty string if they do."""
        ids = jax.ShapeDtypeStruct((1, length + 1), jnp.int32)
        return refusal(lambda params, ids: self.model(params)(ids, ids), self.shapes, ids)


def shift_right(target: Int[Array, "B T"]) -> Int[Array, "B T"]:
    """Return the decoder's input: the start token, which is the padding token, and all but the last target token."""
    return jnp.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=PAD)


def evaluate(answerer: Answerer, params: Any, *, step: int, mesh: Mesh, console: Console) -> list[ExactMatchResults]:
    """Return the fraction of exact answers of every task at every evaluation length of the config.

    Answers are generated greedily, token by token; an answer is exact if it is right up to its end token.
    """
    config = answerer.config
    cells = [(task, length) for task in config.tasks for length in config.lengths if length >= TASKS[task].least]
    model, rows = answerer.model(jax.device_put(params, replicated_sharding(mesh))), []
    with Evaluating(console, sum(length**2 for _, length in cells)) as progress:
        for task, length in cells:
            reason = answerer.refusal(length)
            refusal_row = ExactMatchRow(task, length, refused=reason)
            rows.append(refusal_row if reason else measure(answerer, model, mesh, task, length))
            progress(length**2, f"{task}, {length} tokens")
    results = ExactMatchResults(
        name=config.name, data=config.data, trained=config.length, step=step, extend=config.extend, note=NOTE,
        rows=tuple(rows),
    )  # fmt: skip
    return [results]


def measure(answerer: Answerer, model: EncoderDecoder, mesh: Mesh, task: str, length: int) -> ExactMatchRow:
    """Return the number of exact answers of a task at one length."""
    count = answerer.config.eval_limit
    batch = mesh.size * min(EXAMPLES_AT_ONCE[mesh.devices.flat[0].platform], -(-count // mesh.size))
    exact, right, tokens = [], 0, 0
    validation = answerer.config.validation > 0
    for host in evaluation_batches(task, length, count, batch, validation=validation):
        short = batch - len(host["source"])
        source = put_batch(np.pad(host["source"], ((0, short), (0, 0)), mode="edge"), mesh, axes=EVALUATED)
        answers = generate_answers(model, source, None, host["target"].shape[1], start=PAD, stop=STOP)
        inside = host["target_segments"] != 0
        matches = np.asarray(answers)[: len(inside)] == np.where(inside, host["target"], STOP)
        exact.append(matches.all(axis=1))
        right, tokens = right + int((matches & inside).sum()), tokens + int(inside.sum())
    outcomes = np.concatenate(exact)
    return ExactMatchRow(task, length, int(outcomes.sum()), count, right / tokens, each=packed(outcomes))
