"""The language model of a run: its loss, its laws and its probe."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pejax.models import Decoder, Execution, decoder
from train.data.text.loading import Corpus, evaluation_windows, training_windows
from train.engine import attention_entropy
from train.engine.loop import Metrics
from train.engine.sequence_config import model_options
from train.engine.task import Split, laws, layer_params, refusal
from train.lm.config import Config
from train.lm.cross_entropy import token_losses, total_loss

SUMS = ("loss", "count")
"""Names of the sums that the loss returns."""

ACROSS = "--windows=contiguous reads across documents"
"""Way out where documents are too short."""

PROBED = 8
"""Number of training windows that the probe reads."""


class DecoderSplit(Split[Decoder]):
    """A decoder, split into a static definition and parameters, with the losses of its tokens."""

    def losses(
        self,
        params: Any,
        ids: Int[Array, "B T_1"],
        segment_ids: Int[Array, "B T_1"] | None = None,
        execution: Execution = Execution(),
    ) -> Float[Array, "B T"]:
        """Return the cross-entropy of every token after the first, in nats."""
        return token_losses(self.model(params), ids, segment_ids, execution)

    def mean_loss(
        self, params: Any, batch: Mapping[str, Array], execution: Execution = Execution()
    ) -> tuple[Float[Array, ""], Metrics]:
        """Return the mean loss of the tokens that are predicted from tokens of their own document, and the sums.

        Args:
            params: parameters of the model.
            batch: `ids` `(B, T + 1)`, and `segments`, their documents, from 1; without these all are of one document.
            execution: the devices, shardings and rematerialization.
        """
        ids, segment_ids = batch["ids"], batch.get("segments")
        if segment_ids is None:
            inside = jnp.ones(ids[:, 1:].shape, jnp.float32)
        else:
            inside = ((segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] != 0)).astype(jnp.float32)
        total = total_loss(self.model(params), ids, inside, segment_ids, execution)
        count = jnp.sum(inside)
        return total / jnp.maximum(count, 1.0), {"loss": total, "count": count}

    def refusal(self, length: int) -> str:
        """Return why the encoding does not support a length, or an empty string if it does."""
        return refusal(self.losses, self.shapes, jax.ShapeDtypeStruct((1, length + 1), jnp.int32))


class Language(DecoderSplit):
    """The model of a run.

    Args:
        config: settings of the run.
        vocab: V, number of tokens.

    Raises:
        ValueError: the config does not fit the model or its encoding.
    """

    def __init__(self, config: Config, vocab: int) -> None:
        self.config = config
        length, layers = config.extent or config.length, config.layers
        self.decoder = decoder(vocab=vocab, length=length, layers=layers, **model_options(config))
        super().__init__(lambda rngs: Decoder(self.decoder, rngs=rngs))

    def loss(
        self, params: Any, batch: Mapping[str, Array], key: Array, *, execution: Execution = Execution()
    ) -> tuple[Array, Metrics]:
        """Return the mean cross-entropy of the next token, in nats, and the sums over the batch.

        Args:
            params: parameters of the model.
            batch: `ids` and, where documents are packed, `segments`, `(B, T + 1)`; the first token of a document is not
                predicted from the last of another.
            key: not used: the loss is not random.
            execution: the devices, shardings and rematerialization.
        """
        del key
        return self.mean_loss(params, batch, execution)

    def laws(self, params: Any) -> str:
        """Test the initialized encoding of the first layer against its laws; return one line with the deviations."""
        return laws(self.config.pattern, layer_params(params["stack"], 0), self.decoder.dims)

    def head_entropies(self, corpus: Corpus, params: Any, length: int) -> list[list[Array]]:
        """Return the attention entropy of every layer and head, `(L, H)`, on a few windows of held-out text.

        Raises:
            ValueError: the encoding refuses the length, or no held-out document is that long.
        """
        ids = jnp.asarray(evaluation_windows(corpus, length, PROBED)[0])[:, :-1]

        def read(params: Any, execution: Execution) -> Array:
            return self.model(params).states(ids, execution=execution)

        return attention_entropy.entropy_probe(read, heads=True)(params)

    def prober(self, corpus: Corpus) -> tuple[Any, str]:
        """Return the probe `(params) -> values`: the mean loss on positions 0 to L and L to 2L of training text.

        The probe also measures the attention entropy of every layer on positions 0 to L.

        Returns:
            The probe, and why it leaves out L to 2L: the encoding does not support 2L, or no document is that long;
            empty if it does not.

        Raises:
            ValueError: no training document has L + 1 tokens.
        """
        length = self.config.length
        longest = max(map(len, corpus.train))
        why = self.refusal(2 * length)
        if longest <= 2 * length:
            why = f"the longest training document has {longest:,} tokens ({ACROSS})"
        reach = length if why else 2 * length
        try:
            ids = jnp.asarray(training_windows(corpus, reach, PROBED))
        except ValueError as refused:
            raise ValueError(f"{refused}: {ACROSS}, --probe_every=0 trains without the probe") from None

        @jax.jit
        def measure(params: Any) -> tuple[Array, Any]:
            recorder = attention_entropy.EntropyExecution()
            self.model(params)(ids[:, :length], execution=recorder)
            return jnp.mean(self.losses(params, ids).reshape(len(ids), -1, length), axis=(0, 2)), recorder.entropies

        def probe(params: Any) -> dict[str, float]:
            means, entropies = measure(params)
            return {
                **dict(zip(("loss_0_to_L", "loss_L_to_2L"), map(float, means), strict=False)),
                **attention_entropy.entropies_by_name(entropies),
            }

        return probe, why and f"the loss on positions {length} to {2 * length} of training text is not measured: {why}"
