"""Samples and reconstructions."""

import torch

import gpin
from gpin.runs.decode import sample_rows


def test_neighbouring_seeds_share_no_noise():
    vae = gpin.build((4,), "vae", 2, architecture={"width": 8}, seed=0)
    one, two = (torch.cat(list(sample_rows(vae, 300, seed=seed))) for seed in (0, 1))
    drawn = torch.cat([one, two])
    assert len(drawn.unique(dim=0)) == 600
