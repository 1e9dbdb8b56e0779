package main

import (
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
func ReadSnapshot(file string, c *config) (src Snapshot, err error) {
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
