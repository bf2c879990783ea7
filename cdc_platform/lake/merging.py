"""One change of an opened Delta table's rows, with what slices hold after it; who tries again is `lake`.

Which rows come and go is known before deltalake is asked to write: the commit says what it makes of its slices, and is
the version after the one that was read, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from deltalake import DeltaTable, write_deltalake

from cdc_platform.errors import StateError
from cdc_platform.lake import commits, digests, file_properties, files, placing
from cdc_platform.lake.arrow import compute
from cdc_platform.lake.differing import differing
from cdc_platform.lake.filters import Filter, filters_sql, normal_filters, quoted
from cdc_platform.lake.mirrored_logs import with_files
from cdc_platform.lake.open_tables import Opened, rows_of
from cdc_platform.lake.parted import Parted
from cdc_platform.lake.row_digests import keys_of, row_digests
from cdc_platform.lake.rows import conform, refuse_repeated_keys
from cdc_platform.lake.tables import Table
from cdc_platform.lake.translate import reading

# More keys than this are looked for by their bounds: a statement takes no list of any length.
_MOST_LISTED = 256

Only = Callable[[pa.Table, pa.Table], pa.ChunkedArray]
"""Which of the rows that are there (first) are replaced by the rows beside them that have their keys (second)."""

Numbers = Mapping[str, int]
"""Transactions of applications by their names, which Delta keeps with a commit."""

NO_NUMBERS: Numbers = MappingProxyType({})

Making = Callable[[pa.Table], pa.Table | None]
"""What makes the rows to write, or nothing, of all rows of a table."""


@dataclass(frozen=True)
class Merged:
    """What a merge did. `version` is the table's version in which all of the rows are."""

    inserted: int
    updated: int
    version: int


def transact(opened: DeltaTable, table: Table, rule: Making, *, whole: bool, numbers: Numbers) -> None:
    """Merge what a rule makes of all rows; only as the version after the one that they were read from.

    Nothing where the table has seen one of the `numbers` of applications, or a higher one.
    """
    if any((opened.transaction_version(name) or 0) >= number for name, number in numbers.items()):
        return
    there = _rows(opened, table)
    made = rule(there)
    if made is None:
        return
    source = conform(table, made)
    refuse_repeated_keys(table, source)
    update = not table.is_append_only
    merge(opened, table, source, update, there=there, whole=whole, numbers=numbers)


def merge_judged(opened: DeltaTable, table: Table, judge: Callable[[], pa.Table | None], update: bool) -> Merged | None:
    """Merge what is made of the newest rows, whoever reads them; only as the version after the one that is opened."""
    made = judge()
    if made is None:
        return None
    source = conform(table, made)
    refuse_repeated_keys(table, source)
    return merge(opened, table, source, update)


def merge(
    opened: DeltaTable,
    table: Table,
    rows: pa.Table,
    update: bool,
    only: Only | None = None,
    there: pa.Table | None = None,
    whole: bool = False,
    numbers: Numbers = NO_NUMBERS,
) -> Merged:
    """Merge by key. With `only` none is inserted. `there`: rows of the table, among them all with keys of `rows`.

    `whole`: `there` is all of it, and rows whose key is not among those of `rows` go.
    """
    if not rows.num_rows and not whole:
        return Merged(0, 0, opened.version())
    held = _rows(opened, table, _of_keys(table, rows)) if there is None else there
    if rows.num_rows and not held.num_rows and only is None:
        done = Merged(rows.num_rows, 0, opened.version() + 1)
        append(opened, table, rows, numbers)
        return done
    place_of = {key: place for place, key in enumerate(keys_of(rows, table.keys))}
    keys_there = keys_of(held, table.keys)
    met = [place for place, key in enumerate(keys_there) if key in place_of]
    partners = [place_of[keys_there[place]] for place in met]
    old, new = held.take(pa.array(met, pa.int64())), rows.take(pa.array(partners, pa.int64()))
    changing = np.zeros(len(met), dtype=bool)
    if met and only is not None:
        changing = np.asarray(compute.fill_null(only(old, new), False))
    elif met and update:
        changing = (row_digests(old) != row_digests(new)).any(axis=1)
    inserted = np.ones(rows.num_rows, dtype=bool)
    inserted[partners] = False
    fresh = rows.slice(0, 0) if only is not None else rows.filter(pa.array(inserted))
    removed, put = old.filter(pa.array(changing)), new.filter(pa.array(changing))
    lost = [place for place, key in enumerate(keys_there) if whole and key not in place_of]
    gone = held.take(pa.array(lost, pa.int64()))
    done = Merged(fresh.num_rows, removed.num_rows, opened.version() + 1)
    if not done.inserted and not done.updated and not lost:
        return Merged(0, 0, opened.version())
    # A row of which a stranger has left two is given once, and replaces both.
    changed = set(np.asarray(partners, dtype=np.int64)[changing].tolist())
    moved = [place in changed or (only is None and new) for place, new in enumerate(inserted)]
    source = rows if lost else rows.filter(pa.array(moved, pa.bool_()))
    added, taken = pa.concat_tables([fresh, put]), pa.concat_tables([removed, gone])

    def commit(properties: commits.Properties) -> None:
        append = not (done.updated or lost)
        few = None if append or table.partition_by else _all(opened, table)
        if placing.has_times(table):
            _exchange(opened, table, added, taken, properties)
        elif few is not None:
            _overwrite(opened, table, _exchanged(few, table, added, taken), properties)
        else:
            _merge(opened, table, source, properties, append=append, whole=bool(lost))

    commits.make(opened, commit, digests=after(opened, table, added, taken), numbers=numbers)
    return done


