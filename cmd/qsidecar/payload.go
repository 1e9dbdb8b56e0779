package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/qsidecar/qsidecar/internal/textfmt"
	"github.com/qsidecar/qsidecar/protocol"
)

// payloadFormat is how enqueue stores a payload. At most one of its fields is set,
// because --raw and --text take precedence over --json. Without any, a JSON value is stored
// as it is, and any other text as a JSON string.
type payloadFormat struct {
	raw  bool // the bytes as they are
	text bool // a JSON string, also if the text is a JSON value
	json bool // a JSON value, or an error

	fileName  bool  // a text looks like the @FILE of other programs
	lookalike error // why the first text that looks like JSON isn't; nil: there was none
}

// warn reports a text that was probably meant as JSON, and was stored as a string.
func (p *payloadFormat) warn(a *app) {
	if p.lookalike != nil {
		fmt.Fprintf(a.errOut, "qsidecar: a payload looks like JSON and isn't (%v), so it was stored as a text: correct it, or add --text, or --raw for its bytes as they are\n", p.lookalike)
	}
	if p.fileName {
		fmt.Fprintln(a.errOut, "qsidecar: a payload begins with @ and was stored as it is: to send the contents of a file, write < FILE; --text stores a text without this warning")
	}
}

// fileName matches the @FILE of other programs.
var fileName = regexp.MustCompile(`^@\S*[/.]\S*$`)

// payloadFlags adds the flags of a payload's format, and --json.
func (a *app) payloadFlags(cmd *cobra.Command, f *payloadFormat) {
	cmd.Flags().BoolVar(&a.json, "json", false, "the payload must be JSON; answer in JSON lines, for programs")
	cmd.Flags().BoolVar(&f.text, "text", false, "store the payload as a JSON string, also if it is JSON")
	cmd.Flags().BoolVar(&f.raw, "raw", false, "store the payload's bytes as they are")
}

// check completes f with --json.
func (p *payloadFormat) check(json bool) error {
	if p.raw && p.text {
		return usagef("--raw and --text exclude each other: leave one of them out")
	}
	p.json = json && !p.raw && !p.text
	return nil
}

// encode returns the bytes to store for a payload that the user gave.
func (p *payloadFormat) encode(given []byte) ([]byte, error) {
	if p.raw {
		return given, nil
	}
	if !utf8.Valid(given) {
		return nil, usagef("the payload is not text, but has bytes that are not UTF-8: add --raw to store the bytes as they are")
	}
	if json.Valid(given) && !p.text {
		return given, nil
	}
	if !p.text {
		var value json.RawMessage
		err := json.Unmarshal(given, &value)
		if p.json {
			return nil, usagef("the payload is not JSON (%w): correct it, or add --text or --raw", err)
		}
		p.fileName = p.fileName || fileName.Match(given)
		if start := bytes.TrimLeft(given, " \t\r\n"); p.lookalike == nil && len(start) > 0 && (start[0] == '{' || start[0] == '[') {
			p.lookalike = err
		}
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(string(given)); err != nil {
		return nil, fmt.Errorf("writing the payload as JSON: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// storedPayload describes a payload that enqueue stored. It is part of the output of --json.
type storedPayload struct {
	Type  string `json:"type"` // of the JSON value; "bytes" of a raw payload, "none" without a payload
	Bytes int    `json:"bytes"`
}

// stored describes the payload of a job.
func (p *payloadFormat) stored(job protocol.NewJob) storedPayload {
	s := storedPayload{Type: "number", Bytes: len(job.Payload)}
	value := bytes.TrimLeft(job.Payload, " \t\r\n")
	switch {
	case job.Payload == nil:
		s.Type = "none"
	case p.raw:
		s.Type = "bytes"
	case bytes.HasPrefix(value, []byte("{")):
		s.Type = "object"
	case bytes.HasPrefix(value, []byte("[")):
		s.Type = "array"
	case bytes.HasPrefix(value, []byte(`"`)):
		s.Type = "string"
	case bytes.HasPrefix(value, []byte("n")):
		s.Type = "null"
	case bytes.HasPrefix(value, []byte("t")), bytes.HasPrefix(value, []byte("f")):
		s.Type = "boolean"
	}
	return s
}

// String describes the payload for people.
func (s storedPayload) String() string {
	size := textfmt.Plural(int64(s.Bytes), "byte")
	switch s.Type {
	case "none":
		return "no payload"
	case "bytes":
		return "raw payload, " + size
	}
	return fmt.Sprintf("JSON %s, %s", s.Type, size)
}

// printEnqueued prints the answer to an enqueue of one job as a line of JSON. Beside the
// answer it has what was stored, unless the job is a duplicate.
func (a *app) printEnqueued(rep *protocol.Reply, format *payloadFormat, job protocol.NewJob) error {
	fields, err := wireFields(rep)
	if err == nil && !rep.Enqueued.Duplicate {
		fields["stored"], err = json.Marshal(format.stored(job))
	}
	if err != nil {
		return err
	}
	return a.printJSON(fields)
}

// printAllEnqueued prints a line of JSON for each job of a list.
func (a *app) printAllEnqueued(rep *protocol.Reply, format *payloadFormat, jobs []protocol.NewJob) error {
	fields, err := wireFields(rep)
	if err != nil {
		return err
	}
	var all []map[string]json.RawMessage
	if err := json.Unmarshal(fields["jobs"], &all); err != nil {
		return fmt.Errorf("writing the answer as JSON: %w", err)
	}
	var lines bytes.Buffer
	e := json.NewEncoder(&lines)
	for i, job := range all {
		if _, duplicate := job["duplicate"]; !duplicate && i < len(jobs) {
			if job["stored"], err = json.Marshal(format.stored(jobs[i])); err != nil {
				return err
			}
		}
		if err := e.Encode(job); err != nil {
			return fmt.Errorf("writing the answer as JSON: %w", err)
		}
	}
	_, err = a.out.Write(lines.Bytes())
	return err
}
