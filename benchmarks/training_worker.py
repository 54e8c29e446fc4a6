"""One library in an interpreter of its own, controlled by training.py.

The first line on stdin is the setting, and the answer describes the model. Every further line is a command, "evaluate",
"evaluate without gradients" or "train" for one epoch, and the answer is the time it took. All lines are JSON. pythae's
environment does not contain gpin, so nothing here may need both.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

LEARNING_RATE = 5e-4


class Gpin:
    """gpin's VAE: `gpin.build`, `gpin.fit`, `log_likelihood`."""

    def __init__(self, setting: dict[str, Any], train: Tensor, test: Tensor) -> None:
        import gpin

        self.setting, self.train_data, self.test_data, self.fit = setting, train, test, gpin.fit
        likelihood = {"variance": "fixed", "initial_variance": 1.0}  # the likelihood of "mse" in pythae
        architecture = {"channels": setting["channels"], "width": setting["width"]}
        self.vae = gpin.build(
            setting["shape"], "vae", setting["latent_dim"], likelihood=likelihood, architecture=architecture, seed=0
        )

    def parameters(self) -> list[Tensor]:
        """The parameters in the order of the forward pass."""
        inference = self.vae.inference
        return [p for module in (inference.trunk, inference.head, self.vae.decoder) for p in module.parameters()]

    def evaluate(self) -> dict[str, float]:
        """The mean of log p(x) and its Monte-Carlo error."""
        result = self.vae.log_likelihood(self.test_data, samples=self.setting["samples"])
        return {"value": result.mean, "error": result.mean_mc_error}

    def train(self, after_epoch: Callable[[], None]) -> None:
        """Train without end."""
        self.fit(
            self.vae,
            self.train_data,
            self.train_data[:1],  # pythae is timed without validation
            epochs=10**6,
            batch_size=self.setting["batch"],
            learning_rate=LEARNING_RATE,
            progress=False,
            on_epoch=lambda *_: after_epoch(),
        )


class Pythae:
    """pythae's VAE with the same layers: `BaseTrainer`, `get_nll`."""

    def __init__(self, setting: dict[str, Any], train: Tensor, test: Tensor) -> None:
        from pythae.models import VAE, VAEConfig
        from pythae.models.base.base_utils import ModelOutput
        from pythae.models.nn import BaseDecoder, BaseEncoder

        class Encoder(BaseEncoder):
            def __init__(self) -> None:
                super().__init__()
                self.layers = encoder_layers(setting)

            def forward(self, x: Tensor) -> ModelOutput:
                mean, log_std = self.layers(x).chunk(2, dim=-1)  # as in gpin, so that equal weights give equal models
                return ModelOutput(embedding=mean, log_covariance=2 * log_std)

        class Decoder(BaseDecoder):
            def __init__(self) -> None:
                super().__init__()
                self.layers = decoder_layers(setting)

            def forward(self, z: Tensor) -> ModelOutput:
                return ModelOutput(reconstruction=self.layers(z))

        self.setting, self.train_data, self.test_data = setting, train, test
        config = VAEConfig(tuple(setting["shape"]), setting["latent_dim"], reconstruction_loss="mse")
        self.vae = VAE(config, Encoder(), Decoder())

    def parameters(self) -> list[Tensor]:
        """The parameters in the order of the forward pass."""
        return [p for module in (self.vae.encoder, self.vae.decoder) for p in module.parameters()]

    def evaluate(self) -> dict[str, float]:
        """The mean of log p(x); despite its name, get_nll returns this and not its negative."""
        samples = self.setting["samples"]
        return {"value": float(self.vae.get_nll(self.test_data, n_samples=samples, batch_size=samples))}

    def train(self, after_epoch: Callable[[], None]) -> None:
        """Train without end."""
        from pythae.data.datasets import BaseDataset
        from pythae.trainers import BaseTrainer, BaseTrainerConfig

        with tempfile.TemporaryDirectory() as folder:
            config = BaseTrainerConfig(
                folder, per_device_train_batch_size=self.setting["batch"], learning_rate=LEARNING_RATE
            )
            data = BaseDataset(self.train_data, torch.zeros(len(self.train_data)))
            trainer = BaseTrainer(self.vae, data, training_config=config)
            trainer.prepare_training()
            while True:
                trainer.train_step(epoch=1)  # despite its name, a whole epoch
                after_epoch()


