"""A batch computed in parts gives what it gives in one piece, noise included."""

import pytest
import torch

import gpin
from gpin._core.shards import Share, batch_sum, shared
from gpin.inference import METHODS

SIZE = 7
CONFIGS = {
    **{name: (name, {}) for name in METHODS},
    "natural": ("natural", {"check_interval": 1}),  # longer intervals depend on all instances of a batch
    "gp of the paper": ("gp", {"preset": "paper"}),
    "gp, exact marginal": ("gp", {"marginal": "exact"}),
    "sa, several draws": ("sa", {"steps": 2, "inner_samples": 3}),
}


def never(value):
    raise AssertionError("nothing here is a statistic of the batch")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("world", [2, 3, 9])
def test_parts_of_a_batch_add_up_to_the_whole(name, world, double):
    method, options = CONFIGS[name]
    x = torch.rand(SIZE, 1, 8, 8)
    vae = gpin.build((1, 8, 8), method, 3, architecture={"channels": (4, 4), "width": 8}, seed=0, **options)
    vae.prepare(x)
    if method == "rme":
        vae.inference.begin_stage(0)
        vae.inference.begin_stage(1)
    vae.train()

    def gradients(share):
        start, stop = share.bounds(SIZE)
        torch.manual_seed(3)
        vae.zero_grad()
        with shared(share, SIZE, never):
            loss, bound = vae.inference.objective(share.of(x), vae)
        weight = (stop - start) / SIZE
        (weight * loss).backward()
        after = torch.rand(())  # everyone must have drawn as much
        found = {key: p.grad.clone() for key, p in vae.named_parameters() if p.grad is not None}
        return {**found, "bound": weight * bound, "draws": weight * after}

    whole = gradients(Share())
    parts = [gradients(Share(rank, world)) for rank in range(world)]
    for key, value in whole.items():
        total = sum(part[key] for part in parts)
        torch.testing.assert_close(total, value, rtol=1e-6, atol=1e-8 * (1 + value.abs().max().item()), msg=key)


def test_every_instance_is_in_one_share():
    for size in range(1, 9):
        for world in range(1, 6):
            bounds = [Share(rank, world).bounds(size) for rank in range(world)]
            assert [i for start, stop in bounds for i in range(start, stop)] == list(range(size))


def test_noise_is_that_of_the_whole_batch_for_every_way_to_draw_it():
    draws = [
        lambda n: torch.randn(2, n, 3),
        lambda n: torch.rand(n, 3, dtype=torch.float64),
        lambda n: torch.randn_like(torch.empty(n, 3)),
        lambda n: torch.rand_like(torch.empty(n, 3)),
        lambda n: torch.normal(torch.zeros(n, 3), torch.ones(n, 3)),
        lambda n: torch.empty(n, 3).normal_(1.0, 2.0),
        lambda n: torch.empty(n, 3).uniform_(2.0, 3.0),
    ]
    for draw in draws:
        torch.manual_seed(0)
        whole, after = draw(5), torch.rand(())
        torch.manual_seed(0)
        with shared(Share(1, 2), 5, never):
            part = draw(3)
        assert torch.equal(part, whole[..., 2:, :])
        assert torch.equal(torch.rand(()), after)


@pytest.mark.parametrize("draw", [lambda: torch.randn(3), lambda: torch.randn(4, 2), lambda: torch.randperm(3)])
def test_noise_that_cannot_be_shared_is_refused(draw):
    with pytest.raises(gpin.InputError, match="cannot be shared"), shared(Share(1, 2), 5, never):
        draw()


def test_a_sum_over_the_batch_is_taken_over_all_processes_and_nothing_counts_twice():
    assert batch_sum(torch.tensor(2.0)) == 2
    with shared(Share(1, 2), 5, lambda value: value + 10):
        assert batch_sum(torch.tensor(2.0)) == 12
    with shared(Share(0, 2), 1, lambda value: value + 10):  # has none of the one instance
        assert batch_sum(torch.tensor(2.0)) == 10
