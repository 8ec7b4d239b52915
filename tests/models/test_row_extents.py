"""Padding and packing change nothing, with every extension: each row has the extent of its longest document.

The exceptions stand in a table of docs/attention.md, which is read here: the law holds at every door that is not in it,
and is broken at every door that is.
"""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import pejax
from pejax import Dims, TokenPositions, attend, attention_fn, packed_positions
from pejax.models import (
    Decoder,
    EncoderDecoder,
    Execution,
    ViT,
    attention_module,
    encoder_decoder,
    generate,
    generate_answers,
    vit,
)
from pejax.models.stack.extents import document_lengths
from tests.support.cases import slow
from tests.support.decoders import FAST, TEXT_ENCODINGS, VOCAB, ids_of, logits, make, of_config

TRAINED, DOCUMENT, ROW = 3, 4, 12
"""Tokens in training, of a document, and of a row."""

OPTIONS = {"longrope": "longrope(short_factors=(1.0, 1.0), long_factors=(1.5, 3.0))"}
"""Extensions that need more than their name."""

QUICK = (("rope", "yarn"), ("t5", "pi"), ("learned", "resize"))
"""One pair for each place where an extension acts: rotations, a bias, the input."""


def tiny(pe: str, extend: str) -> Decoder:
    """Make one layer, trained at a third of a row."""
    return make(pe=pe, extend=OPTIONS.get(extend, extend), layers=1, length=TRAINED)


def adapts(pe: str, extend: str) -> bool:
    """Return whether an encoding takes an extension and, with it, adapts to the texts here."""
    try:
        encoding = tiny(pe, extend).stack.encoding
        jax.eval_shape(lambda: pejax.adapt(encoding, pejax.init_params(encoding, jax.random.key(0)), ROW))
    except (ValueError, TypeError):
        return False
    return encoding.adapt is not None


def rows_of(*rows: list[int]) -> jax.Array:
    return jnp.asarray(rows, jnp.int32)


ONE, TWO, PAD, WHOLE = [1] * DOCUMENT, [2] * DOCUMENT, [0] * (ROW - DOCUMENT), [1] * ROW
SEGMENTS = rows_of(PAD + ONE, ONE + PAD, ONE + TWO + [3] * DOCUMENT, WHOLE)
"""Padding on the left, on the right, three documents, and a longer text that must not change the others."""

PLACES = [(row, slice(n, n + DOCUMENT)) for row, n in ((0, ROW - DOCUMENT), (1, 0), (2, 0), (2, 4), (2, 8))]
"""The row and the slots of every short document."""


def alone(model: Decoder, ids: jax.Array) -> jax.Array:
    """Return the logits of every short document in a call of its own, as one batch."""
    return logits(model, at_places(ids))


def at_places(array: jax.Array) -> jax.Array:
    return jnp.stack([array[place] for place in PLACES])


def check_law(pe: str, extend: str) -> None:
    model, ids = tiny(pe, extend), ids_of(len(SEGMENTS), ROW)
    result = at_places(logits(model, ids, SEGMENTS))
    np.testing.assert_allclose(result, alone(model, ids), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("pe", "extend"), QUICK)
def test_padded_and_packed_documents_are_read_as_if_alone(pe, extend):
    check_law(pe, extend)


@pytest.mark.slow
@pytest.mark.parametrize("pe", TEXT_ENCODINGS)
def test_every_encoding_with_every_extension_reads_them_as_if_alone(pe):
    extensions = [extend for extend in pejax.extensions.EXTENSIONS if adapts(pe, extend)]
    assert extensions
    for extend in extensions:
        check_law(pe, extend)
        model, ids = tiny(pe, extend), ids_of(len(SEGMENTS), ROW)
        longest = logits(model, ids[3:])  # in a batch with shorter ones
        np.testing.assert_allclose(logits(model, ids, SEGMENTS)[3:], longest, rtol=1e-4, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("pe", "extend"), QUICK)
