"""Commands that are run in this process."""

import pytest

from medic.cli import main


@pytest.fixture
def medic(capsys):
    """Run a command in this process: exit code, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def short(mini, tmp_path):
    """The options of a run of a second."""
    return [
        "--dataset", mini, "--target", "street", "--iterations", "2", "--batch-size", "2",
        "--output", str(tmp_path / "runs"),
    ]  # fmt: skip
