"""A `kubectl` of a cluster that is a folder of files: nodes, jobs, pods; what happens to pods is written beforehand.

It stands on a PATH as a copy. `KUBE_STATE` names the folder: `nodes.json` (name: what its condition Ready says),
`script.json` (per job that is applied, what happens once its pods have been looked at so often), and `calls`, which it
writes. A job runs as its controller would run it: a pod is on its node, waits for one that is not there, and goes with
its job unless its node is dead. Anything that the real one would refuse ends with exit code 1.
"""

import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["KUBE_STATE"])
SELECTORS = {"JobSet": "jobset.sigs.k8s.io/jobset-name", "Job": "volcano.sh/job-name"}


def read(name, default):
    path = STATE / name
    return json.loads(path.read_text()) if path.exists() else default


def write(name, value):
    (STATE / name).write_text(json.dumps(value))


def say(text):
    sys.stdout.write(text + "\n")


def refuse(message):
    sys.exit(f"Error from server: {message}")


def option(words, name):
    return next((word.partition("=")[2] for word in words if word.startswith(f"--{name}=")), None)


def following(words, name):
    return words[words.index(name) + 1]


def templates(job):
    """The specification of every pod of a job."""
    if job["kind"] == "JobSet":
        return [each["template"]["spec"]["template"]["spec"] for each in job["spec"]["replicatedJobs"]]
    return [each["template"]["spec"] for each in job["spec"]["tasks"]]


def node_of(spec, nodes):
    """Where the scheduler puts a pod; None: it waits."""
    wanted = spec["nodeSelector"]["kubernetes.io/hostname"]
    rule = spec.get("affinity", {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
    for term in rule.get("nodeSelectorTerms", []):
        for each in term["matchExpressions"]:
            if each["operator"] == "NotIn" and wanted in each["values"]:
                return None
    return wanted if nodes.get(wanted) == "True" else None


def apply(words):
    objects, pods, nodes = read("objects.json", {}), read("pods.json", []), read("nodes.json", {})
    for item in json.loads(Path(following(words, "--filename")).read_text())["items"]:
        key = f"{item['kind']}/{item['metadata']['name']}"
        if key in objects and item["kind"] != "ConfigMap":
            refuse(f"{key} exists, and its pods are immutable")
        objects[key] = item
        if item["kind"] in SELECTORS:
            number = read("applied.json", 0)
            write("applied.json", number + 1)
            write("looks.json", 0)
            own = {"job": item["metadata"]["name"], "kind": item["kind"], "attempt": number, "phase": "Pending"}
            for index, spec in enumerate(templates(item)):
                pods.append(own | {"uid": f"{number}-{index}", "spec": spec, "host": node_of(spec, nodes)})
    write("objects.json", objects)
    write("pods.json", pods)


def delete(words):
    objects, nodes = read("objects.json", {}), read("nodes.json", {})
    names = set()
    for item in json.loads(Path(following(words, "--filename")).read_text())["items"]:
        key = f"{item['kind']}/{item['metadata']['name']}"
        if objects.pop(key, None) is None and "--ignore-not-found" not in words:
            refuse(f"{key} not found")
        names.add(item["metadata"]["name"])
    # the kubelet of a dead node can confirm nothing
    left = [pod for pod in read("pods.json", []) if pod["job"] not in names or nodes.get(pod["host"]) != "True"]
    write("objects.json", objects)
    write("pods.json", left)


def advance():
    """What has happened since the last look."""
    looks, attempt = read("looks.json", 0) + 1, read("applied.json", 0) - 1
    write("looks.json", looks)
    pods, nodes = read("pods.json", []), read("nodes.json", {})
    for pod in pods:
        if pod["phase"] == "Pending" and pod["host"] is not None:
            pod["phase"] = "Running"
    script = read("script.json", [])
    event = script[attempt] if 0 <= attempt < len(script) else {}
    if looks == event.get("after"):
        happen(event, [pod for pod in pods if pod["attempt"] == attempt], nodes)
    failed = {pod["job"] for pod in pods if pod["phase"] == "Failed" and pod["kind"] == "JobSet"}
    # a JobSet that has failed takes its other pods away
    pods = [pod for pod in pods if pod["job"] not in failed or pod["phase"] in ("Failed", "Succeeded")]
    write("pods.json", pods)
    write("nodes.json", nodes)
    return pods


def happen(event, pods, nodes):
    host = event.get("host")
    here = [pod for pod in pods if pod["host"] == host]
    if event["what"] == "node not ready":
        nodes[host] = "Unknown"
    elif event["what"] == "node gone":
        del nodes[host]
    elif event["what"] == "drained":
        for pod in here:
            pod["phase"], pod["conditions"] = "Failed", [{"type": "DisruptionTarget", "status": "True"}]
    elif event["what"] == "ended":
        for pod in here:
            pod["phase"], pod["code"], pod["message"] = "Failed", event["code"], event["message"]
    else:
        assert event["what"] == "succeeded"
        for pod in pods:
            pod["phase"], pod["code"], pod["message"] = "Succeeded", 0, event.get("message")


def rendered(pod):
    status = {"phase": pod["phase"], "conditions": pod.get("conditions", [])}
    if "code" in pod:
        ended = {"exitCode": pod["code"], "reason": "Error" if pod["code"] else "Completed"}
        if pod.get("message"):
            ended["message"] = pod["message"]
        status["containerStatuses"] = [{"name": "rank", "state": {"terminated": ended}}]
    where = {} if pod["host"] is None else {"nodeName": pod["host"]}
    return {"metadata": {"uid": pod["uid"], "name": pod["uid"]}, "spec": where, "status": status}


def get(words):
    if words[1] == "nodes":
        items = [
            {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
            for name, ready in read("nodes.json", {}).items()
        ]
    elif words[1] == "pods":
        key, _, name = (option(words, "selector") or "").partition("=")
        items = [rendered(pod) for pod in advance() if (SELECTORS[pod["kind"]], pod["job"]) == (key, name)]
    else:
        say("\n".join(read("objects.json", {})))
        return
    say(json.dumps({"kind": "List", "items": items}))


def main():
    words = sys.argv[1:]
    with (STATE / "calls").open("a") as file:
        file.write(" ".join(words[:2] if words[0] == "get" else words[:1]) + "\n")
    if words[0] == "logs":
        say("what the pods said")
        return
    {"apply": apply, "delete": delete, "get": get}[words[0]](words)


main()