def delete(opened: DeltaTable, table: Table, filters: Sequence[Filter]) -> int:
    """Delete the rows that pass all (normal) filters; answers how many. None is no commit."""
    predicate = filters_sql(filters)
    if all(name in table.partition_by for name, _, _ in filters):
        gone = files.data_files(opened, table, files.folder_of(opened), filters)
        left = {digests.slice_name(table.partition_by, file.partition): 0 for file in gone}
        if gone:
            commits.make(
                opened,
                lambda own: opened.delete(
                    predicate, commit_properties=own, post_commithook_properties=commits.hooks_of(opened)
                ),
                digests=left,
            )
        return sum(file.rows for file in gone)
    removed = _rows(opened, table, filters)
    none = removed.slice(0, 0)

    def commit(properties: commits.Properties) -> None:
        if placing.has_times(table):
            _exchange(opened, table, none, removed, properties)
        else:
            opened.delete(predicate, commit_properties=properties, post_commithook_properties=commits.hooks_of(opened))

    if removed.num_rows:
        commits.make(opened, commit, digests=after(opened, table, none, removed))
    return removed.num_rows


def append(opened: DeltaTable, table: Table, rows: pa.Table, numbers: Numbers = NO_NUMBERS) -> None:
    """Append rows, with the numbers of applications in the same commit."""
    commits.make(
        opened,
        lambda properties: _append(opened, table, rows, properties),
        digests=after(opened, table, rows, rows.slice(0, 0)),
        numbers=numbers,
    )


def replace(
    opened: DeltaTable,
    table: Table,
    rows: pa.Table,
    filters: Sequence[Filter],
    numbers: Numbers = NO_NUMBERS,
    parted: Parted | None = None,
) -> None:
    """Put rows in the place of those that pass all (normal) filters, as they do, with numbers of applications.

    `parted`: the rows that pass, which are in files of their own; of them only those that go make room.
    """
    predicate = filters_sql(filters)
    if parted is None:
        removed = _rows(opened, table, filters)
        due = after(opened, table, rows, removed)
    else:
        due = _after_parts(opened, table, rows, filters, parted)
        rows, removed = parted.after(table, rows), parted.rows

    def commit(properties: commits.Properties) -> None:
        if placing.has_times(table):
            _exchange(opened, table, rows, removed, properties)
        else:
            write_deltalake(
                with_files(opened),
                rows,
                mode="overwrite",
                predicate=predicate,
                commit_properties=properties,
                post_commithook_properties=commits.hooks_of(opened),
                writer_properties=file_properties.of_rows(table, rows),
            )

    commits.make(opened, commit, digests=due, numbers=numbers)


def after(
    opened: DeltaTable, table: Table, added: pa.Table, removed: pa.Table, written: Collection[str] = ()
) -> dict[str, int]:
    """The digests of the slices that rows come to and go from, and of others that are `written` anew, as they are then.

    A row that stays is in both sums or in neither: the digest of its slice goes on as commits said it.
    """
    names = dict.fromkeys(name for rows in (added, removed) for name in digests.slices_in(rows, table.partition_by))
    names |= dict.fromkeys(written)
    rule = commits.digest_rule(opened)
    if rule == digests.Rule.BLAKE2B:  # of numbers nothing is saved
        added, removed = differing(added, removed)
    came, went = (digests.of_rows(rows, table.partition_by, rule) for rows in (added, removed))
    nothing = dict.fromkeys(names, 0)
    return digests.changed(before(opened, table, names), nothing | came, went)


def _after_parts(
    opened: DeltaTable, table: Table, came: pa.Table, filters: Sequence[Filter], parted: Parted
) -> dict[str, int]:
    """The digests of the slices of the files that pass, with what comes to them and goes from them."""
    assert all(name in table.partition_by for name, _, _ in filters), "parts are of whole files"
    held = files.data_files(opened, table, files.folder_of(opened), filters)
    due, given = sum(file.rows for file in held), parted.rows.num_rows
    if due != given:
        raise StateError(f"{table.full_name} has {due} rows where {given} were read: nothing is put in their place")
    written = {digests.slice_name(table.partition_by, file.partition): None for file in held}
    return after(opened, table, came, parted.gone, written)