@pytest.mark.parametrize("shape", [(4, 1, 1), (2, 2, 1), (2, 1, 2)], ids=str)
def test_a_mesh_changes_nothing(pe, extend, shape):
    mesh = jax.make_mesh(shape, ("data", "tensor", "sequence"), (AxisType.Auto,) * 3, devices=jax.devices()[:4])
    split = {"batch": ("data",), "heads": "tensor", "sequence": "sequence"}
    static, params = nnx.split(tiny(pe, extend))
    ids = ids_of(len(SEGMENTS), ROW)

    @functools.partial(jax.jit, static_argnums=1, compiler_options=FAST)
    def losses(params, execution):
        summed = lambda params: jnp.sum(
            jnp.sin(nnx.merge(static, params)(ids, segment_ids=SEGMENTS, execution=execution))
        )
        return jax.value_and_grad(summed)(params)

    expected = jax.tree.leaves(losses(params, Execution()))
    executions = [Execution(mesh, **split), *([Execution(mesh, **split, local=True)] if shape[0] == 4 else [])]
    for execution in executions:
        for result, target in zip(jax.tree.leaves(losses(params, execution)), expected, strict=True):
            np.testing.assert_allclose(result, target, rtol=2e-4, atol=2e-3)


def test_without_padding_or_an_extension_that_follows_the_length_the_program_stays():
    ids = jax.ShapeDtypeStruct((2, ROW), jnp.int32)

    def program(model: Decoder, *arguments: str, **options) -> str:
        call = lambda ids, *arrays: model.states(ids, **dict(zip(arguments, arrays, strict=True)), **options)
        return str(jax.make_jaxpr(call)(ids, *(ids for _ in arguments)))

    for pair in QUICK:
        assert program(tiny(*pair)) == program(tiny(*pair), extent=ROW)
    for pe, extend in (("rope", "none"), ("t5", "pi(factor=2)"), ("learned(extend='log_n')", "none")):
        model = make(pe=pe, extend=extend, layers=1, length=ROW)
        assert program(model, "segment_ids") == program(model, "segment_ids", extent=ROW)
    assert program(tiny(*QUICK[0]), "segment_ids") != program(tiny(*QUICK[0]), "segment_ids", extent=ROW)


def test_a_row_is_as_long_as_its_longest_document():
    lengths = lambda *tokens, **fields: document_lengths(TokenPositions(*tokens, **fields)).tolist()
    segments = rows_of([0, 1, 1, 2, 2, 2], [3, 1, 3, 1, 3, 0], [0] * 6)
    packed = packed_positions(segments)
    assert lengths(*packed) == [3, 3, 1]
    assert lengths(packed.positions.astype(jnp.float32), segment_ids=segments) == [3, 3, 1]
    assert lengths(jnp.arange(6), segment_ids=segments) == [6, 5, 1]  # positions that do not restart
    assert lengths(*packed._replace(has_position=jnp.arange(6) < 5)) == [2, 3, 1]


@pytest.mark.slow
def test_what_cannot_follow_each_row_is_refused_in_one_line():
    model, ids = make(pe="learned(method='bilinear')", extend="resize", layers=1, length=TRAINED), ids_of(4, ROW)
    refused = lambda call, *words: _refused(call, words)
    refused(lambda: logits(model, ids, SEGMENTS), "unless extent= is given", "'bilinear'")
    output = jax.eval_shape(lambda ids: model(ids, segment_ids=SEGMENTS, extent=ROW), ids)
    assert output.shape == (4, ROW, VOCAB)
    t5 = pejax.encodings.t5(DIMS, extend=pejax.extensions.pi())
    module, q = attention_module(t5, DIMS, nnx.Rngs(0)), jnp.ones((2, ROW, 2, 8))

    def attended(**extent) -> jax.Array:
        with module.at(packed_positions(rows_of(PAD + ONE, WHOLE)), **extent):
            return module(q, q, q)

    refused(attended, "extent= of at() must be given where rows may differ in length", "t5(extend='pi')")
    assert attended(extent=ROW).shape == q.shape
    each = attention_fn(t5, module._params(), positions=jnp.arange(ROW), extent=jnp.asarray([6, 12]))
    refused(lambda: each(q, q, q), "lengths (B,) of an encoding that does nothing but rotate", "(2,)")


