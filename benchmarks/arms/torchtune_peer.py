"""torchtune's QLoRA of Qwen2, each layer compiled, as its single-device recipe does with ``compile=True``.

torchtune uses torchao's NF4. torchao quantizes the absmax values of each group of 256 blocks to 8 bits, with another
rule than bitsandbytes. Therefore the reference loss of this arm is computed with weights that were quantized by
torchao's rule (`benchmarks.peer_checkpoint.torchao_nf4`).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks.arms.huggingface import compile_facts, compute_dtype, open_model
from benchmarks.arms.job import ALPHA, RANK, SEED, Job, OpenedArm

_IGNORED = -100


def open_torchtune(job: Job) -> OpenedArm:
    """Open the arm ``torchtune_compiled``."""
    _prefer_own_torchao()
    model = _model(job)
    for layer in model.layers:
        layer.compile(dynamic=False)

    def forward(input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = model(input_ids)
        last = torch.full_like(labels[:, :1], _IGNORED)
        return SimpleNamespace(loss=loss(logits, torch.cat((labels[:, 1:], last), dim=1)))

    loss = import_module("torchtune.modules.loss").CEWithChunkedOutputLoss(ignore_index=_IGNORED)
    loss.forward = torch.compile(loss.forward)
    model.set_num_output_chunks(loss.num_output_chunks)
    opened = open_model(job, model, forward)
    opened.facts.update(
        quantization="torchao's NF4, double-quantized absmax",
        weights="nf4_torchao",
        torchtune=version("torchtune"),
        torchao=version("torchao"),
    )
    return replace(opened, after_first_step=compile_facts)


def _prefer_own_torchao() -> None:
    """Put the folder that contains torchtune, and the version of torchao that torchtune needs, first on the path (see
    `benchmarks/pack_peers.sh`)."""
    for entry in sys.path:
        packed = Path(entry) / "torchtune_peer"
        if packed.is_dir():
            sys.path.insert(0, str(packed))
            return


def _model(job: Job) -> Any:
    """Return the model with the weights of the checkpoint, which are quantized while they are copied. Only LoRA's
    factors are trained."""
    models, peft = import_module("torchtune.models.qwen2"), import_module("torchtune.modules.peft")
    convert = import_module("torchtune.models.qwen2._convert_weights").qwen2_hf_to_tune
    config = job.config
    torch.manual_seed(SEED)
    before = torch.get_default_dtype()
    torch.set_default_dtype(compute_dtype(job))
    try:
        with torch.device(job.device):
            model = models.lora_qwen2(
                lora_attn_modules=["q_proj", "v_proj"],
                vocab_size=config.vocab_size,
                num_layers=config.num_layers,
                num_heads=config.num_heads,
                num_kv_heads=config.num_kv_heads,
                embed_dim=config.hidden_size,
                intermediate_dim=config.intermediate_size,
                max_seq_len=job.seq_len,
                norm_eps=config.rms_norm_eps,
                rope_base=config.rope_theta,
                tie_word_embeddings=config.tie_word_embeddings,
                lora_rank=RANK,
                lora_alpha=ALPHA,
                quantize_base=True,
            )
    finally:
        torch.set_default_dtype(before)
    weights = load_file(Path(job.checkpoint) / "model.safetensors", device=job.device)
    named = convert(
        weights,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        dim=config.hidden_size,
        tie_word_embeddings=config.tie_word_embeddings,
    )
    adapters = peft.get_adapter_params(model)
    missing, unexpected = model.load_state_dict(named, strict=False)
    if unexpected or set(missing) - set(adapters):
        raise RuntimeError(
            f"weights do not fit: {unexpected[:3]} unexpected, {sorted(set(missing) - set(adapters))[:3]} missing"
        )
    peft.set_trainable_params(model, adapters)
    return model
