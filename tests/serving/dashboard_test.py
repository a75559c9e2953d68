#!/usr/bin/env python3
"""dashboard_test.py NANOVLLM MODEL SOURCE: runs every query of deploy/grafana-dashboard.json in a real Prometheus.

Prometheus reads /metrics of a server while requests run; each query must parse and give numbers.
"""
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import python_packages
from serve_test import Server, equal


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ask(port, expression):
    url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code == 503:  # Prometheus is starting
            return []
        raise AssertionError(f"{expression}: {error.read().decode()}") from None
    except OSError:
        return []


def main():
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        python_packages.skip("there is no prometheus; Debian's package prometheus has it")
    with open(sys.argv[3] + "/deploy/grafana-dashboard.json", encoding="utf8") as file:
        dashboard = json.load(file)
    queries = {(panel["title"], target["legendFormat"]): target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    equal(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    equal(variables, {"datasource", "model_name"})

    server = Server("--served-model-name", "tiny", "--disable-access-log", "--block-size", "16")
    over = threading.Event()

    def traffic():
        body = {"prompt": "Once upon a time there was a little dog who lived in a house near the forest", "max_tokens": 30}
        while not over.is_set():
            server.call("POST", "/v1/completions", body)

    client = threading.Thread(target=traffic)
    with tempfile.TemporaryDirectory() as folder:
        config = {"global": {"scrape_interval": "1s"},
                  "scrape_configs": [{"job_name": "nanovllm", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}]}
        with open(os.path.join(folder, "prometheus.yml"), "w", encoding="utf8") as file:
            json.dump(config, file)  # JSON is YAML
        port = free_port()
        with open(os.path.join(folder, "log"), "w", encoding="utf8") as log:
            process = subprocess.Popen([prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                        f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        client.start()
        try:
            while not any(float(item["value"][1]) > 0 for item in ask(port, "rate(vllm:iteration_tokens_total_count[10s])")):
                assert process.poll() is None, open(os.path.join(folder, "log"), encoding="utf8").read()
                time.sleep(0.2)
            equal([item["value"][1] for item in ask(port, 'up{job="nanovllm"}')], ["1"])
            equal({item["metric"]["model_name"] for item in ask(port, "vllm:cache_config_info")}, {"tiny"})
            for (title, legend), expression in queries.items():
                expression = expression.replace("$__rate_interval", "10s").replace("$model_name", "tiny")
                assert "$" not in expression, expression
                values = [float(item["value"][1]) for item in ask(port, expression)]
                assert values and all(math.isfinite(value) and value >= 0 for value in values), (title, legend, expression, values)
                print(f"{title}, {legend}: {values}")
        finally:
            over.set()
            client.join()
            process.terminate()
            process.wait(60)
    equal(server.stop(), 0)


main()
