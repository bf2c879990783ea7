"""What several rooms read and write, each table with one owner: ring, inbox, ledger, CDC tables, consumers, tablets.

Rows in, plain values out, by deltalake and without a JVM. What is done with them is told in `lifecycle` and `log`.
"""
