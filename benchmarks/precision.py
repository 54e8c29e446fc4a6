"""Measure a training step in float32, in bfloat16 by autocast, and compiled, for several methods.

Each variant is warmed up first, which for the compiled one takes minutes. The variants then take turns, and the medians
of their processor times are printed. A bfloat16 step can end the process with an illegal instruction on a virtual
machine that announces AMX but does not allow it; ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 avoids that.

    python benchmarks/precision.py --methods vae,gp,natural --variants float32,bfloat16,compile
"""

import argparse
import statistics
import time

import torch

import gpin

STEPS = 3
"""Training steps between two looks at the clock."""


def training_step(method, variant, x):
    """A function that makes one step of Adam on the batch x."""
    vae = gpin.build(tuple(x.shape[1:]), method, 10, seed=0)
    vae.prepare([x])
    vae.train()
    optimiser = torch.optim.Adam(vae.parameters(), lr=5e-4, fused=True)

    def loss():
        return vae.inference.objective(x, vae)[0]

    objective = torch.compile(loss) if variant == "compile" else loss

    def step():
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=variant == "bfloat16"):
            value = objective()
        value.backward()
        optimiser.step()

    return step


def warmed_up(method, variant, x):
    """The step after three steps, or None if this method cannot be trained so; says how long that took, or why not."""
    started = time.perf_counter()
    try:
        step = training_step(method, variant, x)
        for _ in range(3):
            step()
    except RuntimeError as error:
        print(f"{method} {variant}: fails, {str(error).strip().splitlines()[0]}", flush=True)
        return None
    print(f"{method} {variant}: warmed up in {time.perf_counter() - started:.0f} s", flush=True)
    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", default="vae,gp,natural")
    parser.add_argument("--variants", default="float32,bfloat16,compile")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.rand(128, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    for method in options.methods.split(","):
        found = {variant: warmed_up(method, variant, x) for variant in options.variants.split(",")}
        steps = {variant: step for variant, step in found.items() if step is not None}
        times = {variant: [] for variant in steps}
        for _ in range(options.rounds):
            for variant, step in steps.items():
                started = time.process_time()
                for _ in range(STEPS):
                    step()
                times[variant].append((time.process_time() - started) / STEPS)
        medians = {variant: statistics.median(values) for variant, values in times.items()}
        base = next(iter(medians.values()))
        for variant, value in medians.items():
            print(f"{method:8} {variant:9} {1000 * value:7.1f} ms  {value / base:.2f}", flush=True)


if __name__ == "__main__":
    main()
