"""Names of tables: one format for the command line and Spark, in both directions."""

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
    """Without quotes a name is lower case, as in CQL."""
    options = {"home": "h", "cluster": "c", "table": text}
    options_read = ScyllaCdc(options)._query_options
    assert (options_read.keyspace, options_read.table) == TABLE_NAME.convert(text, None, None) == WRITTEN[text]


@pytest.mark.parametrize("text", ["carts", "shop.", ".carts", 'shop."carts', "shop.1st", "a.b.c", "shop.or-ders", ""])
def test_both_refuse_invalid_table_names(text: str) -> None:
    """The messages are equal."""
    with pytest.raises(InputError, match=r"is no table; write it as keyspace\.table") as spark_error:
        ScyllaCdc({"home": "h", "cluster": "c", "table": text})._query_options  # noqa: B018
    with pytest.raises(click.BadParameter) as command_error:
        TABLE_NAME.convert(text, None, None)
    assert str(spark_error.value).removeprefix("scylla_cdc: ") == command_error.value.message


@pytest.mark.parametrize("name", ["carts", "Carts", "1st", "_x", "a_1", *sorted(RESERVED_WORDS)])
def test_a_name_is_read_as_it_is_written(name: str) -> None:
    """A formatted name parses to itself, whatever needs quotes."""
    assert parse_table_name(format_table_name(name, name)) == (name, name)
