"""The home as a Dagster resource: its lake and settings, opened on first use."""

from __future__ import annotations

from contextlib import ExitStack

from dagster import ConfigurableResource, InitResourceContext
from pydantic import Field, PrivateAttr

from cdc_platform.dagster_home import USER_TAG
from cdc_platform.delta import CommitAuthor, Lake, commit_as
from cdc_platform.home_location import DEFAULT_HOME, HOME_VARIABLE, HomeLocation, open_home_location
from cdc_platform.instance_lock import lock_home_shared
from cdc_platform.settings import Settings


class HomeResource(ConfigurableResource):
    """One home of the platform."""

    path: str | None = Field(
        default=None, description=f"Folder of the home; by default ${HOME_VARIABLE}, and without that ./{DEFAULT_HOME}."
    )

    _speaking: ExitStack = PrivateAttr(default_factory=ExitStack)
    _lakes: dict[str, Lake] = PrivateAttr(default_factory=dict)

    def setup_for_execution(self, context: InitResourceContext) -> None:
        """Attribute commits to the run and to the user who requested it. A sensor or schedule has no run."""
        run = context.run
        author = CommitAuthor("Dagster")
        if run is not None:
            author = CommitAuthor("Dagster", run.job_name, run.run_id, run.tags.get(USER_TAG, ""))
        self._speaking.enter_context(commit_as(author))

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        """Stop attributing commits to the run, and release the open tables."""
        self._speaking.close()
        self._lakes.clear()

    def home(self) -> HomeLocation:
        """Return the home, and create it if it does not exist.

        Raises:
            EnvironmentProblem: the home cannot be created or written to, or a newer version wrote it.
            StateError: another Dagster works in it.
        """
        home = open_home_location(self.path)
        lock_home_shared(home)
        return home

    def lake(self) -> Lake:
        """Return the home's Delta tables. A run's steps share them: reopening all takes as long as a step."""
        root = self.home().lake
        return self._lakes.setdefault(str(root), Lake(root))

    def settings(self) -> Settings:
        """Return the home's settings."""
        return self.home().settings
