//! Writing a changed lock: its value by compare-and-swap, and the data next to it in the same
//! packet.

use ::redis::{Pipeline, Value};

use super::{
    TairStore, TairVersion, fence, history, millis,
    stored_queue::remove_gone,
    value::{Compared, Stored, compared, created, holders},
};
use crate::{
    backends::{
        cas::{Base, Change, Snapshot},
        redis::{failure, history::to_json, names::RedisNames},
    },
    lock::{Error, Fence, Key, Kind, Result, document::Document, whole_ms},
};

/// The least ms for which data is kept after its last change; longer if a run policy needs the run
/// record.
const KEEP: u64 = 100 * 24 * 3600 * 1000;
/// The most bytes of a lock's value after a grant. A value of more than twice that could not be
/// read whole.
const MOST: usize = 1 << 19;

/// A packet, and the indexes of the replies to its conditions.
#[derive(Default)]
struct SwapPipeline {
    commands: Pipeline,
    counted: Option<usize>,
    compared: Option<usize>,
    begun: Option<usize>,
    /// The lock's new value; `None` if it is deleted.
    value: Option<Stored>,
    policy: Option<Stored>,
}

impl TairStore {
    pub(super) async fn write(
        &mut self,
        key: &Key,
        was: Snapshot<TairVersion>,
        change: Change<'_>,
    ) -> Result<bool> {
        self.written = None;
        let names = self.names(key)?;
        if was.version.is_warning {
            return self
                .write_warned(&names, was.version.stored.as_ref(), change.document)
                .await;
        }
        let packet = match self.packet(&names, &was, &change) {
            Ok(packet) => packet,
            Err(error) => {
                self.take_back(&names, &was, (None, change.granted)).await;
                return Err(error);
            }
        };
        if !packet.commands.is_empty() {
            let replies = self.run(&packet.commands, change.request.is_some()).await?;
            let reply = |at: Option<usize>| {
                at.map(|at| replies.get(at).ok_or_else(failure::unreadable))
                    .transpose()
            };
            match reply(packet.compared)?.map(compared).transpose() {
                Ok(None | Some(Compared::Done)) => {}
                Ok(Some(Compared::Changed | Compared::Gone)) => {
                    self.restore(&names, &was, &change, packet.policy.as_ref())
                        .await;
                    return Ok(false);
                }
                Err(error) => {
                    self.take_back(&names, &was, (None, change.granted)).await;
                    return Err(error);
                }
            }
            let written = confirmed(
                (&was, &change),
                &replies,
                reply(packet.counted)?,
                reply(packet.begun)?,
            );
            if !matches!(written, Ok(true)) {
                self.take_back(&names, &was, (packet.value.as_ref(), change.granted))
                    .await;
                return written;
            }
        }
        if packet.compared.is_some() {
            self.finish(&names, &was, &change).await;
        }
        self.note_written(key, &was, &change, packet.value, packet.policy);
        Ok(true)
    }

    fn packet(
        &self,
        names: &RedisNames,
        was: &Snapshot<TairVersion>,
        change: &Change<'_>,
    ) -> Result<SwapPipeline> {
        let (mode, now, mut packet) = (self.options.mode, was.now(), SwapPipeline::default());
        let SwapPipeline {
            commands,
            counted,
            compared,
            begun,
            value,
            policy,
        } = &mut packet;
        let (before, after) = (&was.document, change.document);
        if let Some(fence) = change.granted {
            *counted = Some(fence::count(commands, names, was.fence, fence));
        }
        if let Some(old) = was
            .version
            .stored
            .as_ref()
            .filter(|_| change.must || before.write_holders() != after.write_holders())
        {
            *compared = Some(commands.len());
            if let (Some(new), Some(ends)) = (holders(after), after.ends()) {
                if change.granted.is_some() && new.len() > MOST {
                    return Err(Error::new(
                        Kind::Unsupported,
                        "more holders share the lock than a value has room for",
                    ));
                }
                *value = Some(mode.swap(
                    commands,
                    &names.lock,
                    old,
                    &new,
                    millis(ends.saturating_sub(now).max(1)),
                ));
            } else {
                mode.delete(commands, &names.lock, old);
            }
        }
        (*begun, *policy) = self.record(commands, names, was, change)?;
        for (fence, past) in changed(before, after) {
            // A grant next to other holds may fail its comparison. Its entry would look like a
            // hold, so it is written after the grant.
            if Some(fence) != change.granted || was.base == Base::Claim {
                history::note_begun(commands, names, fence, &past)?;
            }
        }
        for past in change.ended.iter().filter(|past| {
            past.fence
                .is_some_and(|fence| before.vanished(fence).is_some())
        }) {
            history::note_begun(commands, names, past.fence.unwrap_or(Fence(0)), past)?;
        }
        if let Some(request) = change
            .request
            .filter(|_| change.granted.is_none() && before.queue() != after.queue())
        {
            let queue = [before.queue(), after.queue()];
            was.version
                .stored_queue
                .write(commands, names, request, queue, was.now_us)?;
            remove_gone(commands, names, Some(&request.token.hold_text()), queue);
        }
        Ok(packet)
    }

