"""Read the chunks of series that agents send, from one gateway, for as long as the reader wants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Final

from falcon_gateway._proto import gateway_pb2 as pb
from falcon_gateway._stream import FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, Rpc, Stream, Tls, Unavailable

SERIES: Final = Rpc("/falcon.gateway.v1.SeriesLink/Series", pb.FromSubscriber, pb.ToSubscriber)


class Subscriber:
    """The anomaly service's connection to one gateway.

    A chunk's payload is opaque here: ``falcon_core.wire.series`` decodes it. Chunks that the gateway gets while no
    stream is open are lost.
    """

    def __init__(self, endpoint: str, tls: Tls, identity: str) -> None:
        """Prepare a connection to ``endpoint`` (host:port, of the operator's port); ``identity`` is for logs."""
        self._endpoint = endpoint
        self._tls = tls
        self._identity = identity
        self.hello: pb.GatewayHello | None = None  # who answers on the present stream; None: no stream is open
        self.dropped = 0  # chunks that the gateways have dropped since this object was made: they were read too slowly
        self.trouble = ""  # why the last stream ended; "" while one is open

    async def chunks(self) -> AsyncIterator[pb.Chunk]:
        """Yield the chunks of all agents of the gateway, and connect again whenever the stream ends.

        Close the iterator (``contextlib.aclosing``) to close the stream.

        Raises:
            Refused: The certificate is not the service's, or the gateway is of a release without this stream.
        """
        longest = FIRST_RETRY_SECONDS
        while True:
            try:
                async with Stream(SERIES, self._endpoint, self._tls) as stream:
                    hello = pb.SubscriberHello(identity=self._identity)
                    await stream.send(pb.FromSubscriber(hello=hello))
                    before = self.dropped
                    while True:
                        message = await stream.receive()
                        if message.HasField("hello"):
                            self.hello, self.trouble, longest = message.hello, "", FIRST_RETRY_SECONDS
                        elif message.HasField("chunk"):
                            self.dropped = before + message.chunk.dropped
                            yield message.chunk
            except Unavailable as error:
                self.trouble = str(error)
            finally:
                self.hello = None
            await asyncio.sleep(random.uniform(0, longest))
            longest = min(2 * longest, LONGEST_RETRY_SECONDS)
