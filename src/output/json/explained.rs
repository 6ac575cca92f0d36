//! The object of `explain`.

use serde::Serialize;

use super::{DeniedReport, HolderReport, ReportHead, head};
use crate::{
    exit,
    output::{
        Now,
        doctor::Source,
        explain::{Explained, Prediction},
    },
};

/// `explain`.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct ExplainedReport<'a> {
    #[serde(flatten)]
    head: ReportHead,
    key: &'a str,
    backend: &'a str,
    stored_as: &'a str,
    /// `run`, `wait` or `skip`.
    would: &'static str,
    reason: Option<String>,
    holders: Vec<HolderReport<'a>>,
    refused: Option<DeniedReport<'a>>,
    settings: &'a [Source],
}

impl<'a> ExplainedReport<'a> {
    /// Reports what a run would do.
    pub fn new(explained: &Explained<'a>, now: &Now) -> Self {
        let (holders, refused) = match explained.would {
            Prediction::Run | Prediction::After(..) => (Vec::new(), None),
            Prediction::Held(_, holders) => (
                holders
                    .iter()
                    .map(|holder| HolderReport::new(holder, now))
                    .collect(),
                None,
            ),
            Prediction::Denied(_, denial, option) => {
                (Vec::new(), Some(DeniedReport::new(denial, option, now)))
            }
        };
        Self {
            head: head("ok", exit::OK),
            key: explained.key.as_str(),
            backend: explained.store,
            stored_as: explained.stored_as,
            would: explained.verb(),
            reason: explained.why(),
            holders,
            refused,
            settings: explained.settings,
        }
    }
}
