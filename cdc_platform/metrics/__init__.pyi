from cdc_platform.metrics.collector import HomeMetrics as HomeMetrics
from cdc_platform.metrics.collector import Scrape as Scrape
from cdc_platform.metrics.collector import format_metrics as format_metrics
