-- Writes a lock if it is still as it was read; one statement, so one transaction that has the write
-- lock from its start. A new row begins at a random revision: a write that was decided on a row
-- which gc removed meanwhile matches no later one. ?1 namespace, ?2 key, ?3 the revision that was
-- read, or 0 for none, ?4 fence, ?5 lock file, ?6 now in ms, ?7 document, ?8 ended holds
INSERT INTO locks (namespace, key, revision, fence, lock_file, changed_ms, document)
SELECT ?1, ?2, (abs(random()) >> 2) + 1, ?4, ?5, ?6, ?7
 WHERE ?3 = 0 OR EXISTS (SELECT 1 FROM locks WHERE namespace = ?1 AND key = ?2)
ON CONFLICT (namespace, key) DO UPDATE SET
    revision = revision + 1, fence = excluded.fence, lock_file = excluded.lock_file,
      changed_ms = excluded.changed_ms,
    document = excluded.document, ended = ?8
WHERE revision = ?3
