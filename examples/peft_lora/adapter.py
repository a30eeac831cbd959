"""peft's LoRA in a plain loop as a system: the script's own update; its scheduler follows each step."""

from harness.system.capturable import make_capturable
from harness.system.step_function import StepFunction, StepFunctionSystem


class PeftLora(StepFunctionSystem):
    name = "peft LoRA"
    layers = 2

    def build(self, workload, arm):
        import torch

        from examples.peft_lora import train

        device = "cuda" if torch.cuda.is_available() else "cpu"
        rate = arm.settings().get("learning_rate", 1e-2)
        model, optimizer, scheduler = train.make_training(workload.seed, device, rate)
        if arm.capture == "step":
            make_capturable(optimizer)
        return StepFunction(
            step=lambda batch: train.update(model, optimizer, batch),
            batch=lambda index: train.make_batch(index, workload.seed, workload.batch_size, workload.seq_len),
            parameters=lambda: {name: each for name, each in model.named_parameters() if each.requires_grad},
            after=scheduler.step,
        )
