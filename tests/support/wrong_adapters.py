"""Wrong adapters, each made by one change of a correct adapter, with the expected error message."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

RIGHT = """from harness.system.step_function import StepFunction, StepFunctionSystem


class System(StepFunctionSystem):
    name = "a user's"

    def build(self, workload, arm):
        import torch

        torch.manual_seed(workload.seed)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch):
            optimizer.zero_grad()
            loss = (model(batch["x"]) - batch["y"]).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def batch(index):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
            return {"x": x, "y": x.sum(1, keepdim=True)}

        def parameters():
            return dict(model.named_parameters())

        return step, batch, parameters
"""


@dataclass(frozen=True)
class Wrong:
    """A correct adapter with its line `right` replaced by `wrong`. told: the message after the place.

    at: the line that the message names; by default the last line of `wrong`.
    """

    right: str
    wrong: str
    told: str
    at: str = ""

    def source(self) -> str:
        lines = RIGHT.split("\n")
        [place] = [number for number, line in enumerate(lines) if line.strip() == self.right]
        indent = lines[place].removesuffix(self.right)
        lines[place] = "\n".join(indent + line for line in self.wrong.split("\n"))
        return "\n".join(lines)

    def line(self) -> int:
        """Return the number of the line that the message names."""
        at = self.at or self.wrong.split("\n")[-1].strip()
        [number] = [number for number, text in enumerate(self.source().split("\n"), start=1) if text.strip() == at]
        return number

    def message(self, file: str) -> str:
        return f"{file}:{self.line()}{self.told}"

    def write(self, path: Path) -> None:
        path.write_text(self.source())


def _ends(line: str, told: str) -> Wrong:
    return Wrong("return step, batch, parameters", line, told)


def _build(line: str, found: str, at: str = "") -> Wrong:
    rule = "build must return StepFunction(step, batch, parameters), or a tuple of these three and optionally `state`"
    remedy = "end it with `return StepFunction(step=step, batch=batch, parameters=parameters)`"
    return Wrong("return step, batch, parameters", line, f": {rule}; found {found}; {remedy}", at)


def _member(line: str, name: str, found: str, call: str) -> Wrong:
    rule, remedy = f"`{name}`, as returned by build, must be a function", "define it as the harness calls it"
    return _ends(line, f": {rule}; found {found}; {remedy}: `def {call}: …`")


def _given_as_trained(value: str, found: str) -> Wrong:
    rule = "`parameters`, as returned by build, must be modules and tensors"
    remedy = "return the trained model: `return step, batch, model`"
    return _ends(f"return step, batch, {value}", f": {rule}; found {found}; {remedy}")


GROUP = "`params`, `lr`, `momentum`, `dampening`, `weight_decay`"
FROM_BUILD = {
    "nothing": _build("pass", "None", at="def build(self, workload, arm):"),
    "one_value": _build("return step", "a function"),
    "two_values": _build("return step, batch", "a tuple of 2"),
    "five_values": _build("return step, batch, parameters, dict, dict", "a tuple of 5"),
    "a_dictionary": _build('return {"step": step, "batch": batch}', "a dict with `step`, `batch`"),
    "a_generator": _build("yield step, batch, parameters", "a generator", at="def build(self, workload, arm):"),
    "a_number_as_step": _member("return 0.5, batch, parameters", "step", "a float", "step(batch)"),
    "one_batch": _member("return step, batch(0), parameters", "batch", "a dict with `x`, `y`", "batch(index)"),
    "names_of_parameters": _given_as_trained(
        "[name for name, _ in model.named_parameters()]", "the str 'weight' under `0`"
    ),
    "no_parameters": _given_as_trained("[]", "no parameter"),
    "groups_of_parameters": _given_as_trained("optimizer.param_groups", f"a dict with {GROUP} and 5 more under `0`"),
    "state_itself": _member(
        'return StepFunction(step, batch, parameters, state={"x": torch.ones(1)})',
        "state",
        "a dict with `x`",
        "state()",
    ),
    "another_field": _ends(
        "return StepFunction(step=step, batch=batch, params=parameters)",
        " in build `return StepFunction(step=step, batch=batch, params=parameters)`: "
        "TypeError: StepFunction.__init__() got an unexpected keyword argument 'params'",
    ),
}


def _loss(value: str, found: str, remedy: str) -> Wrong:
    rule = "step(batch) must return the loss: a floating-point tensor with one element"
    return Wrong("return loss.detach()", f"return {value}", f": {rule}; found {found}; {remedy}")


ALONE = "return only the loss, or a dictionary with `loss`"
COMPUTED = "return the loss as the model computed it, with `loss.detach()`"
WAITS = "return the tensor itself, because `.item()`, float() and `.numpy()` wait for the device in every step"
FROM_STEP = {
    "no_loss": _loss("None", "None", "end it with `return loss.detach()`"),
    "a_float": _loss("loss.item()", "a float", WAITS),
    "an_array": _loss("loss.detach().numpy()", "a numpy.ndarray", WAITS),
    "a_tuple": _loss("loss.detach(), {}", "a tuple of 2", ALONE),
    "a_list": _loss("[loss.detach()]", "a list of 1", ALONE),
    "a_dictionary": _loss('{"cost": loss.detach()}', "a dict with `cost`", ALONE),
    "a_float_in_a_dictionary": _loss('{"loss": loss.item()}', "a float", WAITS),
    "a_loss_a_row": _loss(
        "loss.detach().expand(8)",
        "a tensor of 8 (float32)",
        "reduce it to one number on its device, with `.mean()` or `.sum()`",
    ),
    "an_integer": _loss("loss.detach().long()", "a tensor of no dimensions (int64)", COMPUTED),
    "no_value": _loss(
        'loss.detach().to("meta")',
        "a tensor of no dimensions (float32) on the device meta, which has no values",
        COMPUTED,
    ),
}


def _batch(value: str, found: str, remedy: str) -> Wrong:
    rule = (
        "batch(index) must return tensors: one tensor, a tuple or list of tensors, or a dictionary of tensors by name"
    )
    right = 'return {"x": x, "y": x.sum(1, keepdim=True)}'
    return Wrong(right, f"return {value}", f": {rule}; found {found}; {remedy}")


EXAMPLE = "for example `return x, y`"
LEFT_OUT = "leave the value out, or convert it to a tensor"
SAME_NAMES = "shapes may change from step to step, but names must not: fill absent tensors with zeros"
SAME_PLACES = "return tuples, lists and dictionaries at the same places for every index"
FROM_BATCH = {
    "no_batch": _batch("None", "None at index 0", EXAMPLE),
    "a_generator": _batch("(each for each in (x, x))", "a generator at index 0", EXAMPLE),
    "empty": _batch("{}", "an empty dict at index 0", EXAMPLE),
    "an_empty_tuple": _batch("()", "a tuple of 0 at index 0", EXAMPLE),
    "a_tuple_of_text": _batch('x, "hello"', "the str 'hello' under `1`", LEFT_OUT),
    "numbers_inside": _batch('{"x": {0: x}, "y": x}', "the name 0", "give each tensor a string as its name"),
    "one_name_twice": _batch(
        '{"x.y": x, "x": {"y": x}, "y": x}', "two tensors under `x.y`", "give each tensor its own name"
    ),
    "a_list_for_a_tuple": _batch(
        '{"x": x, "y": x.sum(1, keepdim=True), "z": (x, x) if index < 2 else [x, x]}',
        "a different structure of the same tensors at index 2 than at index 0",
        SAME_PLACES,
    ),
    "a_longer_list": _batch(
        '{"x": x, "y": x.sum(1, keepdim=True), "z": [x] * (1 if index < 2 else 2)}',
        "`z.1` only at index 2",
        SAME_NAMES,
    ),
    "absent_at_times": _batch(
        '{"x": x, "y": x.sum(1, keepdim=True), "z": x if index < 2 else None}', "`z` only at index 0", SAME_NAMES
    ),
    "arrays": _batch(
        '{"x": x.numpy(), "y": x}', "a numpy.ndarray under `x`", "convert the array to a tensor with `torch.from_numpy`"
    ),
    "a_number": _batch(
        '{"x": x, "y": x, "rate": 0.1}',
        "a float under `rate`",
        "convert the value to a tensor with `torch.tensor`, because a captured step never reads a new Python float",
    ),
    "text": _batch('{"x": x, "y": "hello"}', "the str 'hello' under `y`", LEFT_OUT),
    "numbers_as_names": _batch("{0: x, 1: x}", "the name 0", "give each tensor a string as its name"),
    "a_name_more": _batch(
        '{"x": x, "y": x.sum(1, keepdim=True)} | ({"mask": x} if index == 2 else {})',
        "`mask` only at index 2",
        SAME_NAMES,
    ),
    "a_name_less": _batch(
        '{"x": x, "y": x.sum(1, keepdim=True)} if index < 2 else {"x": x}', "`y` only at index 0", SAME_NAMES
    ),
    "no_values": _batch(
        '{"x": x.to("meta"), "y": x}',
        "`x` on the device meta, which has no values",
        "create the tensor on the CPU or on the model's device",
    ),
}


def _named(value: str, found: str, remedy: str = "return `dict(model.named_parameters())`") -> Wrong:
    rule = "parameters() must return a dictionary of tensors by name"
    return Wrong("return dict(model.named_parameters())", f"return {value}", f": {rule}; found {found}; {remedy}")


def _trained(value: str, found: str, remedy: str) -> Wrong:
    rule = "parameters() must return the tensors that training updates, by name, all on one device"
    return Wrong("return dict(model.named_parameters())", f"return {value}", f": {rule}; found {found}; {remedy}")


FROM_PARAMETERS = {
    "nothing": _named("None", "None"),
    "a_list": _named("list(model.parameters())", "a list of 2"),
    "a_generator": _named("model.named_parameters()", "a generator"),
    "numbers_as_names": _named(
        "dict(enumerate(model.parameters()))", "the name 0", "give each tensor a string as its name"
    ),
    "the_model": _named('{"model": model}', "a torch.nn.modules.linear.Linear under `model`"),
    "none": _trained("{}", "no parameter", "name the trained tensors: `dict(model.named_parameters())`"),
    "copies": _trained(
        "{name: tensor.clone() for name, tensor in model.named_parameters()}",
        "`weight`, `bias`, and none of them is among the 2 tensors that SGD updates",
        "return the tensors themselves, not copies, of the model for which the optimizer was created",
    ),
    "no_values": _trained(
        '{name: tensor.to("meta") for name, tensor in model.named_parameters()}',
        "`weight`, `bias` on the device meta, which has no values",
        "give the parameters values, with `model.to_empty(device=…)` and their initialization",
    ),
    "no_shapes": _trained(
        '{**dict(model.named_parameters()), "later": torch.nn.UninitializedParameter()}',
        "`later` of a lazy module that no batch has passed through",
        "run one batch through the model under torch.no_grad() when the model is created, so that its parameters get "
        "their shapes",
    ),
    "two_devices": _trained(
        '{"weight": model.weight, "bias": model.bias.to("meta")}',
        "on cpu: `weight`; on meta: `bias`",
        "move the whole model to one device",
    ),
}


def _takes(right: str, call: str, wrong: str, remedy: str) -> Wrong:
    told = f": the harness must be able to call `{call}`; found `{wrong}`; define {remedy}"
    return Wrong(f"{right}:", f"{wrong}:", told)


METHOD = "`def build(self, workload, arm)`"
ENCLOSED = "; the function can read further values from the enclosing function"
SIGNATURES = {
    "build_without_arm": _takes(METHOD[1:-1], "build(workload, arm)", "def build(self, workload)", METHOD),
    "build_without_self": _takes(METHOD[1:-1], "build(workload, arm)", "def build(workload, arm)", METHOD),
    "build_with_more": _takes(METHOD[1:-1], "build(workload, arm)", "def build(self, workload, arm, device)", METHOD),
    "step_with_more": _takes(
        "def step(batch)", "step(batch)", "def step(batch, index)", f"`def step(batch)`{ENCLOSED}"
    ),
    "step_without_batch": _takes("def step(batch)", "step(batch)", "def step()", f"`def step(batch)`{ENCLOSED}"),
    "step_async": _takes("def step(batch)", "step(batch)", "async def step(batch)", f"`def step(batch)`{ENCLOSED}"),
    "batch_without_index": _takes("def batch(index)", "batch(index)", "def batch()", f"`def batch(index)`{ENCLOSED}"),
    "parameters_of_a_model": _takes(
        "def parameters()", "parameters()", "def parameters(model)", f"`def parameters()`{ENCLOSED}"
    ),
    "no_build": Wrong(
        "def build(self, workload, arm):",
        "def make(self, workload, arm):",
        ": a step-function system must define `build(self, workload, arm)`; found no `build` in System; "
        "docs/plugging-in-a-trainer.md shows a complete example",
        at="class System(StepFunctionSystem):",
    ),
}


def _raises(right: str, wrong: str, function: str, error: str, at: str = "") -> Wrong:
    return Wrong(right, wrong, f" in {function} `{at or wrong}`: {error}", at)


LINEAR = 'loss = (model(batch["x"]) - batch["y"]).square().mean()'
NO_GRADIENT = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
RAISING = {
    "detached": _raises("loss.backward()", "loss.detach().backward()", "step", NO_GRADIENT),
    "all_frozen": _raises(
        "model = torch.nn.Linear(4, 1)",
        "model = torch.nn.Linear(4, 1).requires_grad_(False)",
        "step",
        NO_GRADIENT,
        at="loss.backward()",
    ),
    "shapes": _raises(
        LINEAR,
        'loss = (model(batch["x"].T) - batch["y"]).square().mean()',
        "step",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 4x1)",
    ),
    "no_such_input": _raises(
        LINEAR, 'loss = (model(batch["z"]) - batch["y"]).square().mean()', "step", "KeyError: 'z'"
    ),
    "learning_rate": _raises(
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
        "optimizer = torch.optim.SGD(model.parameters(), lr=-0.1)",
        "build",
        "ValueError: Invalid learning rate: -0.1",
    ),
    "no_such_module": _raises(
        "import torch",
        "import torch, no_such_library",
        "build",
        "ModuleNotFoundError: No module named 'no_such_library'",
    ),
    "step_as_batch": _raises(
        "return step, batch, parameters",
        "return batch, step, parameters",
        "step",
        "TypeError: 'int' object is not subscriptable; the harness called `step` with the index 0, because build "
        "returned it as `batch`",
        at=LINEAR,
    ),
    "in_batch": _raises(
        "x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))",
        "x = torch.stack([])",
        "batch",
        "RuntimeError: stack expects a non-empty TensorList",
    ),
}
GROUPS = {
    "build": FROM_BUILD,
    "step": FROM_STEP,
    "batch": FROM_BATCH,
    "parameters": FROM_PARAMETERS,
    "signature": SIGNATURES,
    "raises": RAISING,
}
ADAPTERS = {f"{group}_{name}": wrong for group, adapters in GROUPS.items() for name, wrong in adapters.items()}

# --- refused when the system is described: before any run is opened -------------------------------------------


def _attribute(line: str, found: str) -> Wrong:
    told = (
        f": describe() must return a SystemDescription with plain values in all of its fields; found {found} "
        "({place})"
    )
    return Wrong('name = "a user\'s"', line, told)


DESCRIBED = {
    "name_of_a_number": _attribute("name = 5", "name: a int, not a str"),
    "one_model": _attribute('models = "tiny"', "models: a str, not a tuple or list"),
    "options_in_a_list": _attribute('arm_options = ["rank"]', "arm_options: a list, not a mapping"),
    "type_of_an_option": _attribute(
        'arm_options = {"rank": list}', "arm_options.rank: the type list, not one of bool, int, float, str"
    ),
    "import_fails": Wrong(
        "from harness.system.step_function import StepFunction, StepFunctionSystem",
        "from harness.system.step_function import StepFunctions",
        ": the system's module must be importable; found ImportError: cannot import name 'StepFunctions' from "
        "'harness.system.step_function' (",
    ),
    "arguments": Wrong(
        "def build(self, workload, arm):",
        "def __init__(self, size):\n    self.size = size\n\ndef build(self, workload, arm):",
        ": a system's class or factory must be callable without arguments; found TypeError: System.__init__() missing "
        "1 "
        "required positional argument: 'size' ({place}); give its parameters default values, or create an instance in "
        "the module, `system = MySystem(…)`, and name it: `module:system`",
        at="class System(StepFunctionSystem):",
    ),
}
