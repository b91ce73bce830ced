"""Start order, restarts, drain order and deadlines, decided without any process."""

import pytest

from penstock.deploy.up.supervision import (
    BACKOFF_MAX_NS,
    BACKOFF_MIN_NS,
    SECOND_NS,
    STEADY_NS,
    AllReady,
    CaughtUp,
    CutShort,
    Exited,
    Finished,
    GaveUp,
    Kill,
    KillPart,
    PartPlan,
    Phase,
    Ready,
    Restarting,
    StartPart,
    Stop,
    Supervision,
    TerminatePart,
    Tick,
    WatchCatchUp,
)

PLANS = (
    PartPlan("nats"),
    PartPlan("logd", after=("nats",)),
    PartPlan("collector", after=("logd",), must_drain=True),
    PartPlan("router", after=("logd",), catch_up_within_ns=20 * SECOND_NS, must_drain=True),
    PartPlan("app", after=("collector",), once=True),
)
DRAIN = ("app", "collector", "router", "logd", "nats")


@pytest.fixture
def launch() -> Supervision:
    return Supervision(PLANS, DRAIN)


@pytest.fixture
def running(launch: Supervision) -> Supervision:
    launch.handle(Tick(), 0)
    for name in ("nats", "logd", "collector", "router", "app"):
        launch.handle(Ready(name), 1)
    return launch


def test_parts_start_when_what_they_need_is_ready(launch: Supervision) -> None:
    assert launch.handle(Tick(), 0) == [StartPart("nats")]
    assert launch.handle(Ready("nats"), 1) == [StartPart("logd")]
    assert launch.handle(Ready("logd"), 2) == [StartPart("collector"), StartPart("router")]
    assert launch.handle(Ready("collector"), 3) == [StartPart("app")]
    assert launch.handle(Ready("app"), 4) == []
    assert launch.handle(Ready("router"), 5) == [AllReady()]


def test_a_part_that_ends_before_it_was_ready_ends_the_launch(launch: Supervision) -> None:
    launch.handle(Tick(), 0)
    launch.handle(Ready("nats"), 1)
    assert launch.handle(Exited("logd", 78), 2) == [GaveUp("logd", 78), TerminatePart("nats")]
    assert launch.handle(Exited("nats", 0), 3) == [Finished()]


def test_a_part_that_is_not_ready_in_time_is_killed_and_ends_the_launch(
    launch: Supervision,
) -> None:
    launch.handle(Tick(), 0)
    assert launch.next_deadline_ns() == 30 * SECOND_NS
    assert launch.handle(Tick(), 30 * SECOND_NS) == [KillPart("nats"), GaveUp("nats", None)]
    assert launch.handle(Exited("nats", -9), 31 * SECOND_NS) == [Finished()]


def test_restarts_wait_twice_as_long_each_time_up_to_a_bound(running: Supervision) -> None:
    now, delays = 10, []
    for _ in range(10):
        (effect,) = running.handle(Exited("logd", -9), now)
        assert isinstance(effect, Restarting)
        delays.append(effect.delay_ns)
        assert running.handle(Tick(), now + effect.delay_ns - 1) == []
        now += effect.delay_ns
        assert running.handle(Tick(), now) == [StartPart("logd")]
        assert running.handle(Ready("logd"), now) == []
    assert delays[:3] == [BACKOFF_MIN_NS, 2 * BACKOFF_MIN_NS, 4 * BACKOFF_MIN_NS]
    assert delays[-1] == BACKOFF_MAX_NS


def test_the_restart_delay_begins_anew_after_a_steady_time(running: Supervision) -> None:
    running.handle(Exited("logd", 1), 10)
    running.handle(Tick(), 10 + BACKOFF_MIN_NS)
    running.handle(Ready("logd"), 20 + BACKOFF_MIN_NS)
    later = 20 + BACKOFF_MIN_NS + STEADY_NS
    assert running.handle(Exited("logd", 1), later) == [Restarting("logd", 1, BACKOFF_MIN_NS)]


def test_the_restart_delay_grows_for_a_part_that_fails_before_it_is_ready_again(
    running: Supervision,
) -> None:
    now, delays = 10 + STEADY_NS, []
    for _ in range(10):
        (effect,) = running.handle(Exited("logd", 1), now)
        assert isinstance(effect, Restarting)
        delays.append(effect.delay_ns)
        now += effect.delay_ns
        assert running.handle(Tick(), now) == [StartPart("logd")]
    assert delays[:3] == [BACKOFF_MIN_NS, 2 * BACKOFF_MIN_NS, 4 * BACKOFF_MIN_NS]
    assert delays[-1] == BACKOFF_MAX_NS


def test_a_part_that_hangs_and_fails_by_turns_is_restarted_ever_later(
    running: Supervision,
) -> None:
    """The time in which it was not ready is no steady one."""
    now, delays = 10 + STEADY_NS, []
    for turn in range(4):
        (effect,) = running.handle(Exited("logd", 1), now)
        assert isinstance(effect, Restarting)
        delays.append(effect.delay_ns)
        now += effect.delay_ns
        running.handle(Tick(), now)
        if turn % 2:
            now += 30 * SECOND_NS
            assert running.handle(Tick(), now) == [KillPart("logd")]
    assert delays == [BACKOFF_MIN_NS << turn for turn in range(4)]


