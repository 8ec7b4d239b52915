"""Penalties on tokens that are there, token by token: what generation is compared with."""

from collections.abc import Collection, Sequence

import numpy as np

from pejax.models import Sampling


def penalized_by_loops(logits: object, prompt: Collection[int], text: Sequence[int], sampling: Sampling) -> np.ndarray:
    """Return the logits of one example after the penalties, token by token."""
    result = []
    for token, logit in enumerate(np.asarray(logits, np.float64).tolist()):
        if token in (*prompt, *text):
            factor = sampling.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        count = list(text).count(token)
        result.append(logit - sampling.frequency_penalty * count - sampling.presence_penalty * (count > 0))
    return np.asarray(result)
