"""What is in deploy/kubernetes passes the published schemas, agrees with itself, and is what the worker understands."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import promql_parser
import pytest

from config import ConfigError, Settings, load
from config.network.addresses import parse_tcp
from lab.deploy.manifests import (
    KUBERNETES,
    ROOT,
    containers,
    copied,
    crd_schemas,
    generated,
    kustomization,
    labels,
    manifest,
    manifests,
    pod,
    ports,
    selected,
    workloads,
)
from lab.deploy.metrics import families, selectors
from mediaworker.calls.registry import FINALS_S
from mediaworker.cluster.member import PUBLISH_S

OLDEST = "1.30"
"""Of Kubernetes: `preStop.sleep` is on by default from there."""
NAMESPACE = "mediaworker"
HANDSHAKE_FIRST = "  handshake_first: true\n"
"""Debian's server, which is here, does not know it yet."""
CONFIGURED = {"worker": "workers.toml", "engine": "engines.toml"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def settings(made: Path) -> dict[str, Settings]:
    """Workload → what its configuration and its environment say, by the worker's own loader."""
    found = {}
    for name, file in CONFIGURED.items():
        kind = "StatefulSet" if name == "worker" else "Deployment"
        environ = {each["name"]: each["value"] for each in containers(manifest(kind, name))[-1].get("env", ())}
        found[name] = load(made / "secrets" / file, environ)
    return found


# -- each for itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_manifests_pass_the_schemas_of_kubernetes(version: str) -> None:
    custom = {(api, kind) for api, kind, _ in crd_schemas()}
    checked = [each for each in manifests() if (each["apiVersion"], each["kind"]) not in custom]
    assert {each["kind"] for each in checked} == {
        "Namespace", "Service", "StatefulSet", "Deployment", "PodDisruptionBudget", "NetworkPolicy",
    }  # fmt: skip
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)


def test_custom_resources_pass_the_schemas_of_their_operators() -> None:
    for api, kind, schema in crd_schemas():
        found = [each for each in manifests(kind) if each["apiVersion"] == api]
        assert len(found) == 2, kind
        for each in found:
            jsonschema.Draft202012Validator(schema).validate(each)
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.Draft202012Validator(schema).validate(each | {"spec": each["spec"] | {"colour": "red"}})


def test_the_kustomization_has_every_file(made: Path) -> None:
    listed = {"kustomization.yaml", *kustomization()["resources"]}
    assert listed == {file.name for file in KUBERNETES.glob("*.yaml")}
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests()]
    assert len(set(names)) == len(names)
    for files in generated().values():
        for file in files.values():
            assert (made / file).is_file(), f"{file} is made by nobody"


def test_every_image_is_pinned() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    pinned = {each["name"]: each["newTag"] for each in kustomization()["images"]}
    assert pinned == {"mediaworker": version, "mediaworker-cuda": f"{version}-cuda", "nats": pinned["nats"]}
    assert re.fullmatch(r"\d+\.\d+\.\d+-alpine", pinned["nats"])
    assert {each["image"] for workload in workloads() for each in containers(workload)} == pinned.keys()


def test_containers_may_do_nothing_that_they_need_not() -> None:
    for workload in workloads():
        spec = pod(workload)
        assert spec["automountServiceAccountToken"] is False
        # Kubernetes would name Services in MEDIAWORKER_… variables, which are settings.
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]
        assert spec.get("hostNetwork", False) == (workload["metadata"]["name"] == "worker")
        volumes = {each["name"] for each in spec.get("volumes", ())}
        volumes |= {each["metadata"]["name"] for each in workload["spec"].get("volumeClaimTemplates", ())}
        for each in containers(workload):
            context = each["securityContext"]
            assert context["readOnlyRootFilesystem"] and context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {mount["name"] for mount in each["volumeMounts"]} == volumes
    image = (ROOT / "tools/create_user.sh").read_text()
    for kind, name in (("StatefulSet", "worker"), ("Deployment", "engine")):
        context = pod(manifest(kind, name))["securityContext"]
        assert f"--uid {context['runAsUser']} " in image and f"--gid {context['runAsGroup']} " in image
        assert context["fsGroup"] == context["runAsGroup"]


