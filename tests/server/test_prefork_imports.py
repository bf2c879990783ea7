"""Runs fork from a process with the definitions. It must open no store, because clients have threads.

A fork copies no threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from cdc_platform.dagster_home import OWNERS_VARIABLE
from cdc_platform.home_location import HOME_VARIABLE

CODE = """
import sys
import cdc_platform.server.prefork_imports
from cdc_platform_assets.specs import read_owners

print("cdc_platform.definitions" in sys.modules, "obstore" in sys.modules, read_owners())
"""


def test_home_in_a_store_is_not_opened() -> None:
    """`up` has read the owners of assets, which are a setting of the home."""
    environment = os.environ | {HOME_VARIABLE: "s3://bucket/home", OWNERS_VARIABLE: json.dumps(["team:data"])}
    result = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "True False ['team:data']\n"
