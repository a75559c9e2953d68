"""Threads, signals, forks, memory and the end of the interpreter."""

import ctypes
import gc
import locale
import logging
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import GREEDY, SMALL, TINY_TALES, golden_answers, golden_prompts, goldens

from nanovllm import LLM, EngineDead, SamplingParams

LONG = SamplingParams(max_tokens=2000, ignore_eos=True)


def status(name: str) -> int:
    """A field of /proc/self/status; sizes are in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise KeyError(name)


def interrupt_once_it_runs(llm: LLM) -> threading.Thread:
    start = llm._engine.num_tokens()[1]

    def interrupt() -> None:
        while llm._engine.num_tokens()[1] < start + 20:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.fixture
def takes_interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, even if a shell started this process in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("takes_interrupts")
@pytest.mark.parametrize(
    "run",
    [
        lambda llm: llm.generate(["Once", "There"], LONG, use_tqdm=False),
        lambda llm: list(llm.stream("Once", LONG)),
    ],
)
def test_ctrl_c_ends_the_call_and_leaves_the_engine_usable(
    llm: LLM, run: Callable[[LLM], object]
) -> None:
    free = llm.stats().num_free_blocks
    thread = interrupt_once_it_runs(llm)
    with pytest.raises(KeyboardInterrupt):
        run(llm)
    thread.join()
    assert (llm.stats().num_running, llm.stats().num_free_blocks) == (0, free)
    row = goldens()[0]
    before = llm._engine.num_tokens()[1]
    output = llm.generate([row["prompt_token_ids"]], GREEDY, use_tqdm=False)[0]
    assert output["token_ids"] == row["greedy_token_ids"]
    # No other request ran, except rows that were in flight at the interrupt and at the end.
    assert llm._engine.num_tokens()[1] - before <= len(output["token_ids"]) + 4


def test_threads_share_an_engine(llm: LLM) -> None:
    rows = goldens()

    def ask(share: int) -> None:
        mine = rows[share::4]
        outputs = llm.generate(golden_prompts(mine), GREEDY, use_tqdm=False)
        assert [o["token_ids"] for o in outputs] == golden_answers(mine)
        for row in mine[:2]:
            pieces = llm.stream(row["prompt_token_ids"], GREEDY)
            assert sum((p["token_ids"] for p in pieces), []) == row["greedy_token_ids"]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))


def test_calls_that_keep_the_gil_do_not_block_the_steps() -> None:
    """In a process of its own, because a deadlock with the GIL stops every thread."""
    program = f"""
import threading
from nanovllm import LLM, SamplingParams
llm = LLM({TINY_TALES!r}, dtype="float32", kv_cache_memory_bytes=1 << 26)
def ask():
    for _ in range(150):
        llm.generate([[1, 2, 3]] * 4, SamplingParams(max_tokens=1), use_tqdm=False)
threads = [threading.Thread(target=ask) for _ in range(3)]
for thread in threads: thread.start()
while any(thread.is_alive() for thread in threads): llm._engine.num_tokens()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_exit_in_one_thread_is_an_error_in_the_others() -> None:
    llm = LLM(TINY_TALES, **SMALL)
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(llm.generate, ["Once"], LONG, False) for _ in range(2)]
        while llm._engine.num_tokens()[1] < 20:
            time.sleep(0.001)
        llm.exit()
        for other in others:
            with pytest.raises(EngineDead):
                other.result()


def test_two_engines_in_one_process() -> None:
    rows = goldens()

    def ask(llm: LLM) -> list[list[int]]:
        outputs = llm.generate(golden_prompts(rows), GREEDY, use_tqdm=False)
        return [o["token_ids"] for o in outputs]

    with LLM(TINY_TALES, **SMALL) as one, LLM(TINY_TALES, **SMALL, threads=1) as other:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(ask, [one, other])) == [golden_answers(rows)] * 2


def state_of_the_process() -> dict[str, object]:
    """Properties of the process that a library must not change."""
    environ = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    variables = []
    for entry in environ:
        if entry is None:
            break
        variables.append(entry)
    lines = Path("/proc/self/status").read_text().split("\n")
    return {
        "environment": variables,
        "signals": [line for line in lines if line.startswith("Sig") and line[:4] != "SigQ"],
        "handlers": [signal.getsignal(number) for number in signal.valid_signals()],
        "locale": locale.setlocale(locale.LC_ALL, None),
        "processors": os.sched_getaffinity(0),
        "folder": os.getcwd(),
        "loggers": list(logging.getLogger().handlers),
        "smallest number": sys.float_info.min / 2,  # 0 where such numbers are flushed
    }


