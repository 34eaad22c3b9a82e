"""A run's result on the Hugging Face hub: `final`, with its card, and nothing else of the run's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import Trainer

from opasd.errors import ConfigError, OpasdError
from opasd.run.manifest import FINAL


class HubTrainer(Trainer):
    """Upload the result of a run; checkpoints, metrics and samples stay here."""

    folder: Path

    def init_hf_repo(self, token: str | None = None) -> None:
        """Make the repository, before the first step if `push_to_hub` is set."""
        with self._hub_errors():
            super().init_hf_repo(token)

    def push_to_hub(
        self,
        commit_message: str | None = "Result of a run of opasd",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Upload the finished run's `final` to `args.hub_model_id`; by default a repository named as the folder."""
        if not self.is_world_process_zero():
            return None
        final = self.folder / FINAL
        if not (final / "README.md").exists():
            raise ConfigError(f"there is no result in {final} yet, so nothing can be uploaded; train first")
        token = token or self.args.hub_token
        if self.hub_model_id is None:
            self.init_hf_repo(token)
        with self._hub_errors():
            return HfApi().upload_folder(
                repo_id=str(self.hub_model_id), folder_path=final, commit_message=commit_message, token=token,
                revision=revision or self.args.hub_revision, run_as_future=not blocking,
            )  # fmt: skip

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload nothing: the result is uploaded when the run has finished."""

    @contextmanager
    def _hub_errors(self) -> Iterator[None]:
        try:
            yield
        except OpasdError:
            raise
        except Exception as error:  # the library, its transport and the server raise many kinds
            reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)[:300]
            name = self.args.hub_model_id or Path(str(self.args.output_dir)).absolute().name
            raise ConfigError(
                f"push_to_hub: {name} on the Hugging Face hub cannot be written ({reason}); log in (hf auth login), "
                "check hub_model_id and the network, or leave push_to_hub out and upload the result later: hf upload "
                f"{name} {self.args.output_dir}/{FINAL}"
            ) from error
