"""The Python code of README.md runs."""

import subprocess
import sys

from conftest import ROOT


def test_the_readme_s_python_code_runs() -> None:
    script = ROOT / "tests/scripts/readme_test.py"
    done = subprocess.run(
        [sys.executable, str(script), str(ROOT), "--python"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