@pytest.mark.parametrize(("device", "num_ranks"), [("auto", 1), ("cpu", 2)])
def test_an_llm_changes_nothing_of_its_process(device: str, num_ranks: int) -> None:
    before = state_of_the_process()
    llm = LLM(TINY_TALES, device=device, tensor_parallel_size=num_ranks, **SMALL)
    assert state_of_the_process() == before
    llm.generate(["Once"], SamplingParams(max_tokens=4), use_tqdm=False)
    assert state_of_the_process() == before
    llm.exit()
    assert state_of_the_process() == before


def in_child(work: Callable[[], None]) -> None:
    """Runs `work` in a forked process. The test fails if it raises an exception or hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # the subject of the test
def test_a_forked_process_gets_an_error_and_may_make_its_own(llm: LLM) -> None:
    row = goldens()[0]

    def right(engine: LLM) -> None:
        output = engine.generate([row["prompt_token_ids"]], GREEDY, use_tqdm=False)[0]
        assert output["token_ids"] == row["greedy_token_ids"]

    def child() -> None:
        calls: list[Callable[[], object]] = [
            lambda: llm.generate(["Once"], use_tqdm=False),
            lambda: next(llm.stream("Once")),
            lambda: llm.add_request("Once"),
            lambda: llm.step(),
        ]
        for call in calls:
            with pytest.raises(EngineDead, match="fork"):
                call()
        llm.exit()
        right(LLM(TINY_TALES, **SMALL))

    in_child(child)
    with ThreadPoolExecutor(1) as pool:  # a thread that has the engine while the process forks
        busy = pool.submit(llm.generate, ["Once"], SamplingParams(max_tokens=500, ignore_eos=True))
        while not busy.done():
            in_child(child)
    right(llm)


def test_thousands_of_calls_leak_nothing(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=2)

    def calls(count: int) -> None:
        for _ in range(count):
            llm.generate(["Once upon a time", [1, 2, 3]], params, use_tqdm=False)
            for _piece in llm.stream("Once", params):
                break
            with pytest.raises(ValueError):
                llm.generate(["Once", ""], params, use_tqdm=False)

    def growth() -> tuple[int, int]:
        """What 400 calls add: KiB of memory, and Python objects."""
        gc.collect()
        memory, objects = status("VmRSS"), len(gc.get_objects())
        calls(400)
        gc.collect()
        return status("VmRSS") - memory, len(gc.get_objects()) - objects

    calls(200)
    # A leak grows every time. What the allocator or the kernel takes or gives back once is none.
    rounds = [growth() for _ in range(5)]
    print(f"KiB and objects that each 400 calls added: {rounds}")
    assert statistics.median(memory for memory, _ in rounds) < 200
    assert statistics.median(objects for _, objects in rounds) < 40


def test_the_last_reference_frees_threads_and_memory() -> None:
    gc.collect()
    threads, size = status("Threads"), status("VmSize")
    for way in ("del", "exit", "with"):
        llm = LLM(TINY_TALES, **{**SMALL, "kv_cache_memory_bytes": 1 << 30, "max_num_seqs": 512})
        stream = llm.stream("Once")
        next(stream)
        assert status("Threads") > threads and status("VmSize") - size > 1 << 19
        stream.close()
        tokenizer = llm.tokenizer
        if way == "exit":
            llm.exit()
        elif way == "with":
            with llm:
                pass
        else:
            del llm, stream
        assert status("Threads") == threads, way
        assert status("VmSize") - size < 1 << 18, way  # the allocator keeps some memory
        assert tokenizer.encode("Once")


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del llm",
        "threading.Thread(target=work, daemon=True).start()\nwait()",
        "threading.Thread(target=work, daemon=True).start()\nwait()\nfork()",
        "stream = llm.stream('Once'); next(stream)",
        "llm.add_request('Once'); llm.step()",
    ],
)
def test_the_end_of_the_interpreter_is_quiet(end: str) -> None:
    program = f"""
import os, signal, sys, threading, time
from nanovllm import LLM, SamplingParams
llm = LLM({TINY_TALES!r}, dtype="float32", kv_cache_memory_bytes=1 << 26)
def work():
    llm.generate(["Once"] * 8, SamplingParams(max_tokens=2000, ignore_eos=True), use_tqdm=False)
def wait():
    while llm._engine.num_tokens()[1] < 20: time.sleep(0.001)
def fork():
    for _ in range(30):
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
{end}
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_subinterpreter_is_refused_and_may_be_left_alive() -> None:
    program = """
import nanovllm
try:
    import _interpreters
    run, made = _interpreters.exec, _interpreters.create("legacy")
except ImportError:  # before Python 3.13
    import _xxsubinterpreters
    run, made = _xxsubinterpreters.run_string, _xxsubinterpreters.create(isolated=False)
run(made, '''
try:
    import nanovllm
except ImportError as error:
    print(error, flush=True)
''')
nanovllm.SamplingParams(max_tokens=1)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "runs in the main interpreter only" in done.stdout
