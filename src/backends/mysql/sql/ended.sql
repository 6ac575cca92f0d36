-- Writes the history entry of a hold that the previous statement ended.
INSERT IGNORE INTO :runs (name, fence, since, ended, how, outcome, metadata)
SELECT :name, :fence, TIMESTAMPADD(MICROSECOND, :since * 1000, '1970-01-01 00:00:00.000000'),
       COALESCE(TIMESTAMPADD(MICROSECOND, :ended * 1000, '1970-01-01 00:00:00.000000'),
         UTC_TIMESTAMP(6)), :how, :outcome, :metadata FROM DUAL WHERE @dlock_written > 0;
