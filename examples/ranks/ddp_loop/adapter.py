"""The loop as a system, of one rank or several: its single-process adapter and one more line."""

from harness.system.ranks import data_parallel
from harness.system.step_function import StepFunctionSystem


class DdpLoop(StepFunctionSystem):
    name = "ddp loop"
    layers = 2

    def build(self, workload, arm):
        import torch

        from examples.ranks.ddp_loop import train

        settings = {"learning_rate": 1e-2, **arm.settings()}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, optimizer = train.make_training(workload.seed, device, settings["learning_rate"])
        replica = data_parallel(model)  # the only line that several ranks need
        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size)
        return (lambda b: train.train_step(replica, optimizer, b)), batch, (lambda: dict(model.named_parameters()))
