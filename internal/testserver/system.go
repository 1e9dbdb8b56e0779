package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// DebianSystem returns a directory with a bootable Debian of that suite: the minimal system and
// systemd. It installs it once and caches it. Boot a copy or an overlay, and do not write into it.
// took is 0 if it was cached. It needs root and debootstrap.
func DebianSystem(ctx context.Context, suite string) (root string, took time.Duration, err error) {
	cache, err := cacheDir(account{})
	if err != nil {
		return "", 0, err
	}
	root = filepath.Join(cache, "system-"+suite)
	err = locked(root+".lock", func() error {
		if exists(root) {
			return nil
		}
		began := time.Now()
		mirrors, err := mirrors(ctx)
		if err != nil {
			return err
		}
		var failed error
		for _, mirror := range mirrors {
			err := bootstrap(ctx, cache, mirror, suite, root)
			if err == nil {
				took = time.Since(began)
				return nil
			}
			failed = errors.Join(failed, fmt.Errorf("a Debian %s from %s: %w", suite, mirror, err))
		}
		return failed
	})
	return root, took, err
}

// bootstrap creates root, all or nothing.
func bootstrap(ctx context.Context, cache, mirror, suite, root string) (err error) {
	work, err := os.MkdirTemp(cache, "fetching-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	args := []string{"--foreign", "--variant=minbase", "--include=systemd,systemd-sysv"}
	if keys := "/usr/share/keyrings/debian-archive-keyring.gpg"; exists(keys) {
		args = append(args, "--keyring="+keys)
	}
	made := filepath.Join(work, "root")
	if err := run(ctx, "debootstrap", append(args, suite, made, mirror)...); err != nil {
		return err
	}
	// A power failure can leave it incomplete. Then it is created again.
	if err := os.WriteFile(filepath.Join(made, "etc/dpkg/dpkg.cfg.d/unsafe-io"), []byte("force-unsafe-io\n"), 0o644); err != nil {
		return err
	}
	if err := run(ctx, "chroot", made, "/debootstrap/debootstrap", "--second-stage"); err != nil {
		return err
	}
	for _, fetched := range []string{"var/cache/apt/archives", "var/lib/apt/lists"} {
		if err := os.RemoveAll(filepath.Join(made, fetched)); err != nil {
			return err
		}
	}
	return os.Rename(made, root)
}
