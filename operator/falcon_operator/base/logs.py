"""Write structured logs: one JSON object a line on standard output, for the logs of libraries as well."""

from __future__ import annotations

import logging
import sys

import structlog

from falcon_operator.base.settings import LogLevel


def configure(level: LogLevel) -> None:
    """Configure the logs of the whole process. Libraries log from level warning on, whatever ``level`` is."""
    number = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}[level]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Records of libraries do not pass through structlog, so the handler adds the same fields to them.
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # Debug output of libraries (HTTP, gRPC) would hide our own, so only our loggers get the lower level.
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("falcon_etcd").setLevel(number)
    logging.getLogger("falcon_operator").setLevel(number)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