    /// Adds the command that writes a changed run record. Returns the index of its reply if a grant
    /// depends on it, and the record as it is then.
    ///
    /// It is compared: the packet may be late, and other runs may have begun and ended meanwhile.
    fn record(
        &self,
        commands: &mut Pipeline,
        names: &RedisNames,
        was: &Snapshot<TairVersion>,
        change: &Change<'_>,
    ) -> Result<(Option<usize>, Option<Stored>)> {
        let (mode, known, after) = (
            self.options.mode,
            &was.version.policy,
            change.document.run_record(),
        );
        if was.document.run_record() == after {
            return Ok((None, known.clone()));
        }
        let (json, name, at) = (to_json(after)?, mode.policy(names), commands.len());
        let keep = whole_ms(after.relevant(was.now()))
            .saturating_mul(2)
            .max(KEEP);
        let written = match known {
            Some(known) => mode.swap(commands, &name, known, &json, millis(keep)),
            None if change.request.is_some() => mode.create(commands, &name, &json, keep),
            None => return Ok((None, None)),
        };
        Ok((change.request.map(|_| at), Some(written)))
    }

    /// Writes the data that may follow the change. If that fails, the next grant makes up for it.
    async fn finish(
        &mut self,
        names: &RedisNames,
        was: &Snapshot<TairVersion>,
        change: &Change<'_>,
    ) {
        let mut commands = ::redis::pipe();
        let (before, after) = (&was.document, change.document);
        if let Some(fence) = change.granted {
            if let Some(past) = after.vanished(fence).filter(|_| was.base == Base::Document) {
                // An entry has only texts and numbers, so serializing can't fail.
                let _ = history::note_begun(&mut commands, names, fence, &past);
            }
            was.version.stored_queue.clear(&mut commands, names);
            let own = change.request.map(|request| request.token.hold_text());
            remove_gone(
                &mut commands,
                names,
                own.as_deref(),
                [before.queue(), after.queue()],
            );
        }
        for past in &change.ended {
            let _ = history::archive(&mut commands, names, past);
        }
        for fence in before
            .fences()
            .filter(|fence| after.vanished(*fence).is_none())
        {
            history::forget(&mut commands, names, fence);
        }
        if !commands.is_empty() {
            let _ = self.run(&commands, false).await;
        }
    }

    /// Restores the outbox and the run record after a failed comparison.
    async fn restore(
        &mut self,
        names: &RedisNames,
        was: &Snapshot<TairVersion>,
        change: &Change<'_>,
        policy: Option<&Stored>,
    ) {
        let (mode, mut commands) = (self.options.mode, ::redis::pipe());
        match (policy, &was.version.policy) {
            (Some(written), None) => mode.delete(&mut commands, &mode.policy(names), written),
            (Some(written), Some(known)) if written != known => {
                let keep = whole_ms(was.document.run_record().relevant(was.now()))
                    .saturating_mul(2)
                    .max(KEEP);
                mode.swap(
                    &mut commands,
                    &mode.policy(names),
                    written,
                    &known.value,
                    millis(keep),
                );
            }
            _ => {}
        }
        if let Some(fence) = change.granted {
            history::forget(&mut commands, names, fence);
        }
        for fence in change.ended.iter().filter_map(|past| past.fence) {
            if let Some(past) = was.document.vanished(fence) {
                let _ = history::note_begun(&mut commands, names, fence, &past);
            }
        }
        if !commands.is_empty() {
            let _ = self.run(&commands, false).await;
        }
    }

