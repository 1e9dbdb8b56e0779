package postgres

// oddValues are column values that PostgreSQL accepts, or almost accepts, and a sidecar must not accept.
var oddValues = map[string][]string{
	"queue":        {"''", "NULL", "repeat('x', 129)", "'a b'", "E'q\\n'", "'.q'", "'é'"},
	"payload":      {"NULL", "''", "convert_to(repeat('x', 2000000), 'UTF8')"},
	"priority":     {"NULL", "-32769", "32768", "-32768", "32767", "'NaN'"},
	"max_attempts": {"NULL", "0", "-1", "32767", "32768"},
	"state, run_at, headers": {
		"'scheduled', '2020-01-01', jsonb_build_object('a', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 40000) n))",
	},
	"state, run_at": {"'scheduled', '-infinity'", "'scheduled', 'infinity'"},
	"run_at": {
		"NULL", "'infinity'", "'-infinity'", "'294276-12-31 23:59:59+00'", "'10000-01-02'", "'9999-12-31 23:59:59.9999+00'",
		"'4713-01-01 00:00:00+00 BC'", "'0001-01-01 00:00:00+00'", "'1969-12-31 00:00:00+00'",
	},
	"start_before": {"'infinity'", "'-infinity'", "'10000-01-02'", "'0001-01-01 00:00:00+00'", "'2000-01-01'"},
	"retain_ms":    {"NULL", "0", "-1", "1", "9223372036854775807"},
	"on_expiry":    {"NULL", "'dead'", "''", "'DEAD'"},
	"headers": {
		"'null'", "'[]'", `'"x"'`, "'{}'", `'{"a": null, "b": 1e400, "c": {"d": [1]}, "": ""}'`,
		"jsonb_build_object('a', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 40000) n))",
		"(SELECT jsonb_object_agg(n::text, n) FROM generate_series(1, 10000) n)",
		`('{"a": ' || repeat('[', 5000) || repeat(']', 5000) || '}')::jsonb`, `('{"a": ' || repeat('[', 12000) || repeat(']', 12000) || '}')::jsonb`,
	},
	// The sidecar's own columns, which any INSERT can name.
	"id":          {"9223372036854775807", "-1", "-9223372036854775808", "0"},
	"position":    {"0", "-1", "-9223372036854775808"},
	"state":       {"'done'", "'dead'", "'waiting'", "'claimed'"},
	"enqueued_at": {"'infinity'", "'-infinity'", "'10000-01-02'"},
	"ready_at":    {"'infinity'", "'-infinity'"},
	"attempts":    {"-1", "2147483647"},
	"losses":      {"-1"},
	"timeout_ms":  {"-1", "0", "9223372036854775807"},
	"key":         {"''", "repeat('k', 256)"},
	"fence":       {"-1", "4611686018427387904", "9223372036854775807"},
}
