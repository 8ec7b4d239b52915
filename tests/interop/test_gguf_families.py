"""GGUF files of every family: config and tensors are those of the Hugging Face folder; files in several parts."""

import re
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest

from pejax.interop import source_from_config
from pejax.interop.architectures import ARCHITECTURES as FOLDERS
from pejax.interop.command import main
from pejax.interop.gguf_architectures import ARCHITECTURES
from pejax.interop.gguf_file import GgufFile
from pejax.interop.gguf_keys import Keys
from pejax.interop.gguf_parts import part_paths
from pejax.interop.gguf_splits import SPLITS
from pejax.interop.gguf_tensors import neighbors
from pejax.interop.gguf_tokenizer import KINDS
from pejax.interop.source_files import open_source
from tests.support.gguf_cases import HEADLESS, QUICK, SLOW, config_of
from tests.support.gguf_files import FAMILIES, drawn_tensors, write_gguf
from tests.support.gguf_files import neighbors as rows
from tests.support.hub_folders import CONFIGS, LONGROPE


def same_tensors(read, values):
    """Check that the values are these, up to the rounding of 1 + w where norms are stored so."""
    for name, value in values.items():
        np.testing.assert_allclose(read(name, ()), value, rtol=0, atol=3e-7, err_msg=name)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_file_is_the_folder_that_it_was_made_from(name, tmp_path):
    config = config_of(name)
    values = drawn_tensors(config)
    source, read = open_source(write_gguf(tmp_path / "a.gguf", config, values=values))
    assert source.config == source_from_config(config).config
    assert {*source.tensors} == {*values}
    same_tensors(read, values)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in HEADLESS])
def test_encoders_have_states_alone(name, tmp_path):
    config = {**config_of(name), "vocab_size": 80}
    of_head = ("cls.", "head.", "decoder.", "lm_head.")
    values = {key: value for key, value in drawn_tensors(config).items() if not key.startswith(of_head)}
    source, read = open_source(write_gguf(tmp_path / "a.gguf", config, values=values))
    assert source.config.head is None
    assert source.config.layers == source_from_config(config).config.layers
    same_tensors(read, values)


def test_every_architecture_is_tried():
    names = {config_of(name)["model_type"] for name in ("llama, biases", *QUICK, *SLOW, *HEADLESS)}
    tried = {FAMILIES.get(name, name) for name in names}
    read = {name for name, entry in ARCHITECTURES.items() if entry.model_type in FOLDERS}
    assert read - tried <= {"qwen2", "mistral3", "gemma-embedding"}  # tried below, and with the tensors of Gemma 3


def test_the_page_names_all_that_is_read():
    page = (Path(__file__).parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")
    assert [name for name in (*ARCHITECTURES, *SPLITS, *KINDS) if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_factors_of_longrope_are_read(tmp_path):
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.5], "long_factor": [1.5, 2.0, 4.0, 8.0]}
    config = {**CONFIGS["phi3, longrope"], "rope_scaling": {**LONGROPE, **factors}}
    keys = {"phi3__rope__scaling__original_context_length": 16, "phi3__rope__scaling__type": None}
    more = {
        f"rope_factors_{kind}.weight": np.array(factors[f"{kind}_factor"], np.float32) for kind in ("long", "short")
    }
    made = lambda **extra: write_gguf(
        tmp_path / "a.gguf", config, values=drawn_tensors(config), more=more, **keys, **extra
    )
    expected = source_from_config(config).config.layers[0].attention.pe.extend
    pe = lambda path: open_source(path)[0].config.layers[0].attention.pe
    assert pe(made()).extend == expected
    assert dict(pe(made(phi3__rope__scaling__attn_factor=1.5)).extend.terms[0].options)["attention_factor"] == 1.5
    more.pop("rope_factors_short.weight")
    with pytest.raises(ValueError, match=r"must hold the tensor rope_factors_short\.weight, got none"):
        open_source(made())


