"""Supervised fine-tuning of a small Llama with TRL's SFTTrainer, on tokens made here: `python train.py`."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def make_tokenizer():
    """Words are the numbers from 0 to 255; nothing is downloaded."""
    words = {str(number): number for number in range(256)} | {"<pad>": 256, "<eos>": 257, "<unk>": 258}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def make_model():
    config = LlamaConfig(
        vocab_size=259,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=256,
        eos_token_id=257,
    )
    return LlamaForCausalLM(config)


def make_dataset(length, examples=1024):
    """Texts that count on from a random start by a random stride."""
    generator = torch.Generator().manual_seed(1)
    start, stride = torch.randint(1, 256, (2, examples, 1), generator=generator)
    numbers = (start + stride % 8 * torch.arange(length - 1)) % 256
    return Dataset.from_dict({"text": [" ".join(map(str, row)) for row in numbers.tolist()]})


def make_trainer(model, batch_size=8, length=32, steps=500, rate=3e-3, seed=0):
    arguments = SFTConfig(
        output_dir="trained",
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        max_length=length,
        learning_rate=rate,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=seed,
    )
    return SFTTrainer(
        model=model, args=arguments, train_dataset=make_dataset(length), processing_class=make_tokenizer()
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    print(make_trainer(make_model(), steps=60).train())
