"""Compile kernels for a named target in a new process. A process in which Triton interprets kernels cannot compile
them.

`python -m reference_impl.offline_compiler SM FILE` reads a list of kernel descriptions from stdin, as a Python literal.
It writes a JSON list with key, name, PTX, shared memory and threads of each kernel to FILE. The list is not written to
standard output, because on a host with a GPU parts of Triton also print there, even in the middle of a line.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.system.protocol import Kernel
from reference_impl.kernels import cuda_source, registry, triton_source
from reference_impl.kernels.spec import WARP_THREADS, KernelFunction, KernelSpec, Pointer

_TIME_LIMIT_S = 300


class OfflineCompilation:
    """A compilation of kernels for architecture `sm` (90 is Hopper) in a new process, while this process continues."""

    def __init__(self, specs: Sequence[KernelSpec], sm: int) -> None:
        self._process: subprocess.Popen[str] | None = None
        if not specs:
            return
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        self._input = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - the process reads it
        self._input.write(repr([describe(spec) for spec in specs]))
        self._input.seek(0)
        self._answer = tempfile.NamedTemporaryFile("r", encoding="utf-8")  # noqa: SIM115 - read when it has ended
        self._process = subprocess.Popen(
            [sys.executable, "-m", "reference_impl.offline_compiler", str(sm), self._answer.name],
            stdin=self._input,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def kernels(self) -> list[Kernel]:
        """Wait for the process to end, and return all kernels. Raises RuntimeError if the process failed."""
        if self._process is None:
            return []
        printed, _ = self._process.communicate(timeout=_TIME_LIMIT_S)
        self._input.close()
        with self._answer as answer:
            if self._process.returncode != 0:
                raise RuntimeError(
                    f"compiling in a new process failed with exit code {self._process.returncode}: {printed[-2000:]}"
                )
            return [Kernel(**fields) for fields in json.load(answer)]


def compiled_kernel(spec: KernelSpec, compiled: Any) -> Kernel:
    """Return key, name, PTX, shared memory and threads of a compiled kernel."""
    return Kernel(
        key=spec.key,
        name=compiled.metadata.name,
        ptx=compiled.asm["ptx"],
        shared_memory_bytes=compiled.metadata.shared,
        threads=WARP_THREADS * compiled.metadata.num_warps,
    )


def describe(spec: KernelSpec) -> dict[str, Any]:
    """Return a spec as plain values. `rebuild` returns an equal spec from these values."""
    return {
        "function": spec.function.description,
        "pointers": [(pointer.name, pointer.dtype, pointer.aligned, pointer.tile) for pointer in spec.pointers],
        "fields": {
            name: getattr(spec, name)
            for name in ("op", "shape", "dtype", "constants", "num_warps", "num_stages", "grid", "enable_fp_fusion")
        },
        "constexprs": dict(spec.constexprs),
    }


_REBUILT: dict[str, Callable[[dict[str, Any]], KernelFunction]] = {
    "triton": triton_source.rebuilt,
    "cuda": cuda_source.rebuilt,
}


def rebuild(description: dict[str, Any]) -> KernelSpec:
    """Return the spec that was passed to `describe`, from the description that `describe` returned."""
    return KernelSpec(
        function=_REBUILT[description["function"]["language"]](description["function"]),
        pointers=tuple(Pointer(*pointer) for pointer in description["pointers"]),
        constexprs=description["constexprs"],
        **description["fields"],
    )


def main() -> None:
    sm, answer = int(sys.argv[1]), Path(sys.argv[2])
    specs = [rebuild(description) for description in ast.literal_eval(sys.stdin.read())]
    kernels = [compiled_kernel(spec, registry.offline_compile(spec, sm)) for spec in specs]
    answer.write_text(json.dumps([asdict(kernel) for kernel in kernels]), encoding="utf-8")


if __name__ == "__main__":
    main()
