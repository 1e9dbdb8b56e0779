package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// pythonModules are those that most programs of the tests import.
const pythonModules = "argparse, base64, importlib, json, logging, msgpack, signal, socket, sqlite3, subprocess, " +
	"threading, traceback, unittest, unittest.mock, uuid"

// NewestPython is that of Debian's sid; where sid cannot be had just now, of its latest release.
func NewestPython(ctx context.Context) (interpreter string, err error) {
	interpreter, err = DebianPython(ctx, "sid")
	if err == nil {
		return interpreter, nil
	}
	interpreter, next := DebianPython(ctx, "trixie")
	if next != nil {
		return "", errors.Join(err, next)
	}
	return interpreter, nil
}

// DebianPython is the Python of a Debian suite, with the suite's msgpack, as a program
// to be called by its path. It does not touch the system's own. Without the folder of
// packages (python -S) it has the standard library alone.
func DebianPython(ctx context.Context, suite string) (interpreter string, err error) {
	home, err := DebianRoot(ctx, "python-"+suite, suite, "python3", "python3-msgpack")
	if err != nil {
		return "", err
	}
	interpreter = filepath.Join(home, "python")
	return interpreter, locked(home+".lock", func() error {
		if exists(interpreter) {
			return nil
		}
		loader, libraries, err := loaderOf(home)
		if err != nil {
			return err
		}
		// Through the suite's own loader, so that it meets the libraries that it was built with.
		script := fmt.Sprintf("#!/bin/sh\nPYTHONHOME='%s/usr' exec '%s' --library-path '%s' '%s/usr/bin/python3' \"$@\"\n",
			home, loader, libraries, home)
		// A name of its own first: the file is there as a whole or not at all.
		if err := WriteProgram(interpreter+".new", []byte(script)); err != nil {
			return err
		}
		// Debian compiles modules when it installs them: these are what tests start with.
		if err := run(ctx, interpreter+".new", "-c", "import "+pythonModules); err != nil {
			return err
		}
		return os.Rename(interpreter+".new", interpreter)
	})
}

// PythonPackages is a folder for PYTHONPATH with what pip has of these requirements for
// another Python, whose version is given as 3.14. They must need no building.
func PythonPackages(ctx context.Context, version string, requirements ...string) (string, error) {
	cache, err := cacheDir(account{})
	if err != nil {
		return "", err
	}
	pip, err := PythonEnv(ctx, "python3", PythonTools...)
	if err != nil {
		return "", err
	}
	name := strings.NewReplacer("=", "", "/", "-").Replace(strings.Join(requirements, "-"))
	home := filepath.Join(cache, "python"+version+"-"+name)
	return home, locked(home+".lock", func() error {
		if exists(home) {
			return nil
		}
		work, err := os.MkdirTemp(cache, "fetching-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(work) // what is in it was moved, or is of no use
		args := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
			"--python-version", version, "--ignore-requires-python", // it looks at its own all the same
			"--target", filepath.Join(work, "packages")}
		if err := run(ctx, pip, append(args, requirements...)...); err != nil {
			return err
		}
		return os.Rename(filepath.Join(work, "packages"), home)
	})
}

// PythonVersion is what an interpreter says, as 3.14.
func PythonVersion(ctx context.Context, python string) (string, error) {
	out, err := exec.CommandContext(ctx, python, "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", python, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
