"""Which sources a run is of: the systems' packages, and every module of the user's own that they import."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from installed_packages import record_installed

from harness.cli.check import print_findings
from harness.devices import environment
from harness.errors import ExitCode, HarnessError
from harness.evidence import sources
from harness.evidence.modules import module_installed, module_spec
from harness.evidence.sources import source_digest
from harness.first_contract.draft import Arms, Draft, keep
from harness.first_contract.step_source import find_step_source


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = tmp_path / "a_package_of_sources"
    folder.mkdir()
    (folder / "__init__.py").write_text("x = 1\n")
    return folder


def test_an_oversized_source_file_is_refused_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package(tmp_path, monkeypatch)
    with (folder / "data.py").open("wb") as file:
        file.truncate(100 * 2**30)
    with pytest.raises(HarnessError) as refused:
        source_digest(["a_package_of_sources:System"])
    assert str(refused.value) == (
        f"{folder / 'data.py'}: the sources of a system must be readable files of limited size; "
        "found 107374182400 bytes, but at most 67108864 are allowed; keep data outside the package, or in files that "
        "do not end in "
        ".py"
    )


def test_files_that_are_not_readable_sources_do_not_change_the_source_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path, monkeypatch)
    before = source_digest(["a_package_of_sources:System"])
    (folder / ".#system.py").symlink_to("kim@host.1234:5678")  # the lock of an editor
    os.mkfifo(folder / "pipe.py")
    (folder / "folder.py").mkdir()
    (folder / "zeros.py").symlink_to("/dev/zero")
    (folder / "circle").symlink_to(folder)
    assert source_digest(["a_package_of_sources:System"]) == before


def test_modules_are_found_without_being_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explosive.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module_installed("explosive")
    assert not module_installed("no_such_module_at_all")
    assert not module_installed("no_such_package.below")


def test_the_source_digest_depends_on_content_not_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for place, text in (("first", "a = 1\n"), ("second", "a = 1\n"), ("third", "a = 2\n")):
        package = tmp_path / place / "digested_package"
        (package / "below").mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "below" / "module.py").write_text(text)
        (package / "notes.txt").write_text(place)  # no source
        with monkeypatch.context() as patch:
            patch.syspath_prepend(str(tmp_path / place))
            digests.append(source_digest(["digested_package.below.module:System"]))
    assert digests[0] == digests[1]
    assert digests[2] != digests[0]
    assert source_digest(["no_such_package:System"]) == source_digest()
    assert source_digest() != digests[0]


def test_every_source_file_is_listed_by_path_and_changes_only_the_digest_of_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = package(tmp_path, monkeypatch)
    for name in (
        "z.py",
        "below/a.py",
        "below/deeper/b.py",
        ".hidden/c.py",
        "below/notes.txt",
        "a.pyc",
        "k/a.cu",
        "k/b.cuh",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "link.py").symlink_to("z.py")
    systems = ["a_package_of_sources:System"]
    before = sources.listed_sources(systems)
    listed = [line.split()[0] for line in before["a_package_of_sources"].splitlines()]
    paths = (".hidden/c.py", "__init__.py", "below/a.py", "below/deeper/b.py", "k/a.cu", "k/b.cuh", "link.py", "z.py")
    assert listed == [f"a_package_of_sources/{path}" for path in paths]
    (folder / "below/deeper/b.py").write_text("changed")
    after = sources.listed_sources(systems)
    changed = {name: sources.package_digests(before)[name] != sources.package_digests(after)[name] for name in before}
    assert changed == {"a_package_of_sources": True, "harness": False}
    assert environment.collect(systems, before).source_digest != environment.collect(systems).source_digest


def test_import_statements_in_cuda_files_add_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = package(tmp_path, monkeypatch)
    (tmp_path / "of_the_users_own.py").write_text("x = 1\n")
    (folder / "kernel.cu").write_text("/*\nimport of_the_users_own\n*/\n")
    assert set(sources.listed_sources(["a_package_of_sources:System"])) == {"a_package_of_sources", "harness"}


def test_a_renamed_source_changes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "renaming_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("a = 1\n")
    before = source_digest(["renaming_package:System"])
    (package / "one.py").rename(package / "two.py")
    assert source_digest(["renaming_package:System"]) != before


def test_a_module_in_folders_that_are_not_packages_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nobodys" / "inner").mkdir(parents=True)
    (tmp_path / "nobodys" / "inner" / "trainer.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = module_spec("nobodys.inner.trainer")
    assert spec is not None
    assert spec.origin == str(tmp_path / "nobodys" / "inner" / "trainer.py")
    assert module_spec("nobodys.inner.missing") is None


def write(folder: Path, **files: str) -> None:
    """Modules by their names, `.` for a folder between."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__of__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


