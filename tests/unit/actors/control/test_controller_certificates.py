"""The controller renews the certificates that `up` made: it checks once an hour, while everything runs."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from actors.security.authority import SITE_DAYS
from actors.security.renewal import RENEWAL_INTERVAL_S
from actors.security.upkeep import keep_certificates
from headrace.base.clock import VirtualClock
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import one_way_spec, started
from topology.links import CERTIFICATES, with_made_certificates

DAY_S = 86_400


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def _steps(controller, clock: VirtualClock, *, days: float) -> None:
    """Run one step per day."""
    for _ in range(max(1, int(days))):
        clock.advance(DAY_S * min(days, 1))
        controller.step()


def test_certificates_are_renewed_in_the_last_third_of_their_life(tmp_path: Path, clock: VirtualClock):
    spec = with_made_certificates(one_way_spec(tmp_path))
    controller = started(spec, FakeActors(), clock=clock)  # creates them by the test's clock
    folder = spec.state_dir / CERTIFICATES
    first = (folder / "a.pem").read_bytes()
    _steps(controller, clock, days=SITE_DAYS * 2 // 3 - 1)
    assert (folder / "a.pem").read_bytes() == first
    _steps(controller, clock, days=3)
    assert (folder / "a.pem").read_bytes() != first


def test_certificates_are_read_once_an_hour_and_a_failed_check_is_repeated(tmp_path: Path, clock: VirtualClock):
    spec = with_made_certificates(one_way_spec(tmp_path))
    keep_certificates(spec)
    controller = started(spec, FakeActors(), clock=clock)
    folder = spec.state_dir / CERTIFICATES
    aside = folder.rename(folder.with_name("aside"))
    folder.write_text("no folder")
    _steps(controller, clock, days=1)
    assert controller.detail_state() == "RUNNING"
    folder.unlink()
    _steps(controller, clock, days=RENEWAL_INTERVAL_S / DAY_S / 2)
    assert not folder.exists()
    _steps(controller, clock, days=1)
    assert (folder / "a.pem").exists()
    assert (aside / "a.pem").exists()


def test_restarted_controller_completes_a_half_written_renewal(tmp_path: Path):
    """Ray restarts a controller that dies; without this, one that dies daily would never renew anything."""
    spec = with_made_certificates(one_way_spec(tmp_path))
    keep_certificates(spec)
    key = spec.state_dir / CERTIFICATES / "a.key"
    # the certificate is written, its key is not
    key.write_bytes((spec.state_dir / CERTIFICATES / "b.key").read_bytes())
    started(spec, FakeActors())
    assert keep_certificates(spec) == ()


def test_certificates_that_expired_during_sleep_are_renewed_within_an_hour(tmp_path: Path):
    """The machine's monotonic clock stands still while it sleeps."""
    spec = with_made_certificates(one_way_spec(tmp_path))
    clock = VirtualClock()
    controller = started(spec, FakeActors(), clock=clock)
    long_ago = datetime.fromtimestamp(clock.time_us() / 1e6, UTC) - timedelta(days=SITE_DAYS + 1)
    shutil.rmtree(spec.state_dir / CERTIFICATES, ignore_errors=True)
    keep_certificates(spec, now=long_ago)
    clock.advance(RENEWAL_INTERVAL_S)
    controller.step()
    assert keep_certificates(spec, now=datetime.fromtimestamp(clock.time_us() / 1e6, UTC)) == ()


def test_file_with_own_or_no_certificates_is_left_alone(tmp_path: Path, clock: VirtualClock):
    spec = one_way_spec(tmp_path)
    controller = started(spec, FakeActors(), clock=clock)
    _steps(controller, clock, days=1)
    assert not (spec.state_dir / CERTIFICATES).exists()
