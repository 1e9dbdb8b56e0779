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

// pythonModules are the modules that most test programs import.
const pythonModules = "argparse, base64, importlib, json, logging, msgpack, signal, socket, sqlite3, subprocess, " +
	"threading, traceback, unittest, unittest.mock, uuid"

// NewestPython returns the Python of Debian sid, or of Debian's latest release if sid is
// unavailable.
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

// DebianPython returns the path of a Debian suite's Python, with the suite's msgpack. It does not
// touch the system's Python. With python -S it has only the standard library.
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
		// Use the suite's loader, so that Python uses the libraries it was built with.
		script := fmt.Sprintf("#!/bin/sh\nPYTHONHOME='%s/usr' exec '%s' --library-path '%s' '%s/usr/bin/python3' \"$@\"\n",
			home, loader, libraries, home)
		// Write under another name first, so that the file is complete or missing.
		if err := WriteProgram(interpreter+".new", []byte(script)); err != nil {
			return err
		}
		// Debian compiles modules during installation. Compile those that the tests start with.
		if err := run(ctx, interpreter+".new", "-c", "import "+pythonModules); err != nil {
			return err
		}
		return os.Rename(interpreter+".new", interpreter)
	})
}

// PythonPackages returns a directory for PYTHONPATH with these requirements, installed by pip for
// another Python version, given as 3.14. The requirements must not need a build.
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
		defer os.RemoveAll(work) // its contents were moved, or are useless
		args := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
			"--python-version", version, "--ignore-requires-python", // pip would check its own version otherwise
			"--target", filepath.Join(work, "packages")}
		if err := run(ctx, pip, append(args, requirements...)...); err != nil {
			return err
		}
		return os.Rename(filepath.Join(work, "packages"), home)
	})
}

// PythonVersion returns an interpreter's version, as 3.14.
func PythonVersion(ctx context.Context, python string) (string, error) {
	out, err := exec.CommandContext(ctx, python, "-S", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", python, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
