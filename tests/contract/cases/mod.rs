//! The cases. A case is a function over a [`Lab`]; its name says what holds.

mod breaking;
mod cluster;
mod crowd;
mod doctor;
mod document;
mod etcd_queue;
mod etcd_ways;
mod expiry;
mod fence;
mod foreign;
mod gone;
mod grants;
mod handover;
mod history;
mod hold;
mod kinds;
mod kinds_model;
mod lost_reply;
mod model;
mod mysql;
mod mysql_history;
mod mysql_server;
mod names;
mod permits;
mod postgres;
mod redlock;
mod reentry;
mod refusal;
mod report;
mod residue;
mod run_policy;
mod run_policy_faults;
mod run_policy_sql;
mod sentinel;
mod shared;
mod sql_line;
mod sql_many;
mod sql_servers;
mod sql_sessions;
mod sql_shares;
mod sql_table;
mod tair;
mod tair_shares;
mod transport;
mod unanswered;
mod verify;
mod zookeeper_line;
mod zookeeper_ways;

use std::pin::Pin;

use crate::{lab::Lab, targets::Kind};

/// One case, for the kinds of store that `on` says.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    pub on: fn(Kind) -> bool,
    pub run: for<'a> fn(&'a Lab) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// A list of cases, each named after its function.
macro_rules! cases {
    ($on:expr => $($case:ident),+ $(,)?) => {
        vec![$(crate::cases::Case { name: stringify!($case), on: $on, run: |lab| Box::pin($case(lab)) }),+]
    };
}
pub(crate) use cases;

/// On every kind of store.
fn everywhere(_: Kind) -> bool {
    true
}

pub fn all() -> Vec<Case> {
    [
        hold::all(),
        expiry::all(),
        fence::all(),
        reentry::all(),
        shared::all(),
        kinds::all(),
        kinds_model::all(),
        document::all(),
        permits::all(),
        names::all(),
        report::all(),
        refusal::all(),
        gone::all(),
        handover::all(),
        unanswered::all(),
        verify::all(),
        history::all(),
        breaking::all(),
        run_policy::all(),
        run_policy_faults::all(),
        run_policy_sql::all(),
        sql_line::all(),
        sql_sessions::all(),
        sql_servers::all(),
        zookeeper_line::all(),
        zookeeper_ways::all(),
        lost_reply::all(),
        foreign::all(),
        residue::all(),
        transport::all(),
        redlock::all(),
        postgres::all(),
        sql_shares::all(),
        sql_table::all(),
        sql_many::all(),
        tair::all(),
        tair_shares::all(),
        model::all(),
        mysql::all(),
        mysql_history::all(),
        mysql_server::all(),
        sentinel::all(),
        cluster::all(),
        etcd_queue::all(),
        etcd_ways::all(),
        doctor::all(),
        grants::all(),
        crowd::all(),
    ]
    .concat()
}
