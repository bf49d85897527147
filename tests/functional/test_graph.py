"""The acyclic graph."""

from __future__ import annotations

import torch

from rcalign.functional.graph import cycle_weight, label_parents, path_weights, reconstruction_gap


def test_cycle_weight_is_zero_only_without_cycles() -> None:
    assert cycle_weight(path_weights(torch.zeros(4, 4))) == 0
    generator = torch.Generator().manual_seed(0)
    acyclic = torch.triu(torch.randn(5, 5, generator=generator), diagonal=1)
    torch.testing.assert_close(cycle_weight(path_weights(acyclic)), torch.tensor(0.0), atol=1e-5, rtol=0)
    two_cycle = torch.zeros(3, 3)
    two_cycle[0, 1] = two_cycle[1, 0] = 0.5
    assert cycle_weight(path_weights(two_cycle)) > 0
    for _ in range(20):
        assert cycle_weight(path_weights(torch.randn(5, 5, generator=generator))) >= 0


def test_start_leads_every_feature_to_the_label() -> None:
    paths = path_weights(label_parents(6))
    assert torch.equal(paths[:-1, -1], torch.ones(6))
    assert cycle_weight(paths) == 0


def test_paths_add_up_indirect_causes() -> None:
    chain = torch.zeros(3, 3)
    chain[0, 1], chain[1, 2] = 2.0, 3.0
    torch.testing.assert_close(path_weights(chain)[0, 2], torch.tensor(2.0**2 * 3.0**2 / 2))


def test_reconstruction_gap() -> None:
    prototypes = torch.eye(3)[:2]
    labels = torch.tensor([0, 1])
    perfect = torch.zeros(4, 4)
    perfect[:3, :3] = torch.eye(3)
    torch.testing.assert_close(reconstruction_gap(prototypes, labels, perfect), torch.tensor(0.0), atol=1e-5, rtol=0)
    graph = torch.zeros(4, 4, requires_grad=True)
    gap = reconstruction_gap(prototypes, labels, graph)
    gap.backward()
    assert gap == 1
    assert 0 < graph.grad.abs().max() <= 1e3  # finite where the graph starts
