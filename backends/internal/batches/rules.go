package batches

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"

	"github.com/qsidecar/qsidecar/backends"
)

// ID returns the text of a batch's number.
func ID(n int64) string { return strconv.FormatInt(n, 10) }

// Number is the inverse of ID.
func Number(id string) (n int64, ok bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n > 0 && ID(n) == id
}

// NewNumber returns the number of a new batch. It is random: a client with several databases can't mistake one batch for another.
func NewNumber() int64 { return 1 + rand.Int64N(1<<62) }

// Check checks a new batch.
func Check(b *backends.NewBatch) error {
	switch c := &b.Callback; {
	case b.On != backends.OnSuccess && b.On != backends.OnFinish:
		return fmt.Errorf("a batch can't store its callback on %q", b.On)
	case len(c.Payload) > backends.MaxBatchPayload:
		return backends.Refused(fmt.Errorf("the payload of the batch's callback has %d bytes, and at most %d are allowed: store where the job finds more", len(c.Payload), backends.MaxBatchPayload))
	case c.Key != "" || c.Delay != 0 || !c.RunAt.IsZero():
		return errors.New("the callback of a batch has neither a key nor a time")
	}
	return nil
}

// Counts are the members of a batch.
type Counts struct{ Done, Failed, Left int64 }

// CanEnd reports whether a closed batch with these members ends.
func (c Counts) CanEnd(on backends.BatchCondition) bool {
	return c.Left == 0 && (on == backends.OnFinish || c.Failed == 0)
}

// Callback returns the job that a batch stores at its end.
func Callback(id string, job backends.NewJob, c Counts) backends.NewJob {
	headers := map[string]string{}
	maps.Copy(headers, job.Headers)
	headers[backends.CallbackHeader] = id
	headers[backends.BatchDoneHeader] = strconv.FormatInt(c.Done, 10)
	headers[backends.BatchFailedHeader] = strconv.FormatInt(c.Failed, 10)
	job.Headers = headers
	return job
}

// InBatch returns the job with the header that names its batch.
func InBatch(job backends.NewJob, batch string) backends.NewJob {
	headers := map[string]string{backends.BatchHeader: batch}
	maps.Copy(headers, job.Headers)
	job.Headers = headers
	return job
}
