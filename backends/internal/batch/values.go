package batch

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Number is a job's id as the table has it; ok is false for what is none.
func Number(id string) (n int64, ok bool) {
	n, err := strconv.ParseInt(id, 10, 64)
	return n, err == nil && n > 0 && strconv.FormatInt(n, 10) == id
}

// ID is the opposite of Number.
func ID(n int64) string { return strconv.FormatInt(n, 10) }

// MS is d in milliseconds, rounded up: what was asked for lasts at least so long.
func MS(d time.Duration) int64 {
	n := d.Milliseconds()
	if d > time.Duration(n)*time.Millisecond {
		n++
	}
	return n
}

// FromMS is the opposite of MS.
func FromMS(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// ReadHeaders reads a JSON object. What a plain INSERT put there that is no text
// is given as its JSON.
func ReadHeaders(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(s), &raw); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	if len(raw) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(raw))
	for k, v := range raw {
		var text string
		if json.Unmarshal(v, &text) != nil || string(v) == "null" {
			text = string(v)
		}
		headers[k] = text
	}
	return headers, nil
}
