package rivals

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/qsidecar/qsidecar/bench/internal/measure"
	"github.com/qsidecar/qsidecar/bench/internal/proc"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
	"github.com/qsidecar/qsidecar/internal/testserver/pythonenv"
)

// scriptPeer is a queue in another language: a program in the directory rivals. install returns its
// command and the directory in which it runs.
func scriptPeer(name, settings string, install func(ctx context.Context, dir string) (argv []string, cwd string, err error), options map[string]any) peer {
	return peer{name: name, settings: settings, open: func(ctx context.Context, y *yard) (contender, error) {
		repository, err := local.Repository()
		if err != nil {
			return nil, err
		}
		argv, cwd, err := install(ctx, filepath.Join(repository, "bench", "rivals"))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", measure.ErrUnavailable, err)
		}
		d, err := y.Server.Database(ctx, name)
		if err != nil {
			return nil, err
		}
		return &script{y: y, d: d, sidecar: &measure.Sidecar{}, stop: d.Close, argv: argv, cwd: cwd, options: options}, nil
	}}
}

// clientPeer is the worker of a client in another language, with a sidecar. Its program is in the directory rivals, too.
func clientPeer(language, settings, kind string, install func(ctx context.Context, dir string) (argv []string, cwd string, err error)) peer {
	name := "qsidecar " + language + " worker"
	return peer{name: name, settings: settings, only: []string{"1", "8", "32"}, open: func(ctx context.Context, y *yard) (contender, error) {
		repository, err := local.Repository()
		if err != nil {
			return nil, err
		}
		argv, cwd, err := install(ctx, filepath.Join(repository, "bench", "rivals"))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", measure.ErrUnavailable, err)
		}
		x, err := y.Site(ctx, y.Server, name)
		if err != nil {
			return nil, err
		}
		options := map[string]any{"socket": x.Sidecar.Socket, "queue": ownQueue, "kind": kind}
		return &script{y: y, d: x.Database, sidecar: x.Sidecar, stop: x.Close, argv: argv, cwd: cwd, options: options}, nil
	}}
}

// script is a contender in another process, which lives from ready to end.
type script struct {
	y       *yard
	d       measure.Database
	sidecar *measure.Sidecar // without a process: none
	stop    func() error
	argv    []string
	cwd     string
	options map[string]any
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	named   string
}

func (s *script) version() string { return s.named }
func (s *script) close() error    { return s.stop() }

func (s *script) ready(ctx context.Context, w workload) (err error) {
	about := map[string]any{"url": s.d.URL(), "workers": w.workers, "size": w.size, "batch": w.batch, "producers": producers}
	maps.Copy(about, s.options)
	text, err := json.Marshal(about)
	if err != nil {
		return err
	}
	s.cmd = exec.CommandContext(ctx, s.argv[0], append(s.argv[1:], string(text))...)
	s.cmd.Dir, s.cmd.Stderr = s.cwd, os.Stderr
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGKILL) }
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	return s.ask(&s.named, "version") // it is ready when it answers
}

func (s *script) end() error { return errors.Join(s.in.Close(), s.cmd.Wait()) }

// ask sends a command and decodes its answer.
func (s *script) ask(to any, command string, args ...any) error {
	if _, err := fmt.Fprintln(s.in, append([]any{command}, args...)...); err != nil {
		return err
	}
	line, err := s.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("%s: the program ended: %w", command, err)
	}
	return json.Unmarshal(line, to)
}

// measure runs a command whose answer has figures.
func (s *script) measure(ctx context.Context, command string, args ...any) (f measure.Figures, err error) {
	look := s.y.Watch(ctx, s.sidecar, s.d)
	var answer struct {
		Jobs    int
		Seconds float64
		Waits   []float64 // in ms
	}
	f, err = measure.Timed(1, func() (u measure.Usage, err error) {
		if u, err = look(); err == nil {
			u.Self, err = proc.CPU(s.cmd.Process.Pid)
		}
		return u, err
	}, func(int) error { return s.ask(&answer, command, args...) })
	f.Jobs, f.Took = answer.Jobs, time.Duration(answer.Seconds*float64(time.Second))
	for _, ms := range answer.Waits {
		f.First = append(f.First, time.Duration(ms*float64(time.Millisecond)))
	}
	return f, err
}

func (s *script) produce(ctx context.Context, n int) (measure.Figures, error) {
	return s.measure(ctx, "produce", n)
}

func (s *script) consume(ctx context.Context, n int) (measure.Figures, error) {
	return s.measure(ctx, "consume", n)
}

func (s *script) flow(ctx context.Context, n int, rate float64) (measure.Figures, error) {
	return s.measure(ctx, "flow", n, rate)
}

func (s *script) left(context.Context) (n int, err error) {
	err = s.ask(&n, "left")
	return n, err
}

// nodeProgram returns the command of a program for Node.js. The packages are in the cache.
func nodeProgram(program string) func(ctx context.Context, dir string) ([]string, string, error) {
	return func(ctx context.Context, dir string) ([]string, string, error) {
		wanted, err := os.ReadFile(filepath.Join(dir, "package.json"))
		if err != nil {
			return nil, "", err
		}
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, "", err
		}
		home := filepath.Join(cache, "qsidecar-bench", fmt.Sprintf("npm-%x", sha256.Sum256(wanted))[:16])
		if _, err := os.Stat(filepath.Join(home, "installed")); err != nil {
			if err := npmInstall(ctx, home, wanted); err != nil {
				return nil, "", err
			}
		}
		node, err := filepath.Glob(filepath.Join(home, "node_modules", "node-linux-*", "bin", "node"))
		return []string{cmp.Or(append(node, "node")...), filepath.Join(dir, program)}, home, err
	}
}

// npmInstall installs the packages in a new directory.
func npmInstall(ctx context.Context, home string, wanted []byte) error {
	if err := errors.Join(os.RemoveAll(home), os.MkdirAll(home, 0o755), os.WriteFile(filepath.Join(home, "package.json"), wanted, 0o644)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "npm", "install", "--prefix", home, "--no-audit", "--no-fund", "--loglevel=error").CombinedOutput()
	if err != nil {
		return fmt.Errorf("npm install: %w\n%s(scripts/need.sh npm installs npm)", err, out)
	}
	return os.WriteFile(filepath.Join(home, "installed"), nil, 0o644)
}

// ownProgram returns the command of a program that needs no packages.
func ownProgram(interpreter, program string) func(ctx context.Context, dir string) ([]string, string, error) {
	return func(_ context.Context, dir string) ([]string, string, error) {
		return []string{interpreter, filepath.Join(dir, program)}, dir, nil
	}
}

// pythonProgram returns the command of a program for Python.
func pythonProgram(program string, packages ...string) func(ctx context.Context, dir string) ([]string, string, error) {
	return func(ctx context.Context, dir string) ([]string, string, error) {
		python, err := pythonenv.New(ctx, "python3", packages...)
		return []string{python, filepath.Join(dir, program)}, dir, err
	}
}
