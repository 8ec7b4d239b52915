"""Programs of `benchmarks.hardware` that are made ahead: their names, their sealed file, and what is refused."""

import hashlib
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax._src import cache_key, compilation_cache

from benchmarks.hardware import ahead, measure, program, programs, prove, run, ways
from benchmarks.hardware.ledger import Ledger
from benchmarks.hardware.outcomes import BEFORE, Case
from benchmarks.hardware.pool import Pool, Worker
from benchmarks.hardware.run import QUICK, Settings, Stage, deadline
from tests.support.hardware_cases import AnsweringPool
from tests.support.programs import compilation_options

ROOT = Path(__file__).parents[2]
NAME = f"jit_step-{'0' * 64}-cache"
OPERATION = f"jit_scatter-mul-{'0' * 64}-cache"
FACTS = {
    **{"platform": "gpu", "card": "NVIDIA H200", "capability": "9.0", "memory": 139.0, "problem": "", "torch": ""},
    **{"driver": "580.159.04", "versions": {"jax": "0.11.2", "jaxlib": "0.11.2", "numpy": "2.5.5"}},
}
ABOUT = {"card": "NVIDIA H200", "versions": {"jax": "0.11.2", "jaxlib": "0.11.2"}}


def seal(folder, about=ABOUT, **files):
    """Write a file of programs into a folder; return what `--programs` is given."""
    (folder / "programs").mkdir(parents=True)
    for name, content in (files or {NAME: b"executable"}).items():
        (folder / "programs" / name).write_bytes(content)
    lines = [{"programs": {name.removesuffix("-cache"): False}} for name in files or [NAME]]
    ahead.write(folder, about, lines)
    return f"{folder}:{hashlib.sha256((folder / ahead.FILE).read_bytes()).hexdigest()}"


def test_what_is_sealed_is_what_is_read(tmp_path):
    cache = ahead.unpack(seal(tmp_path / "made"), tmp_path, FACTS)
    assert {path.name: path.read_bytes() for path in cache.iterdir()} == {NAME: b"executable"}
    assert cache.stat().st_mode & 0o777 == 0o700
    assert seal(tmp_path / "again").rpartition(":")[2] == seal(tmp_path / "made2").rpartition(":")[2]


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("digest", "programs must have the SHA-256 000000000000…, got "),
        ("truncated", "programs must have the SHA-256 "),
        ("linked file", "programs must be programs.zip in a folder, not links, got "),
        ("linked folder", "programs must be programs.zip in a folder, not links, got "),
        ("missing", "programs must be programs.zip in a folder, not links, got "),
        ("pipe", "programs must be a file, got "),
        ("no archive", "programs must be a file that --ahead made, got one of 5 bytes"),
        ("of another command", "programs must be a file that --ahead made, got one of "),
        ("of somebody else", "programs must be a folder of your own, got one of user "),
        ("card", "programs must be of the same card, got NVIDIA H100 80GB HBM3, this is NVIDIA H200"),
        ("jaxlib", "programs must be of the same versions, got jax 0.11.2 jaxlib 0.10.2, this is jax 0.11.2 jaxlib 0"),
    ],
)
def test_what_is_not_to_be_run_is_told_in_one_line_and_compiled_there(kind, line, tmp_path, monkeypatch, capsys):
    changes = {"card": {"card": "NVIDIA H100 80GB HBM3"}, "jaxlib": {"versions": {"jax": "0.11.2", "jaxlib": "0.10.2"}}}
    source = seal(tmp_path / "made", {**ABOUT, **changes.get(kind, {})})
    folder, _, digest = source.rpartition(":")
    file = tmp_path / "made" / ahead.FILE
    if kind == "digest":
        source = f"{folder}:{'0' * 64}"
    elif kind in ("no archive", "of another command"):
        file.write_bytes(b"other")
        if kind == "of another command":
            zipfile.ZipFile(file, "w").close()
        source = f"{folder}:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    elif kind == "truncated":
        file.write_bytes(file.read_bytes()[:-1])
    elif kind in ("linked file", "missing", "pipe"):
        file.rename(tmp_path / "elsewhere")
        {"linked file": lambda: file.symlink_to(tmp_path / "elsewhere"), "pipe": lambda: os.mkfifo(file)}.get(
            kind, lambda: None
        )()
    elif kind == "linked folder":
        (tmp_path / "link").symlink_to(folder)
        source = f"{tmp_path / 'link'}:{digest}"
    elif kind == "of somebody else":
        monkeypatch.setattr(ahead.os, "getuid", lambda: 12345)
    settings = Settings(["prove"], 8.0, tmp_path / "out", programs=source)
    assert program.with_programs(settings, tmp_path, FACTS) == settings._replace(programs="")
    printed = capsys.readouterr().out
    assert printed.startswith(f"Programs are compiled here: {line}")
    assert printed.count("\n") == 1
    assert not list(tmp_path.glob("ahead-*"))


