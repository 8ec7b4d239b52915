"""Public functions and models under the transforms that users apply to everything: they work, or say what to do."""

import copy
import dataclasses
import functools
import itertools
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import export

import pejax
from pejax import Dims, attend, init_params, make_encoding
from pejax.models import Decoder, DiT, EncoderDecoder, ViT, decoder, dit, encoder_decoder, vit
from tests.support.cases import normal, slow

T, H, D = 6, 2, 8
TINY = {"width": 8, "layers": 1, "heads": 2}
IMAGES, IDS = normal(1, 8, 8, 1), np.array([[1, 2, 3, 4, 5, 6]], np.int32)


def attention(spec, implementation=None):
    """Return `attend` by an encoding, from queries, which are keys and values, too, and its arguments."""
    encoding = make_encoding(spec, Dims(H, D, extent=T, causal=True))
    params = init_params(encoding, jax.random.key(0))
    options = {"params": params, "embedded": True, "implementation": implementation}
    return lambda q: attend(encoding, q, q, q, **options), (normal(1, T, H, D),), ("1, t, 2, 8",)


def of_model(model, call, inputs, open_sizes):
    """Return a function of a model's parameters and inputs, its arguments, and the sizes that are open in them."""
    graph, state = nnx.split(model)
    sizes = jax.tree.map(lambda x: ", ".join(map(str, x.shape)), state)
    return lambda state, *inputs: call(nnx.merge(graph, state), *inputs), (state, *inputs), (sizes, *open_sizes)


def a_decoder(pe="rope"):
    model = Decoder(decoder(vocab=16, length=8, pe=pe, **TINY), rngs=nnx.Rngs(0))
    return of_model(model, lambda model, ids: model(ids), (IDS,), ("b, t",))


def a_dit():
    model = DiT(dit(image_size=8, patch=4, classes=2, **TINY), rngs=nnx.Rngs(0))
    call = lambda model, x, time, labels: model(x, time=time, labels=labels)
    return of_model(model, call, (IMAGES, jnp.ones(1), jnp.ones(1, jnp.int32)), ("b, 8, 8, 1", "b", "b"))


def a_vit():
    model = ViT(vit(image_size=8, patch=4, pe="rope_mixed", **TINY), rngs=nnx.Rngs(0))
    return of_model(model, lambda model, x: model(x), (IMAGES,), ("b, 8, 8, 1",))


def an_encoder_decoder():
    sizes = {"vocab": 16, "width": 8, "encoder_layers": 1, "decoder_layers": 1, "heads": 2}
    model = EncoderDecoder(encoder_decoder(**sizes), rngs=nnx.Rngs(0))
    return of_model(model, lambda model, *ids: model(*ids), (IDS, IDS), ("b, s", "b, t"))


ROPE = make_encoding("rope", Dims(H, D, causal=True))
SUBJECTS = {
    "rope_apply": lambda: (
        lambda x: pejax.rope_apply(x, jnp.arange(x.shape[1])), (normal(1, T, H, D),), ("1, t, 2, 8",)
    ),
    "alibi_bias": lambda: (lambda x: pejax.alibi_bias(x, x, np.ones(H, np.float32)), (jnp.arange(6.0),), ("t",)),
    "sinusoidal_embedding": lambda: (lambda x: pejax.sinusoidal_embedding(x, 8), (jnp.arange(6.0),), ("t",)),
    "interpolate_positions": lambda: (
        lambda x: pejax.interpolate_positions(x, 6, x.shape[0]), (jnp.arange(6.0),), ("t",)
    ),
    "patchify": lambda: (lambda x: pejax.patchify([x], 2).pixels, (normal(4, 4, 1),), ("4, 4, c",)),
    "extend_yarn": lambda: (
        lambda x: pejax.extend_yarn(x, pejax.Rotary(100.0, 8, trained_length=6), factor=2.0)[0], (jnp.ones(4),), ("4",)
    ),
    "attention_weights": lambda: (
        lambda x: pejax.attention_weights(x, x, causal=True), (normal(1, T, H, D),), ("b, t, 2, 8",)
    ),
    "linear_attention": lambda: (
        lambda x: pejax.linear_attention(ROPE, x, x, x, embedded=True), (normal(1, T, H, D),), ("1, t, 2, 8",)
    ),
    **{f"attend {spec}": functools.partial(attention, spec) for spec in ("rope", "t5", "fire", "shaw", "learned")},
    "attend rope in tiles": functools.partial(attention, "rope", "cpu"),
    "Decoder": a_decoder,
    "Decoder t5": functools.partial(a_decoder, "t5"),
    "DiT": a_dit,
    "ViT": a_vit,
    "EncoderDecoder": an_encoder_decoder,
}  # fmt: skip


