// Command kit is the conformance kit for clients of the qsidecar protocol. It plays a misbehaving
// sidecar on its own socket and checks what a client does.
//
//	go run ./clients/kit [-only NAME,…] [-codec json|msgpack] -- ADAPTER [ARG…]
//
// ADAPTER is a small program around the client under test. README.md describes the lines that it
// reads and writes. Each scenario checks one of the numbered reactions of clients/README.md, with
// its own adapter process and socket. The exit code is 0 if the client has all reactions, 1 if it
// lacks one, 2 if the kit could not run.
//
// Start with scenarios.go, the list of all scenarios. sidecar.go is the fake sidecar, adapter.go
// the client's side. The kit uses package protocol and its transcripts.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// kit is one run: the adapter to test and the options.
type kit struct {
	adapter     []string
	codec       string // json, msgpack, or empty for the client's own choice
	only        []string
	dir         string // directory of the sockets
	transcripts string
	patience    time.Duration
	parallel    int
	verbose     bool
}

func main() {
	k, err := parse(os.Args[1:], os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		os.Exit(0)
	case err != nil:
		fmt.Fprintln(os.Stderr, "kit:", err)
		os.Exit(exitUsage)
	}
	failed, err := k.run(os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kit:", err)
		os.Exit(exitUsage)
	}
	if failed > 0 {
		os.Exit(exitFailed)
	}
}

func parse(args []string, out io.Writer) (*kit, error) {
	var k kit
	flags := flag.NewFlagSet("kit", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		fmt.Fprint(out, "usage: kit [flags] -- ADAPTER [ARG…]\n\n"+
			"Runs the scenarios of clients/README.md against the client behind ADAPTER.\n\n")
		flags.PrintDefaults()
	}
	only := flags.String("only", "", "run these scenarios, with commas between; NAME* takes all that begin so")
	flags.StringVar(&k.codec, "codec", "", "the codec that the client must speak, json or msgpack: the adapter finds it in QSIDECAR_CODEC")
	flags.StringVar(&k.dir, "dir", "", "the folder to make sockets in (default: a new one below the system's for temporary files)")
	flags.StringVar(&k.transcripts, "transcripts", filepath.FromSlash("protocol/testdata/transcripts"), "the folder of the protocol's transcripts")
	flags.DurationVar(&k.patience, "patience", time.Minute, "how long the client may take for anything that it must do")
	flags.IntVar(&k.parallel, "j", 4*runtime.NumCPU(), "scenarios at once: most of their time is waiting")
	flags.BoolVar(&k.verbose, "v", false, "show every conversation, also those that went well")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	k.adapter = flags.Args()
	switch {
	case len(k.adapter) == 0:
		return nil, errors.New("name the adapter to run, after --")
	case !slices.Contains([]string{"", "json", "msgpack"}, k.codec):
		return nil, fmt.Errorf("-codec must be json or msgpack, not %q", k.codec)
	case k.parallel < 1 || k.patience <= 0:
		return nil, errors.New("-j and -patience must be more than nothing")
	}
	if *only != "" {
		k.only = strings.Split(*only, ",")
	}
	return &k, nil
}

// run plays the chosen scenarios and reports the results in order.
func (k *kit) run(out io.Writer) (failed int, err error) {
	if k.dir == "" {
		// A socket's path must be short, so use the system's temporary directory.
		if k.dir, err = os.MkdirTemp("", "kit"); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(k.dir)) }()
	}
	chosen, err := k.chosen()
	if err != nil {
		return 0, err
	}
	results := make([]chan *result, len(chosen))
	free := make(chan struct{}, k.parallel) // limits the scenarios that run at once
	var all sync.WaitGroup
	defer all.Wait()
	for i, sc := range chosen {
		results[i] = make(chan *result, 1) // the reporter can be behind
		all.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			results[i] <- k.play(sc, i)
		})
	}
	for i := range results {
		r := <-results[i]
		if r.failure != nil {
			failed++
		}
		if _, err := io.WriteString(out, r.report(k.verbose)); err != nil {
			return failed, err
		}
	}
	_, err = fmt.Fprintf(out, "%d scenarios, %d failed\n", len(chosen), failed)
	return failed, err
}

