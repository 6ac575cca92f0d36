//! A small TCP switch: a fixed address that leads to one server now and to another one later, as a
//! failover behind one name does.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU16, Ordering},
    },
    thread,
};

use super::ports;

#[derive(Default)]
struct State {
    target: AtomicU16,
    over: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

/// The switch, which ends with this value.
pub struct Switch {
    pub port: u16,
    host: IpAddr,
    state: Arc<State>,
}

impl Switch {
    /// Listens on a free port, and leads to this port of this host.
    pub fn to(target: u16) -> Self {
        Self::at((Ipv4Addr::LOCALHOST.into(), ports::free()), target)
    }

    /// As [`Switch::to`], at another address.
    pub fn at((host, port): (IpAddr, u16), target: u16) -> Self {
        let listener = TcpListener::bind((host, port)).expect("a free port");
        let state = Arc::new(State {
            target: target.into(),
            ..State::default()
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if shared.over.load(Ordering::SeqCst) {
                    break;
                }
                shared.serve(&client);
            }
        });
        Self { port, host, state }
    }

    /// Leads new connections to another server. The open ones stay with the old one.
    pub fn turn(&self, target: u16) {
        self.state.target.store(target, Ordering::SeqCst);
    }

    /// Cuts all open connections.
    pub fn cut(&self) {
        for stream in self
            .state
            .open
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.cut();
        // Wakes the blocked accept.
        let _ = TcpStream::connect((self.host, self.port));
    }
}

impl State {
    fn serve(&self, client: &TcpStream) {
        let Ok(server) =
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.target.load(Ordering::SeqCst)))
        else {
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for (from, to) in [(client, &server), (&server, client)] {
            let (Ok(mut from), Ok(mut to), Ok(kept)) =
                (from.try_clone(), to.try_clone(), from.try_clone())
            else {
                return;
            };
            open.push(kept);
            thread::spawn(move || {
                let _ = io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }
}
