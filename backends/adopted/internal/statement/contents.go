package statement

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/qsidecar/qsidecar/backends"
	"github.com/qsidecar/qsidecar/backends/adopted/mapping"
)

// readContents reads the payload and the headers from the cells of their columns.
func (q *Queue) readContents(cells [][]byte) (payload []byte, headers map[string]string, err error) {
	payload, err = q.readPayload(cells[:len(q.Payload)])
	for i, c := range q.Headers {
		cell := cells[len(q.Payload)+i]
		if cell == nil {
			continue
		}
		if headers == nil {
			headers = map[string]string{}
		}
		headers[c.Name] = string(cell)
	}
	return payload, headers, err
}

// readPayload is one column as it is, or several as the JSON text of a map.
func (q *Queue) readPayload(cells [][]byte) ([]byte, error) {
	switch len(cells) {
	case 0:
		return nil, nil
	case 1:
		return append([]byte{}, cells[0]...), nil
	}
	m := make(map[string]any, len(cells))
	for i, c := range q.Payload {
		m[c.Name] = jsonValue(c, cells[i])
	}
	var text bytes.Buffer
	to := json.NewEncoder(&text)
	to.SetEscapeHTML(false)
	if err := to.Encode(m); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// jsonValue is a column's value in JSON. What JSON cannot express (the number NaN, an invalid text
// in a JSON column of an engine that does not check it) is a string.
func jsonValue(c backends.Column, cell []byte) any {
	switch {
	case cell == nil:
		return nil
	case c.Kind == backends.BytesColumn:
		return bytes.Clone(cell) // as base64
	case c.Kind == backends.BoolColumn && mapping.Truth(string(cell)) != "":
		return mapping.Truth(string(cell)) == "true"
	case (c.Kind == backends.JSONColumn || c.Kind == backends.NumberColumn) && json.Valid(cell):
		return json.RawMessage(bytes.Clone(cell))
	}
	return string(cell)
}

// contents stores the payload and the headers.
func (r *row) contents(j backends.NewJob) error {
	payload, headers := r.queue.Payload, r.queue.Headers
	if len(payload) == 1 && (j.Payload != nil || !payload[0].Nullable) {
		r.putText(payload[0], string(j.Payload))
	}
	if len(payload) > 1 && len(j.Payload) > 0 {
		if err := r.payloadMap(j.Payload); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(j.Headers)) { // sorted, so that the server sees few different statements
		i := slices.IndexFunc(headers, func(c backends.Column) bool { return c.Name == name })
		if i < 0 {
			return r.queue.unsupported(mapping.Headers, fmt.Sprintf("the header %q cannot be stored", name))
		}
		r.putText(headers[i], j.Headers[name])
	}
	return nil
}

// payloadMap stores a payload of several columns: the JSON text of a map.
func (r *row) payloadMap(payload []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(payload, &m); err != nil {
		return backends.Refused(fmt.Errorf("the payload of a job of the queue %s must be the JSON text of a map from columns to values: %w", r.queue.Queue, err))
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		i := slices.IndexFunc(r.queue.Payload, func(c backends.Column) bool { return c.Name == name })
		if i < 0 {
			return backends.Refused(fmt.Errorf("the payload has the key %q, which is not a payload column of the queue %s", name, r.queue.Queue))
		}
		c, text := r.queue.Payload[i], string(m[name])
		var word string
		switch {
		case text == "null":
			r.put(c, "NULL")
			continue
		case c.Kind == backends.JSONColumn:
		case json.Unmarshal(m[name], &word) == nil:
			text = word
		}
		if c.Kind == backends.BytesColumn {
			raw, err := base64.StdEncoding.DecodeString(text)
			if err != nil {
				return backends.Refused(fmt.Errorf("the payload's key %q holds bytes, in base64: %w", name, err))
			}
			text = string(raw)
		}
		r.putText(c, text)
	}
	return nil
}
