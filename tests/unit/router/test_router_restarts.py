"""When a failed query is started again."""

from penstock.router.core.restarts import CALM_S, Restarts

SECOND_NS = 1_000_000_000


def test_pauses_double_while_it_keeps_failing_and_start_small_after_calm() -> None:
    restarts, now_ns, pauses = Restarts(), 0, []
    for _ in range(8):
        due_ns = restarts.failed(now_ns)
        pauses.append((due_ns - now_ns) // SECOND_NS)
        now_ns = due_ns
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    now_ns += int((CALM_S + 1) * SECOND_NS)
    assert restarts.failed(now_ns) - now_ns == SECOND_NS
    assert restarts.count == 9
