"""Portions of work: smaller where they take long, larger again where they do not, within limits."""

from api.jobs.stores.batch_size import Portion


def test_portions_follow_what_the_last_took():
    """Tests that the size is what would have taken as long as one should, from the least to the most."""
    portion = Portion(least=10, most=1000, goal_s=0.1)
    sizes = [portion.size]
    for took_s in (0.05, 0.4, 0.2, 0.05, 100.0, 0.0):
        portion.learn(took_s)
        sizes.append(portion.size)
    assert sizes == [1000, 1000, 250, 125, 250, 10, 1000]
