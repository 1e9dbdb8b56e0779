package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/protocol"
)

func TestSchedulesFile(t *testing.T) {
	got, err := ParseSchedules("s.yaml", []byte(`
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

func TestSchedulesFileErrors(t *testing.T) {
	for text, want := range map[string]string{
		"schedules: {a: {queue: q, crn: x}}":                         "crn",
		"schedules: {a: {cron: '@daily'}}":                           "schedules.a.queue: it is missing",
		"schedules: {a: {queue: q, every: soon}}":                    "every",
		"schedules: {a: {queue: q, every: 10ms}}":                    "whole seconds",
		"schedules:\n  a: {queue: q, every: 1m}\n  a: {queue: p}":    "a",
		"schedules: {a: {queue: q}, b: {queue: q, splay: 1500ms}}":   "schedules.b.splay: 1500ms isn't whole seconds: write a duration such as 90s, 15m or 1h",
		"schedules:\n  a:\n    queue: q\n    cron: * 6 * * *":        "s.yaml:4:11: schedules.a.cron: a value that begins with * needs quotes",
		"schedules: {a: {queue: q, crom: '@daily'}}":                 "unknown key \"crom\": did you mean cron?",
		"schedules: {a: {queue: q, cron: '@daily', headers: [a]}}":   "schedules.a.headers: this should be a map (key: value)",
		"schedules: {a: {queue: q, cron: * * * * *}}":                "1:33: what begins with * needs quotes, such as cron: \"*/5 * * * *\"",
		"schedules:\n  a:\n    queue: q\n    cron: * * * * *\n":      "4:11: what begins with * needs quotes, such as cron: \"*/5 * * * *\"",
		"schedules: {a: {queue: q, cron: '@daily', timezone: UTC}}":  "unknown key \"timezone\": did you mean tz?",
		"schedules: {a: {queue: q, cron: '@daily', args: [1]}}":      "unknown key \"args\": did you mean payload?",
		"schedules: [{name: a}]":                                     "schedules: this should be a map (key: value), as in {NAME: {queue: …}}, and is a list",
		"schedules: {a: {queue: q, cron: '@daily', priority: high}}": "schedules.a.priority: \"high\" is not a whole number",
		"version: one":                                                       "version: \"one\" is not a whole number",
		"schedules:\n\ta: {queue: q}":                                        "a tab is in the indentation: indent with spaces",
		"schedules: {a: {queue: q}}":                                         "schedules.a: it has no time: write cron or every",
		"schedules: {a: {queue: q, every: 1m, cron: x}}":                     "schedules.a.every: cron and every exclude each other",
		"schedules:\n  a:\n    queue: q\n    cron: '0 0 6 * * *'":            "s.yaml:4:5: schedules.a.cron: the cron expression \"0 0 6 * * *\": it has 6 fields: use five",
		"schedules:\n  a:\n    queue: q\n    cron: '@daily'\n    tz: Berlin": "s.yaml:5:5: schedules.a.tz: the time zone \"Berlin\" isn't in the IANA database",
		"schedules: {a: {queue: q, every: 1m, tz: UTC}}":                     "schedules.a.tz: a time zone has no meaning for every",
		"schedules: {a: {queue: q, every: 9000h}}":                           "schedules.a.every: the interval 9000h0m0s isn't one",
		"schedules: {a: {queue: q, every: 1m, splay: 25h}}":                  "schedules.a.splay: the splay 25h0m0s isn't one",
		"source: x":                             "the file has no schedules: write them, or schedules: {} for none",
		"sorce: x":                              "sorce",
		strings.Repeat("#", MaxSchedulesFile+1): "bytes",
	} {
		if _, err := ParseSchedules("s.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}
