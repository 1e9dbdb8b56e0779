package core

import (
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// Number returns a job's id as the table stores it. ok is false if the text isn't an id. A plain INSERT can store a
// negative one.
func Number(id string) (n int64, ok bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n != 0 && strconv.FormatInt(n, 10) == id
}

// ID returns the text of an id. It is the inverse of Number.
func ID(n int64) string { return strconv.FormatInt(n, 10) }

// MS returns d in milliseconds, rounded up, so that a requested time lasts at least that long.
func MS(d time.Duration) int64 {
	n := d.Milliseconds()
	if d > time.Duration(n)*time.Millisecond {
		n++
	}
	return n
}

// FromMS is the inverse of MS. If a Duration can't hold the time, it returns the longest one.
func FromMS(n int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-most, min(n, most))) * time.Millisecond
}

// ReadHeaders parses a JSON object. If a plain INSERT stored a value that isn't text, the header is the value's
// JSON. If Go can't parse the object (it is nested more than 10,000 deep), the whole text is the header of the
// empty name: one such row must not keep other jobs from being claimed.
func ReadHeaders(s string) map[string]string {
	if s == "" {
		return nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &raw); err != nil {
		return map[string]string{"": s}
	}
	if len(raw) == 0 {
		return nil
	}
	headers := make(map[string]string, len(raw))
	for k, v := range raw {
		var text string
		if json.Unmarshal(v, &text) != nil || string(v) == "null" {
			text = string(v)
		}
		headers[k] = text
	}
	return headers
}
