//! The cases. A case is a function over a [`Lab`]; its name states the expected behaviour.

mod breaking;
mod cluster;
mod dead_waiters;
mod doctor;
mod document;
mod dropped_calls;
mod etcd_access;
mod etcd_queue;
mod expiry;
mod fence;
mod few_connections;
mod foreign;
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
mod redis_access;
mod redlock;
mod reentry;
mod report;
mod residue;
mod run_policy;
mod run_policy_faults;
mod run_policy_sql;
mod sentinel;
mod shared;
mod sql_connections;
mod sql_many;
mod sql_queue;
mod sql_servers;
mod sql_sessions;
mod sql_shares;
mod sql_table;
mod tair;
mod tair_shares;
mod unsupported;
mod verify;
mod waiters;
mod zookeeper_access;
mod zookeeper_queue;

use std::pin::Pin;

use crate::{lab::Lab, targets::Kind};

/// One case, for the kinds of store that `on` accepts.
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

/// Accepts every kind of store.
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
        unsupported::all(),
        dead_waiters::all(),
        handover::all(),
        dropped_calls::all(),
        verify::all(),
        history::all(),
        breaking::all(),
        run_policy::all(),
        run_policy_faults::all(),
        run_policy_sql::all(),
        sql_queue::all(),
        sql_sessions::all(),
        sql_connections::all(),
        few_connections::all(),
        sql_servers::all(),
        zookeeper_queue::all(),
        zookeeper_access::all(),
        lost_reply::all(),
        foreign::all(),
        residue::all(),
        redis_access::all(),
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
        etcd_access::all(),
        doctor::all(),
        grants::all(),
        waiters::all(),
    ]
    .concat()
}
