"""The sharded transformer as a system. What FSDP2 adds to the adapter of a single process is one line."""

from dataclasses import replace

from harness.system.protocol import Expectation
from harness.system.ranks import world_size
from harness.system.step_function import PlantedFault, StepFunctionSystem


class Fsdp2(StepFunctionSystem):
    name = "fsdp2"
    models = ("tiny", "cuda")
    arm_options = {"learning_rate": float, "parallel": ("sharded", "replicated"), "compile": ("inductor", "aot_eager")}
    layers = 2

    def build(self, workload, arm):
        import torch

        from examples.ranks.fsdp2 import train

        settings, shape = arm.settings(), train.SHAPES[workload.model]
        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = train.make_model(shape, workload.seed, device)
        if "compile" in settings:
            model = train.compiled(model, settings["compile"])
        trained = model
        if world_size() > 1:
            trained = train.replicated(model) if settings.get("parallel") == "replicated" else train.sharded(model)
        optimizer = train.make_optimizer(model, settings.get("learning_rate", 3e-3))
        size = workload.batch_size, workload.seq_len
        batch = lambda index: train.make_batch(index, shape.words, workload.seed, *size)
        return (lambda b: train.train_step(trained, optimizer, b)), batch, (lambda: dict(model.named_parameters()))
