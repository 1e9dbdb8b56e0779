package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Snapshot identifies the contents of the files of a config.
type Snapshot struct {
	Files   []string          // their paths
	config  [sha256.Size]byte // of the config file and the file with the database's URL
	Secrets [sha256.Size]byte // of the files with secrets
}

// Same reports whether the files had the same contents.
func (s Snapshot) Same(other Snapshot) bool {
	return s.config == other.config && s.Secrets == other.Secrets
}

// ReadSnapshot reads the files of c again. file is the config file; empty: there is none.
func ReadSnapshot(file string, c *Config) (src Snapshot, err error) {
	kinds := make(map[string]string) // a description of each file, for errors
	hash := func(paths []string) (sum [sha256.Size]byte) {
		h := sha256.New()
		for _, path := range paths {
			text, e := readFile(path)
			if e != nil {
				err = errors.Join(err, Errorf("%s cannot be read: %w", kinds[path], e))
			}
			fmt.Fprintf(h, "%s %d ", path, len(text))
			h.Write(text)
		}
		h.Sum(sum[:0])
		return sum
	}
	var configs, secrets []string
	if file != "" {
		configs = append(configs, file)
		kinds[file] = "the config file"
	}
	if c.urlFile != "" {
		configs = append(configs, c.urlFile)
		kinds[c.urlFile] = "the file with the database's URL"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) { // sorted, so that the same error has the same text
		if d := c.Databases[name]; d.PasswordFile != "" && !slices.Contains(secrets, d.PasswordFile) {
			secrets = append(secrets, d.PasswordFile)
			kinds[d.PasswordFile] = "databases." + name + ".password_file"
		}
	}
	if file := c.Admin.TokenFile; file != "" && !slices.Contains(secrets, file) {
		secrets = append(secrets, file)
		kinds[file] = "admin.token_file"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Admin.Users)) {
		if file := c.Admin.Users[name]; file != "" && !slices.Contains(secrets, file) {
			secrets = append(secrets, file)
			kinds[file] = "admin.users." + name
		}
	}
	slices.Sort(secrets)
	src.Files = append(slices.Clone(configs), secrets...)
	src.config, src.Secrets = hash(configs), hash(secrets)
	return src, err
}

// maxReads is how often ReadConsistent reads files that keep changing.
const maxReads = 10

var (
	errFilesChanging = errors.New("the config's files change while they are read")
	// errEmptyConfig prevents that a file which is being rewritten counts as an empty
	// config.
	errEmptyConfig = errors.New("the config file is empty: it is taken for one that is just being written (for the defaults, a comment will do)")
)

// ReadConsistent loads a config together with the snapshot of its files. A later difference
// from the snapshot means a change.
func ReadConsistent(file string, load func() (Config, error)) (c Config, src Snapshot, err error) {
	for range maxReads {
		before := src
		if c, err = load(); err != nil {
			return c, src, err
		}
		if src, err = ReadSnapshot(file, &c); err != nil {
			return c, src, err
		}
		if src.Same(before) {
			return c, src, nil
		}
	}
	return c, src, errFilesChanging
}

// CheckNotEmpty returns an error if the config file is empty.
func (i Input) CheckNotEmpty() error {
	if i.File == "" {
		return nil
	}
	text, err := readFile(i.File)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errEmptyConfig
	}
	return err
}
