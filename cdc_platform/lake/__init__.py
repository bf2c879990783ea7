"""The Delta tables: what they are (`tables`), reading and writing them without a JVM (`lake`) and on Spark (`frames`).

Nothing is imported here, so that a command that needs no JVM never pays for pyspark.
"""