def before(opened: DeltaTable, table: Table, slices: Collection[str]) -> dict[str, int]:
    """What slices hold in an opened version: as its commits say, or, where they do not, as their rows are."""
    if table.partition_by:
        held = {
            digests.slice_name(table.partition_by, file.partition): file.partition
            for file in files.data_files(opened, table, files.folder_of(opened))
        }
        slices = [name for name in slices if name in held]
    else:
        held = {"": ()}
    if not slices:
        return {}
    with reading(f"the log of {table.full_name}"):
        said = commits.digests_at(opened, slices)
    if said is not None:
        return said
    found: dict[str, int] = {}
    for name in slices:
        own = normal_filters(table, [(c, "=", v) for c, v in zip(table.partition_by, held[name], strict=True)])
        with reading(table.full_name):
            rows = rows_of(opened, pa.schema(opened.schema()), own)
        found |= digests.of_rows(rows, table.partition_by, commits.digest_rule(opened))
    return found


def _rows(opened: DeltaTable, table: Table, filters: Sequence[Filter] = ()) -> pa.Table:
    """The rows of an opened table that pass all (normal) filters, in the declared schema.

    Raises:
        StoreFailure: they cannot be read, or are not as declared.
    """
    with reading(table.full_name):
        return rows_of(opened, table.schema, filters)


def _merge(
    opened: DeltaTable, table: Table, rows: pa.Table, properties: commits.Properties, *, append: bool, whole: bool
) -> None:
    if append:  # A merge, which looks for the keys once more, takes ten times as long.
        _append(opened, table, rows, properties)
        return
    # streamed_exec would keep deltalake from skipping the partitions and files that hold none of the keys.
    merger = opened.merge(
        rows,
        " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in table.keys),
        source_alias="s",
        target_alias="t",
        streamed_exec=False,
        writer_properties=file_properties.of_rows(table, rows),
        commit_properties=properties,
        post_commithook_properties=commits.hooks_of(opened),
    )
    if whole:  # only where all rows that there are to be are given
        merger = merger.when_not_matched_by_source_delete()
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _append(opened: DeltaTable, table: Table, rows: pa.Table, properties: commits.Properties) -> None:
    if placing.has_times(table):
        _exchange(opened, table, rows, rows.slice(0, 0), properties)
    else:
        write_deltalake(
            opened,
            rows,
            mode="append",
            commit_properties=properties,
            post_commithook_properties=commits.hooks_of(opened),
            writer_properties=file_properties.of_rows(table, rows),
        )


def _exchange(
    opened: DeltaTable, table: Table, added: pa.Table, removed: pa.Table, properties: commits.Properties
) -> None:
    """Add rows and take rows away; the partitions from which some go are written anew, in the order of their keys."""
    (name,) = table.partition_by
    partitions = compute.unique(removed[name]).to_pylist()
    if partitions:
        own = normal_filters(table, [(name, "in", partitions)])
        added = _exchanged(_rows(opened, table, own), table, added, removed)
    placing.rewrite(opened, table, added, partitions, (properties, file_properties.of_rows(table, added)))


def _exchanged(held: pa.Table, table: Table, added: pa.Table, removed: pa.Table) -> pa.Table:
    """Rows without those that go and with those that come, in the order of their keys."""
    gone = set(keys_of(removed, table.schema.names))
    stays = [row not in gone for row in keys_of(held, table.schema.names)]
    left = held.filter(pa.array(stays, pa.bool_()))
    return pa.concat_tables([left, added]).sort_by([(key, "ascending") for key in table.keys])


def _all(opened: DeltaTable, table: Table) -> pa.Table | None:
    """All rows, where they are few and there is nothing in the table that the platform does not know."""
    few = opened.few() if isinstance(opened, Opened) and not files.foreign_features(opened) else None
    return few.cast(table.schema) if few is not None and few.schema.names == table.schema.names else None


def _overwrite(opened: DeltaTable, table: Table, rows: pa.Table, properties: commits.Properties) -> None:
    """Write all rows as one file in place of all files: few are written in a third of the time that a merge takes."""
    write_deltalake(
        opened,
        rows.cast(table.schema),
        mode="overwrite",
        commit_properties=properties,
        post_commithook_properties=commits.hooks_of(opened),
        writer_properties=file_properties.of_rows(table, rows),
    )


def _of_keys(table: Table, rows: pa.Table) -> list[Filter]:
    """What lets the rows with the keys of `rows` through, and few others: a list of them, or their bounds."""
    filters: list[Filter] = []
    for name in table.keys:
        values = compute.unique(rows[name])
        if len(values) <= _MOST_LISTED:
            filters.append((name, "in", values.to_pylist()))
        elif not pat.is_binary(values.type):
            bounds = compute.min_max(values)
            filters += [(name, ">=", bounds["min"].as_py()), (name, "<=", bounds["max"].as_py())]
    return normal_filters(table, filters)
