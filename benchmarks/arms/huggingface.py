"""Arms of transformers + peft + bitsandbytes, eager and compiled, and of Unsloth, which is built on these libraries.

Each arm runs the step that the documentation of its library shows: bf16 compute, NF4 weights, LoRA on q and v with fp32
factors, no gradient checkpointing, fused AdamW, `clip_grad_norm_` (no host sync). Each arm uses every option that makes
the step faster and has no disadvantage for a user.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.arms.job import (
    ALL_LINEAR,
    ALPHA,
    LEARNING_RATE,
    LORA_TARGETS,
    MAX_NORM,
    RANK,
    SEED,
    Job,
    OpenedArm,
    device_batch,
)


def open_huggingface(job: Job) -> OpenedArm:
    """Open the job's arm: ``hf_eager``, ``hf_cudnn`` or ``hf_reduce_overhead``."""
    model = peft_model(job)
    if job.arm == "hf_cudnn":
        on_gpu = torch.device(job.device).type == "cuda"
        # The choice of cuDNN's attention also applies to the backward pass, which uses the backend of the forward pass.
        return open_model(job, model, model, context=_cudnn_attention if on_gpu else nullcontext)
    if job.arm == "hf_eager":
        return open_model(job, model, model)
    compiled = torch.compile(model, mode="reduce-overhead", dynamic=False)
    opened = open_model(job, model, compiled, before_step=torch.compiler.cudagraph_mark_step_begin)
    return replace(opened, after_first_step=compile_facts)


def _cudnn_attention() -> AbstractContextManager[object]:
    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION)


def compile_facts() -> dict[str, Any]:
    """Return, by name, the numbers of skipped CUDA graphs and of graph breaks. Both make a compiled arm slower."""
    from torch._dynamo.utils import counters

    skips = int(counters["inductor"]["cudagraph_skips"])
    return {"cudagraph_skips": skips, "graph_breaks": sum(counters["graph_break"].values())}


def peft_model(job: Job) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    torch.manual_seed(SEED)
    dtype = compute_dtype(job)
    quantization = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype, bnb_4bit_use_double_quant=False
    )
    model = AutoModelForCausalLM.from_pretrained(
        job.checkpoint,
        quantization_config=quantization,
        dtype=dtype,
        device_map={"": job.device},
        attn_implementation="sdpa",
        local_files_only=True,
    )
    model.config.use_cache = False
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=LORA_TARGETS, task_type="CAUSAL_LM")
    return get_peft_model(model, lora)


def open_unsloth(job: Job) -> OpenedArm:
    """Open an arm with Unsloth's loader, kernels and loss.

    Unsloth must be imported before the other libraries, because it patches them. The arm ``unsloth_all_linear`` trains
    LoRA on every projection, as in Unsloth's documentation. Unsloth's fused LoRA kernels are used for an attention or
    an MLP only if all of its projections have LoRA.
    """
    everywhere = job.arm == "unsloth_all_linear"
    os.environ.setdefault("UNSLOTH_DISABLE_STATISTICS", "1")
    unsloth = import_module("unsloth")
    loader = unsloth.FastLanguageModel
    dtype = compute_dtype(job)
    model, _ = loader.from_pretrained(
        job.tokenized,
        max_seq_length=job.seq_len,
        dtype=dtype,
        load_in_4bit=True,
        use_gradient_checkpointing=False,
        local_files_only=True,
    )
    model = loader.get_peft_model(
        model,
        r=RANK,
        lora_alpha=ALPHA,
        lora_dropout=0.0,
        bias="none",
        target_modules=ALL_LINEAR if everywhere else LORA_TARGETS,
        use_gradient_checkpointing=False,
        random_state=SEED,
    )
    on_gpu = torch.device(job.device).type == "cuda"

    def mixed_precision() -> AbstractContextManager[object]:
        """Enable autocast as Unsloth's trainer does. Under autocast, Unsloth's kernels cast the fp32 factors of
        LoRA."""
        return torch.autocast("cuda", dtype=dtype) if on_gpu else nullcontext()

    opened = open_model(job, model, model, context=mixed_precision)
    opened.facts.update(quantization="NF4, double-quantized absmax", weights="nf4_double", unsloth=unsloth.__version__)
    if everywhere:
        opened.facts["trains"] = "LoRA on every projection; no norms"
    return opened


def compute_dtype(job: Job) -> torch.dtype:
    return torch.bfloat16 if torch.device(job.device).type == "cuda" else torch.float32


def _nothing() -> None:
    return None


def open_model(
    job: Job,
    model: Any,
    forward: Callable[..., Any],
    *,
    before_step: Callable[[], None] = _nothing,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> OpenedArm:
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    batches = job.batches()

    def step(index: int) -> Tensor:
        tokens = device_batch(batches, job, index)
        before_step()
        with context():
            loss: Tensor = forward(input_ids=tokens, labels=tokens).loss
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(trainable, MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone()

    facts = {
        "trainable_parameters": sum(parameter.numel() for parameter in trainable),
        "trains": "LoRA on q and v; no norms",
        "clip": "global, clip_grad_norm_",
        "quantization": "NF4, fp32 absmax",
        "weights": "nf4",
        "loss_positions": "all but the last of each row",
        "dtype": str(compute_dtype(job)),
        "lora_dtype": str(trainable[0].dtype),
    }
    return OpenedArm(step, facts)
