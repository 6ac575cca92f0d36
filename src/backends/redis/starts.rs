//! The run record on Redis, and the scripts' denials because of it.

use std::time::Duration;

use redis::Value;

use super::{failure, reply, script::flag};
use crate::lock::{
    Cooldown, Denial, Fence, LastRun, Metadata, Once, Replaced, Result, Rule, RunPolicy, RunRecord,
    RunState, whole_ms,
};

/// Returns the arguments for `read_terms` in `common.lua`.
pub(in crate::backends) fn arguments(run_policy: Option<&RunPolicy>) -> [String; 6] {
    let Some(run_policy) = run_policy else {
        return Default::default();
    };
    let ms = |length: Option<Duration>| {
        length
            .map(|length| whole_ms(length).to_string())
            .unwrap_or_default()
    };
    let of_once =
        |tell: fn(&Once) -> String| run_policy.once.as_ref().map(tell).unwrap_or_default();
    [
        run_policy.place.clone(),
        ms(run_policy.skew_guard),
        ms(run_policy.at_least),
        of_once(|once| whole_ms(once.window).to_string()),
        of_once(|once| once.retry_failed.to_string()),
        if run_policy.anyway {
            "anyway".to_owned()
        } else {
            of_once(|once| flag(once.retry_crashed).to_owned())
        },
    ]
}

/// Reads the values after the word "refused".
pub(in crate::backends) fn read_refusal(rest: &[Value]) -> Result<Denial> {
    let [rule, what, fence, age, left, who] = rest else {
        return Err(failure::unreadable());
    };
    let text = |value: &Value| reply::text(value).ok_or_else(failure::unreadable);
    let length = || {
        reply::int(what)
            .and_then(|ms| u64::try_from(ms).ok())
            .map(Duration::from_millis)
            .ok_or_else(failure::unreadable)
    };
    let ms = |value: &Value| {
        reply::int(value)
            .and_then(|ms| u64::try_from(ms).ok())
            .map(Duration::from_millis)
    };
    Ok(Denial {
        rule: match &*text(rule)? {
            "skew-guard" => Rule::SkewGuard(length()?),
            "at-least" => Rule::AtLeast(length()?),
            "once" => Rule::Once(RunState::from(&*text(what)?)),
            _ => return Err(failure::unreadable()),
        },
        fence: reply::int(fence)
            .and_then(|fence| u64::try_from(fence).ok())
            .map(Fence),
        began: ms(age),
        again_in: ms(left),
        metadata: serde_json::from_str(&text(who)?).ok(),
    })
}

/// Reads the run record from its hash.
pub(in crate::backends) fn read_record(fields: &[(String, String)]) -> RunRecord {
    let of = |name: &str| {
        fields
            .iter()
            .find(|(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    };
    let number = |name: &str| of(name).and_then(|value| value.parse::<u64>().ok());
    let who = |name: &str| -> Option<Metadata> {
        of(name).and_then(|json| serde_json::from_str(json).ok())
    };
    let cooldown = |prefix: &str| {
        let named = |name: &str| format!("{prefix}{name}");
        Some(Cooldown {
            at_ms: number(&named("s"))?,
            fence: Fence(number(&named("f"))?),
            place: of(&named("p"))?.to_owned(),
            guard_ms: number(&named("g")).unwrap_or_default(),
            at_least_ms: number(&named("l")).unwrap_or_default(),
            metadata: who(&named("m")),
            hold: of(&named("h")).unwrap_or_default().to_owned(),
        })
    };
    let start = |prefix: &str| {
        let named = |name: &str| format!("{prefix}{name}");
        Some(LastRun {
            at_ms: number(&named("s"))?,
            fence: Fence(number(&named("f"))?),
            state: RunState::from(of(&named("x"))?),
            tries: number(&named("n"))
                .and_then(|tries| u32::try_from(tries).ok())
                .unwrap_or(1),
            window_ms: number(&named("w")).unwrap_or_default(),
            metadata: who(&named("m")),
            hold: of(&named("h")).unwrap_or_default().to_owned(),
        })
    };
    let replaced = Replaced {
        cooldown: cooldown("b").map(Box::new),
        start: start("q").map(Box::new),
        success: start("k").map(Box::new),
    };
    RunRecord {
        cooldown: cooldown("p"),
        start: start("o"),
        replaced,
    }
}
