"""CQL as ScyllaDB reads it: types, literals, statements, schemas, mutations, the base table. No lake and no Spark.

The text of a statement becomes a parsed statement, bound to a schema it becomes mutations, and those change a base
table in memory. What a mutation leaves in a CDC log is told in `log`.
"""
