package testserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// PythonDrivers are what the tests and the benchmark of the Python client share: one
// environment for all.
var PythonDrivers = []string{"msgpack==1.2.4", "psycopg[binary]==3.3.9", "PyMySQL==1.2.4"}

// pythonTime is for the making of one environment: some MB, and a mirror that is slow today.
const pythonTime = 3 * time.Minute

// PythonEnv is a virtual environment of that Python with what pip makes of these
// requirements, and its interpreter. It is made once, and kept in the cache: its name
// stands for the Python's version, the requirements, and for a requirement that is
// a folder the files in it, so that a changed package is installed anew.
func PythonEnv(ctx context.Context, python string, requirements ...string) (interpreter string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pythonTime)
	defer cancel()
	cache, err := cacheDir(account{})
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, python, "-c", "import sys; print(sys.version, sys.executable)").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s(scripts/need.sh python3 installs it)", python, err, version)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%q\n", version, requirements)
	for _, r := range requirements {
		if info, err := os.Stat(r); err == nil && info.IsDir() {
			if err := hashFiles(hash, r); err != nil {
				return "", err
			}
		}
	}
	home := filepath.Join(cache, "python-"+hex.EncodeToString(hash.Sum(nil)[:8]))
	err = locked(home+".lock", func() error {
		if exists(filepath.Join(home, "made")) {
			return nil
		}
		if err := os.RemoveAll(home); err != nil {
			return err
		}
		return makePythonEnv(ctx, python, home, requirements)
	})
	return filepath.Join(home, "bin", "python"), err
}

// hashFiles writes the names and contents of the files below dir to hash.
func hashFiles(hash interface{ Write([]byte) (int, error) }, dir string) error {
	return fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(name, "__pycache__") {
			return err
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(hash, "%s %d\n%s", name, len(text), text)
		return err
	})
}

// makePythonEnv makes home, whose file "made" says that it is whole. Folders are
// installed from copies: pip leaves its builds beside their sources.
func makePythonEnv(ctx context.Context, python, home string, requirements []string) (err error) {
	if err := run(ctx, python, "-m", "venv", home); err != nil {
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
		if err := run(ctx, filepath.Join(home, "bin", "python"), install...); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(home, "made"), nil, 0o644)
}
