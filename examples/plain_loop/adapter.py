"""The plain loop as a system: its step as written, or its update without the lines that wait for the device."""

from harness.system.capturable import make_capturable
from harness.system.step_function import StepFunction, StepFunctionSystem


class PlainLoop(StepFunctionSystem):
    name = "plain loop"
    arm_options = {"learning_rate": float, "step": ("train_step", "update")}
    layers = 2

    def build(self, workload, arm):
        import torch

        from examples.plain_loop import train

        settings = {"learning_rate": 3e-3, "step": "train_step", **arm.settings()}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, optimizer, scheduler = train.make_training(workload.seed, device, settings["learning_rate"])
        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size, workload.seq_len)
        parameters = lambda: dict(model.named_parameters())
        if settings["step"] == "train_step":
            log = []
            return StepFunction(lambda b: train.train_step(model, optimizer, scheduler, b, log), batch, parameters)
        make_capturable(optimizer)
        return StepFunction(lambda b: train.update(model, optimizer, b), batch, parameters, after=scheduler.step)
