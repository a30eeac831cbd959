"""An intended change of numbers is accepted: the baselines of one claim train as the accepted commit."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sealing import forge
from two_commits import GRADIENTS, OTHER_UPDATE, UserRepository

from harness.api import session
from harness.api.rejudge import Known, judged, rejudged
from harness.api.session import Judgement, VerifyOptions, verify
from harness.contract.load import LoadedContract, load_contracts
from harness.errors import EvidenceError
from harness.evidence.environment_records import TwoCommits
from harness.evidence.redaction import Redaction
from harness.judging.verdict import Status
from harness.report.advice import advice
from harness.run_directory.bundle import Bundle, read_bundle

pytestmark = pytest.mark.usefixtures("warm")
FILE = "accepted-baselines.yaml"
LAST = "2999-12-31"


def accepted_by_ada(commit: str, expires: str = LAST) -> str:
    return (
        f"schema: accepted-baselines/v1\naccepted:\n  - {{contract: as-main, claim: SAME, commit: {commit}, "
        f"reviewer: ada, reason: Another rate from step 3 on, expires: {expires}}}\n"
    )


@dataclass(frozen=True)
class Accepted:
    """A repository whose second commit changed numbers, as SAME and GRADIENTS see; a reviewer accepted it for SAME."""

    repository: UserRepository
    first: str
    changed: str
    judgement: Judgement

    @property
    def directory(self) -> Path:
        assert self.judgement.run_directory is not None
        return self.judgement.run_directory

    @property
    def contracts(self) -> Sequence[LoadedContract]:
        return load_contracts([self.repository.root / "as-main.yaml"])

    def verify(self, name: str) -> Judgement:
        root = self.repository.root
        options = VerifyOptions(name=name, baseline=self.first, reports=root / "reports", where=True, claims=("SAME",))
        return verify([root / "as-main.yaml"], options)

    @contextmanager
    def changed_file(self, name: str, text: str) -> Iterator[None]:
        """Change a file of the working tree for a while."""
        before = (self.repository.folder / name).read_text()
        self.repository.write(name, text)
        try:
            yield
        finally:
            self.repository.write(name, before)


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory, warm: None) -> Iterator[Accepted]:
    repository = UserRepository.make(tmp_path_factory.mktemp("accepted") / "repository")
    repository.contract(GRADIENTS)
    first = repository.commit("Another claim")
    repository.write("update.py", OTHER_UPDATE)
    changed = repository.commit("Another rate")
    repository.write(FILE, accepted_by_ada(changed))
    repository.commit("The rate is accepted")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(repository.root)
        patch.setattr(sys, "path", [str(repository.root), *sys.path])
        options = VerifyOptions(name="run", baseline=first, reports=repository.root / "reports")
        judgement = verify([repository.root / "as-main.yaml"], options)
        yield Accepted(repository, first, changed, judgement)


def statuses(judgement: Judgement) -> dict[str, Status]:
    return {verdict.claim: verdict.status for verdict in judgement.verdicts}


def test_an_accepted_change_passes_for_its_claim_and_fails_for_a_different_claim(accepted: Accepted) -> None:
    assert statuses(accepted.judgement) == {"SAME": Status.PASS, "GRADIENTS": Status.FAIL}
    assert accepted.repository.worktrees() == 1


@pytest.mark.slow
def test_a_second_change_fails_and_is_located_against_the_accepted_commit(accepted: Accepted) -> None:
    with accepted.changed_file("update.py", OTHER_UPDATE.replace("else 0.02", "else 0.02 if step < 5 else 0.03")):
        judgement = accepted.verify("second")
    verdict = judgement.verdicts[0]
    assert (verdict.status, verdict.reason) == (Status.FAIL, "differs"), verdict.message
    assert verdict.figures["first_differing_step"].value == 6  # 4 with the commit of `--baseline`
    assert judgement.view.located["as-main", "SAME", "small"].numbers == ["0.03", "0.02"]


@pytest.mark.slow
def test_an_expired_acceptance_has_no_effect_and_the_advice_names_its_last_day(accepted: Accepted) -> None:
    with accepted.changed_file(FILE, accepted_by_ada(accepted.changed, expires="2020-01-31")):
        judgement = accepted.verify("expired")
    verdict = judgement.verdicts[0]
    assert (verdict.status, verdict.reason) == (Status.FAIL, "differs")
    [said] = [each.text for each in advice(judgement.view, verdict) if each.label == "baseline"]
    short = accepted.changed[:12]
    assert said == f"the run's; the acceptance of {short} by ada ended on 2020-01-31: renew or remove this entry."


@pytest.mark.parametrize("page", ["report.html", "summary.md", "junit.xml"])
def test_every_page_names_who_accepted_the_baseline(page: str, accepted: Accepted) -> None:
    text = (accepted.directory / page).read_text().replace("\\", "").replace("&#34;", '"').replace("&quot;", '"')
    said = f'{accepted.changed[:12]} "Another rate", accepted by ada until {LAST}: Another rate from step 3 on'
    assert "aseline of SAME" in text
    assert said in text


def test_judging_again_without_the_repository_gives_the_same_verdicts(accepted: Accepted, tmp_path: Path) -> None:
    copy = shutil.copytree(accepted.directory, tmp_path / "copy")
    assert rejudged(copy).problems == []


def test_an_acceptance_removed_from_the_header_is_detected(accepted: Accepted, tmp_path: Path) -> None:
    copy = shutil.copytree(accepted.directory, tmp_path / "copy")

    def removed(header: dict[str, object]) -> None:
        header["commits"]["accepted"] = []  # type: ignore[index]

    forge(copy / "run.json", removed)
    verdict = judged([copy])[1].verdicts[0]
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, "evidence_of_another_contract")


def test_an_acceptance_changed_in_the_header_is_detected(accepted: Accepted, tmp_path: Path) -> None:
    copy = shutil.copytree(accepted.directory, tmp_path / "copy")

    def signed_by_another(header: dict[str, object]) -> None:
        header["commits"]["accepted"][0]["reviewer"] = "grace"  # type: ignore[index]

    forge(copy / "run.json", signed_by_another)
    line = "run.json: the recorded accepted baseline of SAME is in no file of waivers/"
    assert line in "\n".join(judged([copy])[1].view.altered)


def test_an_acceptance_only_in_the_run_directory_opens_no_gate(accepted: Accepted, tmp_path: Path) -> None:
    contract = Path(shutil.copy(accepted.repository.root / "as-main.yaml", tmp_path / "as-main.yaml"))
    [verdict, _] = judged([accepted.directory], Known([contract]), gate=True)[1].verdicts
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, "evidence_of_another_contract")
    shutil.copy(accepted.repository.root / FILE, tmp_path / FILE)
    [verdict, _] = judged([accepted.directory], Known([contract]), gate=True)[1].verdicts
    assert verdict.status is Status.PASS


def test_a_redaction_keeps_the_name_of_who_accepted_a_baseline(accepted: Accepted) -> None:
    header = session.redacted_header(read_bundle(accepted.directory).header, Redaction(frozenset(), frozenset({"ada"})))
    assert header.commits is not None
    assert [one.reviewer for one in header.commits.accepted] == ["ada"]


def with_header(path: Path, commits: dict[str, object], **changes: object) -> Bundle:
    bundle = read_bundle(path)
    assert bundle.header.commits is not None
    changes["commits"] = bundle.header.commits.model_copy(update=commits)
    object.__setattr__(bundle, "header", bundle.header.model_copy(update=changes))
    return bundle


def test_shards_that_accept_different_baselines_of_a_contract_are_refused(accepted: Accepted, tmp_path: Path) -> None:
    other = with_header(shutil.copytree(accepted.directory, tmp_path / "copy"), {"accepted": []})
    with pytest.raises(EvidenceError, match=r"shards must compare the same commits; found .*accepted by ada"):
        session.judge_bundles([other, read_bundle(accepted.directory)], accepted.contracts)


def test_joined_shards_of_different_contracts_keep_the_accepted_baselines_of_each_contract(
    accepted: Accepted, tmp_path: Path
) -> None:
    path = shutil.copytree(accepted.directory, tmp_path / "copy")
    digests = read_bundle(path).header.digests.model_copy(update={"contracts": {}})
    other = with_header(path, {"accepted": []}, digests=digests, units=[], runs={})
    judgement = session.judge_bundles([other, read_bundle(accepted.directory)], accepted.contracts)
    assert judgement.view.header.commits is not None
    assert [one.claim for one in judgement.view.header.commits.accepted] == ["SAME"]
    assert statuses(judgement)["SAME"] is Status.PASS


def test_a_run_header_from_before_accepted_baselines_existed_is_judged_against_the_baseline(accepted: Accepted) -> None:
    commits = read_bundle(accepted.directory).header.commits
    assert commits is not None
    old = json.loads(commits.model_dump_json(exclude={"accepted"}))
    assert TwoCommits.model_validate(old).baseline_of("as-main", "SAME").commit == accepted.first
