"""What runs in the processes of `benchmarks.hardware`: proofs against float64, ways to time, batches made once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.hardware import attention_proof, measure, oracle, programs, train, training
from benchmarks.hardware.kinds import KINDS, kind_of, tokens_of
from benchmarks.hardware.oracle import Fixed, Terms
from benchmarks.hardware.training import make_epoch
from train.devices.mesh import make_mesh
from train.engine.loop import init_state, make_step, state_shardings
from train.engine.optimizers import make_optimizer
from train.engine.task import recipe
from train.vit.model import SUMS

KIND = "none, sink, soft cap"


@pytest.fixture(autouse=True)
def types_promote():
    """Let types promote, as the processes do."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def dense(terms, fixed):
    """Return outputs and log-sum-exps by plain jnp."""
    logits = fixed.scale * jnp.einsum("nkgtd,nksd->nkgts", terms.q, terms.k) + terms.bias
    logits = fixed.cap * jnp.tanh(logits / fixed.cap) + fixed.late
    logits = jnp.where(fixed.seen, logits, -jnp.inf)
    sink = jnp.broadcast_to(terms.sink[None, :, :, None, None], (*logits.shape[:-1], 1))
    lse = jax.nn.logsumexp(jnp.concatenate([logits, sink], axis=-1), axis=-1)
    weights = jnp.exp(logits - lse[..., None]) * fixed.keep
    return jnp.einsum("nkgts,nksd->nkgtd", weights, terms.v), lse


def test_the_gradients_of_the_oracle_are_those_of_automatic_differentiation():
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.standard_normal(shape)
    n, k, g, t, s, d = 2, 2, 3, 5, 7, 4
    terms = Terms(draw(n, k, g, t, d), draw(n, k, s, d), draw(n, k, s, d), draw(n, k, g, t, s), draw(k, g))
    pairs = (n, k, g, t, s)
    seen = rng.random(pairs) < 0.7
    seen[:, :, :, 2] = False  # a query that sees no key but the sink
    fixed = Fixed(0.3, 2.0, draw(*pairs), seen, (rng.random(pairs) < 0.8) / 0.8)
    output, lse, saved = oracle.attend(terms, fixed)
    cotangents = draw(*output.shape), draw(*lse.shape)
    run = lambda terms: dense(terms, fixed)
    with jax.enable_x64(True):
        run_and_pull = jax.jit(
            lambda terms, cotangents: (lambda out, pull: (out, pull(cotangents)[0]))(*jax.vjp(run, terms))
        )
        (want, want_lse), gradients = run_and_pull(terms, cotangents)
    np.testing.assert_allclose(output, want, atol=1e-12)
    np.testing.assert_allclose(lse, want_lse, atol=1e-12)
    for got, expected in zip(oracle.gradients(terms, fixed, saved, *cotangents), gradients, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.slow
def test_an_implementation_that_is_right_is_proved_in_every_gradient():
    result = attention_proof.prove(KIND, "reference", "highest", toy=True)
    assert result["outcome"] == "proved"
    assert set(result["errors"]) == {"output", "lse", "d_q", "d_k", "d_v", "d_sink"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in KINDS])
def test_every_kind_is_right_by_tiles_on_any_device(name):
    assert attention_proof.prove(name, "blockwise", "highest", toy=True)["outcome"] == "proved"


@pytest.fixture
def another_device(monkeypatch):
    """Let programs be for a device that is not JAX's first one."""
    monkeypatch.setattr(programs, "TARGET", [jax.devices()[3]])
    return jax.devices()[3]


def test_a_program_runs_on_the_device_that_it_is_for(another_device):
    result = programs.compiled(lambda x: x + 1, jnp.ones(3))(programs.put(jnp.ones(3)))
    assert result.devices() == {another_device}


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["blockwise", "sharded"])
def test_a_proof_holds_on_the_device_that_programs_are_for(implementation, another_device):
    assert attention_proof.prove(KIND, implementation, "highest", toy=True)["outcome"] == "proved"


@pytest.mark.parametrize("wrong", [1.001, float("nan")])
def test_what_is_off_by_a_thousandth_or_is_nan_is_not_proved(wrong, monkeypatch):
    right = attention_proof.reference(KIND, "float32", True, True)[2][0]

    def attend(kind, implementation, learned):
        values = 0 * jnp.sum(learned["v"])
        return jnp.asarray(right["output"], jnp.float32) * wrong + values, jnp.asarray(right["lse"], jnp.float32)

    monkeypatch.setattr(attention_proof, "attend", attend)
    result = attention_proof.prove(KIND, "gpu", "highest", toy=True)
    assert result["outcome"] == "wrong"
    assert "output" in result["message"]


