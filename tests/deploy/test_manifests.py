"""``deploy/kubernetes``: valid for those who read it, and true to the program that it runs."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest

from streaming.conf import StreamingConf
from streaming.routing import http_urlpatterns
from tests.deploy import schema
from tests.deploy.kustomize import Manifest, build, containers, load, pod_spec
from tests.stack import ROOT

DEPLOY = ROOT / "deploy" / "kubernetes"
EXAMPLE = build(DEPLOY / "example")
MIGRATE = build(DEPLOY / "example" / "migrate")
ROUTE = load(DEPLOY / "components" / "gateway-api" / "http-route.yaml")
SECRETS = load(DEPLOY / "example" / "secret.example.yaml")
EVERYTHING = [*EXAMPLE, *MIGRATE, *ROUTE, *SECRETS]
PODS = [one for one in EXAMPLE + MIGRATE if pod_spec(one)]
ROOM_TO_CLOSE = 20
"""Seconds: the server's own limits for what comes after the grace (``gateway_project.server``)."""


def of_kind(kind: str) -> list[Manifest]:
    return [one for one in EVERYTHING if one["kind"] == kind]


def named(kind: str, name: str) -> Manifest:
    found, *same = [one for one in of_kind(kind) if one["metadata"]["name"] == name]
    assert all(other == found for other in same)
    return found


def identity(manifest: Manifest) -> str:
    return f"{manifest['kind']}-{manifest['metadata']['name']}"


@pytest.fixture(scope="module")
def gateway() -> Manifest:
    return named("Deployment", "unbroken-gateway")


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    return named("ConfigMap", "unbroken-settings")["data"]


@pytest.mark.parametrize("manifest", EVERYTHING, ids=identity)
def test_it_is_valid(manifest: Manifest) -> None:
    schema.check(manifest)


