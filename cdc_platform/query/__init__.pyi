from cdc_platform.query import duckdb as duckdb
from cdc_platform.query import spark as spark
from cdc_platform.query.names import TimeTravel as TimeTravel
from cdc_platform.query.result import QueryResult as QueryResult
from cdc_platform.query.tables import read_table as read_table
