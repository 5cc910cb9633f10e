"""A `kubectl` of a cluster that is a folder of files: nodes and jobs.

It stands on a PATH as a copy. `KUBE_STATE` names the folder: `nodes.json` (name: what its condition Ready says) and
`calls`, which it writes. Anything that the real one would refuse ends with exit code 1.
"""

import json
import os
import sys
from pathlib import Path

STATE = Path(os.environ["KUBE_STATE"])


def read(name, default):
    path = STATE / name
    return json.loads(path.read_text()) if path.exists() else default


def write(name, value):
    (STATE / name).write_text(json.dumps(value))


def say(text):
    sys.stdout.write(text + "\n")


def refuse(message):
    sys.exit(f"Error from server: {message}")


def following(words, name):
    return words[words.index(name) + 1]


def apply(words):
    objects = read("objects.json", {})
    for item in json.loads(Path(following(words, "--filename")).read_text())["items"]:
        key = f"{item['kind']}/{item['metadata']['name']}"
        if key in objects and item["kind"] != "ConfigMap":
            refuse(f"{key} exists, and its pods are immutable")
        objects[key] = item
    write("objects.json", objects)


def delete(words):
    objects = read("objects.json", {})
    for item in json.loads(Path(following(words, "--filename")).read_text())["items"]:
        key = f"{item['kind']}/{item['metadata']['name']}"
        if objects.pop(key, None) is None and "--ignore-not-found" not in words:
            refuse(f"{key} not found")
    write("objects.json", objects)


def get(words):
    if words[1] != "nodes":
        say("\n".join(read("objects.json", {})))
        return
    items = [
        {"metadata": {"name": name}, "status": {"conditions": [{"type": "Ready", "status": ready}]}}
        for name, ready in read("nodes.json", {}).items()
    ]
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