def _refused(call: Callable, words: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert all(word in str(caught.value) for word in words)
    assert "\n" not in str(caught.value)


# Doors


class Compared(NamedTuple):
    """What a door gives for a padded or packed row, and what it gives for the document alone."""

    found: jax.Array
    alone: jax.Array


def of_decoder(call: Callable[..., jax.Array]) -> Compared:
    """Documents in rows; `call` is `(model, ids, segments) -> logits`."""
    model, ids = tiny("rope", "yarn"), ids_of(len(SEGMENTS), ROW)
    result = jax.jit(functools.partial(call, model), compiler_options=FAST)(ids, SEGMENTS)
    return Compared(at_places(result), alone(model, ids))


def of_mask(padding: str, place: int) -> Compared:
    """`attention_mask` in a model that counts padding as given, and one document of the batch."""
    config = dataclasses.replace(tiny("rope", "yarn").config, padding=padding)
    model, ids = of_config(config), ids_of(len(SEGMENTS), ROW)
    call = jax.jit(lambda ids: model(ids, attention_mask=jnp.minimum(SEGMENTS, 1)), compiler_options=FAST)
    return Compared(at_places(call(ids))[place], alone(model, ids)[place])


def unequal() -> Compared:
    """A short and a long document in a row."""
    model, ids = tiny("rope", "yarn"), ids_of(len(SEGMENTS), ROW)
    result = logits(model, ids, SEGMENTS.at[2].set(jnp.asarray(ONE + [2] * (ROW - DOCUMENT))))
    return Compared(result[PLACES[2]], alone(model, ids)[2])


def seq2seq() -> EncoderDecoder:
    """Make an encoder-decoder in which no parameter is zero."""
    sizes = {"vocab": VOCAB, "width": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    config = encoder_decoder(**sizes, pe="rope", extend="yarn", cross="unified", source_length=2, target_length=2)
    model = EncoderDecoder(config, rngs=nnx.Rngs(0))
    moved = lambda leaf: leaf + 0.5 * jax.random.normal(jax.random.key(leaf.size), leaf.shape, leaf.dtype)
    nnx.update(model, jax.tree.map(moved, nnx.state(model, nnx.Param)))
    return model


def of_source() -> Compared:
    """A padded source and target beside longer ones."""
    model, ids, segments = seq2seq(), ids_of(2, ROW), rows_of(PAD + ONE, WHOLE)
    padded = lambda ids: model(ids, ids, source_segments=segments, target_segments=segments)
    own = ids[:1, -DOCUMENT:]
    result, expected = jax.jit(padded, compiler_options=FAST)(ids), jax.jit(lambda item: model(item, item))(own)
    return Compared(result[0, -DOCUMENT:], expected[0])


def of_generate(policy: str) -> Compared:
    """The logits of generated tokens, and those of the text so far in a call."""
    model, prompts = make(pe="rope", extend="yarn", layers=2, length=TRAINED), ids_of(2, DOCUMENT)
    padded = rows_of([0, *ONE[1:]], ONE)
    new, result = generate(model, prompts, 3, segment_ids=padded, return_logits=True, policy=policy)
    text = jnp.concatenate([prompts[:1, 1:], new[:1, :2]], axis=1)
    lengths = range(DOCUMENT - 1, DOCUMENT + 2)
    return Compared(result[0], jnp.stack([logits(model, text[:, :n])[0, -1] for n in lengths]))


def of_answers() -> Compared:
    """The first tokens of a short and of a long answer to each of many sources."""
    model, source = seq2seq(), ids_of(64, DOCUMENT)
    result, alone = (generate_answers(model, source, None, count)[:, :4] for count in (2 * ROW, 4))
    return Compared(jax.nn.one_hot(result, VOCAB), jax.nn.one_hot(alone, VOCAB))


DIMS = Dims(heads=2, head_dim=8, extent=TRAINED, causal=True)


def of_module() -> Compared:
    """`at` with the documents of rows."""
    encoding = pejax.encodings.rope(DIMS, extend=pejax.extensions.yarn())
    module, q = attention_module(encoding, DIMS, nnx.Rngs(0)), jax.random.normal(jax.random.key(0), (2, ROW, 2, 8))
    with module.at(packed_positions(rows_of(PAD + ONE, WHOLE))):
        result = module(q, q, q)
    own = q[:1, -DOCUMENT:]
    return Compared(result[0, -DOCUMENT:], attend(encoding, own, own, own)[0])


def of_flax_mask() -> Compared:
    """A mask of Flax that hides padding on the right."""
    encoding = pejax.encodings.rope(DIMS, extend=pejax.extensions.yarn())
    q = jax.random.normal(jax.random.key(0), (1, ROW, 2, 8))
    result = attention_fn(encoding)(q, q, q, mask=(jnp.arange(ROW) < DOCUMENT)[None, None, None])
    own = q[:, :DOCUMENT]
    return Compared(result[:, :DOCUMENT], attention_fn(encoding)(own, own, own))


def of_pictures() -> Compared:
    """Pictures of several sizes in a batch."""
    config = vit(image_size=8, patch=4, width=16, heads=2, layers=1, pe="rope_axial", extend="yarn")
    model = ViT(config, rngs=nnx.Rngs(0))
    pictures = [jax.random.normal(jax.random.key(n), size) for n, size in enumerate(((8, 12, 1), (20, 12, 1)))]
    together = model.states(pejax.patchify(pictures, patch=4))[:, 0]
    return Compared(together[0], model.states(pictures[0][None])[0, 0])


def with_tokens(model: Decoder, ids: jax.Array, segments: jax.Array) -> jax.Array:
    return model(ids, tokens=packed_positions(segments))


DOORS: dict[str, Callable[[], Compared]] = {
    "`Decoder(segment_ids=)`": lambda: of_decoder(lambda model, *arrays: model(arrays[0], segment_ids=arrays[1])),
    "`Decoder(tokens=)`": lambda: of_decoder(with_tokens),
    "`Decoder(attention_mask=)`": lambda: of_mask("skipped", 0),
    '`padding="counted"`, padded on the right': lambda: of_mask("counted", 1),
    '`padding="counted"`, padded on the left': lambda: of_mask("counted", 0),
    "documents of unequal length in one row": unequal,
    "`EncoderDecoder(source_segments=, target_segments=)`": of_source,
    '`generate(policy="recompute")`': lambda: of_generate("recompute"),
    '`generate(policy="stepwise")`': lambda: of_generate("stepwise"),
    "`generate_answers`": of_answers,
    "`attention_module.at`": of_module,
    "`mask=` of Flax": of_flax_mask,
    "`ViT(patchify(...))`": of_pictures,
}
IN_EVERY_RUN = ("`Decoder(attention_mask=)`", "documents of unequal length in one row")


def exceptions() -> dict[str, str]:
    """Return the conventions of the table of exceptions by door."""
    page = (Path(__file__).parents[2] / "docs/attention.md").read_text()
    _, table = re.split(r"^\| door \| convention \| why \|\n\|[-|]+\|\n", page, flags=re.MULTILINE)
    lines = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines())
    return {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in lines)}


def test_the_table_names_doors_that_exist():
    assert set(exceptions()) < set(DOORS)
    assert len(exceptions()) == 5


@pytest.mark.parametrize("door", [door if door in IN_EVERY_RUN else slow(door) for door in DOORS])
def test_the_law_holds_at_every_door_that_is_no_exception(door):
    result, expected = DOORS[door]()
    if door in exceptions():
        assert float(jnp.abs(result - expected).max()) > 2e-4, "an exception that is none"
        return
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=2e-5)
