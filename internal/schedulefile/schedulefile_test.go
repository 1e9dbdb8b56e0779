package schedulefile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/protocol"
)

func TestParse(t *testing.T) {
	got, err := Parse([]byte(`
source: billing
version: 7
schedules:
  daily-report:
    queue: reports
    cron: "0 6 * * *"
    tz: Europe/Berlin
    payload: {kind: daily, to: [ada]}
    headers: {a: b}
    priority: 5
    missed: skip
    overlap: skip
    splay: 5m
  poll:
    queue: q
    every: 15m
    payload: text
`))
	if err != nil || got.Source != "billing" || got.Version != 7 {
		t.Fatalf("%+v, %v", got, err)
	}
	want := []protocol.Schedule{
		{Name: "daily-report", Queue: "reports", Cron: "0 6 * * *", Zone: "Europe/Berlin", Payload: []byte(`{"kind":"daily","to":["ada"]}`),
			Headers: map[string]string{"a": "b"}, Priority: 5, Missed: "skip", Overlap: "skip", SplayMS: 300_000, Source: "billing", Version: 7},
		{Name: "poll", Queue: "q", EveryMS: 900_000, Payload: []byte(`"text"`), Source: "billing", Version: 7},
	}
	if diff := cmp.Diff(want, got.Schedules); diff != "" {
		t.Error(diff)
	}
}

func TestBadFiles(t *testing.T) {
	for text, want := range map[string]string{
		"schedules: {a: {queue: q, crn: x}}":                       "crn",
		"schedules: {a: {cron: x}}":                                "schedules.a: queue",
		"schedules: {a: {queue: q, every: soon}}":                  "every",
		"schedules: {a: {queue: q, every: 10ms}}":                  "whole seconds",
		"schedules:\n  a: {queue: q, every: 1m}\n  a: {queue: p}":  "a",
		"schedules: {a: {queue: q}, b: {queue: q, splay: 1500ms}}": "schedules.b: splay",
		"sorce: x":                     "sorce",
		strings.Repeat("#", MaxSize+1): "bytes",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}
