package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// Snapshot is the files that a config came from, and what was in them.
type Snapshot struct {
	Files   []string          // their paths
	config  [sha256.Size]byte // of the config, and of what its databases' address was read from
	Secrets [sha256.Size]byte // of the secrets' files
}

func (s Snapshot) Same(other Snapshot) bool {
	return s.config == other.config && s.Secrets == other.Secrets
}

// ReadSnapshot reads the files again that c was read from.
func ReadSnapshot(file string, c *Config) (src Snapshot, err error) {
	whose := make(map[string]string) // what each file is
	hash := func(paths []string) (sum [sha256.Size]byte) {
		h := sha256.New()
		for _, path := range paths {
			text, e := readFile(path)
			if e != nil {
				err = errors.Join(err, Errorf("%s cannot be read: %w", whose[path], e))
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
		whose[file] = "the config file"
	}
	if c.urlFile != "" {
		configs = append(configs, c.urlFile)
		whose[c.urlFile] = "the file with the database's URL"
	}
	for _, name := range slices.Sorted(maps.Keys(c.Databases)) { // an error that comes again has the same words
		if d := c.Databases[name]; d.PasswordFile != "" && !slices.Contains(secrets, d.PasswordFile) {
			secrets = append(secrets, d.PasswordFile)
			whose[d.PasswordFile] = "databases." + name + ".password_file"
		}
	}
	slices.Sort(secrets)
	src.Files = append(slices.Clone(configs), secrets...)
	src.config, src.Secrets = hash(configs), hash(secrets)
	return src, err
}

// unsteady is how often files may be different from one reading to the next.
const maxReads = 10

var (
	errFilesChanging = errors.New("the config's files change while they are read")
	// errEmptyConfig: whoever writes a file in place empties it first.
	errEmptyConfig = errors.New("the config file is empty: it is taken for one that is just being written (for the defaults, a comment will do)")
)

// ReadConsistent loads a config, and what is in its files at the same time. Later changes are found
// by comparing the files with src. file is the config file; empty: there is none.
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

// CheckNotEmpty wants something in the config file.
func (in Input) CheckNotEmpty() error {
	if in.File == "" {
		return nil
	}
	text, err := readFile(in.File)
	if err == nil && len(bytes.TrimSpace(text)) == 0 {
		err = errEmptyConfig
	}
	return err
}
