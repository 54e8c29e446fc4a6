"""Trunks and decoders: the paper's tables, and every other shape."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpin._core.errors import InputError
from gpin.networks import (
    PAPER,
    Architecture,
    Decoder,
    FewChannels,
    Trunk,
    architecture_for,
    check_shape,
    matched_width,
)


def count(network):
    return sum(parameter.numel() for parameter in network.parameters())


def rows(network, batch):
    """What a table of the paper lists: each layer with weights, its output shape and its activation."""
    table = []
    for layer in network:
        batch = layer(batch)
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
            assert (layer.kernel_size, layer.stride) == ((4, 4), (2, 2))
            assert layer.bias is not None
        if isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)):
            kind = "ConvTranspose2d" if isinstance(layer, nn.ConvTranspose2d) else type(layer).__name__
            table.append([kind, tuple(batch.shape[1:]), None])
        elif isinstance(layer, (nn.LeakyReLU, nn.ReLU)):
            table[-1][2] = getattr(layer, "negative_slope", 0.0)
        else:
            assert isinstance(layer, (nn.Flatten, nn.Unflatten))
    return [tuple(row) for row in table]


def convolutions(*shapes):
    return [("Conv2d", shape, 0.01) for shape in shapes]


def transposed(*shapes):
    return [*(("ConvTranspose2d", shape, 0.0) for shape in shapes[:-1]), ("ConvTranspose2d", shapes[-1], None)]


def full(size, slope):
    return [("Linear", (size,), slope)]


TABLES = {  # shape: rows of the trunk and the decoder, parameters of the trunk, of the decoder at d = 10 and d = 50
    (1, 28, 28): (
        [*convolutions((32, 14, 14), (32, 7, 7), (64, 3, 3)), *full(256, 0.01)],
        [*full(256, 0.0), *full(3 * 3 * 64, 0.0), *transposed((32, 7, 7), (32, 14, 14), (1, 28, 28))],
        (197_504, 200_577, 210_817),
    ),
    (3, 32, 32): (
        [*convolutions((32, 16, 16), (32, 8, 8), (64, 4, 4)), *full(512, 0.01)],
        [*full(512, 0.0), *full(4 * 4 * 64, 0.0), *transposed((32, 8, 8), (32, 16, 16), (3, 32, 32))],
        (575_616, 581_699, 602_179),
    ),
    (3, 64, 64): (
        [*convolutions((32, 32, 32), (32, 16, 16), (64, 8, 8), (64, 4, 4)), *full(512, 0.01)],
        [*full(512, 0.0), *full(4 * 4 * 64, 0.0), *transposed((64, 8, 8), (32, 16, 16), (32, 32, 32), (3, 64, 64))],
        (641_216, 647_299, 667_779),
    ),
    (1, 8, 8): (  # scikit-learn's digits: not in the paper
        [*convolutions((32, 4, 4), (64, 2, 2)), *full(128, 0.01)],
        [*full(128, 0.0), *full(2 * 2 * 64, 0.0), *transposed((32, 4, 4), (1, 8, 8))],
        (66_272, 67_745, 72_865),
    ),
    (30,): (
        [*full(128, 0.01), *full(128, 0.01)],
        [*full(128, 0.0), *full(128, 0.0), *full(30, None)],
        (20_480, 21_790, 26_910),
    ),
}


@pytest.mark.parametrize("shape", TABLES)
def test_layers_are_those_of_the_table(shape):
    encoder_rows, decoder_rows, (trunk_size, *decoder_sizes) = TABLES[shape]
    architecture = architecture_for(shape)
    trunk = Trunk(shape, architecture)
    assert rows(trunk, torch.zeros(2, *shape)) == encoder_rows
    assert count(trunk) == trunk_size
    assert trunk.out_features == architecture.width == encoder_rows[-1][1][0]
    for latent_dim, size in zip((10, 50), decoder_sizes, strict=True):
        decoder = Decoder(latent_dim, shape, architecture)
        assert count(decoder) == size
        assert rows(decoder, torch.zeros(2, latent_dim)) == decoder_rows


def test_the_paper_has_three_tables():
    assert set(PAPER) == {(1, 28, 28), (3, 32, 32), (3, 64, 64)}


@pytest.mark.parametrize(("latent_dim", "width"), [(10, 200), (50, 202)])
def test_dense_decoder_has_as_many_parameters_as_its_mirror(latent_dim, width):
    shape = (1, 28, 28)
    mirror, dense = (PAPER[shape].model_copy(update={"decoder": kind}) for kind in ("mirror", "dense"))
    decoder = Decoder(latent_dim, shape, dense)
    assert rows(decoder, torch.zeros(2, latent_dim)) == [*full(width, 0.0), *full(width, 0.0), *full(784, None)]
    assert count(decoder) == pytest.approx(count(Decoder(latent_dim, shape, mirror)), rel=0.01)
    assert decoder(torch.zeros(2, latent_dim)).shape == (2, *shape)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(8, 40), st.integers(8, 40), st.integers(1, 64))
def test_no_other_dense_width_matches_better(channels, height, width, latent_dim):
    shape = (channels, height, width)
    architecture = architecture_for(shape)
    with torch.device("meta"):
        target = count(Decoder(latent_dim, shape, architecture))
    best = matched_width(latent_dim, shape, architecture)
    size = math.prod(shape)
    gaps = [abs(n**2 + (latent_dim + 2 + size) * n + size - target) for n in (best - 1, best, best + 1)]
    assert best == 1 or gaps[1] == min(gaps)


@settings(deadline=None, max_examples=60)
@given(
    channels=st.integers(1, 4),
    height=st.integers(8, 70),
    width=st.integers(8, 70),
    kind=st.sampled_from(["mirror", "dense"]),
)
def test_images_of_any_size_come_back_in_their_size(channels, height, width, kind):
    shape = (channels, height, width)
    architecture = architecture_for(shape).model_copy(update={"decoder": kind})
    with torch.device("meta"):  # shapes only
        trunk, decoder = Trunk(shape, architecture), Decoder(5, shape, architecture)
        assert trunk(torch.zeros(2, *shape)).shape == (2, architecture.width)
        assert decoder(torch.zeros(2, 5)).shape == (2, *shape)
    assert 2 <= min(height, width) // 2 ** len(architecture.channels) <= 4


@pytest.mark.parametrize("shape", [(7,), (1,), (5, 6), (2, 7, 7), (1, 9, 13), (3, 70, 21)])
def test_gradients_reach_every_parameter(shape):
    architecture = architecture_for(shape)
    trunk, decoder = Trunk(shape, architecture), Decoder(3, shape, architecture)
    features, output = trunk(torch.randn(4, *shape)), decoder(torch.randn(4, 3))
    assert features.shape == (4, architecture.width)
    assert output.shape == (4, *shape)
    (features.square().sum() + output.square().sum()).backward()
    assert all(p.grad.abs().sum() > 0 for p in (*trunk.parameters(), *decoder.parameters()))


@pytest.mark.parametrize("odd", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_transposed_convolution_to_few_channels_is_torchs(odd, channels):
    options = {"stride": 2, "padding": 1, "output_padding": odd, "dtype": torch.float64}
    ours, torchs = (kind(5, channels, 4, **options) for kind in (FewChannels, nn.ConvTranspose2d))
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(2, channels, 6 + odd[0], 8 + odd[1], dtype=torch.float64)
    results = []
    for layer in (ours, torchs):
        output = layer(x)
        results.append([output, *torch.autograd.grad(output, [x, layer.weight, layer.bias], cotangent)])
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("leading", [(), (1,), (5,), (3, 4), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("shape", [(6,), (1, 9, 11)])
def test_decoder_keeps_leading_dimensions(leading, shape):
    decoder = Decoder(3, shape, architecture_for(shape))
    z = torch.randn(*leading, 3)
    output = decoder(z)
    assert output.shape == (*leading, *shape)
    torch.testing.assert_close(output.reshape(-1, *shape), decoder(z.reshape(-1, 3)))


@pytest.mark.parametrize("shape", [(6,), (1, 8, 8)])
def test_center_is_subtracted_before_the_trunk_and_added_after_the_decoder(shape):
    center, x, z = torch.randn(shape), torch.randn(4, *shape), torch.randn(4, 3)
    trunk, decoder = Trunk(shape, architecture_for(shape)), Decoder(3, shape, architecture_for(shape))
    features, output = trunk(x), decoder(z)
    trunk.center.copy_(center)
    decoder.center.copy_(center)
    torch.testing.assert_close(trunk(x + center), features)
    torch.testing.assert_close(decoder(z), output + center)
    assert "center" in trunk.state_dict()
    assert "center" in decoder.state_dict()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 33, 20)])
def test_filters_are_laid_out_with_channels_last(shape):
    architecture = architecture_for(shape)
    networks = Trunk(shape, architecture), Decoder(3, shape, architecture)
    filters = [p for network in networks for p in network.parameters() if p.dim() == 4]
    assert len(filters) == 2 * len(architecture.channels)
    assert all(f.is_contiguous(memory_format=torch.channels_last) for f in filters)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: check_shape(28), r"got 28$"),
        (lambda: check_shape("(1, 28, 28)"), "shape must be a tuple"),
        (lambda: check_shape(()), r"got \(\)$"),
        (lambda: check_shape((1, 0, 28)), r"positive whole numbers, got \(1, 0, 28\)"),
        (lambda: check_shape((1, -28, 28)), "positive whole numbers"),
        (lambda: check_shape((1.0, 28, 28)), "positive whole numbers"),
        (lambda: check_shape((True, 28)), "positive whole numbers"),
        (lambda: architecture_for((0,)), "positive whole numbers"),
        (lambda: Trunk((30,), PAPER[1, 28, 28]), r"channels, height, width\), got shape \(30,\)"),
        (lambda: Decoder(2, (28, 28), PAPER[1, 28, 28]), r"got shape \(28, 28\)"),
        (lambda: Trunk((1, 40, 7), Architecture(channels=(8, 8, 8))), "3 stride-2 convolutions are too many .* 40×7"),
        (lambda: Decoder(2, (1, 7, 40), Architecture(channels=(8, 8, 8))), "too many .* 7×40"),
        (lambda: Architecture.parse({"decoder": "dense"}, "the architecture"), "for convolutional trunks"),
        (lambda: Architecture.parse({"channels": (8, 0)}, "the architecture"), r"channels must be positive"),
        (lambda: Architecture.parse({"width": 0}, "the architecture"), "'width'.*got 0"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(make, says):
    with pytest.raises(InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_list_is_as_good_as_a_tuple():
    assert check_shape([1, 28, 28]) == (1, 28, 28)
    assert architecture_for([1, 28, 28]) == PAPER[1, 28, 28]
