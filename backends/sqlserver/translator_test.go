package sqlserver

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// translator is a process of testdata/tsql/translate.py: it turns a batch of T-SQL
// into steps for PostgreSQL. It keeps them, for any schema.
type translator struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner

	mu    sync.Mutex
	known map[string][]step
}

// step is one of those that translate.py describes.
type step struct {
	what   string
	names  []string
	kind   string
	query  string
	number int
	yes    []step
	no     []step
}

func startTranslator() (*translator, error) {
	t := &translator{cmd: exec.Command("../../scripts/tsql.sh", "translate"), known: map[string][]step{}}
	t.cmd.Stderr = os.Stderr
	var err error
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewScanner(out)
	t.out.Buffer(nil, 1<<24)
	return t, t.cmd.Start()
}

func (t *translator) stop() error {
	return errors.Join(t.in.Close(), t.cmd.Wait())
}

// steps are those of a batch for that schema.
func (t *translator) steps(text, schema string) ([]step, error) {
	text = strings.ReplaceAll(text, quoteName(schema)+".", "[qsidecar].")
	t.mu.Lock()
	defer t.mu.Unlock()
	if steps, ok := t.known[text]; ok {
		return steps, nil
	}
	line, err := json.Marshal(text)
	if err != nil {
		return nil, err
	}
	if _, err := t.in.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	if !t.out.Scan() {
		return nil, fmt.Errorf("translate.py ended: %w", t.out.Err())
	}
	var answer struct {
		Steps []json.RawMessage
		Error string
	}
	if err := json.Unmarshal(t.out.Bytes(), &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("translate.py: %s\n%s", answer.Error, text)
	}
	steps, err := readSteps(answer.Steps)
	if err == nil {
		t.known[text] = steps
	}
	return steps, err
}

func readSteps(all []json.RawMessage) (steps []step, err error) {
	for _, raw := range all {
		var parts []json.RawMessage
		if err := json.Unmarshal(raw, &parts); err != nil {
			return nil, err
		}
		var s step
		into := map[string][]any{
			"declare": {&s.names, &s.kind, &s.query}, "list": {&s.query}, "assign": {&s.names, &s.query}, "select": {&s.query}, "do": {&s.query},
			"if": {&s.query, &s.yes, &s.no}, "while": {&s.query, &s.yes}, "patience": {&s.number},
		}
		if err := json.Unmarshal(parts[0], &s.what); err != nil {
			return nil, err
		}
		for i, to := range into[s.what] {
			if steps, ok := to.(*[]step); ok {
				var inner []json.RawMessage
				if err = json.Unmarshal(parts[i+1], &inner); err == nil {
					*steps, err = readSteps(inner)
				}
			} else if s.what == "declare" && i == 0 {
				s.names = []string{""}
				err = json.Unmarshal(parts[i+1], &s.names[0])
			} else {
				err = json.Unmarshal(parts[i+1], to)
			}
			if err != nil {
				return nil, err
			}
		}
		steps = append(steps, s)
	}
	return steps, nil
}
