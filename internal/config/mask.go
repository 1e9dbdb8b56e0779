package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"github.com/qsidecar/qsidecar/internal/engines"
)

var (
	// secretValue is what follows the name of a secret: the keys that people think up for
	// one, and the parameters of URLs. password_file is none.
	secretValue = regexp.MustCompile(`(?i)((?:password|passwd|passphrase|pass|pwd|secret)["']?\s*[:=]\s*)\S.*`)
	// urlValue is what stands behind the key url.
	urlValue  = regexp.MustCompile(`(?i)(\burl["']?\s*:\s*["']?)(\S.*)`)
	urlBegins = regexp.MustCompile(`^([A-Za-z0-9+.-]+://|sqlite:|\$\{)`)
	// urlInText ends where one surely does.
	urlInText = regexp.MustCompile("[A-Za-z0-9+.-]+://[^\\s\"'`,}]*")
)

// maskedLine is a line of a config without what may be a password in it.
func maskedLine(line string) string {
	if m := urlValue.FindStringSubmatchIndex(line); m != nil && !urlBegins.MatchString(line[m[4]:m[5]]) {
		line = line[:m[3]] + "…" // no URL: a password in the wrong place
	}
	return masked(line)
}

// masked is such a line, or an error about one. After what may be a password all is left
// out, for nobody knows where it ends.
func masked(line string) string {
	const form, mark = "://USER@HOST", "\x00" // what this program's own words say of URLs
	return strings.ReplaceAll(maskedURLs(strings.ReplaceAll(line, form, mark)), mark, form)
}

func maskedURLs(line string) string {
	line = secretValue.ReplaceAllString(line, "$1…")
	at := 0
	for {
		span := urlInText.FindStringIndex(line[at:])
		if span == nil {
			return line
		}
		from, to := at+span[0], at+span[1]
		if u := line[from:to]; !strings.HasPrefix(u, "sqlite:") && (engines.HasPassword(u) || engines.CheckAddress(u) != nil || strings.Contains(line[to:], "@")) {
			scheme, _, _ := strings.Cut(u, "://")
			return line[:from] + scheme + "://…"
		}
		at = to
	}
}

// unexpanded is a text with the values of environment variables, which may be secrets,
// put back to what the file has for them.
func unexpand(text string, values map[string]string) string {
	names := make([]string, 0, len(values))
	for name, value := range values {
		if len(value) >= 4 { // a shorter one is found everywhere
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(values[b]), len(values[a])), cmp.Compare(a, b))
	})
	for _, name := range names {
		text = strings.ReplaceAll(text, values[name], "${"+name+"}")
	}
	return text
}
