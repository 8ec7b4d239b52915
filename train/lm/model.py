"""A language model on a corpus: the pieces that training and evaluation share."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pejax.models import Execution
from pejax.models.decoder import Decoder, DecoderConfig
from train.data.text.loading import Corpus, training_windows
from train.engine import attention_entropy
from train.engine.loop import Metrics
from train.engine.task import Split, laws, layer_params
from train.lm.config import Config
from train.lm.cross_entropy import cross_entropy

SUMS = ("loss", "count")
"""What the loss adds up over a batch."""

PROBED = 8
"""Training windows that the probe looks at."""


class Language(Split[Decoder]):
    """The model of a run, split into a static definition and parameters.

    Args:
        config: of the run.
        vocab: V, number of tokens.

    Raises:
        ValueError: what the model or its encoding refuses.
    """

    def __init__(self, config: Config, vocab: int) -> None:
        self.config = config
        self.decoder = DecoderConfig(
            vocab=vocab,
            length=config.extent or config.length,
            width=config.width,
            layers=config.layers,
            heads=config.heads,
            kv_heads=config.kv_heads or None,
            hidden=config.hidden or None,
            pe=config.pe,
            extend=config.extend,
            style=config.style,
            qk_norm=config.qk_norm,
            soft_cap=config.soft_cap or None,
            tied=config.tied,
            dtype=config.dtype,
        )
        super().__init__(lambda rngs: Decoder(self.decoder, rngs=rngs))

    def loss(
        self, params: Any, batch: Mapping[str, Array], key: Array, *, execution: Execution = Execution()
    ) -> tuple[Array, Metrics]:
        """Return the mean cross-entropy of the next token, in nats, and the sums over the batch.

        Args:
            params: of the model.
            batch: `ids` and `segments`, `(B, T + 1)`; the first token of a document is not predicted from the last of
                another.
            key: not used: nothing is drawn.
            execution: over which devices this is computed, and what twice.
        """
        del key
        ids, segment_ids = batch["ids"], batch["segments"]
        losses = self.losses(params, ids, segment_ids, execution)
        inside = ((segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)).astype(jnp.float32)
        total, count = jnp.sum(losses * inside), jnp.sum(inside)
        return total / jnp.maximum(count, 1.0), {"loss": total, "count": count}

    def losses(
        self,
        params: Any,
        ids: Int[Array, "B T_1"],
        segment_ids: Int[Array, "B T_1"] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T"]:
        """Return the cross-entropy of every token after the first, in nats."""
        before = None if segment_ids is None else segment_ids[:, :-1]
        model = self.model(params)
        states = model.states(ids[:, :-1], segment_ids=before, execution=execution)
        return cross_entropy(states, model.columns(), ids[:, 1:], execution)

    def laws(self, params: Any) -> str:
        """Run the laws on the initialised encoding of the first layer and return one line of what they measured."""
        return laws(self.config.pe, layer_params(params["stack"], 0), self.decoder.dims)

    def refusal(self, length: int) -> str:
        """Return why the encoding cannot serve a length, or nothing where it can."""
        try:
            jax.eval_shape(self.losses, self.shapes, jax.ShapeDtypeStruct((1, length + 1), jnp.int32))
        except ValueError as refused:
            return " ".join(str(refused).split())
        return ""

    def prober(self, corpus: Corpus) -> Any:
        """Return the probe `(params) -> values`: the mean loss on positions 0 to L and L to 2L of training text.

        The second is left out where the encoding refuses 2L, or no training document is that long. Beside them the
        entropy of attention on positions 0 to L, layer by layer.

        Raises:
            ValueError: no training document holds L + 1 tokens.
        """
        length = self.config.length
        longest = max(map(len, corpus.train)) - 1
        reach = length if longest < 2 * length or self.refusal(2 * length) else 2 * length
        try:
            ids = jnp.asarray(training_windows(corpus, reach, PROBED))
        except ValueError as refused:
            raise ValueError(f"probe_every must be 0 for this text: {refused}") from None

        @jax.jit
        def measure(params: Any) -> tuple[Array, Any]:
            watching = attention_entropy.EntropyExecution()
            self.model(params)(ids[:, :length], execution=watching)
            return jnp.mean(self.losses(params, ids).reshape(len(ids), -1, length), axis=(0, 2)), watching.found

        def probe(params: Any) -> dict[str, float]:
            means, found = measure(params)
            return {
                **dict(zip(("loss_0_to_L", "loss_L_to_2L"), map(float, means), strict=False)),
                **attention_entropy.named(found),
            }

        return probe
