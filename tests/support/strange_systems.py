"""Systems that misbehave while they are imported, made or described, each in its own module, with expected errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SYSTEM = """
from harness.system.protocol import Expectation, FaultDescription, SystemDescription


class System:
    def describe(self):
        described = dict(
            name="strange", summary="", models=(), arm_options={{}}, workload_options={{"behaviour": str}},
            capabilities=frozenset({{"inputs", "parameters", "capture"}}), captures=frozenset({{"none", "step"}}),
        )
{body}
        return SystemDescription(**described)

    def open(self, *arguments, **settings):
        raise NotImplementedError
"""
# a child in a session of its own and with an empty environment, which writes its process id beside the module
DAEMON = """import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, time; open(os.sys.argv[1], 'w').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", code, __file__ + ".daemon"], {})
    os._exit(0)
import pathlib, time
while not (path := pathlib.Path(__file__ + ".daemon")).exists() or not path.read_text():
    time.sleep(0.01)
"""
FORGERY = """import os
for number in range(3, 256):
    try:
        os.write(number, b'{"number": "1", "error": {}}\\n')
    except OSError:
        pass
"""
# What is to hang writes before it that it does so now.
HANGS = "import time; open(__file__ + '.hangs', 'w'); "
LAZY = """
        from collections.abc import Mapping
        class Lazy(Mapping):
            def __getitem__(self, key): raise OSError("no longer there")
            def __iter__(self): return iter(["rank"])
            def __len__(self): return 1
        described["arm_options"] = Lazy()"""


@dataclass(frozen=True)
class Strange:
    """A module. begin: code before the system. body: of `describe`. found: the expected error text, or None."""

    found: str | None
    begin: str = ""
    body: str = ""
    hangs: bool = False

    def write(self, path: Path) -> None:
        path.write_text(self.begin + "\n" + SYSTEM.format(body=self.body))


def _field(name: str, value: str, found: str) -> Strange:
    return Strange(f"; found {found}", body=f"        described[{name!r}] = {value}")


def _returns(value: str, found: str) -> Strange:
    return Strange(f"; found what describe() returns: {found}, not a SystemDescription", body=f"        return {value}")


STRANGE = {
    # --- the process ends
    "exits_at_once": Strange("; found exit status 0 and no answer", "import os; os._exit(0)"),
    "leaves": Strange("; found SystemExit: 0 ({path}:1)", "raise SystemExit(0)"),
    "leaves_described": Strange("; found SystemExit: 0 ({path}:12)", body="        raise SystemExit(0)"),
    "interrupts": Strange("; found KeyboardInterrupt ({path}:1)", "raise KeyboardInterrupt"),
    "crashes": Strange("; found SIGSEGV and no answer", "import os; os.kill(os.getpid(), 11)"),
    "kills_its_parent": Strange("; found a process that killed its parent", "import os; os.kill(os.getppid(), 9)"),
    "last_words": Strange("its last output was 'farewell'", "import os; print('farewell', flush=True); os._exit(3)"),
    # --- it hangs
    "sleeps": Strange("s ({path}:1)", f"{HANGS}time.sleep(600)", hangs=True),
    "sleeps_described": Strange("s ({path}:12)", body=f"        {HANGS}time.sleep(600)", hangs=True),
    "deaf": Strange(
        "; found no answer after",
        f"import signal; signal.signal(15, lambda *_: None); {HANGS}time.sleep(600)",
        hangs=True,
    ),
    "prints_for_ever": Strange("; found more than 16 MiB of output after", "while True: print('x' * 10**6)"),
    # --- it raises
    "raises": Strange("; found ZeroDivisionError: division by zero ({path}:1)", "1 / 0"),
    "raises_described": Strange("; found ZeroDivisionError: division by zero ({path}:12)", body="        1 / 0"),
    "raises_anything": Strange("; found GeneratorExit: stop ({path}:1)", "raise GeneratorExit('stop')"),
    "speechless": Strange(
        "; found Mute: (its message cannot be read: OSError) ({path}:4)",
        "class Mute(Exception):\n    def __str__(self):\n        raise OSError\nraise Mute",
    ),
    "no_python": Strange("; found SyntaxError: invalid syntax", "def ="),
    # --- it says nonsense
    "none": _returns("None", "None"),
    "a_dict": _returns("described", "a dict"),
    "a_subclass": _returns("type('Mine', (SystemDescription,), {{}})(**described)".replace("{{}}", "{}"), "a Mine"),
    "lazy": Strange("; found OSError: no longer there ({path}:", body=LAZY),
    "nan": _field("arm_options", "{'rate': (0.1, float('nan'))}", "arm_options.rate[1]: nan, not a finite number"),
    "a_type": _field("arm_options", "{'rate': complex}", "arm_options.rate: the type complex, not one of bool, int"),
    "a_scalar": _field(
        "arm_options", "{'rate': [b'x']}", "arm_options.rate[0]: a bytes, not a bool, int, float or str"
    ),
    "a_key": _field("workload_options", "{1: str}", "a key of workload_options: a int, not a str"),
    "a_string": _field("models", "'tiny'", "models: a str, not a tuple or list"),
    "a_list": _field("capabilities", "['inputs']", "capabilities: a list, not a frozenset"),
    "a_book": _field("summary", "'x' * 10_001", "summary: 10001 characters, but at most 10000 are allowed"),
    "surrogate": _field("name", "'\\udcff'", "name: a text that is not Unicode"),
    "endless": _field("models", "range(10**9)", "models: more than 10000 entries"),
    "a_fault": _field("faults", "{'a': 'b'}", "faults.a: a str, not a FaultDescription"),
    "a_plant": _field(
        "faults", "{'a': FaultDescription('a', '', 'all', {})}", "faults.a.plant: 'all', not one of candidate, baseline"
    ),
    "a_status": _field(
        "faults",
        "{'a': FaultDescription('a', '', 'both', {'A-1': Expectation('PASS', 'held')})}",
        "faults.a.breaks.A-1.status: 'PASS', not one of FAIL",
    ),
    # --- it meddles with what describes it
    # 1 by the traceback, or 120 where the closing of what it prints to fails first
    "closes_everything": Strange(" and no answer", "import os; os.closerange(0, 256)"),
    "answers_itself": Strange("; found an answer that the harness did not write", FORGERY),
    "replaces": Strange(None, "import json, os, sys; json.dumps = os.write = sys.stdout = None"),
    "prints": Strange(None, "print('x' * 3 * 10**6)\nprint('{\"number\": 1}')"),
    "leaves_a_daemon": Strange(None, DAEMON),
    "leaves_a_thread": Strange(
        None, "import threading, time; threading.Thread(target=time.sleep, args=(600,)).start()"
    ),
}
