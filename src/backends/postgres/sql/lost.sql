-- Writes a history entry from the holder itself, which replaces an entry from other clients.
-- $1 name, $2 fence, $3 since in ms or NULL, $4 ended in ms or NULL, $5 how, $6 outcome, $7 metadata
INSERT INTO {runs} AS r (name, fence, since, ended, how, outcome, metadata)
VALUES ($1, $2, timestamp 'epoch' + $3 * interval '1 millisecond',
  timestamp 'epoch' + $4 * interval '1 millisecond', $5, $6, $7)
ON CONFLICT (name, fence) DO UPDATE SET since = excluded.since, ended = excluded.ended,
  how = excluded.how, outcome = excluded.outcome,
    metadata = coalesce(excluded.metadata, r.metadata)
