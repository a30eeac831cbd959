"""The sharded transformer as a system: with several ranks the model passes through `train.sharded(model)`."""

from functools import partial

from harness.system.ranks import world_size
from harness.system.step_function import StepFunctionSystem


class Fsdp2(StepFunctionSystem):
    name = "fsdp2"
    models = ("tiny", "wide")
    arm_options = {"learning_rate": float, "parallel": ("sharded", "replicated"), "compile": bool}

    def build(self, workload, arm):
        import torch

        from examples.ranks.fsdp2 import train

        shape, device = train.SHAPES[workload.model], "cuda" if torch.cuda.is_available() else "cpu"
        given = {"learning_rate": shape.learning_rate, "parallel": "sharded", "compile": False}
        settings = {**given, **arm.settings()}
        model = train.make_model(shape, workload.seed, device)
        model = train.compiled(model) if settings["compile"] else model
        trained = model
        if world_size() > 1:
            trained = train.sharded(model) if settings["parallel"] == "sharded" else train.replicated(model)
        optimizer = train.make_optimizer(model, settings["learning_rate"])
        size = workload.batch_size, workload.seq_len
        batch = lambda index: train.make_batch(index, shape.words, workload.seed, *size)
        return partial(train.train_step, trained, optimizer), batch, (lambda: dict(model.named_parameters()))