@pytest.mark.slow
def test_queries_keys_and_values_may_be_one_tensor(tmp_path):
    config = {**CONFIGS["llama"], "attention_bias": True}
    values = drawn_tensors(config)
    fused = lambda leaf: {
        f"blk.{n}.attn_qkv.{leaf}": np.concatenate([
            turned(values[f"model.layers.{n}.self_attn.{letter}_proj.{leaf}"], heads)
            for letter, heads, turned in (("q", 4, rows), ("k", 2, rows), ("v", 2, lambda rows, _: rows))
        ])
        for n in range(2)
    }  # fmt: skip
    kept = {name: value for name, value in values.items() if not re.search(r"\.[qkv]_proj\.", name)}
    path = write_gguf(tmp_path / "a.gguf", config, values=kept, more={**fused("weight"), **fused("bias")})
    source, read = open_source(path)
    assert source.config == source_from_config(config).config
    same_tensors(read, values)


def test_tensors_of_another_number_of_rows(tmp_path):
    made = lambda name, shape, config: write_gguf(
        tmp_path / "a.gguf", CONFIGS[config], values={}, more={"token_embd.weight": np.ones((97, 32), np.float32),
                                                               name: np.ones(shape, np.float32)},
    )  # fmt: skip
    refused(made("blk.0.attn_qkv.weight", (63, 32), "llama"), "must have the rows of 8 heads of 8 channels, got 63")
    refused(made("blk.0.ffn_up_exps.weight", (3, 48, 32), "mixtral"), "must have 4 experts on its first axis, got the")
    refused(made("blk.0.ffn_down_exps.weight", (4, 48), "gpt_oss"), "must have 3 axes, got (4, 48)")
    refused(made("blk.0.ffn_up_exps.bias", (4, 48), "gpt_oss"), "must hold blk.0.ffn_gate_exps.bias of the shape")


@pytest.mark.slow
def test_experts_of_four_bits(tmp_path):
    kind = gguf.GGMLQuantizationType.MXFP4
    config = {**CONFIGS["gpt_oss"], "intermediate_size": 64, "head_dim": 16}
    values = drawn_tensors(config)
    source, read = open_source(write_gguf(tmp_path / "a.gguf", config, values=values, kind=kind))
    name = "model.layers.1.mlp.experts.gate_up_proj"
    rounded = lambda value: gguf.dequantize(gguf.quantize(np.ascontiguousarray(value.swapaxes(1, 2)), kind), kind)
    expected = np.empty_like(values[name])
    expected[..., ::2], expected[..., 1::2] = (
        rounded(values[name][..., start::2]).swapaxes(1, 2) for start in range(2)
    )
    np.testing.assert_array_equal(read(name, ()), expected)
    assert (source.tensors[name].dtype, source.tensors[name].kind) == ("F32", "MXFP4")


@pytest.mark.slow
def test_a_mistral_small_is_a_mistral(tmp_path):
    config = {**CONFIGS["mistral"], "sliding_window": None}
    values = drawn_tensors(config)
    source, read = open_source(write_gguf(tmp_path / "a.gguf", config, values=values, family="mistral3"))
    assert source.config == source_from_config(config).config
    same_tensors(read, values)


@pytest.mark.slow
def test_norms_in_half_precision_keep_their_offsets_from_one(tmp_path):
    values = drawn_tensors(config_of("gemma2"))
    norm = (1 + values.pop("model.norm.weight")).astype(np.float16)
    path = write_gguf(tmp_path / "a.gguf", config_of("gemma2"), values=values, more={"output_norm.weight": norm})
    source, read = open_source(path)
    assert source.tensors["model.norm.weight"].dtype == "F32"
    np.testing.assert_array_equal(read("model.norm.weight", ()), norm.astype(np.float32) - 1)


@pytest.mark.slow
def test_rotated_channels_are_counted_exactly(tmp_path):
    config = {**CONFIGS["glm4"], "head_dim": 44}  # int(44 * (30 / 44)) is 29
    path = write_gguf(tmp_path / "a.gguf", config, values=drawn_tensors(config), glm4__rope__dimension_count=30)
    assert dict(open_source(path)[0].config.layers[0].attention.pe.options)["rotary_dim"] == 30


@pytest.mark.slow
def test_norms_before_the_mlp_say_that_branches_are_not_parallel(tmp_path):
    config = CONFIGS["stablelm"]
    path = write_gguf(tmp_path / "a.gguf", config, values=drawn_tensors(config), stablelm__use_parallel_residual=True)
    assert open_source(path)[0].config.layers[0].parallel == ""


