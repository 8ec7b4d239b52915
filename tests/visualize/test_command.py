"""`python -m pejax.visualize` as a process: the files it writes, and what it refuses."""

import subprocess
import sys

import pytest
from PIL import Image

from tests.support.cases import slow

SCRIPT = (sys.executable, "-m", "pejax.visualize")


def run(*arguments, expect=0, **options):
    """Run the command and return what it printed and its errors."""
    done = subprocess.run([*SCRIPT, *arguments], capture_output=True, text=True, check=False, **options)
    assert done.returncode == expect, done.stderr
    return done.stdout, done.stderr


def test_it_writes_the_pictures_of_an_encoding_and_names_each_file(tmp_path):
    output, errors = run("alibi", f"--out={tmp_path}", "--only=slopes,bias,bias_curves", "--theme=dark")
    *named, last = output.splitlines()
    assert named == [
        f"[1/3] {tmp_path}/alibi/bias.png",
        f"[2/3] {tmp_path}/alibi/bias_curves.png",
        f"[3/3] {tmp_path}/alibi/slopes.png",
    ]
    assert last.startswith("3 files in ")
    assert not errors
    for line in named:
        with Image.open(line.split(" ", 1)[1]) as image:
            assert min(image.size) > 200
            assert image.getcolors(1) is None  # more than one color


@pytest.mark.slow
def test_it_writes_animations_twice_and_takes_a_spec(tmp_path):
    output, _ = run("rope(base=100)", f"--out={tmp_path}", "--only=rotation_animation,rotation", "--format=svg")
    folder = tmp_path / "rope_base_100"
    names = ["rotation.svg", "rotation_animation.gif", "rotation_animation.html"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert output.count(str(folder)) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["alibo"], "unknown encoding 'alibo'; did you mean 'alibi'? Known: alibi, "),
        (["rope(bas=3)"], "section_order, periodic, extend; got 'bas'; did you mean base?"),
        (["alibi", "--only=slope"], "unknown picture 'slope'; did you mean 'slopes'? Known: "),
        (["none", "--only=bias"], "none has no picture 'bias'; it has "),
        (["alibi", "--theme=gray"], "--theme must be one of light, dark, got 'gray'"),
        (["alibi", "--format=bmp"], "--format must be one of png, svg, pdf, got 'bmp'"),
        (["alibi", "--size=3"], "unrecognized arguments: --size=3"),
        ([], "the following arguments are required: encoding"),
        (["alibi", "--out=/dev/null/x"], "Not a directory: '/dev/null/x'"),
    ],
)
def test_it_refuses_in_one_line_with_status_2(arguments, message, monkeypatch, capsys):
    from pejax._visualize import command

    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    errors = capsys.readouterr().err
    assert end.value.code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert errors.startswith("pejax.visualize: ")


@pytest.mark.slow
def test_an_unknown_name_ends_the_process_with_status_2():
    output, errors = run("alibo", expect=2)
    assert not output
    assert errors.count("\n") == 1


@pytest.mark.parametrize("package", ["matplotlib", slow("plotly")])
def test_without_the_extra_it_says_what_to_install(package):
    hidden = f"import sys; sys.modules[{package!r}] = None; import pejax, pejax.visualize as v\n"
    call = {
        "matplotlib": "v.plot_slopes()",
        "plotly": "d = pejax.Dims(1, 8); v.plot_token_points(pejax.encodings.rope(d), d, frames=1)",
    }[package]
    script = hidden + f"try: {call}\nexcept ImportError as e: print(e)" if ";" not in call else (
        hidden + call.split("; ")[0] + f"\ntry: {call.split('; ')[1]}\nexcept ImportError as e: print(e)"
    )  # fmt: skip
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    expected = f"pejax.visualize needs {package}, which is not installed: pip install matplotlib plotly Pillow"
    assert done.stdout.strip() == expected