def test_a_field_that_nobody_knows_is_noticed(gateway: Manifest) -> None:
    """The schemas are strict: a spelling mistake is not valid."""
    wrong = {**gateway, "spec": {**gateway["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError):
        schema.check(wrong)
    monitor = named("ServiceMonitor", "unbroken-gateway")
    with pytest.raises(jsonschema.ValidationError):
        schema.check({**monitor, "spec": {**monitor["spec"], "endpoint": []}})


def test_every_file_is_used_somewhere() -> None:
    kustomizations = "".join(path.read_text() for path in DEPLOY.rglob("kustomization.yaml"))
    guides = (DEPLOY / "README.md").read_text()
    for path in DEPLOY.rglob("*.*"):
        if path.name != "kustomization.yaml" and path.suffix in (".yaml", ".env"):
            assert f"- {path.name}" in kustomizations or path.name in guides, path


@pytest.mark.parametrize("manifest", PODS, ids=identity)
def test_pods_are_confined(manifest: Manifest) -> None:
    spec = pod_spec(manifest)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(manifest):
        confined = container["securityContext"]
        assert confined["readOnlyRootFilesystem"] is True
        assert confined["allowPrivilegeEscalation"] is False
        assert confined["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]
        mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/data", "/tmp"} <= mounts
        assert {"name": "DATA_DIR", "value": "/data"} in container["env"]
        names = {volume["name"] for volume in spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= names


def test_all_run_the_same_image_of_a_version() -> None:
    images = {container["image"] for one in PODS for container in containers(one)}
    (image,) = images
    name, _, tag = image.rpartition(":")
    assert name, image
    assert re.fullmatch(r"\d+\.\d+\.\d+", tag), image


def test_pods_are_the_user_of_the_image() -> None:
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    for one in PODS:
        context = pod_spec(one)["securityContext"]
        assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in dockerfile
        for container in containers(one):
            assert "workingDir" not in container, "the image knows where it is"


def test_variables_are_settings(settings: dict[str, str]) -> None:
    table = set(
        re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE)
    )
    given = {*settings}
    for secret in SECRETS:
        given |= secret["stringData"].keys() - {"token"}
    for one in PODS:
        given |= {
            variable["name"] for container in containers(one) for variable in container["env"]
        }
    assert given <= table, given - table


def test_what_pods_refer_to_exists() -> None:
    maps = {one["metadata"]["name"] for one in of_kind("ConfigMap")}
    secrets = {one["metadata"]["name"]: one["stringData"] for one in SECRETS}
    for one in PODS:
        for container in containers(one):
            for source in container["envFrom"]:
                if "configMapRef" in source:
                    assert source["configMapRef"]["name"] in maps
                else:
                    assert source["secretRef"]["name"] in secrets
    for monitor in of_kind("ServiceMonitor"):
        for endpoint in monitor["spec"]["endpoints"]:
            credentials = endpoint["authorization"]["credentials"]
            assert credentials["key"] in secrets[credentials["name"]]
    claims = {one["metadata"]["name"] for one in of_kind("PersistentVolumeClaim")}
    accounts = {one["metadata"]["name"] for one in of_kind("ServiceAccount")}
    for one in PODS:
        for volume in pod_spec(one)["volumes"]:
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims
        assert pod_spec(one).get("serviceAccountName", "unbroken") in accounts


def test_no_secret_is_in_it(settings: dict[str, str]) -> None:
    secret = {"SECRET_KEY", "SECRET_KEY_FALLBACKS", "METRICS_TOKEN", "AUDIT_KEY", "DATABASE_URL",
              "DATABASE_DIRECT_URL", "REDIS_URL"}  # fmt: skip
    assert not secret & settings.keys()
    assert "Secret" not in {one["kind"] for one in EXAMPLE + MIGRATE}
    for one in SECRETS:
        for value in one["stringData"].values():
            assert "<" in value, "an example has nothing that could be used as it is"


def test_probes_ask_what_is_answered(gateway: Manifest) -> None:
    (container,) = containers(gateway)
    paths = {str(route.pattern) for route in http_urlpatterns}
    asked = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    assert asked["readiness"]["path"] == "/readyz"
    assert asked["liveness"]["path"] == asked["startup"]["path"] == "/healthz"
    for probe in asked.values():
        assert probe["path"].removeprefix("/") in paths
    (endpoint,) = named("ServiceMonitor", "unbroken-gateway")["spec"]["endpoints"]
    assert endpoint["path"].removeprefix("/") in paths
    # /readyz itself waits for the database and Redis for so long.
    assert container["readinessProbe"]["timeoutSeconds"] > 4
    liveness = container["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60


def test_ports_agree(gateway: Manifest) -> None:
    (container,) = containers(gateway)
    (port,) = container["ports"]
    command = container["command"]
    assert command[command.index("--port") + 1] == str(port["containerPort"])
    assert command[command.index("--host") + 1] == "0.0.0.0"
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[name]["httpGet"]["port"] == port["name"]
    (served,) = named("Service", "unbroken-gateway")["spec"]["ports"]
    assert served["targetPort"] == port["name"]
    (endpoint,) = named("ServiceMonitor", "unbroken-gateway")["spec"]["endpoints"]
    assert endpoint["port"] == served["name"]
    for rule in named("Ingress", "unbroken")["spec"]["rules"]:
        for path in rule["http"]["paths"]:
            backend = path["backend"]["service"]
            assert backend == {"name": "unbroken-gateway", "port": {"name": served["name"]}}
    (route,) = ROUTE
    for rule in route["spec"]["rules"]:
        assert rule["backendRefs"] == [{"name": "unbroken-gateway", "port": served["port"]}]


def test_selectors_match(gateway: Manifest) -> None:
    labels = gateway["spec"]["template"]["metadata"]["labels"]
    others = [one["spec"]["template"]["metadata"]["labels"] for one in PODS if one is not gateway]

    def selects_gateways_only(selector: dict[str, str]) -> bool:
        return selector.items() <= labels.items() and not any(
            selector.items() <= other.items() for other in others
        )

    for one in PODS:
        if one["kind"] == "Deployment":
            selector = one["spec"]["selector"]["matchLabels"]
            assert selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
    service = named("Service", "unbroken-gateway")
    assert selects_gateways_only(service["spec"]["selector"])
    budget = named("PodDisruptionBudget", "unbroken-gateway")["spec"]
    assert selects_gateways_only(budget["selector"]["matchLabels"])
    for spread in pod_spec(gateway)["topologySpreadConstraints"]:
        assert selects_gateways_only(spread["labelSelector"]["matchLabels"])
    monitor = named("ServiceMonitor", "unbroken-gateway")["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= service["metadata"]["labels"].items()
    policy = named("NetworkPolicy", "unbroken-gateway")["spec"]["podSelector"]["matchLabels"]
    assert selects_gateways_only(policy)
    rest = named("NetworkPolicy", "unbroken-background")["spec"]["podSelector"]
    assert rest["matchLabels"].items() <= labels.items()
    (expression,) = rest["matchExpressions"]
    components = {other["app.kubernetes.io/component"] for other in others}
    assert set(expression["values"]) == components


def test_there_is_time_to_drain(gateway: Manifest, settings: dict[str, str]) -> None:
    (container,) = containers(gateway)
    grace = float(settings["SHUTDOWN_GRACE"])
    assert grace == StreamingConf().shutdown_grace, "the guide speaks of the default"
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    given = pod_spec(gateway)["terminationGracePeriodSeconds"]
    assert given >= before + grace + ROOM_TO_CLOSE
    # The proxies hear of it within a few probes.
    assert before >= container["readinessProbe"]["periodSeconds"]
    rolling = gateway["spec"]["strategy"]["rollingUpdate"]
    assert rolling["maxUnavailable"] == 0
    assert gateway["spec"]["progressDeadlineSeconds"] > given
    beat = named("Deployment", "unbroken-beat")["spec"]
    assert beat["replicas"] == 1
    assert beat["strategy"] == {"type": "Recreate"}


def test_the_proxy_bears_the_ladder(settings: dict[str, str]) -> None:
    notes = {
        key.removeprefix("nginx.ingress.kubernetes.io/"): value
        for key, value in named("Ingress", "unbroken")["metadata"]["annotations"].items()
    }
    conf = StreamingConf()
    assert notes["proxy-buffering"] == "off"
    assert float(notes["proxy-read-timeout"]) > conf.engine_silence
    assert notes["proxy-read-timeout"] == settings["PROXY_IDLE_SECONDS"]
    assert int(notes["proxy-body-size"].removesuffix("m")) * 1024**2 == conf.max_body_bytes
    assert notes["proxy-next-upstream"] == "error"


def test_it_grows_by_a_metric_that_exists(gateway: Manifest, settings: dict[str, str]) -> None:
    scaler = named("HorizontalPodAutoscaler", "unbroken-gateway")["spec"]
    assert scaler["scaleTargetRef"]["name"] == gateway["metadata"]["name"]
    assert "replicas" not in gateway["spec"], "two would set it"
    (metric,) = scaler["metrics"]
    (document,) = load(DEPLOY / "components" / "autoscaling" / "adapter-rule.yaml")
    (rule,) = document["rules"]["custom"]
    assert rule["name"]["as"] == metric["pods"]["metric"]["name"]
    name = rule["seriesQuery"].partition("{")[0]
    assert re.fullmatch(rule["name"]["matches"], name)
    catalogue = (ROOT / "docs/metrics.md").read_text()
    assert f"| `{name}` | gauge | `state` |" in catalogue
    # What survives a pod that dies still has room for its streams.
    target = float(metric["pods"]["target"]["averageValue"])
    least = scaler["minReplicas"]
    assert target * least / (least - 1) < float(settings["MAX_STREAMS"])
    down = scaler["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 600
    assert down["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 300}]


def test_migrations_are_the_owners() -> None:
    (job,) = [one for one in MIGRATE if one["kind"] == "Job"]
    (container,) = containers(job)
    sources = [
        source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source
    ]
    assert sources == ["unbroken", "unbroken-owner"], "the last one wins"
    for one in EXAMPLE:
        for other in containers(one):
            assert "unbroken-owner" not in str(other["envFrom"])


def commands(manifests: list[Manifest]) -> list[list[str]]:
    return [
        [*container["command"], *container.get("args", [])]
        for one in manifests
        for container in containers(one)
    ]


def test_commands_are_those_of_serve() -> None:
    """What ``serve`` starts on one machine is what runs here."""
    source = (ROOT / "gateway_project/supervisor/stack.py").read_text()
    for command in commands(EXAMPLE):
        for word in command[2:]:
            if word.startswith("--") and word not in ("--host", "--port"):
                assert word.partition("=")[0] in source, word


def test_guides_name_what_exists() -> None:
    guide = (DEPLOY / "README.md").read_text()
    for name in re.findall(r"`((?:base|components|example|migrate)/[\w./-]*)`", guide):
        assert (DEPLOY / name).exists(), name
    for target in re.findall(r"\]\((?!http)([^)#]+)", guide):
        assert Path(DEPLOY / target).exists(), target