    /// Removes a claim, or a grant that was `written`, and its entry in the outbox. If that fails,
    /// it ends with its TTL.
    async fn take_back(
        &mut self,
        names: &RedisNames,
        was: &Snapshot<TairVersion>,
        (written, granted): (Option<&Stored>, Option<Fence>),
    ) {
        let mut commands = ::redis::pipe();
        let mode = self.options.mode;
        match (written, &was.version.stored) {
            (Some(written), _) if granted.is_some() => {
                match (holders(&was.document), was.document.ends()) {
                    (Some(value), Some(ends)) => {
                        mode.swap(
                            &mut commands,
                            &names.lock,
                            written,
                            &value,
                            millis(ends.saturating_sub(was.now()).max(1)),
                        );
                    }
                    _ => mode.delete(&mut commands, &names.lock, written),
                }
            }
            (_, Some(claim)) if was.base == Base::Claim => {
                mode.delete(&mut commands, &names.lock, claim);
            }
            _ => {}
        }
        if let Some(fence) = granted {
            history::forget(&mut commands, names, fence);
        }
        if commands.is_empty() {
            return;
        }
        let _ = self.run(&commands, false).await;
    }

    /// Deletes this attempt's claim.
    pub(super) async fn undo(&mut self, names: &RedisNames, claim: &Stored) {
        let mut delete = ::redis::pipe();
        self.options.mode.delete(&mut delete, &names.lock, claim);
        let _ = self.run(&delete, false).await;
    }

    fn note_written(
        &mut self,
        key: &Key,
        was: &Snapshot<TairVersion>,
        change: &Change<'_>,
        value: Option<Stored>,
        policy: Option<Stored>,
    ) {
        let Some(stored) = value.filter(|_| change.document.held_alone_since().is_some()) else {
            return;
        };
        let Ok(mut document) = Document::read(change.document.write_holders().as_deref()) else {
            return;
        };
        document.set_run_record(change.document.run_record().clone());
        let version = TairVersion {
            stored: Some(stored),
            policy,
            ..TairVersion::default()
        };
        let fence = change.granted.or(was.fence);
        let snapshot = Snapshot {
            document,
            fence,
            outside: None,
            base: Base::Document,
            apart: true,
            version,
            now_us: was.now_us,
        };
        self.written = Some((key.clone(), snapshot));
    }

    async fn write_warned(
        &mut self,
        names: &RedisNames,
        known: Option<&Stored>,
        document: &Document,
    ) -> Result<bool> {
        let (mode, mut step, (fence, level)) =
            (self.options.mode, ::redis::pipe(), document.warned());
        let (name, value) = (mode.warned(names), format!("{fence}:{level}"));
        match known {
            Some(known) => mode.swap(&mut step, &name, known, &value, millis(KEEP)),
            None => mode.create(&mut step, &name, &value, KEEP),
        };
        let replies = self.run(&step, false).await?;
        let reply = replies.first().ok_or_else(failure::unreadable)?;
        if known.is_some() {
            Ok(compared(reply)? == Compared::Done)
        } else {
            created(reply)
        }
    }
}

/// Returns the new or changed holds, each with its history entry in case it is never released.
fn changed(before: &Document, after: &Document) -> Vec<(Fence, crate::lock::HistoryEntry)> {
    let entry = |fence| {
        let past = after.vanished(fence)?;
        (before.vanished(fence).as_ref() != Some(&past)).then_some((fence, past))
    };
    after.fences().filter_map(entry).collect()
}

/// Whether the counter and the start of a grant, or a waiter's entry, was written. False if another
/// client changed any of it meanwhile.
fn confirmed(
    (was, change): (&Snapshot<TairVersion>, &Change<'_>),
    replies: &[Value],
    count: Option<&Value>,
    begun: Option<&Value>,
) -> Result<bool> {
    if let (Some(fence), Some(reply)) = (change.granted, count)
        && !fence::counted(fence, reply)?
    {
        return Ok(false);
    }
    if let Some(reply) = begun {
        let written = match was.version.policy {
            Some(_) => compared(reply)? == Compared::Done,
            None => created(reply)?,
        };
        if !written {
            return Ok(false);
        }
    }
    let in_vain = change.request.is_some() && change.granted.is_none();
    match replies
        .iter()
        .find(|reply| in_vain && matches!(reply, Value::ServerError(_)))
    {
        Some(Value::ServerError(error)) => Err(failure::refused(error)),
        _ => Ok(true),
    }
}
