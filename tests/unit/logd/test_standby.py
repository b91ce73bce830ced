"""The window of a standby: its bounds in bytes and age, what it says is missing, and its counts."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.logd.intake.admission import ByteBudget
from penstock.logd.intake.gaps import Instant
from penstock.logd.intake.intake import Intake
from penstock.logd.intake.standby import Standby
from penstock.logd.intake.standby_buffer import DEBT_BYTES, ENTRY_BYTES, Window
from penstock.logd.intake.turn import Append, Message, MessageRun
from penstock.logd.metadata.streams import StreamConfig

S = 1_000_000_000
AGE, DEBT = 10 * S, 2 * S
LATER = 100 * S
"""Unix time of records that were taken after this replica heard everything."""


def message(name: bytes, size: int = 0) -> Message:
    return Message(b"s", b"", b"", name + bytes(size))


def make_window(held_bytes_max: int = 1 << 20) -> Window:
    window = Window(AGE, DEBT, held_bytes_max=held_bytes_max)
    window.present(Instant(0, 0))
    return window


def arrive(window: Window, *names: bytes, now_ns: int = S, size: int = 0) -> None:
    for name in names:
        window.arrive(message(name, size), name, now_ns)


def append(window: Window, *names: bytes, now_ns: int = S, recorded_ns: int = LATER) -> None:
    for offset, name in enumerate(names):
        window.append(offset, name, now_ns, recorded_ns=recorded_ns)


def release(window: Window, now_ns: int = S, led_ns: int = 0) -> list[bytes]:
    released = window.release(now_ns, led_ns)
    assert not released.missing
    return [one.payload for one in released.messages]


def test_records_cancel_messages_whatever_comes_first() -> None:
    window = make_window()
    arrive(window, b"c1", b"c2", b"c1", b"c3")
    append(window, b"c1", b"c4", b"c2")
    arrive(window, b"c4")
    assert window.held_bytes > 0
    assert release(window) == [b"c1", b"c3"]
    window.committed(2)
    assert window.held_bytes == 0


def test_a_debt_does_not_live_long() -> None:
    window = make_window()
    append(window, b"c1")
    window.expire(S + DEBT, 0)
    assert not window.owing
    assert (window.held_bytes, window.counts.debts_expired) == (0, 1)
    arrive(window, b"c1", now_ns=S + DEBT)
    assert release(window, S + DEBT) == [b"c1"]


def test_a_debt_that_is_found_too_old_pays_nothing() -> None:
    window = make_window()
    append(window, b"c1")
    assert not window.pay(message(b"c1"), b"c1", S + DEBT)
    assert window.counts.debts_expired == 1


def test_what_was_stored_before_everything_came_leaves_no_debt_and_cancels_nothing_newer() -> None:
    window = Window(AGE, DEBT, held_bytes_max=1 << 20)
    append(window, b"c1")
    arrive(window, b"c1", now_ns=S)
    window.present(Instant(2 * S, LATER))
    append(window, b"c1", b"c1", recorded_ns=LATER - DEBT - 1)
    arrive(window, b"c1", now_ns=3 * S)
    append(window, b"c1", recorded_ns=LATER - DEBT - 1)
    assert release(window, 3 * S) == [b"c1"]


def test_coverage_begins_anew_after_a_break() -> None:
    window = make_window()
    window.present(Instant(5, 5))
    assert window.covered == Instant(0, 0)
    window.present(None)
    window.present(Instant(7, 7))
    assert window.covered == Instant(7, 7)


def test_a_message_goes_when_it_is_old_and_counts_as_missing_only_if_nobody_led_since() -> None:
    for led_ns, missing in ((S, 1), (0, 1), (S + 1, 0)):
        window = make_window()
        arrive(window, b"c1", now_ns=S + 1)
        window.expire(S + AGE, led_ns)
        assert len(window) == 1
        window.expire(S + 1 + AGE, led_ns)
        assert len(window) == 0
        released = window.release(S + 2 + AGE, led_ns)
        assert (released.messages, released.missing) == ([], missing)
        assert window.counts.expired == 1


def test_a_leader_that_is_heard_again_has_seen_what_was_let_go() -> None:
    window = make_window()
    arrive(window, b"c1", now_ns=S)
    window.expire(S + AGE, 0)
    assert window.release(S + AGE, S + AGE).missing == 0


def test_without_room_the_oldest_is_only_counted_and_can_still_be_cancelled() -> None:
    room = 3 * (ENTRY_BYTES + message(b"c1", 1000).size_bytes()) + ENTRY_BYTES
    window = make_window(room)
    arrive(window, b"c1", b"c2", b"c3", b"c4", size=1000)
    assert window.counts.overflowed == 1
    append(window, b"c1")
    assert [one.payload[:2] for one in window.release(S, 0).messages] == [b"c2", b"c3", b"c4"]
    arrive(window, b"c1", b"c2", b"c3", b"c4", size=1000)
    released = window.release(S, 0)
    assert len(released.messages) == 3
    assert (released.missing, released.missing_ns) == (1, S)


def test_what_is_in_the_log_goes_first_when_there_is_no_room_and_is_missing_if_it_is_cut() -> None:
    for cut, missing in ((0, 1), (1, 0)):
        window = make_window(2 * (ENTRY_BYTES + message(b"c1", 1000).size_bytes()))
        arrive(window, b"c1", b"c2", size=1000)
        append(window, b"c1")
        arrive(window, b"c3", size=1000)
        window.cut(cut, S)
        released = window.release(S, 0)
        assert len(released.messages) == 2
        assert released.missing == missing
        window.committed(5)
        assert window.held_bytes == 0


def test_an_id_is_held_once_and_what_was_cut_off_is_not_known() -> None:
    window = make_window()
    arrive(window, b"i1", b"i1")
    window.arrive(message(b"i2"), b"i2", S, known=4)
    window.arrive(message(b"i3"), b"i3", S, known=-1)
    assert release(window) == [b"i1"]
    window.cut(3, S)
    window.arrive(message(b"i4"), b"i4", S, known=3)
    assert release(window) == [b"i2", b"i4"]
    append(window, b"c0", b"c1", b"c2", b"c3", b"c4")
    window.arrive(message(b"i5"), b"i5", S, known=3)
    assert release(window) == []


names = st.sampled_from([b"c1", b"c2", b"i1", b"i2"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), names, st.integers(0, 600)),
        st.tuples(st.just("append"), names, st.integers(0, 20)),
        st.tuples(st.just("commit"), st.integers(0, 20)),
        st.tuples(st.just("cut"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(0, AGE // 2)),
        st.tuples(st.just("pay"), names),
        st.tuples(st.just("release"), st.integers(0, AGE)),
    ),
    max_size=60,
)


@given(steps)
def test_bounds_and_counts_hold_whatever_happens(steps: list[tuple[str, ...]]) -> None:
    window = make_window(3000)
    now_ns = 0
    for what, *arguments in steps:
        first: int = arguments[0]  # type: ignore[assignment]
        match what:
            case "arrive":
                window.expire(now_ns, 0)
                arrive(window, arguments[0], now_ns=now_ns, size=int(arguments[1]))  # type: ignore[arg-type]
            case "append":
                window.append(int(arguments[1]), arguments[0], now_ns, recorded_ns=LATER)  # type: ignore[arg-type]
            case "commit":
                window.committed(first)
            case "cut":
                window.cut(first, now_ns)
            case "wait":
                now_ns += first
            case "pay":
                window.pay(message(arguments[0]), arguments[0], now_ns)  # type: ignore[arg-type]
            case _:
                window.release(now_ns, first)
        counts = window.counts
        assert window.held_bytes <= 3000
        assert counts.arrived + counts.returned == (
            counts.cancelled + counts.released + counts.expired + counts.lost + len(window)
        )
    window.release(now_ns + AGE, 0)
    window.expire(now_ns + AGE, 0)
    window.committed(30)
    assert window.held_bytes == 0


class HandClock:
    def monotonic_ns(self) -> int:
        return S

    def unix_ns(self) -> int:
        return LATER


def make_standby(budget: ByteBudget) -> Standby:
    config = StreamConfig(name="s", subject="s")
    intake = Intake(config, next_offset=0, epoch=1, streams_for=lambda _: ())
    return Standby(intake, budget, age_ns=AGE, clock=HandClock(), led_ns=lambda: 0)


def test_what_all_streams_hold_is_bounded() -> None:
    budget = ByteBudget(4000)
    first, second, third = (make_standby(budget) for _ in range(3))
    for standby in (first, second, third):
        standby.arrived([message(b"%d" % n, 400) for n in range(4)])
        assert standby.window.held_bytes <= 2000
        assert budget.held <= 4000
    assert budget.held == sum(one.window.held_bytes for one in (first, second, third))
    first.close()
    second.close()
    third.close()
    assert budget.held == 0


def test_what_a_leader_took_is_held_again_once_it_is_cut_off() -> None:
    standby = make_standby(ByteBudget(1 << 20))
    for base in (0, 2):
        run = MessageRun(base, S, [message(b"%d" % base), message(b"%d" % (base + 1))])
        standby.took(Append([run], 1))
    standby.committed(0)
    standby.stopped()
    assert standby.release().messages == []
    standby.cut(2)
    assert [one.payload for one in standby.release().messages] == [b"2", b"3"]


def test_debts_count_too() -> None:
    window = make_window(10 * DEBT_BYTES)
    append(window, *[b"c%d" % n for n in range(20)])
    assert window.held_bytes == 10 * DEBT_BYTES


def test_what_is_under_way_as_it_begins_is_cancelled() -> None:
    window = Window(AGE, DEBT, held_bytes_max=1 << 20)
    window.present(Instant(S, LATER))
    arrive(window, b"c1", now_ns=S + 1)
    append(window, b"c1", b"c2", recorded_ns=LATER - S)
    arrive(window, b"c2", now_ns=S + 2)
    assert release(window) == []
