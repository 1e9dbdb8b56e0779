package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/qsidecar/qsidecar/backends"
)

func noVariable(string) (string, bool) { return "", false }

func TestLimitsFile(t *testing.T) {
	got, err := parseLimits("limits.yaml", "queues:\n  api: {max_claimed: 3, rate: 100/s, burst: 20}\n  slow:\n    rate: 5/h\n  mail: {}\n  bulk:\n  orders: {group_limit: 2, group_on_failure: skip}\n  reports: {group_ready: 3}\n", noVariable)
	want := map[string]backends.Limits{
		"api":  {MaxClaimed: 3, Rate: backends.Rate{Jobs: 100, Per: time.Second}, Burst: 20},
		"slow": {Rate: backends.Rate{Jobs: 5, Per: time.Hour}},
		"mail": {}, "bulk": {},
		"orders":  {GroupLimit: 2, GroupOnFailure: backends.GroupSkips},
		"reports": {GroupReady: 3},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("(-want +got):\n%s%v", diff, err)
	}
}

// TestLimitsFileErrors checks that each mistake is reported with its line, and what to write.
func TestLimitsFileErrors(t *testing.T) {
	for src, want := range map[string]string{
		"":                                   "limits.yaml: the file has no queues: write them as in queues: {mail: {max_claimed: 3}}",
		"queue:\n  api: {}\n":                `limits.yaml:1:1: unknown key "queue": did you mean queues?`,
		"queues:\n  api: {max_claim: 3}\n":   `limits.yaml:2:9: unknown key "max_claim": did you mean max_claimed?`,
		"queues:\n  api:\n    timeout: 3s\n": `limits.yaml:3:5: unknown key "timeout"; known here: max_claimed, rate, burst, group_limit, group_on_failure, group_ready`,
		"queues:\n  api: {group_on_failure: keep}\n": `limits.yaml:2:9: queues.api.group_on_failure: "keep" isn't known: use hold or skip`,
		"limits:\n  api: {max_claimed: 3}\n":         `limits.yaml:1:1: unknown key "limits": did you mean queues?`,
		"queues:\n  api: {concurrency: 3}\n":         `limits.yaml:2:9: unknown key "concurrency": did you mean max_claimed?`,
		"max_claimed: 3\n":                           `limits.yaml:1:1: unknown key "max_claimed" here: it is a key of queues.NAME`,
		"queues:\n  api: {rate: 100/d}\n":            `limits.yaml:2:15: queues.api.rate: the rate "100/d" isn't one: use 1 to 1000000 jobs in a second, a minute or an hour`,
		"queues:\n  api: {rate: 100}\n":              `limits.yaml:2:15: queues.api.rate: the rate "100" isn't one`,
		"queues:\n  api: {rate: 100 / s}\n":          `queues.api.rate: the rate "100 / s" isn't one`,
		"queues:\n  api: {max_claimed: 3 jobs}\n":    `queues.api.max_claimed: "3 jobs" is not a whole number`,
		"queues:\n  api: {max_claimed: 1.5}\n":       `queues.api.max_claimed: "1.5" is not a whole number`,
		"queues:\n  api: {max_claimed: -1}\n":        "queues.api.max_claimed: -1 is outside 0 to 100000",
		"queues:\n  api: {max_claimed: 100001}\n":    "queues.api.max_claimed: 100001 is outside 0 to 100000",
		"queues:\n  api: {rate: 1/s, burst: -1}\n":   "queues.api.burst: -1 is outside 0 to 1000000",
		"queues:\n  api: {burst: 5}\n":               "limits.yaml:2:9: queues.api.burst: burst belongs to a rate: add rate, such as 100/s",
		"queues:\n  api: {max_claimed:}\n":           "queues.api.max_claimed has no value",
		"queues:\n  a b: {max_claimed: 3}\n":         `limits.yaml:2:3: queues.a b: "a b" is not a queue name`,
		"queues:\n  api: {}\n  api: {}\n":            `limits.yaml:3:3: the key "api" is here twice, first in line 2`,
		"queues: [api]\n":                            "queues: this should be a map (key: value)",
		"queues:\n  api: 3\n":                        "queues.api: this should be a map (key: value), as in {max_claimed: …}",
		"queues:\n\tapi: {}\n":                       "limits.yaml:2:1: a tab is in the indentation",
		"queues:\n  api: &a {}\n":                    "anchors, aliases and tags are not used",
	} {
		_, err := parseLimits("limits.yaml", src, noVariable)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "limits.yaml has 1 error\n") {
			t.Errorf("%q:\n%v\nwant %s", src, err, want)
		}
	}
	_, err := parseLimits("limits.yaml", "queues:\n  api: {rate: fast, burst: 5}\n  b: {max: 1}\n", noVariable)
	if err == nil || !strings.HasPrefix(err.Error(), "limits.yaml has 2 errors\n") {
		t.Errorf("two mistakes: %v", err)
	}
}
