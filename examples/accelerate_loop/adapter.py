"""A loop with Accelerate as a system: the script's own step; its scheduler follows each step."""

from harness.system.capturable import make_capturable
from harness.system.step_function import StepFunction, StepFunctionSystem


class AccelerateLoop(StepFunctionSystem):
    name = "Accelerate"
    arm_options = {"learning_rate": float, "momentum": ("cycled", "constant")}

    def build(self, workload, arm):
        from examples.accelerate_loop import train

        settings = {"learning_rate": 5e-3, "momentum": "cycled", **arm.settings()}
        cycled = settings["momentum"] == "cycled"
        made = train.make_training(workload.seed, settings["learning_rate"], cycle_momentum=cycled)
        accelerator, model, optimizer, scheduler = made
        if arm.capture == "step":
            make_capturable(optimizer)
        return StepFunction(
            step=lambda batch: train.train_step(accelerator, model, optimizer, batch),
            batch=lambda index: train.make_batch(index, workload.seed, workload.batch_size, workload.seq_len),
            parameters=lambda: dict(model.named_parameters()),
            after=scheduler.step,
        )
