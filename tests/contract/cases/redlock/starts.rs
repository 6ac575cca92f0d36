//! Run records on nodes that missed a part.

use dlock::lock::{Rule, RunState};

use super::{
    super::{
        Case, cases,
        run_policy::{WINDOW, asking, kept, once},
    },
    Fronts, HASTY, held_on,
};
use crate::{
    lab::{LONG, Lab, key, request},
    support::proxy::Mode,
    targets::Kind,
};

pub fn all() -> Vec<Case> {
    cases![|kind| kind == Kind::Redlock =>
        nodes_that_missed_an_end_deny_no_run,
        a_start_known_to_a_minority_was_never_granted,
        a_start_that_a_majority_may_know_counts,
    ]
}

async fn nodes_that_missed_an_end_deny_no_run(lab: &Lab) {
    let mut fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let wanted = asking("job", &once(WINDOW, 1, false));
    a.take(&wanted).await;
    for n in [0, 1] {
        fronts.0[n].set(Mode::Refuse);
    }
    a.end_run(&wanted, RunState::Failed).await;
    for n in [0, 1] {
        // The lease on this node is over.
        lab.redlock()[n].command(&["DEL", "dlock:job"]);
    }
    // One node that knows the end is cut off, so the others need nodes that missed the end for a
    // majority.
    fronts.0[4].set(Mode::Refuse);
    for n in [0, 1] {
        fronts.0[n].set(Mode::Pass);
    }
    let mut b = fronts.client(HASTY).await;
    let again = asking("job", &once(WINDOW, 1, false));
    b.take(&again).await;
    b.end_run(&again, RunState::Failed).await;
    assert_eq!(
        b.denied(&asking("job", &once(WINDOW, 1, false))).await.rule,
        Rule::Once(RunState::Failed)
    );
}

async fn a_start_known_to_a_minority_was_never_granted(lab: &Lab) {
    let mut a = lab.client().await;
    for n in [1, 3] {
        let begun = [
            "os",
            "1700000000000",
            "of",
            "9999999999",
            "ox",
            "started",
            "on",
            "1",
            "ow",
            "999999999999999",
            "om",
            "",
            "oh",
            "x",
        ];
        let cooldown = [
            "ps",
            "99999999999999",
            "pf",
            "9999999999",
            "pp",
            "b",
            "pg",
            "1",
            "pl",
            "999999999999999",
            "pm",
            "",
            "ph",
            "x",
        ];
        lab.redlock()[n]
            .command(&[&["HSET", "dlock:{dlock:job}:starts"], &begun[..], &cooldown].concat());
    }
    let wanted = asking("job", &once(WINDOW * 1_000_000, 0, false));
    a.take(&wanted).await;
    a.end_run(&wanted, RunState::Ok).await;
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 0, false))).await.rule,
        Rule::Once(RunState::Ok)
    );
}

async fn a_start_that_a_majority_may_know_counts(lab: &Lab) {
    let mut fronts = Fronts::of(lab);
    let mut a = fronts.client(HASTY).await;
    let wanted = asking("job", &once(WINDOW, 0, false));
    a.run(&wanted, RunState::Ok).await;
    a.run(&asking("other", &kept(WINDOW)), RunState::Ok).await;
    for n in 0..2 {
        lab.redlock()[n].command(&["FLUSHALL"]);
    }
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 0, false))).await.rule,
        Rule::Once(RunState::Ok),
        "3 of 5 know"
    );
    lab.redlock()[2].command(&["FLUSHALL"]);
    fronts.0[2].set(Mode::Refuse);
    assert_eq!(
        a.denied(&asking("job", &once(WINDOW, 0, false))).await.rule,
        Rule::Once(RunState::Ok),
        "two know, one may"
    );
    assert_eq!(
        a.denied(&request(&key("other"), LONG)).await.rule,
        Rule::AtLeast(WINDOW)
    );
    assert_eq!(held_on(lab), 0, "a denied run leaves a key");
}
