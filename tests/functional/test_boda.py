"""Properties of the BoDA loss and of covariances from few samples, beside the recorded figures in tests/parity."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rcalign.functional import mahalanobis as ma
from rcalign.functional.boda_loss import boda_loss, euclidean_distances, pair_means
from rcalign.functional.rotation import turned

DOMAINS, CLASSES, WIDTH = 3, 3, 5
COUNTS = torch.tensor([[9, 4, 2], [3, 7, 5], [12, 1, 6]])


def case(seed: int = 0, n: int = 14) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "features": torch.randn(n, WIDTH, generator=generator, dtype=torch.float64),
        "y": torch.randint(CLASSES, (n,), generator=generator),
        "domain": torch.randint(DOMAINS, (n,), generator=generator),
        "centroids": torch.randn(DOMAINS, CLASSES, WIDTH, generator=generator, dtype=torch.float64),
    }


def loss_of(given: dict[str, Tensor], counts: Tensor = COUNTS, present: Tensor | None = None, **more: Any) -> Tensor:
    distances = euclidean_distances(given["features"], given["centroids"])
    present = counts > 0 if present is None else present
    return boda_loss(distances, given["y"], given["domain"], counts, present, **more)


def literal(given: dict[str, Tensor], counts: Tensor, nu: float, temperature: float) -> Tensor:
    """The formula, one (sample, positive) after the other."""
    terms = []
    for z, c, d in zip(given["features"], given["y"].tolist(), given["domain"].tolist(), strict=True):
        own = float(counts[d, c])
        if own == 0:
            continue

        def score(k: int, m: int, z: Tensor = z, own: float = own) -> Tensor:
            return -(z - given["centroids"][k, m]).norm() * (float(counts[k, m]) / own) ** nu / (own * temperature)

        pairs = [(k, m) for k in range(DOMAINS) for m in range(CLASSES) if counts[k, m] > 0 and (k, m) != (d, c)]
        log_sum = torch.logsumexp(torch.stack([score(*p) for p in pairs]), 0)
        terms += [log_sum - score(*p) for p in pairs if p[1] == c]
    return torch.stack(terms).mean()


@pytest.mark.parametrize("nu", [0.0, 0.5, 1.0])
def test_loss_is_the_formula_and_never_negative(nu: float) -> None:
    for seed in range(5):
        counts = COUNTS.clone()
        counts[1, 0] = 0  # samples of that pair exist in the batch: they are left out
        given = case(seed)
        ours = loss_of(given, counts, nu=nu, temperature=0.7)
        assert ours >= 0
        torch.testing.assert_close(ours, literal(given, counts, nu, 0.7))


def test_equal_counts_are_a_plain_softmax_whatever_nu() -> None:
    given = case()
    equal = torch.full_like(COUNTS, 6)
    losses = [loss_of(given, equal, nu=nu, temperature=0.5) for nu in (0.0, 0.5, 2.0)]
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(losses[0], losses[2])
    ones = loss_of(given, torch.ones_like(COUNTS), temperature=6 * 0.5)
    torch.testing.assert_close(losses[0], ones)


def test_nu_zero_ignores_the_other_pairs_counts() -> None:
    given = case()
    other = COUNTS.clone()
    own = given["domain"][0] * CLASSES + given["y"][0]
    keep = torch.arange(9) == own
    other = torch.where(keep.view(3, 3), other, other * 50)
    one = {name: value[:1] if name != "centroids" else value for name, value in given.items()}
    torch.testing.assert_close(loss_of(one, COUNTS, nu=0.0), loss_of(one, other, nu=0.0))
    assert not torch.allclose(loss_of(one, COUNTS, nu=0.5), loss_of(one, other, nu=0.5))


def test_permuting_domains_changes_nothing() -> None:
    given = case()
    order = torch.tensor([2, 0, 1])  # new domain k is old domain order[k]
    moved = {**given, "centroids": given["centroids"][order], "domain": order.argsort()[given["domain"]]}
    torch.testing.assert_close(loss_of(moved, COUNTS[order]), loss_of(given))


def test_gradient_reaches_features_only_and_is_zero_at_a_centroid() -> None:
    given = case()
    given["features"].requires_grad_()
    given["features"].data[0] = given["centroids"][0, 0]
    loss_of(given).backward()
    assert torch.isfinite(given["features"].grad).all() and given["features"].grad.abs().sum() > 0


@pytest.mark.parametrize("why", ["one domain", "nothing present", "a class of its own"])
def test_no_positive_gives_exactly_zero(why: str) -> None:
    given = case()
    counts, present = COUNTS, torch.ones(DOMAINS, CLASSES, dtype=torch.bool)
    if why == "one domain":
        given["domain"].zero_()
        given["centroids"], counts, present = given["centroids"][:1], COUNTS[:1], present[:1]
    elif why == "nothing present":
        present = torch.zeros_like(present)
    else:
        counts = COUNTS * torch.eye(3, dtype=torch.int64)
        given["domain"] = given["y"]
    given["features"].requires_grad_()
    loss = loss_of(given, counts, present)
    loss.backward()
    assert loss == 0 and torch.equal(given["features"].grad, torch.zeros_like(given["features"]))


def test_one_image_against_thousands_does_not_underflow() -> None:
    given = {name: value.float() if value.is_floating_point() else value for name, value in case().items()}
    counts = torch.tensor([[1, 1, 1], [4455, 1, 4455], [4455, 4455, 1]])
    given["features"] = (30 * given["features"]).requires_grad_()
    # what the published order of operations gives: the sum of exponentials is zero
    distances = euclidean_distances(given["features"], given["centroids"])
    assert torch.exp(-distances[:, 3] * 4455**0.5).min() == 0
    loss = loss_of(given, counts)
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(given["features"].grad).all()


# --- covariances -----------------------------------------------------------------------------------------------------


def spread(form: str, n: int = 60, scale: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Distances of a fixed batch, the shrunk covariance and the means, from n training rows."""
    generator = torch.Generator().manual_seed(3)
    factor = torch.ones(WIDTH, dtype=torch.float64) if scale is None else scale
    z = factor * torch.randn(n, WIDTH, generator=generator, dtype=torch.float64)
    y = torch.randint(CLASSES, (n,), generator=generator)
    domain = torch.randint(DOMAINS, (n,), generator=generator)
    means, _ = pair_means(z, y, domain, DOMAINS, CLASSES)
    estimate = ma.pair_covariance(z - means[domain, y], y, domain, DOMAINS, CLASSES, form)
    counts = torch.zeros(9, dtype=torch.int64).index_add_(0, domain * CLASSES + y, torch.ones_like(y)).view(3, 3)
    shrunk = ma.shrunk(estimate, counts, form, 10.0, **options)
    batch = factor * torch.randn(7, WIDTH, generator=generator, dtype=torch.float64)
    return ma.mahalanobis_distances(batch, means, ma.whitening(shrunk, form), form), shrunk, means


