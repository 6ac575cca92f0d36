-- One lock's row with the time, the result of taking the advisory lock, and the wake-up counter.
SELECT :record, :gate, bell FROM :table AS l WHERE name = :name;
