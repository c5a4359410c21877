"""What is in deploy/ fits the worker: every metric that is asked for exists, with its labels, in a real scrape."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from config.load import load, parse
from config.network.addresses import parse_tcp
from lab.deploy.metrics import DEPLOY, ROOT, families, selectors
from lab.engine.listener import LISTENER, LISTENER_PATH
from lab.media.speech import SPEECH
from lab.network.ports import ports
from lab.worker.peers import Worker, command, worker
from mediaworker.calls.registry import FINALS_S

OWN = "mediaworker_"
FOREIGN = {"up"}
"""Of Prometheus itself."""
GRAFANA = {"$__rate_interval": "5m", "$instance": ".*"}
CONVENTIONAL = re.compile(r"mediaworker(_[a-z0-9]+)+")


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """Name → label sets of every sample of a worker that has had a call and does what can be turned on."""
    (registrar,) = ports(1)
    account = f'[{{registrar = "sip:127.0.0.1:{registrar}", user = "alice", name = "trunk"}}]'
    hook = f'[{{name="crm", url="http://127.0.0.1:{registrar}/", secret="whsec_{"A" * 32}"}}]'
    settings = {"SIP__ACCOUNTS": account, "WEBHOOKS": hook, "PRIVACY__DTMF": "mask"}
    with worker(tmp_path_factory.mktemp("worker"), LISTENER_PATH, **LISTENER, **settings) as running:
        done = command("call", f"sip:x@127.0.0.1:{running.sip_port}", "--play", str(SPEECH / "vm-goodbye.wav"))
        assert done.returncode == 0, done.stderr
        played = ("--play", str(SPEECH / "vm-goodbye.wav"), "--connect", "--dtmf", "7")
        assert command("stream", running.twilio, *played).returncode == 0
        running.wait_ended(2)
        return scraped(running)


def scraped(running: Worker) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for line in running.get("/metrics").splitlines():
        if not line.startswith("#"):
            name, _, labels = line.rpartition(" ")[0].partition("{")
            found.setdefault(name, []).append(dict(re.findall(r'(\w+)="([^"]*)"', labels)))
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """(where, PromQL) of everything in deploy/."""
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    board = json.loads((DEPLOY / "grafana/mediaworker.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"])


def base(name: str) -> str:
    """A histogram's samples are its family's."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


def test_every_metric_that_is_asked_for_exists_with_its_labels(samples: dict[str, list[dict[str, str]]]) -> None:
    known, asked = families(), set()
    for where, expression in expressions():
        for name, value in GRAFANA.items():
            expression = expression.replace(name, value)
        found = list(selectors(promql_parser.parse(expression)))
        named = set(re.findall(r"\bmediaworker_\w+", expression))
        assert found and {selector.name for selector in found} - FOREIGN == named, f"{where}: {expression}"
        for selector in found:
            asked.add(selector.name)
            if selector.name in FOREIGN:
                continue
            assert base(selector.name) in known or selector.name in known, f"{where}: {selector.name} does not exist"
            kind, labels, _ = known.get(selector.name) or known[base(selector.name)]
            if kind == "histogram":
                assert selector.name != base(selector.name), f"{where}: {selector.name} is a histogram"
            allowed = {*labels.split(", "), "instance", "job", "le"}
            for matcher in selector.matchers.matchers:
                assert matcher.name in allowed, f"{where}: {selector.name} has no label {matcher.name}"
                shown = [labels[matcher.name] for labels in samples.get(selector.name, ()) if matcher.name in labels]
                for value in matcher.value.split("|") if shown and matcher.name != "instance" else ():
                    assert value in shown, f"{where}: {selector.name} never has {matcher.name}={value}"
    assert len(asked) > 45


def test_grouped_labels_are_the_metrics_own() -> None:
    known = families()
    for where, expression in expressions():
        for name, value in GRAFANA.items():
            expression = expression.replace(name, value)
        names = {selector.name for selector in selectors(promql_parser.parse(expression))}
        for group in re.findall(r"\bby \(([^)]*)\)", expression):
            for label in group.split(", "):
                own = {"instance", "le"}
                for name in names - FOREIGN:
                    own |= set((known.get(name) or known[base(name)])[1].split(", "))
                assert label in own, f"{where}: nothing has the label {label}"


