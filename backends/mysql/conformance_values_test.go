package mysql

// invalidValues are column values that MySQL and MariaDB accept in a session that is not strict, or nearly
// accept, and that a sidecar must not use.
var invalidValues = map[string][]string{
	"queue":        {"''", "NULL", "'a b'", "'.q'", "'é'", "'q\n'", "'q '", "CHAR(113, 0)"},
	"payload":      {"NULL", "''", "42", "REPEAT('x', 2000000)"},
	"priority":     {"NULL", "-32769", "32768", "'x'"},
	"max_attempts": {"NULL", "0", "-1", "32768", "'x'"},
	"run_at": {
		"NULL", "'0000-00-00'", "'2030-00-00'", "'2020-00-00'", "'2030-02-31'", "'2020-02-31'", "'infinity'", "'10000-01-01'", "'0001-01-01'", "'1000-01-01'", "0", "-1",
	},
	"start_before": {"'0000-00-00'", "'2030-00-00'", "'2020-02-31'", "'10000-01-01'", "'0001-01-01'", "'1000-01-01'", "0"},
	"retain_ms":    {"NULL", "0", "-1", "1", "9223372036854775807"},
	"on_expiry":    {"NULL", "'dead'", "''", "'DEAD'"},
	"run_at, headers": {
		`'2020-01-01', CONCAT('{"a": ', REPEAT('[', 90), REPEAT(']', 90), '}')`, `'2020-01-01', JSON_OBJECT('a', REPEAT('x', 2000000))`,
	},
	"headers": {
		"'null'", "'[]'", `'"x"'`, "'{}'", `'{"a": null, "b": 1e300, "c": {"d": [1]}, "": ""}'`, `'{"a": 1, "a": 2}'`, "JSON_OBJECT('a', REPEAT('x', 2000000))",
		`CONCAT('{"a": ', REPEAT('[', 30), REPEAT(']', 30), '}')`, `CONCAT('{"a": ', REPEAT('[', 90), REPEAT(']', 90), '}')`, `'{"a": "\\u0000"}'`, `'{"a": "\\ud800"}'`, "42",
	},
	// The sidecar's own columns, which any INSERT can name.
	"id":          {"-1", "-9223372036854775808", "0"},
	"position":    {"0", "-1", "-9223372036854775808", "'x'"},
	"state":       {"'done'", "'dead'", "'waiting'", "'claimed'"},
	"enqueued_at": {"'0000-00-00'", "'2030-02-31'", "'x'"},
	"ready_at":    {"'0000-00-00'"},
	"attempts":    {"-1", "2147483647", "9999999999"},
	"losses":      {"-1", "2147483647"},
	"timeout_ms":  {"-1", "0"},
	"`key`":       {"''", "REPEAT('k', 256)"},
	"fence":       {"-1", "4611686018427387903", "4611686018427387904", "9223372036854775807"},
}