def keys(**values):
    return Keys(GgufFile(Path("x"), {"general.architecture": "a", **{f"a.{k}": v for k, v in values.items()}}, {}))


def test_which_layers_have_windows():
    slides = lambda period, **options: keys(**{"block_count": 7, **pattern(period)}).slides(6, **options)
    last, first = [True, True, False] * 2 + [True], [False, True, True] * 2 + [False]
    assert slides(3) == last
    assert slides(3, global_first=True) == first
    assert slides(0) == slides(9) == [True] * 7
    assert slides(1) == [False] * 7
    assert slides(None) == [True] * 5 + [False, True]
    assert slides([1, 0, 0, 1, 0, 0, 0]) == [True, False, False, True, False, False, False]
    with pytest.raises(ValueError, match="a number, or true or false for each of 7 layers, got"):
        slides([True])


def pattern(period):
    return {} if period is None else {"attention.sliding_window_pattern": period}


def test_channels_that_are_neighbors_become_halves():
    rows = np.arange(8)
    attention = source_from_config({**CONFIGS["llama"], "head_dim": 4}).config.layers[0].attention
    np.testing.assert_array_equal(neighbors("kv_heads")(rows, attention), [0, 2, 1, 3, 4, 6, 5, 7])


# Models in several files


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Return the config, the tensors, and a folder with the parts of a model in three files."""
    folder, config = tmp_path_factory.mktemp("parts"), CONFIGS["qwen2"]
    values = drawn_tensors(config)
    third = lambda n: {name: value for row, (name, value) in enumerate(sorted(values.items())) if row % 3 == n}
    for number in range(3):
        keys = {"split__no": number, "split__count": 3, "split__tensors__count": len(values)}
        path = folder / f"a-{number + 1:05}-of-00003.gguf"
        write_gguf(path, config, values=third(number), bare=number > 0, **keys)
    return config, values, folder


def test_a_model_in_several_files(parts):
    config, values, folder = parts
    for path in (folder, folder / "a-00003-of-00003.gguf"):
        source, read = open_source(path)
        assert source.config == source_from_config(config).config
        same_tensors(read, values)
        assert source.origin == folder / "a-00001-of-00003.gguf"  # which has the tokenizer


def test_the_command_counts_the_files(parts, capsys):
    main([str(parts[2])])
    assert ", 3 file(s), F32\n" in capsys.readouterr().out


def refused(path: Path, message: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        open_source(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_parts_that_do_not_fit(parts, tmp_path):
    _, values, folder = parts
    assert part_paths(folder / "a-00002-of-00003.gguf") == sorted(folder.glob("*.gguf"))
    paths = [Path(shutil.copy(path, tmp_path)) for path in sorted(folder.glob("*.gguf"))]
    whole = paths[1].read_bytes()
    paths[1].unlink()
    refused(paths[2], "must hold all 3 parts of the model, got no a-00002-of-00003.gguf")
    paths[1].write_bytes(paths[2].read_bytes())
    refused(paths[0], "must be part 1 of 3, counted from 0, got split.no = 2 and split.count = 3")
    small = {name: value for name, value in values.items() if "norm" in name}
    keys = {"split__no": 1, "split__count": 3, "split__tensors__count": len(values)}
    write_gguf(paths[1], CONFIGS["qwen2"], values=small, bare=True, **keys)
    refused(paths[0], "must hold tensors that no other part has, got ")
    write_gguf(paths[1], CONFIGS["qwen2"], values={}, bare=True, **keys)
    refused(paths[0], f"must have {len(values)} tensors in its 3 parts, got ")
    write_gguf(paths[1], CONFIGS["qwen2"], values={}, **keys, qwen2__block_count=3)
    refused(paths[0], "must be a part of the model in a-00001-of-00003.gguf, got another qwen2.block_count")
    paths[1].write_bytes(whole[:-40])
    refused(paths[0], "a-00002-of-00003.gguf must have a whole GGUF header")
    refused(paths[0].rename(tmp_path / "b.gguf"), "must be named NAME-0000N-of-0000M.gguf")
