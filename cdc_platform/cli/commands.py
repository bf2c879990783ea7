"""The table of commands. Importing it loads none of them."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAM_NAME = "cdc-platform"

COMMAND_GROUPS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Get started": {
        "demo": ("demo:demo", "Run the main job on real ring snapshots, end to end."),
        "up": ("up:up", "Start a warm Spark server, the Dagster UI and its daemon."),
        "doctor": ("doctor:doctor", "Check prerequisites: Java, versions, JARs, home, disk."),
        "help": ("help:show_help", "Show the help of a command."),
        "completion": ("completion:completion", "Print a shell's completion script."),
    },
    "Generations": {
        "bootstrap": ("bootstrap:bootstrap", "Queue a joining node; with --run, create its generation."),
        "import": ("importing:import_files", "Import ring snapshots, cqlsh exports and nodetool output."),
        "export": ("export:export", "Export generations, stream sets, logs and the ring to files or a test cluster."),
        "generations": ("generations:generations", "List the generations, newest first."),
        "streams": ("generations:streams", "Print a generation's streams, range by range."),
        "ring": ("ring:ring", "Show the nodes of the current ring."),
        "explain": ("explain:explain", "Show which stream a write goes to and whether it is accepted."),
        "check": ("check:check", "Check every invariant, with counts and samples."),
        "diff": ("generations:diff", "Compare two generations."),
        "history": ("history:history", "List the commits and runs that wrote a generation."),
        "report": ("history:report", "Write a page for an auditor, or verify one."),
        "rewrite": ("rewrite:rewrite", "Rewrite V1 streams tables to V2."),
        "repair": ("repair:repair", "Check the latest generation against the ring and regenerate it if needed."),
        "rehearse": ("rehearse:rehearse", "Predict what topology changes will do, before they are made."),
        "simulate": ("simulate:simulate", "Simulate switches with wrong clocks and failing nodes, and judge them."),
        "switch": ("switch:switch", "Show, acknowledge, commit or abort two-phase switches."),
        "tables": ("tables:tables", "List and register CDC-enabled tables with their TTLs."),
        "tablets": ("tablets:tablets", "Create, split, merge, show and clean up stream sets of tablet-based tables."),
        "expire": ("expire:expire", "Remove generations that no log row needs, or show what keeps them."),
    },
    "Live clusters": {
        "cluster": ("cluster:cluster", "List, add, test and remove live clusters."),
        "observe": ("cluster:observe", "Read the metadata of a live cluster; writes nothing to it."),
        "watch": ("cluster:watch", "Watch a live cluster in the terminal, or as JSON lines."),
        "ingest": ("ingest:ingest", "Ingest a live table's CDC log, each row exactly once."),
    },
    "Logs": {
        "cql": ("cql:cql", "Run CQL statements: their acceptance, log rows and resulting tables."),
        "log": ("log:log", "Show the rows of a table's CDC log."),
        "log-writes": ("log_writes:log_writes", "Append the log rows of base writes, each batch exactly once."),
        "rebuild": ("rebuild:rebuild", "Rebuild a base table from its log, and compare it."),
        "consume": ("consumers:consume", "Copy new rows of a table's CDC log, each exactly once."),
        "consumers": ("consumers:consumers", "List the readers of CDC logs and their positions."),
        "verify-interval": ("consumers:verify_interval", "Prove that a consumer read every row of an interval."),
    },
    "Operate": {
        "status": ("status:status", "Summarise the home on one screen, with the next command to run."),
        "metrics": ("metrics:metrics", "Print metrics of the home and its clusters as OpenMetrics text."),
        "sql": ("sql:sql", "Query every table with SQL, under ScyllaDB's own names."),
        "home": ("home:home", "Copy, maintain or migrate a home."),
        "bundle": ("bundle:bundle", "Pack status, findings, versions and log tails into one file."),
    },
}
"""The commands by section of the help text: `module:function` in cdc_platform.cli, and the summary."""
COMMANDS: Mapping[str, tuple[str, str]] = {
    name: entry for commands in COMMAND_GROUPS.values() for name, entry in commands.items()
}
"""The commands of all sections by name."""
