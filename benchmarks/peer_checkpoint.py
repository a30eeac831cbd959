"""The weights from which all peers start, and the loss that each peer must have at step 0.

The reference loss is the loss of the model in transformers, in fp32, without TF32 and without kernels of this project.
Its weights are the checkpoint's weights after quantization to plain NF4, or to NF4 with a quantized absmax, by
Unsloth's or torchao's rule. Two controls show which differences the comparison can detect. One is the same model with
weights that were not quantized, the other is the loss of another batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.arms.job import SEED, Job
from reference_impl.checkpoint import RandomWeights, weight_shapes
from reference_impl.config import ModelConfig
from reference_impl.kernels.nf4 import naive
from reference_impl.kernels.nf4.naive import BLOCK, CODEBOOK
from reference_impl.nf4 import quantize

TORCHAO_SCALERS = 256  # number of blocks whose absmax values share a factor
NEAREST_AT_ONCE = 2**20  # number of elements whose distances to all codes are in memory at one time

Requantize = Callable[[Tensor], Tensor]
Losses = dict[str, dict[str, float]]


def write_checkpoint(config: ModelConfig, directory: Path, device: torch.device) -> Path:
    """Write random weights from a seed in bfloat16 and ``config.json`` to ``directory``. Return a second directory.

    The second directory has the same weights and a tokenizer, which is never used, because batches consist of tokens.
    """
    directory.mkdir(parents=True)
    source = RandomWeights(config, SEED, device)
    weights = {name: source.tensor(name).to(torch.bfloat16).cpu() for name in weight_shapes(config)}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(_config_json(config), indent=2) + "\n")
    tokenized = directory.with_name(f"{directory.name}-tokenized")
    tokenized.mkdir()
    for name in ("model.safetensors", "config.json"):
        (tokenized / name).symlink_to(directory.resolve() / name)
    _write_tokenizer(tokenized)
    return tokenized


def _config_json(config: ModelConfig) -> dict[str, Any]:
    from transformers import Qwen2Config

    described = Qwen2Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        max_position_embeddings=32768,
        rms_norm_eps=config.rms_norm_eps,
        rope_parameters={"rope_theta": config.rope_theta, "rope_type": "default"},
        tie_word_embeddings=config.tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=0,
    )
    settings: dict[str, Any] = described.to_diff_dict()
    return {**settings, "architectures": ["Qwen2ForCausalLM"], "dtype": "bfloat16", "use_cache": False}


def _write_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: number for number, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    first, second = alphabet[:2]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=first, pad_token=second)
    fast.save_pretrained(directory)


def _plain_nf4(weight: Tensor) -> Tensor:
    codes, absmax = quantize(weight)
    rows, cols = weight.shape
    return naive.dequantize(codes, absmax, rows, cols, torch.float32)


def _double_nf4(weight: Tensor) -> Tensor:
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(weight.float(), quant_type="nf4", compress_statistics=True)
    dense: Tensor = functional.dequantize_4bit(codes, state)
    return dense.view(weight.shape)


def torchao_nf4(weight: Tensor) -> Tensor:
    """Return ``weight`` [rows, columns] after torchao's NF4 quantization and dequantization, computed in the weight's
    dtype.

    Each value is divided by the absmax of its block and gets the nearest code. The values of the codes are rounded to
    four decimals. The mean of all absmax values is subtracted from each absmax. The differences are stored in 8 bits,
    as multiples of 1/128 of the largest difference in a group of `TORCHAO_SCALERS` blocks. For bfloat16 weights,
    quotients, distances and the mean are rounded to 8 significant bits as well. bitsandbytes computes in float32.
    Therefore weights from torchao differ more from plain NF4 than weights from bitsandbytes.
    """
    codes = torch.round(CODEBOOK, decimals=4).to(weight)
    blocks = weight.reshape(-1, BLOCK)
    absmax = blocks.abs().amax(dim=1)
    scaled = (blocks / absmax[:, None]).flatten()
    nearest = [(part[:, None] - codes).abs().min(dim=1).indices for part in torch.split(scaled, NEAREST_AT_ONCE)]
    mean = absmax.mean()
    scalers = (absmax - mean).view(-1, TORCHAO_SCALERS)
    factor = 256 / (2 * scalers.abs().amax(dim=1, keepdim=True))
    kept = (scalers * factor).round().clamp(-128, 127)
    again = (kept / factor).flatten() + mean
    return (codes[torch.cat(nearest)].view_as(blocks) * again[:, None]).view_as(weight)


@torch.no_grad()
def reference_losses(jobs: Sequence[Job]) -> list[Losses]:
    """Return the mean losses at step 0 for each job, by variant of the weights. All jobs must have the same checkpoint.

    The variants are ``nf4``, ``nf4_double``, ``nf4_torchao`` (if torchao supports the shapes), and the controls
    ``unquantized`` and ``other_batch``. Each variant has two losses: ``all`` is the mean over B*S targets, and
    ``shifted`` leaves out the last target of each row, as transformers does.
    """
    from transformers import AutoModelForCausalLM

    device = torch.device(jobs[0].device)
    model = AutoModelForCausalLM.from_pretrained(
        jobs[0].checkpoint, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    model = model.to(device).eval()
    losses: list[Losses] = [{"unquantized": _losses(model, job, 0)} for job in jobs]
    linear = [module.weight for name, module in model.named_modules() if name.endswith("_proj")]
    # Keep the weights of the checkpoint in bfloat16 on the host, because each variant quantizes them again.
    original = [weight.to("cpu", torch.bfloat16) for weight in linear]
    variants: dict[str, Requantize] = {"nf4_double": _double_nf4}
    if all(weight.numel() % (BLOCK * TORCHAO_SCALERS) == 0 for weight in original):
        variants["nf4_torchao"] = torchao_nf4
    variants["nf4"] = _plain_nf4
    for variant, requantize in variants.items():
        for weight, kept in zip(linear, original, strict=True):
            weight.copy_(requantize(kept.to(device)))
        for job, found in zip(jobs, losses, strict=True):
            found[variant] = _losses(model, job, 0)
    for job, found in zip(jobs, losses, strict=True):
        found["other_batch"] = _losses(model, job, 1)
    return losses


def _losses(model: Any, job: Job, index: int) -> dict[str, float]:
    tokens, targets = job.batches().batch(index, job.batch_size, job.seq_len)
    device = torch.device(job.device)
    rows = []
    for row, row_targets in zip(tokens.to(device), targets.to(device), strict=True):
        logits = model(input_ids=row[None]).logits[0]
        rows.append(torch.nn.functional.cross_entropy(logits, row_targets, reduction="none"))
    by_token = torch.stack(rows).double()
    return {"all": float(by_token.mean()), "shifted": float(by_token[:, :-1].mean())}
