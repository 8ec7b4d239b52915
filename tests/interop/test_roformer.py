"""RoFormer: which channels turn, its table of angles, which must be what the model computes, and what is refused."""

import numpy as np
import pytest

from pejax.interop import load, save, source_from_config
from pejax.specs import parse
from tests.support.cases import slow
from tests.support.hub_folders import CONFIGS, rewrite, tensors, write

ANGLES = "roformer.encoder.embed_positions.weight"
ROWS, CHANNELS = 48, 8


def angles(base: float) -> np.ndarray:
    """Return sines, then cosines: row p, channel c is of p / base^(2c/D)."""
    table = np.zeros((ROWS, CHANNELS))
    for p in range(ROWS):
        for c in range(CHANNELS // 2):
            angle = p / base ** (2 * c / CHANNELS)
            table[p, c], table[p, c + CHANNELS // 2] = np.sin(angle), np.cos(angle)
    return table


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_the_table_of_angles_is_carried(dtype, tmp_path):
    folder = write(tmp_path / "a", "roformer", dtype, num_hidden_layers=1)
    values = tensors(folder)
    assert ANGLES not in values
    rewrite(folder, {**values, ANGLES: angles(10000.0).astype(values["cls.predictions.bias"].dtype)})
    model, source = load(folder)
    assert [*source.carried] == [ANGLES]
    assert model.config.layers[0].attention.pe == parse("rope(base=10000.0, pairing='interleaved')")
    save(model, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (angles(9000.0), "must have the values of sines_and_cosines, as in the model, got values that differ by 0."),
        slow(angles(10000.0)[1:], r"must have shape \(48, 8\) per config.json, got \(47, 8\)"),
        slow(np.full((ROWS, CHANNELS), np.nan), "must have the values of sines_and_cosines, as in the model"),
    ],
)
def test_other_angles_are_refused(table, message, tmp_path):
    folder = write(tmp_path / "a", "roformer", num_hidden_layers=1)
    rewrite(folder, {**tensors(folder), ANGLES: table.astype(np.float32)})
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rotary_value": True}, "rotary_value must be False, got True"),
        ({"embedding_size": 16}, "embedding_size must be 32, got 16"),
        ({"is_decoder": True}, "is_decoder must be False, got True"),
    ],
)
def test_what_is_not_computed_is_refused(keys, message):
    with pytest.raises(ValueError, match=message):
        source_from_config({**CONFIGS["roformer"], **keys})
