"""A model under torch.compile as a system: the script's own step, on a model compiled as the arm says."""

from harness.system.capturable import make_capturable
from harness.system.step_function import StepFunction, StepFunctionSystem


class CompiledModel(StepFunctionSystem):
    name = "torch.compile"
    arm_options = {"learning_rate": float, "compile": ("none", "default", "reduce-overhead")}
    layers = 4

    def build(self, workload, arm):
        import torch

        from examples.compiled_model import train

        settings = {"learning_rate": 1e-3, "compile": "none", **arm.settings()}
        mode = None if settings["compile"] == "none" else settings["compile"]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model, optimizer = train.make_training(workload.seed, device, settings["learning_rate"], mode)
        if arm.capture == "step":
            make_capturable(optimizer)
        return StepFunction(
            step=lambda batch: train.train_step(model, optimizer, batch),
            batch=lambda index: train.make_batch(index, workload.seed, workload.batch_size),
            parameters=lambda: dict(model.named_parameters()),
        )
