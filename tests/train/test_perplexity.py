"""Perplexity at lengths never trained at: tokens read, contexts, and what is made of losses."""

import json
import math
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from tests.support.measured import loss_of, perplexities
from train.data.text.loading import Corpus
from train.data.text.tokenizers import Bytes
from train.devices.mesh import make_mesh
from train.engine.numbers import PERPLEXITY, Number, mean, mean_of, perplexity_of
from train.lm import curves
from train.lm import evaluate as perplexity
from train.lm.config import Config
from train.lm.evaluate import Reader, evaluate, measure_length
from train.lm.results import BEYOND, GAIN, SLIDING, PerplexityResults

QUIET = Console(quiet=True)
TRAINED = 4


class Counting:
    """In place of a language model: the loss of a token is what `rule(tokens before it, their ids, its id)` says."""

    def __init__(self, rule, most: int = 10**9, **settings) -> None:
        self.config = Config(**{"length": TRAINED, "eval_stride": 1, "eval_limit": 0, **settings}).validated()
        self.rule, self.most = rule, most

    def losses(self, params, ids, segment_ids=None, execution=None):
        del segment_ids, execution
        before = jnp.arange(1, ids.shape[1])
        return params * self.rule(before[None], ids[:, :-1], ids[:, 1:]).astype(jnp.float32)

    def refusal(self, length: int) -> str:
        return f"a table of {self.most} for length {length}" if length > self.most else ""


def f32(array):
    return array.astype(jnp.float32)


def count_before(before, context, target):
    del context
    return before + jnp.zeros_like(target)


def name_of_target(before, context, target):
    del before, context
    return target


def corpus_of(*lengths: int) -> Corpus:
    """Return documents in which no token occurs twice: 0, 1, ... and 1000, 1001, ..."""
    documents = tuple(np.arange(1000 * n, 1000 * n + size, dtype=np.int32) for n, size in enumerate(lengths))
    return Corpus(documents, documents, tuple(map(str, range(len(lengths)))), Bytes(), "a note", "")


Numbers = dict[tuple[str, int], Number]


def numbers_of(language, corpus: Corpus, devices: int = 1) -> Numbers:
    """Return the numbers by measure and length."""
    params = jnp.float32(1)
    [results] = evaluate(language, corpus, params, step=7, mesh=make_mesh(devices), console=QUIET)
    assert (results.step, results.trained, results.note) == (7, language.config.length, "a note")
    return {(number.measure, number.at): number for number in results.numbers}


def require(number: Number, loss: float, half: float, count: int) -> None:
    """Require a mean loss, half the width of its interval, and a number of tokens."""
    expected = mean_of(number.measure, number.at, loss, half, count, log=number.log)
    assert (number.value, number.low, number.high) == pytest.approx((expected.value, expected.low, expected.high))
    assert number.count == count


def test_every_token_is_read_once_with_what_stands_before_it_in_its_window():
    lengths = (2, 4, 6, 12)
    numbers = numbers_of(Counting(count_before, eval_lengths=lengths), corpus_of(13, 13))
    named = numbers_of(Counting(name_of_target, eval_lengths=lengths), corpus_of(13))
    for length in lengths:
        require(numbers[PERPLEXITY, length], np.arange(1, length + 1).mean(), 0.0, 24)
        require(named[PERPLEXITY, length], np.arange(1, 13).mean(), math.inf, 12)


def test_beyond_are_the_tokens_with_more_than_the_trained_length_before_them_and_sliding_the_same_ones():
    numbers = numbers_of(Counting(count_before, eval_lengths=(2, 4, 6, 12)), corpus_of(13, 13))
    assert {length for measure, length in numbers if measure != PERPLEXITY} == {6, 12}
    for length, before in ((6, [5, 6, 5, 6]), (12, list(range(5, 13)))):
        require(numbers[BEYOND, length], np.mean(before), 0.0, 2 * len(before))
        require(numbers[SLIDING, length], TRAINED, 0.0, 2 * len(before))
        require(numbers[GAIN, length], TRAINED - np.mean(before), 0.0, 2 * len(before))
    named = numbers_of(Counting(name_of_target, eval_lengths=(6, 12)), corpus_of(13))
    for length, targets in ((6, [5, 6, 11, 12]), (12, list(range(5, 13)))):
        for measure, loss in ((BEYOND, np.mean(targets)), (SLIDING, np.mean(targets)), (GAIN, 0.0)):
            require(named[measure, length], loss, math.inf, len(targets))


def test_a_model_that_needs_the_context_gains_what_it_is_worth():
    """A token costs 3 nats, and 2 less where at least 6 tokens stand before it."""
    needs = lambda before, context, target: jnp.where(before >= 6, 1.0, 3.0) + 0.0 * f32(target)
    numbers = numbers_of(Counting(needs, eval_lengths=(12,)), corpus_of(13, 13))
    assert loss_of(numbers[SLIDING, 12]) == pytest.approx(3.0)
    assert loss_of(numbers[BEYOND, 12]) == pytest.approx((3 + 7 * 1) / 8)
    assert numbers[GAIN, 12].value == pytest.approx(2 * 7 / 8)


