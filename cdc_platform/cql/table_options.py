"""What stands behind WITH of tables and keyspaces: CDC's options, the TTL of writes, maps of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cdc_platform.cql import statements as s
from cdc_platform.cql.schema import MAX_TTL, CdcOptions
from cdc_platform.errors import InputError


def cdc_options(properties: Iterable[s.TableProperty]) -> CdcOptions | None:
    """The CDC options that the properties set; None where they say nothing of CDC."""
    given = [part.value for part in properties if isinstance(part, s.Property) and part.name == "cdc"]
    if len(given) > 1:
        raise InputError("cdc is set twice; give all of its options in one map")
    return CdcOptions.parse(option_map(given[0])) if given else None


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
