"""Queries over the tables that change nothing: in this process (`embedded`), and on Spark for volume (`spark`).

Both run one statement of which the parser's tree was found to be a query (`read_only`, `spark_tree`), over the tables
that it names (`names`), and hand out rows in Arrow batches (`rows`).
"""
