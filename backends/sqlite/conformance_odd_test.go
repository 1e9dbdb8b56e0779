package sqlite

// oddValues are column values that SQLite accepts, or almost accepts, and a sidecar must not accept.
var oddValues = map[string][]string{
	"queue":        {"''", "NULL", "x'71'", "char(113, 0)", "printf('%.129c', 'x')", "'a b'", "'.q'", "'é'"},
	"payload":      {"NULL", "''", "42", "1.5", "x'00'", "char(0)", "zeroblob(2000000)"},
	"priority":     {"NULL", "-32769", "32768", "-32768", "32767", "1.5", "'x'", "'7'", "9e999", "x'07'"},
	"max_attempts": {"NULL", "0", "-1", "32767", "32768", "1.5", "'3'", "'x'", "9e999"},
	"run_at": {
		"NULL", "9223372036854775807", "-9223372036854775808", "-1", "9e999", "-9e999", "1.5", "'infinity'", "'NaN'", "'now'", "x'00'", "253402300800000",
		"'-4713-11-24 12:00:00'", "'0000-01-01'",
	},
	"headers": {
		"'null'", "'[]'", `'"x"'`, "'{}'", `'{"a": null, "b": 1e400, "c": {"d": [1]}, "": ""}'`, "x'7b7d'", "'{a: 1}'", `'{"a": 1, "a": 2}'`, `jsonb('{"a": 1}')`,
		`'{"a": "' || hex(zeroblob(1000000)) || '"}'`, `'{"a": ' || printf('%.900c', '[') || printf('%.900c', ']') || '}'`, `'{"a": ' || printf('%.12000c', '[') || printf('%.12000c', ']') || '}'`,
		`'{"a": "\ud800"}'`, "CAST(x'7b2261223a22ff227d' AS TEXT)", "'{}' || char(0)", "42",
	},
	// The sidecar's own columns, which any INSERT can name.
	"enqueued_at": {"9223372036854775807", "-9223372036854775808", "'x'", "9e999"},
	"ready_at":    {"9223372036854775807", "'x'"},
	"attempts":    {"-1", "9223372036854775807", "'x'"},
	"losses":      {"-1", "9223372036854775807", "'x'"},
	"timeout_ms":  {"-1", "0", "9223372036854775807", "'x'"},
	"key":         {"''", "printf('%.256c', 'k')", "x'00ff'"},
	"fence":       {"-1", "4611686018427387903", "9223372036854775807", "'x'"},
}
