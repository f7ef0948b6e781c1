"""Ray does what one process does, to the last digit, and a killed worker costs its own fleet alone."""

import pytest
from toy_runs import TRIALS, essence

from pstn.experiment import Table, find, run
from pstn.experiment.network import Network
from pstn.experiment.parcel import pack
from pstn.experiment.work import Job

ray = pytest.importorskip("ray", reason="Ray is in the extra 'ray'", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::FutureWarning")  # Ray's own


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory):
    """A local Ray of two workers; the first to save a checkpoint of the table with the fuse is killed."""
    folder = tmp_path_factory.mktemp("fuse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_FUSE", str(folder / "fuse"))
        patch.setenv("TOY_JOURNAL", str(folder / "journal.txt"))
        # Ray's workers yield to every other process, and beside other tests hardly get to run.
        patch.setenv("RAY_worker_niceness", "0")
        # workers inherit the environment of the process that starts Ray
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield folder
    ray.shutdown()


def test_results_are_those_of_a_local_run(two_workers, finished, table, tmp_path):
    run(table, device="cpu", runs=tmp_path / "runs", results=tmp_path / "results", ray="local")
    assert essence(tmp_path, table.id) == essence(finished, table.id)


def test_a_killed_worker_costs_its_own_fleet_alone(two_workers, tmp_path, monkeypatch):
    fused = find("toy/fused", TRIALS)
    run(fused, device="cpu", runs=tmp_path / "a/runs", results=tmp_path / "a/results", ray="local")
    assert (two_workers / "fuse").exists(), "nobody was killed"
    begun = [tuple(map(int, line.split())) for line in (two_workers / "journal.txt").read_text().splitlines()]
    fresh, resumed = [b for b in begun if b[-1] == 0], [b for b in begun if b[-1] > 0]
    assert (len(fresh), len(resumed)) == (3, 1), "three fleets, one of them in two sittings"
    assert resumed[0][-1] == 64, "from its checkpoint on"
    monkeypatch.setenv("TOY_FUSE", str(two_workers / "fuse"))
    run(fused, device="cpu", runs=tmp_path / "b/runs", results=tmp_path / "b/results")
    assert essence(tmp_path / "a", "toy/fused") == essence(tmp_path / "b", "toy/fused")


def test_a_table_without_a_file_cannot_travel(two_workers, table, tmp_path):
    loose = Table("toy/loose", "", table.rows)
    with pytest.raises(ValueError, match="is in no file"):
        run(loose, device="cpu", runs=tmp_path, results=tmp_path, ray="local")


def test_what_travels_is_small(two_workers, table, tmp_path):
    """Names, not data: a job is a few kilobytes, however large its digits are."""
    job = Job("train", (Network(table.row("cnn"), {}, 0, tmp_path),))
    assert len(ray.cloudpickle.dumps(pack(job, table, False, "cpu", {}))) < 800
