//! The memory store has no settings that could be wrong.

use async_trait::async_trait;

use super::MemoryClient;
use crate::lock::{Admin, Check, Finding, Grants, Result, Role, ServerTime, check};

const CHECKS: &[Check] = &[check("process", "what its locks end with")];

#[async_trait(?Send)]
impl Admin for MemoryClient {
    fn checks(&self) -> Vec<Check> {
        CHECKS.to_vec()
    }

    async fn examine(&mut self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::ok(
            "process",
            "locks are this process's alone, and end with it",
        )])
    }

    async fn clocks(&mut self) -> Result<Vec<ServerTime>> {
        Ok(Vec::new())
    }

    fn grants(&self, _: Role) -> Grants {
        Grants {
            text: String::new(),
            notes: vec!["it takes no rights".into()],
        }
    }
}
