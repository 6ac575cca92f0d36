//! Servers whose answers never end: dlock stays small, and says that the store is the reason.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Stdio,
    thread,
    time::Duration,
};

use crate::support::{dlock, process::Process};

/// The most memory that dlock may take, in KiB.
const MOST: u64 = 64 << 10;

/// Listens, answers each of the first requests of a connection with one of `answers`, then
/// `forever` again and again.
fn server(answers: &'static [&'static [u8]], forever: &'static [u8]) -> u16 {
    server_that_greets(b"", answers, forever)
}

/// As [`server`], with a message that comes before any request.
fn server_that_greets(
    greeting: &'static [u8],
    answers: &'static [&'static [u8]],
    forever: &'static [u8],
) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move |mut client: TcpStream| -> std::io::Result<()> {
        let mut request = [0; 4096];
        client.write_all(greeting)?;
        for answer in answers {
            if client.read(&mut request)? == 0 {
                return Ok(());
            }
            client.write_all(answer)?;
        }
        let many = forever.repeat((64 << 10) / forever.len() + 1);
        // At most a gigabyte, so that the test ends.
        (0..16 << 10).try_for_each(|_| client.write_all(&many))
    };
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            thread::spawn(move || drop(serve(client)));
        }
    });
    port
}

/// Returns the largest resident size of a running process, in KiB.
fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?
        .trim()
        .strip_suffix(" kB")?
        .parse()
        .ok()
}

/// Lists the locks, and returns what dlock says.
#[track_caller]
fn assert_small(url: &str) -> String {
    let mut command = dlock::command();
    command
        .args(["list", "--backend-timeout", "2s"])
        .env("DLOCK_BACKEND", url)
        .env("DLOCK_PASSWORD", "pw")
        .stdin(Stdio::null());
    let mut process = Process::collect(command);
    let mut most = 0;
    while !process.has_ended() {
        most = most.max(peak(process.pid()).unwrap_or_default());
        thread::sleep(Duration::from_millis(2));
    }
    let ended = process.wait(dlock::LIMIT);
    assert!(
        matches!(ended.code(), 65 | 69 | 78),
        "{url}: {} {}",
        ended.code(),
        ended.stderr
    );
    assert!((1..MOST).contains(&most), "{url}: {most} KiB");
    ended.stderr
}

#[test]
fn a_long_text_of_redis() {
    assert_small(&format!(
        "redis://127.0.0.1:{}",
        server(&[b"$536870912\r\n"], b"x")
    ));
}

#[test]
fn many_values_of_redis() {
    assert_small(&format!(
        "redis://127.0.0.1:{}",
        server(&[b"*500000000\r\n"], b":1\r\n")
    ));
    assert_small(&format!("redis://127.0.0.1:{}", server(&[b""], b"*1\r\n")));
}

/// What PostgreSQL says after a login, and of a result with one column.
const LOGIN: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
const COLUMN: &[u8] = b"T\0\0\0\x1a\0\x01x\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";

#[test]
fn a_long_message_of_postgresql() {
    assert_small(&format!(
        "postgres://u@127.0.0.1:{}/d?sslmode=disable",
        server(&[b"R\x20\0\0\0"], b"x")
    ));
    // Many rows of one answer, after the login.
    assert_small(&format!(
        "postgres://u@127.0.0.1:{}/d?sslmode=disable",
        server(&[LOGIN, COLUMN], b"D\0\0\0\x0a\0\x01\xff\xff\xff\xff")
    ));
}

/// The greeting of MySQL, how it accepts a login, and how a result with one column begins.
const GREETING: &[u8] = b"\x52\0\0\0\x0a11.4.2-MariaDB\0\x07\0\0\0nonce678\0\0\x82\x2d\x02\0\x08\x01\x15\0\0\0\0\0\0\0\0\0\0nonce1234567\0mysql_native_password\0";
const ACCEPTED: &[u8] = b"\x07\0\0\x02\0\0\0\x02\0\0\0";
const RESULT: &[u8] =
    b"\x01\0\0\x01\x01\x17\0\0\x02\x03def\0\0\0\x01a\0\x0c\x3f\0\xff\0\0\0\xfd\0\0\0\0\0";

