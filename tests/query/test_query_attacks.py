"""Statements that would write, execute or read anything but tables: both engines refuse each in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.files.bad_input import Case, assert_refused
from support.read_logs import START_US, home_with_log, write
from support.substitutions import SUBSTITUTIONS, VARIABLES

from cdc_platform.clock import MILLISECOND_US
from cdc_platform.delta import Lake
from cdc_platform.errors import InputError
from cdc_platform.query import duckdb, spark_guard
from cdc_platform.query import spark as on_spark

LOG = "ks.t_scylla_cdc_log"

WRITES = [
    f"DELETE FROM {LOG}",
    f"UPDATE {LOG} SET v = 1",
    f"INSERT INTO {LOG} SELECT * FROM {LOG}",
    f"MERGE INTO {LOG} USING {LOG} AS s ON true WHEN MATCHED THEN DELETE",
    f"TRUNCATE TABLE {LOG}",
    f"DROP TABLE {LOG}",
    f"DROP VIEW {LOG}",
    "DROP SCHEMA ks CASCADE",
    f"ALTER TABLE {LOG} ADD COLUMN x INT",
    f"ALTER VIEW {LOG} RENAME TO b",
    f"COMMENT ON TABLE {LOG} IS 'x'",
    "CREATE TABLE ks.x (a INT)",
    "CREATE TABLE ks.x AS SELECT 1 AS a",
    "CREATE TEMP TABLE x (a INT)",
    "CREATE OR REPLACE VIEW ks.x AS SELECT 1",
    "CREATE SCHEMA x",
    f"VACUUM {LOG}",
    f"ANALYZE TABLE {LOG} COMPUTE STATISTICS",
    "SET x = 1",
    "USE ks",
    "SELECT 1; SELECT 2",
    f"SELECT 1; DROP TABLE {LOG}",
    f"EXPLAIN ANALYZE DELETE FROM {LOG}",
    "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
    f"WITH x AS (INSERT INTO {LOG} VALUES (1) RETURNING *) SELECT * FROM x",
    f"WITH x AS (DELETE FROM {LOG} RETURNING *) SELECT * FROM x",
    f"WITH x AS (UPDATE {LOG} SET v = 1 RETURNING *) SELECT * FROM x",
    f"WITH x AS (SELECT 1) INSERT INTO {LOG} SELECT * FROM x",
    "BEGIN",
    "COMMIT",
    "CALL system.x()",
    "EXECUTE IMMEDIATE 'DROP TABLE x'",
    "PREPARE x AS SELECT 1",
    "no SQL at all",
    "/* nothing */",
]
"""Statements that no engine runs."""

EMBEDDED = [
    "COPY (SELECT 1) TO '{dir}/out.csv'",
    "COPY (PIVOT nodes ON status USING count(*)) TO '{dir}/out.csv'",
    "CREATE TABLE z AS PIVOT nodes ON status USING count(*)",
    f"INSERT INTO {LOG} PIVOT nodes ON status USING count(*)",
    "WITH x AS (DELETE FROM nodes RETURNING *) PIVOT x ON status USING count(*)",
    "PREPARE x AS PIVOT nodes ON status USING count(*)",
    "PIVOT (SELECT * FROM read_csv('{dir}/node.csv')) ON a USING count(*)",
    "PIVOT (SELECT *, getenv('HOME') AS h FROM nodes) ON h USING count(*)",
    "PIVOT (SELECT * FROM \"read_text\"('{dir}/node.csv')) ON content USING count(*)",
    "PIVOT '{dir}/node.csv' ON a USING count(*)",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO '{dir}/out.csv'",
    "ATTACH '{dir}/x.db'",
    "DETACH cdc_platform",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{dir}/x.so'",
    "UPDATE EXTENSIONS",
    "EXPORT DATABASE '{dir}/out'",
    "IMPORT DATABASE '{dir}'",
    "CHECKPOINT",
    "PRAGMA show_tables",
    "PRAGMA table_info('nodes')",
    "SET threads = 1",
    "RESET threads",
    "SET VARIABLE x = 1",
    "CREATE MACRO f(x) AS x",
    "CREATE SECRET (TYPE s3)",
    "CALL pragma_version()",
    "EXECUTE x",
    "DEALLOCATE x",
    "SELECT * FROM read_csv('{dir}/node.csv')",
    "SELECT * FROM '{dir}/node.csv'",
    "SELECT * FROM read_parquet('{dir}/*.parquet')",
    "SELECT * FROM parquet_scan('{dir}/*.parquet')",
    "SELECT * FROM parquet_metadata('{dir}/x.parquet')",
    "SELECT * FROM sniff_csv('{dir}/node.csv')",
    "SELECT * FROM read_json('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM main.read_text('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "SELECT (SELECT content FROM read_text('/etc/passwd'))",
    "SELECT list_transform([1], x -> getenv('HOME'))",
    "SELECT getenv('HOME')",
    "SELECT current_setting('temp_directory')",
    "SELECT write_log('x')",
    "SELECT nextval('x')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_logs()",
    "SELECT * FROM checkpoint()",
    "SELECT * FROM force_checkpoint()",
    "SELECT * FROM enable_logging()",
    "SELECT * FROM enable_profiling()",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('nodes')",
    "SELECT * FROM json_execute_serialized_sql('x')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM python_map_function()",
    "SELECT * FROM seq_scan('nodes')",
    "SELECT * FROM copy_database('a', 'b')",
    "SELECT * FROM raw_0",
    "SELECT * FROM nodes AT (VERSION => 0)",
]
"""Statements that DuckDB would run, or did in some version."""

SPARK = [
    "CREATE TABLE x USING parquet LOCATION '{dir}/out' AS SELECT 1 AS a",
    "INSERT OVERWRITE DIRECTORY '{dir}/out' USING parquet SELECT 1 AS a",
    "INSERT OVERWRITE LOCAL DIRECTORY '{dir}/out' SELECT 1",
    f"FROM {LOG} INSERT OVERWRITE DIRECTORY '{{dir}}/out' SELECT p",
    f"FROM {LOG} INSERT INTO ks.a SELECT p INSERT INTO ks.b SELECT k",
    f"INSERT OVERWRITE {LOG} SELECT * FROM {LOG}",
    f"OPTIMIZE {LOG}",
    f"RESTORE TABLE {LOG} TO VERSION AS OF 0",
    f"REFRESH TABLE {LOG}",
    f"CACHE TABLE {LOG}",
    f"MSCK REPAIR TABLE {LOG}",
    "LOAD DATA INPATH '{dir}/node.csv' INTO TABLE x",
    "ADD JAR '{dir}/x.jar'",
    "ADD FILE '/etc/passwd'",
    "LIST JARS",
    "CREATE FUNCTION f AS 'x.Y' USING JAR '{dir}/x.jar'",
    "DECLARE x INT",
    "SET spark.sql.runSQLOnFiles = true",
    "RESET",
    "SHOW CREATE TABLE x",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT java_method('java.lang.System', 'exit', 1)",
    "SELECT try_reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT `reflect`('java.lang.System', 'getenv', 'HOME')",
    "SELECT transform(array(1), x -> reflect('java.lang.System', 'getenv', 'HOME'))",
    f"SELECT TRANSFORM (p) USING 'cat' AS (x STRING) FROM {LOG}",
    f"SELECT TRANSFORM (p, k) USING 'sh -c id' FROM {LOG}",
    f"FROM {LOG} MAP p USING 'cat' AS x",
    f"FROM {LOG} REDUCE p USING 'cat' AS x",
    f"SELECT * FROM (FROM {LOG} SELECT TRANSFORM (p) USING 'cat')",
    "SELECT * FROM parquet.`/etc/x`",
    "SELECT * FROM text.`/etc/passwd`",
    "SELECT * FROM csv.`{dir}/node.csv`",
    "SELECT * FROM delta.`{dir}`",
    'SELECT * FROM text."/etc/passwd"',
    "SELECT * FROM binaryFile.`/etc/passwd`",
    "SELECT * FROM spark_catalog.text.`/etc/passwd`",
    "SELECT * FROM read_files('/etc/passwd')",
    "SELECT input_file_name()",
    "SELECT current_user()",
    "SELECT version()",
    "SELECT java_method('x') FROM nodes /* x /* y */ */",
    "SELECT * FROM nodes VERSION AS OF 0",
    "SELECT * FROM nodes TIMESTAMP AS OF '2026-01-01'",
    "SELECT assert_true(false)",
    "SELECT raise_error('x')",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM IDENTIFIER('no' || 'des')",
    "SELECT xpath_string('<a/>', 'a')",
    "EXPLAIN SELECT 1",
    "DESCRIBE nodes",
]
"""Statements that Spark would run."""


REASONS = ("is refused", "the query: ", "statements; one at a time", "is empty", "there is no table", "--at", "catalog")
"""Words of a refusal; a message about missing Java would mean that Spark was asked to run the statement."""


def cases(*statements: str, options: tuple[str, ...] = ()) -> list[Case]:
    """Return a case for each statement that must be refused, with files that it may target."""
    files = {"node.csv": "a,b\n1,2\n"}
    return [Case(f"{' '.join(options)} {text}", ("sql", text, *options), "", files) for text in statements]


ATTACKS = [*cases(*WRITES, *EMBEDDED), *cases(*WRITES, *SPARK, options=("--spark",))]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with generations, and a log with rows."""
    home_with_rows = home_with_log(tmp_path_factory.mktemp("attacked"))
    write(Lake(home_with_rows / "lake"), [START_US, START_US + MILLISECOND_US])
    return home_with_rows


