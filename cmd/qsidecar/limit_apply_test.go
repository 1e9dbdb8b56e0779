package main

import (
	"reflect"
	"testing"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestLimitsFileHasEachLimit checks that a file of limits neither passes over a limit of a queue nor removes it unseen.
func TestLimitsFileHasEachLimit(t *testing.T) {
	full := backends.Limits{MaxClaimed: 3, Rate: backends.Rate{Jobs: 5, Per: 1_000_000_000}, Burst: 7, GroupLimit: 2, GroupOnFailure: backends.GroupSkips, GroupReady: 4}
	for i := range reflect.TypeFor[backends.Limits]().NumField() {
		name := reflect.TypeFor[backends.Limits]().Field(i).Name
		if reflect.ValueOf(full).Field(i).IsZero() {
			t.Errorf("the test doesn't set %s", name)
		}
		less := full
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		if d := (limitsChange{"q", full, less}); len(d.texts()) == 0 {
			t.Errorf("the loss of %s isn't printed", name)
		}
	}
	req := (&limitsChange{"q", backends.Limits{}, full}).request()
	stat := protocol.QueueStat{MaxClaimed: req.MaxClaimed, Rate: req.Rate, Burst: req.Burst, GroupLimit: req.GroupLimit, GroupOnFailure: req.GroupOnFailure, GroupReady: req.GroupReady}
	if got := limitsOf(&stat); got != full {
		t.Errorf("the request sets %+v, want %+v", got, full)
	}
}
