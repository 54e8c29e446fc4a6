"""Grids of images: pixels exactly."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from gpin._core.errors import InputError
from gpin.report.images import image_grid, image_png, pairs


def test_a_grid_puts_every_image_in_its_place():
    images = np.arange(5).reshape(5, 1, 1, 1) / 4 * np.ones((5, 1, 2, 3))
    grid = image_grid(images, columns=2, gap=1)
    assert grid.shape == (8, 7, 4)
    for i in range(5):
        top, left = 3 * (i // 2), 4 * (i % 2)
        tile = grid[top : top + 2, left : left + 3]
        assert (tile[..., :3] == round(255 * i / 4)).all()
        assert (tile[..., 3] == 255).all()
    assert (grid[..., 3] == 255).sum() == 5 * 2 * 3  # the rest is transparent


def test_colour_images_and_tensors_and_values_out_of_range():
    images = torch.zeros(1, 3, 1, 1)
    images[0, :, 0, 0] = torch.tensor([-1.0, 0.5, 9.0])
    assert image_grid(images, columns=4)[0, 0].tolist() == [0, 128, 255, 255]


def test_pairs_stand_below_each_other():
    first, second = np.zeros((3, 1, 2, 2)), np.ones((3, 1, 2, 2))
    grid = pairs(first, second, gap=0)
    assert grid.shape == (4, 6, 4)
    assert (grid[:2, :, 0] == 0).all()
    assert (grid[2:, :, 0] == 255).all()
    with pytest.raises(InputError, match="the same number of images"):
        pairs(first, second[:2])


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 8), (2, 2, 8, 8), (0, 1, 8, 8)])
def test_what_is_no_image_is_refused(shape):
    with pytest.raises(InputError, match="images must have shape"):
        image_grid(np.zeros(shape), columns=2)


def test_a_png_holds_the_pixels():
    pixels = image_grid(np.random.default_rng(0).random((2, 1, 3, 3)), columns=2)
    read = np.asarray(Image.open(io.BytesIO(image_png(pixels, scale=3))))
    assert read.shape == (9, 21, 4)
    assert (read == pixels.repeat(3, 0).repeat(3, 1)).all()
