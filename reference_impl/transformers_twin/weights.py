"""Build the model with transformers and peft from the checkpoint's directory, with linear layers rounded to NF4.

If bitsandbytes is installed, it rounds the weights to NF4. Otherwise each element is rounded to the nearest of the 16
values in the QLoRA paper (Dettmers et al. 2023, appendix E), in blocks of 64.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reference_impl.transformers_twin.declared import Declared
from reference_impl.transformers_twin.text import generator_of

BLOCK = 64  # block size of the quantization: number of elements that share one scale, their largest absolute value
PAPER_TABLE = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_LORA = re.compile(r".*\.layers\.(\d+)\.self_attn\.([qv])_proj\.lora_([AB])\.default\.weight")
_GAIN = re.compile(r".*\.layers\.(\d+)\.(input|post_attention)_layernorm\.weight")
_GAINS = {"input": "input_norm", "post_attention": "post_attn_norm"}


def build(told: Declared, device: torch.device) -> tuple[Any, dict[str, nn.Parameter]]:
    """Return the peft model in the declared dtype, and the trained tensors by the trainer's names, in order.

    Trained tensors have at least float32 precision. In a bfloat16 model, LoRA's factors and the gains are float32, as
    in peft.
    """
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(
        told.checkpoint, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
    ).to(device)
    with torch.no_grad():
        for name, module in plain.named_modules():
            if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
                module.weight.copy_(through_nf4(module.weight))
    lora = LoraConfig(r=told.rank, lora_alpha=told.alpha, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    model: Any = get_peft_model(plain, lora)
    trained: dict[str, nn.Parameter] = {}
    dtype: torch.dtype = getattr(torch, told.dtype)
    # Convert only parameters and not buffers, so that the frequencies of the rotation stay float32.
    for name, parameter in model.named_parameters():
        ours = _name(name)
        parameter.requires_grad_(ours is not None)
        parameter.data = parameter.data.to(dtype if ours is None else torch.promote_types(dtype, torch.float32))
        if ours is not None:
            trained[ours] = parameter
    draw(trained, told.seed)
    return model, trained


def _name(theirs: str) -> str | None:
    """Return the trainer's name, such as `layers.0.lora_a_q`, for peft's tensor `theirs`. None: a frozen tensor."""
    if found := _LORA.fullmatch(theirs):
        layer, projection, factor = found.groups()
        return f"layers.{layer}.lora_{factor.lower()}_{projection}"
    if found := _GAIN.fullmatch(theirs):
        return f"layers.{found[1]}.{_GAINS[found[2]]}"
    return None


def draw(trained: dict[str, nn.Parameter], seed: int) -> None:
    """Draw each factor A from U(-b, b), b = 1/sqrt(columns), as peft does, by a generator for (seed, name). B stays
    0."""
    with torch.no_grad():
        for name, parameter in trained.items():
            if ".lora_a_" in name:
                bound = 1 / math.sqrt(parameter.shape[1])
                parameter.copy_(torch.rand(parameter.shape, generator=generator_of(seed, name)) * 2 * bound - bound)


def through_nf4(weight: Tensor) -> Tensor:
    """Return a float32 matrix after it was quantized to NF4 in blocks of 64 and dequantized."""
    try:
        from bitsandbytes.functional import dequantize_4bit, quantize_4bit
    except ImportError:
        return through_table(weight)
    codes, state = quantize_4bit(weight.detach().contiguous(), blocksize=BLOCK, quant_type="nf4")
    dense: Tensor = dequantize_4bit(codes, state)
    return dense


def through_table(weight: Tensor) -> Tensor:
    """Do the same as `through_nf4`, with the table in the paper.

    Each element is replaced by the nearest of the 16 values, multiplied by the largest absolute value of its block.
    """
    table = torch.tensor(PAPER_TABLE)
    blocks = weight.detach().float().reshape(-1, BLOCK)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    scaled = blocks * torch.where(largest > 0, 1 / largest, 0.0)
    nearest = (scaled[:, :, None].double() - table.double()).abs().argmin(dim=2)
    return (table[nearest] * largest).reshape(weight.shape)


def versions(told: Declared) -> dict[str, str]:
    """Return the versions of the libraries, the name of the code that dequantized the weights, and the name of the
    checkpoint."""
    import importlib.metadata

    named = {name: importlib.metadata.version(name) for name in ("transformers", "peft", "torch")}
    try:
        dequantized = f"bitsandbytes {importlib.metadata.version('bitsandbytes')}"
    except importlib.metadata.PackageNotFoundError:
        dequantized = "the paper's code table"
    return {**named, "dequantized_by": dequantized, "checkpoint": Path(told.checkpoint).name}