def test_a_restarted_part_that_hangs_is_killed_and_tried_again(running: Supervision) -> None:
    running.handle(Exited("logd", 1), 10)
    running.handle(Tick(), 10 + BACKOFF_MIN_NS)
    hung = 10 + BACKOFF_MIN_NS + 30 * SECOND_NS
    assert running.handle(Tick(), hung) == [KillPart("logd")]
    (effect,) = running.handle(Exited("logd", -9), hung + 1)
    assert isinstance(effect, Restarting)


def test_the_app_may_end_by_itself_and_is_restarted_only_when_it_fails(
    running: Supervision,
) -> None:
    assert running.handle(Exited("app", 1), 9) == [Restarting("app", 1, BACKOFF_MIN_NS)]
    running.handle(Tick(), SECOND_NS)
    running.handle(Ready("app"), SECOND_NS)
    assert running.handle(Exited("app", 0), 2 * SECOND_NS) == []
    assert running.phase("app") is Phase.STOPPED


def test_draining_goes_from_the_sources_to_the_sinks(running: Supervision) -> None:
    assert running.handle(Stop(), 10) == [TerminatePart("app")]
    assert running.handle(Exited("app", 0), 11) == [TerminatePart("collector")]
    assert running.handle(Exited("collector", 0), 12) == [WatchCatchUp("router")]
    assert running.handle(CaughtUp("router"), 13) == [TerminatePart("router")]
    assert running.handle(Exited("router", 0), 14) == [TerminatePart("logd")]
    assert running.handle(Exited("logd", 0), 15) == [TerminatePart("nats")]
    assert running.handle(Exited("nats", 0), 16) == [Finished()]


def test_what_does_not_drain_in_time_is_cut_short(running: Supervision) -> None:
    running.handle(Stop(), 0)
    stuck = 15 * SECOND_NS
    assert running.handle(Tick(), stuck) == [
        CutShort("app", "did not end when told to"),
        KillPart("app"),
    ]
    running.handle(Exited("app", -9), stuck)
    running.handle(Exited("collector", 0), stuck)
    assert running.handle(Tick(), stuck + 20 * SECOND_NS) == [
        CutShort("router", "still behind"),
        TerminatePart("router"),
    ]


def test_a_part_needed_for_draining_is_still_restarted(running: Supervision) -> None:
    running.handle(Stop(), 0)
    assert running.handle(Exited("logd", -9), 1) == [Restarting("logd", -9, BACKOFF_MIN_NS)]
    assert running.handle(Tick(), 1 + BACKOFF_MIN_NS) == [StartPart("logd")]


def test_a_part_that_is_down_when_its_turn_comes_drains_once_it_is_back(
    running: Supervision,
) -> None:
    running.handle(Exited("router", -9), 1)
    running.handle(Stop(), 2)
    running.handle(Exited("app", 0), 3)
    assert running.handle(Exited("collector", 0), 4) == []
    assert running.next_deadline_ns() == 1 + BACKOFF_MIN_NS
    assert running.handle(Tick(), 1 + BACKOFF_MIN_NS) == [StartPart("router")]
    assert running.handle(Ready("router"), SECOND_NS) == [WatchCatchUp("router")]


def test_a_part_that_does_not_come_back_to_drain_is_cut_short(running: Supervision) -> None:
    running.handle(Exited("router", -9), 1)
    running.handle(Stop(), 2)
    running.handle(Exited("app", 0), 3)
    running.handle(Exited("collector", 0), 4)
    now, effects = 4, []
    for _ in range(100):  # it ends again as soon as it is started
        now = running.next_deadline_ns() or now
        effects += running.handle(Tick(), now)
        if effects[-1] == TerminatePart("logd"):
            break
        effects += running.handle(Exited("router", -9), now)
    assert effects[-2:] == [
        CutShort("router", "did not come back to drain"),
        TerminatePart("logd"),
    ]
    assert now == 4 + 30 * SECOND_NS


def test_a_part_that_holds_nothing_is_not_waited_for(running: Supervision) -> None:
    running.handle(Stop(), 0)
    for name in ("app", "collector"):
        running.handle(Exited(name, 0), 1)
    running.handle(CaughtUp("router"), 2)
    running.handle(Exited("logd", -9), 3)
    assert running.handle(Exited("router", 0), 4) == [TerminatePart("nats")]


def test_a_part_that_dies_while_catching_up_is_reported(running: Supervision) -> None:
    running.handle(Stop(), 0)
    running.handle(Exited("app", 0), 1)
    running.handle(Exited("collector", 0), 2)
    assert running.handle(Exited("router", -9), 3) == [
        CutShort("router", "ended with -9 while catching up"),
        TerminatePart("logd"),
    ]


def test_kill_ends_everything_without_order_or_restart(running: Supervision) -> None:
    running.handle(Exited("logd", -9), 1)
    assert running.handle(Kill(), 2) == [
        KillPart("nats"),
        KillPart("collector"),
        KillPart("router"),
        KillPart("app"),
    ]
    assert running.next_deadline_ns() is None
    for name in ("nats", "collector", "router"):
        assert running.handle(Exited(name, -9), 3) == []
    assert running.handle(Exited("app", -9), 4) == [Finished()]


def test_every_part_must_have_its_turn_in_the_drain_order() -> None:
    with pytest.raises(AssertionError):
        Supervision(PLANS, DRAIN[:-1])