ADAPTER = "class System:\n    def build(self):\n        {}\n        return make_step()\n"
IMPORTS = {
    "in a function": ADAPTER.format("from our_train import make_step"),
    "at the top": "import our_train\n",
    "under another name": "import json, our_train as trainer  # the loop\n",
    "with others": "import sys, our_train; import json\n",
    "on one line": "try: import our_train\nexcept ImportError: our_train = None\n",
    "over lines": "from our_train import (\n    make_step,\n)\n",
    "by a backslash": "from our_train \\\n    import make_step\n",
    "with other ends of lines": "import json\r\nimport our_train\r\nx = 1\r\n",
    "of types alone": "if TYPE_CHECKING:\n    from our_train import Step\n",
    "by a call": "import importlib\nstep = importlib.import_module('our_train').make_step\n",
    "by a built-in": "step = __import__(\n    'our_train')\n",
}


@pytest.mark.parametrize("how", IMPORTS)
def test_a_module_next_to_the_system_is_a_source_however_it_is_imported(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "our_adapter.py").write_bytes(IMPORTS[how].encode())
    write(tmp_path, our_train="rate = 1\n", our_other="")
    before = sources.listed_sources(["our_adapter:System"])
    assert set(before) == {"harness", "our_adapter", "our_train"}
    write(tmp_path, our_train="rate = 2\n")
    after = sources.listed_sources(["our_adapter:System"])
    assert [name for name in after if after[name] != before[name]] == ["our_train"]


def test_indirect_imports_and_whole_packages_are_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    write(
        tmp_path,
        our_adapter="from our_train.steps import make_step\n",
        our_train__of__steps="from .inner import x\nimport our_losses\n",
        our_train__of__inner="import our_adapter\n",
        our_losses="def loss():\n    import our_kernels\n",
        our_kernels="",
        our_train__of__unused="",
    )
    listed = sources.listed_sources(["our_adapter:System"])
    assert set(listed) == {"harness", "our_adapter", "our_kernels", "our_losses", "our_train"}
    assert [line.split()[0] for line in listed["our_train"].splitlines()] == [
        "our_train/inner.py",
        "our_train/steps.py",
        "our_train/unused.py",
    ]


def test_libraries_the_standard_library_and_missing_modules_are_not_listed_as_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "environment" / "site-packages"
    monkeypatch.syspath_prepend(str(libraries))
    monkeypatch.syspath_prepend(str(tmp_path))
    names = "our_library, json, sys, os, xml, torch, harness.api.session, no_such_module, our_notes"
    write(tmp_path, our_adapter=f"import {names}\n", our_package__of__a="", our_package__of__b="")
    write(libraries, our_library="")
    write(tmp_path / "our_package" / "site-packages", our_dependency="")
    (tmp_path / "our_notes").mkdir()
    (tmp_path / "our_adapter.py").write_text(f"import {names}, our_package\n")
    listed = sources.listed_sources(["our_adapter:System"])
    assert set(listed) == {"harness", "our_adapter", "our_package"}
    assert len(listed["our_package"].splitlines()) == 2
    assert sources.listed_sources(["our_library:System"])["our_library"]  # a system's own package, wherever it lies


