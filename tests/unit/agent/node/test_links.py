"""Ports in a folder with sysfs' layout, which the tests write by hand: there is no such adapter here."""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_agent.node.links import DOWN_SECONDS, Links, read_ports

T = 1_700_000_000.0


class Adapter:
    """An adapter mlx5_0 with one port, below a PCIe slot."""

    def __init__(self, sysfs: Path, layer: str = "InfiniBand") -> None:
        self.sysfs = sysfs
        self.slot = sysfs / "devices/pci0000:5d/0000:5d:00.0"
        self.pci = self.slot / "0000:5e:00.0"
        self.port = self.pci / "infiniband/mlx5_0/ports/1"
        self.port.mkdir(parents=True)
        link = sysfs / "class/infiniband/mlx5_0"
        link.parent.mkdir(parents=True)
        link.symlink_to(self.port.parents[1])
        (self.port.parents[1] / "device").symlink_to(self.pci)
        self.set(state="4: ACTIVE", phys_state="5: LinkUp", rate="400 Gb/sec (4X NDR)", link_layer=layer)
        for name in ("symbol_error", "link_downed", "link_error_recovery", "local_link_integrity_errors"):
            self.count(name, 0)
        write(self.slot / "max_link_width", "16")
        self.lanes(16)

    def set(self, **files: str) -> None:
        for name, text in files.items():
            write(self.port / name, text)

    def count(self, name: str, value: int) -> None:
        folder = "hw_counters" if name.endswith("_err") else "counters"  # as mlx5 has them
        write(self.port / folder / name, str(value))

    def lanes(self, used: int, most: int = 16) -> None:
        write(self.pci / "current_link_width", str(used))
        write(self.pci / "max_link_width", str(most))

    def interface(self, flags: str, port: int = 0) -> None:
        write(self.pci / "net/eth2/flags", flags)
        write(self.pci / "net/eth2/dev_port", str(port))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


@pytest.fixture
def adapter(tmp_path: Path) -> Adapter:
    return Adapter(tmp_path)


class Watch:
    """Feeds readings of the adapter, ``seconds`` after the start."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self.links = Links()

    def __call__(self, seconds: float = 0.0) -> list[tuple[str, str]]:
        return [(seen.name, seen.text) for seen in self.links.feed(read_ports(self.adapter.sysfs), T + seconds)]


def test_no_device_is_nothing(tmp_path: Path) -> None:
    assert read_ports(tmp_path) == []


def test_a_healthy_port(adapter: Adapter) -> None:
    (port,) = read_ports(adapter.sysfs)
    assert (port.name, port.state, port.wanted, port.rate, port.lanes) == ("mlx5_0/1", 4, True, 400.0, (16, 16))
    watch = Watch(adapter)
    assert watch() == watch(15) == []


def test_what_cannot_be_read_is_unknown(adapter: Adapter) -> None:
    watch = Watch(adapter)
    adapter.count("symbol_error", 900)
    watch()
    for path in (adapter.port / "counters/symbol_error", adapter.port / "rate", adapter.port / "state"):
        path.unlink()
    write(adapter.pci / "current_link_width", "Unknown")
    (port,) = read_ports(adapter.sysfs)
    assert (port.state, port.rate, port.lanes) == (None, None, None)
    assert "symbol_error" not in port.counters
    assert watch(15) == []
    adapter.count("symbol_error", 2000)  # back: it is unknown how much it grew
    assert watch(30) == []


def test_a_slower_rate_than_before(adapter: Adapter) -> None:
    watch = Watch(adapter)
    watch()
    adapter.set(rate="100 Gb/sec (4X EDR)")
    assert watch(15) == [("NicDegraded", "mlx5_0/1: 100 Gb/s instead of 400 Gb/s")]
    adapter.set(rate="400 Gb/sec (4X NDR)")
    assert watch(30) == []


def test_fewer_lanes_than_adapter_and_slot_have(adapter: Adapter) -> None:
    watch = Watch(adapter)
    adapter.lanes(8)
    assert watch() == [("NicDegraded", "mlx5_0/1: 8 of 16 PCIe lanes are in use")]
    write(adapter.slot / "max_link_width", "8")  # built so
    assert watch(15) == []


def test_a_port_that_goes_down_flaps_first(adapter: Adapter) -> None:
    watch = Watch(adapter)
    watch()
    adapter.set(state="1: DOWN", phys_state="2: Polling")
    assert watch(15) == [("LinkFlapping", "mlx5_0/1: the port is down")]
    assert watch(15 + DOWN_SECONDS) == [("LinkDown", "mlx5_0/1: the port is down")]
    adapter.set(state="4: ACTIVE", phys_state="5: LinkUp")
    assert watch(200) == []


def test_a_port_that_was_never_up_is_not_missed(adapter: Adapter) -> None:
    adapter.set(state="1: DOWN", phys_state="2: Polling")
    watch = Watch(adapter)
    assert watch() == watch(15 + DOWN_SECONDS) == []


def test_the_next_daemon_knows_that_a_port_was_up(adapter: Adapter) -> None:
    adapter.set(state="1: DOWN", phys_state="2: Polling")
    watch = Watch(adapter)
    watch.links.remember("mlx5_0/1: the port is down")
    watch()
    assert watch(DOWN_SECONDS) == [("LinkDown", "mlx5_0/1: the port is down")]


def test_a_port_that_a_person_switched_off(adapter: Adapter) -> None:
    watch = Watch(adapter)
    watch()
    adapter.set(state="1: DOWN", phys_state="3: Disabled")
    assert watch(15) == watch(15 + DOWN_SECONDS) == []


@pytest.mark.parametrize(("flags", "missed"), [("0x1003", True), ("0x1002", False), (None, False)])
def test_a_roce_port_is_missed_while_its_interface_is_up(tmp_path: Path, flags: str | None, missed: bool) -> None:
    """Such a port is "disabled" in both cases; without the interface it is in the network of a pod."""
    adapter = Adapter(tmp_path, layer="Ethernet")
    watch = Watch(adapter)
    watch()
    if flags is not None:
        adapter.interface(flags)
    adapter.set(state="1: DOWN", phys_state="3: Disabled")
    watch(15)
    assert bool(watch(15 + DOWN_SECONDS)) is missed


def test_virtual_functions_are_left_out(adapter: Adapter) -> None:
    (adapter.pci / "physfn").symlink_to(adapter.slot)
    assert read_ports(adapter.sysfs) == []


@pytest.mark.parametrize(
    ("counter", "grown", "name"),
    [
        ("link_downed", 1, "LinkFlapping"),
        ("link_error_recovery", 2, "LinkFlapping"),
        ("symbol_error", 10, "HardwareWarning"),
        ("local_link_integrity_errors", 1, "HardwareWarning"),
        ("local_ack_timeout_err", 100, "HardwareWarning"),
        ("packet_seq_err", 100, "HardwareWarning"),
    ],
)
def test_counters_that_grow(adapter: Adapter, counter: str, grown: int, name: str) -> None:
    adapter.count(counter, 900)
    watch = Watch(adapter)
    assert watch() == []  # how long ago that was is unknown
    adapter.count(counter, 900 + grown)
    assert watch(15) == [(name, f"mlx5_0/1: {counter} grew by {grown}")]
    assert watch(30) == []


def test_a_few_symbol_errors_and_a_counter_that_was_reset(adapter: Adapter) -> None:
    adapter.count("symbol_error", 100)
    watch = Watch(adapter)
    watch()
    adapter.count("symbol_error", 109)
    assert watch(15) == []
    adapter.count("symbol_error", 50)
    assert watch(30) == []
