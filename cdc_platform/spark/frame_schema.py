"""Spark types of the declared columns, and the pandera schema of an incoming DataFrame.

The check covers names and types only, which needs no Spark job; Delta enforces NOT NULL and CHECK on write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from cdc_platform.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType


@dataclass(frozen=True)
class ColumnMismatch:
    """A column that a DataFrame should have otherwise: of which type it is and has to be, as Spark calls them.

    Without `found` it is missing, without `due` it is one too many.
    """

    column: str
    found: str | None
    due: str | None


def is_same_type(found: DataType, due: DataType) -> bool:
    """Whether a nested type is the one that is due, wherever it may hold nulls."""
    return found.simpleString() == due.simpleString()


@dataclass(frozen=True, eq=False)
class IncomingFrameSchema:
    """What a DataFrame has to be that comes in here: `columns` by name and type, of which it may lack the `optional`
    ones; with `strict` no others.

    Flat types are a pandera model's to judge. It refuses structs, takes an array that holds no nulls for another type
    than one that could, and fails where a map is due and none is there: nested columns are judged from the declared
    schema, by `readable`.
    """

    name: str
    columns: StructType
    optional: Collection[str] = ()
    strict: bool = False
    readable: Callable[[DataType, DataType], bool] = is_same_type

    def misfits(self, frame: DataFrame) -> list[ColumnMismatch]:
        """The columns that do not fit, in the order in which they are declared, then those that are too many."""
        from pandera.config import ValidationDepth, config_context

        found = {field.name: field.dataType for field in frame.schema}
        due = {field.name: field.dataType for field in self.columns}
        # Validation can be switched off by the environment; what nobody validated must not come in.
        with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_ONLY):
            judged: Any = self.model.validate(cast("Any", _make_outline(frame)), lazy=True)
        told = judged.pandera.errors.get("SCHEMA", {})
        wrong = {entry["column"] for entries in told.values() for entry in entries}
        wrong |= {
            each
            for each in due
            if each in found and _is_nested(due[each]) and not self.readable(found[each], due[each])
        }
        extra = [each for each in found if each not in due and "COLUMN_NOT_IN_SCHEMA" in told]
        return [
            *(
                ColumnMismatch(each, _format_type(found.get(each)), _format_type(due[each]))
                for each in due
                if each in wrong
            ),
            *(ColumnMismatch(each, _format_type(found[each]), None) for each in extra),
        ]

    @cached_property
    def model(self) -> Any:
        """The pandera model. Nullable throughout: for each column that is not pandera would run a Spark job."""
        from pandera.pyspark import Column as PanderaColumn
        from pandera.pyspark import DataFrameSchema

        columns = {
            field.name: PanderaColumn(
                None if _is_nested(field.dataType) else cast("Any", field.dataType),
                nullable=True,
                required=field.name not in self.optional,
            )
            for field in self.columns
        }
        return DataFrameSchema(columns, strict=self.strict, name=self.name)


def _make_outline(frame: DataFrame) -> DataFrame:
    """No rows with the columns of a frame: pandera shows rows of what lacks a column. Where it knows no such type, an
    array stands for it, which no flat type is.
    """
    from pyspark.sql import functions as F

    def shown(field: StructField) -> Column:
        if not _is_nested(field.dataType) and _is_known_to_pandera(field.dataType):
            return F.col(quote_spark_name(field.name))
        return F.lit(None).cast("array<string>").alias(field.name)

    return frame.limit(0).select(*map(shown, frame.schema))


def _is_known_to_pandera(kind: DataType) -> bool:
    from pandera.engines.pyspark_engine import Engine

    try:
        Engine.dtype(cast("Any", kind))
    except TypeError:
        return False
    return True


def _is_nested(kind: DataType) -> bool:
    return kind.typeName() in ("array", "map", "struct")


def _format_type(kind: DataType | None) -> str | None:
    return None if kind is None else kind.simpleString()


@cache
def table_to_spark_schema(table: Table) -> StructType:
    """The table's columns as Spark has them."""
    return arrow_to_spark_schema(table.schema)


def arrow_to_spark_schema(schema: pa.Schema) -> StructType:
    """What Spark has for the columns of an Arrow schema."""
    from pyspark.sql import types as T

    return T.StructType(
        [T.StructField(field.name, arrow_to_spark_type(field.type), field.nullable) for field in schema]
    )


def arrow_to_spark_type(kind: pa.DataType) -> DataType:
    """What Spark has for an Arrow type that tables are declared with."""
    from pyspark.sql import types as T

    if isinstance(kind, pa.ListType):
        return T.ArrayType(arrow_to_spark_type(kind.value_type), kind.value_field.nullable)
    if isinstance(kind, pa.MapType):
        return T.MapType(
            arrow_to_spark_type(kind.key_type), arrow_to_spark_type(kind.item_type), kind.item_field.nullable
        )
    if isinstance(kind, pa.StructType):
        return T.StructType(
            [T.StructField(field.name, arrow_to_spark_type(field.type), field.nullable) for field in kind]
        )
    return _get_flat_types()[kind]


def spark_to_arrow_type(kind: DataType) -> pa.DataType | None:
    """The Arrow type of a column that Spark has so; None for one that is not flat, or of which no table has any."""
    return next((arrow for arrow, known in _get_flat_types().items() if known == kind), None)


@cache
def _get_flat_types() -> Mapping[pa.DataType, DataType]:
    """What Spark has for the types without others in them."""
    from pyspark.sql import types as T

    return {
        pa.string(): T.StringType(),
        pa.binary(): T.BinaryType(),
        pa.bool_(): T.BooleanType(),
        pa.int8(): T.ByteType(),
        pa.int16(): T.ShortType(),
        pa.int32(): T.IntegerType(),
        pa.int64(): T.LongType(),
        pa.float32(): T.FloatType(),
        pa.float64(): T.DoubleType(),
        pa.date32(): T.DateType(),
        pa.timestamp("us", "UTC"): T.TimestampType(),
    }


def quote_spark_name(name: str) -> str:
    """A name as Spark takes it where a dot or a dollar sign would mean something."""
    return "`" + name.replace("`", "``") + "`"
