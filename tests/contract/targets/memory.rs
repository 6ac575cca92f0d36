//! The in-memory store, which is the reference.

use async_trait::async_trait;
use dlock::{
    backends::memory::{Memory, MemoryStore},
    lock::{Backend, Namespace},
};

#[derive(Default)]
pub struct Target(MemoryStore);

#[async_trait(?Send)]
impl super::Target for Target {
    async fn open(&self, namespace: &str) -> Box<dyn Backend> {
        Box::new(Memory::new(
            self.0.clone(),
            Namespace::new(namespace).expect("a namespace"),
        ))
    }

    async fn unreachable(&self) -> Box<dyn Backend> {
        self.open("dlock").await
    }

    async fn lose_data(&self) {
        self.0.lose_data();
    }
}
