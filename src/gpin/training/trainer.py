"""The state of training: steps, epochs and stages, and how it is saved to and restored from a checkpoint."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gpin._core.errors import InputError, TrainingError
from gpin.data import Batches
from gpin.training.augmentation import augmented
from gpin.training.checkpoints import Checkpoint
from gpin.training.history import Epoch, History
from gpin.training.processes import Processes
from gpin.training.settings import TrainingConfig
from gpin.training.validation import training_bound, validate
from gpin.vae import VAE

__all__ = ["Trainer", "stage_beginnings"]

ADVICE = "the model has the weights of its best epoch so far; a smaller learning_rate may help"


class Trainer:
    """A model, its optimiser, and the position in the epochs and in the data.

    Arguments:
        vae: The model, prepared by :meth:`VAE.prepare`.
        training: The training data, in random order if it has a generator.
        validation: The validation data, in its own order.
        config: The options of training.
        processes: The processes that train together.

    :meth:`capture` returns everything on which the rest of training depends.
    """

    def __init__(
        self, vae: VAE, training: Batches, validation: Batches, config: TrainingConfig, processes: Processes
    ) -> None:
        self.vae, self.training, self.validation = vae, training, validation
        self.config, self.processes = config, processes
        groups = vae.parameter_groups(config.learning_rate, config.weight_decay)
        self.rates = [group["lr"] for group in groups]
        self.optimiser = (torch.optim.AdamW if config.weight_decay else torch.optim.Adam)(groups, fused=True)
        stages = vae.inference.stages()
        self.stages = [stage.name for stage in stages]
        self.beginnings = stage_beginnings([stage.share for stage in stages], config.epochs)
        self.average = {name: p.detach().clone() for name, p in vae.named_parameters()} if config.ema else {}
        self.history, self.best, self.top = History(), self._snapshot(), -math.inf
        self.epoch, self.step, self.updates = 1, 0, 0
        self.order = self._order_state()
        self.total, self.count, self.seconds, self.processor_seconds = 0.0, 0, 0.0, 0.0
        self.finished = False
        self.scored = True  # unless it resumes a run of a version that had no validation score

    # Training -------------------------------------------------------------------------------------

    def run(
        self, after_step: Callable[[bool], None], after_epoch: Callable[[], None], asked: Callable[[], bool]
    ) -> None:
        """Train to the end.

        Arguments:
            after_step: Called after each step, with whether training was asked to stop.
            after_epoch: Called after each epoch.
            asked: Says whether this process was asked to stop.
        """
        while not self.finished:
            started, busy = time.perf_counter() - self.seconds, time.process_time() - self.processor_seconds
            if self.step == 0:
                self._begin_epoch()
            elif self.training.generator is not None:
                self.training.generator.set_state(self.order)  # so that the order of this epoch is drawn again
            self._set_mode()
            for x, rows, size in self.training.shares(self.processes.share, self.step):
                stop = self._step(x, rows, size, asked())
                self.seconds, self.processor_seconds = time.perf_counter() - started, time.process_time() - busy
                after_step(stop)
            self._end_epoch(started, busy)
            after_epoch()

    def _set_mode(self) -> None:
        """Put the parts that are trained into training mode."""
        self.vae.train()

    def _begin_epoch(self) -> None:
        self.total, self.count = 0.0, 0
        if self.epoch in self.beginnings:  # the best weights of an earlier stage are not those of the whole model
            self.vae.inference.begin_stage(self.beginnings.index(self.epoch))
            self.top = -math.inf

    def _step(self, x: Tensor, rows: Tensor | None, size: int, stop: bool) -> bool:
        """Make one step of Adam on a share of a batch of `size`; returns whether any process was asked to stop."""
        vae, processes = self.vae, self.processes
        x = vae.check(x)
        self.optimiser.zero_grad(set_to_none=True)
        loss, bound = self._objective(x, size)
        loss.backward()
        parameters = [p for p in vae.parameters() if p.grad is not None]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not processes.alone:
            start, end = processes.share.bounds(size)
            weight = (end - start) / size
            torch._foreach_mul_(gradients, weight)
            processes.sum_gradients(gradients)
            own = torch.stack([weight * loss.detach(), weight * bound, loss.new_tensor(stop)])
            loss, bound, stops = processes.sum(own)
            stop = bool(stops > 0)
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(loss + norm):
            numbers = None if rows is None else self.training.original(rows)
            sentences = processes.gather(_what_is_not_finite(vae, x, numbers, loss))
            worst = max(sentences, key=lambda sentence: "rows" in sentence)
            raise TrainingError(f"epoch {self.epoch}, batch {self.step + 1}: {worst} ({ADVICE})")
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.config.clip_norm, norm)
        self._set_rate(self.updates)
        self.optimiser.step()
        if self.average:
            current = [p.detach() for p in vae.parameters()]
            torch._foreach_lerp_(list(self.average.values()), current, 1 - self.config.ema)
        self.total += bound.item() * size
        self.count += size
        self.step += 1
        self.updates += 1
        return stop

    def _objective(self, x: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """The loss of the step to come and the mean ELBO, two scalars, for a share of a batch of `size`."""
        weight = self.config.kl_weight(self.updates / len(self.training))
        warming: dict[str, Any] = {"kl_weight": weight} if weight < 1 else {}  # which own methods need not take
        with self.processes.part(size):
            if self.config.augmentation != "none":
                x = self.vae.with_values(x, augmented(self.vae.values(x), self.config.augmentation))
            return self.vae.inference.objective(x, self.vae, **warming)

    def _set_rate(self, updates: int) -> float:
        """Set the learning rate of the step that follows so many updates, and return it."""
        factor = self.config.rate(updates / (self.config.epochs * len(self.training)))
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = factor * rate
        return factor * self.config.learning_rate

    def _end_epoch(self, started: float, busy: float) -> None:
        with self._averaged():
            score, validation = self._validate()
            top = validation if score is None else score
            if not math.isfinite(top):
                raise TrainingError(f"epoch {self.epoch}: the validation bound is {top} ({ADVICE})")
            if top >= self.top:
                self.best, self.top, self.history.best = self._snapshot(), top, self.epoch
        stage = sum(beginning <= self.epoch for beginning in self.beginnings)
        result = Epoch(
            train=self.total / self.count,
            validation=validation,
            seconds=time.perf_counter() - started,
            learning_rate=self._set_rate(self.updates - 1),
            stage=self.stages[stage - 1],
            score=score,
            processor_seconds=time.process_time() - busy,
        )
        self.history.epochs.append(result)
        self.epoch, self.step, self.seconds, self.processor_seconds = self.epoch + 1, 0, 0.0, 0.0
        self.order = self._order_state()
        self.finished = self._is_over()

    def _is_over(self) -> bool:
        """Whether training ends between the last epoch and the next, `epoch`."""
        done, patience = self.epoch - 1, self.config.patience
        since = done - max(self.history.best, math.ceil(self.config.kl_warmup))
        impatient = patience is not None and done >= self.beginnings[-1] and since >= patience
        return done >= self.config.epochs or impatient

    def _validate(self) -> tuple[float | None, float]:
        """The score of the present weights, and their ELBO on validation data."""
        arguments = self.vae, self.validation, self.config.seed, self.processes
        return validate(*arguments) if self.scored else (None, training_bound(*arguments))

    def stop(self) -> None:
        """End training after the epochs that are done; the history counts it as stopped unless it had finished."""
        self.history.stopped = not self.finished
        self.finished = True

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Within the context, the model has the moving average of its weights, if there is one."""
        current = {name: p.detach().clone() for name, p in self.vae.named_parameters()} if self.average else {}
        self._put(self.average)
        try:
            yield
        finally:
            self._put(current)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.vae.named_parameters():
            if name in values:
                parameter.copy_(values[name])

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self.vae.state_dict().items()}

    def take_best(self) -> None:
        """Leave the model with its best weights, in evaluation mode."""
        self.vae.load_state_dict(self.best)
        self.vae.eval()

    # Saving and restoring -------------------------------------------------------------------------

    def capture(self, last: bool = False) -> Checkpoint:
        """Everything on which the rest of training depends; after the end, only the best weights and the history.

        Arguments:
            last: Capture the state after the last epoch as one from which a longer training can go on.
        """
        finished = self.finished and not last
        record = {"history": self.history.record(), "finished": finished}
        best = _below("best", self.best)
        if finished:
            return Checkpoint(best, record)
        states = self.optimiser.state_dict()["state"].items()
        optimiser = {f"{number}/{key}": value for number, state in states for key, value in state.items()}
        tensors = {
            **best,
            **_below("model", self.vae.state_dict()),
            **_below("average", self.average),
            **_below("optimiser", optimiser),
            **_below("random", self._random_states()),
            "order": self.order,
        }
        names = ("epoch", "step", "updates", "total", "count", "seconds", "processor_seconds")
        position = {name: getattr(self, name) for name in names}
        return Checkpoint(
            tensors,
            {
                **record,
                **position,
                "top": None if self.top == -math.inf else self.top,
                "beginnings": self.beginnings,
                "stages": self.stages,
                "scored": self.scored,
            },
        )

    def restore(self, checkpoint: Checkpoint) -> None:
        """Return to the state in which the checkpoint was taken."""
        record = checkpoint.record
        self.history, self.finished = History.from_record(record["history"]), record["finished"]
        self.best = {name: value.to(self.processes.device) for name, value in checkpoint.part("best").items()}
        if self.finished:
            return
        self.vae.load_state_dict(checkpoint.part("model"))
        self.average = {name: torch.empty_like(p).copy_(value) for (name, p), value in self._paired(checkpoint)}
        self._restore_optimiser(checkpoint.part("optimiser"))
        for name in ("epoch", "step", "updates", "total", "count", "seconds", "beginnings", "stages"):
            setattr(self, name, record[name])
        self.processor_seconds = record.get("processor_seconds", self.seconds)  # which older checkpoints lack
        self.top = -math.inf if record["top"] is None else record["top"]
        self.scored = record.get("scored", False)
        self.order = checkpoint.tensors["order"]
        if self.training.generator is not None:
            self.training.generator.set_state(self.order)
        self._set_random_states(checkpoint.part("random"))
        self.finished = self.step == 0 and self.epoch > 1 and self._is_over()

    def _paired(self, checkpoint: Checkpoint) -> list[tuple[tuple[str, Tensor], Tensor]]:
        average = checkpoint.part("average")
        return [((name, p.detach()), average[name]) for name, p in self.vae.named_parameters() if name in average]

    def _restore_optimiser(self, values: dict[str, Tensor]) -> None:
        parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in values.items():
            number, _, key = name.partition("/")
            parameter = parameters[int(number)].detach()
            # The memory layout determines the order of summation, and with it the last bits.
            alike = value.dim() > 0 and value.shape == parameter.shape
            state.setdefault(int(number), {})[key] = torch.empty_like(parameter).copy_(value) if alike else value
        self.optimiser.load_state_dict({"state": state, "param_groups": self.optimiser.state_dict()["param_groups"]})

    def _order_state(self) -> Tensor:
        generator = self.training.generator
        return torch.empty(0, dtype=torch.uint8) if generator is None else generator.get_state()

    def _random_states(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self.processes.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.processes.device)
        return states

    def _set_random_states(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["cpu"])
        if self.processes.device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.processes.device)


