package sqlserver

// oddValues are values that SQL Server's types and CHECKs let in, written for the database that replaces it (which
// has the CHECKs of the table, but not those of its columns). Its times are of the years 1 to 9999, as the wire's are.
var oddValues = map[string][]string{
	"payload":      {"''", "convert_to(repeat('x', 2000000), 'UTF8')"},
	"priority":     {"-32768", "32767"},
	"max_attempts": {"NULL", "32767"},
	"run_at":       {"NULL", "'0001-01-01 00:00:00'", "'1969-12-31 00:00:00'"},
	"start_before": {"NULL", "'0001-01-01 00:00:00'", "'2000-01-01'", "'9999-12-31 23:59:59.999999'"},
	"headers":      {"'{}'", `'{"a": null, "b": 1e400, "c": {"d": [1]}, "": ""}'`, `'{"a": "' || repeat('x', 70000) || '"}'`, `'{"a": 1, "a": "\ud800"}'`},
	"id":           {"9223372036854775807", "-1", "-9223372036854775808"},
	"position":     {"9223372036854775807", "0", "-1"},
	"state":        {"'done'", "'dead'", "'waiting'", "'claimed'"},
	"enqueued_at":  {"'0001-01-01 00:00:00'"},
	"attempts":     {"-1"},
	"losses":       {"-1"},
	"timeout_ms":   {"-1", "0"},
	"retain_ms":    {"NULL", "1", "316224000000"},
	"fence":        {"-1"},
}
