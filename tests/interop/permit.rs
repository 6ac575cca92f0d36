//! A permit beside the locks of other libraries: to all of them somebody has the lock alone.

use std::time::Duration;

use ::dlock::lock::{Attempt, Backend, Key, Mode, Namespace, Release, Request, Scope, Ttl};
use tokio::runtime::{Builder, Runtime};

/// Who asks a store for one of two permits, by way of the library.
pub struct Asker {
    runtime: Runtime,
    backend: Box<dyn Backend>,
    request: Request,
}

impl Asker {
    pub fn new(make: impl FnOnce(Namespace) -> Box<dyn Backend>, namespace: &str, key: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let backend = runtime.block_on(async { make(Namespace::new(namespace).unwrap()) });
        let request = Request {
            ttl_asked: false,
            mode: Mode::Permits(2),
            ..Request::new(Key::new(key).unwrap(), Ttl::new(Duration::from_secs(60)).unwrap())
        };
        Self { runtime, backend, request }
    }

    /// Takes it; false if somebody else has the lock.
    pub fn takes(&mut self) -> bool {
        match self.runtime.block_on(self.backend.try_acquire(&self.request)).unwrap() {
            Attempt::Granted(grant) => {
                assert_eq!(grant.permit, Some(0));
                true
            }
            Attempt::Busy(busy) => {
                assert!(busy.holders.iter().all(|holder| holder.foreign), "{busy:?}");
                false
            }
            other => panic!("{other:?}"),
        }
    }

    pub fn gives_back(&mut self) {
        let parting = Scope::Tree.into();
        let released = self.backend.release(&self.request.key, &self.request.token, &parting);
        assert_eq!(self.runtime.block_on(released).unwrap(), Release::Released);
    }
}
