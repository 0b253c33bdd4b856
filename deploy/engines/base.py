"""What every engine does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from deploy.console import Say
from deploy.deployment import Deployment
from deploy.state import DeploymentFolder, DeploymentState, LaunchPlan


class Engine(ABC):
    """Starts and stops servers in one way.

    Attributes:
        name: As in ``--engine NAME``.
    """

    name: str

    @abstractmethod
    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do. Nothing is made or changed.

        Args:
            deployment: What is wanted.

        Raises:
            KitError: If it cannot be launched as described.
        """

    @abstractmethod
    def artefact(self, *, deployment: Deployment) -> str:
        """Return a digest of all that a launch would run and serve.

        Args:
            deployment: What is wanted.

        Raises:
            KitError: If a file of it is missing.
        """

    @abstractmethod
    def prepare(self, *, deployment: Deployment, say: Say) -> Path:
        """Make and check whatever the launch needs and lacks.

        Args:
            deployment: What is wanted.
            say: Is told what happens.

        Returns:
            The execution environment's folder.

        Raises:
            KitError: If something cannot be had or does not pass its checks.
        """

    @abstractmethod
    def launch(self, *, plan: LaunchPlan, say: Say) -> DeploymentState:
        """Start the server and wait until it is ready.

        Args:
            plan: From :meth:`plan`, after :meth:`prepare`.
            say: Is told what happens.

        Returns:
            The state of the ready deployment.

        Raises:
            LaunchError: If it does not become ready; nothing of it is left running.
        """

    @abstractmethod
    def stop(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """Stop the server and remove what it leaves behind, whatever state it is in.

        Args:
            folder: The deployment's folder.
            state: Its state.

        Raises:
            KitError: If something of it cannot be stopped.
        """
