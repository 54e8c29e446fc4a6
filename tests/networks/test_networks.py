"""Trunks and decoders: the paper's tables, and every other shape."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gpin._core.errors import InputError
from gpin.networks import (
    ARCHITECTURES,
    PAPER,
    Convolutional,
    ConvolutionalOptions,
    Dense,
    DenseOptions,
    Residual,
    ResidualOptions,
    architecture_for,
    as_architecture,
    check_shape,
    make_architecture,
    parse_architecture,
)
from gpin.networks.convolutional import FewChannels, matched_width, upsampling


def suited(shape, **changes):
    """The rule's choice for a shape, with some options changed."""
    return make_architecture(shape, architecture_for(shape).model_copy(update=changes))


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
    architecture = suited(shape)
    trunk = architecture.trunk()
    assert rows(trunk, torch.zeros(2, *shape)) == encoder_rows
    assert count(trunk) == trunk_size
    assert trunk.out_features == architecture.options.width == encoder_rows[-1][1][0]
    for latent_dim, size in zip((10, 50), decoder_sizes, strict=True):
        decoder = architecture.decoder(latent_dim)
        assert count(decoder) == size
        assert rows(decoder, torch.zeros(2, latent_dim)) == decoder_rows


def test_the_paper_has_three_tables():
    assert set(PAPER) == {(1, 28, 28), (3, 32, 32), (3, 64, 64)}


@pytest.mark.parametrize(("latent_dim", "width"), [(10, 200), (50, 202)])
def test_dense_decoder_has_as_many_parameters_as_its_mirror(latent_dim, width):
    shape = (1, 28, 28)
    mirror, dense = (suited(shape, decoder=kind).decoder(latent_dim) for kind in ("mirror", "dense"))
    assert rows(dense, torch.zeros(2, latent_dim)) == [*full(width, 0.0), *full(width, 0.0), *full(784, None)]
    assert count(dense) == pytest.approx(count(mirror), rel=0.01)
    assert dense(torch.zeros(2, latent_dim)).shape == (2, *shape)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3), st.integers(8, 40), st.integers(8, 40), st.integers(1, 64), st.integers(1, 2))
def test_no_other_dense_width_matches_better(channels, height, width, latent_dim, outputs):
    shape = (channels, height, width)
    architecture = suited(shape)
    with torch.device("meta"):
        target = count(architecture.decoder(latent_dim, outputs))
    best = matched_width(latent_dim, shape, architecture.options, outputs)
    size = outputs * math.prod(shape)
    gaps = [abs(n**2 + (latent_dim + 2 + size) * n + size - target) for n in (best - 1, best, best + 1)]
    assert best == 1 or gaps[1] == min(gaps)


@settings(deadline=None, max_examples=60)
@given(
    channels=st.integers(1, 4),
    height=st.integers(8, 70),
    width=st.integers(8, 70),
    choice=st.sampled_from([{}, {"decoder": "dense"}, "residual", "dense"]),
    outputs=st.integers(1, 3),
)
def test_images_of_any_size_come_back_in_their_size(channels, height, width, choice, outputs):
    shape = (channels, height, width)
    options = as_architecture(choice, shape)
    architecture = make_architecture(shape, options)
    with torch.device("meta"):  # shapes only
        trunk, decoder = architecture.trunk(), architecture.decoder(5, outputs)
        assert trunk(torch.zeros(2, *shape)).shape == (2, trunk.out_features) == (2, options.width)
        assert decoder(torch.zeros(2, 5)).shape == ((2, *shape) if outputs == 1 else (2, outputs, *shape))
    if options.kind != "dense":
        assert 2 <= min(height, width) // 2 ** len(options.channels) <= 4


IMAGES = [(2, 7, 7), (1, 9, 13), (3, 70, 21)]
EVERY = [
    *(("dense", shape) for shape in [(7,), (1,), (5, 6), *IMAGES]),
    *((kind, shape) for kind in ("convolutional", "residual") for shape in IMAGES),
]


def test_every_architecture_is_tested():
    assert {kind for kind, _ in EVERY} == set(ARCHITECTURES)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("kind", "shape"), EVERY)
def test_gradients_reach_every_parameter(kind, shape, outputs):
    architecture = ARCHITECTURES[kind](shape)
    trunk, decoder = architecture.trunk(), architecture.decoder(3, outputs)
    features, output = trunk(torch.randn(4, *shape)), decoder(torch.randn(4, 3))
    assert features.shape == (4, trunk.out_features)
    assert output.shape == (4, *architecture.output_shape(outputs))
    (features.square().sum() + output.square().sum()).backward()
    assert all(p.grad.abs().sum() > 0 for p in (*trunk.parameters(), *decoder.parameters()))


