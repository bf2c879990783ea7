"""What stands behind WITH of tables and keyspaces: CDC's options, the TTL of writes, maps of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from uuid import UUID

from cdc_platform.clock import Milliseconds, ms_of
from cdc_platform.cql import statements as s
from cdc_platform.cql.names import LOG_SUFFIX
from cdc_platform.cql.scalars import timeuuid_us
from cdc_platform.cql.schema import MAX_TTL, CdcOptions
from cdc_platform.errors import InputError

_STREAM_ID = "cdc$stream_id"


def cdc_options(properties: Iterable[s.TableProperty]) -> CdcOptions | None:
    """The CDC options that the properties set; None where they say nothing of CDC."""
    given = [part.value for part in properties if isinstance(part, s.Property) and part.name == "cdc"]
    if len(given) > 1:
        raise InputError("cdc is set twice; give all of its options in one map")
    return CdcOptions.parse(option_map(given[0])) if given else None


def leaves_out_enabled(properties: Iterable[s.TableProperty]) -> bool:
    """Return True if the properties set CDC options without `enabled`, which turns CDC off in ALTER TABLE."""
    given = [part.value for part in properties if isinstance(part, s.Property) and part.name == "cdc"]
    pairs = [pair for value in given if isinstance(value, s.MapLiteral) for pair in value.pairs]
    return bool(given) and "enabled" not in ((_option(key) or "").lower() for key, _ in pairs)


def turns_off(table: str) -> str:
    """What ALTER TABLE with CDC options does that leave `enabled` out."""
    return (
        f"ALTER TABLE {table} WITH cdc sets options without 'enabled', which turns CDC off: the map replaces all CDC "
        "options; write 'enabled': true beside the others to leave it on"
    )


def is_log(name: str, columns: Iterable[s.ColumnDefinition]) -> bool:
    """Return True if a table of this name and these columns is a CDC log, as DESCRIBE prints one whose CDC is off."""
    return name.endswith(LOG_SUFFIX) and _STREAM_ID in (column.name for column in columns)


def table_id(properties: Iterable[s.TableProperty]) -> UUID | None:
    """The ID that a table is made with; None where the properties do not say."""
    for each in properties:
        if isinstance(each, s.Property) and each.name == "id" and isinstance(each.value, s.Constant):
            return UUID(str(each.value.value))
    return None


def created_at_ms(id_: UUID | None) -> Milliseconds | None:
    """When a table was made (ms), which a timeuuid as its ID tells."""
    return ms_of(timeuuid_us(id_)) if id_ is not None and id_.version == 1 else None


def default_ttl(properties: Iterable[s.TableProperty]) -> int | None:
    """The TTL (s) of writes that give none; None where the properties do not say."""
    given = [part.value for part in properties if isinstance(part, s.Property) and part.name == "default_time_to_live"]
    if not given:
        return None
    value = given[-1].value if isinstance(given[-1], s.Constant) and given[-1].kind == "integer" else -1
    if not 0 <= value <= MAX_TTL:
        raise InputError(f"default_time_to_live is a number of seconds from 0 to {MAX_TTL}")
    return value


def option_map(term: s.Term) -> dict[str, str]:
    """A map of options as text, whatever constants it is written with."""
    pairs = term.pairs if isinstance(term, s.MapLiteral) else () if term == s.SetLiteral(()) else None
    texts = None if pairs is None else [(_option(key), _option(value)) for key, value in pairs]
    if texts is None or any(None in pair for pair in texts):
        raise InputError("options are a map of texts, as in {'enabled': true}")
    keys = [str(key).lower() for key, _ in texts]
    for key, count in Counter(keys).items():
        if count > 1:
            raise InputError(f"option {key!r} is given {count} times")
    return {str(key): str(value) for key, value in texts}


def _option(term: s.Term) -> str | None:
    if not isinstance(term, s.Constant) or term.kind == "null":
        return None
    return str(term.value) if term.kind == "text" else term.text
