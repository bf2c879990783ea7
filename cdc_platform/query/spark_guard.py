"""Check that a Spark SQL statement is a query, on sqlglot's tree; refuse anything not known to be harmless.

Spark runs the text that is generated from the checked tree, however its own parser would read the original. Views
replace table names, so Spark opens no files by path. Importing this module loads sqlglot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from cdc_platform.errors import InputError
from cdc_platform.query.names import TableReference

_ALLOWED = "Spark runs only queries: SELECT, VALUES, WITH, and their combinations"
_PART_NAMES = """
Add Alias Aliases And Anonymous Array Between BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Boolean Bracket CTE Case Cast
Column ColumnDef Cube CurrentDate CurrentTimestamp DPipe DataType DataTypeParam Distinct Div Dot EQ Escape Except
Exists Extract Filter From GT GTE Group GroupingSets Having HexString Hint ILike Identifier If In IntDiv Intersect
Interval IntervalSpan Is Join JoinHint LT LTE Lambda Lateral Like LikeAll LikeAny Limit Literal Mod Mul NEQ Named Neg
Not Null NullSafeEQ NullSafeNEQ Offset Or Order Ordered Paren Pivot PivotAlias Qualify RegexpLike Rollup Select Slice
Star Sub Subquery Substring Table TableAlias TableSample Transform Trim TryCast Tuple Union Unnest Values Var Where
Window WindowSpec With
"""
"""The allowed node types of a query; sqlglot has a thousand others, every other statement among them."""
_FUNCTION_NAMES = """
abs acos add_months aggregate any any_value approx_count_distinct approx_percentile array array_agg array_append
array_compact array_contains array_distinct array_except array_insert array_intersect array_join array_max array_min
array_position array_prepend array_remove array_repeat array_size array_sort array_union arrays_overlap arrays_zip
ascii asin atan atan2 avg base64 bigint bin binary bit_and bit_count bit_get bit_length bit_or bit_xor bool_and
bool_or boolean bround btrim cardinality cast cbrt ceil ceiling char char_length character_length chr coalesce
collect_list collect_set concat concat_ws contains conv corr cos cot count count_if covar_pop covar_samp crc32
cume_dist curdate current_date current_timestamp current_timezone date date_add date_diff date_format
date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear
decimal decode degrees dense_rank div double e element_at elt encode endswith every exists exp explode explode_outer
expm1 extract factorial filter find_in_set first first_value flatten float floor forall format_number format_string
from_json from_unixtime from_utc_timestamp generate_series get get_json_object getbit greatest grouping grouping_id
hash hex histogram_numeric hour hypot if ifnull ilike initcap inline inline_outer instr int isnan isnotnull isnull
json_array_length json_object_keys json_tuple kurtosis lag last last_day last_value lcase lead least left len length
levenshtein like ln localtimestamp locate log log10 log1p log2 lower lpad ltrim make_date make_interval make_timestamp
map map_concat map_contains_key map_entries map_filter map_from_arrays map_from_entries map_keys map_values
map_zip_with mask max max_by md5 mean median min min_by minute mod mode month months_between named_struct nanvl
negative next_day now nth_value ntile nullif nullifzero nvl nvl2 octet_length overlay percent_rank percentile
percentile_approx percentile_cont percentile_disc pi pmod posexplode posexplode_outer position positive pow power
printf quarter radians rand randn random range rank reduce regexp regexp_count regexp_extract regexp_extract_all
regexp_instr regexp_like regexp_replace regexp_substr regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
repeat replace reverse right rint rlike round row_number rpad rtrim schema_of_json second sequence sha sha1 sha2
shiftleft shiftright shuffle sign signum sin size skewness slice smallint some sort_array soundex space split
split_part sqrt stack startswith std stddev stddev_pop stddev_samp str_to_map string struct substr substring
substring_index sum tan timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd timestampdiff
tinyint to_binary to_char to_date to_json to_number to_timestamp to_unix_timestamp to_utc_timestamp transform
transform_keys transform_values translate trim trunc try_add try_avg try_divide try_element_at try_multiply
try_subtract try_sum try_to_binary try_to_number try_to_timestamp typeof ucase unbase64 unhex unix_date unix_micros
unix_millis unix_seconds unix_timestamp unnest upper uuid var_pop var_samp variance weekday weekofyear width_bucket
window window_time xxhash64 year zeroifnull zip_with
"""
"""Allowed functions, which depend on their arguments only; others load classes, name files or users, or act."""
_SESSION_FUNCTIONS = frozenset({"current_user", "session_user", "user"})
"""Names that Spark resolves to its user's name unless a column has the name."""
_SUBSTITUTION = "${"
"""The start of a variable that Spark replaces in a statement's text before it parses the text."""
_KNOWN_PARTS, _KNOWN_FUNCTIONS = frozenset(_PART_NAMES.split()), frozenset(_FUNCTION_NAMES.split())


class _SparkDialect(Spark):
    """Spark's SQL with double quotes around names, as in CQL, and with functions under their written names."""

    class Tokenizer(Spark.Tokenizer):
        QUOTES = ["'"]  # noqa: RUF012
        STRING_ESCAPES = ["\\", "'"]  # noqa: RUF012
        IDENTIFIERS = ["`", '"']  # noqa: RUF012

    class Parser(Spark.Parser):  # pyrefly: ignore[bad-override]
        FUNCTIONS: ClassVar[dict[str, Any]] = {}


