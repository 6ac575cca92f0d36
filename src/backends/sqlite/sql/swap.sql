-- Writes a lock if it is still as it was read; one statement, so one transaction that has the write lock from its start.
-- ?1 namespace, ?2 key, ?3 the revision that was read, or 0 for none, ?4 fence, ?5 lock file, ?6 now in ms, ?7 document, ?8 ended holds
INSERT INTO locks (namespace, key, revision, fence, lock_file, changed_ms, document)
VALUES (?1, ?2, 1, ?4, ?5, ?6, ?7)
ON CONFLICT (namespace, key) DO UPDATE SET
    revision = revision + 1, fence = excluded.fence, lock_file = excluded.lock_file, changed_ms = excluded.changed_ms,
    document = excluded.document, ended = ?8
WHERE revision = ?3
