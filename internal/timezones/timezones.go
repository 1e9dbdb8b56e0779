// Package timezones has the time zones of the IANA database, as a part of the program.
//
// It doesn't use time.LoadLocation with time/tzdata: that reads the files of the host first, and the program's copy only if the
// host has none. Hosts have files of different years, so the sidecars of one database would compute different times.
// zoneinfo.zip is the file that time/tzdata is made of.
package timezones

import (
	"archive/zip"
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"sync"
	"time"
)

//go:generate go run update.go

//go:embed zoneinfo.zip
var zipped []byte

var (
	files = sync.OnceValue(func() map[string]*zip.File {
		r, err := zip.NewReader(bytes.NewReader(zipped), int64(len(zipped)))
		if err != nil {
			panic(fmt.Sprintf("the embedded time zones are damaged: %v", err)) // a defect of the build
		}
		all := make(map[string]*zip.File, len(r.File))
		for _, f := range r.File {
			all[f.Name] = f
		}
		return all
	})
	loaded sync.Map // *time.Location by name
)

// Load returns the time zone of a name such as Europe/Berlin. An empty name is UTC.
func Load(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	if l, ok := loaded.Load(name); ok {
		return l.(*time.Location), nil
	}
	data, err := read(name)
	if err != nil {
		return nil, err
	}
	l, err := time.LoadLocationFromTZData(name, data)
	if err != nil {
		return nil, fmt.Errorf("the time zone %q: %w", name, err)
	}
	loaded.Store(name, l)
	return l, nil
}

func read(name string) ([]byte, error) {
	f := files()[name]
	if f == nil || f.FileInfo().IsDir() {
		return nil, fmt.Errorf("the time zone %q isn't in the IANA database %s: use a name such as Europe/Berlin or UTC", name, Version)
	}
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}
