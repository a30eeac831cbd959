"""What of a source file makes a step, and the error for what does not: with file and line, and nothing is run."""

from __future__ import annotations

import queue
import random
import typing
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.first_contract.step_source import find_step_source

HOSTILE = "raise SystemExit('the module was run')\n"


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(asked: str) -> str:
    with pytest.raises(UsageError) as raised:
        find_step_source(asked)
    return str(raised.value)


def written(text: str, name: str = "train.py") -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(HOSTILE + text)


def test_a_step_function_is_found_with_its_arguments_without_running_its_module(project: Path) -> None:
    written("def make_step(seed, *, batch_size=16, rate=0.1):\n    return step, batch, model\n")
    for asked in ("train:make_step", "train.py:make_step"):
        source = find_step_source(asked)
        assert (source.module, source.folder, source.place) == ("train", None, "train.py:2")
        assert (source.arguments, source.defaults) == (("seed", "batch_size"), {"batch_size": 16})


@pytest.mark.parametrize(
    ("file", "asked", "module", "folder"),
    [
        ("scripts/train.py", "scripts/train.py:make", "train", "scripts"),
        ("scripts/train.py", "scripts.train:make", "scripts.train", None),
        ("package/train.py", "package/train.py:make", "package.train", None),
        ("src/package/train.py", "src/package/train.py:make", "package.train", "src"),
    ],
)
def test_a_file_is_imported_as_python_would(
    file: str, asked: str, module: str, folder: str | None, project: Path
) -> None:
    written("def make():\n    return step, batch, model\n", file)
    if "package" in file:
        (project / file).with_name("__init__.py").touch()
    source = find_step_source(asked)
    assert (source.module, source.folder) == (module, project / folder if folder else None)


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("random.py", f"another `random`: {random.__file__}; rename the file"),
        ("time.py", "another `time`: Python's own; rename the file"),
        ("test.py", "another `test`: "),
        (
            "a_library_of_theirs.py",
            "another `a_library_of_theirs`: {elsewhere}/a_library_of_theirs.py; rename the file; or, if",
        ),
        ("typing/train.py", f"another `typing`: {typing.__file__}; rename the file"),
        ("scripts/queue.py", f"another `queue`: {queue.__file__}; rename the file"),
    ],
)
def test_a_file_whose_module_python_finds_elsewhere_is_refused(
    file: str, found: str, project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a_library_of_theirs.py").touch()
    monkeypatch.syspath_prepend(str(elsewhere))
    written("def make():\n    return step, batch, model\n", file)
    if file.startswith("typing"):
        (project / "typing" / "__init__.py").touch()
    with pytest.raises(UsageError) as refused:
        find_step_source(f"{file}:make")
    assert str(refused.value).startswith(f"{file}: Python must import this file, and no other module of the same name")
    assert found.format(elsewhere=elsewhere) in str(refused.value)


@pytest.mark.parametrize("file", ["train.py", "scripts/a_library_of_theirs.py", "package/__init__.py"])
def test_a_file_that_python_would_import_first_is_accepted(
    file: str, project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder on the import path has priority over a folder of the same name that is not a package."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "a_library_of_theirs.py").touch()
    (elsewhere / "train").mkdir()
    monkeypatch.syspath_prepend(str(elsewhere))
    written("def make():\n    return step, batch, model\n", file)
    assert find_step_source(f"{file}:make").file == project / file


LOOP = """def main():
    model = make()
    for epoch in range(3):
        for index in range(9):
            loss = model(batch(index))
            loss.backward()
            print(loss.item())
"""


MAKES = ": `main` must make a step and leave the loop to its caller: it must return step, batch, model; found "
TAKES = (
    ": `main` may require only the arguments workload, arm, seed, batch_size, seq_len, captured, optimized; "
    "any other argument must have a default; found "
)
WRITTEN = ": `main` must be defined with `def` in the named file; found an import; name the file that defines it: "
TRAINER = "    trainer = Trainer()\n    trainer.train()\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            LOOP,
            f"train.py:2{MAKES}no return value, and a training loop at line 5 with `backward()` at line 7; of lines",
        ),
        (f"def main():\n{TRAINER}", "no return value, and `trainer.train()` at line 4, which runs its own loop"),
        (f"def main():\n{TRAINER}", "return `trainer` before that call, because the harness makes the call"),
        ("def main():\n    pl.Trainer().fit(model, data)\n", "`pl.Trainer().fit()` at line 3, which runs its own loop"),
        ("def main(captured) -> Trainer:\n    return made()\n", "found `captured`; rename the argument to `optimized`"),
        ("def main():\n    model.train()\n", "found no return value; end the function with"),
        ("def main():\n    return step, batch\n", f"train.py:3{MAKES}2 values"),
        ("def main():\n    return {'step': step}\n", "found `{'step': step}`"),
        ("def main():\n    yield step, batch, model\n", "found a generator"),
        ("async def main():\n    return step, batch, model\n", "found a generator, or an async function"),
        ("def main(seed,\n         config):\n    return a, b, c\n", f"train.py:3{TAKES}`config` without a default"),
        ("def main(seed, /):\n    return a, b, c\n", "found `seed` without a default"),
        (
            "def main(captured, optimized):\n    return a, b, c\n",
            "found both; write two functions, one with each argument, and name one of them",
        ),
        ("from .steps import make as main\n", f"train.py:2{WRITTEN}`.steps:make`"),
        ("class main:\n    pass\n", "train.py:2: `main` must be a function; found a class"),
        ("def mains():\n    pass\n", "found only mains; did you mean 'mains'?"),
        ("def main(:\n", "train.py:2: the file must be valid Python; found invalid syntax"),
        ("def main():\n    return '\0'\n", "null bytes"),
        ("x = " + "(" * 500 + ")" * 500, "too many nested parentheses"),
    ],
)
def test_a_function_that_builds_no_step_is_refused_with_its_place(text: str, found: str) -> None:
    written(text)
    assert found in refused("train.py:main")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("train", "a function must be named `module:function`, or `path/to/file.py:function`; found `train`"),
        ("train:make step", "a function must be named"),
        ("missing.py:main", "missing.py: the path must exist"),
        ("missing:main", "Python must be able to find the module; found no `missing`"),
        ("tr-ain:main", "a module's name must consist of identifiers, joined by dots; found `tr-ain`"),
        ("class.py:main", "the file's name must be a Python identifier"),
        ("latin.py:main", "latin.py: the file must be valid Python"),
        ("folder.py:main", "folder.py: the file must exist; found no file there"),
    ],
)
def test_an_argument_that_names_no_function_is_refused(asked: str, found: str, project: Path) -> None:
    written("", "class.py")
    (project / "latin.py").write_bytes(b"# \xe9\n")
    (project / "folder.py").mkdir()
    assert found in refused(asked)


