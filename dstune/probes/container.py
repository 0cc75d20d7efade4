"""Containers: the runtime we are inside of and what of the GPU it lets through; on a host, engines and GPU hooks."""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterator, Mapping

from dstune.lang import say
from dstune.model import Fact, Gap, parse_json
from dstune.probes.reading import Item, Options, facts, listing, run, text_of
from dstune.redact import redact

_CGROUP_MARKS = (
    ("kubepods", "kubernetes"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
    ("crio", "cri-o"),
)
_LOADER_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
)
_ELSEWHERE = (
    "/usr/local/nvidia/lib64",
    "/usr/local/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",
    "/usr/lib/nvidia",
)


def probe(options: Options) -> Iterator[Item]:
    """Facts of `container` always; of docker, podman and the toolkit where their files or programs are."""
    inside, runtime, source = runtime_of(options, os.environ)
    yield Fact("container", "inside", inside, source)
    if inside:
        yield from facts("container", source, runtime=runtime)
        yield from _environment(os.environ)
        yield from _shared_memory(options)
    yield from _devices(options)
    yield from _libraries(options)
    yield from _docker(options)
    yield from _toolkit(options)


def runtime_of(options: Options, env: Mapping[str, str]) -> tuple[bool, str | None, str]:
    """(inside?, runtime, what told us)."""
    if env.get("KUBERNETES_SERVICE_HOST"):
        return True, "kubernetes", "$KUBERNETES_SERVICE_HOST"
    if env.get("APPTAINER_CONTAINER") or env.get("SINGULARITY_CONTAINER"):
        return True, "apptainer", "$APPTAINER_CONTAINER"
    if os.path.exists(options.at("/run/.containerenv")):
        return True, "podman", "/run/.containerenv"
    if os.path.exists(options.at("/.dockerenv")):
        return True, "docker", "/.dockerenv"
    for path in ("/proc/1/cgroup", "/proc/self/cgroup"):
        text = text_of(options.at(path), 65536)
        for mark, name in _CGROUP_MARKS:
            if text and re.search(rf"[:/][^\n]*\b{mark}", text):
                return True, name, path
    named = env.get("container")
    if named and named != "flatpak":
        return True, named, "$container"
    mounted = text_of(options.at("/proc/self/mountinfo"), 1 << 20)
    if mounted is None:
        return False, None, "no sign of a container (/proc is not readable)"
    if re.search(r" / / [^\n]* - overlay [^\n]*(docker|containers/storage|containerd)", mounted):
        return True, "docker" if "docker" in mounted else "containerd", "/proc/self/mountinfo"
    return False, None, "/.dockerenv, /run/.containerenv, /proc/1/cgroup"


def _environment(env: Mapping[str, str]) -> Iterator[Item]:
    names = {
        "visible_devices": "NVIDIA_VISIBLE_DEVICES",
        "driver_capabilities": "NVIDIA_DRIVER_CAPABILITIES",
        "require_cuda": "NVIDIA_REQUIRE_CUDA",
        "image_cuda": "CUDA_VERSION",
    }
    for fact, name in names.items():
        if name in env:
            yield Fact("container", fact, redact(env[name]), f"${name}")


def _shared_memory(options: Options) -> Iterator[Item]:
    try:
        room = os.statvfs(options.at("/dev/shm"))
    except OSError:
        yield Gap("container", "shm_mib", say("/dev/shm is not there", "没有 /dev/shm"))
        return
    yield Fact("container", "shm_mib", room.f_blocks * room.f_frsize >> 20, "statvfs /dev/shm")


def _devices(options: Options) -> Iterator[Item]:
    found = [n for n in listing(options.at("/dev")) if n.startswith("nvidia") or n == "dxg"]
    yield Fact("container", "gpu_devices", found, "/dev")
    closed = [n for n in found if not n.startswith("nvidia-caps") and not os.access(options.at(f"/dev/{n}"), os.R_OK | os.W_OK)]
    yield Fact("container", "gpu_devices_closed", closed, "access(2) on /dev/nvidia*")


def _libraries(options: Options) -> Iterator[Item]:
    """Where libcuda is, and whether the loader would find it."""
    on_path = loader_folders(options)
    found = [f for f in (*on_path, *_ELSEWHERE) if os.path.exists(options.at(f"{f}/libcuda.so.1"))]
    found = list(dict.fromkeys(found))
    yield Fact("container", "libcuda", bool(found), "loader path and usual folders")
    yield from facts("container", "loader path and usual folders", libcuda_folders=found or None)
    yield Fact("container", "libcuda_on_loader_path", any(f in on_path for f in found), "ld.so.conf, LD_LIBRARY_PATH")
    stubs = [f for f in on_path if f.endswith("/stubs") and os.path.exists(options.at(f"{f}/libcuda.so"))]
    yield Fact("container", "cuda_stub_on_loader_path", bool(stubs), "LD_LIBRARY_PATH")
    compat = [f for f in on_path if "/compat" in f and glob.glob(options.at(f"{f}/libcuda.so.*"))]
    yield Fact("container", "cuda_compat_on_loader_path", bool(compat), "ld.so.conf, LD_LIBRARY_PATH")


def loader_folders(options: Options) -> list[str]:
    """Folders that the dynamic loader searches: LD_LIBRARY_PATH, ld.so.conf with its includes, the defaults."""
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    for path in (options.at("/etc/ld.so.conf"), *sorted(glob.glob(options.at("/etc/ld.so.conf.d/*.conf")))):
        for line in (text_of(path, 65536) or "").splitlines():
            line = line.split("#")[0].strip()
            if line and not line.startswith("include"):
                folders.append(line)
    return list(dict.fromkeys(f.rstrip("/") for f in (*folders, *_LOADER_FOLDERS)))


