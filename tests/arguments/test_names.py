"""Guesses at names: what is meant by a misspelled one, or by the word of another library; none for anything else."""

import string
import subprocess
import sys

import jax.numpy as jnp
import pytest

import pejax
from pejax import encodings, extensions, interop
from pejax._calls.names import MEANT, guess, unknown_name, wrong_letters
from pejax._placement.sequence import RULES
from pejax._record.presets import PRESETS
from pejax.interop.architectures import ARCHITECTURES
from pejax.models import Decoder, Sampling, decoder, dit, encoder_decoder, generate, vit
from tests.support.cases import slow

DIMS = pejax.Dims(heads=4, head_dim=16, extent=8, causal=True)
Q = jnp.ones((1, 8, 4, 16))
ROPE = encodings.rope(DIMS)

TABLES = {
    "encodings": pejax.ENCODINGS,
    "extensions": extensions.EXTENSIONS,
    "presets": PRESETS,
    "rules": RULES,
    "model types": ARCHITECTURES,
    "parts": interop.PARTS,
    "arguments": ("heads", "head_dim", "width", "kv_heads", "axes", "extent", "scale", "causal"),
    "options of generation": ("segment_ids", "sampling", "policy", "stop", "window", "first", "renumber"),
}

UNRELATED = (
    "wav2vec2", "mamba", "perceiver", "hyena", "retnet", "performer", "linformer", "monarch",
    "kolmogorov", "banana", "elephant", "keyboard", "mountain", "quantization", "zebra", "xyzzy",
    "foobar", "something", "tokenizer", "optimizer", "dropout", "umbrella", "12345", "???",
)  # fmt: skip


def typos(name: str) -> set[str]:
    """Return a name with each letter lost, doubled, swapped with the next, or replaced."""
    lost = {name[:n] + name[n + 1 :] for n in range(len(name))}
    doubled = {name[:n] + name[n] + name[n:] for n in range(len(name))}
    swapped = {name[:n] + name[n + 1] + name[n] + name[n + 2 :] for n in range(len(name) - 1)}
    letters = string.ascii_lowercase
    other = {name[:n] + letters[(7 * n + len(name)) % 26] + name[n + 1 :] for n in range(len(name))}
    return (lost | doubled | swapped | other) - {name}


@pytest.mark.parametrize("table", [slow(name) if len(TABLES[name]) > 25 else name for name in TABLES])
def test_one_wrong_letter_is_guessed(table):
    names = list(TABLES[table])
    for name in names:
        for typo in typos(name) - set(names):
            near = {item for item in names if wrong_letters(typo, item) <= 1}
            expected = near or {name}
            result = guess(typo, names)
            by_word = result in names and any(typo in words.split() for ours, words in MEANT.items() if ours == result)
            assert len(typo) < 2 or result in expected or by_word, (typo, name, result)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("word", UNRELATED)
def test_nothing_is_guessed_where_nothing_is_near(word, table):
    assert guess(word, TABLES[table]) is None
    assert "did you mean" not in unknown_name("name", word, TABLES[table])


def test_a_word_of_another_library_is_no_name_of_this_one_in_the_same_place():
    for table in TABLES.values():
        assert all(guess(ours, table) == ours for ours in MEANT if ours in table)


