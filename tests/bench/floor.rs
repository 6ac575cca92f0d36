//! The least that a lock on Redis can cost: one socket, SET NX, the command, and a script that compares and deletes.
//! It renews nothing and kills nothing.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
    process::{self, Command},
};

const KEY: &str = "floor";
const GIVE_BACK: &str = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// Runs `command` under the lock and ends this process with its status.
pub fn run(port: &str, command: &[&str]) {
    let port: u16 = port.parse().expect("a port");
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server");
    server.set_nodelay(true).expect("nodelay");
    let token = process::id().to_string();
    assert_eq!(ask(&mut server, &["SET", KEY, &token, "NX", "PX", "60000"]), b"+OK\r\n", "the lock is held");
    let status = Command::new(command[0]).args(&command[1..]).status().expect("the command");
    assert_eq!(ask(&mut server, &["EVAL", GIVE_BACK, "1", KEY, &token]), b":1\r\n", "the lock was lost");
    #[allow(clippy::exit, reason = "it ends as the command did")]
    process::exit(status.code().unwrap_or(1));
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
