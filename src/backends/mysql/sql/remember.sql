-- Remembers the hold that was just freed.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, why, metadata)
SELECT :name, @dlock_fence, @dlock_since, UTC_TIMESTAMP(6), :how, :why, @dlock_who FROM DUAL WHERE @dlock_freed > 0;
