//! What a run's end leaves behind: the real verdicts and the real document, with every order of the
//! steps of three runs of one job.
//!
//! **What it shows.** A run is not repeated by a rule that forbids it. A cancelled start puts back
//! what it replaced. Only what a command did by itself is recorded as done, and is never taken
//! back. A record outlives its hold, and each run has one history entry.
//!
//! **The model.** The first run follows the rules of `--once`, the second may repeat an unknown
//! outcome, the third runs anyway. A request reaches the store at any time or never, and its answer
//! may be lost. A run that takes no more steps is dead. A lease ends at any time unless its command runs.

use std::time::Duration;

use stateright::{Checker, HasDiscoveries, Model, Property};
use uuid::Uuid;

use super::{CommandEnd, Disturbance, Fate, outcome};
use crate::lock::{
    Attempt, Fence, Key, LastRun, Once, Release, ReleaseInfo, Request, RunPolicy, RunRecord,
    RunState, Scope, Token, Ttl,
    document::{Document, RequestContext},
};

const RUNS: usize = 3;
const RETRIES: usize = 1;
const ANYWAY: usize = 2;
const LEASE_MS: u64 = 1000;
/// The most grants, and so the most leases that end.
const GRANTS: u64 = 3;

/// What is true of a run, whatever dlock knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Truth {
    Done,
    Failed,
    Unknown,
}

