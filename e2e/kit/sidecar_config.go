package kit

import "os"

// WriteConfig replaces the sidecar's config atomically, as an editor does.
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

// ReadConfig returns the sidecar's config.
func (sc *Sidecar) ReadConfig() string {
	sc.T.Helper()
	text, err := os.ReadFile(sc.ConfigFile)
	if err != nil {
		sc.T.Fatal(err)
	}
	return string(text)
}

// CaughtUp returns once the sidecar has most likely read earlier requests. Nothing on the wire
// counts waiting claims, so it sends a later ping on another connection.
func (sc *Sidecar) CaughtUp() {
	sc.T.Helper()
	sc.Dial().Must(Msg{"op": "ping"})
}