def test_a_package_recorded_by_an_installer_is_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install --target` and wheels record their files.

    Files next to them that are not recorded belong to the user.
    """
    monkeypatch.syspath_prepend(str(tmp_path))
    names = {"our_library": "import our_losses", "our_module": "", "our_losses": "", "our_tools": "import our_module"}
    write(tmp_path, our_adapter=f"import {', '.join(names)}, our_split.part\n", our_split__of__part="")
    packages = {name: names[name] for name in ("our_library", "our_module")}
    record_installed(tmp_path, {"our_library/__init__.py": packages["our_library"], "our_module.py": ""})
    write(tmp_path, our_losses="", our_tools__of__a="import our_module")
    assert set(sources.listed_sources(["our_adapter:System"])) == {
        *("harness", "our_adapter", "our_losses", "our_split", "our_tools")
    }


def test_a_symlinked_package_is_classified_by_its_real_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Package managers link libraries into environments, and users link their own packages into `site-packages`."""
    store, own = tmp_path / "store", tmp_path / "own"
    write(store / "site-packages" / "a_linked_library", __init__="")
    record_installed(store / "wheels", {"a_linked_wheel/__init__.py": ""})
    write(own / "our_package", __init__="")
    linked = {"a_linked_library": store / "site-packages", "a_linked_wheel": store / "wheels"}
    write(tmp_path / "links", our_adapter="import a_linked_library, a_linked_wheel, our_package\n")
    for folder, names in (("links", linked), ("site-packages", {"our_package": own})):
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, behind in names.items():
            (tmp_path / folder / name).symlink_to(behind / name)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert set(sources.listed_sources(["our_adapter:System"])) == {"harness", "our_adapter", "our_package"}


def test_the_word_import_in_a_docstring_adds_no_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    put = "sys.path.append('.')"
    write(tmp_path, our_adapter=f'"""How to\nimport .losses, ..\nimport .\n"""\nimport sys\n{put}\n', our_losses="")
    assert set(sources.listed_sources(["our_adapter:System"])) == {"harness", "our_adapter"}


PATHS = {
    "below": "sys.path.insert(0, str(Path(__file__).parent / 'deeper'))",  # as `harness init` writes it
    "by a constant": "sys.path.insert(0, {there!r})",
    "by os.path": "sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), 'deeper'))",
    "by a name": "A = Path(__file__).resolve().parents[0]\nB = A.joinpath('deeper')\nsys.path += [str(B)]",
    "around": "sys.path = [os.path.join(os.path.dirname(__file__), '..', 'a', 'deeper')] + sys.path",
    "first of all": "sys.path[:0] = ['a/deeper']",
    "by site": "site.addsitedir(Path.cwd() / 'a' / 'deeper')",
}


@pytest.mark.parametrize("how", PATHS)
def test_modules_in_a_folder_that_a_source_adds_to_the_path_are_sources(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "a"))
    put = PATHS[how].format(there=str(tmp_path / "a" / "deeper"))
    write(tmp_path / "a", our_adapter=f"import sys\n{put}\nfrom our_train import make_step\n")
    write(tmp_path / "a" / "deeper", our_train="import our_losses\n", our_losses="", our_other="")
    assert set(sources.listed_sources(["our_adapter:System"])) == {"harness", "our_adapter", "our_losses", "our_train"}


@pytest.mark.parametrize(
    "load",
    [
        "runpy.run_path('our train.py')",
        "spec_from_file_location('train', Path(__file__).with_name('our train.py'))",
        "importlib.util.spec_from_file_location('train', location='our train.py')",
        "SourceFileLoader('train', './our train.py')",
    ],
)
def test_a_file_loaded_by_its_path_is_a_source(load: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, our_adapter=f"def build():\n    {load}\n", our_losses="")
    (tmp_path / "our train.py").write_text("import our_losses\n")
    assert set(sources.listed_sources(["our_adapter:System"])) == {"harness", "our train", "our_adapter", "our_losses"}


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.path.insert(0,",
        "import sys\nx = x / 'a'\nsys.path.insert(0, x)",
        "sys.path.insert(0, Path('a').parents[7])\nsys.path.append(unknown())\nsys.path.extend(*[])",
        "runpy.run_path()\nrunpy.run_path('/dev/zero')\nrunpy.run_path('\\0')\nsys.path = sys.path[1:]",
        "sys.path.append(Path())\nsys.path.append(str())\nsys.path.append(os.path.dirname())",
    ],
)
def test_an_unreadable_import_in_a_source_keeps_the_other_imports_listed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write(tmp_path, our_adapter=f"import our_train\n{text}\n", our_train="")
    assert set(sources.listed_sources(["our_adapter:System"])) == {"harness", "our_adapter", "our_train"}


def test_the_adapter_written_by_init_makes_the_trainer_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = "def make_step(batch_size=1):\n    return step, batch, model\n"
    write(tmp_path, train=step, scripts__of__finetune=step)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for asked, trainer in (("train.py:make_step", "train"), ("scripts/finetune.py:make_step", "finetune")):
        draft = Draft(find_step_source(asked), 40, Arms(compiled=False, timed=False, memory=False))
        Path(draft.adapter_name).write_text(draft.adapter(tmp_path))
        system = draft.adapter_name.removesuffix(".py")
        assert set(sources.listed_sources([f"{system}:System"])) == {"harness", system, trainer}


def test_check_reports_a_module_that_python_cannot_compile_and_executes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drafted adapter imports the trainer only when it builds the step, so `check` itself must read the trainer."""
    write(tmp_path, train="def make_step():\n    return step, batch, model\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    keep(Draft(find_step_source("train.py:make_step"), 43, Arms(False, False, memory=False)), tmp_path, force=False)
    assert print_findings([Path("contracts")], as_json=False) == ExitCode.HELD
    write(tmp_path, train="open('executed', 'w')\ndef make_step(:\n    return step, batch, model\n")
    assert print_findings([Path("contracts")], as_json=False) == ExitCode.INVALID_CONTRACT
    assert "\ntrain.py:2:15: error: Python cannot compile the file: invalid syntax\n" in capsys.readouterr().err
    assert not Path("executed").exists()