CALLS = {
    "num_heads": (lambda: pejax.Dims(num_heads=4, head_dim=16), "Dims takes heads, .*; got 'num_heads'; .* heads"),
    "dim": (lambda: pejax.Dims(heads=4, dim=16), "got 'dim'; did you mean head_dim"),
    "num_kv_heads": (lambda: pejax.Dims(4, 16, num_kv_heads=2), "did you mean kv_heads"),
    "seq_len": (lambda: pejax.Dims(4, 16, seq_len=8), "did you mean extent"),
    "places": (
        lambda: pejax.Dims(4, 16, 64),
        "Dims takes heads, head_dim by place, .* by name; got 3",
    ),
    "theta": (lambda: encodings.rope(DIMS, theta=5e5), "rope takes dims, base.*; got 'theta'; did you mean base"),
    "rotary_base": (lambda: encodings.rope(DIMS, rotary_base=5e5), "did you mean base"),
    "theta in a spec": (lambda: pejax.make_encoding("rope(theta=5e5)", DIMS), "got 'theta'; did you mean base"),
    "dims in a factory": (lambda: encodings.rope(heads=4, head_dim=16), "did you mean dims=pejax.Dims"),
    "no dims": (lambda: encodings.rope(), "missing a required argument: 'dims', pejax.Dims such as"),
    "halves": (lambda: encodings.rope(DIMS, pairing="rotate_half"), "interleaved, half, .*did you mean 'half'"),
    "rope_scaling": (lambda: encodings.rope(DIMS, extend={"rope_type": "yarn"}), "got .* config.json for interop.load"),
    "rotary": (lambda: pejax.make_encoding("rotary", DIMS), "unknown encoding 'rotary'; did you mean 'rope'"),
    "rel_pos": (lambda: pejax.make_encoding("rel_pos", DIMS), "did you mean 'relative_table'"),
    "2d_rope": (lambda: pejax.make_encoding("rope2d", DIMS), "did you mean 'rope_axial'"),
    "dynamic": (lambda: pejax.make_encoding("rope", DIMS, "dynamic(factor=2)"), "did you mean 'dynamic_ntk'"),
    "scale": (lambda: extensions.yarn(scale=2), "yarn takes factor.*; got 'scale'; did you mean factor"),
    "is_causal": (lambda: pejax.attend(ROPE, Q, Q, Q, is_causal=True), "attend takes .*did you mean causal"),
    "mask": (lambda: pejax.attend(ROPE, Q, Q, Q, attn_mask=Q), "got 'attn_mask': masks are causal"),
    "segment_ids": (lambda: pejax.attend(ROPE, Q, Q, Q, segment_ids=Q), "positions=pejax.packed_positions"),
    "position_ids": (lambda: pejax.attend(ROPE, Q, Q, Q, position_ids=Q), "did you mean positions"),
    "parameters": (lambda: pejax.attend(ROPE, Q, Q, Q, param={}), "did you mean params"),
    "hooks": (lambda: pejax.attend(ROPE, Q, Q, Q, hooks=None), "attend takes .*; got 'hooks'"),
    "softcap": (lambda: pejax.dot_product_attention(Q, Q, Q, softcap=1.0), "did you mean soft_cap"),
    "flash": (lambda: pejax.attend(ROPE, Q, Q, Q, implementation="flash"), "did you mean 'gpu'"),
    "mask of attention_fn": (lambda: pejax.attention_fn(ROPE)(Q, Q, Q, attn_mask=Q), "did you mean mask"),
    "cos, sin": (
        lambda: pejax.rope_apply(Q, jnp.cos(jnp.ones((8, 8))), jnp.sin(jnp.ones((8, 8)))),
        "takes positions and frequencies, and computes cos and sin",
    ),
    "cos, sin of all channels": (
        lambda: pejax.rope_apply(Q, jnp.ones((8, 16)), jnp.ones((8, 16))),
        "takes positions and frequencies, and computes cos and sin",
    ),
    "layers": (lambda: decoder(num_layers=2), "decoder takes vocab.*did you mean layers"),
    "hidden_size": (lambda: encoder_decoder(hidden_size=64), "did you mean width"),
    "patch_size": (lambda: vit(patch_size=4), "did you mean patch"),
    "depth": (lambda: dit(depth=4), "did you mean layers"),
    "bf16": (lambda: decoder(dtype="bf16"), "did you mean 'bfloat16'"),
    "temperature": (lambda: generate(None, [[1]], 2, temperature=0.7), r"sampling=Sampling\(temperature=0.7\)"),
    "max_new_tokens": (lambda: generate(None, [[1]], max_new_tokens=2), "did you mean count"),
    "bytes": (lambda: pejax.patchify([jnp.ones((4, 4, 3), jnp.uint8)], 2), r"got list of uint8 \(4, 4, 3\): .*/ 255"),
    "a config that is none": (lambda: Decoder(configs=1), "Decoder takes config.*did you mean config"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_call_says_in_one_line_what_is_meant(name):
    call, words = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_a_hint_is_a_call_that_works():
    assert Sampling(temperature=0.7).temperature == 0.7
    assert pejax.packed_positions(jnp.ones((1, 8), int)).positions.shape == (1, 8)
    assert pejax.Dims(heads=8, head_dim=64).heads == 8


def test_a_program_that_misnames_an_argument_ends_with_the_hint():
    program = "import pejax; pejax.Dims(num_heads=8, head_dim=64)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip().splitlines()[-1].endswith("got 'num_heads'; did you mean heads?")