def _docker(options: Options) -> Iterator[Item]:
    path = shutil.which("docker") if options.root == "/" else None
    snap = os.path.exists(options.at("/snap/bin/docker")) or os.path.isdir(options.at("/var/snap/docker"))
    socket = next((s for s in ("/run/docker.sock", "/var/run/docker.sock") if os.path.exists(options.at(s))), None)
    yield Fact("docker", "installed", bool(path or snap or socket), "PATH, /snap/bin, /run/docker.sock")
    podman = shutil.which("podman") if options.root == "/" else None
    yield Fact("docker", "podman", podman is not None or os.path.exists(options.at("/usr/bin/podman")), "PATH")
    if path or snap or socket:
        yield Fact("docker", "daemon_socket", socket is not None, "/run/docker.sock")
        real = os.path.realpath(path) if path else ""
        desktop = os.path.isdir(options.at("/opt/docker-desktop")) or "docker-desktop" in real.lower()
        kind = "snap" if snap and (not path or "/snap/" in path or "/snap" in real) else "desktop" if desktop else "package"
        yield Fact("docker", "install", kind, redact(path or "/snap/bin/docker" if snap else path or "/run/docker.sock"))
        runtime_dir = os.environ.get("XDG_RUNTIME_DIR", "")
        rootless = "rootless" in os.environ.get("DOCKER_HOST", "") or bool(
            runtime_dir and os.path.exists(os.path.join(runtime_dir, "docker.sock"))
        )
        yield Fact("docker", "rootless", rootless, "$DOCKER_HOST, $XDG_RUNTIME_DIR/docker.sock")
        version = run((path, "--version"), 2.0) if path else None
        found = re.search(r"version (\d+[\d.]*)", version or "")
        yield from facts("docker", "docker --version", version=found.group(1) if found else None)
        yield from _daemon(options, snap and kind == "snap")


def _daemon(options: Options, snap: bool) -> Iterator[Item]:
    places = ["/etc/docker/daemon.json", os.path.expanduser("~/.config/docker/daemon.json")]
    if snap:
        places.insert(0, "/var/snap/docker/current/config/daemon.json")
    path = next((p for p in places if os.path.exists(options.at(p))), None)
    yield Fact("docker", "daemon_json", path is not None, redact(", ".join(places)))
    if path is None:
        return
    text = text_of(options.at(path))
    try:
        config = parse_json(text or "")
        runtimes = config.get("runtimes") or {}
    except (ValueError, AttributeError) as error:
        reason = (
            say("not readable", "无法读取") if text is None else say(f"not valid JSON: {error}", f"不是合法的 JSON：{error}")
        )
        yield Gap(
            "docker", "runtimes", f"{redact(path)}: {reason}", say("dockerd does not start with it", "dockerd 无法用它启动")
        )
        return
    yield Fact("docker", "runtimes", sorted(runtimes), redact(path))
    yield Fact("docker", "nvidia_runtime", "nvidia" in runtimes, redact(path))
    yield Fact("docker", "default_runtime", str(config.get("default-runtime") or "runc"), redact(path))
    features = config.get("features") or {}
    yield Fact("docker", "cdi", bool(features.get("cdi")) or bool(config.get("cdi-spec-dirs")), redact(path))
    options_list = [str(o) for o in config.get("exec-opts") or []]
    driver = next((o.split("=", 1)[1] for o in options_list if o.startswith("native.cgroupdriver=")), None)
    yield from facts("docker", redact(path), cgroup_driver=driver, data_root=config.get("data-root"))


def _toolkit(options: Options) -> Iterator[Item]:
    if runtime_of(options, os.environ)[0]:
        why = say("this is inside a container; the toolkit belongs to the host", "当前在容器内；该工具属于宿主机")
        yield Gap("container_toolkit", "installed", why, say("run dstune probe on the host", "请在宿主机上运行 dstune probe"))
        return
    names = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-container-cli")
    here = [n for n in names if os.path.exists(options.at(f"/usr/bin/{n}")) or (options.root == "/" and shutil.which(n))]
    yield Fact("container_toolkit", "installed", bool(here), "PATH: nvidia-ctk, nvidia-container-runtime, nvidia-container-cli")
    specs = [p for d in ("/etc/cdi", "/var/run/cdi") for p in listing(options.at(d)) if p.endswith((".yaml", ".json"))]
    yield Fact("container_toolkit", "cdi_specs", specs, "/etc/cdi, /var/run/cdi")
    if not here:
        return
    yield Fact("container_toolkit", "programs", here, "PATH")
    version = run(("nvidia-ctk", "--version"), 2.0) if options.root == "/" and "nvidia-ctk" in here else None
    found = re.search(r"version (\d+[\d.]*)", version or "")
    yield from facts("container_toolkit", "nvidia-ctk --version", version=found.group(1) if found else None)
    path = "/etc/nvidia-container-runtime/config.toml"
    text = text_of(options.at(path))
    if text is None:
        return
    import tomllib

    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        yield Gap("container_toolkit", "mode", f"{path}: {error}")
        return
    cli, runtime = config.get("nvidia-container-cli") or {}, config.get("nvidia-container-runtime") or {}
    yield Fact("container_toolkit", "no_cgroups", bool(cli.get("no-cgroups", False)), path)
    yield from facts("container_toolkit", path, mode=runtime.get("mode"))
