"""XLNet: where its tensors go, what is carried, what is refused."""

import re

import numpy as np
import pytest

from pejax.interop import load, save, source_from_config
from tests.support.hub_folders import CONFIGS, rewrite, tensors, write


def test_tensors_have_an_axis_of_heads_and_the_second_stream_is_carried(tmp_path):
    folder = write(tmp_path / "a", "xlnet", n_layer=1)
    values = tensors(folder)
    prefix = "transformer.layer.0.rel_attn."
    unused = {
        "transformer.mask_emb": np.ones((1, 1, 32), np.float32),
        f"{prefix}r_s_bias": np.ones((4, 8), np.float32),
        f"{prefix}seg_embed": np.ones((2, 4, 8), np.float32),
    }
    rewrite(folder, {**values, **unused})
    model, source = load(folder)
    assert {*source.carried} == {*unused}
    attention = model.stack.layers.blocks.attention
    columns = np.asarray(attention.qkv.kernel[...])[0].reshape(32, 4, 3, 8)
    for number, letter in enumerate("qkv"):
        np.testing.assert_array_equal(columns[:, :, number], values[prefix + letter])
    back = np.einsum("hdc->chd", np.asarray(attention.out.kernel[...])[0].reshape(4, 8, 32))
    np.testing.assert_array_equal(back, values[f"{prefix}o"])
    heads = attention.position["heads"]
    np.testing.assert_array_equal(heads["u"][...][0], values[f"{prefix}r_w_bias"])
    np.testing.assert_array_equal(heads["v"][...][0], values[f"{prefix}r_r_bias"])
    np.testing.assert_array_equal(heads["w_r"][...][0], np.einsum("chd->hcd", values[f"{prefix}r"]))
    save(model, tmp_path / "b", source)
    assert (folder / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attn_type": "uni"}, "attn_type must be 'bi', got 'uni'"),
        ({"bi_data": True}, "bi_data must be False, got True"),
        ({"clamp_len": 100}, "clamp_len must be -1, got 100"),
        ({"same_length": True}, "same_length must be False, got True"),
        ({"untie_r": False}, "untie_r must be True, got False"),
        ({"d_head": 9}, "d_head must be 8, got 9"),
    ],
)
def test_what_is_not_computed_is_refused(keys, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        source_from_config({**CONFIGS["xlnet"], **keys})
