package operator

import (
	"slices"
	"time"

	"github.com/qsidecar/qsidecar/backends"
)

func keyHolder(k *Kit) {
	key := "ключ 'x'; --"
	id := k.enqueue(backends.NewJob{Key: key, KeyTTL: time.Minute}, backends.NewJob{Key: "other", KeyTTL: time.Minute})[0]
	want := func(state backends.State) {
		k.Helper()
		if views := k.peek(backends.Peek{Key: key}); len(views) != 1 || views[0].ID != id || views[0].Key != key || views[0].State != state {
			k.Errorf("the job with the key: %+v, want %s, %s", views, id, state)
		}
	}
	want(backends.StateReady)
	for _, none := range []string{"ключ", "none"} {
		if ids := k.ids(backends.Peek{Key: none}); len(ids) != 0 {
			k.Errorf("jobs with the key %s: %q", none, ids)
		}
	}
	if views, err := k.inspector().Peek(k.Context(), backends.Peek{Queue: "p", Key: key, Max: 9}); err != nil || len(views) != 0 {
		k.Errorf("in another queue: %+v, %v", views, err)
	}
	jobs := k.claim(1)
	want(backends.StateClaimed)
	k.commit(0, backends.Nack{Leases: leases(jobs), Dead: true})
	want(backends.StateDead)
	k.operate(backends.Command{Kind: backends.Delete, IDs: []string{id}}, 1, false)
	if ids := k.ids(backends.Peek{Key: key}); len(ids) != 0 {
		k.Errorf("a deleted job: %q", ids)
	}
}

func onlyIDs(k *Kit) {
	all := k.enqueue(backends.NewJob{Payload: []byte("a")}, backends.NewJob{}, backends.NewJob{})
	views := k.peek(backends.Peek{State: backends.StateReady, OnlyIDs: true, After: all[0]})
	if len(views) != 2 || views[0].ID != all[1] || views[1].ID != all[2] {
		k.Errorf("the ids after %s: %+v, want %q", all[0], views, all[1:])
	}
	if ids := k.ids(backends.Peek{State: backends.StateReady, OnlyIDs: true, Max: 2}); !slices.Equal(ids, all[:2]) {
		k.Errorf("two ids: %q", ids)
	}
	if views := k.peek(backends.Peek{IDs: all[:1], OnlyIDs: true}); len(views) != 1 || views[0].ID != all[0] || views[0].Payload != nil {
		k.Errorf("only the id: %+v", views)
	}
}

func newestFirst(k *Kit) {
	for i := range k.enqueue(make([]backends.NewJob, 8)...) {
		if i%4 > 0 { // some finish in the same instant
			k.Advance(time.Second)
		}
		l := leases(k.claim(1))
		if i == 2 || i == 5 {
			k.commit(0, backends.Ack{Leases: l})
		} else {
			k.commit(0, backends.Nack{Leases: l, Dead: true})
		}
	}
	for _, state := range []backends.State{backends.StateDead, backends.StateDone} {
		oldest := k.ids(backends.Peek{State: state})
		want := slices.Clone(oldest)
		slices.Reverse(want)
		if got := k.ids(backends.Peek{State: state, Newest: true}); !slices.Equal(got, want) || len(got) < 1 {
			k.Errorf("%s: %q, want %q", state, got, want)
		}
	}
	want := k.ids(backends.Peek{State: backends.StateDead, Newest: true})
	for after := want; len(after) > 0; after = after[1:] {
		if got := k.ids(backends.Peek{State: backends.StateDead, Newest: true, After: after[0], Max: 3}); !slices.Equal(got, after[1:min(4, len(after))]) {
			k.Errorf("after %s: %q, want %q", after[0], got, after[1:])
		}
	}
	k.operate(backends.Command{Kind: backends.Retry, IDs: want[3:4]}, 1, true)
	left := slices.Delete(slices.Clone(want), 3, 4)
	if got := k.ids(backends.Peek{State: backends.StateDead, Newest: true, After: want[3]}); !slices.Equal(got, left) {
		k.Errorf("after a job that is ready again: %q, want all of %q", got, left)
	}
}
