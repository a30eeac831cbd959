"""Compile CUDA C++ to machine code (a cubin) and PTX with NVRTC. Cache both on disk, and report events to listeners.

Triton's cache stores the results on disk. NVRTC is the library of the CUDA toolkit that compiles at run time; torch's
CUDA builds install it. Nothing else of the toolkit is needed, because the sources include no header of the toolkit.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

listeners: list[Callable[[str, str], None]] = []
"""Functions that are called for each event, with the event's name (`compile`, `disk_hit` or `load`) and the kernel's
name."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)
_FILE = "kernel.cubin"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LENGTH_BYTES = 8


class CudaSourceError(RuntimeError):
    """A kernel in CUDA C++ cannot be compiled or loaded.

    The message contains the place, the rule that is broken, what was found instead, and a remedy.
    """

    def __init__(self, where: str, rule: str, found: str, remedy: str) -> None:
        super().__init__(f"{where}: {rule}; found {found}; {remedy}")


class NvrtcMissingError(CudaSourceError):
    """NVRTC or its Python bindings are not installed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(
            "libnvrtc",
            "kernels in CUDA C++ need NVRTC to be compiled, also on machines without a GPU",
            f"{type(error).__name__}: {error}",
            "pip install 'cuda-bindings>=12.9' 'nvidia-cuda-nvrtc>=13' (torch's CUDA builds bring both)",
        )


class CompilationError(CudaSourceError):
    """NVRTC found errors in a source. The message contains NVRTC's log."""

    def __init__(self, name: str, log: str) -> None:
        super().__init__(name, "the source of a kernel must compile", "errors", f"correct them:\n{log}")


@dataclass(frozen=True, slots=True)
class Binary:
    """A compiled source: the cubin, which the driver loads without compiling it again, and the PTX."""

    ptx: str
    cubin: bytes


def report(event: str, name: str) -> None:
    """Call every listener with the event and the kernel's name."""
    for listener in tuple(listeners):
        listener(event, name)


def read_source(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text of the source, and a dictionary from name to text of the files that it includes with quotes.

    Files that are included by included files are in the dictionary, too. An included file must be next to the file that
    includes it. Raises CudaSourceError if a file does not exist, or if two different files have the same name, because
    NVRTC identifies headers only by name.
    """
    text, headers, found = path.read_text(encoding="utf-8"), dict[str, str](), dict[str, Path]()
    waiting = [(path, text)]
    while waiting:
        including, code = waiting.pop()
        for match in _INCLUDE.finditer(code):
            name, file = match[1], (including.parent / match[1]).resolve()
            where = f"{including}:{code.count(chr(10), 0, match.start()) + 1}"
            if found.setdefault(name, file) != file:
                rule = "two included files must not have the same name"
                raise CudaSourceError(where, rule, f"{found[name]} and {file}", "rename one")
            if name in headers:
                continue
            if not file.is_file():
                rule = "a file that is included with quotes must be next to the file that includes it"
                raise CudaSourceError(where, rule, f"no {file}", "correct the name, or add the file")
            headers[name] = file.read_text(encoding="utf-8")
            waiting.append((file, headers[name]))
    return text, headers


def compile_source(name: str, label: str, source: str, headers: Mapping[str, str], options: Sequence[str]) -> Binary:
    """Return the compiled source. Read it from the disk cache if an earlier call stored it there.

    Calls the listeners with the event `disk_hit` or `compile`, and with the kernel's name `name`. Error messages
    contain `label`. Raises NvrtcMissingError or CompilationError.
    """
    from triton.runtime.cache import get_cache_manager

    parts = [_version(), *options, label, source, *(part for header in sorted(headers.items()) for part in header)]
    # Hash each part, and then the joined hashes. If the parts themselves were joined, two different lists of parts
    # could give the same text.
    digests = b"".join(hashlib.sha256(part.encode()).digest() for part in parts)
    kept = get_cache_manager(hashlib.sha256(digests).hexdigest())
    file = kept.get_file(_FILE)
    binary = None if file is None else _unpacked(Path(file).read_bytes())
    if binary is not None:
        report("disk_hit", name)
        return binary
    binary = _compiled(label, source, headers, options)
    kept.put(_packed(binary), _FILE, binary=True)
    report("compile", name)
    return binary


def _packed(binary: Binary) -> bytes:
    ptx = binary.ptx.encode()
    content = len(ptx).to_bytes(_LENGTH_BYTES) + ptx + binary.cubin
    return hashlib.sha256(content).digest() + content


def _unpacked(packed: bytes) -> Binary | None:
    """Return the binary that a cache file contains, or None if the file is incomplete."""
    digest, content = packed[:_DIGEST_BYTES], packed[_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES])
    return Binary(content[_LENGTH_BYTES:end].decode(), content[end:])


def _version() -> str:
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise NvrtcMissingError(error) from error
    return f"NVRTC {major}.{minor}"


def _compiled(label: str, source: str, headers: Mapping[str, str], options: Sequence[str]) -> Binary:
    from cuda.bindings import nvrtc

    texts, names = [text.encode() for text in headers.values()], [name.encode() for name in headers]
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), label.encode(), len(headers), texts, names)
    try:
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode(errors="replace")
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilationError(label, log or str(result))
        if log:  # for example a note that the assembler did not move registers between warp groups
            warnings.warn(log, stacklevel=2)
        ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = bytearray(size)
        nvrtc.nvrtcGetCUBIN(program, cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Binary(ptx.decode(), bytes(cubin))


def _text(program: Any, size_of: Callable[..., Any], read: Callable[..., Any]) -> bytes:
    """Return an output text of a program (its log or PTX) without the terminating zero of C."""
    _, size = size_of(program)
    text = bytearray(size)
    read(program, text)
    return bytes(text).rstrip(b"\0")
