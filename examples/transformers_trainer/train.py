"""Train a small Llama with transformers' Trainer on a text of its own: `python train.py`."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Counting(Dataset):
    """Sequences that count on from a random start by a random stride: short to learn, and never the same twice."""

    def __init__(self, length, examples=16384, vocabulary=256):
        generator = torch.Generator().manual_seed(1)
        start, stride = torch.randint(1, vocabulary, (2, examples, 1), generator=generator)
        self.tokens = (start + stride % 8 * torch.arange(length)) % vocabulary

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def make_model(hidden=64, layers=2):
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return LlamaForCausalLM(config)


def make_trainer(model, batch_size=8, length=32, steps=500, rate=3e-3, seed=0):
    arguments = TrainingArguments(
        output_dir="trained",
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=rate,
        warmup_steps=5,
        lr_scheduler_type="cosine",
        max_grad_norm=1.0,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=seed,
    )
    return Trainer(model=model, args=arguments, train_dataset=Counting(length))


if __name__ == "__main__":
    torch.manual_seed(0)
    print(make_trainer(make_model(), steps=60).train())