def encoder_layers(setting: dict[str, Any]) -> nn.Sequential:
    """The layers of gpin's trunk and head."""
    channels, width, size = setting["channels"], setting["width"], setting["shape"][1]
    layers: list[nn.Module] = []
    for before, after in zip((setting["shape"][0], *channels), channels, strict=False):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(0.01)]
        size //= 2
    layers += [nn.Flatten(), nn.Linear(channels[-1] * size**2, width), nn.LeakyReLU(0.01)]
    return nn.Sequential(*layers, nn.Linear(width, 2 * setting["latent_dim"]))


def decoder_layers(setting: dict[str, Any]) -> nn.Sequential:
    """The layers of gpin's decoder."""
    channels, width = setting["channels"][::-1], setting["width"]
    sizes = [setting["shape"][1] // 2**i for i in range(len(channels), -1, -1)]
    layers: list[nn.Module] = [nn.Linear(setting["latent_dim"], width), nn.ReLU()]
    layers += [nn.Linear(width, channels[0] * sizes[0] ** 2), nn.ReLU(), nn.Unflatten(1, (channels[0], *2 * sizes[:1]))]
    for i, (before, after) in enumerate(zip(channels, (*channels[1:], setting["shape"][0]), strict=True)):
        odd = sizes[i + 1] % 2
        layers += [nn.ConvTranspose2d(before, after, 4, stride=2, padding=1, output_padding=odd), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    """Set up the model, then execute commands until stdin ends."""
    setting = json.loads(sys.stdin.readline())
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(0)
    data = torch.load(setting["data"])
    library = {"gpin": Gpin, "pythae": Pythae}[setting["library"]](setting, data["train"], data["test"])
    if "weights" not in data:  # the first worker, gpin, writes its initial weights; all others copy them
        weights = [parameter.detach().clone() for parameter in library.parameters()]
        torch.save({**data, "weights": weights}, setting["data"])
    else:
        for own, first in zip(library.parameters(), data["weights"], strict=True):
            own.data.copy_(first)
    if "layout" in setting:
        for parameter in library.parameters():
            if parameter.dim() == 4:
                parameter.data = parameter.data.contiguous(memory_format=getattr(torch, setting["layout"]))

    clock = getattr(time, setting["clock"])
    if setting["check"]:  # in a process that is not timed, because the state of the allocator affects later times
        answer(**about(library))
        return
    answer()

    def execute() -> None:
        """Execute the commands to evaluate, until the next command to train."""
        for line in sys.stdin:
            if (command := json.loads(line)) == "train":
                return
            with torch.set_grad_enabled(command != "evaluate without gradients"):
                start = clock()
                library.evaluate()
                answer(seconds=clock() - start)
        raise SystemExit

    def after_epoch() -> None:
        nonlocal start
        answer(seconds=clock() - start)
        execute()
        start = clock()

    execute()
    start = clock()
    library.train(after_epoch)


def about(library: Gpin | Pythae) -> dict[str, Any]:
    """What must be the same for all workers: the number of parameters, the number of samples that an evaluation
    actually decodes, and its result; and the versions of the libraries."""
    decoded = 0

    def count(decoder: nn.Module, inputs: tuple[Tensor]) -> None:
        nonlocal decoded
        decoded += inputs[0].numel() // inputs[0].shape[-1]

    library.vae.decoder.register_forward_pre_hook(count)
    return {
        **library.evaluate(),
        "parameters": sum(parameter.numel() for parameter in library.vae.parameters()),
        "samples": decoded / len(library.test_data),
        "versions": {name: version(name) for name in (library.setting["library"], "torch")},
    }


def answer(**values: object) -> None:
    """Write one line of JSON to training.py."""
    print(json.dumps(values), file=ANSWERS, flush=True)


if __name__ == "__main__":
    ANSWERS, sys.stdout = sys.stdout, sys.stderr  # so that the output of a library does not mix with the answers
    main()
