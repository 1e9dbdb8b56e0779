package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/qsidecar/qsidecar/protocol"
)

// wireFields returns the fields of a reply as the JSON codec encodes them, so that --json
// uses the protocol's names.
func wireFields(rep *protocol.Reply) (map[string]json.RawMessage, error) {
	bare := *rep
	bare.ID = protocol.RequestID{}
	fields := make(map[string]json.RawMessage)
	if err := json.Unmarshal(protocol.JSON.AppendReply(nil, &bare), &fields); err != nil {
		return nil, fmt.Errorf("writing the answer as JSON: %w", err)
	}
	delete(fields, "ok")
	return fields, nil
}

// printReply writes a reply as one JSON line.
func (a *app) printReply(rep *protocol.Reply) error {
	fields, err := wireFields(rep)
	if err != nil {
		return err
	}
	return a.printJSON(fields)
}

// printJSON writes one JSON line.
func (a *app) printJSON(fields map[string]json.RawMessage) error {
	line, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("writing the answer as JSON: %w", err)
	}
	_, err = a.out.Write(append(line, '\n'))
	return err
}

// printEach writes each element of a reply's list as one JSON line.
func (a *app) printEach(rep *protocol.Reply, list string) error {
	fields, err := wireFields(rep)
	if err != nil {
		return err
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(fields[list], &elements); err != nil {
		return fmt.Errorf("writing the answer as JSON: %w", err)
	}
	w := bufio.NewWriter(a.out)
	for _, e := range elements {
		_, _ = w.Write(append(e, '\n')) // Flush returns the error
	}
	return w.Flush()
}

// table writes rows in columns.
func (a *app) table(head string, rows [][]string) error {
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.ReplaceAll(head, " ", "\t"))
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// printf writes one line to stdout.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format+"\n", args...)
	return err
}

// shortLease identifies a lease without showing it, because the lease is the right to
// settle.
func shortLease(s string) string {
	if len(s) <= 12 {
		return s[:min(len(s), 4)] + "…"
	}
	return s[:8] + "…" + s[len(s)-4:]
}

// shellQuote returns s as one word of a POSIX shell. s must not contain NUL.
func shellQuote(s string) string {
	if s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:@%+=,-") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// readLine reads up to a newline byte by byte, so it consumes no later input.
func readLine(r io.Reader) (string, error) {
	var b [1]byte
	var line strings.Builder
	for line.Len() < 1024 {
		n, err := r.Read(b[:])
		if n == 1 {
			if b[0] == '\n' {
				break
			}
			line.WriteByte(b[0])
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return line.String(), nil
}
