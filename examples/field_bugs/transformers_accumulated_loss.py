"""transformers' Trainer averages the mean losses of micro-batches that have different numbers of labels."""

import tempfile

import torch

from examples.field_bugs.bug import Bug
from examples.field_bugs.packages import use_packages
from harness.system.step_function import StepFunction

BUG = Bug(
    title="Accumulated micro-batches train on a different loss than their batch",
    thread="huggingface/transformers#34191",
    package="transformers==4.45.2",
    installed={
        "buggy": [
            "transformers==4.45.2",
            "tokenizers==0.20.3",
            "huggingface-hub==0.26.5",
            "datasets==3.1.0",
            "accelerate==1.0.1",
        ],
        "mended": [
            "transformers==4.46.3",
            "tokenizers==0.20.3",
            "huggingface-hub==0.26.5",
            "datasets==3.1.0",
            "accelerate==1.0.1",
        ],
    },
    users_saw="The loss curve with gradient accumulation differed from the curve of the same batches without "
    "accumulation.",
    cause="Each micro-batch's loss is the mean over its own labels, and the trainer averages these means although the "
    "numbers of labels differ.",
    fix="The trainer first counts the labels of all micro-batches, and divides each summed loss by that number.",
)

ROWS = 4


def buggy(seed, optimized):
    use_packages(__file__, "buggy")
    return make_step(seed, optimized)


def mended(seed, optimized):
    use_packages(__file__, "mended")
    return make_step(seed, optimized)


def make_step(seed, optimized):
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    parts = ROWS if optimized else 1
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=24, attn_implementation="eager", **sizes))
    folder = tempfile.mkdtemp()
    arguments = TrainingArguments(folder, gradient_accumulation_steps=parts, use_cpu=True, report_to=[])
    trainer = Trainer(model, arguments)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch):
        optimizer.zero_grad()
        chunks = {name: tensor.chunk(parts) for name, tensor in batch.items()}
        micro = [{name: each[part] for name, each in chunks.items()} for part in range(parts)]
        counted = ()
        if hasattr(trainer, "get_batch_samples"):  # the fixed release first counts the labels of all micro-batches
            micro, items = trainer.get_batch_samples(iter(micro), parts)
            counted = (items,)
        loss = sum(trainer.training_step(model, each, *counted) for each in micro)
        optimizer.step()
        return loss.detach()

    def batch(index):
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        first = torch.randint(0, 24, (ROWS, 1), generator=generator)
        tokens = (first + torch.arange(12)) % 24
        labels = tokens.masked_fill(torch.arange(12) < 3 * torch.arange(ROWS)[:, None], -100)
        return {"input_ids": tokens, "labels": labels}

    return StepFunction(step=step, batch=batch, parameters=model)