@pytest.mark.parametrize("odd", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_transposed_convolution_to_few_channels_is_torchs(odd, channels):
    ours = upsampling(5, channels, (6 + odd[0], 8 + odd[1])).double()
    torchs = nn.ConvTranspose2d(5, channels, 4, stride=2, padding=1, output_padding=odd, dtype=torch.float64)
    torchs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 3, 4, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(2, channels, 6 + odd[0], 8 + odd[1], dtype=torch.float64)
    results = []
    for layer in (ours, torchs):
        output = layer(x)
        first = torch.autograd.grad(output.square(), [x, layer.weight, layer.bias], cotangent, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), [x, layer.weight, layer.bias])
        results.append([output, *first, *second])
    assert isinstance(ours, FewChannels)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("leading", [(), (1,), (5,), (3, 4), (2, 3, 4), (0, 4)])
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize(("kind", "shape"), [("dense", (6,)), ("convolutional", (1, 9, 11)), ("residual", (1, 9, 11))])
def test_decoder_keeps_leading_dimensions(leading, kind, shape, outputs):
    architecture = ARCHITECTURES[kind](shape)
    decoder, one = architecture.decoder(3, outputs), architecture.output_shape(outputs)
    z = torch.randn(*leading, 3)
    output = decoder(z)
    assert output.shape == (*leading, *one)
    torch.testing.assert_close(output.reshape(-1, *one), decoder(z.reshape(-1, 3)))


@pytest.mark.parametrize(("kind", "shape"), [("dense", (6,)), ("convolutional", (1, 8, 8)), ("residual", (1, 8, 8))])
def test_center_is_subtracted_before_the_trunk_and_added_after_the_decoder(kind, shape):
    center, x, z = torch.randn(shape), torch.randn(4, *shape), torch.randn(4, 3)
    architecture = ARCHITECTURES[kind](shape)
    trunk, decoder = architecture.trunk(), architecture.decoder(3)
    features, output = trunk(x), decoder(z)
    trunk.center_input(center)
    decoder.center_output(center)
    torch.testing.assert_close(trunk(x + center), features)
    torch.testing.assert_close(decoder(z), output + center)
    assert "center" in trunk.state_dict()
    assert "center" in decoder.state_dict()


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 33, 20)])
@pytest.mark.parametrize(("kind", "filters_per_channel"), [("convolutional", 2), ("residual", 6)])
def test_filters_are_laid_out_with_channels_last(kind, filters_per_channel, shape):
    architecture = ARCHITECTURES[kind](shape)
    networks = architecture.trunk(), architecture.decoder(3)
    filters = [p for network in networks for p in network.parameters() if p.dim() == 4]
    assert len(filters) == filters_per_channel * len(architecture.options.channels)
    assert all(f.is_contiguous(memory_format=torch.channels_last) for f in filters)