def test_a_real_scrape_is_what_the_documentation_says(samples: dict[str, list[dict[str, str]]]) -> None:
    known = families()
    shown = {name if name in known else base(name) for name in samples}
    assert shown <= known.keys(), f"not in docs/reference/metrics.md: {sorted(shown - known.keys())}"
    # Everything without labels of its own is there from the first scrape on, zero or not, where it is made.
    elsewhere = ("mediaworker_engine_server_", "mediaworker_cluster_", "mediaworker_traces_")
    always = {name for name, (_, labels, _) in known.items() if not labels and not name.startswith(elsewhere)}
    assert always <= shown
    for name in samples:
        _, labels, _ = known.get(name) or known[base(name)]
        for sample in samples[name]:
            assert sample.keys() - {"le"} == set(filter(None, labels.split(", "))), name


def test_names_follow_the_conventions() -> None:
    """prometheus.io/docs/practices/naming: base units, and `_total` for what only grows."""
    for name, (kind, _, help) in families().items():
        assert CONVENTIONAL.fullmatch(name), name
        assert name.endswith("_total") == (kind == "counter"), name
        assert not re.search(r"_(ms|milliseconds|kb|mb|minutes|percent)(_|$)", name), name
        assert kind != "histogram" or name.endswith(("_seconds", "_bytes")), name
        assert help and help[0].isupper() or help[0].isdigit(), name


