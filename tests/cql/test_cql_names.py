"""Names of tables as people write them: one way for the command line and for Spark, and back."""

from __future__ import annotations

import click
import pytest

from cdc_platform.cli.params import TABLE_NAME
from cdc_platform.cql import format_table_name, parse_table_name
from cdc_platform.cql.names import RESERVED_WORDS
from cdc_platform.errors import InputError
from cdc_platform.ingest.spark_source import ScyllaCdc

WRITTEN = {
    "shop.carts": ("shop", "carts"),
    "Shop.CARTS": ("shop", "carts"),
    '"Kw"."Select"': ("Kw", "Select"),
    'shop."Carts"': ("shop", "Carts"),
    '"1st"."_x"': ("1st", "_x"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_the_command_line_and_spark_read_a_name_alike(text: str) -> None:
    """Without quotes it is lower case, as in CQL."""
    options = {"home": "h", "cluster": "c", "table": text}
    asked = ScyllaCdc(options)._query_options
    assert (asked.keyspace, asked.table) == TABLE_NAME.convert(text, None, None) == WRITTEN[text]


@pytest.mark.parametrize("text", ["carts", "shop.", ".carts", 'shop."carts', "shop.1st", "a.b.c", "shop.or-ders", ""])
def test_both_refuse_what_names_no_table(text: str) -> None:
    """With the same words."""
    with pytest.raises(InputError, match=r"is no table; write it as keyspace\.table") as of_spark:
        ScyllaCdc({"home": "h", "cluster": "c", "table": text})._query_options  # noqa: B018
    with pytest.raises(click.BadParameter) as of_line:
        TABLE_NAME.convert(text, None, None)
    assert str(of_spark.value).removeprefix("scylla_cdc: ") == of_line.value.message


@pytest.mark.parametrize("name", ["carts", "Carts", "1st", "_x", "a_1", *sorted(RESERVED_WORDS)])
def test_a_name_is_read_as_it_is_written(name: str) -> None:
    """Whatever has to stand in quotes for it."""
    assert parse_table_name(format_table_name(name, name)) == (name, name)