@pytest.mark.parametrize("toy", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_the_tokens_of_every_kind_are_as_many_as_its_queries_and_keys(name, toy):
    kind = kind_of(name, toy)
    queries, keys = tokens_of(kind)
    counts = [len(side.positions if kind.known else side.order) for side in (queries, keys)]
    assert counts == [kind.queries, kind.keys]
    assert (queries.has_position is not None) == bool(kind.unplaced or kind.side)
    if kind.causal and not kind.known:
        assert queries.order[-1] == keys.order[-1]


class Recorded:
    """A worker that answers in turn."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    def ask(self, task, arguments, limit):
        self.asked.append(task.partition(":")[2])
        return self.answers.pop(0)


def test_a_way_that_another_way_took_down_is_made_again():
    column = measure.columns(rehearse=True)[0]
    lost, made, timed = {"outcome": "lost"}, {"outcome": "made"}, {"outcome": "measured", "seconds": 1.0}
    worker = Recorded(lost, made, timed)
    assert measure.sampled(worker, column.case(column.ways[0])) == timed
    assert worker.asked == ["sample", "make", "sample"]
    hung = {"outcome": "hung", "message": "no answer in 100 s"}
    assert measure.sampled(Recorded(lost, hung), column.case(column.ways[0])) == hung


def test_another_way_is_first_in_every_round():
    ways = ["a", "b", "c"]
    assert [measure.turned(ways, turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert sorted(measure.turned(ways, 2)) == ways
    assert measure.turned([], 3) == []


def test_a_seed_takes_as_long_as_the_process_with_the_most_to_do():
    steps = [{"step": 1.0}, {"step": 2.0}, {"outcome": "crashed"}, {"step": 3.0}]
    assert train.slowest(steps, "step", 4) == 3.0
    assert train.slowest(steps, "step", 2) == 5.0
    assert train.slowest(steps, "step", 9) == 3.0


@pytest.mark.slow
def test_an_epoch_is_the_steps_of_train_vit(tmp_path):
    for seed in (0, 3):  # a trainer compiles with the batches of seed 0
        make_epoch(str(tmp_path), "fashion", seed, 0, toy=True)
    for size in training.sizes_of(True, True):
        training.make_tests(str(tmp_path), "fashion", size, toy=True)
    own = training.Trainer(str(tmp_path), "fashion", "rope_mixed", True, True)
    images, labels = own.batches(3, 0)
    rates = own.rates(5, len(images))[1]
    params, opt, key = own.begin(3)
    config = training.config_of("fashion", "rope_mixed", 3, 5, True)
    steps = recipe(config, make_optimizer(config, 10, round(config.warmup * 2))[0], SUMS)
    mesh, copy = make_mesh(1), jax.tree.map(jnp.copy, (params, opt))
    shardings = state_shardings(own.model, steps, mesh)
    state = init_state(own.model.init(jax.random.key(3)), steps)._replace(step=jnp.int32(2))
    count = lambda leaf: jnp.int32(2) if leaf.dtype == jnp.int32 else leaf
    state = jax.device_put(state._replace(opt=jax.tree.map(count, state.opt)), shardings)
    step = make_step(own.model.loss, steps, shardings, mesh)
    for number in range(2):
        state = step(state, {"image": images[number], "label": labels[number]})
    result, _, losses = own.train(copy[0], jax.tree.map(count, copy[1]), images, labels, rates, key, 2)
    np.testing.assert_allclose(jnp.mean(losses), state.sums["loss"] / state.sums["count"], rtol=1e-5)
    for got, want in zip(jax.tree.leaves(result), jax.tree.leaves(state.params), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_batches_depend_on_the_seed_and_the_epoch_alone(tmp_path):
    def images(seed, epoch):
        make_epoch(str(tmp_path), "fashion", seed, epoch, toy=True)
        with np.load(tmp_path / f"fashion-{seed}-{epoch}.npz") as file:
            return file["image"]

    first = images(0, 0)
    assert first.shape == (2, 8, 8, 8, 1)
    np.testing.assert_array_equal(images(0, 0), first)
    assert not np.array_equal(images(0, 1), first)
    assert not np.array_equal(images(1, 0), first)