THREE = ConvolutionalOptions(channels=(8, 8, 8))


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
        (lambda: Convolutional((30,), PAPER[1, 28, 28]).trunk(), r"channels, height, width\), got shape \(30,\)"),
        (lambda: Convolutional((28, 28), PAPER[1, 28, 28]).decoder(2), r"got shape \(28, 28\)"),
        (lambda: Residual((30,)), r"got shape \(30,\)"),
        (lambda: Convolutional((1, 40, 7), THREE).trunk(), "3 stride-2 convolutions are too many .* 40×7"),
        (lambda: Convolutional((1, 7, 40), THREE).decoder(2), "too many .* 7×40"),
        (lambda: Residual((1, 7, 40), ResidualOptions(channels=(8,) * 3)).trunk(), "too many .* 7×40"),
        (lambda: as_architecture({"decoder": "dense"}, (4,)), "applies to convolutional trunks"),
        (lambda: as_architecture({"channels": (8, 0)}, (1, 28, 28)), "channels must be one or more"),
        (
            lambda: as_architecture({"kind": "residual", "channels": ()}, (1, 28, 28)),
            "channels must be one or more",
        ),
        (lambda: as_architecture({"width": 0}, (4,)), "'width' of the architecture 'dense'.*got 0"),
        (lambda: as_architecture({"kind": "dense", "channels": (8,)}, (1, 8, 8)), "'dense' has no option 'channels'"),
        (lambda: as_architecture({"blocks": 2}, (1, 8, 8)), "'convolutional' has no option 'blocks'"),
        (lambda: as_architecture({"kind": "residual", "blocks": 0}, (1, 8, 8)), "'blocks'.*got 0"),
        (lambda: as_architecture("residul", (1, 8, 8)), "unknown architecture 'residul': did you mean 'residual'"),
        (lambda: as_architecture(3, (1, 8, 8)), "the architecture must be a name, .*got 3"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(make, says):
    with pytest.raises(InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_list_is_as_good_as_a_tuple():
    assert check_shape([1, 28, 28]) == (1, 28, 28)
    assert architecture_for([1, 28, 28]) == PAPER[1, 28, 28]


@pytest.mark.parametrize(
    ("record", "options"),
    [
        ({"channels": [2, 3], "width": 6, "decoder": "mirror"}, ConvolutionalOptions(channels=(2, 3), width=6)),
        (
            {"channels": [2], "width": 6, "decoder": "dense"},
            ConvolutionalOptions(channels=(2,), width=6, decoder="dense"),
        ),
        ({"channels": [], "width": 6, "decoder": "mirror"}, DenseOptions(width=6)),
        (
            {"kind": "residual", "channels": [4], "width": 5, "blocks": 2},
            ResidualOptions(channels=(4,), width=5, blocks=2),
        ),
    ],
)
def test_records_of_architectures_stay_readable_and_as_they_were(record, options):
    """The identity of a run is a hash of them; those of version 0.1 had no kind."""
    assert parse_architecture(record) == options
    assert options.record() == record


@pytest.mark.parametrize(
    ("given", "shape", "options"),
    [
        (None, (1, 28, 28), PAPER[1, 28, 28]),
        ({"width": 7}, (1, 28, 28), ConvolutionalOptions(channels=(32, 32, 64), width=7)),
        ({"channels": [], "width": 7}, (1, 28, 28), DenseOptions(width=7)),
        ("dense", (1, 28, 28), DenseOptions(width=128)),
        ("convolutional", (1, 4, 4), ConvolutionalOptions(channels=(32,), width=128)),
        ("residual", (3, 64, 64), ResidualOptions(channels=(32, 32, 64, 64), width=512)),
        ({"kind": "residual", "blocks": 3}, (1, 8, 8), ResidualOptions(channels=(32, 64), width=128, blocks=3)),
        (DenseOptions(width=3), (1, 28, 28), DenseOptions(width=3)),
    ],
)
def test_options_change_what_suits_the_shape(given, shape, options):
    assert as_architecture(given, shape) == options


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_every_architecture_introduces_itself(kind):
    chosen = ARCHITECTURES[kind]
    assert chosen.name == chosen.Options().kind == kind
    assert chosen.title
    for option in set(chosen.Options.model_fields) - {"kind"}:
        assert f"{option}:" in chosen.Options.__doc__, f"{kind} does not explain its option {option}"


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_an_instance_does_not_depend_on_the_others_in_its_batch(kind):
    """Also in training mode: several processes, each with a share of the batch, must give the numbers of one."""
    architecture = ARCHITECTURES[kind]((2, 9, 13))
    trunk, decoder = architecture.trunk().double().train(), architecture.decoder(3).double().train()
    x, z = torch.randn(5, 2, 9, 13).double(), torch.randn(5, 3).double()
    torch.testing.assert_close(trunk(x)[2:3], trunk(x[2:3]))
    torch.testing.assert_close(decoder(z)[2:3], decoder(z[2:3]))


def test_residual_blocks_start_near_the_identity_and_add_to_it():
    """With the second convolution at zero a block is the identity; the convolutions are torch's."""
    block = Residual((1, 8, 8), ResidualOptions(channels=(5,))).trunk()[1]
    x = torch.randn(2, 5, 4, 4)
    silu = torch.nn.functional.silu
    wanted = x + torch.conv2d(
        silu(torch.conv2d(silu(x), block.first.weight, block.first.bias, padding=1)),
        block.second.weight,
        block.second.bias,
        padding=1,
    )
    torch.testing.assert_close(block(x), wanted)
    assert (block(x) - x).std() < 0.2 * x.std()
    nn.init.zeros_(block.second.weight)
    nn.init.zeros_(block.second.bias)
    assert torch.equal(block(x), x)


def test_a_dense_architecture_reads_images_too():
    assert Dense((1, 28, 28)).trunk()(torch.zeros(2, 1, 28, 28)).shape == (2, 128)