def a_packed_decoder():
    model = Decoder(decoder(vocab=16, length=8, pe="rope", **TINY), rngs=nnx.Rngs(0))
    return of_model(model, lambda model, ids: model(ids, segment_ids=ids), (IDS,), ("b, t",))


def segments_of_keys():
    def function(q, segments):
        k_positions = pejax.TokenPositions(jnp.arange(q.shape[1], dtype=jnp.int32), segment_ids=segments)
        return attend(ROPE, q, q, q, positions=jnp.arange(q.shape[1]), k_positions=k_positions)

    return function, (normal(1, T, H, D), np.ones((1, T), np.int32)), ("b, t, 2, 8", "b, t")


def tokens_without_positions():
    def function(q, placed):
        order = jnp.arange(q.shape[1], dtype=jnp.int32)
        return attend(ROPE, q, q, q, positions=pejax.TokenPositions(order, order, has_position=placed))

    return function, (normal(1, T, H, D), np.ones((1, T), bool)), ("b, t, 2, 8", "b, t")


OPENED = {
    "packed_positions": lambda: (lambda ids: pejax.packed_positions(ids).positions, (IDS,), ("b, t",)),
    "a packed decoder": a_packed_decoder,
    "segments of keys": segments_of_keys,
    "tokens without positions": tokens_without_positions,
}
"""What has fields of tokens, whose sizes are open, too."""


def total(function):
    return lambda *args: jnp.sum(function(*args).astype(jnp.float32) ** 2)


def moving(args):
    """Return tangents of all arguments."""
    of = lambda x: jnp.ones_like(x) if jnp.issubdtype(x.dtype, jnp.floating) else np.zeros(x.shape, jax.dtypes.float0)
    return jax.tree.map(of, args)


def floats(function, args):
    """Return the function of the first argument, and that argument."""
    return lambda first: function(first, *args[1:]), args[0]


def by_scan(function, args):
    f, x = floats(function, args)
    jax.eval_shape(lambda x: jax.lax.scan(lambda carry, _: (carry, f(carry)), x, None, length=2), x)


def by_vmap(function, args):
    jax.eval_shape(jax.vmap(jax.grad(total(function))), *jax.tree.map(lambda x: jnp.stack([x, x]), args))


def in_mode(mode, function, args):
    with mode():
        jax.eval_shape(jax.grad(total(function)), *args)


def exported(function, args, sizes=None):
    """Return the program, read back from its bytes; `sizes` open some of the axes."""
    args = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    if sizes is not None:
        leaves, tree = jax.tree.flatten(args)
        args = tree.unflatten(export.symbolic_args_specs(leaves, jax.tree.leaves(sizes)))
    return export.export(jax.jit(function))(*args)


TRANSFORMS = {
    "jit": lambda f, args, sizes: jax.eval_shape(jax.jit(f), *args),
    "grad": lambda f, args, sizes: jax.eval_shape(jax.grad(total(f)), *args),
    "jvp": lambda f, args, sizes: jax.jit(lambda *x: jax.jvp(f, x, moving(x))).lower(*args),  # a trace computes none
    "vmap": lambda f, args, sizes: by_vmap(f, args),
    "scan": lambda f, args, sizes: by_scan(f, args),
    "remat": lambda f, args, sizes: jax.eval_shape(jax.grad(jax.checkpoint(total(f))), *args),
    "export": lambda f, args, sizes: exported(f, args),
    "export, open sizes": exported,
    "checking_leaks": lambda f, args, sizes: in_mode(jax.checking_leaks, f, args),
    "rank promotion": lambda f, args, sizes: in_mode(lambda: jax.numpy_rank_promotion("raise"), f, args),
    "x64": lambda f, args, sizes: in_mode(lambda: jax.enable_x64(True), f, args),
    "debug_nans": lambda f, args, sizes: in_mode(lambda: jax.debug_nans(True), f, args),
}
OPEN = "export, open sizes"

REFUSED = {
    "attend rope in tiles": "cpu: tiles and kernels need known sizes",
    "linear_attention": "linear_attention with a mask needs known sizes",
}
"""What is refused with open sizes, and the words."""

EVERY_TIME = {"jvp", "rank promotion"}
"""The transforms under which small models are traced by default."""


def is_cheap(subject, transform):
    in_every_way = subject[0].islower() and subject not in ("attend fire", "attend shaw", "attend learned")
    return in_every_way or (subject in ("attend shaw", "Decoder", "DiT") and transform in EVERY_TIME)


PAIRS = [pair for pair in itertools.product(SUBJECTS, TRANSFORMS) if pair[1] != OPEN]


