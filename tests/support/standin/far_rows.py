"""Read a cluster's rows with all CQL timestamps, including those that Python cannot represent, or as raw bytes.

The driver raises an error for such timestamps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cassandra.cluster import Session
from cassandra.cqltypes import BytesType, DateType, LongType
from cassandra.protocol import ProtocolHandler, ResultMessage

# The driver's classes, with its C extension or without.
_Protocol: Any = ProtocolHandler
_Result: Any = _Protocol.message_types_by_opcode[ResultMessage.opcode]


class _Milliseconds(_Result):
    """A result with timestamps as plain integers."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """Receive the metadata as the driver does, with other types."""
        super().recv_results_metadata(f, user_type_map)
        columns: list[tuple[Any, ...]] = self.column_metadata or []
        self.column_metadata = [(*column[:3], _of_integers(column[3])) for column in columns]


class _WithMilliseconds(_Protocol):
    message_types_by_opcode: ClassVar[Mapping[int, Any]] = {
        **_Protocol.message_types_by_opcode,
        ResultMessage.opcode: _Milliseconds,
    }


class _Bytes(_Result):
    """A result with the values as received bytes."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """Receive the metadata as the driver does, with other types."""
        super().recv_results_metadata(f, user_type_map)
        columns: list[tuple[Any, ...]] = self.column_metadata or []
        self.column_metadata = [(*column[:3], BytesType) for column in columns]


class _WithBytes(_Protocol):
    message_types_by_opcode: ClassVar[Mapping[int, Any]] = {
        **_Protocol.message_types_by_opcode,
        ResultMessage.opcode: _Bytes,
    }


def _of_integers(kind: Any) -> Any:
    if kind is DateType:
        return LongType
    parts = list(getattr(kind, "subtypes", ()))
    changed = [_of_integers(part) for part in parts]
    return kind if changed == parts else kind.apply_parameters(changed)


def far_rows(session: Session, statement: str) -> list[dict[str, Any]]:
    """Return the rows of a SELECT by column, with timestamps in milliseconds."""
    return [row._asdict() for row in _rows(session, statement, _WithMilliseconds)]


def bytes_of(session: Session, statement: str) -> list[tuple[bytes | None, ...]]:
    """Return the rows of a SELECT as the bytes of the protocol."""
    return [tuple(row) for row in _rows(session, statement, _WithBytes)]


def _rows(session: Session, statement: str, handler: Any) -> list[Any]:
    usual = session.client_protocol_handler
    session.client_protocol_handler = handler
    try:
        return list(session.execute(statement))
    finally:
        session.client_protocol_handler = usual
