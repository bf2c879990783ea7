"""A joining node as a JSON file says it, checked to the last field before anything is queued."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from cdc_platform.errors import InputError
from cdc_platform.records.join_request import JoinRequest
from cdc_platform.records.node_fields import refusal
from cdc_platform.sources.json_files import parse_json
from cdc_platform.user_files import read_text


def read_join_request(path: str | Path) -> JoinRequest:
    """The joining node that the JSON file at `path` describes.

    Raises:
        NotFound: there is no such file.
        InputError: it is no JSON, or a field is missing, unknown or out of its bounds.
    """
    return parse_join_request(read_text(Path(path)), str(path))


def parse_join_request(text: str, source: str = "bootstrap event") -> JoinRequest:
    """The joining node that a JSON text describes; `source` is what messages call the text.

    Raises:
        InputError: it is no JSON, or a field is missing, unknown or out of its bounds.
    """
    value = parse_json(text, source)
    if not isinstance(value, dict):
        mend = "; a ring snapshot is taken in by: cdc-platform import" if isinstance(value, list) else ""
        raise InputError(f"{source} has to be one JSON object that describes a node{mend}")
    try:
        return JoinRequest.model_validate(value)
    except ValidationError as error:
        raise refusal(error, source, tuple(JoinRequest.model_fields)) from None
