// Package pythonenv makes environments of Python for tests, and fetches other versions of Python.
package pythonenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/qsidecar/qsidecar/internal/testserver/debian"
	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// Tools are the packages that the tests and the benchmark of the Python client need, in one
// environment for all.
var Tools = []string{"msgpack==1.2.4", "mypy==2.4.1", "psycopg[binary]==3.3.9", "PyMySQL==1.2.4", "SQLAlchemy==2.1.9"}

// staleAfter is the age at which the environment of a package that has changed is removed. It is
// longer than any run.
const staleAfter = 24 * time.Hour

// New returns the interpreter of a virtual environment of that Python with these
// requirements, installed by pip. It creates the environment once and caches it. The cache key is
// the Python's version, the requirements, and the files of requirements that are directories, so a
// changed package is installed again.
func New(ctx context.Context, python string, requirements ...string) (interpreter string, err error) {
	cache, err := local.CacheDirOf(local.Account{})
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, python, "-c", "import sys; print(sys.version, sys.executable)").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s(scripts/need.sh python3 installs it)", python, err, version)
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%q\n", version, requirements)
	kind := filepath.Join(cache, "python-"+short(sum)+"-")
	for _, r := range requirements {
		if info, err := os.Stat(r); err == nil && info.IsDir() {
			if err := hashFiles(sum, r); err != nil {
				return "", err
			}
		}
	}
	home := kind + short(sum)
	err = local.Locked(kind+"lock", func() error {
		if local.Exists(filepath.Join(home, "made")) {
			return nil
		}
		if err := os.RemoveAll(home); err != nil {
			return err
		}
		return errors.Join(removeStale(kind), makePythonEnv(ctx, python, home, requirements))
	})
	return filepath.Join(home, "bin", "python"), err
}

func short(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)[:6]) }

// removeStale removes unused environments of one kind.
func removeStale(kind string) error {
	old, err := filepath.Glob(kind + "*/made")
	for _, made := range old {
		if info, failed := os.Stat(made); failed == nil && time.Since(info.ModTime()) > staleAfter {
			err = errors.Join(err, os.RemoveAll(filepath.Dir(made)))
		}
	}
	return err
}

// hashFiles writes the names and contents of the files below dir to a hash.
func hashFiles(to hash.Hash, dir string) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "__pycache__") {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(to, "%s %d\n%s", name, len(text), text)
		return err
	})
}

// makePythonEnv creates home. Its file "made" marks it as complete. Requirements that are
// directories are installed from copies, because pip writes its builds beside the sources.
func makePythonEnv(ctx context.Context, python, home string, requirements []string) (err error) {
	if err := local.Run(ctx, python, "-m", "venv", home); err != nil {
		return fmt.Errorf("%w(scripts/need.sh venv installs what is missing)", err)
	}
	sources, err := os.MkdirTemp("", "qspy")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sources)) }()
	install := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check"}
	for i, r := range requirements {
		if info, err := os.Stat(r); err == nil && info.IsDir() {
			to := filepath.Join(sources, fmt.Sprint(i))
			if err := os.CopyFS(to, os.DirFS(r)); err != nil {
				return err
			}
			r = to
		}
		install = append(install, r)
	}
	if len(requirements) > 0 {
		if err := local.Run(ctx, filepath.Join(home, "bin", "python"), install...); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(home, "made"), nil, 0o644)
}

// pythonModules are the modules that most test programs import.
const pythonModules = "argparse, base64, importlib, json, logging, msgpack, signal, socket, sqlite3, subprocess, " +
	"threading, traceback, unittest, unittest.mock, uuid"

// Newest returns the Python of Debian sid, or of Debian's latest release if sid is
// unavailable.
func Newest(ctx context.Context) (interpreter string, err error) {
	interpreter, err = Debian(ctx, "sid")
	if err == nil {
		return interpreter, nil
	}
	interpreter, next := Debian(ctx, "trixie")
	if next != nil {
		return "", errors.Join(err, next)
	}
	return interpreter, nil
}

// Debian returns the path of a Debian suite's Python, with the suite's msgpack. It does not
// touch the system's Python. With python -S it has only the standard library.
func Debian(ctx context.Context, suite string) (interpreter string, err error) {
	home, err := debian.Root(ctx, "python-"+suite, suite, "python3", "python3-msgpack")
	if err != nil {
		return "", err
	}
	interpreter = filepath.Join(home, "python")
	return interpreter, local.Locked(home+".lock", func() error {
		if local.Exists(interpreter) {
			return nil
		}
		loader, libraries, err := debian.Loader(home)
		if err != nil {
			return err
		}
		// Use the suite's loader, so that Python uses the libraries it was built with.
		script := fmt.Sprintf("#!/bin/sh\nPYTHONHOME='%s/usr' exec '%s' --library-path '%s' '%s/usr/bin/python3' \"$@\"\n",
			home, loader, libraries, home)
		// Write under another name first, so that the file is complete or missing.
		if err := local.WriteProgram(interpreter+".new", []byte(script)); err != nil {
			return err
		}
		// Debian compiles modules during installation. Compile those that the tests start with.
		if err := local.Run(ctx, interpreter+".new", "-c", "import "+pythonModules); err != nil {
			return err
		}
		return os.Rename(interpreter+".new", interpreter)
	})
}

// Packages returns a directory for PYTHONPATH with these requirements, installed by pip for
// another Python version, given as 3.14. The requirements must not need a build.
func Packages(ctx context.Context, version string, requirements ...string) (string, error) {
	cache, err := local.CacheDirOf(local.Account{})
	if err != nil {
		return "", err
	}
	pip, err := New(ctx, "python3", Tools...)
	if err != nil {
		return "", err
	}
	name := strings.NewReplacer("=", "", "/", "-").Replace(strings.Join(requirements, "-"))
	home := filepath.Join(cache, "python"+version+"-"+name)
	return home, local.Locked(home+".lock", func() error {
		if local.Exists(home) {
			return nil
		}
		work, err := os.MkdirTemp(cache, "fetching-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work) // its contents were moved, or are useless
		args := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
			"--python-version", version, "--ignore-requires-python", // pip would check its own version otherwise
			"--target", filepath.Join(work, "packages")}
		if err := local.Run(ctx, pip, append(args, requirements...)...); err != nil {
			return err
		}
		return os.Rename(filepath.Join(work, "packages"), home)
	})
}

// Version returns an interpreter's version, as 3.14.
func Version(ctx context.Context, python string) (string, error) {
	out, err := exec.CommandContext(ctx, python, "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", python, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
