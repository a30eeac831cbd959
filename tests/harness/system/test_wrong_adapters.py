"""Wrong adapters, one mistake each: what their authors are told, with file and line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from wrong_adapters import ADAPTERS, DESCRIBED, RIGHT

from harness.contract.schema import Arm, Workload
from harness.errors import SystemResolutionError
from harness.system.adapter_checks import AdapterError
from harness.system.described import describe_all
from harness.system.resolve import resolve
from harness.system.users_code import message_of

WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The adapters as modules `wrong_<name>` in a folder on the path, and a right one."""
    (tmp_path / "right.py").write_text(RIGHT)
    for name, wrong in (ADAPTERS | DESCRIBED).items():
        wrong.write(tmp_path / f"wrong_{name}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("wrong_") and name != "wrong_adapters"]:
        del sys.modules[name]


def told(module: str, arm: Arm) -> str:
    """What stands in the evidence of an arm of the module's system, trained for four steps; "" where nothing does."""
    try:
        with resolve(f"{module}:System").open(WORKLOAD, arm) as run:
            for index in range(WORKLOAD.steps):
                run.step(index)
    except Exception as error:
        return message_of(error)
    return ""


@pytest.mark.parametrize("name", ADAPTERS)
def test_each_wrong_adapter_is_refused_with_the_defect_and_its_place(folder: Path, name: str) -> None:
    expected = ADAPTERS[name].message(f"wrong_{name}.py")
    assert told(f"wrong_{name}", Arm()) == expected


@pytest.mark.parametrize("name", ["step_a_float", "step_an_array", "raises_shapes", "raises_no_such_input"])
def test_a_captured_arm_gives_the_same_error_for_a_wrong_adapter(folder: Path, name: str) -> None:
    expected = ADAPTERS[name].message(f"wrong_{name}.py")
    assert told(f"wrong_{name}", Arm(capture="step")) == expected


def test_a_correct_adapter_gives_no_error(folder: Path) -> None:
    assert (told("right", Arm()), told("right", Arm(capture="step"))) == ("", "")


@pytest.mark.parametrize(
    ("workload", "settings", "attribute", "found"),
    [
        ({"model": "tinny"}, {}, "models = ", "no model 'tinny'; did you mean 'tiny'?"),
        ({}, {"rnk": 8}, "arm_options = ", "unknown arm option 'rnk'; did you mean 'rank'?"),
        ({}, {"rank": "8"}, "arm_options = ", "arm option 'rank' must be of type int, not '8'"),
        ({"options": {"length": 3}}, {}, "class System", "unknown workload option 'length'"),
    ],
)
def test_a_setting_that_the_system_does_not_have_is_refused(
    folder: Path, workload: dict[str, Any], settings: dict[str, Any], attribute: str, found: str
) -> None:
    source = RIGHT.replace('    name = "a user\'s"', '    models = ("tiny",)\n    arm_options = {"rank": int}')
    (folder / "wrong_settings.py").write_text(source)
    line = next(number for number, text in enumerate(source.split("\n"), start=1) if attribute in text)
    system = resolve("wrong_settings:System")
    with pytest.raises(AdapterError) as caught:
        system.open(
            WORKLOAD.model_copy(update={"model": "tiny", **workload}),
            Arm.model_validate({"capture": "none", **settings}),
        )
    named = {"models = ": "models", "arm_options = ": "arm_options", "class System": "workload_options"}[attribute]
    rule = f"a contract must use only values that the system's `{named}` lists"
    assert str(caught.value) == f"wrong_settings.py:{line}: {rule}; found {found}"


def test_at_least_forty_wrong_adapters_are_tested() -> None:
    assert len(ADAPTERS) >= 40


def test_each_wrong_system_description_is_refused_with_the_defect_and_its_place(folder: Path) -> None:
    answers = describe_all([f"wrong_{name}:System" for name in DESCRIBED])
    unlike = {}
    for (system, answer), (name, wrong) in zip(answers.items(), DESCRIBED.items(), strict=True):
        assert isinstance(answer, SystemResolutionError)
        expected = f"{system}{wrong.told.format(place=f'wrong_{name}.py:{wrong.line()}')}"
        if not str(answer).startswith(expected):
            unlike[expected] = str(answer)
    assert unlike == {}
