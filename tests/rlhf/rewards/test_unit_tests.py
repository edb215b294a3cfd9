"""Programs that nobody has read: what the sandbox keeps them from, and the fraction of tests they pass."""

import ctypes
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from training.rlhf.rewards import sandbox
from training.rlhf.rewards.sandbox import (
    MACHINES,
    Isolation,
    Limits,
    SandboxError,
    isolation,
    run_program,
    seccomp_filter,
)
from training.rlhf.rewards.text_rewards import UnitTests, last_code_block

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"), reason="needs seccomp"
)

DOUBLE = "def double(x):\n    return 2 * x\n"
SHORT = Limits(cpu_seconds=1, wall_seconds=5.0, memory_bytes=256 * 1024**2, file_bytes=64 * 1024)


def score(completion: str, reference, **options):
    return UnitTests(**options)([()], [completion], [reference])[0]


# Each ends normally where nothing holds it in; {folder} is a folder that this test may write to.
FORBIDDEN = {
    "reaching the network": "import socket; socket.create_connection(('127.0.0.1', {port}))",
    "a socket of any kind": "import socket; socket.socket(socket.AF_UNIX)",
    "writing a file": "open('{folder}/new', 'w').write('x')",
    "emptying a file": "import os; os.close(os.open('{folder}/old', os.O_RDONLY | os.O_TRUNC))",
    "shortening a file": "import os; os.truncate('{folder}/old', 0)",
    "removing a file": "import os; os.remove('{folder}/old')",
    "renaming a file": "import os; os.rename('{folder}/old', '{folder}/older')",
    "making a folder": "import os; os.mkdir('{folder}/sub')",
    "linking a file": "import os; os.link('{folder}/old', '{folder}/other')",
    "changing a file's mode": "import os; os.chmod('{folder}/old', 0o777)",
    "changing a file's times": "import os; os.utime('{folder}/old')",
    "a new process": "import os; pid = os.fork(); pid or os._exit(0)",
    "running a command": "import subprocess; subprocess.run(['/bin/true'], check=True)",
    "becoming a command": "import os; os.execv('/bin/true', ['true'])",
    "signalling another process": "import os; os.kill({pid}, 0)",
    "memory that no limit counts": "import os; os.memfd_create('m')",
    "changing another's limits": "import resource; resource.prlimit({pid}, resource.RLIMIT_CORE)",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old").write_text("kept")
    return tmp_path


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("action", FORBIDDEN)
@pytest.mark.parametrize("files", [True, False], ids=["with Landlock", "without Landlock"])
def test_a_program_is_kept_from(action, files, folder, listening, monkeypatch):
    if files and not isolation().files:
        pytest.skip("this kernel has no Landlock")
    monkeypatch.setattr(sandbox, "isolation", lambda: Isolation(system_calls=True, files=files))
    program = FORBIDDEN[action].format(folder=folder, port=listening, pid=os.getpid())
    assert run_program(program).end == "failed"
    assert [path.name for path in folder.iterdir()] == ["old"]
    assert (folder / "old").read_text() == "kept"


def test_without_a_sandbox_each_of_these_can_be_done(folder, listening):
    """So it is the sandbox that keeps a program from them, and no slip in the program."""
    for action, program in FORBIDDEN.items():
        (folder / "old").write_text("kept")
        source = program.format(folder=folder, port=listening, pid=os.getpid())
        done = subprocess.run([sys.executable, "-I", "-S", "-c", source], check=False)
        assert done.returncode == 0, action


@pytest.mark.skipif(not isolation().files, reason="this kernel has no Landlock")
@pytest.mark.parametrize("write_files", [True, False])
def test_landlock_hides_files_that_are_not_pythons(folder, write_files):
    limits = Limits(write_files=write_files)
    assert run_program(f"open('{folder}/old').read()", limits=limits).end == "failed"
    assert run_program("import os; os.listdir('/')", limits=limits).end == "failed"
    assert run_program("import os; os.listdir('/proc')", limits=limits).end == "failed"
    assert run_program("import os, decimal, sqlite3; os.listdir('.')", limits=limits).end == "passed"


@pytest.mark.skipif(not isolation().files, reason="this kernel has no Landlock")
@pytest.mark.parametrize("action", [action for action in FORBIDDEN if "file" in action or "folder" in action])
def test_a_program_with_a_folder_of_its_own_still_writes_nowhere_else(action, folder):
    program = FORBIDDEN[action].format(folder=folder)
    assert run_program(program, limits=Limits(write_files=True)).end == "failed"
    assert (folder / "old").read_text() == "kept"


@pytest.mark.skipif(not isolation().files, reason="this kernel has no Landlock")
def test_a_program_may_be_given_a_folder_of_its_own():
    program = "open('a', 'w').write('x'); print(open('a').read())"
    assert run_program(program, limits=Limits(write_files=True)).output == "x\n"
    assert run_program(program).end == "failed"


@pytest.mark.parametrize(
    ("program", "within", "beyond"),
    [
        ("x = bytearray({})", 10**7, 10**9),
        ("open('a', 'wb').write(bytes({}))", 10**3, 10**6),
        ("kept = [open('/dev/null') for _ in range({})]", 10, 1000),
        (
            "import threading, time\n"
            "for _ in range({}): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
            3,
            1000,
        ),
    ],
    ids=["memory", "file size", "open files", "threads"],
)
@pytest.mark.skipif(not isolation().files, reason="this kernel has no Landlock")
def test_a_program_is_stopped_at_its_limits(program, within, beyond):
    limits = replace(SHORT, write_files=True)
    assert run_program(program.format(within), limits=limits).end == "passed"
    assert run_program(program.format(beyond), limits=limits).end == "failed"


def test_a_busy_loop_ends_by_processor_time_and_a_sleep_by_the_clock():
    assert run_program("while True: pass", limits=Limits(cpu_seconds=1, wall_seconds=60)).end == "failed"
    started = time.monotonic()
    assert run_program("import time; time.sleep(60)", limits=Limits(wall_seconds=0.5)).end == "time"
    assert time.monotonic() - started < 30


def test_endless_printing_ends():
    assert run_program("while True: print('x' * 1000)", limits=SHORT).end == "output"


def test_threads_are_no_processes_and_run():
    program = "import threading\nt = threading.Thread(target=print, args=('hello',)); t.start(); t.join()"
    assert run_program(program).output == "hello\n"


def test_a_program_sees_no_environment_and_no_package(monkeypatch):
    monkeypatch.setenv("RONDO_SECRET_KEY", "secret")
    assert run_program("import os; print(sorted(os.environ))").output in ("[]\n", "['LC_CTYPE']\n")
    assert run_program("import torch").end == "failed"
    assert run_program("import training").end == "failed"


def test_a_program_with_root_has_no_right_of_root():
    # All capabilities are 0 (capget) and none can come back (PR_GET_NO_NEW_PRIVS).
    program = (
        "import ctypes, struct\n"
        "data = ctypes.create_string_buffer(24)\n"
        "libc = ctypes.CDLL(None)\n"
        "assert libc.capget(ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0)), data) == 0\n"
        "assert data.raw == bytes(24), data.raw\n"
        "assert libc.prctl(39, 0, 0, 0, 0) == 1\n"
    )
    assert run_program(program).end == "passed"
    if os.getuid() == 0:
        assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode


def test_where_nothing_holds_a_program_in_it_is_not_run(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "isolation", lambda: Isolation(system_calls=False, files=False))
    with pytest.raises(SandboxError, match="virtual machine"):
        run_program("print(1)")
    with pytest.raises(SandboxError):
        score(DOUBLE, ["assert double(1) == 2"])
    # Said to be trusted it runs, within times and sizes.
    assert run_program("print(1)", trust=True).output == "1\n"
    assert run_program("x = bytearray(10**9)", trust=True, limits=SHORT).end == "failed"


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("may_write", [True, False])
def test_every_jump_of_a_filter_lands_inside_it_and_its_end_allows(name, may_write):
    """The kernel checks the same, but here only for one of the two machines."""
    filter_bytes = seccomp_filter(MACHINES[name], may_write=may_write)
    code = list(struct.iter_unpack("=HBBI", filter_bytes))
    assert len(code) < 4096  # BPF_MAXINSNS
    jumps = [(index, max(yes, no)) for index, (kind, yes, no, _) in enumerate(code) if kind & 0x07 == 0x05]
    assert len(jumps) > 90
    assert all(index + 1 + furthest < len(code) for index, furthest in jumps)
    assert code[-1] == (0x06, 0, 0, 0x7FFF0000)


def test_the_fraction_of_tests_passed():
    tests = ["assert double(2) == 4", "assert double('a') == 'aa'", "assert double(2) == 5", "double()"]
    assert score(DOUBLE, tests).value == 0.5
    assert score(f"Here you are:\n```python\n{DOUBLE}```\nIt doubles.", tests).value == 0.5
    assert score("def double(x) return", tests).value == 0


def test_a_batch_is_scored_in_its_order():
    reward = UnitTests(workers=2)
    programs = ["x = 1", "x = 2", "x = 3", "x = 1"]
    references = [["assert x == 1"], ["assert x == 1"], None, ["assert x == 1", "assert x == 2"]]
    scores = reward([()] * 4, programs, references)
    assert [score.value if score.scored else None for score in scores] == [1, 0, None, 0.5]


def test_input_and_output_are_compared_line_by_line():
    program = "n = int(input())\nfor i in range(n): print(i * i, end=' \\n')"
    tests = [
        {"input": "3\n", "output": "0\n1\n4"},
        {"input": "2", "output": "0\n1\n"},
        {"input": "1", "output": "1"},
    ]
    assert score(program, tests).value == pytest.approx(2 / 3)


def test_tests_may_come_as_json_text():
    assert score(DOUBLE, '["assert double(2) == 4", "assert double(2) == 5"]').value == 0.5
    assert score(DOUBLE, "assert double(2) == 4\nassert double(0) == 0").value == 1


@pytest.mark.parametrize(
    "reference", [None, [], "", [""], [{"input": "1"}], 7, [{"input": 1, "output": "1"}]]
)
def test_without_tests_nothing_is_scored(reference):
    assert not score(DOUBLE, reference).scored


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise SystemExit",
        "print('passed'); exit_code = 0",
        "import builtins, os\nbuiltins.compile = lambda *a: os._exit(0)",
        "import signal; signal.alarm(1)",
        f"import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [{int(signal.SIGXCPU)}])",
    ],
)
def test_leaving_early_is_not_passing(program):
    assert run_program(program, test="assert double(2) == 4", limits=SHORT).end != "passed"


def test_the_test_is_not_there_to_be_read_while_the_program_runs():
    program = (
        "import sys\n"
        "frame, seen = sys._getframe(), ''\n"
        "while frame: seen += repr(frame.f_locals) + repr(frame.f_globals); frame = frame.f_back\n"
        "found = 'magic' + 'word' in seen\n"
    )
    assert run_program(program, test="assert not found, 'magicword'").end == "passed"


@pytest.mark.parametrize(
    ("completion", "code"),
    [
        ("x = 1", "x = 1"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("First\n```py\nx = 1\n```\nbetter\n~~~python\nx = 2\n~~~\n", "x = 2\n"),
        ("````md\n```\ninner\n```\n````", "```\ninner\n```\n"),
        ("```python\nx = 1", "```python\nx = 1"),
    ],
)
def test_the_last_fenced_block_is_the_program(completion, code):
    assert last_code_block(completion) == code


def test_this_machine_says_what_it_can_hold():
    assert isolation().system_calls == (ctypes.CDLL(None).prctl(21, 0, 0, 0, 0) >= 0)
