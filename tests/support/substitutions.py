"""Texts in a statement that Spark substitutes or evaluates to a value of its process: each as a query."""

from __future__ import annotations

VARIABLES = (
    "${env:HOME}",
    "${system:java.home}",
    "${system:user.name}",
    "${spark.app.name}",
    "${spark:spark.app.name}",
    "${sparkconf:spark.app.name}",
    "${hiveconf:spark.app.name}",
    "${hivevar:x}",
    "${x}",
    "${spark.sql.warehouse.dir}",
    "${env:${env:X}}",
)
"""Each kind of variable that Spark's documentation or `ConfigReader` identifies by a prefix, and the one without.

"""

PLACES = (
    "SELECT '{}'",
    "SELECT 'a{}b' FROM nodes",
    'SELECT 1 AS "{}"',
    "SELECT 1 AS `{}`",
    "SELECT concat('a', '{}')",
    "SELECT * FROM (SELECT '{}' AS a) AS b",
    "WITH a AS (SELECT '{}' AS b) SELECT * FROM a",
    "SELECT 1 /* {} */",
    "SELECT 1 -- {}",
    "SELECT {}",
    "SELECT * FROM {}",
    "SELECT * FROM nodes WHERE address = '{}'",
)
"""Where a text can be in a query."""
ESCAPED = (
    r"SELECT '\u0024{env:HOME}'",
    r"SELECT '\044{env:HOME}'",
    r"SELECT '\U00000024{env:HOME}'",
    r"SELECT '\${env:HOME}'",
    r"SELECT '$\{env:HOME}'",
    r"SELECT '$\u007benv:HOME}'",
    r"SELECT concat('a', '\u0024{env:HOME}')",
)
"""The same variables with escapes, which Spark receives as characters of the text."""
OTHERS = (
    "SET spark.app.name",
    "SET -v",
    "SET x=1",
    "SET VAR x = 1",
    "SET VARIABLE x = 1",
    "DECLARE VARIABLE x INT DEFAULT 1",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "EXECUTE IMMEDIATE x USING 1",
    "SELECT IDENTIFIER('user')",
    "SELECT IDENTIFIER('abs')(-1)",
    "SELECT * FROM IDENTIFIER('nodes')",
    "SELECT IDENTIFIER(concat('us', 'er'))",
    "SELECT :x",
    "SELECT ?",
    "SELECT @x",
    "SELECT current_user",
    "SELECT session_user",
    "SELECT user",
    "SELECT User, 1",
    "SELECT `user`",
    "SELECT user FROM nodes",
    "SELECT user()",
    "SELECT current_catalog()",
    "SELECT current_database()",
    "SELECT current_schema()",
    "SELECT spark_partition_id()",
    "SELECT getvariable('x')",
)
"""Other expressions whose value the query does not name: settings, variables, statements as text, the user."""
SUBSTITUTIONS = (*(place.format(variable) for variable in VARIABLES for place in PLACES), *ESCAPED, *OTHERS)
