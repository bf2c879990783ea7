"""The pandera model of each table, made from its declaration, and the guard that holds a DataFrame against it.

Only names and types are looked at, which costs no Spark job; NOT NULL and CHECK are held by Delta as the rows go in.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, cast

import pyarrow as pa

from cdc_platform.errors import InputError
from cdc_platform.lake.tables import Table

if TYPE_CHECKING:
    from pandera.pyspark import DataFrameModel
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


@cache
def schema_model(table: Table) -> type[DataFrameModel]:
    """The table's pandera model: every column by name and type, and no other column.

    Nullable throughout: for each column that is not pandera would run a Spark job, where Delta checks in passing.
    """
    from pandera.pyspark import DataFrameModel, Field
    from pyspark.sql.types import ArrayType

    def annotation(kind: Any) -> Any:
        return Annotated[ArrayType, kind.elementType, True] if isinstance(kind, ArrayType) else type(kind)

    columns = spark_schema(table)
    members: dict[str, Any] = {column.name: Field(nullable=True) for column in columns}
    members["__annotations__"] = {column.name: annotation(column.dataType) for column in columns}
    members["Config"] = type("Config", (), {"strict": True, "name": table.full_name})
    return type(table.name.title().replace("_", ""), (DataFrameModel,), members)


def assert_shape(table: Table, df: DataFrame) -> DataFrame:
    """`df` with the table's columns in order.

    Raises:
        InputError: a column is missing, is one too many or has another type.
    """
    from pandera.config import ValidationDepth, config_context
    from pyspark.sql import functions as F

    schema = spark_schema(table)
    # An array that cannot hold nulls is one that could, to Delta; to pandera it is another type.
    arrays = {field.name: field.dataType for field in schema if field.dataType.typeName() == "array"}
    same = {name: F.col(name).cast(kind) for name, kind in arrays.items() if _is_array_of(df, name, kind)}
    with config_context(validation_enabled=True, validation_depth=ValidationDepth.SCHEMA_ONLY):
        judged: Any = schema_model(table).validate(cast("Any", df.withColumns(same) if same else df), lazy=True)
        errors = judged.pandera.errors
    if errors is None:
        raise InputError(f"{table.full_name}: pandera did not look at the rows; unset PANDERA_VALIDATION_ENABLED")
    if errors:
        said = [str(entry["error"]) for group in errors.get("SCHEMA", {}).values() for entry in group]
        told = {re.sub(r"DataFrameSchema \{.*\}$", "the table", each) for each in said}
        raise InputError(f"rows do not have the shape of {table.full_name}: {'; '.join(sorted(told)) or errors}")
    return judged.select(*schema.names)


@cache
def spark_schema(table: Table) -> StructType:
    """The table's columns as Spark has them."""
    return spark_struct(table.schema)


def spark_struct(schema: pa.Schema) -> StructType:
    """What Spark has for the columns of an Arrow schema."""
    from pyspark.sql import types as T

    return T.StructType([T.StructField(field.name, spark_type(field.type), field.nullable) for field in schema])


def spark_type(kind: pa.DataType) -> DataType:
    """What Spark has for an Arrow type that tables are declared with."""
    from pyspark.sql import types as T

    if isinstance(kind, pa.ListType):
        return T.ArrayType(spark_type(kind.value_type), kind.value_field.nullable)
    if isinstance(kind, pa.MapType):
        return T.MapType(spark_type(kind.key_type), spark_type(kind.item_type), kind.item_field.nullable)
    if isinstance(kind, pa.StructType):
        return T.StructType([T.StructField(field.name, spark_type(field.type), field.nullable) for field in kind])
    simple: dict[pa.DataType, DataType] = {
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
    return simple[kind]


def _is_array_of(df: DataFrame, name: str, kind: DataType) -> bool:
    """Whether the column differs from `kind`, if at all, only in where nulls may be."""
    if name not in df.columns:
        return False
    found = df.schema[name].dataType
    return found != kind and found.simpleString() == kind.simpleString()


def quoted(name: str) -> str:
    """A name as Spark takes it where a dot or a dollar sign would mean something."""
    return "`" + name.replace("`", "``") + "`"