#[test]
fn a_long_answer_of_mysql() {
    for (answers, forever) in [
        // A message of many packets, endless results without rows, and endless rows.
        (&[ACCEPTED][..], &b"\xff\xff\xff\0"[..]),
        (&[ACCEPTED], b"\x07\0\0\x01\0\0\0\x0a\0\0\0"),
        (&[ACCEPTED, RESULT], b"\x01\0\0\x03\xfb"),
        (&[ACCEPTED, RESULT], b"\x04\0\0\x03\x03abc"),
        // More columns than memory has room for, and a login that never ends.
        (&[ACCEPTED, b"\x09\0\0\x01\xfe\0\0\0\0\0\x01\0\0"], b"x"),
        (&[], b"\xff\xff\xff\x02"),
        (&[], b"\x02\0\0\x02\x01\x03"),
    ] {
        assert_small(&format!(
            "mysql://u@127.0.0.1:{}/d?ssl-mode=DISABLED",
            server_that_greets(GREETING, answers, forever)
        ));
    }
    assert_small(&format!(
        "mysql://u@127.0.0.1:{}/d",
        server_that_greets(b"\xff\xff\xff\0", &[], b"x")
    ));
}

#[test]
fn a_long_frame_of_zookeeper() {
    const GREETING: &[u8] =
        b"\0\0\0\x25\0\0\0\0\0\0\x17\x70\0\0\0\0\0\0\0\x07\0\0\0\x10sixteen bytes ok\0";
    assert_small(&format!(
        "zookeeper://u@127.0.0.1:{}",
        server(&[GREETING, b"\x20\0\0\0"], b"x")
    ));
}

#[test]
fn a_long_frame_of_etcd() {
    // Frames of HTTP/2: empty settings, then one of data that is as long as a frame can be.
    assert_small(&format!(
        "etcd://u@127.0.0.1:{}",
        server(&[b"\0\0\0\x04\0\0\0\0\0"], b"\xff\xff\xff\0\0\0\0\0\x01")
    ));
}

/// The answer to a whole request says that it has two gigabytes.
#[test]
fn a_long_message_of_etcd() {
    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
    // The status, and the type of the content; then a message that is not compressed.
    const HEADERS: &[u8] = b"\0\0\x13\x01\x04\0\0\0\x01\x88\x5f\x10application/grpc";
    const MESSAGE: &[u8] = b"\0\0\x05\0\0\0\0\0\x01\0\x7f\xff\xff\xff";
    const REST: &[u8] = b"\0\0\x08\0\0\0\0\0\x01abcdefgh";
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = |mut client: TcpStream| -> std::io::Result<()> {
        client.write_all(SETTINGS)?;
        client.read_exact(&mut [0; 24])?;
        loop {
            let mut head = [0; 9];
            client.read_exact(&mut head)?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            client.read_exact(&mut vec![0; usize::try_from(length).unwrap()])?;
            // The request's data, and its end.
            if head[3] == 0 && head[4] & 1 == 1 {
                break;
            }
        }
        client.write_all(&[HEADERS, MESSAGE].concat())?;
        let many = REST.repeat(4096);
        (0..16 << 10).try_for_each(|_| client.write_all(&many))
    };
    thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            thread::spawn(move || drop(serve(client)));
        }
    });
    let stderr = assert_small(&format!("etcd://u@127.0.0.1:{port}"));
    assert!(stderr.contains("is longer than"), "{stderr}");
}

/// A service that has other rules than the store.
#[test]
fn an_unknown_error_is_the_stores() {
    for error in [
        "-ERR command 'evalsha' is not allowed\r\n",
        "-WHAT is this\r\n",
        "-\r\n",
    ] {
        let port = server(
            Box::leak(vec![error.as_bytes(); 4].into_boxed_slice()),
            error.as_bytes(),
        );
        let ended = dlock::run(
            &format!("redis://127.0.0.1:{port}"),
            &["run", "--backend-timeout", "1s", "-k", "j", "--", "true"],
        );
        assert!(
            matches!(ended.code(), 65 | 69 | 78),
            "{error}: {} {}",
            ended.code(),
            ended.stderr
        );
        assert!(!ended.stderr.contains("bug"), "{}", ended.stderr);
    }
}
