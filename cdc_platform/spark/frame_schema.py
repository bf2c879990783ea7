"""Spark types of the declared columns, and the pandera schema of an incoming DataFrame.

The check covers names and types only, which needs no Spark job. Delta enforces NOT NULL and CHECK on write.
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
    """A column of a DataFrame with the wrong type: the types `actual` and `expected`, as Spark names them.

    `actual` is None for a missing column, `expected` is None for an unexpected one.
    """

    column: str
    actual: str | None
    expected: str | None


def is_same_type(actual: DataType, expected: DataType) -> bool:
    """Return True if a nested type equals the expected one, wherever either may hold nulls."""
    return actual.simpleString() == expected.simpleString()


@dataclass(frozen=True, eq=False)
class IncomingFrameSchema:
    """The schema that an incoming DataFrame must have: `columns` by name and type.

    The `optional` columns may be missing. With `strict` no other columns are allowed.

    A pandera model checks flat types. pandera refuses structs, distinguishes an array without nulls from one that may
    hold them, and fails if a map is declared and the frame has none. So `readable` checks nested columns against the
    declared schema.
    """

    name: str
    columns: StructType
    optional: Collection[str] = ()
    strict: bool = False
    readable: Callable[[DataType, DataType], bool] = is_same_type

    def misfits(self, frame: DataFrame) -> list[ColumnMismatch]:
        """Return the columns that do not fit, in declared order, then the unexpected ones."""
        from pandera.config import ValidationDepth, config_context

        actual = {field.name: field.dataType for field in frame.schema}
        declared = {field.name: field.dataType for field in self.columns}
        # The environment can switch validation off, but an unvalidated frame must not be accepted.
        with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_ONLY):
            judged: Any = self.model.validate(cast("Any", _make_outline(frame)), lazy=True)
        errors = judged.pandera.errors.get("SCHEMA", {})
        wrong = {entry["column"] for entries in errors.values() for entry in entries}
        wrong |= {
            name
            for name in declared
            if name in actual and _is_nested(declared[name]) and not self.readable(actual[name], declared[name])
        }
        extra = [name for name in actual if name not in declared and "COLUMN_NOT_IN_SCHEMA" in errors]
        return [
            *(
                ColumnMismatch(name, _format_type(actual.get(name)), _format_type(declared[name]))
                for name in declared
                if name in wrong
            ),
            *(ColumnMismatch(name, _format_type(actual[name]), None) for name in extra),
        ]

    @cached_property
    def model(self) -> Any:
        """The pandera model; all nullable, because pandera runs a Spark job per non-nullable column."""
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
    """Return a frame without rows that has the columns of `frame`, because pandera prints rows if a column is missing.

    A column whose type pandera does not know becomes an array, which is never a flat type.
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
    """Return the table's columns as a Spark schema."""
    return arrow_to_spark_schema(table.schema)


def arrow_to_spark_schema(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema."""
    from pyspark.sql import types as T

    return T.StructType(
        [T.StructField(field.name, arrow_to_spark_type(field.type), field.nullable) for field in schema]
    )


def arrow_to_spark_type(kind: pa.DataType) -> DataType:
    """Return the Spark type of an Arrow type that tables are declared with."""
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
    """Return the Arrow type of a flat Spark type; None for nested types and for types that no table uses."""
    return next((arrow for arrow, known in _get_flat_types().items() if known == kind), None)


@cache
def _get_flat_types() -> Mapping[pa.DataType, DataType]:
    """Return the Spark type of each flat Arrow type."""
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
    """Quote a name for Spark, so that a dot or a dollar sign has no meaning."""
    return "`" + name.replace("`", "``") + "`"