// chosen returns the scenarios of -only. It rejects unknown names, because a misspelt one would
// always pass.
func (k *kit) chosen() ([]scenario, error) {
	all := slices.Clone(scenarios)
	more, err := transcriptScenarios(k.transcripts)
	if err != nil {
		return nil, err
	}
	all = append(all, more...)
	if k.only == nil {
		return all, nil
	}
	var chosen []scenario
	for _, name := range k.only {
		found := false
		for _, sc := range all {
			prefix, more := strings.CutSuffix(name, "*")
			if sc.name == name || more && strings.HasPrefix(sc.name, prefix) {
				chosen, found = append(chosen, sc), true
			}
		}
		if !found {
			return nil, fmt.Errorf("unknown scenario %q; the scenarios are %s", name, strings.Join(names(all), " "))
		}
	}
	return chosen, nil
}

func names(of []scenario) (all []string) {
	for _, sc := range of {
		all = append(all, sc.name)
	}
	return all
}

// result is the result of a scenario.
type result struct {
	scenario scenario
	failure  *failure
	trace    []string
	stderr   string
	took     time.Duration
}

func (r *result) report(verbose bool) string {
	var b strings.Builder
	verdict, about := "ok  ", r.scenario.about
	if r.failure != nil {
		verdict = "FAIL"
	}
	reaction := "-"
	if r.scenario.reaction > 0 {
		reaction = fmt.Sprint(r.scenario.reaction)
	}
	fmt.Fprintf(&b, "%s %-24s reaction %-2s %6s  %s\n", verdict, r.scenario.name, reaction,
		fmt.Sprint(r.took.Round(10*time.Millisecond)), about)
	if f := r.failure; f != nil {
		fmt.Fprintf(&b, "     expected: %s\n     seen:     %s\n", f.expected, f.seen)
	}
	if r.failure != nil || verbose {
		for _, line := range r.trace {
			fmt.Fprintf(&b, "       %s\n", line)
		}
		if text := strings.TrimSpace(r.stderr); text != "" {
			fmt.Fprintf(&b, "     the adapter's stderr ends:\n       %s\n", strings.ReplaceAll(text, "\n", "\n       "))
		}
	}
	return b.String()
}

// play runs one scenario on its own stage.
func (k *kit) play(sc scenario, number int) (r *result) {
	r = &result{scenario: sc}
	began := time.Now()
	s := &stage{kit: k, socket: filepath.Join(k.dir, fmt.Sprintf("s%d", number)), began: began}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case *failure:
			r.failure = f
		default:
			panic(f)
		}
		s.end()
		r.trace, r.took = s.lines(), since(began)
		if s.adapter != nil {
			r.stderr = s.adapter.stderr.String()
		}
		r.trace = r.trace[max(0, len(r.trace)-40):]
	}()
	s.listen()
	s.adapter = s.start()
	sc.play(s)
	return r
}

// failure ends a scenario.
type failure struct{ expected, seen string }

// fail ends the scenario of the calling goroutine.
func fail(expected, seen string, args ...any) {
	panic(&failure{expected, fmt.Sprintf(seen, args...)})
}

// need ends the scenario unless ok is true.
func need(ok bool, expected, seen string, args ...any) {
	if !ok {
		fail(expected, seen, args...)
	}
}

// must panics on an error of the kit itself.
func must(err error) {
	if err != nil {
		fail("the kit itself to work", "%v", err)
	}
}

// cut shortens a text for the report.
func cut(s string) string {
	const most = 240
	if len(s) <= most {
		return s
	}
	return s[:most] + cmp.Or("…")
}
