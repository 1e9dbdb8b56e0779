package kit

import "os"

// WriteConfig gives the sidecar's config another text, as an editor does: no reader sees half
// of it.
func (sc *Sidecar) WriteConfig(text string) {
	sc.T.Helper()
	next := sc.ConfigFile + ".new"
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		sc.T.Fatal(err)
	}
	if err := os.Rename(next, sc.ConfigFile); err != nil {
		sc.T.Fatal(err)
	}
}

// ReadConfig is the sidecar's config.
func (sc *Sidecar) ReadConfig() string {
	sc.T.Helper()
	text, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	return string(text)
}

// CaughtUp returns once the sidecar has most likely read what was sent to it
// before: nothing on the wire counts waiting claims, so a ping on another
// connection, sent later, is the nearest fact.
func (sc *Sidecar) CaughtUp() {
	sc.T.Helper()
	sc.Dial().Must(Msg{"op": "ping"})
}