@pytest.mark.parametrize(("subject", "transform"), [pair if is_cheap(*pair) else slow(*pair) for pair in PAIRS])
def test_it_is_traced(subject, transform):
    function, args, sizes = SUBJECTS[subject]()
    TRANSFORMS[transform](function, args, sizes)


def run_without_type_checks(code, *names):
    """Run code in a process of its own: annotations that say `int` are checked in this one, and open sizes are none."""
    code = f"from tests.contract.test_transforms import *\nimport sys\nfor name in sys.argv[1:]:\n    {code}"
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "subjects", [["rope_apply", "attend t5", "Decoder"], slow([name for name in SUBJECTS if name not in REFUSED])]
)
def test_it_is_exported_with_open_sizes(subjects):
    run_without_type_checks("exported(*SUBJECTS[name]())", *subjects)


@pytest.mark.slow
def test_fields_of_tokens_are_exported_with_open_sizes():
    run_without_type_checks("exported(*OPENED[name]())", *OPENED)


def refuse_open_sizes(subject):
    with pytest.raises(NotImplementedError, match=REFUSED[subject]):
        exported(*SUBJECTS[subject]())


@pytest.mark.slow
def test_what_cuts_its_tokens_refuses_open_sizes():
    run_without_type_checks("refuse_open_sizes(name)", *REFUSED)


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["DiT", "Decoder", "Decoder t5", "ViT", "EncoderDecoder"])
def test_the_change_of_a_model_is_that_of_differences(subject):
    function, (state, *inputs), _ = SUBJECTS[subject]()
    draw = np.random.default_rng(0)
    noise = lambda x: jnp.asarray(draw.normal(size=x.shape), x.dtype)
    is_float = lambda x: jnp.issubdtype(x.dtype, jnp.floating)
    state = jax.tree.map(lambda x: x + 0.3 * noise(x) if is_float(x) else x, state)
    along = jax.tree.map(lambda x: noise(x) if is_float(x) else np.zeros(x.shape, jax.dtypes.float0), state)
    at = jax.jit(lambda h: function(jax.tree.map(lambda x, d: x + h * d if is_float(x) else x, state, along), *inputs))
    change = jax.jit(lambda: jax.jvp(lambda state: function(state, *inputs), (state,), (along,))[1])()
    np.testing.assert_allclose(change, (at(1e-3) - at(-1e-3)) / 2e-3, rtol=0, atol=3e-3 * float(jnp.abs(change).max()))


def read_back(subject):
    """Compare a program of any length, read from its bytes, with the model at several lengths."""
    of_state, (state, _), (sizes, length) = SUBJECTS[subject]()
    state, tree = jax.tree.flatten(state)  # Flax's classes have no names in the file
    function = lambda leaves, ids: of_state(tree.unflatten(leaves), ids)
    program = export.deserialize(exported(function, (state, IDS), (jax.tree.leaves(sizes), length)).serialize())
    for ids in (IDS, IDS[:, :3], np.repeat(IDS, 3, axis=0), np.arange(34, dtype=np.int32).reshape(2, 17) % 16):
        np.testing.assert_allclose(program.call(state, ids), function(state, ids), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_decoder_of_any_length_is_exported_and_read_back():
    run_without_type_checks("read_back(name)", "Decoder", "Decoder t5")


@pytest.mark.parametrize("spec", ["rope", "rope(extend='yarn(factor=4)+log_n')", "t5", "learned+rope"])
def test_a_pickled_encoding_is_the_same_object(spec):
    encoding = make_encoding(spec, Dims(H, D, width=16, extent=T))
    assert pickle.loads(pickle.dumps(encoding)) is encoding
    assert copy.deepcopy(encoding) is encoding


def test_records_made_or_changed_by_hand_are_not_pickled():
    changed = dataclasses.replace(pejax.encodings.rope(Dims(H, D)), rotate_keys=None, rotate=None)
    for record in (changed, pejax.Encoding(shift_invariant=True)):
        with pytest.raises(TypeError, match="only an encoding that make_encoding makes can be pickled"):
            pickle.dumps(record)
        assert copy.deepcopy(record) is record


@pytest.mark.parametrize(
    "make",
    [
        lambda rngs: Decoder(decoder(vocab=16, length=8, **TINY), rngs=rngs),
        slow(lambda rngs: DiT(dit(image_size=8, patch=4, classes=2, **TINY), rngs=rngs)),
        slow(lambda rngs: ViT(vit(image_size=8, patch=4, pe="rope_mixed", **TINY), rngs=rngs)),
    ],
)
def test_a_pickled_model_is_equal(make):
    model = make(nnx.Rngs(0))
    again = pickle.loads(pickle.dumps(model))
    (graph, state), (graph_again, state_again) = nnx.split(model), nnx.split(again)
    assert graph == graph_again
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.all(a == b)), state, state_again))
