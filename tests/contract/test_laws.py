"""Every encoding of the registry under every law: sequences, causal ones, images and volumes, where it serves them."""

from collections.abc import Callable

import pytest

from pejax import ENCODINGS, testing
from pejax._attention.xla import blockwise
from tests.support.cases import DIMS, EACH_KIND, Case, derivatives, forward, gradients, of_sizes, serves
from tests.support.laws import (
    LAWS,
    a_tile_is_a_slice_of_the_whole,
    blockwise_is_dense,
    constants_are_arguments,
    derivatives_of_every_kind_agree,
    jit_changes_nothing,
    packed_is_separate,
    permutation_moves_the_output,
    shift_invariance_is_as_declared,
    sizes_in_one_batch_are_each_alone,
    the_future_is_not_seen,
    the_future_is_not_seen_where_positions_restart,
)

UNEQUAL = "rope_axial(widths=(4, 6), base=(10.0, 50.0), layout='alternate')"

# Arguments away from their defaults, each on one setting; the defaults are held to every law on every setting.
VARIANTS = {
    "alibi(extend='slopes', slope_scale=0.5)": "sequence",
    "alibi(bias_max=4.0)+rope(base=50.0)": "causal",
    "alibi(learned=True)": "image",
    "alibi(learned=True, extend='slopes')": "causal",
    "fire(share='layer', threshold=8.0)": "causal",
    "fire(signed=True)": "image",
    "fourier(kind='learned', features=6)": "causal",
    "fourier(kind='random', scale=3.0)": "image",
    "kerple(variant='power')": "image",
    "learned(extend='resize')": "sequence",
    "learned(factorized=True)": "image",
    "learned(factorized=True)+rope_mixed": "image",
    "lookhere(fov=180, slope_scale=0.5, depth=1.0)": "image",
    "relative_table(share='model')": "image",
    "rope(layout='proportional', rotary_dim=4, pairing='half')": "causal",
    "rope(rotary_dim=4, base=500.0, pairing='half')": "causal",
    "rope(sections=(3, 1, 2))": "volume",
    "rope(sections=(3, 1, 2), section_order='interleaved')": "volume",
    "rope(extend='dynamic_ntk+resonance')": "sequence",
    "rope(extend='self_extend(window=4, group=5)')": "causal",
    "rope(extend='yarn(factor=4, attention_factor=1)')": "sequence",
    "rope_axial(layout='alternate', indexing='xy', pairing='half')": "image",
    "rope_axial(extend='ntk')": "image",
    "rope_axial(across_heads=True, spectrum='inclusive', rest='first', widths=(12, 8))": "image",
    "rope_axial(heads=(1, 1), extend='yarn')": "image",
    "rope_axial(periodic=(None, 7.5), widths=(8, 4), extend='yarn(factor=2, attention_factor=1)')": "image",
    "rope_axial(widths=(4, 8), pairing='half_by_axis', extend='pi(factor=(1, 2))')": "image",
    UNEQUAL: "image",
    "rope_mixed(pairing='half')": "image",
    "rope_mixed(extend='linear')": "sequence",
    "shaw(values=False, clip=2)": "sequence",
    "shaw(clip=(3, 1))": "image",
    "sinusoidal(layout='concat')": "image",
    "t5(buckets=8, max_distance=20, share='layer')": "causal",
}

EACH_MECHANISM = (*EACH_KIND, "fire", "rope_mixed", "rope(extend='self_extend(window=4, group=5)')")
"""Those of `EACH_KIND`, a bias of both positions, a rotation that each layer learns, and distances in two bands."""


COMPILED = (
    a_tile_is_a_slice_of_the_whole,
    blockwise_is_dense,
    packed_is_separate,
    permutation_moves_the_output,
    the_future_is_not_seen,
)
"""Laws whose programs take longest to compile: the default run has them for `EACH_KIND`."""


def cases() -> list[Case]:
    """Ask the factories for all that they serve, encoding by encoding."""
    named = [Case(name, setting) for name in ENCODINGS for setting in DIMS if serves(name, setting)]
    return sorted([*named, *(Case(*item) for item in VARIANTS.items())], key=str)


def pairs() -> list:
    """Return every case with every law that says something about it; `-m slow` has what `is_quick` leaves out."""
    return [
        pytest.param(case, law, id=f"{case}-{law.__name__}", marks=() if is_quick(case, law) else pytest.mark.slow)
        for case in cases()
        for law in LAWS
        if law.applies(case)
    ]


