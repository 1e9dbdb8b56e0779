package sqlserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
)

// step is one thing that the emulator does. Steps of a statement come from
// testdata/tsql/translate.py, which documents the values of What. The batch reader adds
// "if", "while", "break", "continue" and "rollback".
type step struct {
	What   string   `json:"what"`
	Names  []string `json:"names,omitempty"`
	Kind   string   `json:"kind,omitempty"`
	Query  string   `json:"query,omitempty"`
	Number int      `json:"number,omitempty"`
	yes    []step
	no     []step
}

// translated is one line of translationsFile.
type translated struct {
	TSQL  string `json:"tsql"`
	Steps []step `json:"steps"`
}

// translationsFile holds the PostgreSQL form of every statement that the tests emulate.
// With it, the tests need neither Python nor its packages, and they translate nothing.
const translationsFile = "testdata/tsql/translations.jsonl"

// translations turns batches of T-SQL into steps for PostgreSQL, for any schema. It reads
// the statements' steps from translationsFile. With -update it has translate.py translate
// the statements that the file lacks.
type translations struct {
	mu      sync.Mutex
	batches map[string][]step // by the batch's text
	known   map[string][]step // by the statement's text
	used    map[string]bool
	python  *translator // runs only with -update
}

func readTranslations() (*translations, error) {
	text, err := os.ReadFile(translationsFile)
	if err != nil && !(*update && errors.Is(err, os.ErrNotExist)) {
		return nil, err
	}
	t := &translations{batches: map[string][]step{}, known: map[string][]step{}, used: map[string]bool{}}
	for line := range bytes.Lines(text) {
		var one translated
		if err := json.Unmarshal(line, &one); err != nil {
			return nil, fmt.Errorf("%s: %w", translationsFile, err)
		}
		t.known[one.TSQL] = one.Steps
	}
	return t, nil
}

// steps returns the steps of a batch for a schema.
func (t *translations) steps(text, schema string) (steps []step, err error) {
	text = strings.ReplaceAll(text, quoteName(schema)+".", "[qsidecar].")
	t.mu.Lock()
	defer t.mu.Unlock()
	if steps, ok := t.batches[text]; ok {
		return steps, nil
	}
	if strings.Contains(text, "CREATE TABLE") {
		steps, err = t.statement(text)
	} else {
		steps, err = readBatch(text, t.statement)
	}
	if err == nil {
		t.batches[text] = steps
	}
	return steps, err
}

// statement returns the steps of one statement.
func (t *translations) statement(text string) ([]step, error) {
	t.used[text] = true
	if steps, ok := t.known[text]; ok {
		return steps, nil
	}
	if !*update {
		return nil, fmt.Errorf("%s has no line for this statement: run go test ./backends/sqlserver -update\n%s", translationsFile, text)
	}
	if t.python == nil {
		var err error
		if t.python, err = startTranslator(); err != nil {
			return nil, err
		}
	}
	steps, err := t.python.translate(text)
	if err == nil {
		t.known[text] = steps
	}
	return steps, err
}

// close ends the translator. With -update it writes translationsFile, and if all tests
// ran, it leaves out the statements that none of them used.
func (t *translations) close() error {
	if !*update {
		return nil
	}
	all := flag.Lookup("test.run").Value.String() == ""
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	for _, text := range slices.Sorted(maps.Keys(t.known)) {
		if all && !t.used[text] {
			continue
		}
		if err := to.Encode(translated{text, t.known[text]}); err != nil {
			return err
		}
	}
	err := os.WriteFile(translationsFile, b.Bytes(), 0o644)
	if t.python != nil {
		err = errors.Join(err, t.python.stop())
	}
	return err
}

// TestTranslations shows that translationsFile holds what translate.py answers.
func TestTranslations(t *testing.T) {
	t.Parallel()
	if testing.Short() || *update {
		t.Skip("make check runs this")
	}
	committed, err := readTranslations()
	if err != nil {
		t.Fatal(err)
	}
	python, err := startTranslator()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := python.stop(); err != nil {
			t.Error(err)
		}
	}()
	for text, steps := range committed.known {
		now, err := python.translate(text)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(now, steps) {
			t.Fatalf("%s is not what translate.py answers: remove it and run go test ./backends/sqlserver -update\n%s\n%+v\n%+v", translationsFile, text, steps, now)
		}
	}
	if len(committed.known) < 100 {
		t.Errorf("%s has only %d statements", translationsFile, len(committed.known))
	}
}

// translator is a process of testdata/tsql/translate.py.
type translator struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startTranslator() (*translator, error) {
	t := &translator{cmd: exec.Command("../../scripts/tsql.sh", "translate")}
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

func (t *translator) translate(text string) ([]step, error) {
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
		Steps []step
		Error string
	}
	if err := json.Unmarshal(t.out.Bytes(), &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("translate.py: %s\n%s", answer.Error, text)
	}
	return answer.Steps, nil
}
