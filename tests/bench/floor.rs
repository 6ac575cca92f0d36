//! The least that a lock on a store can cost: log in, one request for the lock, the command, one
//! request for the release. This program neither renews the lease nor kills the command.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::{self, Command},
};

use sqlx::{Connection as _, MySqlConnection};

const KEY: &str = "floor";
const GIVE_BACK: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// The table of the SQL floors.
pub const TABLE: &str = "CREATE TABLE floor (name varchar(64) PRIMARY KEY, owner varchar(64), lock_until timestamp NOT NULL)";

/// Runs `command` under the lock on the server at `address`, and ends this process with its status.
pub fn run(store: &str, address: &str, command: &[&str]) {
    let status = match store {
        "redis" => on_redis(address, command),
        "postgres" => on_a_runtime(on_postgres(address, command)),
        _ => on_a_runtime(on_mariadb(address, command)),
    };
    #[allow(clippy::exit, reason = "it ends as the command did")]
    process::exit(status);
}

fn spawn(command: &[&str]) -> i32 {
    Command::new(command[0])
        .args(&command[1..])
        .status()
        .expect("the command")
        .code()
        .unwrap_or(1)
}

fn on_a_runtime<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work)
}

fn on_redis(port: &str, command: &[&str]) -> i32 {
    let port: u16 = port.parse().expect("a port");
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server");
    server.set_nodelay(true).expect("nodelay");
    let token = process::id().to_string();
    assert_eq!(
        ask(&mut server, &["SET", KEY, &token, "NX", "PX", "60000"]),
        b"+OK\r\n",
        "the lock is held"
    );
    let status = spawn(command);
    assert_eq!(
        ask(&mut server, &["EVAL", GIVE_BACK, "1", KEY, &token]),
        b":1\r\n",
        "the lock was lost"
    );
    status
}

fn ask(server: &mut TcpStream, words: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    server.write_all(request.as_bytes()).expect("a request");
    let mut reply = [0; 256];
    let length = server.read(&mut reply).expect("a reply");
    reply[..length].to_vec()
}

async fn on_postgres(url: &str, command: &[&str]) -> i32 {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls)
        .await
        .expect("the server");
    tokio::spawn(connection);
    let token = process::id();
    let take = format!(
        "INSERT INTO floor VALUES ('{KEY}', '{token}', now() + interval '60 s') ON CONFLICT (name) DO UPDATE \
         SET owner = excluded.owner, lock_until = excluded.lock_until WHERE floor.lock_until <= now()"
    );
    let changed = |messages: Vec<tokio_postgres::SimpleQueryMessage>| {
        messages.iter().any(|message| {
            matches!(
                message,
                tokio_postgres::SimpleQueryMessage::CommandComplete(1)
            )
        })
    };
    assert!(
        changed(client.simple_query(&take).await.expect("an answer")),
        "the lock is held"
    );
    let status = spawn(command);
    let give_back =
        format!("UPDATE floor SET lock_until = now() WHERE name = '{KEY}' AND owner = '{token}'");
    assert!(
        changed(client.simple_query(&give_back).await.expect("an answer")),
        "the lock was lost"
    );
    status
}

async fn on_mariadb(url: &str, command: &[&str]) -> i32 {
    let mut server = MySqlConnection::connect(url).await.expect("the server");
    let token = process::id();
    let take = format!(
        "INSERT INTO floor VALUES ('{KEY}', '{token}', now() + interval 60 second) ON DUPLICATE KEY UPDATE \
         owner = if(lock_until <= now(), '{token}', owner), \
         lock_until = if(owner = '{token}', now() + interval 60 second, lock_until)"
    );
    let taken = sqlx::raw_sql(sqlx::AssertSqlSafe(take))
        .execute(&mut server)
        .await
        .expect("an answer");
    assert!(taken.rows_affected() > 0, "the lock is held");
    let status = spawn(command);
    let give_back = format!(
        "UPDATE floor SET owner = NULL, lock_until = now() WHERE name = '{KEY}' AND owner = '{token}'"
    );
    let given = sqlx::raw_sql(sqlx::AssertSqlSafe(give_back))
        .execute(&mut server)
        .await
        .expect("an answer");
    assert_eq!(given.rows_affected(), 1, "the lock was lost");
    status
}
