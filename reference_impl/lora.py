"""The trainable tensors: LoRA on the query and value projections, and the two norm gains of each layer.

L layers, H hidden, r rank, QKV = (query heads + 2 * key/value heads) * head_dim.

All parameters are in one flat float32 buffer. Their gradients are in a second buffer with the same layout: layer by
layer, with six tensors in each layer, in the order of `TRAINABLE`. Therefore clip, optimizer and casts need only a few
launches for each step, for any number of layers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl.config import ModelConfig
from reference_impl.seeding import seeded_generator

TRAINABLE = ("lora_a_q", "lora_b_q", "lora_a_v", "lora_b_v", "input_norm", "post_attn_norm")


@dataclass(frozen=True)
class Slot:
    """The name, layer, offset and shape of one trainable tensor in the flat buffers."""

    name: str
    layer: int
    offset: int
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def view(self, flat: Tensor) -> Tensor:
        return flat[self.offset : self.offset + self.size].view(self.shape)


def layer_shapes(config: ModelConfig, rank: int) -> dict[str, tuple[int, ...]]:
    """Return a dictionary from name to shape of the trainable tensors of a layer, in the order of the buffer."""
    hidden = config.hidden_size
    return {
        "lora_a_q": (rank, hidden),
        "lora_b_q": (config.query_dim, rank),
        "lora_a_v": (rank, hidden),
        "lora_b_v": (config.kv_dim, rank),
        "input_norm": (hidden,),
        "post_attn_norm": (hidden,),
    }


def layout(config: ModelConfig, rank: int) -> list[Slot]:
    """Return the slots of all trainable tensors, in the order of the buffer. Names are ``layers.<i>.<tensor>``."""
    slots: list[Slot] = []
    offset = 0
    for layer in range(config.num_layers):
        for name, shape in layer_shapes(config, rank).items():
            slots.append(Slot(f"layers.{layer}.{name}", layer, offset, shape))
            offset += math.prod(shape)
    return slots


@dataclass(frozen=True)
class LayerTrainable:
    """Views of the tensors of one layer: LoRA factors in the compute dtype, float32 gains, and float32 gradients."""

    # [2r, H], compute dtype: the rows of alpha/rank * lora_a_q, then the rows of alpha/rank * lora_a_v
    scaled_a: Tensor
    # [QKV, 2r], compute dtype: lora_b_q at (query rows, first r), lora_b_v at (value rows, last r), and zeros elsewhere
    b: Tensor
    input_norm: Tensor  # [H]: the gain of attention's norm
    post_attn_norm: Tensor  # [H]: the gain of the MLP's norm
    grad_a: Tensor  # [2r, H], see `Trainable`
    grad_b: Tensor  # [QKV, 2r], see `Trainable`
    grad_norms: Tensor  # [2, H]: gradients of input_norm and of post_attn_norm, which are neighbors in the flat buffer


class Trainable:
    """The flat parameter and gradient buffers, copies of the LoRA factors, and intermediate results of gradients.

    The copies are in the compute dtype, and contain the factors of q and v in one matrix. So LoRA needs only one
    product for A and one for B: qkv += (n A'^T) B^T. n [T, H] is the normed input x * rstd * gain, and A' = alpha/rank
    * A. B has one block for q, one block for v, and zeros elsewhere. A decoder block writes its products into `grad_a`
    and `grad_b`. Then `finish_gradients` computes all layers' gradients (d/dX: of X) in the flat buffer:

        d/dA = alpha/rank * gain * grad_a,    grad_a = (d/d(n A'^T) * rstd)^T x        because n = x * rstd * gain
        d/dB = the blocks of grad_b,          grad_b = (d/dqkv)^T (n A'^T)
    """

    def __init__(
        self, config: ModelConfig, rank: int, alpha: float, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.slots = layout(config, rank)
        self.scale = alpha / rank
        total = sum(slot.size for slot in self.slots)
        self.flat = torch.zeros(total, dtype=torch.float32, device=device)
        self.gradient = torch.zeros_like(self.flat)
        layers, hidden, outputs = config.num_layers, config.hidden_size, config.qkv_dim
        self.scaled_a = torch.zeros(layers, 2 * rank, hidden, dtype=dtype, device=device)
        self.b = torch.zeros(layers, outputs, 2 * rank, dtype=dtype, device=device)
        self.grad_a = torch.zeros(layers, 2 * rank, hidden, dtype=torch.float32, device=device)
        self.grad_b = torch.zeros(layers, outputs, 2 * rank, dtype=torch.float32, device=device)
        self._rank = rank
        self._query_rows = slice(0, config.query_dim)
        self._value_rows = slice(outputs - config.kv_dim, outputs)
        self._by_name = {slot.name: slot for slot in self.slots}
        self._initialize(seed)

    def _initialize(self, seed: int) -> None:
        """Draw A from U(-b, b), b = 1/sqrt(hidden), as peft does (kaiming-uniform, a = sqrt(5)). Set B to 0, gains to
        1."""
        for slot in self.slots:
            view = slot.view(self.flat)
            kind = slot.name.rsplit(".", 1)[1]
            if kind.startswith("lora_a"):
                bound = 1 / math.sqrt(slot.shape[1])
                # Draw on the CPU, so that training starts from the same numbers on every device.
                draw = torch.rand(slot.shape, generator=seeded_generator(seed, slot.name, torch.device("cpu")))
                view.copy_(draw * 2 * bound - bound)
            elif kind.endswith("norm"):
                view.fill_(1.0)

    def parameters(self) -> dict[str, Tensor]:
        return {slot.name: slot.view(self.flat) for slot in self.slots}

    def gradients(self) -> dict[str, Tensor]:
        return {slot.name: slot.view(self.gradient) for slot in self.slots}

    def working_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that a step changes in addition to the flat buffers."""
        return {
            "lora_scaled_a": self.scaled_a,
            "lora_b": self.b,
            "lora_grad_a": self.grad_a,
            "lora_grad_b": self.grad_b,
        }

    def _all_layers(self, flat: Tensor, kind: str) -> Tensor:
        """Return a strided view [layers, *shape] of the tensor `kind` of all layers, so one launch can process them."""
        first = self._by_name[f"layers.0.{kind}"]
        layers = self.scaled_a.shape[0]
        return flat.view(layers, -1)[:, first.offset : first.offset + first.size].view(layers, *first.shape)

    def refresh_compute_copies(self) -> None:
        """Update the compute-dtype copies from the flat parameters."""
        rank = self._rank
        torch.mul(self._all_layers(self.flat, "lora_a_q"), self.scale, out=self.scaled_a[:, :rank])
        torch.mul(self._all_layers(self.flat, "lora_a_v"), self.scale, out=self.scaled_a[:, rank:])
        self.b[:, self._query_rows, :rank].copy_(self._all_layers(self.flat, "lora_b_q"))
        self.b[:, self._value_rows, rank:].copy_(self._all_layers(self.flat, "lora_b_v"))

    def finish_gradients(self) -> None:
        """Write the LoRA gradients of all layers into the flat gradient buffer (formulas: `Trainable`)."""
        rank = self._rank
        factor = (self._all_layers(self.flat, "input_norm") * self.scale)[:, None, :]
        torch.mul(self.grad_a[:, :rank], factor, out=self._all_layers(self.gradient, "lora_a_q"))
        torch.mul(self.grad_a[:, rank:], factor, out=self._all_layers(self.gradient, "lora_a_v"))
        self._all_layers(self.gradient, "lora_b_q").copy_(self.grad_b[:, self._query_rows, :rank])
        self._all_layers(self.gradient, "lora_b_v").copy_(self.grad_b[:, self._value_rows, rank:])

    def layer(self, index: int) -> LayerTrainable:
        def view(flat: Tensor, kind: str) -> Tensor:
            return self._by_name[f"layers.{index}.{kind}"].view(flat)

        first = self._by_name[f"layers.{index}.input_norm"]
        return LayerTrainable(
            scaled_a=self.scaled_a[index],
            b=self.b[index],
            input_norm=view(self.flat, "input_norm"),
            post_attn_norm=view(self.flat, "post_attn_norm"),
            grad_a=self.grad_a[index],
            grad_b=self.grad_b[index],
            grad_norms=self.gradient[first.offset : first.offset + 2 * first.size].view(2, first.size),
        )