def test_the_sliding_context_is_the_last_tokens_before_the_target():
    sum_of_context = lambda before, context, target: 10 * jnp.cumsum(context, axis=1) + target
    number = numbers_of(Counting(sum_of_context, eval_lengths=(12,)), corpus_of(13))[SLIDING, 12]
    expected = [10 * sum(range(target - TRAINED, target)) + target for target in range(5, 13)]
    assert loss_of(number) == pytest.approx(np.mean(expected))


def test_of_the_tokens_beyond_one_in_a_stride_is_compared():
    numbers = numbers_of(Counting(name_of_target, eval_lengths=(6, 12), eval_stride=3), corpus_of(13))
    require(numbers[BEYOND, 12], np.mean([5, 8, 11]), math.inf, 3)
    require(numbers[BEYOND, 6], np.mean([5, 11]), math.inf, 2)
    assert numbers[PERPLEXITY, 12].count == 12


def test_lengths_that_do_not_divide_the_longest_leave_its_last_tokens_out():
    numbers = numbers_of(Counting(name_of_target, eval_lengths=(5, 13)), corpus_of(14))
    require(numbers[PERPLEXITY, 5], np.arange(1, 11).mean(), math.inf, 10)
    for measure in (BEYOND, SLIDING):
        assert loss_of(numbers[measure, 5]) == pytest.approx(np.mean([5, 10]))
    assert numbers[PERPLEXITY, 13].count == 13


def test_no_more_stretches_than_the_limit_are_read():
    for limit, stretches in ((0, 6), (2, 2), (9, 6)):
        numbers = numbers_of(Counting(count_before, eval_lengths=(12,), eval_limit=limit), corpus_of(39, 13, 27))
        assert numbers[PERPLEXITY, 12].count == 12 * stretches


def test_a_length_that_is_refused_says_why_and_the_others_are_measured():
    numbers = numbers_of(Counting(count_before, most=4, eval_lengths=(2, 4, 12)), corpus_of(13))
    for measure in (PERPLEXITY, GAIN):
        assert numbers[measure, 12] == Number(measure=measure, at=12, refused="a table of 4 for length 12")
    assert loss_of(numbers[PERPLEXITY, 4]) == pytest.approx(2.5)


def test_nothing_is_read_with_a_sliding_context_where_nothing_can_be_compared(monkeypatch):
    monkeypatch.setattr(Reader, "last", None)
    for settings in ({"most": 4, "eval_lengths": (4, 12)}, {"eval_lengths": (2, 4)}):
        numbers = numbers_of(Counting(count_before, **settings), corpus_of(13))
        assert loss_of(numbers[PERPLEXITY, 4]) == pytest.approx(2.5)


@pytest.mark.slow
def test_eight_devices_and_batches_with_filling_give_the_same(monkeypatch):
    rule = lambda before, context, target: jnp.sin(f32(before + context * target))
    expected = numbers_of(Counting(rule, eval_lengths=(3, 6, 12)), corpus_of(39, 13, 27))
    eight = numbers_of(Counting(rule, eval_lengths=(3, 6, 12)), corpus_of(39, 13, 27), devices=8)
    monkeypatch.setitem(perplexity.TOKENS_AT_ONCE, "cpu", 21)
    small = numbers_of(Counting(rule, eval_lengths=(3, 6, 12)), corpus_of(39, 13, 27))
    assert expected == eight == small


def test_a_text_without_a_long_document_is_refused():
    with pytest.raises(ValueError, match=r"a held-out document must hold at least length \+ 1 = 13 .* longest of 12"):
        numbers_of(Counting(count_before, eval_lengths=(12,)), corpus_of(12, 9))


def test_measure_aligns_its_two_readings():
    regions = np.arange(26).reshape(2, 13)
    reader = SimpleNamespace(all=lambda windows: 1.0 * windows[..., 1:])
    beyond = np.asarray([4, 7, 10, 11])
    _, full, _, gain = measure_length(reader, regions, 6, 4, beyond, 0.5 + regions[:, beyond + 1])
    assert loss_of(full) == pytest.approx(np.mean([5, 11, 12, 18, 24, 25]))
    require(gain, 0.5, 0.0, 6)