# -- with each other ---------------------------------------------------------------------------------------------------


def test_selectors_find_pods_and_ports_are_theirs() -> None:
    for workload in workloads():
        assert selected(workload["spec"]["selector"]["matchLabels"]) == [workload]
        for each in containers(workload):
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert probe not in each or each[probe]["httpGet"]["port"] in ports(workload)
        if "serviceName" in workload["spec"]:
            service = manifest("Service", workload["spec"]["serviceName"])
            assert selected(service["spec"]["selector"]) == [workload]
    for service in manifests("Service"):
        (workload,) = selected(service["spec"]["selector"])
        for port in service["spec"]["ports"]:
            assert ports(workload)[port["name"]] == port["port"]
    for budget in manifests("PodDisruptionBudget"):
        assert len(selected(budget["spec"]["selector"]["matchLabels"])) == 1
    for monitor in manifests("PodMonitor"):
        (workload,) = selected(monitor["spec"]["selector"]["matchLabels"])
        # What alerts and dashboard ask for.
        assert labels(workload)[monitor["spec"]["jobLabel"]] == "mediaworker"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert endpoint["port"] in ports(workload)


def test_network_policies_open_what_is_listened_on() -> None:
    opened: dict[str, set[int]] = {}
    for policy in manifests("NetworkPolicy"):
        chosen = policy["spec"]["podSelector"].get("matchLabels", {})
        for rule in policy["spec"].get("ingress", ()):
            (workload,) = selected(chosen)
            numbers = {port["port"] for port in rule["ports"]}
            assert rule["from"] and numbers <= set(ports(workload).values())
            opened.setdefault(workload["metadata"]["name"], set()).update(numbers)
            for peer in rule["from"]:
                # The workers are on their nodes' network, where no selector of pods finds them.
                found = selected(peer.get("podSelector", {}).get("matchLabels", {"no": "pod"}))
                assert not [each for each in found if pod(each).get("hostNetwork")]
    # 8222 is asked by its own node alone.
    assert opened == {"engine": {9095, 8080}, "nats": {4222, 6222}}