/// How a command that was executed ends, if dlock lives: one row for each kind of record.
const ENDS: [(Fate, Disturbance, Truth); 3] = [
    (
        Fate::Ended(CommandEnd::Exited(0)),
        Disturbance::Lost,
        Truth::Done,
    ),
    (
        Fate::Ended(CommandEnd::Exited(3)),
        Disturbance::None,
        Truth::Failed,
    ),
    (
        Fate::Stopped(CommandEnd::Exited(0)),
        Disturbance::Lost,
        Truth::Unknown,
    ),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ModelRun {
    Out,
    /// The request is on its way, or its answer was lost.
    Asks,
    /// The run gives up before it knows of a grant.
    Undoes,
    Granted(u64),
    Runs(u64),
    /// The release is on its way; the row of [`ENDS`], or none if nothing was executed.
    Releases(Option<usize>),
    /// Killed with its command.
    Dead,
}

/// A run whose command was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Executed {
    fence: u64,
    /// None while the command runs.
    truth: Option<Truth>,
    /// The store has recorded that it is done.
    is_recorded: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct RunsModelState {
    now: u64,
    document: Option<String>,
    runs: [ModelRun; RUNS],
    grants: u64,
    /// What other runs had left before the last grant.
    before: String,
    executed: Vec<Executed>,
    /// The fences in the history.
    history: Vec<u64>,
    /// What must not be.
    wrong: Option<&'static str>,
    /// A cancelled start put an earlier one back.
    has_put_back: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum RunStep {
    /// A request arrives; the flag says whether its answer is heard.
    Ask(usize, bool),
    GiveUp(usize),
    Execute(usize),
    NotExecuted(usize),
    End(usize, usize),
    /// A release arrives, perhaps again.
    Release(usize),
    /// dlock and its command are killed.
    Die(usize),
    Expire,
}

/// The verdicts and rules.
#[derive(Clone, Copy)]
struct RunsModel {
    /// A start under which nothing was executed is recorded as cancelled.
    cancels: bool,
    /// A command that ended after dlock's TERM is not known to have done its work.
    doubts: bool,
}

const RULE: RunsModel = RunsModel {
    cancels: true,
    doubts: true,
};

fn request(nth: usize) -> Request {
    let nth_u8 = u8::try_from(nth).unwrap();
    let token = Token {
        owner: Uuid::from_u128(nth_u8.into()),
        hold: nth_u8.into(),
        session: None,
        kept_by_run: false,
    };
    let once = Once {
        window: Duration::from_secs(3600),
        retry_failed: 9,
        retry_crashed: nth == RETRIES,
    };
    let run_policy = RunPolicy {
        place: "web1".into(),
        skew_guard: None,
        at_least: None,
        once: Some(once),
        anyway: nth == ANYWAY,
    };
    Request {
        token,
        run_policy: Some(run_policy),
        ..Request::new(
            Key::new("job").unwrap(),
            Ttl::new(Duration::from_millis(LEASE_MS)).unwrap(),
        )
    }
}

/// Returns the success by which later runs are judged.
fn success(record: &RunRecord) -> Option<&LastRun> {
    let start = record.start.as_ref()?;
    if start.state == RunState::Ok {
        Some(start)
    } else {
        record.replaced.success.as_deref()
    }
}

/// Returns what other runs than that of this hold left, by which later runs are judged.
fn judged(record: &RunRecord, own: &str) -> String {
    let is_own = |start: &LastRun| start.hold == own && start.state == RunState::Started;
    let record = match &record.start {
        Some(start) if is_own(start) => RunRecord {
            start: record.replaced.start.as_deref().cloned(),
            ..record.clone()
        },
        _ => record.clone(),
    };
    serde_json::to_string(&(&record.cooldown, &record.start, success(&record))).unwrap()
}

impl RunsModelState {
    fn document(&self) -> Document {
        Document::read(self.document.as_deref()).unwrap()
    }

    fn step<T>(&mut self, step: impl FnOnce(&mut Document, u64) -> T) -> T {
        let mut document = self.document();
        let done = step(&mut document, self.now);
        for entry in document.take_ended() {
            let fence = entry.fence.unwrap().0;
            if self.history.contains(&fence) {
                self.wrong = Some("a run has two history entries");
            }
            self.history.push(fence);
        }
        self.history.sort_unstable();
        document.take_wake_ups(None);
        self.document = document.write();
        done
    }

    fn executed(&mut self, fence: u64) -> Option<&mut Executed> {
        self.executed.iter_mut().find(|run| run.fence == fence)
    }

    fn truth(&self, fence: Fence) -> Option<Truth> {
        let run = self.executed.iter().find(|run| run.fence == fence.0)?;
        run.truth
    }

    fn holds(&self, nth: usize) -> bool {
        self.document().fence(&request(nth).token).is_some()
    }

    fn ask(&mut self, nth: usize, is_heard: bool) -> bool {
        let request = request(nth);
        let moment = RequestContext {
            now: self.now,
            outside: None,
            fence: Fence(self.grants + 1),
        };
        let own = request.token.hold_text();
        let before = judged(self.document().run_record(), &own);
        let attempt = self
            .step(|document, _| document.acquire(&request, &moment))
            .unwrap();
        let Attempt::Granted(grant) = attempt else {
            return false;
        };
        if grant.fence == moment.fence {
            (self.grants, self.before) = (self.grants + 1, before);
        }
        self.runs[nth] = if is_heard {
            ModelRun::Granted(grant.fence.0)
        } else {
            ModelRun::Asks
        };
        self.grants <= GRANTS
    }

    /// Checks that the rules let this run follow the earlier ones.
    fn execute(&mut self, nth: usize, fence: u64) {
        let last = self.executed.last().and_then(|run| run.truth);
        let is_repeated = match nth {
            ANYWAY => false,
            RETRIES => last == Some(Truth::Done) && self.executed.last().unwrap().is_recorded,
            _ => last.is_some_and(|truth| truth != Truth::Failed),
        };
        if is_repeated || nth != ANYWAY && self.executed.iter().any(|run| run.is_recorded) {
            self.wrong = Some("a run was repeated");
        }
        self.executed.push(Executed {
            fence,
            truth: None,
            is_recorded: false,
        });
    }

    fn release(&mut self, nth: usize, info: &ReleaseInfo) {
        let token = request(nth).token;
        let before = self.before.clone();
        let fence = self.document().fence(&token);
        let (answer, after) = self.step(|document, now| {
            let answer = document.release(&token, info, now);
            (answer, document.run_record().clone())
        });
        if answer != Release::Released {
            return;
        }
        match info.run_state {
            Some(RunState::Ok) => self.executed(fence.unwrap().0).unwrap().is_recorded = true,
            Some(RunState::Cancelled) => {
                if judged(&after, &token.hold_text()) != before {
                    self.wrong = Some("a cancelled start left a trace");
                }
                self.has_put_back |= after.start.is_some();
            }
            _ => {}
        }
    }

    /// Whether the record tells the truth of the runs that it names, and denies what may be done.
    fn is_true(&self, record: &RunRecord) -> bool {
        let says = |start: &LastRun, state, truth| {
            start.state != state || self.truth(start.fence) == Some(truth)
        };
        let starts = [record.start.as_ref(), success(record)];
        let is_true = starts.into_iter().flatten().all(|start| {
            says(start, RunState::Ok, Truth::Done) && says(start, RunState::Failed, Truth::Failed)
        });
        let open = |start: &LastRun| matches!(start.state, RunState::Started | RunState::Unknown);
        let denies = success(record).is_some() || record.start.as_ref().is_some_and(open);
        let is_kept = match self.executed.last() {
            None => true,
            Some(last) if last.truth == Some(Truth::Failed) => record.start.is_some(),
            Some(_) => denies,
        };
        is_true && is_kept
    }

    /// Checks what must be true after each step.
    fn check(&mut self) {
        let document = self.document();
        let record = document.run_record();
        let is_over = |run: &Executed| {
            document.fences().any(|fence| fence.0 == run.fence) || self.history.contains(&run.fence)
        };
        let checks = [
            (self.is_true(record), "the record is not true"),
            (
                success(record).is_some() || !self.executed.iter().any(|run| run.is_recorded),
                "a success was taken back",
            ),
            (
                self.executed.iter().all(is_over),
                "a run is not in the history",
            ),
        ];
        let failed = checks.into_iter().find(|(holds, _)| !holds);
        self.wrong = self.wrong.or(failed.map(|(_, what)| what));
    }
}

impl RunsModel {
    fn info(self, end: Option<usize>) -> ReleaseInfo {
        let (fate, disturbance) = end.map_or((Fate::NotExecuted, Disturbance::None), |end| {
            (ENDS[end].0, ENDS[end].1)
        });
        let verdict = outcome(fate, disturbance, 126);
        let state = match fate {
            Fate::NotExecuted if !self.cancels => RunState::Failed,
            Fate::Stopped(CommandEnd::Exited(0)) if !self.doubts => RunState::Ok,
            _ => verdict.state,
        };
        ReleaseInfo {
            end: Some(verdict.end),
            run_state: Some(state),
            ..ReleaseInfo::from(Scope::Tree)
        }
    }
}

impl Model for RunsModel {
    type State = RunsModelState;
    type Action = RunStep;

    fn init_states(&self) -> Vec<RunsModelState> {
        vec![RunsModelState {
            now: LEASE_MS,
            document: None,
            runs: [ModelRun::Out; RUNS],
            grants: 0,
            before: String::new(),
            executed: Vec::new(),
            history: Vec::new(),
            wrong: None,
            has_put_back: false,
        }]
    }

    fn actions(&self, state: &RunsModelState, actions: &mut Vec<RunStep>) {
        use RunStep::{Ask, Die, End, Execute, Expire, GiveUp, NotExecuted, Release};
        for (nth, run) in state.runs.iter().enumerate() {
            match run {
                ModelRun::Out => actions.extend([Ask(nth, true), Ask(nth, false)]),
                ModelRun::Asks => {
                    actions.extend([Ask(nth, true), Ask(nth, false), GiveUp(nth)]);
                }
                ModelRun::Granted(_) => {
                    actions.extend([Execute(nth), NotExecuted(nth)]);
                }
                ModelRun::Runs(_) => {
                    actions.extend((0..ENDS.len()).map(|end| End(nth, end)));
                    actions.push(Die(nth));
                }
                ModelRun::Undoes | ModelRun::Releases(_) => {
                    actions.push(Release(nth));
                }
                ModelRun::Dead => {}
            }
        }
        actions.push(Expire);
    }

    fn next_state(&self, last: &RunsModelState, action: RunStep) -> Option<RunsModelState> {
        let mut next = last.clone();
        let happens = match action {
            RunStep::Ask(nth, is_heard) => next.ask(nth, is_heard),
            RunStep::GiveUp(nth) => {
                next.runs[nth] = ModelRun::Undoes;
                true
            }
            RunStep::Execute(nth) => {
                let ModelRun::Granted(fence) = last.runs[nth] else {
                    return None;
                };
                next.execute(nth, fence);
                next.runs[nth] = ModelRun::Runs(fence);
                last.holds(nth)
            }
            RunStep::NotExecuted(nth) => {
                next.runs[nth] = ModelRun::Releases(None);
                true
            }
            RunStep::End(nth, end) => {
                let ModelRun::Runs(fence) = last.runs[nth] else {
                    return None;
                };
                next.executed(fence)?.truth = Some(ENDS[end].2);
                next.runs[nth] = ModelRun::Releases(Some(end));
                true
            }
            RunStep::Release(nth) => {
                let info = match last.runs[nth] {
                    ModelRun::Releases(end) => self.info(end),
                    _ => ReleaseInfo::UNDO,
                };
                next.release(nth, &info);
                true
            }
            RunStep::Die(nth) => {
                let ModelRun::Runs(fence) = last.runs[nth] else {
                    return None;
                };
                next.executed(fence)?.truth = Some(Truth::Unknown);
                next.runs[nth] = ModelRun::Dead;
                true
            }
            RunStep::Expire => {
                next.now += LEASE_MS;
                next.step(Document::expire);
                let runs = |run: &ModelRun| matches!(run, ModelRun::Runs(_));
                last.document().has_holders() && !last.runs.iter().any(runs)
            }
        };
        if !happens || next == *last {
            return None;
        }
        next.check();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is wrong", |_, state: &RunsModelState| {
                state.wrong.is_none()
            }),
            Property::sometimes(
                "a cancelled start puts an earlier one back",
                |_, state: &RunsModelState| state.has_put_back,
            ),
            Property::sometimes(
                "a run anyway fails after a success",
                |_, state: &RunsModelState| {
                    let [first, .., last] = &state.executed[..] else {
                        return false;
                    };
                    first.is_recorded
                        && last.truth == Some(Truth::Failed)
                        && state.history.contains(&last.fence)
                },
            ),
            Property::sometimes(
                "a run that was done is lost before it is recorded",
                |_, state: &RunsModelState| {
                    state.executed.iter().any(|run| {
                        run.truth == Some(Truth::Done)
                            && !run.is_recorded
                            && state.history.contains(&run.fence)
                    })
                },
            ),
        ]
    }
}

impl RunsModel {
    /// Shows that this model does not have the property.
    #[track_caller]
    fn fails(self, property: &'static str) {
        self.checker()
            .finish_when(HasDiscoveries::AllOf([property].into()))
            .spawn_bfs()
            .join()
            .assert_any_discovery(property);
    }
}

#[test]
fn model_of_what_the_ends_of_runs_leave_behind() {
    let checked = RULE.checker().spawn_bfs().join();
    checked.assert_properties();
    assert!(
        checked.unique_state_count() > 10_000,
        "{}",
        checked.unique_state_count()
    );
}

#[test]
fn model_of_a_start_that_is_not_cancelled() {
    RunsModel {
        cancels: false,
        ..RULE
    }
    .fails("nothing is wrong");
}

#[test]
fn model_of_believing_a_command_that_was_stopped() {
    RunsModel {
        doubts: false,
        ..RULE
    }
    .fails("nothing is wrong");
}
