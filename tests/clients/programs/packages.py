"""The programs from PyPI, each in a virtual environment of its own below build/clients."""
import subprocess
import sys
from pathlib import Path

import pytest

from served import ROOT

PACKAGES = {
    "claude-code": ["claude-agent-sdk==0.2.189"],  # contains the program
    "codex": ["openai-codex-cli-bin==0.163.0"],
    "aider": ["aider-chat==0.86.2"],
    "mini-swe-agent": ["mini-swe-agent==2.4.6"],
    "openai-agents": ["openai-agents==0.24.0"],
    "pydantic-ai": ["pydantic-ai-slim[openai,anthropic]==2.68.0"],
    "langchain": ["langchain-openai==1.7.4", "langchain==1.5.2"],
    "litellm": ["litellm==1.110.2"],
    "instructor": ["instructor==1.17.0"],
    "llm": ["llm==0.36"],
    "lm-eval": ["lm-eval[api]==0.4.13"],
}


def environment(name: str) -> Path:
    """The virtual environment with the packages of that name. A test that needs packages that cannot be had is skipped."""
    folder = ROOT / "build/clients" / name
    packages = PACKAGES[name]
    installed = folder / "installed.txt"
    if installed.exists() and installed.read_text().split() == packages:
        return folder
    uv = ROOT / "scripts/uv.sh"
    for command in ([uv, "venv", "--clear", "--python", sys.executable, folder],
                    [uv, "pip", "install", "--python", folder / "bin/python", *packages]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            pytest.skip(f"{' '.join(packages)} cannot be installed: {' '.join(done.stdout.split())[:300]}")
    installed.write_text(" ".join(packages))
    return folder
