"""Every usual way to break an encoding is caught by the checks that hold it: one mutant at a time, in place.

A mutant is one function with one expression replaced. Its code is swapped into the function that everything already
refers to, and the suite's own tests of that encoding run until one fails; a mutant that passes them all is a failure.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pejax._attention import bands, by_example, flax_inputs
from pejax._attention.core import hooks, masks, operands, reference
from pejax._attention.kernels import programs
from pejax._attention.tpu import tpu_kernels, tpu_pairs, tpu_tile
from pejax._attention.xla import blocks, consecutive_bias, relative_keys, tiles
from pejax._encodings import (
    alibi,
    cpb,
    factory,
    fire,
    fourier,
    lookhere,
    relative_table,
    rope,
    rope_axial,
    rope_mixed,
    shaw,
    sinusoidal,
    t5,
)
from pejax._extensions import base as scaling
from pejax._extensions import (
    by_step,
    clips,
    interpolation,
    llama3,
    longrope,
    ntk,
    own,
    resonance,
    riflex,
    slopes,
    temperature,
    yarn,
)
from pejax._ops import axes, offset_table, periods, phases, relative, resize, rotary
from pejax._placement import grids, layouts, order, pictures, sequence, videos, vision
from pejax._tokens import patches as patches
from pejax._tokens import positions as positions
from pejax.interop import heads, pooling, predictions, text_batches
from pejax.models.generation import prompts, sampling, steps
from pejax.models.networks import vit
from pejax.models.stack import cache
from tests.attention import (
    test_attention,
    test_attention_errors,
    test_backends,
    test_blocks,
    test_padding,
    test_tpu_pairs,
)
from tests.contract import test_positions
from tests.data import test_moving_glyphs
from tests.encodings import (
    test_alibi,
    test_axes,
    test_cpb,
    test_fourier,
    test_kerple_fire,
    test_lookhere,
    test_periodic,
    test_relative_table,
    test_rotary,
    test_shaw,
    test_sinusoidal,
    test_t5,
    test_transformer_xl,
)
from tests.extensions import test_bands, test_clips_and_steps, test_own_extensions, test_proportional, test_temperature
from tests.extensions import test_frequencies as test_extension
from tests.interop import test_pooling
from tests.models import (
    test_by_layer,
    test_generate,
    test_generate_traced,
    test_input_positions,
    test_patches,
    test_sampling,
)
from tests.ops import test_distances, test_phases, test_resize
from tests.placement import test_order, test_placement
from tests.support import laws
from tests.support.cases import Case
from train.data.images import moving_glyphs
from train.dit import measures


def alibi_is_its_formula_at_any_distance() -> None:
    """`-m·|d|` of the record and of the function, at distances that bfloat16 would round."""
    case = Case("alibi", "sequence")
    at = jnp.asarray([0, 1, 257, 4099], jnp.int32)
    expected = np.outer(-(0.25 ** np.arange(1, 5)), at)
    np.testing.assert_allclose(alibi.alibi_bias(at[:1], at, alibi.alibi_slopes(4))[:, 0], expected)
    distances = [case.encoding.distance_bias({"slope": slope}, at) for slope in case.settled["heads"]["slope"]]
    np.testing.assert_allclose(distances, expected)


def t5_reaches_its_last_bucket() -> None:
    """A bias over distances beyond `max_distance`, from a table that names its buckets."""
    at = jnp.asarray([0, 1, 2, 3, 4, 5, 6, 40], jnp.int32)
    bias = t5.t5_bias(at[:1], at, jnp.arange(8.0)[None], bidirectional=True, max_distance=6)[0, 0]
    np.testing.assert_array_equal(
        bias, [test_t5.reference_bucket(int(d), bidirectional=True, buckets=8, max_distance=6) for d in at]
    )


OWN = [alibi_is_its_formula_at_any_distance, t5_reaches_its_last_bucket]

SHIFT = functools.partial(laws.shift_invariance_is_as_declared, Case("rope", "sequence"))
NORM = functools.partial(laws.rotation_preserves_norms, Case("rope", "sequence"))
MIXED_SHIFT = functools.partial(laws.shift_invariance_is_as_declared, Case("rope_mixed", "image"))

PAIRS = [functools.partial(test_positions.test_visible_is_the_rule_for_every_pair, *o) for o in test_positions.OPTIONS]
BLOCKS = [
    functools.partial(test_positions.test_blocks_miss_no_pair_and_whole_ones_hide_none, *o)
    for o in test_positions.OPTIONS
]

ROPE = [
    test_rotary.test_frequencies_of_one_axis,
    test_rotary.test_the_needle_walks_around,
    functools.partial(test_rotary.test_matrices_compose_and_equal_complex_numbers, "interleaved"),
    functools.partial(test_rotary.test_matrices_compose_and_equal_complex_numbers, "half"),
    test_rotary.test_the_attention_factor_multiplies_cos_and_sin,
    test_rotary.test_key_heads_serve_consecutive_query_heads,
    functools.partial(test_rotary.test_partial_rotation_turns_the_first_channels_only, "half"),
    functools.partial(test_phases.test_integers_match_float64_products, 2**24 - 4096),
    test_rotary.test_on_a_grid_rope_counts_in_raster_order,
]
LAWS_OF_ROPE = [NORM, SHIFT]
PERIODIC = [
    functools.partial(test_periodic.test_angles_are_those_of_fractions, 365.2425),
    test_periodic.test_turns_of_longitude_in_degrees,
    functools.partial(test_periodic.test_periods_added_change_nothing, test_periodic.LATITUDE_LONGITUDE, jnp.float32),
    functools.partial(test_periodic.test_extensions_leave_a_periodic_axis_as_it_is, "yarn(factor=4)"),
    functools.partial(test_periodic.test_extensions_leave_a_periodic_axis_as_it_is, "pi"),
    test_periodic.test_integer_positions_that_tell_no_more_turns_apart_are_refused,
]
FOURIER = [
    functools.partial(test_fourier.test_powers_are_those_of_nerf, 36, 1.0),
    test_fourier.test_random_features_are_those_of_tancik_and_their_seed,
    test_fourier.test_learned_features_are_algorithm_1_of_li,
    functools.partial(test_fourier.test_on_grids_coordinates_are_centers_of_patches, (8, 3)),
    test_fourier.test_positions_beyond_the_extent_are_refused_or_nan_where_waves_repeat,
    functools.partial(test_fourier.test_no_wave_is_shorter_than_two_tokens, 63, 5),
]
AXIAL = [test_rotary.test_frequencies_of_axes_in_either_order, test_rotary.test_axial_is_the_published_one]
AXES = [
    functools.partial(test_axes.test_every_pair_turns_with_its_axis_at_its_frequency, options)
    for options in (
        "widths=(4, 2, 6), base=(9.0, 1.0, 25.0), indexing='xy'",
        "widths=(4, 2, 6), pairing='half_by_axis'",
        "widths=(4, 2, 6), layout=((2, 0), (1,))",
        "widths=(4, 2, 6), spectrum='inclusive'",
        "widths=(4, 2, 6), spectrum='dealt'",
        "heads=(1, 0, 1), rotary_dim=4, indexing='xy'",
    )
]
BY_WIDTH = [functools.partial(test_axes.test_each_axis_is_extended_by_its_own_width_base_and_factor, "ntk")]
MIXED = [
    functools.partial(test_rotary.test_mixed_frequencies_start_along_the_columns_of_rotations, 2),
    test_rotary.test_mixed_frequencies_are_drawn_per_key_head_and_layer,
    test_rotary.test_mixed_frequencies_of_any_head_spread_the_pairs_that_axes_do_not_divide,
    test_rotary.test_mixed_is_the_published_one,
]
MOTION = [test_moving_glyphs.test_a_motion_is_constant_and_reflected_at_the_walls]
LOOPS = [test_moving_glyphs.test_a_video_that_begins_again_is_a_loop_and_a_straight_motion_is_none]
SIZES = {
    spec: [functools.partial(laws.sizes_in_one_batch_are_each_alone, Case(spec, "image"), slopes=False)]
    for spec in (
        "alibi(extend='slopes')",
        "learned",
        "learned(extend='pi')",
        "relative_table",
        "relative_table(extend='pi(stretch=True)')",
        "rope",
        "rope_axial(extend='ntk')",
    )
}
BATCH = [functools.partial(test_patches.logits_of_sizes_are_each_alone, {"pe": "none", "pool": "mean"}, {"cls": True})]
BATCH_OF_TABLES = [
    functools.partial(test_patches.logits_of_sizes_are_each_alone, {"pe": "learned", "pool": "mean"}, {})
]
SAMPLES = {
    way: [functools.partial(test_resize.samples_are_rows, *way, [((5, 9), (3, 20))])]
    for way in (("bicubic", False), ("bilinear", True), ("align_corners", False))
}
OF_EACH_IMAGE = [
    functools.partial(
        test_attention_errors.test_an_extent_of_each_image_fits_the_batch,
        [[2, 3], [3, 2]],
        "from 0 to below (3, 2), got [0, 2]",
    )
]
PATCHES = [
    test_patches.test_patches_are_cut_in_raster_order_and_padded,
    test_patches.test_patches_of_equal_images_are_those_of_the_model_and_come_back,
    test_patches.test_patches_of_videos_are_their_blocks_frame_by_frame_and_come_back,
    test_patches.test_pictures_that_make_no_patches_are_refused,
]
DISTANCES = [test_distances.test_differences_are_limited_and_as_floats_exact_but_for_one_rounding]
CLIPS = [functools.partial(test_shaw.test_the_two_sides_may_be_clipped_at_two_distances, (3, 1))]
SUMS = [functools.partial(test_blocks.test_a_part_is_added_to_its_block_alone, n) for n in (1, 3)]
STRIPS = [
    functools.partial(
        test_transformer_xl.test_the_cpu_core_has_the_output_and_gradients_of_the_bias_for_any_positions,
        *(130, 150, 80, {"window": 40}),
    )
]
PADDING = [test_padding.test_of_keys_and_queries_that_a_mask_hides_from_all]
TPU_PAIRS = [functools.partial(test_tpu_pairs.check, "gates, packed, unplaced, every option")]
VALUES = [functools.partial(test_tpu_pairs.check, "shaw, packed, unplaced")]
RULES = [test_tpu_pairs.test_a_rule_of_derivatives_is_kept]
ALIBI = [
    test_alibi.test_slopes_of_8_and_12_heads_are_the_papers,
    test_alibi.test_bias_falls_with_the_distance_on_both_sides,
    functools.partial(test_alibi.test_bias_on_a_grid_is_cromas, (3, 5)),
    test_alibi.test_the_factory_scales_slopes_and_stretches_them_beyond_the_trained_extent,
    alibi_is_its_formula_at_any_distance,
]
T5 = [
    test_t5.test_buckets_of_the_official_table,
    test_t5.test_causal_buckets_spend_all_on_the_past,
    functools.partial(test_t5.test_buckets_follow_the_formula_and_floats_that_are_whole_agree, False, 10, 50),
    test_t5.test_bias_reads_the_table_and_sums_over_axes,
    t5_reaches_its_last_bucket,
]
CPB = [
    test_cpb.test_coordinates_of_a_grid_of_7_within_and_beyond_it,
    functools.partial(test_cpb.test_cpb_is_its_formula, 2),
    functools.partial(test_cpb.test_the_record_gives_the_functions_numbers_on_any_grid, (5, 3), jnp.int32),
    functools.partial(test_cpb.test_the_record_gives_the_functions_numbers_on_any_grid, (5, 3), jnp.float32),
]
FIRE = [
    functools.partial(test_kerple_fire.test_fire_is_its_formula, False, True),
    test_kerple_fire.test_signed_fire_tells_left_from_right_and_no_direction_is_unsigned_fire,
]
LOOKHERE = [
    *(
        functools.partial(test_lookhere.test_every_head_sees_what_the_published_inequalities_say, *key, (3, 5))
        for key in test_lookhere.SETS
    ),
    functools.partial(test_lookhere.test_right_comes_first_then_left_down_and_up, 90, "triangles"),
    test_lookhere.test_slopes_by_depth_and_of_undirected_heads,
]
HIDDEN = [
    functools.partial(test_lookhere.test_hidden_keys_stay_hidden_in_every_implementation, "cpu", 3.0),
    test_lookhere.test_other_peoples_layers_hide_keys_past_a_soft_cap_too,
    functools.partial(test_lookhere.test_a_model_gives_every_layer_the_slopes_of_its_depth, 3),
]
TABLE = [
    test_relative_table.test_every_offset_reads_its_own_cell,
    functools.partial(test_relative_table.test_offsets_beyond_the_table_read_its_border, jnp.int32),
    test_relative_table.test_the_record_resamples_the_table_to_another_grid,
]
YARN = [
    functools.partial(test_extension.test_every_pair_is_what_a_loop_in_double_precision_says, "yarn"),
    test_extension.test_yarn_leaves_fast_pairs_divides_slow_ones_and_falls_in_between,
    test_extension.test_yarn_without_truncation_and_with_other_betas,
    test_extension.test_yarn_ends_at_the_last_channel_not_at_the_last_pair,
    test_extension.test_yarn_of_the_paper_blends_by_the_turns_in_the_trained_length,
    test_extension.test_yarn_of_a_length_below_one_turn_divides_all_but_the_fastest_pair,
    test_extension.test_attention_factors_are_the_papers,
    test_extension.test_extensions_compose,
    functools.partial(test_extension.test_channels_that_do_not_turn_are_left_alone, "yarn"),
]
EXTENDED = [
    *(
        functools.partial(test_extension.test_every_pair_is_what_a_loop_in_double_precision_says, name)
        for name in ("ntk", "dynamic_ntk", "longrope", "llama3")
    ),
    test_extension.test_attention_factors_are_the_papers,
]
RIFLEX = [
    functools.partial(
        test_clips_and_steps.test_riflex_slows_the_published_pair_of_time_beyond_the_first_repetition, model
    )
    for model in test_clips_and_steps.MODELS
]
PAIRWISE = [
    test_clips_and_steps.test_soft_clip_slows_the_last_pairs_until_the_last_one_stops,
    test_clips_and_steps.test_hard_clip_stops_pairs_without_a_turn_in_training,
    test_clips_and_steps.test_resonance_rounds_every_period,
]
STEPS = [
    test_clips_and_steps.test_between_two_extensions_frequencies_are_interpolated_geometrically,
    test_clips_and_steps.test_beyond_one_the_factor_is_a_higher_power_and_stopped_pairs_stay_stopped,
    test_clips_and_steps.test_a_watershed_is_between_two_extensions_as_in_lumina_next,
]
OWN = [test_own_extensions.test_what_does_not_vary_is_computed_once_also_inside_of_a_trace]
OFFSET = [test_temperature.test_without_an_offset_the_first_step_is_at_the_position_of_its_length]
LOG_N = [test_temperature.test_on_a_grid_log_n_is_the_ratio_of_the_logarithms_of_patches]
SHARES = [test_proportional.finer_is_trained]
COUNTS = [test_proportional.the_bias_counts_keys]
IN_BANDS = [
    functools.partial(
        test_bands.test_pairs_turn_by_the_distance_of_their_positions, "rerope", "gaps, an order", "reference"
    )
]
LINE = [functools.partial(test_backends.test_a_line_of_biases_is_added_to_queries_of_float64, "t5")]
TILES = [
    functools.partial(
        test_attention.test_both_implementations_are_the_float64_loops_in_value_and_every_gradient,
        "packed, unplaced, causal window",
    ),
]
ORDER = [
    functools.partial(test_order.test_an_order_is_the_mask_that_its_runs_describe, "all of them"),
    test_order.test_the_order_of_a_block_is_the_number_of_its_first_token,
    test_order.test_pictures_of_a_sequence_are_read_both_ways,
]
DECODING = [
    *(
        functools.partial(test_input_positions.test_cached_decoding_is_the_full_pass, "rope", name)
        for name in ("each row's", "packed")
    ),
    functools.partial(test_input_positions.test_a_step_that_does_not_count_its_slots_is_refused_or_nan, True),
]
PLACEMENT = [
    *(
        functools.partial(test_placement.test_a_rule_places_every_token_by_its_formula, name)
        for name in ("qwen_image", "cogview4", "wan")
    ),
    test_placement.test_a_packed_row_is_its_sequences_and_padding,
]
RULES_OF_2026 = [
    functools.partial(test_placement.test_a_rule_places_every_token_by_its_formula, name)
    for name in ("cogvideox", "cosmos3", "minimax_h3", "ltx2_audio", "vision_tower", "z_image_omni")
]
GRIDS = [
    functools.partial(test_positions.test_grid_positions_are_in_raster_order, 2, 3),
    test_positions.test_grid_positions_of_volumes_are_in_raster_order,
]
SINUSOIDAL = [functools.partial(test_sinusoidal.test_channels_are_where_the_layout_says, "interleaved")]

PLAIN_PRODUCT = (
    "return _cos_sin(positions if axes > 1 else positions[..., None], by_axis, materialize)",
    "angle = _angle(positions if axes > 1 else positions[..., None], by_axis); return jnp.cos(angle), jnp.sin(angle)",
)

# (function, what it says, what the mutant says, the checks of which one must fail)
VECTORS = [test_pooling.test_every_mode_is_that_of_a_loop]
HEADS = [test_pooling.test_heads_are_those_of_numpy]
ANSWERS = [test_pooling.test_the_answer_is_the_most_probable_part_of_the_context]
ROWS = [test_pooling.test_every_row_is_in_one_batch_the_longest_first]

MUTANTS = {
    "rope: sine for cosine": (rotary._by_swapping, "pairs * cos", "pairs * sin", LAWS_OF_ROPE),
    "rope: a sign lost": (rotary._by_swapping, "[-1.0, 1.0]", "[1.0, 1.0]", LAWS_OF_ROPE),
    "rope: sine for cosine in halves": (
        rotary._rotated,
        "first * cos - second * sin",
        "first * sin - second * cos",
        ROPE,
    ),
    "rope: a sign lost in halves": (rotary._rotated, "first * cos - second", "first * cos + second", ROPE),
    "rope: turned backwards": (
        rotary.rotate_at,
        "(cos * factor, sin * factor)",
        "(cos * factor, -sin * factor)",
        ROPE,
    ),
    "rope: the wrong pairs": (rotary.rotate_pairs, 'pairing == "interleaved"', 'pairing == "half"', ROPE),
    "rope: exponent upside down": (phases.geometric_frequencies, "-np.arange(count)", "np.arange(count)", ROPE),
    "rope: exponent halved": (phases.geometric_frequencies, "/ count", "/ (2 * count)", ROPE),
    "rope: exponents from one": (phases.geometric_frequencies, "np.arange(count)", "np.arange(1, count + 1)", ROPE),
    "rope: exponents to the last": (phases.geometric_frequencies, "/ count", "/ (count - 1)", ROPE),
    "rope: exponent over the whole head": (
        rope.rope_frequencies,
        "geometric_frequencies(turning, base)",
        "geometric_frequencies(head_dim // 2, base)[:turning]",
        ROPE,
    ),
    "rope: factor forgotten": (rotary.rotate_at, "(cos * factor, sin * factor)", "(cos, sin)", ROPE),
    "rope: factor on cosine alone": (rotary.rotate_at, "sin * factor)", "sin)", ROPE),
    "rope: factor squared": (rotary.rotate_at, "(cos * factor,", "(cos * factor * factor,", ROPE),
    "rope: bfloat16 angles": (
        *(
            rotary.rotate_at,
            "exact_cos_sin(positions,",
            "exact_cos_sin(jnp.asarray(positions, jnp.bfloat16).astype(jnp.float32),",
            [SHIFT],
        ),
    ),
    "rope: float32 products": (phases.exact_cos_sin, *PLAIN_PRODUCT, [SHIFT]),
    "rope: phases rounded to 16 bits": (phases._phase, "return total", "return (total >> 16) << 16", [SHIFT]),
    "rope: positions from one": (rotary.rotate_at, "exact_cos_sin(positions,", "exact_cos_sin(positions + 1,", ROPE),
    "rope: key heads dealt out in turn": (
        rotary.rotate_pairs,
        "= cos[..., None, :], sin[..., None, :]",
        "= cos[..., None, :, :], sin[..., None, :, :]",
        ROPE,
    ),
    "rope: columns for rows": (rope.rope, "extent[axis + 1 :]", "extent[:axis]", ROPE),
    "fourier: an octave higher": (fourier._octaves, "2**k", "2 ** (k + 1)", FOURIER),
    "fourier: cosines first": (fourier._octaves, "[sin, cos]", "[cos, sin]", FOURIER),
    "fourier: radians for turns": (fourier.fourier, "math.tau * scale * drawn", "scale * drawn", FOURIER),
    "fourier: another seed": (fourier.fourier, "RandomState(seed)", "RandomState(seed + 1)", FOURIER),
    "fourier: features not divided": (fourier.fourier, "features / math.sqrt(count)", "features", FOURIER),
    "fourier: a rough gelu": (fourier.fourier, "approximate=False", "approximate=True", FOURIER),
    "fourier: corners for centers": (fourier._centers, "(places + 0.5)", "places", FOURIER),
    "fourier: one token beyond": (fourier._centers, "places >= sides", "places > sides", FOURIER),
    "fourier: a wave too short": (fourier._default_octaves, "side.bit_length() - 1", "side.bit_length()", FOURIER),
    "rope: periods: two pairs of as many turns": (periods.whole_turns, ", slower + 1)", ", 1)", PERIODIC),
    "rope: periods: turns rounded down": (periods.whole_turns, "round(frequency", "int(frequency", PERIODIC),
    "rope: periods: extended": (periods.axis_rows, "np.isin(np.arange(len(periods)), free)[:, None]", "True", PERIODIC),
    "rope: periods: a frequency of one word": (
        periods.frequency_words,
        "rest - Fraction(word)",
        "Fraction(0)",
        PERIODIC,
    ),
    "rope: periods: the turns of half a period": (
        periods.frequency_words,
        "Fraction(period)",
        "Fraction(period) * 2",
        PERIODIC,
    ),
    "rope: periods: any integers": (periods.AxisRows._check_turns, "2 * turns > period", "turns > period", PERIODIC),
    "rope: periods: scaled by pi": (interpolation._beside_periods, "jnp.where(repeats, 1.0, scale)", "scale", PERIODIC),
    "axial: pairs in the other order": (axes.axis_groups, "order == words[0]", "order != words[0]", AXIAL),
    "axial: exponent of one axis": (
        axes.own_bases,
        "return tuple(bases)",
        "return tuple(base**0.5 for base in bases)",
        AXIAL,
    ),
    "axial: rows for columns": (rope_axial._by_channel, "**options)[::step]", "**options)", AXIAL),
    "axial: widths of the other axis": (rope_axial._by_channel, "widths[::step]", "widths", AXES),
    "axial: bases of the other axis": (rope_axial._by_channel, "base=bases[::step]", "base=bases", AXES),
    "axial: pairs beyond the widths first": (rope_axial.rope_axial_frequencies, 'rest == "first"', "True", AXES),
    "axial: one spectrum dealt by blocks": (axes.axial_frequencies, "[range(axes)]", "groups", AXES),
    "axial: an inclusive spectrum without its end": (axes.own_bases, "count - 1", "count", AXES),
    "axial: heads in the other order": (
        rope_axial._by_head,
        "np.arange(dims.axes)[::step]",
        "np.arange(dims.axes)",
        AXES,
    ),
    "axial: every axis by the first one's": (
        rope_axial._rotation,
        "slice(first // 2, (first + width)",
        "slice(0, width",
        AXES,
    ),
    "sections: all axes in turn": (axes.pair_axes, "place, turn, seat, axis)", "turn, seat, axis)", AXES),
    "ntk: the width of the first axis": (
        *(scaling.powered, "rotary.rotary_dim)", "max([*np.atleast_1d(rotary.rotary_dim)]))", BY_WIDTH),
    ),
    "mixed: a reflection": (
        rope_mixed._random_rotation,
        "jnp.sign(jnp.linalg.det(q))",
        "-jnp.sign(jnp.linalg.det(q))",
        MIXED,
    ),
    "mixed: one direction for all heads": (
        rope_mixed.rope_mixed_frequencies,
        "jax.random.split(key, heads)",
        "jnp.stack([key] * heads)",
        MIXED,
    ),
    "mixed: magnitudes twice as far": (
        rope_mixed._spectrum,
        "(count, base)",
        "(count, base**2)",
        MIXED,
    ),
    "mixed: the rest of the pairs along the last column": (
        rope_mixed._spectrum,
        "np.arange(head_dim // 2) % axes",
        "np.minimum(np.arange(head_dim // 2) // (head_dim // (2 * axes) or 1), axes - 1)",
        MIXED,
    ),
    "mixed: heads in the other order": (
        rope_mixed.rope_mixed,
        'learned = params["frequencies"]',
        'learned = params["frequencies"][::-1]',
        MIXED,
    ),
    "mixed: float32 products": (phases.exact_cos_sin, *PLAIN_PRODUCT, [MIXED_SHIFT]),
    "alibi: slopes off by one": (alibi.alibi_slopes, "(h + 1)", "(h + 2)", ALIBI),
    "alibi: slopes from zero": (alibi.alibi_slopes, "(h + 1)", "h", ALIBI),
    "alibi: slopes upside down": (alibi.alibi_slopes, "(-bias_max", "(bias_max", ALIBI),
    "bands: the near one reaches one pair farther": (bands._outside, "relative > -", "relative >= -", IN_BANDS),
    "bands: the far one begins one pair later": (bands._outside, "relative <= -", "relative < -", IN_BANDS),
    "bands: by the order": (bands.attend_in_bands, "by_order = by_order or", "by_order = True or", IN_BANDS),
    "masks: a query does not see itself": (masks.pair_masks, "q >= k", "q > k", PAIRS),
    "masks: padding sees padding": (masks.pair_masks, "(q == k) & (k != 0)", "q == k", PAIRS),
    "masks: a window one token wider": (masks._distance_masks, "_limit(high - 1,", "_limit(high,", PAIRS),
    "masks: a range that begins one token later": (masks._distance_masks, "_limit(low - 1,", "_limit(low,", PAIRS),
    "masks: the sides of a window exchanged": (masks.pair_masks, "q > k if", "q < k if", PAIRS),
    "masks: blocks ahead by their nearest ends alone": (
        masks.block_masks,
        " if whole else ((q_low",
        " if 0 else ((q_low",
        BLOCKS,
    ),
    "masks: blocks ahead by their farthest ends alone": (
        masks.block_masks,
        "(k_high, q_low)) if whole else",
        "(k_high, q_low)) if 1 else",
        BLOCKS,
    ),
    "generate: a single query sees other documents and empty slots": (
        cache.one_query,
        "jnp.where(own, ",
        "jnp.where(own | True, ",
        [functools.partial(test_generate.test_cached_decoding_is_the_full_forward_pass, "rope")],
    ),
    "generate: recomputed where parameters change at every length": (
        steps.policy_by_changes,
        "not (changes[1:] & changes[:-1]).any()",
        "True",
        [
            functools.partial(
                test_by_layer.test_the_policy_follows_how_often_parameters_change, test_by_layer.GROWING, "stepwise"
            )
        ],
    ),
    "generate: prompts padded on the right": (
        prompts.rounded_prompts,
        "(padded - length, 0)",
        "(0, padded - length)",
        [test_generate_traced.test_prompts_of_few_lengths_keep_their_tokens_at_the_end],
    ),
    "sampling: negative logits divided, too": (
        sampling.penalized,
        "jnp.where(logits < 0, logits * factor, logits / factor)",
        "logits / factor",
        [test_sampling.test_penalties_are_those_of_a_loop_over_tokens],
    ),
    "sampling: padding counted as seen": (
        sampling.History.start.__func__,
        ".add(is_token.astype(jnp.int32))",
        ".add(1)",
        [test_sampling.test_penalties_are_those_of_a_loop_over_tokens],
    ),
    "sampling: presence counted like frequency": (
        sampling.penalized,
        "history.counts > 0)",
        "history.counts)",
        [test_sampling.test_penalties_are_those_of_a_loop_over_tokens],
    ),
    "sampling: min p of all tokens instead of the most probable": (
        sampling.ranked,
        "result[:, :1] + math",
        "jax.nn.logsumexp(result, axis=-1, keepdims=True) + math",
        [test_sampling.test_min_p_keeps_what_is_probable_enough_beside_the_most_probable],
    ),
    "masks: blocks by their first query": (masks.block_masks, "q_high >= k_low", "q_low >= k_low", BLOCKS),
    "masks: whole blocks by their last query": (masks.block_masks, "q_low >= k_high", "q_high >= k_high", BLOCKS),
    "masks: blocks by their far ends": (masks.block_masks, "k_low - q_high", "k_high - q_low", BLOCKS),
    "masks: blocks by one end alone": (
        masks.block_masks,
        "_distance(q_high, k_low)",
        "_distance(q_low, k_low)",
        BLOCKS,
    ),
    "masks: blocks of the same first segment": (masks.block_masks, "q_low <= k_high", "q_low == k_low", BLOCKS),
    "masks: whole blocks of two segments": (masks.block_masks, "q_low == q_high, k_low == k_high, ", "", BLOCKS),
    "alibi: any count a power of two": (alibi.alibi_slopes, "2 ** (heads.bit_length() - 1)", "heads", ALIBI),
    "alibi: the other half of the finer slopes": (alibi.alibi_slopes, "[0::2]", "[1::2]", ALIBI),
    "alibi: distance rewarded": (alibi.alibi_bias, "-slope *", "slope *", ALIBI),
    "alibi: distance rewarded by the factory": (
        alibi.alibi,
        '-params["slope"] *',
        'params["slope"] *',
        ALIBI,
    ),
    "alibi: one side only": (relative.token_distance, "jnp.abs(relative)", "jnp.maximum(-relative, 0)", ALIBI),
    "alibi: blocks for diagonals": (
        relative.token_distance,
        "square = jnp.sum(jnp.square(relative), axis=-1)",
        "square = jnp.square(jnp.sum(jnp.abs(relative), axis=-1))",
        ALIBI,
    ),
    "alibi: bfloat16 distances": (
        *(relative.token_distance, "relative.astype(jnp.float32)", "relative.astype(jnp.bfloat16).astype(jnp.float32)"),
        ALIBI,
    ),
    "alibi: slopes scaled the wrong way": (
        alibi.alibi,
        "trained, extent)}",
        "extent, trained)}",
        ALIBI,
    ),
    "alibi: scale forgotten": (alibi.alibi, "slope_scale * alibi_slopes", "alibi_slopes", ALIBI),
    "blocks: a sum over a single block subtracted": (
        blocks.add_to_block,
        "total + part[None]",
        "total - part[None]",
        SUMS,
    ),
    "blocks: a sum over several blocks subtracted": (blocks.add_to_block, ", i) + part", ", i) - part", SUMS),
    "blocks: every sum in the first block": (blocks.add_to_block, "+ part, i, 0)", "+ part, 0, 0)", SUMS),
    "relative keys: gradients of a tile as of its first strip": (
        consecutive_bias.add_consecutive_bias,
        "start - before // STRIP * STRIP",
        "start",
        STRIPS,
    ),
    "relative keys: too few for queries that fill a block": (
        relative_keys.relative_keys_of_heads,
        "t + -t % sizes[0]",
        "t",
        STRIPS,
    ),
    "tiles: a line of biases subtracted": (
        tiles.forward,
        "logits + _where(placed_pairs",
        "logits - _where(placed_pairs",
        LINE,
    ),
    "tiles: the gradient through relative values subtracted": (
        tiles._tile_gradients,
        "d_dropped + d_through_hook",
        "d_dropped - d_through_hook",
        TILES,
    ),
    "tiles: the gradient of a line of biases lost": (
        tiles._tile_gradients,
        "diagonal_sums(d_bias)",
        "jnp.zeros_like(diagonal_sums(d_bias))",
        LINE,
    ),
    "t5: mirrored": (t5.t5_bucket, "(relative >= 1)", "(relative <= -1)", T5),
    "t5: the future counted from zero": (t5.t5_bucket, "(relative >= 1)", "(relative >= 0)", T5),
    "t5: the causal past swapped": (t5.t5_bucket, "jnp.maximum(-relative, 0)", "jnp.maximum(relative, 0)", T5),
    "t5: sides not halved": (t5._buckets_per_side, "buckets // 2 if bidirectional", "buckets if bidirectional", T5),
    "t5: buckets begin too late": (t5.t5_bucket, "distance >= edge", "distance > edge", T5),
    "t5: exact buckets off by one": (t5._log_edges, "exact = side // 2", "exact = side // 2 - 1", T5),
    "t5: one edge too many": (t5._log_edges, "range(1, steps)", "range(0, steps)", T5),
    "t5: the wrong end of the logarithm": (
        t5._log_edges,
        "edge = exact * (max_distance / exact)",
        "edge = exact * max_distance",
        T5,
    ),
    "t5: max_distance forgotten": (t5._look_up, "max_distance=max_distance", "max_distance=128", T5),
    "t5: query - key": (
        t5._look_up,
        "sum_over_axes(term, axes, table, relative)",
        "sum_over_axes(term, axes, table, -relative)",
        T5,
    ),
    "yarn: exponent twice as large": (scaling.pair_index, "-0.5 * by_axis", "-1.0 * by_axis", YARN),
    "yarn: pairs counted from the slow end": (scaling.pair_index, "-0.5 * by_axis", "0.5 * by_axis", YARN),
    "yarn: ramp upside down": (
        yarn.extend_yarn,
        "keep = 1.0 - _ramp_by_pair",
        "keep = _ramp_by_pair",
        YARN,
    ),
    "yarn: low and high swapped": (yarn.extend_yarn, "in (beta_fast, beta_slow))", "in (beta_slow, beta_fast))", YARN),
    "yarn: rounded inwards": (yarn._ramp_by_pair, "xp.floor(low), xp.ceil(high)", "xp.ceil(low), xp.floor(high)", YARN),
    "yarn: truncated the other way round": (yarn._ramp_by_pair, "if truncate:", "if not truncate:", YARN),
    "yarn: the last pair for the last channel": (
        yarn._ramp_by_pair,
        "by_axis(rotary.rotary_dim) - 1)",
        "by_axis(rotary.rotary_dim) // 2 - 1)",
        YARN,
    ),
    "yarn: an end below zero": (yarn._ramp_by_pair, "xp.clip(end, 0,", "xp.clip(end, -rotary.rotary_dim,", YARN),
    "yarn: turns in radians": (yarn._yarn_pair, "(math.tau * turns)", "turns", YARN),
    "yarn: logarithm of the base halved": (
        yarn._yarn_pair,
        "2.0 * log_base(rotary)",
        "log_base(rotary)",
        YARN,
    ),
    "yarn: pairs for channels": (
        yarn._yarn_pair,
        "by_axis(rotary.rotary_dim) * xp.log",
        "by_axis(rotary.rotary_dim) // 2 * xp.log",
        YARN,
    ),
    "yarn: the paper's ramp between other turns": (
        yarn.extend_yarn,
        "trained, beta_slow, beta_fast)",
        "trained, 1.0, beta_fast)",
        YARN,
    ),
    "yarn: the paper's ramp of extended pairs": (
        scaling.ramp_by_turns,
        "unextended(frequencies, rotary)",
        "frequencies",
        YARN,
    ),
    "yarn: divided twice": (yarn.extend_yarn, "keep, resolved)", "keep, resolved**2)", YARN),
    "yarn: attention twice as sharp": (yarn.extend_yarn, "0.1 * weight", "0.2 * weight", YARN),
    "yarn: logarithm of the factor to another base": (scaling.log_factor, "xp.log(", "xp.log2(", YARN),
    "yarn: square root of the attention factor": (
        yarn.extend_yarn,
        "attention_factor = above / below",
        "attention_factor = (above / below) ** 0.5",
        YARN,
    ),
    "yarn: mscales swapped": (
        yarn.extend_yarn,
        "above, below = (mscale, mscale_all_dim)",
        "above, below = (mscale_all_dim, mscale)",
        YARN,
    ),
    "yarn: pairs of what was extended already": (
        scaling.unextended,
        "frequencies if rotary.base_frequencies is None else rotary.base_frequencies",
        "frequencies",
        YARN,
    ),
    "yarn: channels that do not turn sharpened": (scaling.by_channel, "count > 0", "count >= 0", YARN),
    "ntk: exponent over d": (scaling.powered, "max(dim - 2, 1)", "dim", EXTENDED),
    "ntk: fast pairs slowed": (scaling.powered, "-2.0 * index", "2.0 * index - rotary.rotary_dim", EXTENDED),
    "dynamic ntk: without the one that is taken off": (
        ntk.extend_dynamic_ntk,
        "speed * (grown - 1.0) + 1.0",
        "speed * grown",
        EXTENDED,
    ),
    "longrope: long factors at the trained length": (
        longrope.extend_longrope,
        "size > limit",
        "size >= limit",
        EXTENDED,
    ),
    "longrope: attention factor unrooted": (longrope.extend_longrope, "** 0.5", "** 1.0", EXTENDED),
    "llama3: wavelengths for turns": (scaling.ramp_by_turns, "/ math.tau", "", EXTENDED),
    "llama3: blended the other way": (
        llama3.extend_llama3,
        "(frequencies, keep,",
        "(frequencies, 1 - keep,",
        EXTENDED,
    ),
    "riflex: a whole turn": (riflex.extend_riflex, "TURNS * math.tau", "math.tau", RIFLEX),
    "riflex: from the first repetition on": (riflex.extend_riflex, "length > repeats", "length >= repeats", RIFLEX),
    "riflex: the shortest of all periods": (
        riflex._shortest_above,
        "periods > trained,",
        "periods > 0,",
        RIFLEX,
    ),
    "soft clip: one pair too far": (clips.extend_soft_clip, "(count - pairs)", "(count - pairs + 1)", PAIRWISE),
    "hard clip: radians for turns": (clips.extend_hard_clip, "trained < math.tau", "trained < 1.0", PAIRWISE),
    "resonance: rounded down": (resonance.extend_resonance, "xp.round", "xp.floor", PAIRWISE),
    "by step: the wrong way round": (by_step._between, "at < limit", "at >= limit", STEPS),
    "by step: a mean for a geometric mean": (
        by_step._between,
        "first * ratio**at",
        "(1 - at) * first + at * second",
        STEPS,
    ),
    "by step: a stopped pair turns the other way": (by_step._between, "at > 1.0, 1.0, at", "at > 9.0, 1.0, at", STEPS),
    "own: a length where nothing varies": (own.extend_by_function, "if not varies:", "if varies:", OWN),
    "llama4: tokens are counted whatever the offset": (
        temperature.llama4_temperature,
        "_counted(positions) + float(offset)",
        "_counted(positions) + 1.0",
        OFFSET,
    ),
    "log_n on a grid: the longest side": (temperature._scale_by_grid, "jnp.sum(jnp.log", "jnp.max(jnp.log", LOG_N),
    "log_n on a grid: smaller grids, too": (temperature._scale_by_grid, "jnp.maximum(ratio, 1.0)", "ratio", LOG_N),
    "cpb: query - key": (cpb._coordinates, "jnp.sign(relative)", "-jnp.sign(relative)", CPB),
    "cpb: the side for the span": (cpb._coordinates, "max(side - 1, 1)", "side", CPB),
    "cpb: natural logarithm": (cpb._coordinates, "np.float32(1 / np.log(8.0))", "1.0", CPB),
    "cpb: 8 too much": (cpb._evaluated, "BOUND * jnp", "BOUND + BOUND * jnp", CPB),
    "cpb: sigmoid of twice the score": (cpb._evaluated, "0.5 * score", "score", CPB),
    "cpb: hidden bias forgotten": (cpb._evaluated, '+ shared["b"]', "", CPB),
    "cpb: the unit of the current grid": (cpb.cpb, "table_offsets(grid)), sides", "table_offsets(grid)), grid", CPB),
    "cpb: the table's axes swapped": (offset_table.look_up, "table.shape[:0:-1]", "table.shape[:-1]", CPB),
    "cpb: the table read from its corner": (offset_table.look_up, "reach) + reach", "reach)", CPB),
    "cpb: the table read beyond its border": (offset_table.within_table, "jnp.all(", "jnp.any(", CPB),
    "fire: query - key": (fire._bias, '(-params["e"], params["e"])', '(params["e"], -params["e"])', FIRE),
    "fire: a direction at no distance": (fire._bias, "after, value)", "after, before)", FIRE),
    "fire: no direction": (fire._bias, "b + turn", "b", FIRE),
    "lookhere: query - key": (lookhere._inside, "parts[0]) >= 0", "parts[0]) <= 0", LOOKHERE),
    "lookhere: open cones": (lookhere._inside, "parts[0]) >= 0", "parts[0]) > 0", LOOKHERE),
    "lookhere: one wall of a cone": (lookhere._term, "normals[1:]", "normals[2:]", LOOKHERE),
    "lookhere: outside not hidden": (lookhere._term, "-jnp.inf", "0.0", LOOKHERE),
    "lookhere: families swapped": (lookhere._families, "[triangles, corners, halves]", "[halves, corners]", LOOKHERE),
    "lookhere: slopes halved, not quartered": (lookhere._head_slopes, "0.25 **", "0.5 **", LOOKHERE),
    "lookhere: depth upside down": (lookhere.lookhere_slopes, "return (1.5 - depth)", "return (0.5 + depth)", LOOKHERE),
    "lookhere: layers upside down": (lookhere.lookhere, "1.5, 0.5, layers", "0.5, 1.5, layers", HIDDEN),
    "lookhere: shown again by a soft cap": (
        masks.keep_hidden,
        "if options.hides else capped",
        "if False else capped",
        HIDDEN,
    ),
    "lookhere: not said to hide": (hooks.bound_hooks, "hides=encoding.hides", "hides=False", HIDDEN),
    "pi: the bias of unplaced keys subtracted": (interpolation.log_of_tokens, "-jnp.sum(", "jnp.sum(", SHARES),
    "pi: the ratio of one axis": (interpolation.log_of_tokens, "jnp.sum(", "jnp.max(", SHARES),
    "pi: another base of the logarithm": (interpolation.log_of_tokens, "jnp.log(", "jnp.log2(", SHARES),
    "pi: the bias on placed keys": (
        operands._unplaced_bias,
        "0.0, numbers[:, None])",
        "numbers[:, None], 0.0)",
        SHARES,
    ),
    "pi: the bias for placed queries alone": (
        reference.tile_logits,
        "else logits + key_bias",
        "else logits + jnp.where(q_tokens.has_position[:, None], key_bias, 0.0)",
        SHARES,
    ),
    "pi: the bias under the cap": (
        reference.tile_logits,
        "if pair_arrays.bias is not None:",
        "logits, key_bias = (logits if key_bias is None else logits + key_bias), None\n"
        "    if pair_arrays.bias is not None:",
        COUNTS,
    ),
    "relative_table: query - key": (
        relative_table.relative_table_bias,
        "relative.reshape(-1, axes)",
        "-relative.reshape(-1, axes)",
        TABLE,
    ),
    "relative_table: wraps around": (
        offset_table.look_up,
        "jnp.clip(relative, -reach, reach)",
        "(relative + reach) % (2 * reach + 1) - reach",
        TABLE,
    ),
    "relative_table: axes swapped": (offset_table.look_up, "table.shape[:0:-1]", "table.shape[:-1]", TABLE),
    "relative_table: another kernel": (relative_table.relative_table, "method=method", 'method="bilinear"', TABLE),
    "distances: of the least int32": (relative.difference, "-one", "zero", DISTANCES),
    "distances: they wrap": (relative.difference, "jnp.minimum(k, zero) + largest", "largest", DISTANCES),
    "distances: halves of another size": (
        relative.float_differences,
        "65536.0 * (k_high[None]",
        "32768.0 * (k_high[None]",
        DISTANCES,
    ),
    "shaw: sides swapped": (shaw._both_sides, "for side in clip", "for side in clip[::-1]", CLIPS),
    "padding: keys hidden from one query": (operands.clear_unused, "(-1, -2, -2)", "(-1, -1, -1)", PADDING),
    "order: blocks of one token": (order.order_of, "// run.size * run.size", "", ORDER),
    "order: blocks counted, not tokens": (order.order_of, "// run.size * run.size", "// run.size", ORDER),
    "order: no run after another": (order.order_of, "starts + ", "", ORDER),
    "order: texts read both ways": (sequence.positions_of, "part.kind in", "part.kind not in", ORDER),
    "input_positions: keys from the first slot": (
        flax_inputs._count_back,
        "- current.astype",
        "- 0 * current.astype",
        DECODING,
    ),
    "input_positions: any step counts its slots": (
        flax_inputs._count_back,
        "(places >= 0) | ~seen",
        "(places < 0) | (places >= 0) | ~seen",
        DECODING,
    ),
    "input_positions: a step beyond its slot": (flax_inputs._count_back, "<= current)", "<= current + 99)", DECODING),
    "input_positions: the query in the next slot": (
        flax_inputs.sides_of_input,
        "slots - 1 - jnp.argmax",
        "slots - jnp.argmax",
        DECODING,
    ),
    "placement: centered on the other side": (grids.centered, "count - count // 2", "count // 2", PLACEMENT),
    "placement: a reference grid rounded down first": (
        grids.fitted,
        "* reference // count",
        "// count * reference",
        PLACEMENT,
    ),
    "placement: columns before rows": (grids.grid, '"ij"', '"xy"', PLACEMENT),
    "placement: text from the whole side on": (pictures._half, " // 2", "", PLACEMENT),
    "placement: the first sequence is padding": (
        sequence.positions_of,
        "range(1, len(sequences) + 1)",
        "range(len(sequences))",
        PLACEMENT,
    ),
    "placement: a crop from the corner": (videos._crop, "round(Fraction(whole - length, 2))", "0", RULES_OF_2026),
    "placement: the crop to its end": (videos._across, "last * (count - 1), count", "last - 1", RULES_OF_2026),
    "placement: seconds in place of frames": (videos._at_rate, "rate * part.seconds", "part.seconds", RULES_OF_2026),
    "placement: frames all alike": (
        videos.minimax_h3,
        "17 * cycles + np.asarray(SPANS)[rest]",
        "4 * part.frames",
        RULES_OF_2026,
    ),
    "placement: both channels on one side": (videos.minimax_h3, "[-number]", "[0]", RULES_OF_2026),
    "placement: columns on the scale of rows": (videos._in_square, "columns / ratio", "columns * ratio", RULES_OF_2026),
    "placement: the first token as long as others": (videos._causal_times, "+ 1 - stride", "", RULES_OF_2026),
    "placement: patches in raster order": (vision._in_blocks, "cells.swapaxes(1, 2)", "cells", RULES_OF_2026),
    "placement: features of pictures in their own steps": (
        pictures._stretched,
        "* (side - 1) // max(count - 1, 1)",
        "",
        RULES_OF_2026,
    ),
    "placement: sounds are texts": (
        layouts.side_by_side,
        'for part in parts if part.kind == kind) for kind in ("text", "sound")',
        'for part in parts if not part.is_picture) for kind in ("text", "sound")',
        RULES_OF_2026,
    ),
    "placement: generation where a word would be": (
        sequence.next_position,
        "placed(rule, parts)",
        "placed(rule, parts)[-1:]",
        [functools.partial(test_placement.test_generation_goes_on_after_the_last_of_all_positions, 40, 3, 41)],
    ),
    "grid: xy is ij": (positions.grid_positions, "positions[:, ::-1]", "positions", GRIDS),
    "grid: the first axis is fastest": (
        positions.grid_positions,
        "reshape(len(grid), -1).T",
        "T.reshape(-1, len(grid))",
        GRIDS,
    ),
    "moving_glyphs: away from a wall that is not there": (moving_glyphs.places, "% 2 - 1", "% 2 - 0.5", MOTION),
    "moving_glyphs: rows at the speed of columns": (
        moving_glyphs.places,
        "velocity[:, None]",
        "velocity[:, None, ::-1]",
        MOTION,
    ),
    "moving_glyphs: through the walls": (moving_glyphs.places, "np.abs(travel % 2 - 1)", "travel % 1", MOTION),
    "loops: anticorrelated": (measures.loops, "> LOOP", "< -LOOP", LOOPS),
    "loops: the frames themselves": (measures.loops, "videos[:, period:]", "videos[:, :-period]", LOOPS),
    "loops: rows in place of frames": (
        measures.loops,
        "videos[:, :-period], videos[:, period:]",
        "videos[:, :, :-1], videos[:, :, 1:]",
        LOOPS,
    ),
    "patches: columns before rows": (
        patches.patchify,
        "grid_positions(grid)",
        "grid_positions(grid)[:, ::-1]",
        PATCHES,
    ),
    "patches: padding is seen": (patches.patchify, "np.arange(length) <", "0 * np.arange(length) <", BATCH),
    "patches: a budget that is a row short": (
        patches.patchify,
        "if count > length",
        "if count - grid[-1] > length",
        PATCHES,
    ),
    "patches: cut by columns": (patches._cut, "*axes[1::2]", "*axes[1::2][::-1]", PATCHES),
    "patches: put together by columns": (patches.unpatchify, "reshape(*grid,", "reshape(*grid[::-1],", PATCHES),
    "patches: a patch put together by columns": (
        patches.unpatchify,
        "for offset in (0, len(grid))",
        "for offset in (len(grid), 0)",
        PATCHES,
    ),
    "sizes: the grid of another image": (
        by_example.attend_at_extents,
        "operands = (extent, keys), q,",
        "operands = (extent[::-1], keys), q,",
        SIZES["relative_table"],
    ),
    "sizes: the factor of the first image": (
        by_example.rotate_by_example,
        "jax.vmap(rotated)(extent,",
        "jax.vmap(rotated)(0 * extent + extent[:1],",
        SIZES["rope_axial(extend='ntk')"],
    ),
    "sizes: an input at the grid of another image": (
        vit.ViT._embed,
        "jax.vmap(embed)(extent,",
        "jax.vmap(embed)(extent[::-1],",
        BATCH_OF_TABLES,
    ),
    "sizes: checked against the first image": (
        positions.check_within,
        "most[:, None] if by_image",
        "most[:1, None] if by_image",
        OF_EACH_IMAGE,
    ),
    "sizes: padding attends": (vit.ViT._last_states, "segment_ids=segments", "segment_ids=None", BATCH),
    "sizes: columns first": (
        interpolation._within,
        "jnp.asarray(extent, jnp.int32)",
        "jnp.asarray(extent, jnp.int32)[::-1]",
        SIZES["learned(extend='pi')"],
    ),
    "sizes: a smaller grid is not stretched": (
        interpolation._within,
        "(trained, factors) if stretch",
        "(trained, factors) if False",
        SIZES["relative_table(extend='pi(stretch=True)')"],
    ),
    "sizes: samples half a patch off": (
        resize._traced_weights,
        "(old / new) - 0.5",
        "(old / new)",
        SAMPLES["bicubic", False],
    ),
    "sizes: shrunk tables are not filtered": (
        resize._traced_weights,
        "jnp.maximum(old / new, 1.0)",
        "1.0",
        SAMPLES["bilinear", True],
    ),
    "sizes: corners between the corners": (
        resize._traced_weights,
        "jnp.maximum(new - 1, 1)",
        "new",
        SAMPLES["align_corners", False],
    ),
    "sizes: rows counted from the corner": (resize._traced_weights, "(rows + 0.5)", "rows", SIZES["learned"]),
    "sizes: the first row between two": (
        resize._row_weights,
        "points - first",
        "0.0 * points",
        SIZES["learned(extend='pi')"],
    ),
    "sizes: a cell per patch": (relative_table.relative_table, "2.0 * jnp", "1.0 * jnp", SIZES["relative_table"]),
    "sizes: the middle of another table": (
        offset_table.sample_offsets,
        "-reach, reach) + reach",
        "-reach, reach) + reach[::-1]",
        SIZES["relative_table"],
    ),
    "sizes: smaller grids are stretched": (
        interpolation._within,
        "jnp.minimum(1.0, factors)",
        "factors",
        SIZES["learned(extend='pi')"],
    ),
    "sizes: one factor for all axes": (
        scaling.by_axis,
        "value[:, None]",
        "value[:1, None]",
        SIZES["rope_axial(extend='ntk')"],
    ),
    "sizes: the area for the diagonal": (
        slopes._size,
        "jnp.sqrt(jnp.sum(",
        "jnp.sqrt(jnp.prod(",
        SIZES["alibi(extend='slopes')"],
    ),
    "sizes: a sum of sides": (rope._tokens, "jnp.prod(extent)", "jnp.sum(extent)", SIZES["rope"]),
    "sizes: padding in the mean": (vit.ViT._pool, "where=counted", "where=None", BATCH),
    "sizes: a prefix of its own": (vit.ViT._with_prefix, "segments[:, :1]", "0 * segments[:, :1]", BATCH),
    "pairs: no gradient of k through the hook": (
        tpu_kernels.key_gradients,
        "total + hook_sums[0][...] if hook_sums else total",
        "total",
        TPU_PAIRS,
    ),
    "pairs: gradients of parameters from one block": (
        tpu_kernels.query_gradients,
        "ref[0, 0] += gradient",
        "ref[0, 0] = gradient",
        TPU_PAIRS,
    ),
    "pairs: a bias of tokens without a position": (
        tpu_tile.tile_logits,
        "logits + placed_only(plan, refs, bias)",
        "logits + bias",
        TPU_PAIRS,
    ),
    "pairs: gradients of tokens without a position": (
        tpu_kernels.key_gradients,
        '"key_gradients", placed_only(plan, refs, d_logits)',
        '"key_gradients", d_logits',
        TPU_PAIRS,
    ),
    "pairs: the gradient of q through the hook is scaled": (
        tpu_kernels.query_gradients,
        "total + more[0][...]",
        "total + plan.options.scale * more[0][...]",
        TPU_PAIRS,
    ),
    "pairs: positions of the keys for those of the queries": (
        tpu_tile._positions,
        'refs["rows"][0, axes[0] : axes[-1] + 1, :], columns',
        "columns.T, columns",
        TPU_PAIRS,
    ),
    "pairs: numbers that vary with the head are those of the first": (
        tpu_pairs.TilePairs.operands,
        "(numbers), {}",
        "([x[:1] + 0 * x for x in numbers]), {}",
        TPU_PAIRS,
    ),
    "values of pairs: weights that dropout drops": (
        tpu_kernels.forward,
        '"values", drop(plan, refs, weights)',
        '"values", weights',
        VALUES,
    ),
    "values of pairs: gradients of weights of tokens without a position": (
        tpu_kernels._score_gradients,
        'placed_only(plan, refs, run_values(plan, refs, "weight_gradients", weights)[0])',
        'run_values(plan, refs, "weight_gradients", weights)[0]',
        VALUES,
    ),
    "values of pairs: weights of tokens without a position": (
        tpu_tile.run_values,
        "placed_only(plan, refs, weights)",
        "weights",
        VALUES,
    ),
    "values of pairs: gradients of the table by weights that dropout drops": (
        tpu_kernels.query_gradients,
        '"number_gradients", drop(plan, refs, weights)',
        '"number_gradients", weights',
        VALUES,
    ),
    "pairs: a rule of derivatives is lost": (
        programs.enter,
        "return inner if calls == [NAME] else None",
        "return inner",
        RULES,
    ),
    "sinusoidal: cosine first": (sinusoidal.sinusoidal_embedding, "[sin, cos]", "[cos, sin]", SINUSOIDAL),
    "vectors: a prompt pooled": (pooling.pooled, "numbers > left_out[:, None]", "numbers > 0", VECTORS),
    "vectors: padding pooled": (pooling.pooled, "(mask > 0)", "(mask >= 0)", VECTORS),
    "vectors: weights from zero": (pooling.pooled, "numbers.astype", "(numbers - 1).astype", VECTORS),
    "vectors: weights forgotten": (pooling._weighted, "selection * weights", "selection", VECTORS),
    "vectors: largest of padding": (pooling._largest, "-jnp.inf", "0.0", VECTORS),
    "vectors: the root forgotten": (pooling._mean, "** power", "", VECTORS),
    "vectors: the first of all": (
        pooling._first,
        "jnp.argmax(selection, axis=1)",
        "0 * jnp.argmax(selection, axis=1)",
        VECTORS,
    ),
    "vectors: the last slot": (pooling._last, "selection * weights", "weights + 0 * selection", VECTORS),
    "heads: the last slot": (heads.head_logits, "last[:, None, None]", "0 * last[:, None, None] + 6", HEADS),
    "heads: the mean for the first": (heads.head_logits, 'head.pool == "first"', 'head.pool == "none"', HEADS),
    "heads: epsilon forgotten": (heads.head_logits, "+ values.epsilon", "", HEADS),
    "heads: the norm's shift forgotten": (
        heads.head_logits,
        "x * values.scale + values.shift",
        "x * values.scale",
        HEADS,
    ),
    "answers: ends before begins": (predictions.best_answer, "np.triu(pairs) -", "pairs -", ANSWERS),
    "answers: too long": (predictions.best_answer, "- np.triu(pairs, LONGEST_ANSWER)", "", ANSWERS),
    "answers: in the question": (predictions.best_answer, "number == 1", "number is not None", ANSWERS),
    "batches: the last row lost": (text_batches.batches, "len(order), batch", "len(order) - 1, batch", ROWS),
    "batches: a device without a row": (
        text_batches.row_count,
        "-(-rows // multiple)",
        "rows // multiple or 1",
        [test_pooling.test_rows_fill_the_devices],
    ),
    "batches: longer than the longest": (
        text_batches.padded_length,
        "max(most, length)",
        "1 << 20",
        [test_pooling.test_lengths_are_few_and_waste_at_most_a_third],
    ),
}


def original(function: Callable) -> FunctionType:
    """Return the function beneath compilation, custom derivatives and runtime type checks."""
    return inspect.unwrap(function)


def mutated(function: FunctionType, old: str, new: str) -> CodeType:
    """Return the code of the function with one expression replaced."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} must hold {old!r} once, holds it {source.count(old)} times"
    lines = source.replace(old, new).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    space: dict[str, object] = dict(function.__globals__)
    exec(compile("\n".join(lines[start:]), "<mutant>", "exec", dont_inherit=True), space)
    return space[function.__name__].__code__


def forget() -> None:
    """Drop everything that was built or compiled from the code as it was."""
    jax.clear_caches()
    factory._make.cache_clear()


@contextmanager
def mutant(function: Callable, old: str, new: str) -> Iterator[None]:
    """Put the mutant in the function's place, and the function back."""
    inner = original(function)
    code = inner.__code__
    try:
        inner.__code__ = mutated(inner, old, new)
        forget()
        yield
    finally:
        inner.__code__ = code
        forget()


def fails(check: Callable[[], None]) -> bool:
    """Run a check and say whether it fails."""
    try:
        check()
    except (AssertionError, pytest.fail.Exception):  # the latter where a refusal is missing
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name):
    function, old, new, checks = MUTANTS[name]
    with mutant(function, old, new):
        caught = any(fails(check) for check in checks)
    assert caught, f"no check noticed that {new!r} stood for {old!r}"


@pytest.mark.parametrize("check", OWN)
def test_the_checks_of_this_file_hold_unbroken(check):
    check()
