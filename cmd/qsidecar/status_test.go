package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/qsidecar/qsidecar/protocol"
)

// TestStatusShowsWholeErrors: the reason stands at the end of what a driver says. It was cut off.
func TestStatusShowsWholeErrors(t *testing.T) {
	const why = "database unavailable: postgres://app@db.internal.example:5432/app: failed to connect to `user=app database=app`:\n" +
		"\t10.0.0.7:5432 (db.internal.example): failed SASL auth: FATAL: password authentication failed for user \"app\" (SQLSTATE 28P01)"
	var out bytes.Buffer
	st := &protocol.Status{Generation: 1, Databases: []protocol.DatabaseStatus{
		{Name: "away", Error: why, BeatMS: 90_000}, {Name: "main", Engine: "sqlite", Version: "3.53.4", Place: "/q.db", BeatMS: 10},
	}}
	if err := (&app{out: &out}).showStatus("qsidecar/1", st); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NOT WELL, see below\n", "\ndatabase away: " + why + "\n", "well\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not show %q:\n%s", want, out.String())
		}
	}
}
