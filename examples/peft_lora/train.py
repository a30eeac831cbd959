"""Fine-tune a small Llama with peft's LoRA in a plain loop: `python train.py`."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup, set_seed

VOCABULARY = 256
MODULES = ["embed_tokens", "lm_head"]  # these modules are trained completely, because the vocabulary is new


def make_training(seed=0, device="cpu", learning_rate=1e-2, steps=300):
    set_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    projections = ["q_proj", "k_proj", "v_proj", "o_proj"]
    lora = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, target_modules=projections, modules_to_save=MODULES)
    model = get_peft_model(LlamaForCausalLM(config), lora).to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, weight_decay=0.01)
    return model, optimizer, get_linear_schedule_with_warmup(optimizer, 10, steps)


def make_batch(index, seed=0, size=8, length=32):
    """Return sequences that count upwards from a random start by a random stride."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + index)
    start, stride = torch.randint(1, VOCABULARY, (2, size, 1), generator=generator)
    return {"input_ids": (start + stride % 8 * torch.arange(length)) % VOCABULARY}


def update(model, optimizer, batch):
    model.train()
    loss = model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, optimizer, scheduler = make_training(device=device)
    model.print_trainable_parameters()
    for index in range(100):
        loss = update(model, optimizer, {name: tensor.to(device) for name, tensor in make_batch(index).items()})
        scheduler.step()
        if index % 10 == 9:
            print(f"step {index + 1}: loss {loss.item():.4f}")
