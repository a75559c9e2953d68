"""LLM takes the id of a model on a hub."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, TINY_TALES

sys.path.insert(0, str(ROOT / "tests/hub"))
from fake_hub import FakeHub, Model, cut_fault  # noqa: E402

ID = "org/tiny"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    hub = FakeHub()
    files = {path.name: path.read_bytes() for path in Path(TINY_TALES).iterdir() if path.is_file()}
    hub.add(ID, Model(files))
    for name in ("HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    yield hub
    hub.server.shutdown()


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )


def test_an_id_is_downloaded_once(hub: Any) -> None:
    code = f"""
        from nanovllm import LLM, SamplingParams
        llm = LLM("{ID}", max_model_len=64)
        print(llm.generate("Once", SamplingParams(max_tokens=2, temperature=0), False)[0]["token_ids"])
    """
    first, second = run(code), run(code)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert "Downloading" in first.stderr and "Downloading" not in second.stderr
    local = run(code.replace("max_model_len=64", "max_model_len=64, local_files_only=True"))
    assert local.stdout == first.stdout


def test_ctrl_c_interrupts_a_download(hub: Any) -> None:
    hub.faults.append(cut_fault(hub, "model.safetensors", 1000, wait=60))
    done = run(
        f"""
        import signal, threading
        from nanovllm import LLM
        # A shell's background job, which may run the tests, begins with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(2, signal.raise_signal, [signal.SIGINT]).start()
        try:
            LLM("{ID}")
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert done.stdout == "interrupted\n", done.stderr


def test_errors(hub: Any) -> None:
    done = run('from nanovllm import LLM; LLM("org/other")')
    assert "UserError: org/other: no such folder, and http" in done.stderr
    done = run('import os; os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"\n'
               'from nanovllm import LLM; LLM("org/other")')  # fmt: skip
    assert "UserError: org/other" in done.stderr and "cannot be reached" in done.stderr
