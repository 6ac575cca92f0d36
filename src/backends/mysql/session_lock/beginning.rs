//! Begins the hold of a lock that a session has: its fence, its run record, and the history entries
//! of vanished holders.

use super::{
    super::{
        connection::{Answer, Answers, Connection},
        failure::{self, ServerError},
        history,
        life::Life,
        readers,
        starts::Granting,
        statement::{Value, literal},
    },
    Counted, MysqlLock, first_row, one_session,
};
use crate::{
    backends::sql::{Begin, Begun, Fields, SqlMode, as_fence, json, ms},
    lock::{DRAIN_DELAY, Request, Result, RunRecord},
};

/// The number of answers to the statements for [`Extent::Alone`].
const ALONE: usize = 2;

/// Which statements begin a hold: each costs the server time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// Those that suffice if the lock has its rows and no record of another hold.
    Alone,
    /// Those that also write history entries of vanished holders.
    Whole,
    /// As [`Extent::Whole`], without the history entries, which can't be written.
    Forgetting,
}

impl MysqlLock {
    /// The number of answers to the statements that write history entries.
    fn remembering(&self) -> usize {
        if self.mode == SqlMode::Row { 4 } else { 2 }
    }

    /// The number of answers to the statements that count the fence; the last one has the fence.
    fn beginning(&self) -> usize {
        if self.shared { 5 } else { 4 }
    }

    /// Asks for the `GET_LOCK`, and counts the fence in the same round trip.
    pub(super) async fn get_lock(&mut self, first: &str, request: &Request) -> Result<bool> {
        let (lock, begin) = (
            &self.own.lock,
            self.begin_sql(request, "CONNECTION_ID()", Extent::Alone, None, None)?,
        );
        let batch = format!(
            "{first}SELECT CONNECTION_ID(), @dlock = CONNECTION_ID(), IF(IS_USED_LOCK({lock}) = CONNECTION_ID(), 1, GET_LOCK({lock}, 0));\n{begin}"
        );
        let Answers {
            answers,
            server_error,
        } = self.session.try_ask(&batch).await?;
        let Ok(mut fields) = first_row(&answers, 1) else {
            return Err(
                server_error.map_or_else(failure::unreadable, |server_error| {
                    failure::refused(&server_error, false)
                }),
            );
        };
        self.own.number = fields.int()?;
        one_session(fields.int_or_null()?)?;
        let got = fields.int_or_null()? == Some(1);
        if got {
            self.own.counted = Self::begun_alone(&answers, server_error.as_ref(), 2)?;
        }
        Ok(got)
    }

    /// Counts the fence of a lock that this session has, over `side` if this session is in a
    /// transaction.
    pub(in crate::backends::mysql) async fn count(
        &mut self,
        request: &Request,
        judged: Option<(&RunRecord, u64)>,
        side: Option<&mut Connection>,
    ) -> Result<Counted> {
        if let Some(begun) = self.own.counted.take() {
            return Ok(begun);
        }
        let number = self.own.number.to_string();
        let mut over = side;
        // In mode=advisory, the attempt asked this together with the lock.
        if !self.shared && (self.mode == SqlMode::Row || judged.is_some()) {
            let alone = self.begin_sql(request, &number, Extent::Alone, judged, None)?;
            let Answers {
                answers,
                server_error,
            } = over
                .as_deref_mut()
                .unwrap_or(&mut self.session)
                .try_ask(&alone)
                .await?;
            if let Some(begun) = Self::begun_alone(&answers, server_error.as_ref(), 0)? {
                return Ok(begun);
            }
        }
        // While this session has the row, no other holder counts a fence.
        let seen = match over.as_deref_mut() {
            Some(side) if !self.shared => {
                let read = self.own.tables.fill(
                    "SELECT fence FROM :sessions WHERE name = :name;",
                    &[("name", Value::Bytes(&self.name))],
                );
                let fence = first_row(&side.ask(&read).await?, 0)
                    .and_then(|mut fields| fields.int())
                    .unwrap_or_default();
                // Asked last: a session that answers had the row when the fence was read.
                let same =
                    format!("SELECT @dlock = CONNECTION_ID() AND CONNECTION_ID() = {number}");
                one_session(first_row(&self.session.ask(&same).await?, 0)?.int_or_null()?)?;
                Some(fence)
            }
            _ => None,
        };
        let whole = self.begin_sql(request, &number, Extent::Whole, judged, seen)?;
        let bare = self.begin_sql(request, &number, Extent::Forgetting, judged, seen)?;
        if !std::mem::take(&mut self.own.forgets) {
            let Answers {
                answers,
                server_error,
            } = over
                .as_deref_mut()
                .unwrap_or(&mut self.session)
                .try_ask(&whole)
                .await?;
            if let Some(begun) = self.begun_remembering(&answers, server_error.as_ref())? {
                return Ok(begun);
            }
            self.own.forgets = false;
        }
        counted(
            &over.unwrap_or(&mut self.session).ask(&bare).await?,
            self.beginning(),
        )
    }

    /// Reads the answers for [`Extent::Alone`], from this one on; `None` if more statements are
    /// needed.
    fn begun_alone(
        answers: &[Answer],
        denial: Option<&ServerError>,
        at: usize,
    ) -> Result<Option<Counted>> {
        match denial {
            Some(denial) if answers.len() < at + ALONE => Err(failure::refused(denial, true)),
            _ => Ok(counted(answers, at + ALONE)?.map(Some)),
        }
    }

