package qsidecar

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/qsidecar/qsidecar/protocol"
)

// NewJob returns a job for a queue with a payload that is stored as JSON, as the clients in all
// languages read it. Set its other fields before the Enqueue. To store bytes that are not JSON, use
// a protocol.NewJob with these bytes as its Payload.
func NewJob(queue string, payload any) (protocol.NewJob, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(payload); err != nil {
		return protocol.NewJob{}, fmt.Errorf("qsidecar: the payload of a job for %s can't be JSON (for bytes use protocol.NewJob): %w", queue, err)
	}
	return protocol.NewJob{Queue: queue, Payload: bytes.TrimSuffix(b.Bytes(), []byte("\n"))}, nil
}

// Decode stores the JSON value of a job's payload in the variable that v points to, as
// json.Unmarshal does. An empty payload counts as null. The bytes are in job.Payload.
func Decode(job *protocol.Job, v any) error {
	payload := job.Payload
	if len(payload) == 0 {
		payload = []byte("null")
	}
	if err := json.Unmarshal(payload, v); err != nil {
		return fmt.Errorf("qsidecar: the payload of job %s of %s can't be decoded as JSON (its bytes are in Payload): %w", job.ID, job.Queue, err)
	}
	return nil
}

// Decode stores the JSON value of the payload in the variable that v points to. See the function
// Decode.
func (j *Job) Decode(v any) error { return Decode(&j.Job, v) }
