"""What is noted down of where a network comes from."""

import subprocess

import pytest

from pstn.train.log import _commit


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    monkeypatch.delenv("PSTN_COMMIT", raising=False)
    for path in ("code/a.py", "results/table.jsonl", "benchmarks/results/b.jsonl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("before")

    def git(*words):
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return tmp_path, git("rev-parse", "HEAD").strip()


def test_a_commit_is_dirty_by_changes_of_the_code_not_by_results_that_it_wrote(checkout):
    folder, commit = checkout
    assert _commit(folder / "code") == commit
    for path in ("results/table.jsonl", "benchmarks/results/b.jsonl", "results/new.jsonl"):
        (folder / path).write_text("after")
    assert _commit(folder / "code") == commit
    (folder / "code/a.py").write_text("after")
    assert _commit(folder / "code") == f"{commit}-dirty"


def test_without_a_history_there_is_none_unless_it_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("PSTN_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert _commit(tmp_path) is None
    monkeypatch.setenv("PSTN_COMMIT", "abc")
    assert _commit(tmp_path) == "abc"