def test_a_return_value_not_visible_in_the_source_is_checked_only_when_the_step_runs() -> None:
    written("def main():\n    return StepFunction(step=step, batch=batch, parameters=parameters)\n")
    assert find_step_source("train.py:main").line == 2
    written("if True:\n    def main():\n        return parts\n")
    assert find_step_source("train.py:main").line == 3


@pytest.mark.parametrize(
    ("text", "makes"),
    [
        ("def main() -> Trainer:\n    return made()\n", True),
        ("def main() -> 'trl.SFTTrainer':\n    return made()\n", True),
        ("def main():\n    return SentenceTransformerTrainer(model)\n", True),
        ("def main():\n    trainer = trl.SFTTrainer(model)\n    trainer.args.seed = 3\n    return trainer\n", True),
        ("class Mine(Trainer):\n    pass\n\ndef main():\n    return Mine(model)\n", True),
        ("def main():\n    trainer = L.Trainer()\n    return trainer, module, loader\n", True),
        ("def main():\n    return pl.Trainer(), module, loader\n", True),
        ("def main():\n    return made()\n", False),
        ("def main():\n    step = StepTrainer(model)\n    return step, batch, model\n", False),
        ("class Trainer:\n    pass\n\ndef main():\n    t = Trainer()\n    return t, batch, model\n", False),
        ("def main():\n    trainer = Trainer(model)\n    return trainer.step, trainer.batch, model\n", False),
        ("def make_trainer():\n    return step, batch, model\n", False),
        ("def make_trainer():\n    return StepFunction(step, batch, model)\n", False),
        ("def main():\n    return StepFunction(trainer.step, trainer.batch, model)\n", False),
    ],
)
def test_the_return_value_of_a_function_shows_whether_it_builds_a_trainer(text: str, makes: bool) -> None:
    written(text)
    name = text.partition("(")[0].rpartition(" ")[2] if "make_trainer" in text else "main"
    assert find_step_source(f"train.py:{name}").makes_trainer is makes


def test_a_function_named_make_trainer_builds_a_trainer() -> None:
    written("def make_trainer():\n    return made()\n")
    assert find_step_source("train.py:make_trainer").makes_trainer