def stage_beginnings(shares: list[float], epochs: int) -> list[int]:
    """The first epoch, from 1, of each stage: epochs are divided in proportion to `shares`, at least one per stage.

    Example:
        >>> stage_beginnings([2.0, 1.0, 1.0], 8)
        [1, 5, 7]
    """
    if epochs < len(shares):
        raise InputError(f"this method trains in {len(shares)} stages and needs at least as many epochs, got {epochs}")
    beginnings: list[int] = []
    done = 0.0
    for index, share in enumerate(shares):
        earliest = beginnings[-1] + 1 if beginnings else 1
        latest = epochs - (len(shares) - 1 - index)
        beginnings.append(min(max(earliest, 1 + round(epochs * done / sum(shares))), latest))
        done += share
    return beginnings


def _what_is_not_finite(vae: VAE, x: Tensor, rows: Tensor | None, loss: Tensor) -> str:
    """A clause that names the parameter and the rows of the data that are not finite."""
    gradients = ((name, p.grad) for name, p in vae.named_parameters() if p.grad is not None)
    culprits = [name for name, p in vae.named_parameters() if not torch.isfinite(p).all()]
    culprits = culprits or [name for name, grad in gradients if not torch.isfinite(grad).all()]
    with torch.no_grad():
        values = vae.inference.elbo(x, vae).value
    bad = (~torch.isfinite(values)).nonzero().flatten()
    problem = f"the loss is {loss.item():g}" if not torch.isfinite(loss) else "a gradient is not finite"
    if torch.isfinite(loss) and not culprits:  # every gradient is finite, but the sum of their squares is not
        problem = "the gradients are too large"
        sizes = {name: p.grad.abs().max().item() for name, p in vae.named_parameters() if p.grad is not None}
        culprits = [max(sizes, key=lambda name: sizes[name])]
    parameter = f"; first parameter at fault: {culprits[0]}" if culprits else ""
    numbers = (bad if rows is None else rows[bad.cpu()])[:5].tolist()
    data = f"; rows of the {'batch' if rows is None else 'data'} at fault: {numbers}" if numbers else ""
    return f"{problem}{parameter}{data}"


def _below(name: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"{name}/{key}": tensor for key, tensor in tensors.items()}