def test_the_dashboard_covers_what_there_is_to_see() -> None:
    board = json.loads((DEPLOY / "grafana/mediaworker.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(panels) and all(place[1] == 6 and place[2] <= 18 for place in places)
    for panel in panels:
        assert panel["targets"] and all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_every_alert_says_what_it_means() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert "$labels.instance" in rule["annotations"]["summary"], rule["alert"]
    scrape = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    assert scrape["authorization"]["type"] == "Bearer" and scrape["job_name"] == "mediaworker"


def test_shipped_configuration_is_accepted() -> None:
    done = command("config", "--config", str(DEPLOY / "config/mediaworker.toml"))
    assert done.returncode == 0, done.stderr
    commented = (DEPLOY / "config/mediaworker.toml").read_text()
    # What is commented out must be right as well.
    lines = [re.sub(r"^# ?(?=[\[a-z_]+.*[\]=])", "", line) for line in commented.splitlines()]
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("…", "some-key-12345")
    import tomllib

    settings = parse(tomllib.loads(text))
    assert settings.auth.api_keys and settings.sip.allow and settings.http.tls_cert


def test_the_unit_gives_a_drain_its_time_and_names_what_is_installed() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((DEPLOY / "mediaworker.service").read_text())
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > parse({}).shutdown_s + FINALS_S + 15
    assert service["ExecStart"] == "/opt/mediaworker/bin/mediaworker serve"
    assert "-HUP" in service["ExecReload"] and service["KillSignal"] == "SIGTERM" and service["Restart"] == "on-failure"
    assert service["NoNewPrivileges"] == "yes" and service["ProtectSystem"] == "strict"


def test_compose_and_image_agree() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    ours = compose["services"]["mediaworker"]
    assert ours["network_mode"] == "host" and ours["volumes"][1] == "data:/data"
    assert int(ours["stop_grace_period"].removesuffix("s")) > int(ours["environment"]["MEDIAWORKER_SHUTDOWN_S"]) + 45
    image = (ROOT / "Dockerfile").read_text()
    for line in ("VOLUME /data", "USER mediaworker", "STOPSIGNAL SIGTERM", "MEDIAWORKER_DATA_DIR=/data"):
        assert line in image
    for name in re.findall(r"\b(OMP|MKL|OPENBLAS)_NUM_THREADS=1", image):
        assert name
    # Every step is a script that is there, may be run, and comes along.
    steps = re.findall(r"(?m)^RUN (.*)$", image)
    assert len(steps) == 7
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for step in steps:
        (script,) = re.findall(r"(?:tools|mediaworker)/(\w+\.sh)", step)
        assert (ROOT / "tools" / script).stat().st_mode & 0o111, script
        assert f"!tools/{script}" in allowed
    for source in re.findall(r"(?m)^COPY (?!--from)(.*) \S+$", image):
        for name in source.split():
            places = (Path(name), *Path(name).parents)
            assert (ROOT / name).exists() and any(f"!{place}" in allowed for place in places), name
    # The weights do not change with the worker: their layer comes before it, and is not copied a second time with it.
    build, _, runtime = image.partition("FROM runtime-${VARIANT} AS runtime")
    assert build.index("--weights /opt/weights/whisper-base") < build.index("COPY mediaworker/")
    assert runtime.index("/opt/weights /opt/mediaworker/share/mediaworker") < runtime.index("/opt/mediaworker /opt")
    assert compose["services"]["mediaworker"]["build"]["args"].keys() == set(re.findall(r"(?m)^ARG (\w+)=", image)) - {
        "DEBIAN"
    }


def environment(service: dict[str, Any]) -> dict[str, str]:
    return {name: value for name, value in service.get("environment", {}).items() if name.startswith("MEDIAWORKER_")}


def test_the_cluster_of_compose_fits_together(tmp_path: Path) -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    cluster = {name: each for name, each in services.items() if each.get("profiles") == ["cluster"]}
    assert cluster.keys() == {"worker-1", "worker-2", "engine", "nats", "haproxy"}
    # What its comment asks for.
    (tmp_path / "mediaworker.toml").write_text(
        '[[auth.api_keys]]\nname = "all"\nkey = "some-key-12345"\nscopes = ["admin"]\n[cluster]\ntoken = "some-token"\n'
    )
    ours = {name: each for name, each in services.items() if each["image"] == "mediaworker"}
    loaded = {name: load(tmp_path / "mediaworker.toml", environment(each)) for name, each in ours.items()}
    listen = ours["engine"]["command"][2]
    used = [parse_tcp(listen)[1], 4222, 443, 8443]
    for name, settings in loaded.items():
        used.append(settings.http.port)
        if name != "engine":
            used += [settings.media.port, settings.sip.port, settings.sip.tls_port]
    assert len(set(used)) == len(used), "all are the host's"
    assert {volume.partition(":")[0] for each in cluster.values() for volume in each["volumes"][-1:]} == {
        "worker-1", "worker-2", "engine", "nats", "./haproxy",
    }  # fmt: skip
    places = services["haproxy"]["environment"]
    for number in (1, 2):
        settings = loaded[f"worker-{number}"]
        assert settings.asr.servers == (listen,) and settings.cluster.replicas == 1
        assert settings.cluster.nats == (f"nats://127.0.0.1:{services['nats']['command'][-1]}",)
        assert places[f"WORKER{number}"] == f"127.0.0.1:{settings.http.port}"
        assert places[f"WORKER{number}_MEDIA"] == f"127.0.0.1:{settings.media.port}"
    assert places.keys() == set(re.findall(r"presetenv (\w+)", (DEPLOY / "haproxy/haproxy.cfg").read_text()))
    for each in cluster.values():
        assert set(each.get("depends_on", ())) <= cluster.keys() and each["network_mode"] == "host"
        assert each["image"] == "mediaworker" or re.search(r":\d+\.\d+\.\d+", each["image"])


def test_composed_services_end_in_time_and_mount_what_there_is() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, each in compose["services"].items():
        for volume in each["volumes"]:
            source = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).partition(":")[0]
            there = (DEPLOY / source).exists() if source.startswith("./") else source in compose["volumes"]
            assert there, f"{name}: {volume}"
        if (shutdown_s := environment(each).get("MEDIAWORKER_SHUTDOWN_S")) is not None:
            # An engine server has no calls, whose finals would be waited for.
            finals_s = 0 if each.get("command", ["serve"])[0] == "engine" else FINALS_S
            assert int(each["stop_grace_period"].removesuffix("s")) > int(shutdown_s) + finals_s + 15


def test_what_a_gpu_gets_is_what_was_tested() -> None:
    def versions(name: str) -> dict[str, str]:
        lines = (ROOT / "requirements" / name).read_text().splitlines()
        here = [line for line in lines if not re.search("never|win32|== 'aarch64'", line)]
        found = [re.match(r"([a-z0-9-]+)==([^ ;]+)", line) for line in here]
        return {match[1]: match[2] for match in found if match}

    cuda, run, dev, torch = map(versions, ("cuda.lock", "run.lock", "dev.lock", "torch.txt"))
    assert cuda["torch"] == torch["torch"] and cuda["transformers"] == dev["transformers"]
    assert "nvidia-cudnn-cu13" in cuda and "rich" not in cuda
    assert run.keys() <= cuda.keys()
    shared = {name for name in cuda.keys() & run.keys() if name != "numpy"}  # one of two, by Python's version
    assert {name: cuda[name] for name in shared} == {name: run[name] for name in shared}


def test_scripts_are_sound() -> None:
    for script in (ROOT / "tools").glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
        assert script.read_text().startswith("#!/usr/bin/env bash\n") and "set -euo pipefail" in script.read_text()
