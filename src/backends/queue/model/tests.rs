//! The model with all precautions, and without one of them.

use super::*;

impl QueueModel {
    /// Shows that this model does not have the property.
    #[track_caller]
    fn fails(self, property: &'static str) {
        self.checker()
            .finish_when(HasDiscoveries::AllOf([property].into()))
            .spawn_bfs()
            .join()
            .assert_any_discovery(property);
    }
}

#[test]
fn model_of_a_queue_that_is_watched_from_the_look_on() {
    let checked = RULE.checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(
        checked.unique_state_count() > 10_000,
        "{}",
        checked.unique_state_count()
    );
}

#[test]
fn model_of_a_queue_that_is_watched_and_compared() {
    QueueModel {
        watching: WatchStart::AndCompare,
        ..RULE
    }
    .checker()
    .spawn_bfs()
    .join()
    .assert_properties();
}

#[test]
fn model_of_watches_that_begin_too_late() {
    QueueModel {
        watching: WatchStart::Later,
        ..RULE
    }
    .fails("none is stuck");
}

#[test]
fn model_of_watches_that_are_lost_unnoticed() {
    RULE.without(Precaution::LookAgain).fails("none is stuck");
}

#[test]
fn model_of_a_queue_monitor_that_compares_nothing() {
    RULE.without(Precaution::CompareRecord)
        .fails("holds go together");
}

#[test]
fn model_of_permits_that_are_not_counted_again() {
    RULE.without(Precaution::ComparePermits)
        .fails("holds go together");
}

#[test]
fn model_of_a_departure_that_is_taken_for_a_release() {
    RULE.without(Precaution::CompareRelease)
        .fails("holds go together");
}
