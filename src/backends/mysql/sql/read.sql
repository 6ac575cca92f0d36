-- One lock's row with the time, and what becomes of the gate.
SELECT :record, :gate FROM :table WHERE name = :name;