def check_spark_query(text: str) -> exp.Expr:
    """Return the tree of the single query of a text.

    Raises:
        InputError: the text is not SQL, has no statement or several, names a variable, or would change something.
    """
    _quieten()
    _refuse_substitution(text)
    try:
        statements = [statement for statement in sqlglot.parse(text, dialect=_SparkDialect) if statement is not None]
    except SqlglotError as error:
        message = " ".join(str(error).replace("\x1b[4m", "").replace("\x1b[0m", "").split())
        raise InputError(f"the query: {message[:300]}; {_ALLOWED}") from None
    except RecursionError:
        raise InputError("the query is nested too deep; write it with WITH") from None
    if not statements:
        raise InputError("the query is empty; write one as in: SELECT time FROM cdc_generation_timestamps")
    if len(statements) > 1:
        raise InputError(f"the query has {len(statements)} statements; one at a time is run")
    (tree,) = statements
    if not isinstance(tree, exp.Query | exp.Values):
        raise InputError(f"{_first_word(text)} is refused: {_ALLOWED}")
    for part in tree.walk():
        _refuse_unknown(part)
    return tree


def find_table_references(tree: exp.Expr) -> list[tuple[exp.Table, TableReference]]:
    """Return the nodes of a tree that name a table, with the names; skip names of the query's own parts."""
    parts = {part.alias.lower() for part in tree.find_all(exp.CTE)}
    references = []
    for node in tree.find_all(exp.Table):
        if isinstance(node.this, exp.Identifier):
            reference = TableReference(node.db, node.name)
            if reference.keyspace or reference.name.lower() not in parts:
                references.append((node, reference))
    return references


def find_column_names(tree: exp.Expr) -> set[str] | None:
    """Return a superset, in lower case, of the columns that a query reads; None if it may read any."""
    stars = any(not _is_count(star.parent) for star in tree.find_all(exp.Star))
    natural = any(join.args.get("method") == "NATURAL" for join in tree.find_all(exp.Join))
    return None if stars or natural else {identifier.name.lower() for identifier in tree.find_all(exp.Identifier)}


def _is_count(call: exp.Expr | None) -> bool:
    return isinstance(call, exp.Count) or (isinstance(call, exp.Anonymous) and call.name.lower() == "count")


def rewrite_with_views(tree: exp.Expr, view_of: Callable[[TableReference], str]) -> str:
    """Return the query in Spark's own SQL with views instead of tables; the tree is changed.

    Raises:
        InputError: Spark would replace a part of the text by a variable.
    """
    references = find_table_references(tree)
    for node, reference in references:
        view = exp.to_identifier(view_of(reference), quoted=True)
        if not node.alias:
            node.set("alias", exp.TableAlias(this=exp.to_identifier(reference.name, quoted=True)))
        node.set("this", view)
        node.set("db", None)
    tables = {(reference.keyspace.lower(), reference.name.lower()) for _, reference in references}
    for column in tree.find_all(exp.Column):
        # Of keyspace.table.column only the table's alias remains; other names of three parts are fields of a column.
        if (column.db.lower(), column.table.lower()) in tables:
            column.set("db", None)
    text = tree.sql(dialect=Spark, comments=False)
    _refuse_substitution(text)  # escapes of the original, such as '\u0024{', are now characters
    return text


def refuse_session_names(tree: exp.Expr, columns: Collection[str]) -> None:
    """Raise if a name is none of `columns` (lower case) but a session function without brackets.

    Raises:
        InputError: Spark would answer with the name of its user.
    """
    named = {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    named |= {name.lower() for alias in tree.find_all(exp.TableAlias) for name in alias.alias_column_names}
    for column in tree.find_all(exp.Column):
        if not column.table and column.name.lower() in _SESSION_FUNCTIONS.difference(columns, named):
            raise InputError(f"there is no column {column.name}, and Spark's user is not available: {_ALLOWED}")


def _refuse_substitution(text: str) -> None:
    if _SUBSTITUTION in text:
        raise InputError(
            f"{_SUBSTITUTION} is refused: Spark would replace it by a variable of its process or settings; "
            "write the text as concat('$', '{...')"
        )


def _refuse_unknown(part: exp.Expr) -> None:
    kind = type(part).__name__
    if isinstance(part, exp.Table):
        if part.args.get("version") or part.args.get("when"):
            raise InputError("the past of a table is read with --at VERSION or --at TIME, not with AS OF in the query")
        if part.catalog:
            raise InputError(f"{part.sql(dialect=Spark)} has a catalog; a table here is keyspace.table")
    if isinstance(part, exp.Anonymous) and part.name.lower() not in _KNOWN_FUNCTIONS:
        raise InputError(
            f"function {part.name} is refused: {_ALLOWED}, with functions of the values that they are given"
        )
    if kind not in _KNOWN_PARTS:
        if isinstance(part, exp.Func) and part.sql_names()[0].lower() in _KNOWN_FUNCTIONS:
            return
        if isinstance(part, exp.Version):
            raise InputError("the past of a table is read with --at VERSION or --at TIME, not with AS OF in the query")
        raise InputError(f"{kind} inside a query is refused: {_ALLOWED}")


def _first_word(text: str) -> str:
    words = text.split()
    return words[0].upper()[:40] if words else "this"


@cache
def _quieten() -> None:
    """Silence sqlglot's warnings about unparsed commands, which this module refuses in one line."""
    import logging

    logging.getLogger("sqlglot").setLevel(logging.CRITICAL)
