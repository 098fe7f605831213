"""What a signal does to a command that cleans up."""

from __future__ import annotations

import signal

import pytest

from headrace.process_end import terminated_as_interrupt, uninterrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_during_a_clean_up_takes_effect_after_it(number: signal.Signals):
    done = []

    def command() -> None:
        with terminated_as_interrupt():
            with uninterrupted():
                signal.raise_signal(number)
                signal.raise_signal(number)
                done.append("clean")
            done.append("went on")

    with pytest.raises(KeyboardInterrupt):
        command()
    assert done == ["clean"]


def test_signal_after_a_clean_up_does_what_it_did_before():
    before = signal.getsignal(signal.SIGINT)
    with uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_of_the_clean_up_is_reported_when_no_signal_came():
    with pytest.raises(OSError, match="the disk"), uninterrupted():
        raise OSError("the disk")
