"""Skipped tests: where `CI` is set, any skip that is not expected fails the session."""

import os
import sys

import pytest

EXPECTED = {
    "needs a CUDA device",
    "there is a GPU",
    "root may write anywhere",
    "fish is not installed",
    "zsh is not installed",
    "needs the extra ray-serve",  # 40 packages for one test
}
"""Reasons for which an installation with the extra `dev` skips tests."""

if sys.platform != "linux":
    EXPECTED |= {
        "needs chromium and chromedriver",
        "other systems know one peak of the whole process",
        "needs /proc",
    }


def unexpected(config):
    """The places and reasons of the skips to report."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or hasattr(config, "workerinput") or reporter is None:
        return []
    skips = [report.longrepr for report in reporter.stats.get("skipped", ())]
    reasons = [(f"{path}:{line}", reason.removeprefix("Skipped: ")) for path, line, reason in skips]
    return [(place, reason) for place, reason in reasons if reason not in EXPECTED]


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.OK and unexpected(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    if skips := unexpected(config):
        terminalreporter.section("unexpected skips", red=True)
        for place, reason in skips:
            terminalreporter.line(f"{place}: {reason}")