def t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t by summing its density."""
    x = np.linspace(0, 60, 600_001)
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
    density = scale * (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    area = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * (x[1] - x[0]))])
    return float(x[np.searchsorted(area, 0.475)])


@pytest.mark.parametrize("n", [2, 3, 8, 16, 17, 18, 25, 60, 400])
def test_the_interval_is_students_over_the_means_of_stretches(n):
    losses = np.random.default_rng(n).normal(2.0, 0.3, (n, 5))
    number = mean(PERPLEXITY, 8, losses.astype(np.float32))
    means = [sum(row) / 5 for row in losses.tolist()]
    middle = sum(means) / n
    spread = math.sqrt(sum((value - middle) ** 2 for value in means) / (n - 1) / n)
    assert (loss_of(number), number.count) == (pytest.approx(middle, rel=1e-6), 5 * n)
    half = math.log(number.high) - middle
    assert half / spread == pytest.approx(t_quantile(n - 1), abs=0.005)
    assert number.low == pytest.approx(math.exp(middle - half), rel=1e-5)


def test_one_stretch_says_nothing_of_its_spread():
    require(mean(PERPLEXITY, 8, np.full((1, 3), 2.0)), 2.0, math.inf, 3)
    assert perplexity_of(1e4) == math.inf


def results(*numbers: Number, **changes) -> PerplexityResults:
    fields = {"name": "rope", "data": "d", "trained": 4, "step": 3, "extend": "none", "note": "n", "numbers": numbers}
    return PerplexityResults(**{**fields, **changes})


NUMBERS = (
    *perplexities({2: 1.0, 8: 2.0, 16: "too long"}, count=24), mean_of(BEYOND, 8, 2.5, 0.2, 8),
    mean_of(SLIDING, 8, 2.25, 0.2, 8), mean_of(GAIN, 8, -0.25, 0.01, 8, log=False),
    Number(measure=GAIN, at=16, refused="too long"),
)  # fmt: skip


def test_results_come_back_from_their_file(tmp_path):
    evaluation = results(*NUMBERS)
    evaluation.save(tmp_path)
    assert PerplexityResults.load(tmp_path / "results.json") == evaluation
    stored = json.loads((tmp_path / "results.json").read_text())["numbers"]
    assert [number["value"] for number in stored if number["measure"] == GAIN and "value" in number] == [-0.25]
    assert (tmp_path / "results.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="results must come from an evaluation, got"):
        PerplexityResults.load(tmp_path / "nowhere.json")


def test_tables_say_what_is_lowest_what_is_gained_and_what_was_refused():
    other = results(*perplexities({2: 0.5, 8: 3.0}), name="none")
    perplexity_table, gain_table = PerplexityResults.markdown([results(*NUMBERS), other]).split("\n\n")[1::2]
    assert perplexity_table.splitlines()[0] == "| encoding | 2 | 8 | 16 |"
    assert perplexity_table.splitlines()[2:] == [
        "| rope | 2.72 | **7.39** | refused |",
        "| none | **1.65** | 20.09 |  |",
    ]
    assert gain_table.splitlines()[2] == "| rope | **-0.250** | refused |"
    with pytest.raises(ValueError, match="runs in one comparison must share trained, got 4 and 5"):
        PerplexityResults.markdown([results(*NUMBERS), results(*NUMBERS, trained=5)])
    table = results(*NUMBERS).table()
    cells = [list(column.cells) for column in table.columns]
    assert cells[2] == ["2.718, 2.46 to 3.00", "7.389, 6.69 to 8.17", "refused"]
    assert [column[1] for column in cells[3:]] == ["12.182", "9.488", "-0.2500 ±0.0100"]
    assert "too long" in str(table.caption)


def test_a_figure_of_one_stretch_has_no_band(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.axes.Axes.fill_between", lambda *args, **options: drawn.append(args))
    PerplexityResults.draw([results(mean(PERPLEXITY, 4, np.full((1, 3), 2.0)))], tmp_path / "one.png")
    assert drawn == []
    PerplexityResults.draw([results(mean(PERPLEXITY, 4, np.float32([[1.0], [2.0]])))], tmp_path / "two.png")
    assert len(drawn) == 1


@pytest.mark.parametrize("loss", ["loss_0_to_L", "loss_L_to_2L"])
def test_the_figure_says_which_loss_was_not_probed(loss, tmp_path, monkeypatch):
    line = {"step": 5, "loss_0_to_L": 1.0, loss: 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    drawn = []
    monkeypatch.setattr(curves, "write_figure", lambda figure, path: drawn.append(figure))
    curves.draw_training([PerplexityResults("rope", "text", 64, 5, "none", "", ())], [tmp_path], tmp_path / "a.png")
    texts = [[text.get_text() for text in axes.texts] for axes in drawn[0].axes]
    nothing = "not measured:\nno text or no encoding\nreaches that far"
    assert texts == [[], [] if loss == "loss_L_to_2L" else [nothing]]


def test_a_single_region_has_no_interval():
    measures = (PERPLEXITY, BEYOND, SLIDING, GAIN)
    table = results(*(mean_of(measure, 8, 1.0, math.inf, 4, log=measure != GAIN) for measure in measures)).table()
    columns = [list(column.cells) for column in table.columns]
    assert columns[2:] == [["2.718, no interval: one region"], ["2.718"], ["2.718"], ["+1.0000"]]
    assert "means over the tokens that have more than 4 before them, 4 at length 8" in str(table.caption)
