"""iDAG: the graph's start, its schedule, its state."""

from __future__ import annotations

from pathlib import Path

import torch

from rcalign.checkpoints import load_state, save_state
from toy import batch, make, weights


def test_at_the_start_nothing_is_masked() -> None:
    model = make("iDAG")
    x = batch(0).x
    model.eval()
    torch.testing.assert_close(model.features(x), super(type(model), model).features(x))


def test_the_graph_is_trained_from_the_anneal_step_on_and_stays_admissible() -> None:
    model = make("iDAG", anneal_steps=3, learning_rate=1e-2)
    start = model.graph_plus.detach().clone()
    for t in range(3):
        model.step(batch(t))
        assert torch.equal(model.graph_plus, start)
    model.step(batch(3))
    assert not torch.equal(model.graph_plus, start)
    assert next(iter(model.optimizer.state.values()))["step"] == 1  # Adam starts anew
    for t in range(4, 8):
        model.step(batch(t))
        for part in (model.graph_plus, model.graph_minus):
            assert (part >= 0).all() and not part.diagonal().any()


def test_the_mask_gets_gradient_only_through_prototypes() -> None:
    model = make("iDAG", anneal_steps=0, reconstruction_weight=0.0, sparsity_weight=0.0)
    model._rho = model._alpha = 0.0
    model.loss(model.begin_step(batch(0))).loss.backward()
    assert not model.graph_plus.grad.any()
    model = make("iDAG", anneal_steps=0, sparsity_weight=0.0)
    model._rho = model._alpha = 0.0
    model.loss(model.begin_step(batch(0))).loss.backward()
    assert model.graph_plus.grad[:-1, -1].any()  # CE(rec_head(P * m), c)


def test_prototypes_are_unit_vectors_of_the_pairs_seen() -> None:
    model = make("iDAG")
    data = batch(0)
    model.step(data)
    lengths = model.prototypes.norm(dim=2)
    seen = torch.zeros(3, 3, dtype=torch.bool)
    seen[data.domain, data.y] = True
    torch.testing.assert_close(lengths, seen.float())


def test_rec_head_learns_unless_published() -> None:
    for published in (False, True):
        model = make("iDAG", anneal_steps=0, published=published)
        before = model.rec_head.weight.detach().clone()
        model.step(batch(0))
        assert torch.equal(before, model.rec_head.weight) == published


def test_acyclicity_schedule() -> None:
    model = make("iDAG", rho_max=50.0)
    for now, expected in (
        (0.0, (1.0, 1.0)),
        (2.0, (10.0, 21.0)),
        (0.4, (10.0, 21.0)),
        (0.2, (100.0, 41.0)),
        (9.0, (100.0, 41.0)),
    ):
        model._raise_penalty(torch.tensor(now))
        assert (round(model._rho, 4), round(model._alpha, 4)) == expected, now


def test_resumes_across_the_schedule(tmp_path: Path) -> None:
    def trained(model, steps):
        for t in steps:
            model.step(batch(t))
        return model

    options = {"anneal_steps": 10, "learning_rate": 1e-2, "width": 6, "hidden": 8}
    straight = trained(make("iDAG", **options), range(105))
    assert straight._rho > 1  # something to save
    save_state(tmp_path / "state", straight.training_state())
    resumed = make("iDAG", **options)
    resumed.load_training_state(load_state(tmp_path / "state"))
    ours, theirs = weights(trained(resumed, range(105, 203))), weights(trained(straight, range(105, 203)))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert straight.more_state() == resumed.more_state()
