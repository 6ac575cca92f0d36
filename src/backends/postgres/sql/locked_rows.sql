-- A transaction has locked the row of the lock `l`: as sql/row_lock.sql.
l.name IN (SELECT r.name FROM {rows} AS r WHERE r.xmax IN (
  SELECT k.transactionid FROM pg_locks AS k
   WHERE k.locktype = 'transactionid' AND k.granted AND k.mode = 'ExclusiveLock'))
