package testserver

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
)

// PythonTools are the packages that the tests and the benchmark of the Python client need, in one
// environment for all.
var PythonTools = []string{"msgpack==1.2.4", "mypy==2.4.1", "psycopg[binary]==3.3.9", "PyMySQL==1.2.4", "SQLAlchemy==2.1.9"}

// staleAfter is the age at which the environment of a package that has changed is removed. It is
// longer than any run.
const staleAfter = 24 * time.Hour

// PythonEnv returns the interpreter of a virtual environment of that Python with these
// requirements, installed by pip. It creates the environment once and caches it. The cache key is
// the Python's version, the requirements, and the files of requirements that are directories, so a
// changed package is installed again.
func PythonEnv(ctx context.Context, python string, requirements ...string) (interpreter string, err error) {
	cache, err := cacheDir(account{})
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
	err = locked(kind+"lock", func() error {
		if exists(filepath.Join(home, "made")) {
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
