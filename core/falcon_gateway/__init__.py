"""Connect to falcon-gateway: an agent's stream, the operator's, and the anomaly service's.

    agent = AgentClient(["gateway:7443"], Tls(ca, cert, key), Pod("ns", "job", pod_uid), on_command=take)
    agent.report(payload)              # never waits; the newest report wins
    await agent.run()                  # until cancelled, or Refused for good

    operator = OperatorClient("gateway:7444", Tls(ca, cert, key), desired, Leader("op-0", epoch), on_batch=merge)
    desired.announce(Announce(...))
    await operator.run()

    subscriber = Subscriber("gateway:7444", Tls(ca, cert, key), "anomalies-0")
    async for chunk in subscriber.chunks():   # until closed, or Refused for good
        decode_chunk(chunk.payload)

Payloads are opaque bytes to the gateway. :class:`Entries` merges batches, which come by the stream and by etcd.
"""

from falcon_gateway._agent import AgentClient, Pod
from falcon_gateway._entries import Entries, PodEntry
from falcon_gateway._operator import Desired, Leader, OperatorClient
from falcon_gateway._proto.gateway_pb2 import Announce, Batch, Chunk, Command, Entry, Publish, Receipt
from falcon_gateway._stream import LinkError, Refused, Tls, Unavailable
from falcon_gateway._subscriber import Subscriber

__all__ = [
    "AgentClient",
    "Announce",
    "Batch",
    "Chunk",
    "Command",
    "Desired",
    "Entries",
    "Entry",
    "Leader",
    "LinkError",
    "OperatorClient",
    "Pod",
    "PodEntry",
    "Publish",
    "Receipt",
    "Refused",
    "Subscriber",
    "Tls",
    "Unavailable",
]
