"""RoFormer: a BERT with rotary positions in place of learned ones."""

import math
import re

import numpy as np

from pejax._record.specs import EncodingSpec
from pejax.interop.architecture import Architecture
from pejax.interop.architectures.encoders import BERT, CARRIED, COPIES, INERT, bert
from pejax.interop.config import Config
from pejax.interop.stacks import ModelConfig, head_stack
from pejax.models import TransformerConfig

BASE = 10000.0
NAMES = {part: re.sub(r"^bert\.", "roformer.", name) for part, name in BERT.items() if part != "position"}
ANGLES = r"(^|\.)encoder\.embed_positions\.weight$"


def roformer(c: Config) -> TransformerConfig:
    """Read RoFormerConfig: queries and keys are rotated, values are not."""
    c.must("rotary_value", False)
    c.must("embedding_size", c.count("hidden_size"))
    c.defaults(max_position_embeddings=1536)
    return bert(c, pe=EncodingSpec("rope", {"base": BASE, "pairing": "interleaved"}))


def sines_and_cosines(config: ModelConfig) -> np.ndarray:
    """Return the table of the angles of all positions, sines first, that the files of RoFormer hold."""
    text = head_stack(config)
    channels = text.layers[0].attention.head_dim
    frequencies = [math.pow(BASE, -2 * pair / channels) for pair in range(channels // 2)]
    angles = np.arange(text.length)[:, None] * np.asarray(frequencies)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


ARCHITECTURES = {
    "roformer": Architecture(
        roformer,
        NAMES,
        "roformer.",
        INERT,
        f"{CARRIED}|{ANGLES}",
        copies=COPIES,
        fixed=((ANGLES, sines_and_cosines),),
    )
}
