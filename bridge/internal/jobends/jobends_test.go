package jobends

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

// TestJobIsGoneAfterTwoQueriesInARow shows that a job counts as deleted if two queries in a row, goneAfter apart, don't find it. One that
// did not find it before its enqueue was committed does not count.
func TestJobIsGoneAfterTwoQueriesInARow(t *testing.T) {
	for name, query := range map[string]func(h *Hub, w *Wait) error{
		"by id":    func(_ *Hub, w *Wait) error { return w.Look(t.Context(), false) },
		"find all": func(h *Hub, _ *Wait) error { return h.findGone(t.Context(), "q") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				exists := false
				h := New(func(_ context.Context, p backends.Peek) ([]backends.View, error) {
					if exists && p.State == "" {
						return []backends.View{{ID: "1", State: backends.StateReady}}, nil
					}
					return nil, nil
				})
				w, err := h.Wait("q", []string{"1"})
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				for i, c := range []struct{ exists, gone bool }{{false, false}, {true, false}, {false, false}, {false, true}} {
					exists = c.exists
					if err := query(h, w); err != nil {
						t.Fatal(err)
					}
					if all, _ := w.Ended(); c.gone != (len(all) == 1) {
						t.Errorf("after query %d it ended as %+v, want an end: %v", i+1, all, c.gone)
					}
					time.Sleep(goneAfter)
				}
			})
		})
	}
}