    /// Reads the answers for [`Extent::Whole`]; `None` if the history entries can't be written, and
    /// nothing was done.
    fn begun_remembering(
        &mut self,
        answers: &[Answer],
        denial: Option<&ServerError>,
    ) -> Result<Option<Counted>> {
        self.own.forgets = denial.is_some() && answers.is_empty();
        match denial {
            _ if self.own.forgets => Ok(None),
            // Later statements only trim the history.
            Some(denial) if answers.len() < self.remembering() + self.beginning() => {
                Err(failure::refused(denial, true))
            }
            _ => counted(answers, self.remembering() + self.beginning()).map(Some),
        }
    }

    /// Returns the SQL that counts the fence, for the session with this number as SQL; with `seen`,
    /// only if that is the last fence.
    fn begin_sql(
        &self,
        request: &Request,
        number: &str,
        extent: Extent,
        judged: Option<(&RunRecord, u64)>,
        seen: Option<i64>,
    ) -> Result<String> {
        let (root, metadata) = (request.token.hold_text(), json(request.metadata.as_ref())?);
        let mut life = Life::of(&self.session.server);
        if extent == Extent::Alone {
            // The record of any other hold prevents this way.
            life.left = "1".into();
        }
        let told = match extent {
            Extent::Whole => "(fence IN (SELECT w.fence FROM :runs AS w WHERE w.name = :name))",
            Extent::Alone | Extent::Forgetting => "1",
        };
        let starts = Granting::of(
            &Begin::of(request, judged),
            judged.is_some(),
            &root,
            metadata.as_deref(),
        );
        let clear = if judged.is_some() { "1" } else { &starts.clear };
        let has = match self.mode {
            SqlMode::Row if self.shared => {
                format!(
                    "IS_USED_LOCK({}) = {number}",
                    readers::presence(
                        &self.own.tables,
                        &self.name,
                        number,
                        &literal(Value::Text(&root))
                    )
                )
            }
            SqlMode::Row => "1".to_owned(),
            _ => format!("IS_USED_LOCK({}) = CONNECTION_ID()", self.own.lock),
        };
        let reads = readers::reads(&self.own.tables, &self.name);
        // If this session has the row alone, all recorded readers have vanished.
        let vanished = match self.mode {
            SqlMode::Row if self.shared => {
                "EXISTS (SELECT 1 FROM :readers AS r WHERE r.name = :name AND r.root <> :root AND NOT :reads)"
            }
            SqlMode::Row if extent != Extent::Alone => {
                "EXISTS (SELECT 1 FROM :readers AS r WHERE r.name = :name)"
            }
            _ => "0",
        };
        let over = if self.shared {
            format!("NOT {reads}")
        } else {
            "1".to_owned()
        };
        // The delay ends no later than if it began now, in case the clock was set back.
        let delay = format!(
            "TIMESTAMPADD(MICROSECOND, {}, UTC_TIMESTAMP(6))",
            DRAIN_DELAY.as_micros()
        );
        let draining = format!(
            "IF(session IS NOT NULL AND root <> :root OR {vanished}, {delay}, LEAST(drains, {delay}))"
        );
        let values = [
            ("name", Value::Bytes(&self.name)),
            ("session", Value::Sql(number)),
            ("root", Value::Text(&root)),
            ("ttl", Value::Int(ms(request.ttl))),
            ("metadata", Value::text_or_null(metadata.as_deref())),
            ("has", Value::Sql(&has)),
            ("seen", seen.map_or(Value::Null, Value::Int)),
            ("start_set", Value::Sql(&starts.set)),
            ("clear", Value::Sql(clear)),
            ("reads", Value::Sql(&reads)),
            ("over", Value::Sql(&over)),
            ("mode", Value::Text(self.mode.name())),
        ];
        let values = [&values[..], &life.values()].concat();
        let fill = |template: &str| {
            self.own.tables.fill(
                &template
                    .replace(":told", told)
                    .replace(":draining", &draining),
                &values,
            )
        };
        let count = fill(if self.shared {
            include_str!("../sql/begin_reading.sql")
        } else {
            include_str!("../sql/begin_hold.sql")
        });
        if extent == Extent::Alone {
            return Ok(count);
        }
        let mut begin = fill(include_str!("../sql/begin_rows.sql")) + &count;
        if self.mode == SqlMode::Row && !self.shared {
            begin += &fill(include_str!("../sql/forget_readers.sql"));
        }
        if extent == Extent::Forgetting {
            return Ok(begin);
        }
        let mut before = fill(include_str!("../sql/vanished.sql"));
        if self.mode == SqlMode::Row {
            before += &fill(include_str!("../sql/vanished_readers.sql"));
        }
        Ok(before + &begin + &history::trim(&self.own.tables, &self.name, "@dlock_vanished > 0"))
    }
}

/// Reads the fence from the last of `length` answers.
fn counted(answers: &[Answer], length: usize) -> Result<Counted> {
    let Some(row) = answers
        .get(length - 1)
        .ok_or_else(failure::unreadable)?
        .rows
        .first()
    else {
        return Ok(None);
    };
    let mut fields = Fields::of(row);
    let (fence, layout, now_us, drains) = (
        fields.int()?,
        fields.int()?,
        fields.int()?,
        fields.int()? != 0,
    );
    failure::check_layout(layout)?;
    Ok(Some(Begun {
        fence: as_fence(fence),
        now_us,
        drains,
    }))
}
