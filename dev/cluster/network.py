"""Build the network: a bridge in the root namespace, a namespace and a veth for each node, routes between pods."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

from dev.cluster.layout import BRIDGE, CLUSTER, GATEWAY, Node
from dev.cluster.process import run

_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
_FORWARD_BEFORE = CLUSTER / "ip_forward.before"
_NOWHERE = str(IPv4Network(f"{GATEWAY}/24", strict=False).broadcast_address - 1)  # no machine has this address
_CABLE = ("169.254.77.1", "169.254.77.2")  # the ends of a cable between two nodes, known to these alone


def create(nodes: list[Node]) -> None:
    """Create bridge, namespaces, veths, addresses and routes."""
    if not _FORWARD_BEFORE.exists():
        _FORWARD_BEFORE.parent.mkdir(parents=True, exist_ok=True)
        _FORWARD_BEFORE.write_text(_FORWARD.read_text())
    _FORWARD.write_text("1")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{GATEWAY}/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")
    for node in nodes:
        _create_node(node, nodes)


def _create_node(node: Node, nodes: list[Node]) -> None:
    run("ip", "netns", "add", node.namespace)
    run("ip", "link", "add", node.veth, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    run("ip", "link", "set", node.veth, "master", BRIDGE, "up")
    commands = [
        "link set lo up",
        f"address add {node.address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {GATEWAY}",
        *(f"route add {peer.pod_subnet} via {peer.address}" for peer in nodes if peer is not node),
    ]
    run("ip", "-netns", node.namespace, "-batch", "-", stdin="\n".join(commands) + "\n")
    run("nsenter", f"--net=/run/netns/{node.namespace}", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    run("ip", "route", "replace", node.pod_subnet, "via", node.address)


def remove(nodes: list[Node]) -> None:
    """Undo ``create``, also where only a part of it exists."""
    for node in nodes:
        run("ip", "netns", "delete", node.namespace, check=False)
        run("ip", "link", "delete", node.veth, check=False)
    run("ip", "link", "delete", BRIDGE, check=False)
    if _FORWARD_BEFORE.exists():
        _FORWARD.write_text(_FORWARD_BEFORE.read_text())
        _FORWARD_BEFORE.unlink()


def set_link(node: Node, up: bool) -> None:
    """Set a node's link up or down: a node whose link is down is cut off the bridge."""
    run("ip", "link", "set", node.veth, "up" if up else "down")


def set_link_between(first: Node, second: Node, up: bool) -> None:
    """Set what the pods of two nodes can send each other up or down; down, it goes to a neighbour that never answers.

    So a connection fails after three seconds with "no route to host", as over a cable that is unplugged.
    """
    for node, peer in ((first, second), (second, first)):
        via = peer.address if up else _NOWHERE
        run("ip", "-netns", node.namespace, "route", "replace", peer.pod_subnet, "via", via)


def limit(node: Node, rate: str | None) -> None:
    """Shape the node's traffic to a rate such as ``50mbit`` (tc tbf on both ends of its veth); None: no limit."""
    for prefix, device in (((), node.veth), (_inside(node), "eth0")):
        _shape(prefix, device, rate)


def limit_between(first: Node, second: Node, rate: str | None) -> None:
    """Shape what the pods of two nodes send each other, by a cable of their own besides the bridge; None: no cable."""
    ends = ((first, second, _CABLE[0], _CABLE[1]), (second, first, _CABLE[1], _CABLE[0]))
    for node, peer, _, _ in ends:  # back to the bridge, before the cable goes
        run("ip", "-netns", node.namespace, "route", "replace", peer.pod_subnet, "via", peer.address)
    names = [_cable(peer) for _, peer, _, _ in ends]
    run("ip", "-netns", first.namespace, "link", "delete", names[0], check=False)
    if rate is None:
        return
    run(
        *("ip", "-netns", first.namespace, "link", "add", names[0], "type", "veth"),
        *("peer", "name", names[1], "netns", second.namespace),
    )
    for node, peer, own, _ in ends:
        run("ip", "-netns", node.namespace, "address", "add", own, "peer", _other(own), "dev", _cable(peer))
        run("ip", "-netns", node.namespace, "link", "set", _cable(peer), "up")
        _shape(_inside(node), _cable(peer), rate)
    for node, peer, _, other in ends:
        route = ("route", "replace", peer.pod_subnet, "via", other, "dev", _cable(peer))
        run("ip", "-netns", node.namespace, *route)


def _cable(peer: Node) -> str:
    return f"cable-{peer.index}"


def _other(own: str) -> str:
    return _CABLE[1] if own == _CABLE[0] else _CABLE[0]


def _inside(node: Node) -> tuple[str, ...]:
    return ("nsenter", f"--net=/run/netns/{node.namespace}")


def _shape(prefix: tuple[str, ...], device: str, rate: str | None) -> None:
    run(*prefix, "tc", "qdisc", "delete", "dev", device, "root", check=False)
    if rate:
        shape = ("tbf", "rate", rate, "burst", "64kb", "latency", "50ms")
        run(*prefix, "tc", "qdisc", "add", "dev", device, "root", *shape)
