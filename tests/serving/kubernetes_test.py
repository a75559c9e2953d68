#!/usr/bin/env python3
"""kubernetes_test.py NANOVLLM MODEL SOURCE VENV: checks deploy/kubernetes.

Deployment and Service are validated against Kubernetes' own schemas (the Python package kubernetes-validate). There is no package
with the schemas of PodMonitor, InferencePool and HTTPRoute: of these, the fields that are used are compared with FORMS below. The
arguments of the container start a server, and its probes get status 200.
"""
import http.client
import os
import subprocess
import sys
import time

import python_packages
from serve_test import equal

# What is required of the kinds that extend Kubernetes, and of which type each field is.
FORMS = {
    "PodMonitor": ("monitoring.coreos.com/v1", {
        "selector": {"matchLabels": {str: str}},
        "podMetricsEndpoints": [{"port": str, "path": str, "interval": str}]}),
    "InferencePool": ("inference.networking.k8s.io/v1", {
        "selector": {"matchLabels": {str: str}}, "targetPorts": [{"number": int}],
        "endpointPickerRef": {"name": str, "port": {"number": int}, "failureMode": ("FailOpen", "FailClose")}}),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", {
        "parentRefs": [{"group": str, "kind": str, "name": str}],
        "rules": [{"matches": [{"path": {"type": ("Exact", "PathPrefix", "RegularExpression"), "value": str}}],
                   "backendRefs": [{"group": str, "kind": str, "name": str}], "timeouts": {"request": str}}]}),
}


def check_form(found, form, where):
    if isinstance(form, dict) and str in form:
        for key, value in found.items():
            check_form(value, form[str], f"{where}.{key}")
    elif isinstance(form, dict):
        equal((where, set(found)), (where, set(form)))
        for key, value in found.items():
            check_form(value, form[key], f"{where}.{key}")
    elif isinstance(form, list):
        assert isinstance(found, list) and found, where
        for item in found:
            check_form(item, form[0], where)
    elif isinstance(form, tuple):
        assert found in form, f"{where}: {found} is none of {form}"
    else:
        assert isinstance(found, form), f"{where}: {found} is no {form}"


def documents(folder):
    import yaml
    found = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), encoding="utf8") as file:
            for document in yaml.safe_load_all(file):
                assert document["kind"] not in found
                found[document["kind"]] = document
    return found


def get(port, path):
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        status = connection.getresponse().status
        connection.close()
        return status
    except OSError:
        return 0


def main():
    nanovllm, model, source, venv = sys.argv[1:5]
    python_packages.require(venv, {"kubernetes_validate": "kubernetes-validate", "yaml": "pyyaml"})
    import kubernetes_validate
    found = documents(source + "/deploy/kubernetes")
    equal(set(found), {"Deployment", "Service", *FORMS})
    for kind in ("Deployment", "Service"):
        kubernetes_validate.validate(found[kind], kubernetes_validate.latest_version(), strict=True)
    for kind, (version, form) in FORMS.items():
        equal((kind, found[kind]["apiVersion"]), (kind, version))
        check_form(found[kind]["spec"], form, kind)

    # The objects find each other.
    pod = found["Deployment"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for selector in (found["Deployment"]["spec"]["selector"]["matchLabels"], found["Service"]["spec"]["selector"],
                     found["PodMonitor"]["spec"]["selector"]["matchLabels"], found["InferencePool"]["spec"]["selector"]["matchLabels"]):
        equal(selector, {name: labels[name] for name in selector})
    container, = pod["spec"]["containers"]
    port, = container["ports"]
    equal(found["Service"]["spec"]["ports"][0]["targetPort"], port["name"])
    equal(found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["port"], port["name"])
    equal(found["InferencePool"]["spec"]["targetPorts"], [{"number": port["containerPort"]}])
    equal(found["HTTPRoute"]["spec"]["rules"][0]["backendRefs"][0]["name"], found["InferencePool"]["metadata"]["name"])
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    options = dict(arg.split("=", 1) for arg in container["args"] if "=" in arg)
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["spec"]["terminationGracePeriodSeconds"] > wait + float(options["--shutdown-timeout"])
    equal(int(options["--port"]), port["containerPort"])

    # The arguments start a server that the probes find ready.
    args = [arg for arg in container["args"] if not arg.startswith(("--host", "--port"))]
    server = subprocess.Popen([nanovllm, "serve", *[model if arg == "/model" else arg for arg in args], "--port", "0"],
                              stderr=subprocess.PIPE, text=True)
    number = int(server.stderr.readline().rsplit(":", 1)[1])
    for path in paths:
        while get(number, path) != 200:
            assert server.poll() is None, server.stderr.read()
            time.sleep(0.05)
    equal(get(number, found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["path"]), 200)
    server.terminate()
    equal(server.wait(60), 0)


main()
