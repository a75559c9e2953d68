#!/usr/bin/env python3
"""clients_test.py NANOVLLM VENV: runs tests/clients, which need packages of PyPI, in the virtual environment VENV. `make test-clients`
runs tests/clients/programs."""
import os
import subprocess
import sys

import python_packages

python_packages.require(sys.argv[2], {"openai": "openai", "anthropic": "anthropic", "jsonschema": "jsonschema", "yaml": "pyyaml",
                                      "pytest": "pytest"})
folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "clients")
options = ["-ra", "-p", "no:cacheprovider", "--ignore", os.path.join(folder, "programs")]
done = subprocess.run([sys.executable, "-m", "pytest", *options, folder], env={**os.environ, "NANOVLLM": sys.argv[1]})
sys.exit(done.returncode)