def is_quick(case: Case, law: Callable[[Case], None]) -> bool:
    """Whether a law is checked in every run: on one encoding of each mechanism, causal, and on one for images."""
    if law is the_future_is_not_seen_where_positions_restart:  # every door has it for two encodings
        return (case.setting, case.spec) == ("causal", "t5")
    if law is jit_changes_nothing:  # operation by operation
        return case.setting == "causal" and case.spec in ("learned", "rope")
    if law is sizes_in_one_batch_are_each_alone:
        return False
    if case.spec == UNEQUAL:
        return law is shift_invariance_is_as_declared
    if law in COMPILED and case.setting == "causal" and case.spec not in EACH_KIND:
        return False
    return case.spec in {"causal": EACH_MECHANISM, "image": ("rope_axial",)}.get(case.setting, ())


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    """Return a case, and let go of the programs compiled for another one.

    Not when the fixture ends: with a law beside it, which is no fixture, pytest ends it after every law.
    """
    if [request.param] != LAST:
        for program in (derivatives, forward, gradients, of_sizes, testing.dense_terms):
            program.clear_cache()
        LAST[:] = [request.param]
    return request.param


LAST: list[Case] = []
"""The case whose programs are in memory."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Cut 11 tokens into several tiles."""
    monkeypatch.setattr(blockwise, "BLOCK", 4)


@pytest.mark.parametrize(("case", "law"), pairs(), indirect=["case"])
def test_law(case, law):
    law(case)


def with_gradients() -> list:
    """Return every case: encodings with their defaults on images are slow, the others long."""
    kind = lambda case: "slow" if case.is_default and case.setting == "image" else "long"
    return [pytest.param(case, id=str(case), marks=getattr(pytest.mark, kind(case))) for case in cases()]


@pytest.mark.parametrize("case", with_gradients(), indirect=True)
def test_gradients_on_every_setting(case):
    blockwise_is_dense(case, everywhere=True)
    the_future_is_not_seen(case)


AT_EACH_SIZE = {
    "image": (
        "alibi(extend='slopes')",
        "cpb(extend='pi')",
        "fire(extend='pi')",
        "learned(antialias=True)",
        "learned(antialias=True, method='bilinear')",
        "learned(extend='pi')",
        "learned(extend='pi(factor=1.5)', method='bilinear')",
        "learned(factorized=True, method='align_corners')",
        "relative_table(extend='pi(stretch=True)')",
        "relative_table(method='align_corners')",
        "rope(extend='ntk')",
        "rope_axial(extend='dynamic_ntk')",
        "rope_axial(extend='llama3(low_freq_factor=0.5)')",
        "rope_axial(extend='longrope(long_factors=(1.5, 2.0, 3.0))')",
        "rope_mixed(extend='linear')",
        "rope_mixed(extend='pi')",
    ),
    "volume": (
        "alibi(extend='slopes')",
        "cpb(extend='pi')",
        "learned(antialias=True, extend='pi')",
        "relative_table(extend='pi(stretch=True)')",
        "rope(extend='ntk')",
        "rope_axial(extend='riflex(repeats_at=3)+ntk')",
        "rope_mixed(extend='pi')",
    ),
}
"""What depends on the grid in a way that the encodings with their defaults do not."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [Case(spec, setting) for setting, specs in AT_EACH_SIZE.items() for spec in specs], ids=str, indirect=True
)
def test_sizes_in_one_batch_of_extended_encodings(case):
    sizes_in_one_batch_are_each_alone(case)


VOLUMES = [case for case in cases() if case.setting == "volume"] + [
    Case(spec, "volume") for spec in AT_EACH_SIZE["volume"]
]


@pytest.mark.long
@pytest.mark.parametrize("case", VOLUMES, ids=str, indirect=True)
def test_volumes_of_several_sizes_in_one_batch_have_the_gradients_of_each_alone(case):
    sizes_in_one_batch_are_each_alone(case, slopes=True)


@pytest.mark.long
@pytest.mark.parametrize("case", [case for case in cases() if case.encoding.embed is None], ids=str, indirect=True)
def test_constants_are_arguments_on_every_setting(case):
    constants_are_arguments(case, everywhere=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [Case(name, "causal") for name in ENCODINGS if serves(name, "causal")], ids=str, indirect=True
)
def test_derivatives_of_every_kind_agree(case):
    derivatives_of_every_kind_agree(case)


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_serves_sequences_and_images(name):
    assert {"sequence", "causal", "image"} <= {setting for setting in DIMS if serves(name, setting)}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_every_law_says_something_about_some_case(law):
    assert any(law.applies(case) for case in cases())
