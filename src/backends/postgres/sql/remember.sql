remembered AS (
    INSERT INTO {runs} (name, fence, since, ended, how, why, metadata)
    SELECT $1, f.fence, f.locked_at, f.ended, $5, $6, f.metadata FROM freed AS f WHERE $5 IS NOT NULL
    ON CONFLICT (name, fence) DO NOTHING
), {trimmed}