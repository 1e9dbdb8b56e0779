package qsidecar_test

import (
	"math"
	"reflect"
	"strings"
	"testing"

	qsidecar "github.com/qsidecar/qsidecar/clients/go"
	"github.com/qsidecar/qsidecar/protocol"
)

// TestPayloadsAreJSON checks that NewJob stores JSON, and that Decode reads it.
func TestPayloadsAreJSON(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		payload any
		stored  string
		read    any
	}{
		{"hello, <world> \u2603", "\"hello, <world> \u2603\"", "hello, <world> \u2603"},
		{17, "17", 17.0},
		{map[string]string{"to": "ada"}, `{"to":"ada"}`, map[string]any{"to": "ada"}},
		{nil, "null", nil},
	} {
		job, err := qsidecar.NewJob("mail", row.payload)
		if err != nil || job.Queue != "mail" || string(job.Payload) != row.stored {
			t.Errorf("%v is stored as %q in %q (%v), want %s", row.payload, job.Payload, job.Queue, err, row.stored)
		}
		var read any
		if err := qsidecar.Decode(&protocol.Job{Payload: job.Payload}, &read); err != nil || !reflect.DeepEqual(read, row.read) {
			t.Errorf("%s is read as %v (%v), want %v", job.Payload, read, err, row.read)
		}
	}
	read := any("unchanged")
	job := &qsidecar.Job{Job: protocol.Job{ID: "17", Queue: "mail"}}
	if err := job.Decode(&read); err != nil || read != nil {
		t.Errorf("an empty payload is read as %v (%v), want nil", read, err)
	}
	job.Payload = []byte("\xff")
	if err := job.Decode(&read); err == nil || !strings.Contains(err.Error(), "job 17 of mail") || !strings.Contains(err.Error(), "Payload") {
		t.Errorf("bytes that are not JSON: %v, want an error that names the job and Payload", err)
	}
	if _, err := qsidecar.NewJob("mail", math.Inf(1)); err == nil || !strings.Contains(err.Error(), "protocol.NewJob") {
		t.Errorf("a value that can't be JSON: %v", err)
	}
}
