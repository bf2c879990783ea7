from cdc_platform.cli.main import program as program
