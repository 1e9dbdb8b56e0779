-- What describes the tables.
SELECT m.version, m.min_program, m.database_id FROM {s}.qsidecar_meta AS m;