def identity(form: str) -> Tensor:
    shape = ma.covariance_shape(form, DOMAINS, CLASSES, WIDTH)
    eye = torch.eye(WIDTH, dtype=torch.float64)
    return torch.ones(shape, dtype=torch.float64) if form == "diagonal" else eye.expand(shape)


@pytest.mark.parametrize("form", ma.FORMS)
def test_identity_covariance_gives_euclidean_distances_over_sqrt_width(form: str) -> None:
    given = case()
    ours = ma.mahalanobis_distances(given["features"], given["centroids"], ma.whitening(identity(form), form), form)
    torch.testing.assert_close(ours, euclidean_distances(given["features"], given["centroids"]) / WIDTH**0.5)


@pytest.mark.parametrize("form", ma.FORMS)
def test_distances_do_not_change_with_the_scale_of_a_dimension(form: str) -> None:
    scale = torch.tensor([0.1, 1.0, 3.0, 20.0, 0.5], dtype=torch.float64)
    plain, scaled = (spread(form, scale=s, ridge=0.0)[0] for s in (None, scale))
    torch.testing.assert_close(scaled, plain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("form", ma.FORMS)
def test_whitening_undoes_the_covariance(form: str) -> None:
    _, shrunk, _ = spread(form)
    w = ma.whitening(shrunk, form)
    product = w * shrunk * w if form == "diagonal" else w @ shrunk @ w.mT
    torch.testing.assert_close(product, identity(form))


@pytest.mark.parametrize("form", ma.FORMS)
@pytest.mark.parametrize("n", [1, 2, 9])
def test_fewer_samples_than_dimensions_stay_finite(form: str, n: int) -> None:
    distances, _, _ = spread(form, n=n)
    assert torch.isfinite(distances).all()


@pytest.mark.parametrize("scales", [(-3, 3), (0, 0)])
def test_a_pooled_covariance_of_two_samples_in_512_dimensions_is_inverted(scales: tuple[int, int]) -> None:
    rows = torch.randn(2, 512, generator=torch.Generator().manual_seed(0)) * torch.logspace(*scales, 512)
    deviation, zero = rows - rows.mean(0), torch.zeros(2, dtype=torch.int64)
    shrunk = ma.shrunk(ma.pair_covariance(deviation, zero, zero, 1, 1, "pooled"), torch.tensor([[2]]), "pooled", 10.0)
    white = ma.whitening(shrunk, "pooled")
    distances = ma.mahalanobis_distances(rows, rows.mean(0)[None, None], white, "pooled")
    assert torch.isfinite(distances).all()
    torch.testing.assert_close(distances[0], distances[1], rtol=1e-3, atol=0)  # one on each side of the mean


@pytest.mark.parametrize("form", ["diagonal", "full"])
def test_a_pair_of_one_sample_has_the_pooled_covariance(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, WIDTH, generator=generator, dtype=torch.float64)
    y = torch.tensor([0] * 39 + [1])
    zero = torch.zeros_like(y)
    means, _ = pair_means(rows, y, zero, 1, 2)
    estimate = ma.pair_covariance(rows - means[0, y], y, zero, 1, 2, form)
    shrunk = ma.shrunk(estimate, torch.tensor([[39, 1]]), form, 10.0, ridge=0.0)
    pool = estimate[0, 0] * 39 / 40  # the single row deviates by nothing
    torch.testing.assert_close(shrunk[0, 1], pool, atol=1e-9, rtol=0)
    assert not torch.allclose(shrunk[0, 0], pool, atol=1e-3)


def test_forms_agree_on_what_they_share() -> None:
    full, diagonal = (spread(form, ridge=0.0)[1] for form in ("full", "diagonal"))
    torch.testing.assert_close(full.diagonal(dim1=2, dim2=3), diagonal, atol=1e-9, rtol=0)


def test_the_cheap_diagonal_distance_is_the_literal_one() -> None:
    given = case()
    w = torch.rand(DOMAINS, CLASSES, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    far = given["centroids"] + 1000  # centred first: a common offset must not cost digits
    ours = ma.mahalanobis_distances((given["features"] + 1000).float(), far.float(), w.float(), "diagonal")
    gaps = w.view(9, WIDTH) * (given["features"][:, None] - given["centroids"].view(9, WIDTH))
    torch.testing.assert_close(ours.double(), gaps.norm(dim=2) / WIDTH**0.5, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("form", ma.FORMS)
def test_distance_zero_has_distance_and_gradient_zero(form: str) -> None:
    given = case()
    z = given["centroids"][0, 0][None].clone().requires_grad_()
    distance = ma.mahalanobis_distances(z, given["centroids"], ma.whitening(identity(form), form), form)[0, 0]
    distance.backward()
    assert distance.item() == pytest.approx(0, abs=1e-7) and z.grad.abs().max() < 1e-6


# --- quarter turns ---------------------------------------------------------------------------------------------------


def test_turning_four_times_is_the_identity() -> None:
    images = torch.randn(4, 3, 6, 6)
    turns = torch.tensor([0, 1, 2, 3])
    once = turned(images, turns)
    assert torch.equal(once[0], images[0])
    assert all(not torch.equal(a, b) for a, b in zip(once[1:], images[1:], strict=True))
    assert torch.equal(turned(turned(turned(once, turns), turns), turns), images)
    assert torch.equal(turned(turned(images, turns), (4 - turns) % 4), images)
