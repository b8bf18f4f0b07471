"""Read and disarm alarms: ``client.maintenance``. Once authentication is on, only root may call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from falcon_etcd import _rpc
from falcon_etcd._proto import rpc_pb2 as pb
from falcon_etcd._transport import Transport

AlarmKind: TypeAlias = Literal["NoSpace", "Corrupt"]

_FROM_PROTO: Final[dict[int, AlarmKind]] = {pb.NOSPACE: "NoSpace", pb.CORRUPT: "Corrupt"}
_TO_PROTO: Final = {"NoSpace": pb.NOSPACE, "Corrupt": pb.CORRUPT}


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm that a member raised; it holds for the whole cluster until it is disarmed.

    NoSpace: the member's database has reached its quota, and no member takes writes. Corrupt: the member's data differ
    from those of the other members, and no member serves any key.
    """

    member_id: int
    kind: AlarmKind


class Maintenance:
    """Alarms and defragmentation."""

    def __init__(self, transport: Transport) -> None:
        self._call = transport.call

    async def alarms(self) -> Sequence[Alarm]:
        """Return the alarms of all members."""
        request = pb.AlarmRequest(action=pb.AlarmRequest.GET)
        response = await self._call(_rpc.ALARM, request, "list the alarms")
        return tuple(Alarm(a.memberID, _FROM_PROTO[a.alarm]) for a in response.alarms if a.alarm in _FROM_PROTO)

    async def disarm(self, alarm: Alarm) -> None:
        """Take back an alarm. etcd raises NoSpace again at the next write that finds no room."""
        request = pb.AlarmRequest(
            action=pb.AlarmRequest.DEACTIVATE, memberID=alarm.member_id, alarm=_TO_PROTO[alarm.kind]
        )
        await self._call(_rpc.ALARM, request, f"disarm {alarm.kind} of member {alarm.member_id:x}")

    async def defragment(self, endpoint: str, timeout_seconds: float) -> None:
        """Give the free pages of one member's database back to the file system.

        The member answers nothing meanwhile: seconds for each GB that is in use. ``endpoint`` is one of
        ``Client.endpoints``.
        """
        await self._call(
            _rpc.DEFRAGMENT,
            pb.DefragmentRequest(),
            "defragment",
            timeout_seconds=timeout_seconds,
            only=endpoint,
            require_leader=False,
        )