def test_the_number_of_attacks_does_not_decrease() -> None:
    """All attacks are distinct, and there are at least 180."""
    assert len({case.name for case in ATTACKS}) == len(ATTACKS) >= 180


@pytest.mark.parametrize("case", ATTACKS, ids=lambda case: case.name)
def test_statements_that_do_more_than_answer_are_refused(case: Case, home: Path, tmp_path: Path) -> None:
    """Exit code 2, one line on standard error, no new file, and a home with unchanged bytes."""
    message = assert_refused(case, home, tmp_path)
    assert any(reason in message for reason in REASONS), message
    assert [path.name for path in tmp_path.iterdir()] == ["node.csv"]


def test_spark_gets_no_substitution(home: Path) -> None:
    """Every way to make Spark substitute a value for a name in the query is refused before Spark starts."""
    lake = Lake(home / "lake")
    for text in SUBSTITUTIONS:
        with pytest.raises(InputError) as refused, on_spark.run_spark_query(lake, text):
            pass
        assert "\n" not in str(refused.value), text


def test_a_dollar_in_data_is_no_substitution(home: Path) -> None:
    """A function can produce such a text, since Spark calls it after substitution; a column may be `user`."""
    tree = spark_guard.check_spark_query("SELECT concat('$', '{env:HOME}'), '$1', '{a}', user FROM nodes AS n")
    assert "${" not in spark_guard.rewrite_with_views(tree, lambda _: "v")
    spark_guard.refuse_session_names(tree, {"user"})
    own_column = spark_guard.check_spark_query("SELECT user FROM (SELECT 1 AS user) AS a")
    spark_guard.refuse_session_names(own_column, ())


@pytest.mark.parametrize("variable", VARIABLES)
def test_the_embedded_engine_substitutes_nothing(home: Path, variable: str) -> None:
    """In DuckDB a variable is an ordinary text."""
    with duckdb.run_duckdb_query(Lake(home / "lake"), f"SELECT '{variable}' AS a") as rows:
        assert list(rows.values()) == [(variable,)]
