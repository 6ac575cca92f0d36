-- Takes the lock for a new owner, whose process has the lock file's bytes; one statement, so one transaction
-- that holds the database's write lock from its start, as BEGIN IMMEDIATE does. No row comes back if a hold
-- that the lock file does not speak for is still running, if the layout isn't this one, if the lock is shared or
-- waits in order, or if an earlier start may be in the way.
-- ?1 namespace, ?2 key, ?3 owner, ?4 hold, ?5 ttl_ms, ?6 detached, ?7 lock_file, ?8 metadata, ?9 earlier starts and the document are judged elsewhere
-- in this transaction, ?10 place, or NULL if no start is to be kept from others, ?11 skew guard in ms, ?12 at-least in ms
INSERT INTO locks (namespace, key, fence, owner, hold, detached, lock_file,
                   since_ms, renewed_ms, ttl_ms, hold_expires_ms, expires_ms, metadata, cooldown)
SELECT ?1, ?2, now_ms * 1000, ?3, ?4, ?6, ?7, now_ms, now_ms, ?5, now_ms + ?5, now_ms + ?5, ?8,
       iif(?10 IS NULL, NULL, json_object('s', now_ms, 'f', now_ms * 1000, 'p', ?10, 'g', ?11, 'l', ?12, 'm', json(?8)))
  FROM (SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) AS now_ms)
 WHERE (SELECT user_version FROM pragma_user_version) = 6
ON CONFLICT (namespace, key) DO UPDATE SET
    -- Never below the time in microseconds, so that a lost database does not repeat fences.
    fence = max(fence + 1, excluded.fence),
    owner = excluded.owner,
    hold = excluded.hold,
    detached = excluded.detached,
    lock_file = excluded.lock_file,
    since_ms = excluded.since_ms,
    renewed_ms = excluded.renewed_ms,
    ttl_ms = excluded.ttl_ms,
    hold_expires_ms = excluded.hold_expires_ms,
    expires_ms = excluded.expires_ms,
    metadata = excluded.metadata,
    cooldown = iif(?10 IS NULL, cooldown, json_set(excluded.cooldown, '$.f', max(fence + 1, excluded.fence))),
    mark = NULL,
    broken = NULL,
    seen = 0,
    ended = NULL,
    why = NULL
WHERE (owner IS NULL
   -- An attached hold of this lock file would have kept us from getting here. One of another file of that name
   -- (removed under its holder) is protected by its lease alone, as a detached one is.
   OR (NOT detached AND lock_file = excluded.lock_file)
   OR expires_ms <= excluded.renewed_ms)
   AND (?9 OR document IS NULL)
   -- A clock that was set back by more than that delays no run.
   AND (?9 OR cooldown IS NULL OR abs(excluded.since_ms - (cooldown ->> '$.s'))
        >= max(cooldown ->> '$.l', iif(?11 > 0 AND ?10 <> cooldown ->> '$.p', cooldown ->> '$.g', 0)))
RETURNING fence
