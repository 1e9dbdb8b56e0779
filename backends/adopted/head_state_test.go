package adopted

import (
	"testing"
	"time"
)

// TestOlderScanMovesNoHead: a scan from a row that began before one from the beginning must not pass the row that the latter found.
func TestOlderScanMovesNoHead(t *testing.T) {
	t.Parallel()
	var h head
	now := time.Now()
	_, older := h.start(now, 0)
	_, resets := h.start(now, 0)
	h.found([]string{"5"}, resets, true, now, now)
	h.found([]string{"9"}, older, false, now, now)
	if h.at[0] != "5" {
		t.Errorf("the head is %q, and row 5 is ready", h.at)
	}
}

// TestSlowestScansFromTheBeginning: however long they take, one is due after rarestScan.
func TestSlowestScansFromTheBeginning(t *testing.T) {
	t.Parallel()
	var h head
	now := time.Now()
	for range 2 { // one slow scan is chance
		_, resets := h.start(now, 0)
		h.found([]string{"5"}, resets, true, now, now.Add(time.Hour))
	}
	if at, _ := h.start(now.Add(rarestScan-1), 0); at == nil {
		t.Error("a scan from the beginning is due too early")
	}
	if at, _ := h.start(now.Add(rarestScan), 0); at != nil {
		t.Errorf("%v after the last scan from the beginning, a claim starts at %q", rarestScan, at)
	}
}
