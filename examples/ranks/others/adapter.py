"""The four trainers as one system: the workload's model says which."""

from harness.system.step_function import StepFunction, StepFunctionSystem


class Others(StepFunctionSystem):
    name = "other ranks"
    models = ("accumulate", "zero1", "tensor", "experts")
    arm_options = {"learning_rate": float, "parts": int}
    layers = 2

    def build(self, workload, arm):
        import torch

        from examples.ranks.others import train

        settings = {"learning_rate": 1e-2, "parts": 1, **arm.settings()}
        device = "cuda" if torch.cuda.is_available() else "cpu"
        step, model = train.make_training(workload.model, workload.seed, device, **settings)
        batch = lambda index: train.make_batch(index, workload.seed, workload.batch_size)
        parameters = lambda: dict(model.named_parameters())
        return StepFunction(step, batch, parameters, after=lambda: train.log(model))