def test_an_archive_writes_nothing_but_programs(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    with zipfile.ZipFile(folder / ahead.FILE, "w") as archive:
        archive.writestr(ahead.INDEX, json.dumps(ABOUT))
        for name in (NAME, OPERATION, "../evil", f"../{NAME}", f".{NAME}", f"-{NAME}", "/tmp/evil", "evil.py"):
            archive.writestr(name, b"x")
    digest = hashlib.sha256((folder / ahead.FILE).read_bytes()).hexdigest()
    cache = ahead.unpack(f"{folder}:{digest}", tmp_path, FACTS)
    assert {path.name for path in cache.iterdir()} == {NAME, OPERATION}
    assert {path.name for path in tmp_path.iterdir()} == {"made", cache.name}


def test_what_is_wanted_most_is_in_the_file_where_it_is_small(tmp_path, monkeypatch):
    monkeypatch.setattr(ahead, "LARGEST", 2**16 + 3000)
    names = [f"jit_{letter}-{letter * 64}-cache" for letter in "cab"]
    seal(tmp_path, **dict.fromkeys(names, b"x" * 1000))
    with zipfile.ZipFile(tmp_path / ahead.FILE) as archive:
        assert archive.namelist() == [ahead.INDEX, *names[:2]]
    assert (tmp_path / ahead.FILE).stat().st_size < ahead.LARGEST


@pytest.fixture
def use(monkeypatch):
    """Name programs by their card, until the test ends."""
    listeners, register = [], jax.monitoring.register_event_listener

    def noted(listener):
        listeners.append(listener)
        register(listener)

    monkeypatch.setattr(cache_key, "get", cache_key.get)
    monkeypatch.setattr(jax.monitoring, "register_event_listener", noted)
    monkeypatch.setattr(programs, "ASKED", {})
    yield programs.use
    for listener in listeners:
        jax.monitoring.unregister_event_listener(listener)


@pytest.fixture
def named(monkeypatch, use):
    """Return the names of programs on an H200: `(flags, ...) -> name of a product`."""
    monkeypatch.setattr(programs, "device", lambda: SimpleNamespace(device_kind="NVIDIA H200", platform="gpu"))
    use()
    module = jax.jit(lambda x: x @ x).lower(jnp.ones((3, 3))).compiler_ir()

    def name(flags="", overrides=(), platform="gpu", module=module, machine="a"):
        monkeypatch.setenv("XLA_FLAGS", flags)
        options = SimpleNamespace(env_option_overrides=list(overrides))
        backend = SimpleNamespace(platform=platform, platform_version=machine)
        return compilation_cache.get_cache_key(module, machine, options, backend)

    return name


def test_a_name_tells_the_program_the_card_the_versions_and_the_flags_but_no_machine(named, use, monkeypatch):
    first = named()
    assert named(machine="b") == first
    assert named("--xla_gpu_dump_autotune_results_to=/a --xla_gpu_load_autotune_results_from=/b") == first
    others = {named("--xla_gpu_autotune_level=0"), named(overrides=[("xla_gpu_autotune_level", 4)])}
    others.add(named(module=jax.jit(lambda x: x + x).lower(jnp.ones((3, 3))).compiler_ir()))
    monkeypatch.setattr(programs, "device", lambda: SimpleNamespace(device_kind="NVIDIA H100", platform="gpu"))
    use()
    others.add(named())
    monkeypatch.setattr(programs, "versions", lambda: {"jaxlib": "0.0.1"})
    use()
    others.add(named())
    assert len({first, *others}) == 6


def test_programs_of_the_host_keep_the_name_of_its_machine(named):
    with pytest.raises(AttributeError):  # JAX's own name asks for more of a machine than a test has
        named(platform="cpu")
    jax.monitoring.record_event(programs.HIT)  # such a program was read
    assert programs.asked() == {}


@pytest.mark.parametrize("again", [False, True])
def test_what_was_read_is_told_from_what_was_compiled(again, use, tmp_path):
    options = {"jax_compilation_cache_dir": f"{tmp_path}", "jax_enable_compilation_cache": True}
    least = {"jax_persistent_cache_min_compile_time_secs": 0.0, "jax_persistent_cache_min_entry_size_bytes": -1}
    with compilation_options(**options, **least):
        use()
        for _ in range(1 + again):
            jax.clear_caches()
            operand = jnp.ones(5)
            programs.asked()
            result = programs.compiled(lambda x: x * 3 + 1, operand)(programs.put(operand))
    assert result.tolist() == [4.0] * 5
    assert list(programs.asked().values()) == [again]


def test_measuring_begins_within_a_minute_where_programs_are_made_ahead():
    settings = Settings(["prove", "measure"], 8.0, Path(), programs="made:0")
    assert settings.turns == ["prove", "measure", "prove"]
    assert deadline("prove", settings, 0.0, 10.0) == run.SOON < 60
    assert deadline("measure", settings, 0.0, 50.0) == 480 - run.RESERVE - run.BEHIND
    assert deadline("prove", settings, 0.0, 300.0) == 480 - run.RESERVE
    with_training = settings._replace(stages=["prove", "measure", "train"])
    assert with_training.turns == ["prove", "measure", "train", "prove"]
    assert deadline("measure", with_training, 0.0, 50.0) == 50 + 170
    assert deadline("train", with_training, 0.0, 250.0) == 480 - run.RESERVE - run.BEHIND
    for change in ({"programs": ""}, {"minutes": 0.0}, {"stages": ["measure"]}):
        whole = settings._replace(**change)
        assert whole.turns == whole.stages


def test_what_is_wanted_most_is_proved_first():
    ordered = sorted(prove.cases(rehearse=False), key=prove.worth)
    kinds = dict.fromkeys(case.name.split(" | ")[0] for case in ordered)
    assert tuple(kinds)[: len(prove.WANTED)] == prove.WANTED
    assert {case.name.split(" | ")[1] for case in ordered[:20]} == {"gpu", "cudnn", "mosaic_gpu"}
    assert set(prove.WANTED) < set(prove.KINDS)


@pytest.mark.parametrize("made", [False, True])
def test_what_is_made_ahead_is_timed_before_anything_compiles(made, tmp_path):
    asked = []

    def answer(task, arguments):
        asked.append((task, arguments.get("way", ""), arguments.get("only_compile", False)))
        measured = {"outcome": "measured", "seconds": 0.25, "share": 1.0}
        return measured if task in ("sample", "memory") else {"outcome": "made"}

    ledger = Ledger(tmp_path / "out", {}, lambda line: None)
    settings = Settings(["measure"], 8.0, tmp_path / "out", programs="made" if made else "")
    measure.run(run.Run(settings, AnsweringPool(3, answer), ledger, tmp_path, []), time.monotonic() + 1000)
    ledger.close()
    compiling = [number for number, (_, _, only) in enumerate(asked) if only]
    ready = [number for number, (task, way, _) in enumerate(asked) if task == "sample" and way in ways.OURS]
    assert (max(ready) < min(compiling)) == made
    late = {asked[number][1] for number in compiling} if made else {ways.STEP}
    assert ways.STEP in late
    assert not late & set(ways.OURS)


def test_all_is_made_ahead_but_what_is_tuned_or_of_torch(tmp_path):
    for rehearse in (False, True):
        settings = Settings([], 8.0, tmp_path, rehearse)
        cases = [case for stage in ("prove", "measure") for case in program.STAGES[stage].ahead(settings)]
        assert all(case.arguments["only_compile"] for case in cases)
        assert len({(case.stage, case.name) for case in cases}) == len(cases)
    names = {case.arguments["way"] for case in measure.ahead(Settings([], 8.0, tmp_path))}
    assert {ways.UNTUNED, ways.FUSED, ways.COPY, *ways.OURS} <= names
    assert ways.STEP not in names
    assert not any(map(measure.is_torch, names))
    (tmp_path / run.AUTOTUNED).touch()
    assert ways.STEP in {case.arguments["way"] for case in measure.ahead(Settings([], 8.0, tmp_path))}


def test_what_was_tuned_is_kept_beside_the_results(tmp_path, monkeypatch):
    """Each process writes all that it knows; XLA would refuse a file with two choices for one product."""
    settings = Settings(["measure"], 8.0, tmp_path / "out")
    settings.out.mkdir()
    run.keep_tuned(settings, tmp_path)
    assert not (settings.out / run.AUTOTUNED).exists()
    for number, text in enumerate(["a", "abc", "ab"]):
        (tmp_path / f"tuned-{os.getpid()}-{number}.txt").write_text(text)
    run.keep_tuned(settings, tmp_path)
    assert (settings.out / run.AUTOTUNED).read_text() == "abc"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    flags = run.environment(settings, tmp_path, 1, "measure", "/new.txt")["XLA_FLAGS"].split()
    assert flags[1:] == [programs.WITH_PATHS[0] + "/new.txt", f"{programs.WITH_PATHS[1]}{settings.out / run.AUTOTUNED}"]


def toy_stages(*names, limit=20.0):
    """Return a stage whose cases compile ahead what `tests.support.hardware_cases` says."""
    cases = [Case("prove", name, f"tests.support.hardware_cases:{name.split()[0]}", {}, limit) for name in names]
    return {"prove": Stage(lambda *_: None, lambda *_: (1.0, ""), lambda _: "", lambda settings: cases)}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return the command that makes programs of toy stages ahead: `(stages, *options) -> status`."""
    monkeypatch.setattr(program, "scratch_folder", lambda: tmp_path)
    monkeypatch.setattr(program, "first_answer", lambda *_: FACTS)
    monkeypatch.setattr(ahead, "missing_compiler", list)
    monkeypatch.setattr(ahead, "make_pool", lambda *_: Pool([Worker(os.environ, tmp_path / "log.txt")]))

    def run(stages, *options):
        return program.main([f"--ahead={tmp_path / 'made'}", "--stages=prove", *options], stages)

    return run


def test_programs_are_made_once_and_a_second_call_goes_on(command, tmp_path, capsys):
    (tmp_path / "made/programs").mkdir(parents=True)
    (tmp_path / "made/programs" / NAME).write_bytes(b"executable")
    assert command(toy_stages("compile")) == 0
    assert command(toy_stages("compile", "refuse")) == 0
    printed = capsys.readouterr().out
    assert printed.count("prove: compile: made") == 1
    assert "2 cases for NVIDIA H200: 1 made, 1 refused" in printed
    source = printed.split("--programs=")[-1].strip()
    assert [path.name for path in ahead.unpack(source, tmp_path, FACTS).iterdir()] == [NAME]
    assert command(toy_stages("compile", "die")) == 1


def test_a_machine_without_the_compiler_is_told_in_one_line_with_status_2(command, monkeypatch, capsys):
    monkeypatch.setattr(ahead, "missing_compiler", lambda: ["nvidia-cuda-nvcc"])
    assert command(toy_stages("compile")) == 2
    assert capsys.readouterr().err == "error: compiling for a GPU needs nvidia-cuda-nvcc: pip install -e '.[cuda]'\n"


def test_options_of_what_is_made_ahead(capsys):
    settings = program.options(["--ahead"])[0]
    assert (settings.ahead, settings.out, settings.card) == (True, Path("runs/ahead"), "h200")
    assert settings.stages == ["prove", "measure"]
    assert program.options(["--ahead=x", "--card=h100"])[0].card == "h100"
    assert program.options(["--ahead=x", "--rehearse"])[0].card == ""
    assert program.options([f"--programs=a:{'0' * 64}"])[0].programs == f"a:{'0' * 64}"
    with pytest.raises(SystemExit, match="2"):
        program.options(["--ahead", "--stages=sample"])
    assert "--ahead makes the programs of prove, measure, train, got sample" in capsys.readouterr().err
    for wrong in ("a", "a:0", f":{'0' * 64}", f"a:{'g' * 64}"):
        with pytest.raises(SystemExit, match="2"):
            program.options([f"--programs={wrong}"])
        assert "--programs must be DIR:SHA256, as --ahead printed it, got " in capsys.readouterr().err


def test_an_earlier_checkout_is_measured_by_processes_of_its_own(tmp_path):
    """A way with the prefix is theirs, and their end is that of the pool."""
    before = Worker(os.environ, tmp_path / "before.txt")
    own = Pool([Worker(os.environ, tmp_path / "log.txt", None, before)])
    hold = lambda way: own.workers[0].ask("tests.support.hardware_cases:keep", {"way": way}, 20.0)
    try:
        held = [hold(way) for way in ("pejax", "before: pejax", "pejax, half")]
        assert [answer["held"] for answer in held] == [["pejax"], ["before: pejax"], ["pejax", "pejax, half"]]
        assert own.workers[0].ask("tests.support.hardware_cases:die", {}, 20.0)["outcome"] == "crashed"
        assert hold("before: pejax")["process"] == held[1]["process"]
    finally:
        own.end()
    assert before.process is None


def test_a_process_of_an_earlier_checkout_has_its_pejax_and_its_train(tmp_path):
    for package in ("pejax", "train"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"WHICH = 'earlier {package}'")
    script = "import train; from benchmarks.hardware.device import prefer; before = train; "
    script += f"prefer({str(tmp_path)!r}); import pejax, train, benchmarks; print(pejax.WHICH, train.WHICH, before)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert result.stdout.startswith("earlier pejax earlier train <module 'train' from ")
    with pytest.raises(SystemExit, match="2"):
        program.options([f"--before={tmp_path / 'train'}"])


def test_the_ways_of_an_earlier_checkout_take_their_turns_beside_ours():
    column = measure.columns(rehearse=False, before=True)[0]
    ours = [way for way in column.ways if way in ways.OURS]
    earlier = [way.removeprefix(BEFORE) for way in column.ways if way.startswith(BEFORE)]
    assert earlier == ours
    assert [way for way in measure.columns(rehearse=False)[0].ways if way.startswith(BEFORE)] == []
    assert measure.compiles_here(f"{BEFORE}{ways.STEP}")
    assert not measure.compiles_here(f"{BEFORE}{ways.UNTUNED}")


@pytest.mark.parametrize(
    "stages", [pytest.param("measure,train", marks=pytest.mark.slow), pytest.param("prove", marks=pytest.mark.long)]
)
def test_the_rehearsal_of_what_is_made_ahead_compiles_none_of_it_again(stages, tmp_path):
    """The first call makes programs for the CPU, in a folder that is moved; the second one reads every one of them."""
    flags = {**os.environ, "XLA_FLAGS": QUICK}
    call = [sys.executable, "-m", "benchmarks.hardware", "--rehearse", f"--stages={stages}"]
    made = subprocess.run([*call, f"--ahead={tmp_path / 'made'}"], capture_output=True, text=True, cwd=ROOT, env=flags)
    assert made.returncode == 0, made.stdout[-4000:]
    source = made.stdout.split("--programs=")[-1].strip()
    with zipfile.ZipFile(tmp_path / "made" / ahead.FILE) as archive:
        names = {name.removesuffix("-cache") for name in archive.namelist()} - {ahead.INDEX}
    options = [f"--programs={source}", f"--out={tmp_path / 'out'}"]
    result = subprocess.run([*call, *options], capture_output=True, text=True, cwd=ROOT, env=flags)
    assert result.returncode == 0, result.stdout[-4000:]
    assert "0 failed, 0 not done" in result.stdout
    lines = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert names == {name for line in lines for name, read in line.get("programs", {}).items() if read} & names
