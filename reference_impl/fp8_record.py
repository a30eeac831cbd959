"""Count the matrix products of a step that run in FP8. The object that computes the products also counts them."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode

from reference_impl.fp8_model import Fp8Model
from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec
from reference_impl.trainer import Trainer

FP8_NAME = "float8_e4m3fn"
# number of products per decoder block: qkv, output, gate and up, down; each in the forward pass and for the input
# gradient
PRODUCTS_A_BLOCK = 8
# number of products of the head for each chunk of tokens; the logits of one chunk exist at one time
PRODUCTS_A_CHUNK = 2


def products_expected(trainer: Trainer) -> int:
    """Return the number of all products with frozen weights in one step of the current shape."""
    config, shape = trainer.config, trainer.static.shape
    chunks = -(-shape.tokens // config.chunk_tokens)
    blocks = PRODUCTS_A_BLOCK * trainer.model_config.num_layers
    return config.micro_batches * (blocks + PRODUCTS_A_CHUNK * chunks)


def products_counted(trainer: Trainer) -> int:
    """Return the number of products that run in FP8 in one step's forward and backward, counted on fake tensors."""
    model = trainer.model
    if not isinstance(model, Fp8Model):
        return 0
    before = model.products.count
    with FakeTensorMode(allow_non_fake_inputs=True), registry.launching_by(_launch_nothing):
        trainer.gradients_body()
    counted = model.products.count - before
    model.products.count = before
    return counted


def _launch_nothing(_spec: KernelSpec, _arguments: tuple[object, ...]) -> None:
    """Ignore a launch. The output tensors stay uninitialized."""


def precision_facts(trainer: Trainer) -> dict[str, int | str]:
    """Return facts about one step: `fp8_products` (number of FP8 products), `frozen_products` (number of all products
    with frozen weights), `compute_dtype`, and `dtype`. `dtype` is FP8 if both numbers are equal, otherwise the compute
    dtype."""
    counted, expected = products_counted(trainer), products_expected(trainer)
    compute = str(trainer.dtype).removeprefix("torch.")
    return {
        "dtype": FP8_NAME if counted == expected else compute,
        "compute_dtype": compute,
        "fp8_products": counted,
        "frozen_products": expected,
    }