def test_secrets_and_configurations_are_made_with_their_keys() -> None:
    made, used = generated(), set()
    for workload in workloads():
        for volume in pod(workload)["volumes"]:
            for source in volume.get("projected", {}).get("sources", [volume]):
                if "secret" in source:
                    secret = source["secret"]
                    key = ("Secret", secret.get("name") or secret["secretName"])
                    assert {item["key"] for item in secret.get("items", ())} <= made[key].keys()
                elif "configMap" in source:
                    key = ("ConfigMap", source["configMap"]["name"])
                else:
                    continue
                assert key in made
                used.add(key)
    for monitor in manifests("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            for one in (endpoint["authorization"]["credentials"], endpoint["tlsConfig"]["ca"]["secret"]):
                assert one["key"] in made["Secret", one["name"]]
                used.add(("Secret", one["name"]))
    assert used == made.keys()
    assert not [file for files in made.values() for file in files.values() if file.endswith("authority.key")]
    assert "deploy/kubernetes/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


# -- with the worker ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", CONFIGURED.values())
def test_without_the_script_nobody_starts_with_a_known_key(file: str) -> None:
    with pytest.raises(ConfigError, match=r"auth.api_keys\[0\].key"):
        load(KUBERNETES / file, {})


def test_ports_are_the_settings(settings: dict[str, Settings]) -> None:
    worker, engine = settings["worker"], settings["engine"]
    assert ports(manifest("StatefulSet", "worker")) == {
        "https": worker.http.port, "media": worker.media.port, "sip-udp": worker.sip.port, "sip-tcp": worker.sip.port,
    }  # fmt: skip
    listen = parse_tcp(engine.asr.listen)[1]
    assert ports(manifest("Deployment", "engine")) == {"engine": listen, "https": engine.http.port}
    assert worker.http.tls_cert and worker.media.tls_cert and engine.http.tls_cert, "probes ask by HTTPS"
    mounted = "/etc/mediaworker"
    for workload in (manifest("StatefulSet", "worker"), manifest("Deployment", "engine")):
        (volume,) = (each for each in pod(workload)["volumes"] if "projected" in each)
        files = set()
        for source in volume["projected"]["sources"]:
            items = source["secret"].get("items", [{"path": "mediaworker.toml"}])
            files |= {f"{mounted}/{item['path']}" for item in items}
        own = settings[workload["metadata"]["name"]]
        named = {getattr(part, name) for part in (own.http, own.media, own.cluster) for name in ("tls_cert", "tls_key")}
        assert {*named, own.cluster.tls_ca} - {""} < files
        assert "WORKDIR /etc/mediaworker" in (ROOT / "Dockerfile").read_text()


def test_workers_find_engine_servers_and_nats_by_names_of_their_certificates(
    made: Path, settings: dict[str, Settings]
) -> None:
    worker, engine = settings["worker"], settings["engine"]
    assert kustomization()["namespace"] == manifests("Namespace")[0]["metadata"]["name"] == NAMESPACE
    (server,) = worker.asr.servers
    assert parse_tcp(server) == (f"engines.{NAMESPACE}.svc", parse_tcp(engine.asr.listen)[1])
    assert (worker.asr.engine, worker.asr.model) == (engine.asr.engine, engine.asr.model)
    nats = manifest("StatefulSet", "nats")["spec"]
    hosts = [f"nats-{number}.nats.{NAMESPACE}.svc" for number in range(nats["replicas"])]
    assert nats["replicas"] == worker.cluster.replicas
    assert list(worker.cluster.nats) == [f"tls://{host}:4222" for host in hosts]
    text = (KUBERNETES / "nats.conf").read_text()
    assert re.findall(r"^ *(tls://\S+)$", text, re.M) == [f"tls://{host}:6222" for host in hosts]
    own = {monitor["metadata"]["name"]: monitor for monitor in manifests("PodMonitor")}
    for name, monitor in own.items():
        assert named(made, name, monitor["spec"]["podMetricsEndpoints"][0]["tlsConfig"]["serverName"])
    for name, host in [("engines", parse_tcp(server)[0]), *(("nats", host) for host in hosts)]:
        assert named(made, name, host)
    assert not named(made, "engines", hosts[0])


def named(made: Path, name: str, host: str) -> bool:
    """Whether a certificate is for this host, and from the cluster's authority."""
    file = made / "secrets" / f"{name}.crt"
    check = ["openssl", "verify", "-CAfile", str(file.with_name("authority.crt")), "-verify_hostname", host, str(file)]
    return subprocess.run(check, capture_output=True).returncode == 0


def test_nats_takes_its_configuration(made: Path, settings: dict[str, Settings], tmp_path: Path) -> None:
    text = (KUBERNETES / "nats.conf").read_text()
    mounts = {
        each["name"]: each["mountPath"] for each in containers(manifest("StatefulSet", "nats"))[0]["volumeMounts"]
    }
    for name in re.findall(r"_file: (/\S+)", text):
        assert Path(name).parent in (Path(mounts["tls"]), Path(mounts["tmp"]))
        key = Path(name).name
        if key in (files := generated()["Secret", "nats-tls"]):
            text = text.replace(name, str(made / files[key]))
    assert f"store_dir: {mounts['data']}" in text
    assert settings["worker"].cluster.nats_tls_first == ("handshake_first: true" in text)
    text = text.replace(HANDSHAKE_FIRST, "")
    (tmp_path / "nats.conf").write_text(text)
    program = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert program, "apt install nats-server"
    check = [program, "-t", "-c", str(tmp_path / "nats.conf")]
    done = subprocess.run(check, capture_output=True, text=True, env={"POD_NAME": "nats-0"})
    assert done.returncode == 0, done.stderr
    for port, number in ports(manifest("StatefulSet", "nats")).items():
        key = {"client": r"^port", "cluster": r"^  port", "monitor": r"^http_port"}[port]
        assert re.search(rf"(?m){key}: {number}$", text)
    (claim,) = manifest("StatefulSet", "nats")["spec"]["volumeClaimTemplates"]
    size = claim["spec"]["resources"]["requests"]["storage"]
    assert int(re.findall(r"max_file_store: (\d+)G", text)[0]) < int(size.removesuffix("Gi"))


def test_a_drain_has_its_time(settings: dict[str, Settings]) -> None:
    worker, engine = manifest("StatefulSet", "worker"), manifest("Deployment", "engine")
    wait_s = pod(worker)["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    shutdown_s = settings["worker"].shutdown_s
    assert shutdown_s >= settings["worker"].stream.max_s, "as long as the longest stream"
    assert pod(worker)["terminationGracePeriodSeconds"] >= wait_s + shutdown_s + FINALS_S + PUBLISH_S + 30
    assert pod(engine)["terminationGracePeriodSeconds"] >= settings["engine"].shutdown_s + 15
    # One that drains for hours must not keep the others from being started.
    assert worker["spec"]["podManagementPolicy"] == "Parallel"
    assert worker["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    probe = pod(worker)["containers"][0]["readinessProbe"]
    assert wait_s > 2 * probe["periodSeconds"] * probe["failureThreshold"]


def test_scaling_asks_for_metrics_that_exist(settings: dict[str, Settings]) -> None:
    known = families()
    for scaled in manifests("ScaledObject"):
        spec = scaled["spec"]
        target = manifest(spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
        assert "replicas" not in target["spec"], "two would decide"
        (budget,) = (each for each in manifests("PodDisruptionBudget") if each["metadata"] == scaled["metadata"])
        assert spec["minReplicaCount"] > budget["spec"]["maxUnavailable"]
        down = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
        assert [policy["value"] for policy in down["policies"]] == [1] and down["stabilizationWindowSeconds"] >= 600
        for trigger in spec["triggers"]:
            metadata: dict[str, Any] = trigger["metadata"]
            assert all(isinstance(value, str) for value in metadata.values())
            assert metadata["ignoreNullValues"] == "false", "without an answer there would be no call"
            found = list(selectors(promql_parser.parse(metadata["query"])))
            assert {each.name for each in found} == set(re.findall(r"mediaworker_\w+", metadata["query"]))
            for each in found:
                assert known[each.name][0] == "gauge"
                matchers = {matcher.name: matcher.value for matcher in each.matchers.matchers}
                assert matchers == {"namespace": NAMESPACE}
    (calls,) = manifest("ScaledObject", "workers")["spec"]["triggers"]
    assert 0 < int(calls["metadata"]["threshold"]) <= settings["worker"].sip.max_calls / 2


def test_documents_name_what_exists() -> None:
    """The commands of docs/how-to/kubernetes.md."""
    text = (ROOT / "docs/how-to/kubernetes.md").read_text()
    assert "kubectl apply -k deploy/kubernetes" in text
    for name in set(re.findall(r"deploy/kubernetes/([\w.]+)", text)) - {"secrets"}:
        assert (KUBERNETES / name).exists(), name
    for label in re.findall(r"kubectl label node \S+ (\w+)=(\w+)", text):
        assert pod(manifest("StatefulSet", "worker"))["nodeSelector"] == dict([label])
    assert f"-n {NAMESPACE}" in text


def test_the_script_keeps_what_it_has_made(tmp_path: Path) -> None:
    place = copied(tmp_path)
    before = {file.name: file.read_bytes() for file in (place / "secrets").iterdir()}
    assert all((place / "secrets" / name).stat().st_mode & 0o077 == 0 for name in before)
    with (place / "workers.toml").open("a") as file:
        file.write('[twilio]\npublic_url = "https://calls.example.com"\nauth_token = "@twilio@"\n')
    script = [str(place / "create_secrets.sh")]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "workers.toml: there is no secrets/twilio.secret\n"
    (place / "secrets" / "twilio.secret").write_text("a/b&c\n")
    subprocess.run(script, check=True)
    assert load(place / "secrets" / "workers.toml", {}).twilio.auth_token == "a/b&c"
    after = {name: (place / "secrets" / name).read_bytes() for name in before}
    assert {name for name in before if before[name] != after[name]} == {"workers.toml"}
