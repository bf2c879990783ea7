from cdc_platform.home import Home as Home
from cdc_platform.home import open_home as open_home

__version__: str
