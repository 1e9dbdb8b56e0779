package queueset

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSetKeepsEachQueueOnce(t *testing.T) {
	s := New()
	s.Add()
	s.Add("a", "b")
	s.Add("a")
	got := s.Wait(t.Context())
	slices.Sort(got)
	if diff := cmp.Diff([]string{"a", "b"}, got); diff != "" {
		t.Error(diff)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if got := s.Wait(ended); got != nil {
		t.Errorf("the empty set gave %q", got)
	}
}

func TestSetIsBounded(t *testing.T) {
	s := New()
	for i := range 10 * maximum {
		s.Add(fmt.Sprint("q", i))
	}
	got := s.Wait(t.Context())
	if len(got) != maximum+1 || !slices.Contains(got, "") {
		t.Errorf("%d queues, want %d and the one that stands for the rest", len(got), maximum)
	}
}
