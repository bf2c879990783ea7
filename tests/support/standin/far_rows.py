"""Rows of a cluster with all timestamps that CQL has, on which the driver raises where Python has none; or as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cassandra.cluster import Session
from cassandra.cqltypes import BytesType, DateType, LongType
from cassandra.protocol import ProtocolHandler, ResultMessage

# As the driver was built: with an extension in C, or without one.
_Protocol: Any = ProtocolHandler
_Result: Any = _Protocol.message_types_by_opcode[ResultMessage.opcode]


class _Milliseconds(_Result):
    """A result whose timestamps are the integers that they are."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """As the driver's, with other types."""
        super().recv_results_metadata(f, user_type_map)
        columns: list[tuple[Any, ...]] = self.column_metadata or []
        self.column_metadata = [(*each[:3], _of_integers(each[3])) for each in columns]


class _WithMilliseconds(_Protocol):
    message_types_by_opcode: ClassVar[Mapping[int, Any]] = {
        **_Protocol.message_types_by_opcode,
        ResultMessage.opcode: _Milliseconds,
    }


class _Bytes(_Result):
    """A result whose values are the bytes that came."""

    def recv_results_metadata(self, f: Any, user_type_map: Any) -> None:
        """As the driver's, with other types."""
        super().recv_results_metadata(f, user_type_map)
        columns: list[tuple[Any, ...]] = self.column_metadata or []
        self.column_metadata = [(*each[:3], BytesType) for each in columns]


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
    """What a SELECT answers, by column, with timestamps in milliseconds."""
    return [row._asdict() for row in _rows(session, statement, _WithMilliseconds)]


def bytes_of(session: Session, statement: str) -> list[tuple[bytes | None, ...]]:
    """What a SELECT answers, as the bytes of the protocol."""
    return [tuple(row) for row in _rows(session, statement, _WithBytes)]


def _rows(session: Session, statement: str, handler: Any) -> list[Any]:
    usual = session.client_protocol_handler
    session.client_protocol_handler = handler
    try:
        return list(session.execute(statement))
    finally:
        session.client_protocol_handler = usual
