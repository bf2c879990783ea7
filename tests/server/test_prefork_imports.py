"""Runs fork from a process that has imported the definitions. A client of a store has threads, which no fork keeps."""

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


def test_a_home_in_a_store_is_not_opened() -> None:
    """The owners of assets are a setting of the home; `up` has read them."""
    environment = os.environ | {HOME_VARIABLE: "s3://bucket/home", OWNERS_VARIABLE: json.dumps(["team:data"])}
    ran = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout == "True False ['team:data']\n"
