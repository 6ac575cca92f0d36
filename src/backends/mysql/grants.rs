//! The least rights on the server.

use super::{MysqlOptions, examine::REPLICAS, names::SIDE_TABLES};
use crate::{
    backends::sql::SqlMode,
    lock::{Grants, PASSWORD, Role},
};

/// Returns the least rights for `role`.
pub(super) fn grants(options: &MysqlOptions, role: Role, user: &str) -> Grants {
    let user = format!("'{}'@'%'", user.replace('\'', "''"));
    let table = &options.sql.table;
    let (database, table) = table
        .split_once('.')
        .unwrap_or((options.sql.database.as_deref().unwrap_or("DATABASE"), table));
    let rights = if role.writes() {
        "SELECT, INSERT, UPDATE, DELETE"
    } else {
        "SELECT"
    };
    let mut lines = vec![format!("CREATE USER {user} IDENTIFIED BY '{PASSWORD}';")];
    let (database, table) = (database.replace('`', "``"), table.replace('`', "``"));
    for suffix in [""]
        .into_iter()
        .chain(SIDE_TABLES.map(|(_, suffix)| suffix))
    {
        lines.push(format!(
            "GRANT {rights} ON `{database}`.`{table}{suffix}` TO {user};"
        ));
    }
    let mut notes = vec![
        format!(
            "put a password in the place of {PASSWORD}, and the clients' addresses in the place of %"
        ),
        "run dlock init first, as a user who may create tables".to_owned(),
        format!(
            "on MySQL, dlock doctor sees whether replicas are connected by: GRANT {REPLICAS} TO {user};"
        ),
    ];
    if role == Role::Break && options.sql.mode != SqlMode::Lease {
        notes.push(
            "a holder is asked to stop with these rights; to end the session of one that doesn't, another user takes CONNECTION_ADMIN on *.* as well \
             (CONNECTION ADMIN on MariaDB)"
                .to_owned(),
        );
    }
    Grants {
        text: lines.join("\n") + "\n",
        notes,
    }
}
