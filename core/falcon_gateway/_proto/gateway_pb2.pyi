from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromAgent(_message.Message):
    __slots__ = ("hello", "report", "beat", "series")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: Report
    beat: Beat
    series: Series
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., series: _Optional[_Union[Series, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("namespace", "job", "pod_uid", "session", "protocol")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    job: str
    pod_uid: str
    session: int
    protocol: int
    def __init__(self, namespace: _Optional[str] = ..., job: _Optional[str] = ..., pod_uid: _Optional[str] = ..., session: _Optional[int] = ..., protocol: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("sequence", "urgent", "payload")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    URGENT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    urgent: bool
    payload: bytes
    def __init__(self, sequence: _Optional[int] = ..., urgent: _Optional[bool] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Series(_message.Message):
    __slots__ = ("payload",)
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    def __init__(self, payload: _Optional[bytes] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "command", "receipt", "series_wanted")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SERIES_WANTED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    command: Command
    receipt: Receipt
    series_wanted: SeriesWanted
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., command: _Optional[_Union[Command, _Mapping]] = ..., receipt: _Optional[_Union[Receipt, _Mapping]] = ..., series_wanted: _Optional[_Union[SeriesWanted, _Mapping]] = ...) -> None: ...

class SeriesWanted(_message.Message):
    __slots__ = ("largest_bytes",)
    LARGEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    largest_bytes: int
    def __init__(self, largest_bytes: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("gateway", "beat_ms", "largest_report_bytes")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    BEAT_MS_FIELD_NUMBER: _ClassVar[int]
    LARGEST_REPORT_BYTES_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    beat_ms: int
    largest_report_bytes: int
    def __init__(self, gateway: _Optional[str] = ..., beat_ms: _Optional[int] = ..., largest_report_bytes: _Optional[int] = ...) -> None: ...

class Command(_message.Message):
    __slots__ = ("name", "revision", "payload")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: int
    payload: bytes
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("sequence", "thinned", "retry_after_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    THINNED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    thinned: bool
    retry_after_ms: int
    def __init__(self, sequence: _Optional[int] = ..., thinned: _Optional[bool] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class FromOperator(_message.Message):
    __slots__ = ("hello", "announce", "all_announced", "withdraw", "publish", "ping")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_FIELD_NUMBER: _ClassVar[int]
    ALL_ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    hello: OperatorHello
    announce: Announce
    all_announced: AllAnnounced
    withdraw: Withdraw
    publish: Publish
    ping: Ping
    def __init__(self, hello: _Optional[_Union[OperatorHello, _Mapping]] = ..., announce: _Optional[_Union[Announce, _Mapping]] = ..., all_announced: _Optional[_Union[AllAnnounced, _Mapping]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping]] = ..., publish: _Optional[_Union[Publish, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class OperatorHello(_message.Message):
    __slots__ = ("identity", "epoch")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    identity: str
    epoch: int
    def __init__(self, identity: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Announce(_message.Message):
    __slots__ = ("namespace", "job", "job_uid", "pod_uids", "procs_per_replica", "revision")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    POD_UIDS_FIELD_NUMBER: _ClassVar[int]
    PROCS_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    job: str
    job_uid: str
    pod_uids: _containers.RepeatedScalarFieldContainer[str]
    procs_per_replica: int
    revision: int
    def __init__(self, namespace: _Optional[str] = ..., job: _Optional[str] = ..., job_uid: _Optional[str] = ..., pod_uids: _Optional[_Iterable[str]] = ..., procs_per_replica: _Optional[int] = ..., revision: _Optional[int] = ...) -> None: ...

class AllAnnounced(_message.Message):
    __slots__ = ("spared_job_uids",)
    SPARED_JOB_UIDS_FIELD_NUMBER: _ClassVar[int]
    spared_job_uids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, spared_job_uids: _Optional[_Iterable[str]] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("job_uid",)
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    def __init__(self, job_uid: _Optional[str] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ("job_uid", "name", "revision", "payload")
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    job_uid: str
    name: str
    revision: int
    payload: bytes
    def __init__(self, job_uid: _Optional[str] = ..., name: _Optional[str] = ..., revision: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class ToOperator(_message.Message):
    __slots__ = ("hello", "batch", "all_sent", "pong")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ALL_SENT_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    batch: bytes
    all_sent: AllSent
    pong: Pong
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., batch: _Optional[bytes] = ..., all_sent: _Optional[_Union[AllSent, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ...) -> None: ...

class GatewayHello(_message.Message):
    __slots__ = ("gateway", "incarnation")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    incarnation: int
    def __init__(self, gateway: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class AllSent(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pong(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class FromSubscriber(_message.Message):
    __slots__ = ("hello",)
    HELLO_FIELD_NUMBER: _ClassVar[int]
    hello: SubscriberHello
    def __init__(self, hello: _Optional[_Union[SubscriberHello, _Mapping]] = ...) -> None: ...

class SubscriberHello(_message.Message):
    __slots__ = ("identity",)
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    identity: str
    def __init__(self, identity: _Optional[str] = ...) -> None: ...

class ToSubscriber(_message.Message):
    __slots__ = ("hello", "chunk")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    hello: GatewayHello
    chunk: Chunk
    def __init__(self, hello: _Optional[_Union[GatewayHello, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("namespace", "job", "job_uid", "pod_uid", "dropped", "waited_ms", "payload")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    WAITED_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    job: str
    job_uid: str
    pod_uid: str
    dropped: int
    waited_ms: int
    payload: bytes
    def __init__(self, namespace: _Optional[str] = ..., job: _Optional[str] = ..., job_uid: _Optional[str] = ..., pod_uid: _Optional[str] = ..., dropped: _Optional[int] = ..., waited_ms: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("gateway", "incarnation", "number", "namespace", "job", "job_uid", "entries")
    GATEWAY_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    JOB_UID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    gateway: str
    incarnation: int
    number: int
    namespace: str
    job: str
    job_uid: str
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, gateway: _Optional[str] = ..., incarnation: _Optional[int] = ..., number: _Optional[int] = ..., namespace: _Optional[str] = ..., job: _Optional[str] = ..., job_uid: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("pod_uid", "session", "sequence", "change", "received_unix_ns", "alive", "silent_ms", "payload")
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    SILENT_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    pod_uid: str
    session: int
    sequence: int
    change: int
    received_unix_ns: int
    alive: bool
    silent_ms: int
    payload: bytes
    def __init__(self, pod_uid: _Optional[str] = ..., session: _Optional[int] = ..., sequence: _Optional[int] = ..., change: _Optional[int] = ..., received_unix_ns: _Optional[int] = ..., alive: _Optional[bool] = ..., silent_ms: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...
